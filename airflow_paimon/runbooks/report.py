"""What the runs that correct say to people: the page for the approver, what stands, how to undo it.

A correction is a pipeline of one table: its page has no table of tables, and its undo is named by a tag.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon._compat import conf
from airflow_paimon.core.format.snapshot import SnapshotRef, approved_head
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.runbooks.form import corrected_table, form_of_table, open_main, request_for
from airflow_paimon.runbooks.kinds import Kind, dag_for
from airflow_paimon.runbooks.leftovers import own_branch_record, own_publishes, run_owner_of, stands
from airflow_paimon.shown.listing import Listing, heads
from airflow_paimon.shown.markdown import counted, escape, requester_line, sql_block, table_of
from airflow_paimon.shown.urls import table_page_url

if TYPE_CHECKING:
    from airflow_paimon.core.table.table import Table

_LISTED = 20
_OPERATIONS = {"merge": "merge_branch", "fast_forward": "fast_forward"}
_DEFAULTS: dict[str, Any] = {"engine": "embedded", "mode": "overwrite", "partitions": (), "views": ()}
TO_CORRECT_DIFFERENTLY = "To correct it differently: trigger this DAG again; it makes a new branch"


def is_pipeline(params: Mapping[str, Any]) -> bool:
    """Whether a form is about a list of tables."""
    return "tables" in params


def plan_publishes(
    params: Mapping[str, Any],
    planned: Sequence[Mapping[str, Any]],
    done: Sequence[Mapping[str, Any]],
    asked_by: str | None = None,
) -> dict[str, Any]:
    """Plan the publish of every table, and render one page for the approver: what can't be published needs no approval.

    ``done``: of each table ``diff``, ``check`` and ``wrote``, the results of its comparison, its checks, and its
    correction or replay, ``wait``, the snapshot that was waited for, and ``notice``, whom the publish concerns.
    Returns ``{"subject", "markdown", "tables", "changes"}``. ``tables``: the arguments with which each is published,
    the snapshots that are approved; ``changes``: whether any publish would change anything.

    Raises:
        ConflictError: both sides changed a bucket of a table, or a branch moved after its diff. UnsafeOperationError: a
            check that a table requires is missing or failed, or see ``merge_branch`` and ``fast_forward``.
    """
    plans, sections = [], []
    for one, its in zip(planned, done, strict=True):
        form = form_of_table(params, one)
        shown = SnapshotRef(int(its["wait"]), its["diff"]["details"].get("branch_identity") or "")
        plans.append(plan := plan_merge(form, one, shown))
        sections.append("\n\n".join(filter(None, _section(form, one, its, plan))))
    names = " and ".join(map(corrected_table, planned))
    about = request_lines(params, asked_by)
    made: dict[str, Any] = {
        "subject": f"Publish the correction of {names}?",
        "markdown": "\n".join([*about, *sections]),
        "tables": [
            {"table": one["table"], "branch": one["branch"], "expected_branch_snapshot": approved_head(plan, "branch"),
             "approved_main_snapshot": approved_head(plan, "main")}
            for one, plan in zip(planned, plans, strict=True)
        ],
        "changes": any(plan["changes"] for plan in plans),
    }  # fmt: skip
    if is_pipeline(params):
        tables = counted(len(planned), "table")
        about.append(f"- Approving publishes {tables}, in this order; if one is refused, all of them are as before")
        numbered = [f"## {number}. {escape(one['table'])}\n\n{section}"
                    for number, (one, section) in enumerate(zip(planned, sections, strict=True), 1)]  # fmt: skip
        made["markdown"] = "\n\n".join(["\n".join(about), _overview(params, planned, done), *numbered])
        return made
    partitions = counted(plans[0]["partitions"], "partition")
    return {**made, "subject": f"Publish the correction of {names} ({partitions})?"}


def request_lines(params: Mapping[str, Any], asked_by: str | None) -> list[str]:
    """Render who asks, and why."""
    return [
        requester_line(asked_by),
        f"- Reason: {escape(params['reason']) if params['reason'] else '*none given*'}",
    ]


def _section(
    form: Mapping[str, Any], one: Mapping[str, Any], its: Mapping[str, Any], plan: Mapping[str, Any]
) -> list[str]:
    """Render one table: what ran, its checks, its diff, its publish, and whom that concerns."""
    from airflow_paimon.shown.diff_markdown import render_review

    wrote, compared = its.get("wrote"), its["diff"]["details"]
    known = compared.get("about") or {}  # the form's reason is shown already, and this run owns the branch
    about = {name: value for name, value in known.items() if name not in ("owner", "reason")}
    diff = {**its["diff"], "details": {**compared, "about": about}}
    # What a pipeline asks of the table; a correction's form says it.
    operation = one.get("correct") or one.get("replay")
    views = (operation or {}).get("view", ())
    asked = form if operation is None else {**form, **_DEFAULTS, **operation, "views": views}
    return [
        what_ran(asked, (wrote or {}).get("details", {})),
        *render_review({"replay" if one.get("replay") else "correct": wrote, "check": its.get("check"), "diff": diff}),
        publish_facts(form["publish"], one["branch"], plan, one["from_branch"]),
        its.get("notice") or "",
        *_warnings(form, one),
    ]


def what_ran(operation: Mapping[str, Any], wrote: Mapping[str, Any]) -> str:
    """Render the statements or the function: the form's texts are shown as they are, never as markup.

    ``operation``: fields of the form. ``wrote``: the details of the job's result.
    """
    from airflow_paimon.core.sql_text.statement import statement_kind

    lines = [f"- Partitions: {', '.join(map(escape, operation['partitions']))}"] if operation["partitions"] else []
    kind = statement_kind(operation["sql"]) if operation["sql"] else None
    by = ", by Paimon's Spark connector" if operation["engine"] == "connector" else ""
    if source := operation.get("source"):
        lines.append(f"- Replayed from {', '.join(map(escape, source))}")
    elif kind is None:
        lines.append(f"- Mode: {operation['mode']}{by}")
    else:
        ran = ", ".join(one["statement"] for one in wrote.get("statements", ())) or wrote.get("statement", kind)
        rows = ", ".join(f"{wrote.get(f'rows_{word}', 0):,} {word}" for word in ("updated", "deleted", "inserted"))
        lines.append(f"- Statement: {ran}{by}" + (f"; rows: {rows}" if wrote else ""))
    lines += [f"- Additional input table: {escape(view)}" for view in operation["views"] or ()]
    lines += [f"- Function: {escape(operation['function'])}"] if operation["function"] else []
    written = wrote.get("targets", {}).items()
    lines += [f"- Wrote {counted(target['rows'], 'row')} into {escape(name)}" for name, target in written]
    listed = "\n".join(lines)
    return f"{listed}\n\n{sql_block(operation['sql'])}" if operation["sql"] else listed


def _overview(
    params: Mapping[str, Any], planned: Sequence[Mapping[str, Any]], done: Sequence[Mapping[str, Any]]
) -> str:
    rows, base = [], str(conf.get("api", "base_url", fallback="") or "")
    for one, its in zip(planned, done, strict=True):
        total = its["diff"]["details"]["total"]
        url = table_page_url(params["paimon_conn_id"], one["table"], branch=one["branch"], base_url=base)
        by = "correction" if one["correct"] else "replay"
        page = f"[branch {escape(one['branch'])}]({url})"
        rows.append([one["table"], by, total["added"], total["changed"], total["deleted"], page])
    columns = heads("table | by | added: number | changed: number | deleted: number | page: markdown")
    return table_of(Listing(title="tables", columns=columns, rows=rows))


def _warnings(params: Mapping[str, Any], one: Mapping[str, Any]) -> list[str]:
    """Say what main of the upstream tables got meanwhile: the replay has not read it."""
    lines = []
    for name in one.get("reads", ()):
        changed = _changed_since(params, name, one)
        if changed:
            listed = ", ".join(map(escape, changed[:_LISTED])) + (" and others" if len(changed) > _LISTED else "")
            lines.append(
                f"**Main of {escape(name)} has changed since this run began**, in {listed}: the replay has not read "
                f"that. Where {escape(one['table'])} is made from these rows, the job that fills it has to do so."
            )
    return lines


def _changed_since(params: Mapping[str, Any], name: str, one: Mapping[str, Any]) -> list[str]:
    """Return the partitions that main of an upstream table has changed since the run's tag."""
    from airflow_paimon.core.table.history import difference
    from airflow_paimon.core.table.partitions import StoredPartitions

    main = open_main({**params, "table": name})
    text = StoredPartitions(main.schema()).text
    change = difference(main, main.tag(one["tag"]).snapshot, main.latest_snapshot())
    return sorted({text(bucket.partition) or "the whole table" for bucket in change.buckets})


