"""What ``data_correction`` checks, proves and reports; no function here changes a table."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon._compat import AirflowException
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.rule_text import rules_as_json, what_runs
from airflow_paimon.runbooks.form import check_policy, open_main, request_for
from airflow_paimon.runbooks.kinds import Kind, dag_for
from airflow_paimon.runbooks.leftovers import made_branch, own_publishes, run_digest, run_tag
from airflow_paimon.shown.markdown import counted, escape, sql_block

if TYPE_CHECKING:
    from airflow_paimon.core.format.snapshot import Snapshot
    from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

_OPERATIONS = {"merge": "merge_branch", "fast_forward": "fast_forward"}
_STARTS = ("start_tag", "start_snapshots", "start_time")
"""Fields of ``pipeline_correction`` by which branches begin earlier."""
TO_CORRECT_DIFFERENTLY = "To correct it differently: trigger this DAG again; it makes a new branch"
_LISTED = 20
_DURATIONS = ("wait_max_watermark_lag", "wait_max_commit_lag")
_WAITS = (*_DURATIONS, "wait_partitions")


def plan_correction(
    params: Mapping[str, Any], dag_id: str, run_id: str, locked: Collection[str] = ()
) -> dict[str, Any]:
    """Check the form against the table; choose the branch, the tag and the snapshot to start from.

    Returns ``{"table", "from_branch", "branch", "tag", "owner", "base_snapshot"}``: the same for every try and Clear of
    a run, as the tag keeps where the run first stood. ``locked``: fields whose values are the DAG's own code.

    Raises:
        InvalidInputError: something that would fail later, found before anything is created. NotFoundError: no such
            table.
    """
    from airflow_paimon.core.sql_text.tokens import split_statements

    main = open_main(params).require()
    _check_branch_of_table(main)
    _check_rows(main, params)
    check_settings(params, locked)
    _check_select(main, params)
    columns = viewed_columns(params, params["views"] or ())
    for text in split_statements(params["sql"] or ""):
        check_named_columns(main, params, text, {"main": main.schema().field_names, **columns})
    check_rules(main, params, locked)
    return plan_branch(main, params["branch"], f"{dag_id}/{run_id}")


def foresee(params: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any] | None:
    """Plan what the correction will touch: the details of ``plan_correction``, and who is downstream.

    None, with a warning in the log, when it can't be planned: that alone stops no correction.

    Raises:
        InvalidInputError, NotFoundError, UnsupportedFeatureError: what the correction will be refused for, too.
    """
    from airflow_paimon.downstream import with_downstream

    found = plan_work(params, planned)
    return None if found is None else with_downstream(found, params["paimon_conn_id"], open_main(params).name, params)


def plan_work(params: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any] | None:
    """Plan what the correction will touch, as ``foresee`` does, without asking who is downstream elsewhere."""
    from airflow_paimon.shown.correction import plan_of

    if params["engine"] == "connector":  # which rows that touches, only the connector knows
        return None
    hook, main = PaimonHook(params["paimon_conn_id"]), open_main(params)
    asked: dict[str, Any] = {name: params[name] or None for name in ("sql", "function", "mode")}
    listed: dict[str, Any] = {"view": params["views"] or (), "partitions": params["partitions"] or ()}
    reach = {"warehouse": hook.warehouse, "storage_options": hook.storage_options}
    try:
        names = {"branch": planned["branch"], "from_branch": planned["from_branch"]}
        return plan_of(reach, main.name, **names, **asked, **listed)
    except (InvalidInputError, NotFoundError, UnsupportedFeatureError) as error:
        if _branch_has_mains_columns(main, params):
            raise
        why = error.message
    except Exception as error:  # the correction itself says what is wrong, if anything is
        why = str(error)
    log.warning("What the correction will touch could not be planned: %s", why)
    return None


def matches_nothing(params: Mapping[str, Any], foreseen: Mapping[str, Any] | None) -> str | None:
    """Say that a statement will change no row, where the metadata make that certain; None where they don't.

    An INSERT or a MERGE may add rows; what other jobs write into the branch, which the run waits for, is not planned.
    """
    if foreseen is None or foreseen["branch_exists"] or any(params[name] for name in _WAITS):
        return None
    kinds = set(foreseen["statement"].split(", "))
    if foreseen["replaces"]["files"] or not kinds <= {"UPDATE", "DELETE"}:
        return None
    return f"The {foreseen['statement']} matches no row of {params['table']}: no partition and no file can hold one"


def plan_branch(main: Table, name: str | None, owner: str, start: Snapshot | None = None) -> dict[str, Any]:
    """Choose the branch and the tag of a run, and the snapshot that they start from: ``start``, or main as it is.

    Raises:
        InvalidInputError: the branch is there and not this run's, or one of this name was published already.
            NotFoundError: the table has no snapshot.
    """
    branch, tag = name or f"fix_{run_digest(owner)}", run_tag(owner)
    _refuse_taken(main, branch, owner)
    existing = main.find_tag(tag)
    head = existing.snapshot if existing else start or main.latest_snapshot()
    if head is None:
        raise NotFoundError(f"{main.label} has no snapshot: there is nothing to correct")
    made = {"branch": branch, "tag": tag, "owner": owner, "base_snapshot": head.id}
    return {"table": main.name, "from_branch": main.branch_name, **made}


def _check_branch_of_table(main: Table) -> None:
    """A correction starts from main, or from the snapshot or the delta branch of a chain table.

    Raises:
        InvalidInputError: it is to start from another branch, or from a chain table without a word on which of its.
    """
    from airflow_paimon.core.table.features import is_chain_main, is_chain_part
    from airflow_paimon.core.table.options import TableOptions

    options = TableOptions(main.schema().options)
    if is_chain_main(options, main.branch_name):
        snapshot, delta = options.chain_branches
        raise InvalidInputError(
            f"{main.name} is a chain table, whose rows are in its branches: name the one that is wrong in Branch of a "
            f"chain table, {delta} (changes) or {snapshot} (full partitions), or as {main.name}$branch_{delta}"
        )
    if main.branch_name != MAIN and not is_chain_part(options, main.branch_name):
        raise InvalidInputError(
            f"{main.label}: a correction starts from main, or from the snapshot or delta branch of a chain table: name "
            f"the table {main.name}"
        )


def _check_rows(main: Table, params: Mapping[str, Any]) -> None:
    from airflow_paimon.core.sql_text.checks import check_for_connector, check_is_query, check_target, divided
    from airflow_paimon.core.sql_text.statement import statement_kind
    from airflow_paimon.core.table.partitions import parse_partition_spec
    from airflow_paimon.core.table.scan import partition_types

    schema = main.schema()
    if bool(params["sql"]) == bool(params["function"]):
        raise InvalidInputError("Give SQL or a function, one of the two")
    texts = divided(params["sql"]) if params["sql"] else []
    if params["engine"] == "connector":
        check_for_connector(texts)
    for text in texts:
        check_target(text)
    if params["sql"] and not _kind(params):
        check_is_query(params["sql"])
    if kind := _kind(params):
        for text in texts:
            _check_statement(main, params, text, statement_kind(text) or kind)
    elif params["mode"] == "upsert" and not schema.primary_keys:
        raise InvalidInputError(f"{main.name} has no primary key: use mode overwrite")
    elif params["mode"] == "overwrite" and schema.partition_keys and not params["partitions"]:
        keys = ", ".join(schema.partition_keys)
        raise InvalidInputError(f"{main.name} is partitioned by {keys}: name the partitions to overwrite")
    for text in (*(params["partitions"] or ()), *(params["wait_partitions"] or ())):
        parse_partition_spec(text, schema.partition_keys, partition_types(schema))


def _kind(params: Mapping[str, Any]) -> str | None:
    """Return the kind of the form's statement; None for a SELECT or a function."""
    from airflow_paimon.core.sql_text.statement import statement_kind

    return statement_kind(params["sql"]) if params["sql"] else None


