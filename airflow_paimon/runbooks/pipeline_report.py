"""What the runs of a pipeline's correction say to people: one page for all tables, what stands, what helps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon._compat import conf
from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.runbooks import advice, correction, undo
from airflow_paimon.runbooks.form import open_main
from airflow_paimon.runbooks.kinds import Kind, dag_for
from airflow_paimon.runbooks.leftovers import clean_up_run, own_publishes
from airflow_paimon.shown.listing import Listing, heads
from airflow_paimon.shown.markdown import counted, escape, sql_block, table_of, where_it_ran
from airflow_paimon.shown.urls import table_page_url
from airflow_paimon.task_run import REFUSALS

if TYPE_CHECKING:
    from airflow_paimon.core.table.table import Table

_LISTED = 10


def plan_publishes(
    params: Mapping[str, Any],
    planned: Sequence[Mapping[str, Any]],
    done: Sequence[Mapping[str, Any]],
    asked_by: str | None = None,
) -> dict[str, Any]:
    """Plan the publish of every table, and render one page for the approver.

    ``done``: of each table ``diff``, the result of its comparison, ``check``, that of its checks, ``wait``, the
    snapshot that was waited for, and
    ``wrote``, the result of its correction or replay. Returns ``{"subject", "markdown", "tables", "changes"}``;
    ``tables`` are the arguments with which each is published: the snapshots that are approved; ``changes``: whether
    any publish would change anything.

    Raises:
        ConflictError: both sides changed a bucket of a table, or a branch moved after its diff. UnsafeOperationError:
            see ``merge_branch``.
    """
    from airflow_paimon.shown.checks_markdown import render_checks
    from airflow_paimon.shown.diff_markdown import render_markdown

    sections, publishes, rows, changes = [], [], [], False
    for number, (one, its) in enumerate(zip(planned, done, strict=True), 1):
        form = _form_of(params, one)
        plan = correction.plan_merge(form, one, int(its["wait"]))
        changes |= plan["changes"]
        publishes.append({"table": one["table"], "branch": one["branch"],
                          "expected_branch_snapshot": plan["branch_snapshot"],
                          "approved_main_snapshot": plan["main_snapshot"]})  # fmt: skip
        rows.append(_row(params, one, its["diff"]["details"]))
        facts = correction.publish_facts("merge", one["branch"], plan)
        parts = [f"## {number}. {escape(one['table'])}", _what_ran(one, its["wrote"]["details"]),
                 render_checks(its["check"]["details"]["rules"]), render_markdown(its["diff"]["details"]), facts,
                 where_it_ran({"correct" if one["correct"] else "replay": its["wrote"], "check": its["check"],
                               "diff": its["diff"]}),
                 _notice(one), *_warnings(params, one)]  # fmt: skip
        sections.append("\n\n".join(part for part in parts if part))
    columns = heads("table | by | added: number | changed: number | deleted: number | page: markdown")
    tables = table_of(Listing(title="tables", columns=columns, rows=rows))
    names = " and ".join(one["table"] for one in planned)
    about = _about(
        params,
        asked_by,
        f"Approving publishes {counted(len(planned), 'table')}, in this order; if one is refused, all of them are as "
        f"before",
    )
    return {
        "subject": f"Publish the correction of {names}?",
        "markdown": "\n\n".join([about, tables, *sections]),
        "tables": publishes,
        "changes": changes,
    }


def _about(params: Mapping[str, Any], asked_by: str | None, effect: str) -> str:
    return (
        f"- Requested by: {escape(asked_by) if asked_by else '*unknown*'}\n"
        f"- Reason: {escape(params['reason']) if params['reason'] else '*none given*'}\n"
        f"- {effect}"
    )


def _notice(one: Mapping[str, Any]) -> str:
    """List whom the publish of a table concerns, as it was found when the run began."""
    lines = (one.get("foreseen") or {}).get("notice") or ()
    listed = "\n".join(f"- {escape(line)}" for line in lines)
    return f"Who will notice:\n\n{listed}" if lines else ""


def _form_of(params: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    return {**params, "table": one["table"], "publish": "merge"}


def _row(params: Mapping[str, Any], one: Mapping[str, Any], details: Mapping[str, Any]) -> list[Any]:
    total = details["total"]
    base = str(conf.get("api", "base_url", fallback="") or "")
    url = table_page_url(params["paimon_conn_id"], one["table"], branch=one["branch"], base_url=base)
    by = "correction" if one["correct"] else "replay"
    return [one["table"], by, total["added"], total["changed"], total["deleted"],
            f"[branch {escape(one['branch'])}]({url})"]  # fmt: skip


def _what_ran(one: Mapping[str, Any], wrote: Mapping[str, Any]) -> str:
    """Show the statement or function, with what it says that it did."""
    asked = one["correct"] or one["replay"]
    lines = [
        "Corrected by:" if one["correct"] else f"Replayed from {', '.join(map(escape, one['replay']['source']))} by:"
    ]
    lines.append(sql_block(asked["sql"]) if asked["sql"] else f"`{asked['function']}`")
    if one["correct"] and (wrote.get("statement") or wrote.get("statements")):
        counts = ", ".join(f"{wrote.get(f'rows_{word}', 0):,} {word}" for word in ("updated", "deleted", "inserted"))
        lines.append(f"Rows: {counts}.")
    for name, target in wrote.get("targets", {}).items():
        lines.append(f"Wrote {counted(target['rows'], 'row')} into {escape(name)}.")
    return "\n\n".join(lines)


def _warnings(params: Mapping[str, Any], one: Mapping[str, Any]) -> list[str]:
    """Say what main of the upstream tables got meanwhile: the replay has not read it."""
    lines = []
    for name in one["reads"]:
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
    from airflow_paimon.core.publish.bucket_merge_plan import bucket_namer
    from airflow_paimon.core.table.history import difference

    main = open_main({**params, "table": name})
    namer = bucket_namer(main.schema())
    change = difference(main, main.tag(one["tag"]).snapshot, main.latest_snapshot())
    return sorted({namer(bucket).rpartition("/")[0] or "the whole table" for bucket in change.buckets})


# -- after the publish -----------------------------------------------------------------------------------------------


def verify_all(
    params: Mapping[str, Any], planned: Sequence[Mapping[str, Any]], published: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Compare main of each table with its branch; ``lines`` says it to people, and how to undo all tables.

    Raises:
        FormatError: main of a table does not hold what its branch held.
    """
    found = [correction.verify_table(_form_of(params, one), one, its)
             for one, its in zip(planned, published, strict=True)]  # fmt: skip
    lines = [line for one in found for line in one["lines"]]
    if (made := published[0]["details"].get("table_set")) is not None:
        lines.append(f"Table set {made['table_set']}: {made['version']} is what readers of it get (tag {made['tag']})")
    snapshots = {one["table"]: its["snapshot"] for one, its in zip(planned, found, strict=True)}
    return {"snapshots": snapshots, "lines": [*lines, *undo_hint(planned, params["undo_retention"])]}


