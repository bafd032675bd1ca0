"""The look-up ``plan``: what a correction would touch. The page and the DAGs ask for it in the same way."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.execution import run_operation
from airflow_paimon.shown.correction_text import plan_lines
from airflow_paimon.shown.listing import View


def plan_of(reach: Mapping[str, Any], table: str, *, sql: str | None = None, **values: Any) -> dict[str, Any]:
    """Return the details of ``plan_correction``, of SQL as a text, which is never taken for a file's name.

    :param reach: ``warehouse`` and ``storage_options``
    :param values: further fields of the request, such as ``function`` instead of ``sql``
    :raises PaimonError: as ``plan_correction``
    """
    with tempfile.TemporaryDirectory() as folder:
        if sql is not None:
            values["sql"] = f"{folder}/correction.sql"
            Path(values["sql"]).write_text(sql, encoding="utf-8")
        return _details(reach, table, values)


def plan(reach: Mapping[str, Any], table: str, values: Mapping[str, Any]) -> View:
    """Look the plan up. ``values``: further fields of the request."""
    details = _details(reach, table, values)
    return View(details, "\n".join(plan_lines(details)))


def _details(reach: Mapping[str, Any], table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(run_operation(build_request("plan_correction", {**reach, "table": table, **values})).details)