def _check_statement(main: Table, params: Mapping[str, Any], sql: str, kind: str) -> None:
    if params["partitions"] or params["mode"] != "overwrite":
        raise InvalidInputError(
            f"{main.name}: {kind} says by itself which rows change: leave Partitions empty and Mode at overwrite, as "
            f"both are for a SELECT"
        )
    from airflow_paimon.core.sql_text.columns import check_statement

    check_statement(sql, kind, main.name, all_rows=bool(params["all_rows"]))


def _branch_has_mains_columns(main: Table, params: Mapping[str, Any]) -> bool:
    """Whether the branch will have main's newest columns: it is made from main's newest snapshot, which has them."""
    head = main.latest_snapshot() if not any(params.get(name) for name in _STARTS) else None
    if head is None or head.schema_id != main.schema().id:
        return False
    return not (params["branch"] and main.branch(params["branch"]).exists())


def check_settings(params: Mapping[str, Any], locked: Collection[str] = ()) -> None:
    """Check what is not about a table's rows: names, durations, the Spark connection.

    Raises:
        InvalidInputError: one of them is wrong. UnsafeOperationError: a field says more than a form may.
    """
    check_policy(params, locked)
    _check_texts(params)
    _check_spark(params)


def _check_texts(params: Mapping[str, Any]) -> None:
    from airflow_paimon.core.table.options import requested_duration, requested_retention
    from airflow_paimon.core.table.paths import check_branch_name

    if params["branch"]:
        check_branch_name(params["branch"])
    for view in params["views"] or ():
        if not all(view.partition("=")):
            raise InvalidInputError(
                f"View {view!r} is not of the form name=database.table, or name=database.table@version"
            )
    for name in ("undo_retention", "tag_retention"):
        requested_retention(params[name], name)
    for name in _DURATIONS:
        if params[name]:
            requested_duration(params[name], name)