def undo_hint(planned: Sequence[Mapping[str, Any]], within: str | None = None) -> list[str]:
    """Say how to undo the publishes of a run: a sentence, and the form's JSON."""
    asked = {"tables": [one["table"] for one in planned], "branch": planned[0]["branch"]}
    until = f" within {within}" if within else ""
    return [f"To undo all tables{until}: trigger {_undo_dag(planned)} with", json.dumps(asked)]


def _undo_dag(planned: Sequence[Mapping[str, Any]]) -> str:
    return dag_for(Kind.PIPELINE_UNDO, planned[0]["owner"])


# -- what stands after a failure ---------------------------------------------------------------------------------------


def describe_outcomes(params: Mapping[str, Any], planned: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """Say in a few words which tables were changed, and in lines what the run left in each."""
    outcomes, lines = [], []
    for one in planned:
        outcome, about = correction.describe_outcome(open_main(_form_of(params, one)), one)
        outcomes.append(f"{one['table']}: {outcome}")
        lines += [f"-- {one['table']}", *about]
    if half := _half_published(params, planned):
        first = f"Only some of the tables are published. To take those back: trigger {_undo_dag(planned)} with"
        lines += [first, *undo_hint(half)[1:]]
    return "; ".join(outcomes), lines


def _half_published(params: Mapping[str, Any], planned: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the tables whose publish stands; none when all are published."""
    standing = [one for one in planned if _stands(open_main(_form_of(params, one)), one)]
    return standing if len(standing) < len(planned) else []


def _stands(main: Table, one: Mapping[str, Any]) -> bool:
    from airflow_paimon.core.publish.published import standing_publishes

    return bool(own_publishes(standing_publishes(main), one))


def clean_up_all(
    params: Mapping[str, Any], planned: Sequence[Mapping[str, Any]], failures: Mapping[str, str | None]
) -> list[str]:
    """Delete the branches and tags of a run that failed or was rejected, if its form asks for it.

    All of them stay while a publish of one table stands or may still land.
    """
    if not params["clean_up"]:
        return []
    standing = [one["table"] for one in planned if _stands(open_main(_form_of(params, one)), one)]
    if standing:
        return [f"Nothing was cleaned up: {', '.join(standing)} is published, and the branches show what main then got"]
    return [line for one in planned for line in clean_up_run(_form_of(params, one), one, failures)]


def next_steps(
    params: Mapping[str, Any], planned: Sequence[Mapping[str, Any]], failed: str, error: Mapping[str, Any] | None
) -> list[str]:
    """Say what helps against a task's failure, then how to remove what still stands."""
    helps = _advice(failed, error)
    # A Clear after other failures publishes the rest, or takes back what stands.
    if error and error["kind"] in (*REFUSALS, "corrupt") and _half_published(params, planned):
        first = (
            f"first take back what is published, with {_undo_dag(planned)} and the form above (if that is refused, its "
            f"message says what else helps)"
        )
        helps = f"{first}. Then {helps}" if helps else first
    lines = advice.what_helps(helps)
    for one in () if advice.is_written_late(failed, error) else planned:
        form = _form_of(params, one)
        lines += advice.how_to_remove(form, open_main(form), one)
    return lines


def _advice(failed: str, error: Mapping[str, Any] | None) -> str | None:
    match error["kind"] if error else "error":
        case "unsupported":
            return f"correct what the message names, and {advice.AGAIN}. The same form fails the same way"
        case "unsafe" if error and error.get("missing_checks"):
            return f"clear task check with its downstream while the branches are there, else {advice.AGAIN}"
        case "unsafe" if error and error.get("rules"):
            return f"{advice.AGAIN} with statements that correct the rows in the message as well, or with other checks"
        case "outcome-unknown":
            return (
                f"see above which tables have the correction. Then clear task {failed} with its downstream: a publish "
                f"that succeeded is found, and not done twice"
            )
        case "invalid-input" | "not-found" | "already-exists" | "conflict" | "unsafe" | "corrupt":
            return advice.against(error, failed)
        case _:
            return (
                f"read the log of task {failed}. When its cause is over (storage, Spark, a lost worker), clear it with "
                f"its downstream if the branches are still there, else {advice.AGAIN}"
            )


# -- the undo --------------------------------------------------------------------------------------------------------


def plan_undo(params: Mapping[str, Any], asked_by: str | None = None) -> dict[str, Any]:
    """Find the publishes of a run's branch, plan to undo them, the last one first, and render it.

    Returns ``{"subject", "markdown", "tables", "lines"}``; tables that were undone already are left out. ``tables``: of
    each its undo tag, and the arguments of the diff that shows what the undo does to its rows.

    Raises:
        NotFoundError: a table has no publish of this branch that can be undone, or all are undone.
        ConflictError: main of a table changed again what its publish had changed; nothing is undone.
    """
    from airflow_paimon.core.table.options import requested_retention

    requested_retention(params["undo_retention"], "undo_retention")
    tables, rows, lines = [], [], []
    for name in reversed(params["tables"]):
        form = {**params, "table": name.strip()}
        publish = _publish_of(open_main(form).require(), params["branch"])
        if publish is None:
            lines.append(f"{name}: its publish was undone already")
            continue
        details = undo.plan_rollback(form, publish.undo_tag)
        compared = undo.compared_by_undo(open_main(form), publish.undo_tag, publish.before.id)
        tables.append({"tag": publish.undo_tag, **compared})
        lines.append(f"{name}: back to tag {publish.undo_tag}, before snapshot {publish.snapshot.id}")
        rows.append((name, publish.snapshot.id, *(details[key] for key in (
            "partitions", "files_deleted", "rows_deleted", "files_added", "rows_added"))))  # fmt: skip
    if not tables:
        raise NotFoundError(f"Every publish of branch {params['branch']!r} was undone already")
    columns = heads(
        "table | publish: number | partitions: number | files out: number | rows out: number | files in: number"
        " | rows in: number"
    )
    publishes = table_of(Listing(title="publishes", columns=columns, rows=rows))
    about = _about(params, asked_by, "What main got elsewhere since stays")
    return {
        "subject": f"Undo the correction of {' and '.join(one['table'] for one in tables)}?",
        "markdown": "\n\n".join([about, publishes, *map(escape, lines)]),
        "tables": tables,
        "lines": lines,
    }


def with_rows(planned: Mapping[str, Any], diffs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the rows of each table below the plan of an undo: ``{"subject", "markdown"}``."""
    from airflow_paimon.shown.diff_markdown import render_undo

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


def verify_undone(params: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], results: Sequence[Any]) -> list[str]:
    """Compare main of each table with its tag; returns it as lines.

    Raises:
        FormatError: main does not hold what the tag held.
    """
    lines = []
    for one, result in zip(tables, results, strict=True):
        form = {**params, "table": one["table"], "keep_later": True}
        lines += undo.verify_undone(form, one, result)["lines"]
    made = results[0]["details"].get("table_set") if results else None
    for version in made if isinstance(made, list) else [made] if made else []:
        lines.append(f"Table set {version['table_set']}: {version['version']} has the tables as they are now")
    return lines
