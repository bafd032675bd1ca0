"""The tab Corrections: runs about the table, and what to give the trigger forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote

from airflow_paimon.core.publish.undoable_publishes import UndoablePublish, undoable_publishes, undone_by
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.plugin import auth, runs
from airflow_paimon.plugin.forms import form_card, known_dags, of_table, visible_dags
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.sheet import ago, sheet_of
from airflow_paimon.plugin.tabs.corrections_plan import TableRun, outcome, waits_for
from airflow_paimon.runbooks.kinds import CORRECTING, Kind
from airflow_paimon.runbooks.leftovers import PUBLISHING_TASKS, belongs_to_run, run_digest
from airflow_paimon.shown.listing import AnnotatedValue, Listing, heads, utc_time
from airflow_paimon.shown.urls import DOCS

_DAGS_PAGE = f"{DOCS[1:]}/howto/own-dags"
_APPROVE = "approve"
_MOST_POINTS = 20
_EXPLAINS = ("report_failure", "rejected", "assert_complete", "verify", "remove", "find")
_WRITES = ("correct", "replay", "erase")
"""The tasks that write rows."""
_COLUMNS = heads(
    "run | purpose | began: utc | by | state | waits for | approval | branch | undo | reason: sentence | "
    "partitions: sentence"
)
_PURPOSES = {
    Kind.CORRECTION: "correction", Kind.UNDO: "undo", Kind.CLEANUP: "clean-up", Kind.ERASURE: "erasure",
    Kind.PIPELINE: "pipeline", Kind.PIPELINE_UNDO: "undo of a pipeline",
}  # fmt: skip
_EXPECTED = (Kind.CORRECTION, Kind.UNDO, Kind.CLEANUP, Kind.ERASURE)


def show(context: PageContext) -> Panel:
    """Show the runs that the user may read, and the forms."""
    known = known_dags(context)
    allowed = [dag for dag in known if auth.may_read_dag(context.user, dag.dag_id, runs=True)]
    name, conn_id = context.main.name, context.conn_id
    ids = (dag.dag_id for dag in allowed)
    found = context.read("runs", conn_id, *ids, make=partial(runs.runs_of, name, conn_id, allowed), fresh=1.0)
    points = context.read("undo points", make=partial(undoable_publishes, context.main))
    flying = [r for r in found if r.kind in CORRECTING and not r.ended]
    of_run, undone = {(p.branch, p.branch_owner): p for p in points}, undone_by(points)
    rows = [
        _row(context, run, flying, point, undone.get(point.undo_tag) if point else None)
        for run in found
        for point in [of_run.get((_branch(run), run.owner)) if _has_published(run) else None]
    ]
    listing = Listing(title="runs", columns=_COLUMNS, rows=rows)
    sheet = sheet_of(listing, context.now_ms, title="Runs", empty=_EMPTY)
    notes = list[str | AnnotatedValue]()
    if len(allowed) < len(known):
        notes.append("Runs of DAGs that you may not read are not shown.")
    missing = [kind for kind in _EXPECTED if kind not in {dag.kind for dag in known if not dag.stale}]
    if missing:
        names = ", ".join(missing)
        about = f"This Airflow does not have the DAGs {names}."
        notes.append(AnnotatedValue(about, short="How to add them", href=_DAGS_PAGE))
    return Panel(
        template="corrections.html", sheets=[sheet], notes=notes, data={"forms": _forms(context, points, undone)}
    )


_ERASES = "A person's rows are deleted from all branches and files, for good; the approver sees what else is deleted"
_EMPTY = "No run of the correction DAGs has named this table yet"


def _row(
    context: PageContext,
    run: TableRun,
    flying: Sequence[TableRun],
    point: UndoablePublish | None,
    undone: UndoablePublish | None,
) -> list[object]:
    address = f"{context.airflow}/dags/{quote(run.dag_id, safe='')}/runs/{quote(run.run_id, safe='')}"
    became, mark = outcome(run)
    branch = _branch(run)
    rivals = flying if run.kind in CORRECTING else ()
    waiting, is_there = waits_for(run, rivals), branch in context.branches
    return [
        AnnotatedValue(run.run_id, href=address),
        AnnotatedValue(_PURPOSES[run.kind], note=run.dag_id),
        utc_time(None if run.began is None else _millis(run.began)),
        run.by or None,
        _state(f"{became}, undone since" if undone else became, "warn" if undone else mark, run, address),
        _waits(waiting, run, address),
        _approval(run, address, context.now_ms),
        AnnotatedValue(branch or None, href=context.query.href(tab="history", branch=branch, q="") if is_there else ""),
        _undo(context, point, undone),
        run.conf.get("reason"),
        _listed(run.conf.get("partitions")) or None,
    ]


def _waits(waiting: str, run: TableRun, address: str) -> AnnotatedValue | None:
    """What a run waits for; of a job in Spark how far it is, with a link to its log."""
    if not waiting:
        return None
    running = sorted(t for t, state in run.tasks.items() if state == "running")
    said = [f"{task}: {run.progress[task]}" for task in running if task in run.progress]
    return AnnotatedValue(
        "; ".join([waiting, *said]), mark="warn", href=f"{address}/tasks/{running[0]}" if running else ""
    )


def _state(became: str, mark: str, run: TableRun, address: str) -> AnnotatedValue:
    """What became of a run, with a link to the log that says why and what helps, or what was verified."""
    task = next((t for t in _EXPLAINS if run.tasks.get(t) in ("success", "failed")), "")
    wrote = next((run.ran_on[t] for t in _WRITES if t in run.ran_on), "")
    ran = {"": "", "spark": "Ran in Spark. "}.get(wrote, "Ran in plain Python. ")
    note = f"{ran}The log of task {task}" if task else ran
    return AnnotatedValue(became, mark=mark, note=note, href=f"{address}/tasks/{task}" if task else "")


def _branch(run: TableRun) -> str:
    """The branch of a correction: the form's, or the one that check_params makes up."""
    given = run.conf.get("branch")
    return "" if run.kind not in CORRECTING else str(given or f"fix_{run_digest(run.owner)}")


