"""Trigger forms filled in, for the DAGs that take them. The page itself starts nothing.

Airflow 3.3 has no address that opens a trigger form filled in, so the page shows the form's JSON to be copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.plugin import auth, runs
from airflow_paimon.plugin.panel import PageContext
from airflow_paimon.plugin.reading import FRESH_SECONDS
from airflow_paimon.runbooks.kinds import Kind


def known_dags(context: PageContext) -> list[runs.KnownDag]:
    """Return the DAGs of this package's factories that this Airflow has."""
    return context.reader.get(("dags",), runs.known_dags, deadline=context.deadline, fresh=FRESH_SECONDS)


def visible_dags(context: PageContext) -> list[runs.KnownDag]:
    """Return those of them that can be triggered, and that the user may read."""
    return [dag for dag in known_dags(context) if not dag.stale and auth.may_read_dag(context.user, dag.dag_id)]


def of_table(context: PageContext) -> dict[str, Any]:
    """Return how every form names this table."""
    named = {"table": context.main.name}
    return named if context.conn_id == PaimonHook.default_conn_name else {**named, "paimon_conn_id": context.conn_id}


def form_card(
    context: PageContext,
    dags: Sequence[runs.KnownDag],
    kind: Kind,
    title: str,
    conf: Mapping[str, Any],
    hint: str = "",
) -> list[dict[str, Any]]:
    """Return a form filled in, as ``cards.html`` shows it; none where none of the DAGs takes it."""
    links = [
        {"id": dag.dag_id, "href": f"{context.airflow}/dags/{quote(dag.dag_id, safe='')}"}
        for dag in dags
        if dag.kind == kind and dag.takes(conf, context.conn_id)
    ]
    shown = json.dumps(conf, indent=2, ensure_ascii=False)
    return [{"title": title, "hint": hint, "conf": shown, "dags": links}] if links else []
