"""What the DAGs that undo check, prove and report; no function here changes a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.table.properties import APPROVED_BY_PROPERTY
from airflow_paimon.runbooks import advice
from airflow_paimon.runbooks.form import open_main, request_for
from airflow_paimon.runbooks.pages import page_address
from airflow_paimon.runbooks.report import request_lines
from airflow_paimon.shown.diff_markdown import render_undo
from airflow_paimon.shown.listing import Listing, heads
from airflow_paimon.shown.markdown import counted, escape, table_of

if TYPE_CHECKING:
    from airflow_paimon.core.publish.published import Published
    from airflow_paimon.core.table.table import Table

_LISTED = 50


def plan_undo(params: Mapping[str, Any]) -> dict[str, Any]:
    """Find the tag to go back to: the one asked for, else that of the last publish.

    Returns ``{"table", "branch", "tag", "target_snapshot", "lines", "compared"}``; ``compared``: the arguments of the
    diff that shows what the undo does to the rows.

    Raises:
        NotFoundError: no such tag, or no publish that can be undone. InvalidInputError: it is undone already.
    """
    from airflow_paimon.core.publish.published import last_publish, publishes

    _check_durations(params)
    main = open_main(params).require()
    if params["tag"]:
        tag = main.tag(params["tag"])
        known = next((p for p in publishes(main) if p.undo_tag == tag.name), None)
        name, target = tag.name, tag.snapshot.id
    else:
        known = last_publish(main)
        name, target = known.undo_tag, known.before.id
    lines = [f"{main.label}: back to tag {name}, snapshot {target}"]
    if known is not None:
        lines.append(_about(known))
    compared = compared_by_undo(main, name, target if params["keep_later"] else None)
    planned = {"table": main.label, "branch": main.branch_name, "tag": name, "target_snapshot": target}
    return {**planned, "lines": lines, "compared": compared}


def _check_durations(params: Mapping[str, Any]) -> None:
    from airflow_paimon.core.table.options import requested_duration, requested_retention

    requested_retention(params["undo_retention"], "undo_retention")
    if params["wait_for_quiet"]:
        requested_duration(params["wait_for_quiet"], "wait_for_quiet")


def compared_by_undo(main: Table, tag: str, target: int | None) -> dict[str, str]:
    """Return what a diff compares to show an undo: the tag's state with what the publish after it made of it.

    ``target``: the tag's snapshot, where what came later stays; with None the table as it is now is compared.
    """
    now = main.branch_name if target is None else f"{main.branch_name}@{target + 1}"
    return {"table": main.name, "branch": f"{main.branch_name}@{tag}", "against": now}


def _about(publish: Published) -> str:
    what = f"branch {publish.branch}" if publish.branch else f"an undo to snapshot {publish.target}"
    by = publish.snapshot.properties.get(APPROVED_BY_PROPERTY)
    return (
        f"The publish to undo is snapshot {publish.snapshot.id}: {publish.operation} of {what}, "
        f"{f'approved by {by}' if by else 'not approved by anybody'}"
    )


def plan_rollback(params: Mapping[str, Any], tag: str) -> dict[str, Any]:
    """Plan the undo of a publish, by its undo tag; returns the details of the plan.

    Raises:
        ConflictError: main changed again what the publish had changed. UnsafeOperationError: dynamic buckets lose keys,
            and the form doesn't say that writers are stopped.
    """
    from airflow_paimon.execution import run_operation

    asked = {"tag": tag, "keep_later": True, "writers_stopped": params["writers_stopped"], "dry_run": True}
    asked["changelog"] = params.get("changelog", "auto")
    return dict(run_operation(request_for(params, "rollback_to", **asked)).details)


def _notes(details: Mapping[str, Any]) -> list[str]:
    """Return what streaming readers see of an undo, and which jobs it may have to wait for."""
    found = (details["streaming_readers"]["note"], details.get("open_writers", {}).get("note"))
    return [f"{note[:1].upper()}{note[1:]}." for note in found if note]


def describe_plan(
    params: Mapping[str, Any],
    planned: Mapping[str, Any],
    preview: Mapping[str, Any],
    asked_by: str | None = None,
    diff: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Render the dry run and the rows for the approver: ``{"subject", "markdown"}``.

    ``diff``: the result of the comparison; None where nobody is asked.
    """
    details = preview["details"]
    actions = [a for a in details["plan"]["actions"] if a["action"] == "ReplaceBucket"]
    rows = [(a["path"], a["reason"]) for a in actions[:_LISTED]]
    left = max(0, details["buckets"] - len(rows))
    buckets = Listing(title="buckets", columns=heads("bucket | change"), rows=rows, left=left)
    kept = (
        "What main got elsewhere since stays."
        if params["keep_later"]
        else f"**Everything that main got after snapshot {planned['target_snapshot']} goes.**"
    )
    partitions = counted(details["partitions"], "partition")
    facts = (
        f"{partitions} of {planned['table']} to change: {counted(details['files_deleted'], 'file')} with "
        f"{counted(details['rows_deleted'], 'row')} out, {counted(details['files_added'], 'file')} with "
        f"{counted(details['rows_added'], 'row')} in. {kept}"
    )
    about = [escape(line) for line in (*planned["lines"], *_notes(details))]
    shown = "" if diff is None else render_undo(diff["details"])
    listed = "\n".join([*(f"- {line}" for line in about), *request_lines(params, asked_by)])
    parts = [listed, facts, shown, table_of(buckets)]
    return {
        "subject": f"Undo the correction of {planned['table']} ({partitions})?",
        "markdown": "\n\n".join(part for part in parts if part),
    }