def affected_readers(preview: Mapping[str, Any]) -> str:
    """List whom a publish concerns, for the approver; ``preview``: see ``preview_of``."""
    listed = "\n".join(f"- {escape(line)}" for line in preview["notice"])
    more = f"[DAGs that are scheduled on the table]({preview['page']})" if preview["page"] else ""
    return "\n\n".join(filter(None, (f"Who will notice:\n\n{listed}" if listed else "", more)))


def plan_merge(params: Mapping[str, Any], planned: Mapping[str, Any], shown: SnapshotRef) -> dict[str, Any]:
    """Plan the publish, as the form asks for it; returns the details of the plan, and whether it `changes` anything.
    ``shown``: the branch's head that the approver sees.

    Raises:
        ConflictError, UnsafeOperationError: as ``plan_publishes``.
    """
    from airflow_paimon.core.publish.required_checks import refuse_unchecked
    from airflow_paimon.core.requests.requests import PublishBranch
    from airflow_paimon.execution import run_operation

    of_merges = ("revert_compaction", "keep_appended", "on_overlap") if params["publish"] == "merge" else ()
    request = request_for(
        params,
        _OPERATIONS[params["publish"]],
        branch=planned["branch"],
        writers_stopped=params["writers_stopped"],
        **{name: params[name] for name in of_merges},
        expected_branch_snapshot=shown.text,
        changelog=params.get("changelog", "auto"),
        dry_run=True,
    )
    assert isinstance(request, PublishBranch)
    planned_publish = run_operation(request)
    refuse_unchecked(request, planned_publish)
    return {**planned_publish.details, "changes": planned_publish.changed}