def _approval(run: TableRun, address: str, now_ms: int) -> AnnotatedValue | None:
    link = f"{address}/tasks/{_APPROVE}/required_actions"
    approval = run.approval
    if approval is None:
        return None
    if approval.answered_at is None:
        since = f", asked {ago(_millis(approval.asked_at), now_ms)}" if approval.asked_at else ""
        shown = f"waits{since}" if run.unanswered else "not answered"
        return AnnotatedValue(shown, note=approval.subject, href=link, mark="warn" if run.unanswered else "")
    answer = {"Approve": "approved", "Reject": "rejected"}.get(approval.answer, approval.answer)
    by = f" by {approval.answered_by}" if approval.answered_by else ", no answer in time"
    return AnnotatedValue(f"{answer}{by}", note=approval.subject, href=link)


def _undo(context: PageContext, point: UndoablePublish | None, undone: UndoablePublish | None) -> AnnotatedValue | None:
    if point is None:
        return None
    if undone is not None:
        return AnnotatedValue(f"undone by snapshot {undone.snapshot.id}", mark="muted")
    link = f"{context.query.href(q=point.undo_tag)}#start"
    return AnnotatedValue(f"back to snapshot {point.before.id}", note=f"Tag {point.undo_tag}", href=link)


def _has_published(run: TableRun) -> bool:
    return any(run.tasks.get(task) == "success" for task in PUBLISHING_TASKS)


def _forms(
    context: PageContext, points: Sequence[UndoablePublish], undone: Mapping[str, UndoablePublish]
) -> list[dict[str, Any]]:
    """What each trigger form wants to be given for this table. What was undone is not offered to be undone again."""
    table, dags = of_table(context), visible_dags(context)
    hint = "The tab Plan shows first what it would touch, and who is downstream."
    forms = form_card(context, dags, Kind.CORRECTION, "Correct this table", {**table, "sql": skeleton(context)}, hint)
    chosen = [p for p in points if p.undo_tag == context.query.q]
    rest = [p for p in reversed(points) if p not in chosen and p.undo_tag not in undone]
    for point in [*chosen, *rest][:_MOST_POINTS]:
        about = f"published branch {point.branch}" if point.branch else f"went back to snapshot {point.target}"
        when = ago(point.snapshot.time_millis, context.now_ms)
        hint = (
            f"Snapshot {point.snapshot.id} {about}, {when}: its partitions get back what they held in {point.before.id}"
        )
        title = "Undo this publish" if point.branch else "Undo this rollback"
        forms += form_card(context, dags, Kind.UNDO, title, {**table, "tag": point.undo_tag}, hint)
    forms += form_card(context, dags, Kind.ERASURE, "Erase rows", {**table, "where": _condition(context)}, _ERASES)
    if context.branches:
        name = context.view.branch_name
        named = [name] if name != MAIN and belongs_to_run(context.main, name) else []
        conf = {**table, **({"branches": named} if named else {})}
        forms += form_card(context, dags, Kind.CLEANUP, "Remove what corrections left", conf)
    return forms


def skeleton(context: PageContext) -> str:
    """Return an UPDATE to be completed: Spark refuses it as it is."""
    schema = context.main_schema
    fixed = {*schema.primary_keys, *schema.partition_keys}
    free = next((n for n in schema.field_names if n not in fixed), schema.field_names[-1])
    keys = schema.partition_keys or schema.primary_keys[:1] or schema.field_names[:1]
    where = " AND ".join(f"{_named(k)} = ..." for k in keys)
    return f"UPDATE branch SET {_named(free)} = ... WHERE {where}"


def _condition(context: PageContext) -> str:
    """Return a condition to be completed: it is refused as it is."""
    schema = context.main.schema()
    columns = [*schema.primary_keys, *schema.field_names]
    return f"{_named(next((n for n in columns if n not in schema.partition_keys), columns[0]))} = ..."


def _named(column: str) -> str:
    return column if column.isidentifier() else "`" + column.replace("`", "``") + "`"


def _listed(partitions: Any) -> str:
    return ", ".join(map(str, partitions)) if isinstance(partitions, list) else ""


def _millis(value: datetime) -> int:
    return round(value.timestamp() * 1000)
