"""The tab Plan: what a correction would touch, by metadata alone, who is downstream, and the forms filled in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from airflow.models.connection import Connection

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.errors import UnsupportedError as Unsupported
from airflow_paimon.core.sql_text.statement import statement_kind
from airflow_paimon.core.streaming.declared_replays import replays_of
from airflow_paimon.core.table.partition_text import parse_partition_text
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.lineage.downstream import ask_backend
from airflow_paimon.lineage.downstream_plan import pipeline_form, tables_downstream
from airflow_paimon.plugin import auth, reading_dags
from airflow_paimon.plugin.catalog import without_secrets_of
from airflow_paimon.plugin.forms import form_card, of_table, visible_dags
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.sheet import Sheet, sheet_of
from airflow_paimon.plugin.tabs.corrections import skeleton
from airflow_paimon.runbooks.form import in_form_words
from airflow_paimon.runbooks.kinds import Kind
from airflow_paimon.shown.correction import plan_of
from airflow_paimon.shown.correction_text import figure_lines, reader_lines
from airflow_paimon.shown.listing import AnnotatedValue, Listing, heads

MODES = ("overwrite", "upsert")
_SERVES_SECONDS = 60.0
"""A plan reads manifests and other branches, so it is shown for longer than other tabs."""
_REFUSED = (InvalidInputError, NotFoundError, UnsafeOperationError, Unsupported)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Correction:
    """What the form asks for. Without SQL whole partitions are meant, or nothing."""

    sql: str
    partitions: tuple[str, ...]
    mode: str

    @property
    def planned_sql(self) -> str:
        return self.sql or ("SELECT * FROM branch" if self.partitions else "")

    def as_form(self, skeleton: str) -> dict[str, Any]:
        """Return what the form of a correction gets, and takes: partitions and mode are for a SELECT alone."""
        if statement_kind(self.planned_sql) or not self.planned_sql:
            return {"sql": self.sql or skeleton}
        more = {"partitions": list(self.partitions)} if self.partitions else {}
        sql = self.sql or f"SELECT * FROM branch WHERE {_condition(self.partitions)}"
        return {"sql": sql, **more, **({"mode": self.mode} if self.mode == "upsert" else {})}


def _condition(partitions: Sequence[str]) -> str:
    """Return the condition for whole partitions; what can't be read as one is left to the plan, which says so."""
    found = []
    for spec in partitions:
        with suppress(InvalidInputError):
            found.append(" AND ".join(_equals(*one) for one in parse_partition_text(spec).items()))
    return " OR ".join(f"({one})" for one in found) or "..."


def _equals(column: str, value: str | None) -> str:
    named = "`" + column.replace("`", "``") + "`"
    quoted = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"{named} IS NULL" if value is None else f"{named} = '{quoted}'"


def show(context: PageContext) -> Panel:
    """Show the form, and below it the plan of what was asked."""
    query = context.query
    lines = tuple(line.strip() for line in query.partitions.splitlines() if line.strip())
    correction = _Correction(sql=query.sql.strip(), partitions=lines, mode=query.mode or MODES[0])
    plan, problem = _plan(context, correction)
    downstream = _downstream(context)
    used = _consumers(context)
    made = [name for one in used for name in one.makes]
    tables = tables_downstream({**downstream, **plan}, context.main.name, made)
    notes = _notes(context, downstream)
    return Panel(
        template="plan.html",
        notes=notes,
        sheets=[_sheet(context, downstream, used)],
        data={
            "sql": query.sql, "partitions": query.partitions, "mode": correction.mode, "modes": MODES,
            "skeleton": skeleton(context), "problem": problem,
            "lines": [*figure_lines(plan), *reader_lines(plan), *plan["notes"]] if plan else [],
            "forms": _forms(context, correction, tables),
        },
    )  # fmt: skip


def _plan(context: PageContext, correction: _Correction) -> tuple[Mapping[str, Any], str]:
    """Return the details of the plan, and why there is none."""
    sql = correction.planned_sql
    if not sql:
        return {}, ""
    mode, partitions = correction.mode, correction.partitions
    make = partial(plan_of, context.reach, context.main.name, sql=sql, mode=mode, partitions=partitions)
    try:
        found = context.read(
            "plan", sql, partitions, mode, context.head and context.head.identity,
            make=make, fresh=_SERVES_SECONDS, weigh=lambda plan: 2 * len(json.dumps(plan)),
        )  # fmt: skip
    except _REFUSED as error:
        return {}, without_secrets_of(context.conn_id, in_form_words(error.message))
    return found, ""


