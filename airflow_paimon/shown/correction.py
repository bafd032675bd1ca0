"""The look-up ``plan``: what a correction would touch. The page and the DAGs ask for it in the same way."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.text_files import names_file, sql_text
from airflow_paimon.execution import run_operation
from airflow_paimon.shown.correction_text import plan_lines
from airflow_paimon.shown.listing import View


def plan_of(reach: Mapping[str, Any], table: str, *, sql: str | None = None, **values: Any) -> dict[str, Any]:
    """Return the details of ``plan_correction``, of SQL as a text.

    :param reach: ``warehouse`` and ``storage_options``
    :param values: further fields of the request, such as ``function`` instead of ``sql``
    :raises PaimonError: as ``plan_correction``
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = dict(values)
        if sql is not None:
            arguments["sql"] = f"{folder}/correction.sql"
            Path(arguments["sql"]).write_text(sql, encoding="utf-8")
        return dict(run_operation(build_request("plan_correction", {**reach, "table": table, **arguments})).details)


def plan(
    reach: Mapping[str, Any], table: str, sql: str | None, function: str | None, values: Mapping[str, Any]
) -> View:
    """Look the plan up. ``sql``: the text, or a file whose name ends in ``.sql``."""
    if (sql is None) == (function is None):
        raise InvalidInputError(f"{table}: plan takes sql (--sql) or function (--function), one of the two")
    if sql is not None and not sql.strip():
        raise InvalidInputError(
            f"{table}: sql (--sql) is empty; give one statement or SELECT, or a file that ends in .sql"
        )
    if sql is not None and names_file(sql, (".sql",)):
        sql = sql_text(table, sql)
    details = plan_of(reach, table, sql=sql, **{**values, "function": function})
    return View(details, "\n".join(plan_lines(details)))
