"""What ``pipeline_correction`` checks and plans against the tables; no function here changes one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.sql_text.checks import check_target
from airflow_paimon.core.sql_text.tokens import split_statements
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.runbooks.correction import (
    check_named_columns,
    check_rules,
    check_settings,
    columns_of_views,
    plan_branch,
    plan_correction,
    plan_work,
)
from airflow_paimon.runbooks.form import check_policy, open_main
from airflow_paimon.runbooks.pipeline_plan import PipelineTable, parse_tables, start_snapshots

if TYPE_CHECKING:
    from airflow_paimon.core.format.snapshot import Snapshot
    from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

REPLAYED, MAIN_AT_START, WATERMARK = "replayed", "main_at_start", "watermark"
CAUGHT_UP = (REPLAYED, MAIN_AT_START, WATERMARK)
"""When a replayed branch counts as caught up: its replay has ended; and besides its newest commit is not older than
main's was at the start; or it has the watermark."""
_UNUSED = dict.fromkeys(("views", "checks", "wait_partitions", "wait_max_watermark_lag", "wait_max_commit_lag"))
"""Fields of the form of ``data_correction`` that this one doesn't have."""
_NO_WAIT = {"max_commit_lag": None, "max_watermark_lag": None, "reference_time": None}


def plan_pipeline(
    params: Mapping[str, Any], dag_id: str, run_id: str, locked: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Check the form against all tables; choose the branch, the tags and the snapshots to start from.

    Returns for each table ``{"table", "branch", "tag", "base_snapshot", "correct", "replay", "reads", "wait",
    "checks", "views"}``: plain arguments of the tasks. ``correct`` or ``replay`` is None, ``reads`` are the tables of
    the form that it is made from. The same for every try and Clear of a run. ``preview``: see ``preview_of``.
    ``locked``: fields whose values are the DAG's own code; what ``tables`` says runs by way of another task's result,
    so it is limited all the same.

    Raises:
        InvalidInputError: something that would fail later, found before anything is created. NotFoundError: no such
            table, tag or snapshot. UnsupportedError: a table that can't be written.
    """
    steps = parse_tables(params["tables"])
    check_settings({**params, **_UNUSED}, locked)
    _check_stream(params, steps)
    mains = {one.table: _of(params, one) for one in steps}
    _check_set(params, list(mains))
    starts = _starts(params, steps)
    owner, planned = f"{dag_id}/{run_id}", []
    for one in steps:
        main = mains[one.table]
        check_rules(main, {**params, "checks": one.checks, "views": one.views})
        corrected = one.correct is not None
        if corrected:
            plan_correction(_correction_form(params, one), dag_id, run_id, locked)
        made = plan_branch(main, params["branch"], owner, starts[one.table] if corrected else None)
        own = {"mode": one.mode, "partitions": list(one.partitions), "view": list(one.views), "all_rows": one.all_rows}
        planned.append({**made, "correct": {**one.runs, **own} if corrected else None, "replay": None,
                        "reads": sorted(set(one.sources.values()) & mains.keys()), "wait": dict(_NO_WAIT),
                        "checks": one.checks, "views": list(one.views)})  # fmt: skip
    bases = {made["table"]: made for made in planned}
    for one, made in zip(steps, planned, strict=True):
        if one.replay is not None:
            check_policy({**params, **one.runs}, locked)
            _check_replayed_columns(params, one, mains[one.table])
            made["replay"] = _replay_arguments(params, one, bases, starts)
            made["wait"] = _wait(params, mains[one.table])
    for one, made in zip(steps, planned, strict=True):
        made["preview"] = _preview(params, one, made, mains.keys())
    return planned


def _preview(
    params: Mapping[str, Any], one: PipelineTable, made: Mapping[str, Any], tables: Collection[str]
) -> dict[str, Any]:
    """Plan each statement on a table; returns what ``preview_of`` does.

    A replay is planned on main as it is now, for its sources as well: the run's branches are not there yet.
    """
    from airflow_paimon.lineage.downstream import ask_backend
    from airflow_paimon.shown.correction_text import audience_lines, figure_lines

    sql, form = one.runs["sql"], _correction_form(params, one)
    statements = split_statements(sql) if one.replay is not None and sql is not None else [sql]
    if one.replay is not None:
        form["views"] = [f"{name}={table}" for name, table in one.sources.items()]
    lineage = ask_backend(PaimonHook(params["paimon_conn_id"]).warehouse, one.table)
    lines, notice = list[str](), list[str]()
    for number, statement in enumerate(statements, 1):
        found = _plan_statement({**form, "sql": statement}, made, is_replay=one.replay is not None)
        if found is None:
            continue
        start = f"statement {number}: " if len(statements) > 1 else ""
        lines += [f"{start}{line}" for line in (*figure_lines(found), *found["notes"])]
        notice += audience_lines(_without({**found, "lineage": lineage}, tables))
    notice = list(dict.fromkeys(notice))
    return {"lines": [*lines, *notice], "notice": notice, "page": ""}


def _plan_statement(form: Mapping[str, Any], made: Mapping[str, Any], *, is_replay: bool) -> dict[str, Any] | None:
    """Plan a statement; None, with a warning in the log, where that is impossible: it alone stops no run."""
    try:
        return plan_work(form, made)
    except (InvalidInputError, NotFoundError, UnsupportedFeatureError) as error:
        if not is_replay:
            raise
        # It may do what a correction may not, such as append, or a function that names no partitions.
        log.warning("What is written to %s could not be planned: %s", form["table"], error.message)
        return None


def _without(details: Mapping[str, Any], tables: Collection[str]) -> dict[str, Any]:
    """Leave out the tables that the run itself makes again."""
    lineage = details["lineage"]
    datasets = [one for one in lineage["datasets"] if one["table"] not in tables] if lineage else []
    return {
        **details,
        "replays": [one for one in details["replays"] if one["table"] not in tables],
        "lineage": {**lineage, "datasets": datasets} if lineage else None,
    }


def _of(params: Mapping[str, Any], one: PipelineTable) -> Table:
    """Open a table that will be written: a correction replaces whole buckets, a replay may append as well."""
    from airflow_paimon.core.commit.put import require_committable
    from airflow_paimon.core.table.features import check_writable, is_chain_main
    from airflow_paimon.core.table.options import TableOptions

    main = open_main({**params, "table": one.table}).require()
    if is_chain_main(TableOptions(main.schema().options), main.branch_name):
        raise InvalidInputError(
            f"{main.name} is a chain table, whose rows are in its branches: correct them by the DAG for a single "
            f"table (Branch of a chain table)"
        )
    require_committable(main)
    check_writable(main.schema(), table=main.name, branch="a branch", by_buckets=one.correct is not None)
    return main


def _check_set(params: Mapping[str, Any], tables: Sequence[str]) -> None:
    from airflow_paimon.core.table_sets.versions import open_set

    name = str(params.get("table_set") or "").strip()
    if name:
        hook = PaimonHook(params["paimon_conn_id"])
        table_set = open_set(hook.warehouse, name, hook.storage_options)
        for table in tables:
            table_set.check_member(table)


def _check_stream(params: Mapping[str, Any], steps: Sequence[PipelineTable]) -> None:
    from airflow_paimon.core.table.options import requested_duration
    from airflow_paimon.core.table.table import parse_timestamp

    requested_duration(params["replay_timeout"], "replay_timeout")
    given = params["watermark"]
    if params["caught_up"] == WATERMARK and not given:
        raise InvalidInputError("Ready when: watermark needs one: fill in Watermark, such as 2026-11-21T00:00:00+00:00")
    if given:
        parse_timestamp(given, "Watermark")
        if params["caught_up"] != WATERMARK:
            raise InvalidInputError(
                "Watermark counts only where Ready when is watermark: choose that, or leave it empty"
            )
    batch = next((one.table for one in steps if one.replay is not None and one.runs["sql"]), None)
    if params["streams"] and batch is not None:
        raise InvalidInputError(
            f"Streams: the statements of {batch} run as a batch; a stream needs a function (module:name)"
        )


def _correction_form(params: Mapping[str, Any], one: PipelineTable) -> dict[str, Any]:
    """Return the form of ``data_correction`` that says the same of one table."""
    own = {"table": one.table, "mode": one.mode, "partitions": list(one.partitions), "views": list(one.views),
           "all_rows": one.all_rows}  # fmt: skip
    fixed = {"engine": "embedded", "publish": "merge"}
    return {**params, **_UNUSED, **one.runs, **own, **fixed}


def _check_replayed_columns(params: Mapping[str, Any], one: PipelineTable, main: Table) -> None:
    """Check the columns that the statements of a replay name; those of branches that begin earlier are not known."""
    sql = one.runs["sql"]
    for statement in split_statements(sql or ""):
        check_target(statement)
    if sql is None or any(params[name] for name in ("start_tag", "start_snapshots", "start_time")):
        return
    columns = columns_of_views(params, [f"{name}={table}" for name, table in one.sources.items()])
    for statement in split_statements(sql):
        check_named_columns(main, params, statement, columns)


def _starts(params: Mapping[str, Any], steps: Sequence[PipelineTable]) -> dict[str, Snapshot]:
    """Find where each upstream table starts: what is corrected, and what is read without being in the form.

    Raises:
        InvalidInputError: several starts are given. NotFoundError: a table has no such tag or snapshot, or no row yet.
    """
    written = {one.table for one in steps}
    outside = [s for one in steps for s in one.sources.values() if s not in written]
    upstream = list(dict.fromkeys([*(one.table for one in steps if one.correct), *outside]))
    given = [name for name in ("start_tag", "start_snapshots", "start_time") if params[name]]
    if len(given) > 1:
        raise InvalidInputError(f"Start: {' and '.join(given)} are two starts: give one of them, or none for now")
    ids = start_snapshots(params["start_snapshots"], upstream) if params["start_snapshots"] else {}
    return {name: _start(params, name, ids) for name in upstream}


def _start(params: Mapping[str, Any], name: str, ids: Mapping[str, int]) -> Snapshot:
    view = PaimonHook(params["paimon_conn_id"]).get_table(name).require()
    if params["start_tag"]:
        return view.tag(params["start_tag"]).snapshot
    if name in ids:
        return view.snapshot(ids[name])
    if params["start_time"]:
        return _at(view, params["start_time"])
    head = view.latest_snapshot()
    if head is None:
        raise NotFoundError(f"{view.label} has no snapshot: there is nothing to start from")
    return head


def _at(view: Table, time: str) -> Snapshot:
    from airflow_paimon.core.table.table import parse_timestamp

    limit = parse_timestamp(time, "Start: time")
    earlier = [s for s in view.snapshots() if s.time_millis < limit]
    if not earlier:
        raise NotFoundError(
            f"{view.label} has no snapshot from before {time}; start at a later time, or leave Start empty for now"
        )
    return earlier[-1]


def _replay_arguments(
    params: Mapping[str, Any],
    one: PipelineTable,
    planned: Mapping[str, Mapping[str, Any]],
    starts: Mapping[str, Snapshot],
) -> dict[str, Any]:
    """Return the arguments of ``replay_branch``: tables of the form are read on the run's branch."""
    sources, behind = [], []
    for name, table in one.sources.items():
        made = planned.get(table)
        sources.append(f"{name}={table}$branch_{made['branch']}" if made else f"{name}={table}")
        behind.append(f"{name}={made['base_snapshot'] if made else starts[table].id}")
    watermark = params["watermark"] if params["streams"] else None
    return {
        **one.runs,
        "source": sources,
        "snapshot": behind,
        "all_rows": one.all_rows,
        "available_now": params["streams"] and not watermark,
        "until_watermark": watermark,
        "timeout": params["replay_timeout"],
        "checkpoint": params["checkpoint"] or None,
    }


def _wait(params: Mapping[str, Any], main: Table) -> dict[str, Any]:
    """Return what the sensor waits for besides the replay's own snapshot."""
    if params["caught_up"] == WATERMARK:
        return {**_NO_WAIT, "max_watermark_lag": "0 s", "reference_time": params["watermark"]}
    head = main.latest_snapshot()
    if params["caught_up"] == MAIN_AT_START and head is not None:
        return {**_NO_WAIT, "max_commit_lag": "0 s", "reference_time": str(head.time_millis)}
    return dict(_NO_WAIT)