def _downstream(context: PageContext) -> dict[str, Any]:
    """Return declared replays, and what a backend of OpenLineage knows, as a plan's details have them."""

    def read() -> dict[str, Any]:
        found, looked_at = replays_of(context.main)
        replays = [{"table": one.table, "source": one.source, "snapshot": one.snapshot} for one in found]
        lineage = ask_backend(str(context.reach["warehouse"]), context.main.name, _connection)
        return {"replays": replays, "tables_checked": looked_at, "lineage": lineage}

    return context.read("downstream", make=read, fresh=_SERVES_SECONDS, weigh=lambda made: 2 * len(json.dumps(made)))


def _connection(name: str) -> Any:
    return Connection.get_connection_from_secrets(name, **auth.of_team(Connection, name))


def _consumers(context: PageContext) -> list[reading_dags.ReadingDag]:
    """Return the DAGs that the user may read."""
    conn_id = context.conn_id
    found = context.read("consumers", conn_id, make=partial(reading_dags.reading_dags, conn_id, context.main.name))
    return [one for one in found if auth.may_read_dag(context.user, one.dag_id)]


def _notes(context: PageContext, downstream: Mapping[str, Any]) -> list[str]:
    lineage = downstream["lineage"]
    failed = lineage and lineage["problem"]
    notes = [f"OpenLineage at {lineage['asked']} could not be asked: {lineage['problem']}."] if failed else []
    if context.head is None and not context.options.chain_table:
        notes.append("The table is empty: there is nothing to correct.")
    return notes


def _sheet(context: PageContext, downstream: Mapping[str, Any], used: Sequence[reading_dags.ReadingDag]) -> Sheet:
    rows: list[tuple[object, ...]] = [_dag(context, one) for one in used]
    rows += [
        (one["table"], "table", f"replayed as {one['source']}, from snapshot {one['snapshot']} on", one["table"])
        for one in downstream["replays"]
    ]
    lineage = downstream["lineage"] or {"datasets": (), "jobs": ()}
    rows += [
        (one["table"] or one["name"], "table" if one["table"] else "dataset", f"OpenLineage: made by {one['by']}",
         one["table"])
        for one in lineage["datasets"]
    ]  # fmt: skip
    rows += [(name, "job", "OpenLineage: reads it", None) for name in lineage["jobs"]]
    listing = Listing(title="downstream", columns=heads("who | kind | known by: sentence | makes: sentence"), rows=rows,
                      help={"makes": "Tables of this connection: the form of a pipeline below names them"})  # fmt: skip
    empty = (
        f"No known consumers: no DAG is scheduled on its asset, and none of {downstream['tables_checked']:,} other "
        f"tables of the database was replayed from it"
    )
    return sheet_of(listing, context.now_ms, title="Downstream consumers", empty=empty)


def _dag(context: PageContext, one: reading_dags.ReadingDag) -> tuple[object, ...]:
    link = f"{context.airflow}/dags/{quote(one.dag_id, safe='')}"
    how = f"{one.how}; paused" if one.paused else one.how
    return AnnotatedValue(one.dag_id, href=link), "DAG", how, ", ".join(one.makes) or None


def _forms(context: PageContext, correction: _Correction, tables: Sequence[str]) -> list[dict[str, Any]]:
    if context.view.branch_name != MAIN:
        return []
    dags, table, form = visible_dags(context), of_table(context), correction.as_form(skeleton(context))
    forms = form_card(context, dags, Kind.CORRECTION, "Correct this table", {**table, **form})
    if tables:
        made = pipeline_form(context.main.name, form, tables, table.get("paimon_conn_id"))
        hint = "Complete each replay: what the table is made by. Upstream tables come first."
        forms += form_card(context, dags, Kind.PIPELINE, "Correct it, and make the tables downstream again", made, hint)
    return forms