def publish_facts(publish: str, branch: str, plan: Mapping[str, Any], onto: str = MAIN) -> str:
    """Say what a publish replaces, and what streaming readers see of it. ``onto``: the branch that gets it."""
    notes = filter(None, (plan["streaming_readers"]["note"], plan.get("open_writers", {}).get("note")))
    appended, compactions = plan.get("appended_on_main"), plan.get("compactions_reverted")
    kept = (
        f" {counted(appended['rows'], 'row')} that {onto} got meanwhile in "
        f"{escape(', '.join(appended['buckets']))} stay."
        if appended
        else ""
    )
    taken = f" {counted(compactions, 'compaction')} of {onto} will be reverted for it." if compactions else ""
    return (
        f"Branch {escape(branch)} is at snapshot {plan['branch_snapshot']}, {escape(onto)} at "
        f"{plan['main_snapshot']}. Publishing by {publish} replaces {counted(plan['files_deleted'], 'file')} "
        f"in {counted(plan['partitions'], 'partition')} by {plan['files_added']:,}; every other file stays as it is."
        f"{kept}{taken} "
        f"{' '.join(f'{escape(note[:1].upper() + note[1:])}.' for note in notes)}"
    )


# -- after the publish -----------------------------------------------------------------------------------------------


def verify_published(
    params: Mapping[str, Any], planned: Sequence[Mapping[str, Any]], published: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Compare main of each table with its branch, bucket by bucket; ``lines`` says it to people, and how to undo it.

    Raises:
        FormatError: main of a table does not hold what its branch held.
    """
    pairs = zip(planned, published, strict=True)
    found = [_verify_table(form_of_table(params, one), one, its) for one, its in pairs]
    if not is_pipeline(params):
        (only,), (one,) = found, planned
        if only["snapshot"] is None:
            return only
        hint = undo_hint(one, only["properties"]["undo-tag"], params["undo_retention"])
        return {**only, "lines": [only["lines"][0], *hint, *only["lines"][1:]]}
    lines = [line for one in found for line in one["lines"]]
    if (made := published[0]["details"].get("table_set")) is not None:
        lines.append(f"Table set {made['table_set']}: {made['version']} is what readers of it get (tag {made['tag']})")
    snapshots = {one["table"]: its["snapshot"] for one, its in zip(planned, found, strict=True)}
    return {"snapshots": snapshots, "lines": [*lines, *undo_all_hint(planned, params["undo_retention"])]}


def _verify_table(
    params: Mapping[str, Any], planned: Mapping[str, Any], published: Mapping[str, Any]
) -> dict[str, Any]:
    """Compare main of a table with its branch, without a word on the undo."""
    from airflow_paimon.core.publish.undoable_publishes import verify_publish

    table = corrected_table(planned)
    if not published["changed"]:
        return {
            "snapshot": None,
            "lines": [f"Nothing was published: main of {table} has the rows of the branch"],
        }
    found = verify_publish(
        open_main(params),
        snapshot_id=published["snapshot_after"],
        branch=planned["branch"],
        branch_snapshot=int(published["details"]["branch_snapshot"]),
    )
    lines = [
        f"Verified: snapshot {found['snapshot']} of {table} has the branch's files in these partitions, and no other "
        f"partition changed"
    ]
    lines += [
        f"{partition or table}: {counted(n['rows_in'], 'row')} in {counted(n['files_in'], 'file')} replace "
        f"{counted(n['rows_out'], 'row')} in {counted(n['files_out'], 'file')}"
        for partition, n in found["partitions"].items()
    ]
    return {**found, "lines": [*lines, *_stale_lines(planned, published["details"])]}


def _stale_lines(planned: Mapping[str, Any], details: Mapping[str, Any]) -> list[str]:
    """Name the full partitions of a chain table that are to be built again."""
    stale = [one["partition"] for one in details.get("stale", ())]
    if not stale:
        return []
    named = ", ".join(stale[:_LISTED]) + (" ..." if len(stale) > _LISTED else "")
    again = json.dumps({"table": planned["table"]})
    by = "the DAG that compacts chains (by default nightly_chain_maintenance)"
    return [f"Full partitions that are stale now: {named}. To rebuild them, trigger {by} with", again]


def undo_hint(planned: Mapping[str, Any], tag: str, within: str | None = None) -> list[str]:
    """Say how to undo the publish of a table: a sentence, and the form's JSON."""
    until = f" within {within}" if within else ""
    form = {"table": corrected_table(planned), "tag": tag}
    return [f"To undo{until}: trigger {dag_for(Kind.UNDO, planned['owner'])} with", json.dumps(form)]


def undo_all_hint(planned: Sequence[Mapping[str, Any]], within: str | None = None) -> list[str]:
    """Say how to undo the publishes of a pipeline: a sentence, and the form's JSON."""
    form = {"tables": [one["table"] for one in planned], "branch": planned[0]["branch"]}
    until = f" within {within}" if within else ""
    by = dag_for(Kind.PIPELINE_UNDO, planned[0]["owner"])
    return [f"To undo all tables{until}: trigger {by} with", json.dumps(form)]


# -- what stands after a failure ---------------------------------------------------------------------------------------


def describe_outcome(params: Mapping[str, Any], planned: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """Say in a few words whether this run changed the mains of its tables, and in lines what it left in each."""
    mains = [open_main(form_of_table(params, one)) for one in planned]
    found = [_outcome_of(main, one) for main, one in zip(mains, planned, strict=True)]
    if not is_pipeline(params):
        return found[0]
    lines = [line for one, (_, about) in zip(planned, found, strict=True) for line in (f"-- {one['table']}", *about)]
    published = [one for main, one in zip(mains, planned, strict=True) if stands(main, one)]
    if published and len(published) < len(planned):
        by = dag_for(Kind.PIPELINE_UNDO, planned[0]["owner"])
        first = f"Only some of the tables are published. To undo those: trigger {by} with"
        lines += [first, *undo_all_hint(published)[1:]]
    return "; ".join(f"{one['table']}: {said}" for one, (said, _) in zip(planned, found, strict=True)), lines


def _outcome_of(main: Table, planned: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Say it of one table."""
    from airflow_paimon.core.publish.undoable_publishes import publishes_still_on_main, undoable_publishes

    published, onto = own_publishes(undoable_publishes(main), planned), main.branch_name
    if published and all(p.snapshot.id != published[-1].snapshot.id for p in publishes_still_on_main(main)):
        outcome = f"the correction was published as snapshot {published[-1].snapshot.id} of {onto}, and undone since"
        lines = [f"Undone: {outcome}"]
    elif published and published[-1].is_partial:
        outcome = f"some partitions of the correction are on {onto} since snapshot {published[-1].snapshot.id}"
        lines = [f"Published in part: {outcome}", *undo_hint(planned, published[-1].undo_tag)]
    elif published:
        outcome = f"the correction is on {onto} since snapshot {published[-1].snapshot.id}"
        lines = [f"Published: {outcome}", *undo_hint(planned, published[-1].undo_tag)]
    else:
        outcome = f"{onto} of {main.name} is untouched"
        whose = "Main" if onto == MAIN else f"Branch {onto}"
        lines = [f"{whose} of {main.name} is untouched by this run: it published nothing"]
    return outcome, [*lines, *_leftover_lines(main, planned)]


def _leftover_lines(main: Table, planned: Mapping[str, Any]) -> list[str]:
    """Name only what is there: a clean-up may have gone before, and says itself what it has deleted."""
    branch, record, onto = planned["branch"], own_branch_record(main, planned), main.branch_name
    tag, head = main.find_tag(planned["tag"]), main.branch(branch).latest_snapshot_id()
    left = [f"Tag {planned['tag']}: on snapshot {tag.snapshot.id} of {onto}"] if tag else []
    if head and record is not None:
        left.append(f"Branch {branch}: at snapshot {head}, made from snapshot {record.snapshot_id} of {onto}")
    left = left or [f"{main.name} has no branch and no tag of this run"]
    if head and record is None:
        left.append(f"Branch {branch} is not of this run{run_owner_of(main, branch)}: leave it alone")
    return left
