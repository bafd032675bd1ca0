"""What the DAGs that undo check, prove and report; no function here changes a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.table.properties import APPROVED_BY_PROPERTY
from airflow_paimon.runbooks import advice
from airflow_paimon.runbooks.form import form_of_table, open_main, request_for
from airflow_paimon.runbooks.pages import page_address
from airflow_paimon.runbooks.report import is_pipeline, request_lines
from airflow_paimon.shown.diff_markdown import render_undo
from airflow_paimon.shown.listing import Listing, heads
from airflow_paimon.shown.markdown import counted, escape, table_of, where_it_ran

if TYPE_CHECKING:
    from airflow_paimon.core.publish.undoable_publishes import UndoablePublish
    from airflow_paimon.core.table.table import Table

_LISTED = 50


def plan_undos(params: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Find what to undo: of one table the form's tag or the last publish, of a pipeline the publishes of its branch.

    Returns the tables in the order in which they are undone, and lines about those that were undone already. Of each:
    ``table``, which its rollback names, ``tag``, ``target_snapshot``, ``lines``, ``name`` and ``onto`` (the table and
    its branch), ``branch`` and ``against`` (what a diff compares: the tag's state, and what the publish made of it).
    Those of a pipeline have their plans.

    Raises:
        NotFoundError: no such tag, or no publish that can be undone. InvalidInputError: it is undone already.
        ConflictError, UnsafeOperationError: as ``plan_rollback``; nothing of a pipeline is undone.
    """
    from airflow_paimon.core.publish.undoable_publishes import last_publish, undoable_publishes
    from airflow_paimon.core.table.options import requested_duration, requested_retention

    requested_retention(params["undo_retention"], "undo_retention")
    if params["wait_for_quiet"]:
        requested_duration(params["wait_for_quiet"], "wait_for_quiet")
    if not is_pipeline(params):
        main = open_main(params).require()
        if not params["tag"]:
            known = last_publish(main)
            return [_undo_of(params, main, known.undo_tag, known.before.id, known)], []
        tag = main.tag(params["tag"])
        published = next((p for p in undoable_publishes(main) if p.undo_tag == tag.name), None)
        return [_undo_of(params, main, tag.name, tag.snapshot.id, published)], []
    planned, left_out = [], []
    for name in map(str.strip, reversed(params["tables"])):
        form = form_of_table(params, {"table": name})
        main = open_main(form).require()
        publish = _publish_of(main, params["branch"])
        if publish is None:
            left_out.append(f"{name}: its publish was undone already")
            continue
        one = _undo_of(form, main, publish.undo_tag, publish.before.id, publish)
        planned.append(with_plan(form, one, plan_rollback(form, publish.undo_tag)))
    if not planned:
        raise NotFoundError(f"Every publish of branch {params['branch']!r} was undone already")
    return planned, left_out


def _undo_of(
    params: Mapping[str, Any], main: Table, tag: str, target: int, publish: UndoablePublish | None
) -> dict[str, Any]:
    lines = [f"{main.label}: back to tag {tag}, snapshot {target}", *([_about(publish)] if publish else [])]
    onto = main.branch_name
    now = f"{onto}@{target + 1}" if params.get("keep_later", True) else onto
    compared = {"name": main.name, "onto": onto, "branch": f"{onto}@{tag}", "against": now}
    return {"table": main.label, "tag": tag, "target_snapshot": target, "lines": lines, **compared}


def _about(publish: UndoablePublish) -> str:
    what = f"branch {publish.branch}" if publish.branch else f"an undo to snapshot {publish.target}"
    by = publish.snapshot.properties.get(APPROVED_BY_PROPERTY)
    return (
        f"The publish to undo is snapshot {publish.snapshot.id}: {publish.operation} of {what}, "
        f"{f'approved by {by}' if by else 'without an approval'}"
    )


def plan_rollback(params: Mapping[str, Any], tag: str) -> dict[str, Any]:
    """Plan the undo of a publish, by its undo tag; returns the details of the plan.

    Raises:
        ConflictError: main changed again what the publish had changed. UnsafeOperationError: dynamic buckets lose keys,
            and the form doesn't say that writers are stopped.
    """
    from airflow_paimon.execution import run_operation

    values = {"tag": tag, "keep_later": True, "writers_stopped": params["writers_stopped"], "dry_run": True}
    values["changelog"] = params.get("changelog", "auto")
    return dict(run_operation(request_for(params, "rollback_to", **values)).details)


def _notes(details: Mapping[str, Any]) -> list[str]:
    """Return what streaming readers see of an undo, and which jobs it may have to wait for."""
    found = (details["streaming_readers"]["note"], details.get("open_writers", {}).get("note"))
    return [f"{note[:1].upper()}{note[1:]}." for note in found if note]