def what_helps(failed: str, error: Mapping[str, Any] | None) -> list[str]:
    """Say what helps when a task of an undo failed."""
    kind = error["kind"] if error else "error"
    match kind:
        case "conflict":
            return advice.what_helps(
                "main got newer rows in the partitions to undo, which stay. Take back the publish row by row, as "
                f"{page_address('howto/undo-later')} says"
            )
        case "unsupported":
            return advice.what_helps(f"correct what the message names, and {advice.AGAIN}")
        case "unsafe" if failed.partition("[")[0] == "check":
            return advice.what_helps(
                "a check that the table requires doesn't hold for what would come back. Correct the rows by a new "
                "correction instead, or trigger this DAG again with Skip checks on"
            )
        case "invalid-input" | "not-found" | "already-exists" | "unsafe" | "corrupt":
            return advice.what_helps(advice.against(error, failed))
        case _ if failed.partition("[")[0] == "wait_for_quiet":
            return advice.what_helps(f"{advice.WITHOUT_WRITERS}; then clear task wait_for_quiet with its downstream")
        case _:
            return advice.what_helps(
                f"read the log of task {failed}. When its cause is over, clear it with its downstream; an undo that "
                f"succeeded is found and not done twice"
            )


def verify_undone(params: Mapping[str, Any], planned: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Compare main with the target, bucket by bucket; ``lines`` says it to people.

    Raises:
        FormatError: main does not hold what the target held.
    """
    from airflow_paimon.core.publish.published import verify_rollback

    name, tag = planned["table"], planned["tag"]
    if not result["changed"]:
        return {"snapshot": None, "lines": [f"Nothing to undo: {name} holds what {tag} holds"]}
    main = open_main(params)
    found = verify_rollback(
        main,
        snapshot_id=result["snapshot_after"],
        target=main.tag(tag).snapshot,
        keep_later=params["keep_later"],
    )
    line = (
        f"Verified: snapshot {found['snapshot']} of {name} holds the files of {tag} in "
        f"{', '.join(found['partitions']) or 'the table'}, and nothing else changed. To undo the undo: tag "
        f"{found['properties']['undo-tag']}"
    )
    return {**found, "lines": [line]}


# -- of several tables -------------------------------------------------------------------------------------------------


def plan_undos(params: Mapping[str, Any], asked_by: str | None = None) -> dict[str, Any]:
    """Find the publishes of a run's branch, plan to undo them, the last one first, and render it.

    Returns ``{"subject", "markdown", "tables", "lines"}``; tables that were undone already are left out. ``tables``: of
    each its undo tag, and the arguments of the diff that shows what the undo does to its rows.

    Raises:
        NotFoundError: a table has no publish of this branch that can be undone, or all are undone.
        ConflictError: main of a table changed again what its publish had changed; nothing is undone.
    """
    _check_durations(params)
    tables, rows, lines = [], [], []
    for name in reversed(params["tables"]):
        form = {**params, "table": name.strip()}
        publish = _publish_of(open_main(form).require(), params["branch"])
        if publish is None:
            lines.append(f"{name}: its publish was undone already")
            continue
        details = plan_rollback(form, publish.undo_tag)
        compared = compared_by_undo(open_main(form), publish.undo_tag, publish.before.id)
        tables.append({"tag": publish.undo_tag, **compared})
        lines.append(f"{name}: back to tag {publish.undo_tag}, before snapshot {publish.snapshot.id}")
        lines += _notes(details)
        rows.append((name, publish.snapshot.id, *(details[key] for key in (
            "partitions", "files_deleted", "rows_deleted", "files_added", "rows_added"))))  # fmt: skip
    if not tables:
        raise NotFoundError(f"Every publish of branch {params['branch']!r} was undone already")
    columns = heads(
        "table | publish: number | partitions: number | files out: number | rows out: number | files in: number"
        " | rows in: number"
    )
    publishes = table_of(Listing(title="publishes", columns=columns, rows=rows))
    about = "\n".join([*request_lines(params, asked_by), "- What main got elsewhere since stays"])
    return {
        "subject": f"Undo the correction of {' and '.join(one['table'] for one in tables)}?",
        "markdown": "\n\n".join([about, publishes, *map(escape, lines)]),
        "tables": tables,
        "lines": lines,
    }


def with_rows(planned: Mapping[str, Any], diffs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the rows of each table below the plan of an undo: ``{"subject", "markdown"}``."""
    shown = [f"## {escape(one['table'])}\n\n{render_undo(one['details'])}" for one in diffs]
    return {"subject": planned["subject"], "markdown": "\n\n".join([planned["markdown"], *shown])}


def _publish_of(main: Table, branch: str) -> Any:
    """Return the publish of a branch that stands; None when it was undone."""
    from airflow_paimon.core.publish.published import publishes, standing_publishes

    standing = [p for p in standing_publishes(main) if p.branch == branch]
    if standing:
        return standing[-1]
    if any(p.branch == branch for p in publishes(main)):
        return None
    there = ", ".join(sorted({str(p.branch) for p in publishes(main) if p.branch})) or "none"
    raise NotFoundError(
        f"{main.name} has no publish of branch {branch!r} that can be undone (of which branches it has: {there}). "
        f"Take Tables and Branch from the log of the run's task verify"
    )


def verify_all_undone(
    params: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], results: Sequence[Any]
) -> list[str]:
    """Compare main of each table with its tag; returns it as lines.

    Raises:
        FormatError: main does not hold what the tag held.
    """
    lines = []
    for one, result in zip(tables, results, strict=True):
        form = {**params, "table": one["table"], "keep_later": True}
        lines += verify_undone(form, one, result)["lines"]
    made = results[0]["details"].get("table_set") if results else None
    for version in made if isinstance(made, list) else [made] if made else []:
        lines.append(f"Table set {version['table_set']}: {version['version']} has the tables as they are now")
    return lines