def _check_spark(params: Mapping[str, Any]) -> None:
    """Build the hook that will submit the jobs: it refuses a missing connection and unknown options."""
    from airflow_paimon.hooks.spark_connect_job import open_job_hook

    spark = PaimonHook(params["paimon_conn_id"]).spark_settings(
        params["spark_conn_id"], params["spark_conf"], params["spark_options"]
    )
    try:
        open_job_hook(spark.conn_id, conf=spark.conf, options=spark.options)
    except (AirflowException, TypeError, ValueError) as error:
        if isinstance(error, PaimonError):
            raise
        named = ", ".join(sorted(spark.options)) or "left out"
        raise InvalidInputError(f"Spark connection {spark.conn_id!r}, spark_options {named}: {error}") from None


def viewed_columns(params: Mapping[str, Any], views: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the columns of further views, each ``name=db.table[$branch_b][@VERSION]``, by their names.

    Raises:
        NotFoundError: there is no such table, branch or version.
    """
    from airflow_paimon.core.table.table import resolve_version, split_version

    found: dict[str, Sequence[str]] = {}
    for view in views:
        name, _, text = view.partition("=")
        table, version = split_version(text.strip())
        try:
            opened = PaimonHook(params["paimon_conn_id"]).get_table(table).require()
            at, snapshot = resolve_version(opened, version)
        except NotFoundError as error:
            raise NotFoundError(f"View {view!r}: {error.message}") from None
        schema = at.schema(snapshot.schema_id if version is not None and snapshot is not None else None)
        found[name.strip()] = schema.field_names
    return found


def check_named_columns(main: Table, params: Mapping[str, Any], sql: str, views: Mapping[str, Sequence[str]]) -> None:
    """Check the columns that SQL names, as far as that goes without Spark; ``views``: columns of all but ``branch``.

    Raises:
        InvalidInputError: names a column that its table lacks.
    """
    from airflow_paimon.core.sql_text.columns import check_columns

    branch = {"branch": main.schema().field_names} if _branch_has_mains_columns(main, params) else {}
    check_columns(sql, {**views, **branch}, {"branch": main.name, "main": f"main of {main.name}"})


def _check_select(main: Table, params: Mapping[str, Any]) -> None:
    """Compare the SELECT's columns with the table's, unless the branch will have or has another schema than main."""
    from airflow_paimon.core.sql_text.columns import check_select

    if not params["sql"] or _kind(params) or not _branch_has_mains_columns(main, params):
        return
    schema = main.schema()
    optional = [f.name for f in schema.fields if f.default_value is not None]
    check_select(params["sql"], schema.field_names, optional, main.name)


def check_rules(main: Table, params: Mapping[str, Any], locked: Collection[str] = ()) -> None:
    """Check the form's rules, and those of the table, against main's columns.

    Raises:
        InvalidInputError: a rule is wrong. UnsafeOperationError: one calls a function that no form may call.
    """
    from airflow_paimon.core.checks.columns import check_columns
    from airflow_paimon.core.checks.required import required_rules
    from airflow_paimon.core.checks.rules import VIEWS, parse_rules_text

    text, policy = rules_as_json(params["checks"], "Checks"), PaimonHook(params["paimon_conn_id"]).form_policy
    for one in what_runs(text) if "checks" not in locked else ():
        policy.check(one)
    rules = [*parse_rules_text(text or "", "Checks"), *required_rules(main)]
    check_columns(rules, main.schema(), main.name)
    names = [view.partition("=")[0].strip() for view in params["views"] or ()]
    if rules and (taken := [name for name in names if name.lower() in VIEWS]):
        raise InvalidInputError(
            f"{main.name}: there is a view {taken[0]!r} of checks already, beside {', '.join(VIEWS)}; give the further "
            f"view another name"
        )


def _refuse_taken(main: Table, branch: str, owner: str) -> None:
    """A run works on a branch of its own; one that was published and is gone would be corrected twice."""
    from airflow_paimon.core.publish.published import publishes

    if main.branch(branch).exists():
        if made_branch(main, {"branch": branch, "owner": owner}) is None:
            raise InvalidInputError(
                f"{main.name} has a branch {branch!r} already, and it is not of this run{_whose(main, branch)}. Give "
                f"another name, or leave Branch empty: the run then makes a branch of its own"
            )
        return
    for publish in publishes(main):
        if publish.branch == branch:
            raise InvalidInputError(
                f"{main.name}: branch {branch!r} was published already, as snapshot {publish.snapshot.id}, and is gone "
                f"since. To correct something else, trigger the DAG anew, with another branch name"
            )


def _whose(main: Table, branch: str) -> str:
    from airflow_paimon.core.table.lineage import read_lineage

    record = read_lineage(main, branch)
    return f": it belongs to {record.owner}" if record is not None and record.owner else ""


def who_will_notice(foreseen: Mapping[str, Any] | None) -> str:
    """List whom a publish concerns, for the approver: registered readers, open branches, replayed tables."""
    from airflow_paimon.shown.correction_text import audience_lines

    lines = audience_lines(foreseen) if foreseen is not None else []
    listed = "\n".join(f"- {escape(line)}" for line in lines)
    page = str((foreseen or {}).get("page") or "").partition("&")[0]  # the SQL stands above it already
    more = f"[DAGs that are scheduled on the table]({page})" if page else ""
    return "\n\n".join(filter(None, (f"Who will notice:\n\n{listed}" if lines else "", more)))


def plan_publish(
    params: Mapping[str, Any],
    planned: Mapping[str, Any],
    diff: Mapping[str, Any],
    branch_snapshot: int,
    asked_by: str | None = None,
    corrected: Mapping[str, Any] | None = None,
    checked: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Render the request, the checks and the diff, and plan the publish: what can't be published needs no approval.

    Returns ``{"subject", "markdown", "branch_snapshot", "main_snapshot", "changes"}``: what the approver reads, the
    heads that are approved with it, and whether the publish would change anything.

    Raises:
        ConflictError: both sides changed a bucket, or the branch moved after the diff. UnsafeOperationError: a check
            that the table requires is missing or failed, or see ``merge_branch`` and ``fast_forward``.
    """
    from airflow_paimon.shown.checks_markdown import render_checks
    from airflow_paimon.shown.diff_markdown import render_markdown

    plan = plan_merge(params, planned, branch_snapshot)
    facts = publish_facts(params["publish"], planned["branch"], plan, planned["from_branch"])
    checks = render_checks((checked or {}).get("rules", ()))
    request = describe_request(params, asked_by, corrected)
    parts = [part for part in (request, checks, render_markdown(diff["details"]), facts) if part]
    partitions = counted(plan["partitions"], "partition")
    return {
        "subject": f"Publish the correction of {corrected_table(planned)} ({partitions})?",
        "markdown": "\n\n".join(parts),
        "branch_snapshot": plan["branch_snapshot"],
        "main_snapshot": plan["main_snapshot"],
        "changes": plan["changes"],
    }


def plan_merge(params: Mapping[str, Any], planned: Mapping[str, Any], branch_snapshot: int) -> dict[str, Any]:
    """Plan the publish, as the form asks for it; returns the details of the plan, and whether it `changes` anything.

    Raises:
        ConflictError, UnsafeOperationError: as ``plan_publish``.
    """
    from airflow_paimon.core.publish.required_checks import refuse_unchecked
    from airflow_paimon.core.requests.operations import run_operation
    from airflow_paimon.core.requests.requests import PublishBranch

    request = request_for(
        params,
        _OPERATIONS[params["publish"]],
        branch=planned["branch"],
        writers_stopped=params["writers_stopped"],
        rewrite=params["rewrite"],
        **({n: params[n] for n in ("keep_appended", "on_overlap")} if params["publish"] == "merge" else {}),
        expected_branch_snapshot=branch_snapshot,
        changelog=params.get("changelog", "auto"),
        dry_run=True,
    )
    assert isinstance(request, PublishBranch)
    planned_publish = run_operation(request)
    refuse_unchecked(request, planned_publish)
    return {**planned_publish.details, "changes": planned_publish.changed}


def corrected_table(planned: Mapping[str, Any]) -> str:
    """Name what a run corrects: the table, or the branch of a chain table."""
    table, branch = planned["table"], planned["from_branch"]
    return table if branch == MAIN else f"{table}$branch_{branch}"


def publish_facts(publish: str, branch: str, plan: Mapping[str, Any], onto: str = MAIN) -> str:
    """Say what a publish replaces, and what streaming readers see of it. ``onto``: the branch that gets it."""
    notes = filter(None, (plan["streaming_readers"]["note"], plan.get("open_writers", {}).get("note")))
    appended, compactions = plan.get("appended_on_main"), plan.get("compactions_taken_back")
    kept = (
        f" {counted(appended['rows'], 'row')} that {onto} got meanwhile in "
        f"{escape(', '.join(appended['buckets']))} stay."
        if appended
        else ""
    )
    taken = f" {counted(compactions, 'compaction')} of {onto} will be taken back for it." if compactions else ""
    return (
        f"Branch {escape(branch)} is at snapshot {plan['branch_snapshot']}, {escape(onto)} at "
        f"{plan['main_snapshot']}. Publishing by {publish} replaces {counted(plan['files_deleted'], 'file')} "
        f"in {counted(plan['partitions'], 'partition')} by {plan['files_added']:,}; every other file stays as it is."
        f"{kept}{taken} "
        f"{' '.join(f'{escape(note[:1].upper() + note[1:])}.' for note in notes)}"
    )


def describe_request(
    params: Mapping[str, Any], asked_by: str | None, corrected: Mapping[str, Any] | None = None
) -> str:
    """Render who wants what, and why, for the approver: the form's texts are shown as they are, never as markup.

    ``corrected``: the details of ``correct_branch``'s result.
    """
    lines = [f"- Requested by: {escape(asked_by) if asked_by else '*unknown*'}"]
    lines.append(f"- Reason: {escape(params['reason']) if params['reason'] else '*none given*'}")
    if params["partitions"]:
        lines.append(f"- Partitions: {', '.join(escape(p) for p in params['partitions'])}")
    kind = _kind(params)
    if kind is None:
        lines.append(f"- Mode: {params['mode']}, engine: {params['engine']}")
    elif corrected is None:
        lines.append(f"- Statement: {kind}, engine: {params['engine']}")
    else:
        done = ", ".join(f"{corrected.get(f'rows_{word}', 0):,} {word}" for word in ("updated", "deleted", "inserted"))
        ran = ", ".join(one["statement"] for one in corrected.get("statements", ())) or corrected.get("statement", kind)
        lines.append(f"- Statement: {ran}, engine: {params['engine']}; rows: {done}")
    lines += [f"- Further view: {escape(view)}" for view in params["views"] or ()]
    if params["function"]:
        lines.append(f"- Function: {escape(params['function'])}")
    listed = "\n".join(lines)
    return f"{listed}\n\n{sql_block(params['sql'])}" if params["sql"] else listed


def verify_published(
    params: Mapping[str, Any], planned: Mapping[str, Any], published: Mapping[str, Any]
) -> dict[str, Any]:
    """Compare main with the branch, bucket by bucket; ``lines`` says it to people, the summary first.

    Raises:
        FormatError: main does not hold what the branch held.
    """
    found = verify_table(params, planned, published)
    if not published["changed"]:
        return found
    hint = undo_hint(planned, found["properties"]["undo-tag"], params["undo_retention"])
    return {**found, "lines": [found["lines"][0], *hint, *found["lines"][1:]]}


def verify_table(params: Mapping[str, Any], planned: Mapping[str, Any], published: Mapping[str, Any]) -> dict[str, Any]:
    """Compare main with the branch as ``verify_published`` does, without a word on the undo."""
    from airflow_paimon.core.publish.published import verify_publish

    table = corrected_table(planned)
    if not published["changed"]:
        return {"snapshot": None, "lines": [f"Nothing was published: main of {table} holds what the branch holds"]}
    found = verify_publish(
        open_main(params),
        snapshot_id=published["snapshot_after"],
        branch=planned["branch"],
        branch_snapshot=int(published["details"]["branch_snapshot"]),
    )
    lines = [
        f"Verified: snapshot {found['snapshot']} of {table} holds the branch's files in these partitions, and no other "
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
    return [f"Full partitions that are stale now: {named}. nightly_chain_maintenance builds them again:", again]


def undo_hint(planned: Mapping[str, Any], tag: str, within: str | None = None) -> list[str]:
    """Say how to undo a publish of a run: a sentence, and the form's JSON."""
    until = f" within {within}" if within else ""
    asked = {"table": corrected_table(planned), "tag": tag}
    return [f"To undo{until}: trigger {dag_for(Kind.UNDO, planned['owner'])} with", json.dumps(asked)]


def describe_outcome(main: Table, planned: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Say in a few words whether this run changed main, and in lines what it left in the table."""
    from airflow_paimon.core.publish.published import publishes, standing_publishes

    published, onto = own_publishes(publishes(main), planned), main.branch_name
    if published and all(p.snapshot.id != published[-1].snapshot.id for p in standing_publishes(main)):
        outcome = f"the correction was published as snapshot {published[-1].snapshot.id} of {onto}, and undone since"
        lines = [f"Undone: {outcome}"]
    elif published and published[-1].is_part:
        outcome = f"{onto} holds some partitions of the correction since snapshot {published[-1].snapshot.id}"
        lines = [f"Published in part: {outcome}", *undo_hint(planned, published[-1].undo_tag)]
    elif published:
        outcome = f"{onto} holds the correction since snapshot {published[-1].snapshot.id}"
        lines = [f"Published: {outcome}", *undo_hint(planned, published[-1].undo_tag)]
    else:
        outcome = f"{onto} of {main.name} is untouched"
        whose = "Main" if onto == MAIN else f"Branch {onto}"
        lines = [f"{whose} of {main.name} is untouched by this run: it published nothing"]
    return outcome, [*lines, *_what_is_left(main, planned)]


def _what_is_left(main: Table, planned: Mapping[str, Any]) -> list[str]:
    """Name only what is there: a clean-up may have gone before, and says itself what it has deleted."""
    branch, record, onto = planned["branch"], made_branch(main, planned), main.branch_name
    tag, head = main.find_tag(planned["tag"]), main.branch(branch).latest_snapshot_id()
    left = [f"Tag {planned['tag']}: on snapshot {tag.snapshot.id} of {onto}"] if tag else []
    if head and record is not None:
        left.append(f"Branch {branch}: at snapshot {head}, made from snapshot {record.snapshot_id} of {onto}")
    left = left or [f"{main.name} has no branch and no tag of this run"]
    if head and record is None:
        left.append(f"Branch {branch} is not of this run{_whose(main, branch)}: leave it alone")
    return left