def with_plan(params: Mapping[str, Any], planned: Mapping[str, Any], details: Mapping[str, Any]) -> dict[str, Any]:
    """Add to what is planned for a table how its rollback, whose ``details`` these are, is shown to the approver."""
    actions = [a for a in details["plan"]["actions"] if a["action"] == "ReplaceBucket"]
    rows = [(a["path"], a["reason"]) for a in actions[:_LISTED]]
    left = max(0, details["buckets"] - len(rows))
    buckets = Listing(title="buckets", columns=heads("bucket | change"), rows=rows, left=left)
    kept = (
        "What main got elsewhere since stays."
        if params.get("keep_later", True)
        else f"**Everything that main got after snapshot {planned['target_snapshot']} goes.**"
    )
    partitions = counted(details["partitions"], "partition")
    facts = (
        f"{partitions} of {planned['table']} to change: {counted(details['files_deleted'], 'file')} with "
        f"{counted(details['rows_deleted'], 'row')} out, {counted(details['files_added'], 'file')} with "
        f"{counted(details['rows_added'], 'row')} in. {kept}"
    )
    lines = [*planned["lines"], *_notes(details)]
    return {**planned, "lines": lines, "partitions": partitions, "facts": facts, "buckets": table_of(buckets)}


def describe_undos(
    params: Mapping[str, Any],
    planned: Sequence[Mapping[str, Any]],
    done: Sequence[Mapping[str, Any]],
    left_out: Sequence[str] = (),
    asked_by: str | None = None,
) -> dict[str, Any]:
    """Render the plans and the rows for the approver: ``{"subject", "markdown"}``.

    ``done``: of each table the results of ``check`` and ``diff``; None where they were skipped.
    """
    about = "\n".join([*request_lines(params, asked_by), *(f"- {escape(line)}" for line in left_out)])
    names, parts = " and ".join(one["table"] for one in planned), [about]
    for one, its in zip(planned, done, strict=True):
        title = f"## {escape(one['table'])}" if is_pipeline(params) else ""
        lines = "\n".join(f"- {escape(line)}" for line in one["lines"])
        shown = render_undo(its["diff"]["details"]) if its.get("diff") else ""
        parts += [title, lines, one["facts"], shown, one["buckets"], where_it_ran(its)]
    subject = names if is_pipeline(params) else f"{names} ({planned[0]['partitions']})"
    return {"subject": f"Undo the correction of {subject}?", "markdown": "\n\n".join(filter(None, parts))}


def advice_for(failed: str, error: Mapping[str, Any] | None) -> list[str]:
    """Say what helps when a task of an undo failed."""
    kind, step = error["kind"] if error else "error", failed.partition("[")[0]
    helps: str | None
    match kind:
        case "conflict":
            helps = (
                "main got newer rows in the partitions to undo, which stay. Revert the publish row by row: "
                f"{page_address('howto/undo-later')}"
            )
        case "unsafe" if step == "check":
            helps = (
                "a check that the table requires doesn't hold for what would come back. Correct the rows by a new "
                "correction instead, or trigger this DAG again with Skip checks on"
            )
        case "invalid-input" | "not-found" | "already-exists" | "unsupported" | "unsafe" | "corrupt":
            helps = advice.against(error, failed)
        case _ if step == "wait_for_quiet":
            helps = f"{advice.WITHOUT_WRITERS}; then clear task wait_for_quiet with its downstream"
        case _:
            helps = (
                f"read the log of task {failed}. When its cause is over, clear it with its downstream; an undo that "
                f"succeeded is found and not done twice"
            )
    return advice.advice_for(helps)


def verify_undone(
    params: Mapping[str, Any], planned: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Compare main of each table with its target, bucket by bucket: ``{"snapshots", "lines"}``.

    Raises:
        FormatError: main of a table does not hold what the target held.
    """
    pairs = zip(planned, results, strict=True)
    found = {one["table"]: _verify_table({**params, "table": one["table"]}, one, its) for one, its in pairs}
    lines = [line for _, line in found.values()]
    made = results[0]["details"].get("table_set") if results else None
    for version in made if isinstance(made, list) else [made] if made else []:
        lines.append(f"Table set {version['table_set']}: {version['version']} has the tables as they are now")
    return {"snapshots": {name: snapshot for name, (snapshot, _) in found.items()}, "lines": lines}


def _verify_table(
    params: Mapping[str, Any], planned: Mapping[str, Any], result: Mapping[str, Any]
) -> tuple[int | None, str]:
    from airflow_paimon.core.publish.undoable_publishes import verify_rollback

    name, tag = planned["table"], planned["tag"]
    if not result["changed"]:
        return None, f"Nothing to undo: {name} already has the files of {tag}"
    main = open_main(params)
    found = verify_rollback(
        main,
        snapshot_id=result["snapshot_after"],
        target=main.tag(tag).snapshot,
        keep_later=params.get("keep_later", True),
    )
    return found["snapshot"], (
        f"Verified: snapshot {found['snapshot']} of {name} has the files of {tag} in "
        f"{', '.join(found['partitions']) or 'the table'}, and nothing else changed. To undo the undo: tag "
        f"{found['properties']['undo-tag']}"
    )


def _publish_of(main: Table, branch: str) -> Any:
    """Return the publish of a branch that stands; None when it was undone."""
    from airflow_paimon.core.publish.undoable_publishes import publishes_still_on_main, undoable_publishes

    standing = [p for p in publishes_still_on_main(main) if p.branch == branch]
    if standing:
        return standing[-1]
    if any(p.branch == branch for p in undoable_publishes(main)):
        return None
    there = ", ".join(sorted({str(p.branch) for p in undoable_publishes(main) if p.branch})) or "none"
    raise NotFoundError(
        f"{main.name} has no publish of branch {branch!r} that can be undone (of which branches it has: {there}). "
        f"Take Tables and Branch from the log of the run's task verify"
    )
