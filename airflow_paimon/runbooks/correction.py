"""What ``data_correction`` checks and plans against its table; no function here changes it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon._compat import AirflowException
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.forms.rules import rules_as_json, what_runs
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.runbooks.form import check_policy, open_main
from airflow_paimon.runbooks.leftovers import own_branch_record, run_digest, run_owner_of, run_tag

if TYPE_CHECKING:
    from airflow_paimon.core.format.snapshot import Snapshot
    from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

_STARTS = ("start_tag", "start_snapshots", "start_time")
"""Fields of ``pipeline_correction`` by which branches begin earlier."""
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
    columns = columns_of_views(params, params["views"] or ())
    for text in split_statements(params["sql"] or ""):
        check_named_columns(main, params, text, {"main": main.schema().field_names, **columns})
    check_rules(main, params, locked)
    return plan_branch(main, params["branch"], f"{dag_id}/{run_id}")


def plan_effects(params: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any] | None:
    """Plan what the correction will touch: the details of ``plan_correction``, and who is downstream.

    None, with a warning in the log, when it can't be planned: that alone stops no correction.

    Raises:
        InvalidInputError, NotFoundError, UnsupportedFeatureError: what the correction will be refused for, too.
    """
    from airflow_paimon.lineage.downstream import with_downstream

    found = plan_work(params, planned)
    return None if found is None else with_downstream(found, params["paimon_conn_id"], open_main(params).name, params)


def plan_work(params: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any] | None:
    """Plan what the correction will touch, as ``plan_effects`` does, without asking who is downstream elsewhere."""
    from airflow_paimon.shown.correction import plan_of

    if params["engine"] == "connector":  # which rows that touches, only the connector knows
        return None
    hook, main = PaimonHook(params["paimon_conn_id"]), open_main(params)
    statement: dict[str, Any] = {name: params[name] or None for name in ("sql", "function", "mode")}
    listed: dict[str, Any] = {"view": params["views"] or (), "partitions": params["partitions"] or ()}
    reach = {"warehouse": hook.warehouse, "storage_options": hook.storage_options}
    try:
        names = {"branch": planned["branch"], "from_branch": planned["from_branch"]}
        return plan_of(reach, main.name, **names, **statement, **listed)
    except (InvalidInputError, NotFoundError, UnsupportedFeatureError) as error:
        if _branch_has_mains_columns(main, params):
            raise
        why = error.message
    except Exception as error:  # the correction itself says what is wrong, if anything is
        why = str(error)
    log.warning("What the correction will touch could not be planned: %s", why)
    return None


def preview_of(details: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what is shown of the effects: ``lines`` for the log; for the approver ``notice``, whom the publish
    concerns (registered readers, open branches, replayed tables), and the ``page`` of the table's plan.
    """
    from airflow_paimon.shown.correction_text import audience_lines, plan_lines

    if details is None:
        return {"lines": [], "notice": [], "page": ""}
    page = str(details.get("page") or "").partition("&")[0]  # the approval shows the SQL already
    return {"lines": plan_lines(details), "notice": audience_lines(details), "page": page}


def matches_nothing(params: Mapping[str, Any], effects: Mapping[str, Any] | None) -> str | None:
    """Say that a statement will change no row, where the metadata make that certain; None where they don't.

    An INSERT or a MERGE may add rows; what other jobs write into the branch, which the run waits for, is not planned.
    """
    if effects is None or effects["branch_exists"] or any(params[name] for name in _WAITS):
        return None
    kinds = set(effects["statement"].split(", "))
    if effects["replaces"]["files"] or not kinds <= {"UPDATE", "DELETE"}:
        return None
    return f"The {effects['statement']} matches no row of {params['table']}: no partition and no file can hold one"


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
    from airflow_paimon.core.sql_text.checks import (
        check_all_rows,
        check_for_connector,
        check_mode,
        check_statement_alone,
        check_target,
        divided,
    )
    from airflow_paimon.core.sql_text.statement import statement_kind
    from airflow_paimon.core.table.partition_values import parse_partition_spec

    schema = main.schema()
    if bool(params["sql"]) == bool(params["function"]):
        raise InvalidInputError("Give SQL or a function, one of the two")
    texts = divided(params["sql"]) if params["sql"] else []
    if params["engine"] == "connector":
        check_for_connector(texts)
    for text in texts:
        check_target(text)
    if kind := _kind(params):
        for text in texts:
            check_statement_alone(kind, params["mode"], params["partitions"])
            if not params["all_rows"]:
                check_all_rows(text, statement_kind(text) or kind, main.name)
    else:
        check_mode(schema, params["mode"], params["partitions"], main.name)
    for text in (*(params["partitions"] or ()), *(params["wait_partitions"] or ())):
        parse_partition_spec(text, schema.partition_keys, schema.partition_types)


def _kind(params: Mapping[str, Any]) -> str | None:
    """Return the kind of the form's statement; None for a SELECT or a function."""
    from airflow_paimon.core.sql_text.statement import statement_kind

    return statement_kind(params["sql"]) if params["sql"] else None


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
    for name in ("undo_retention", "tag_retention"):
        requested_retention(params[name], name)
    for name in (*_DURATIONS, "wait_for_quiet"):
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


def columns_of_views(params: Mapping[str, Any], views: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the columns of further views by name; raises as ``viewed_columns``."""
    from airflow_paimon.core.sql_text.checks import viewed_columns

    return viewed_columns(views, PaimonHook(params["paimon_conn_id"]).get_table)


def check_named_columns(main: Table, params: Mapping[str, Any], sql: str, views: Mapping[str, Sequence[str]]) -> None:
    """Check the columns that SQL names, as far as that goes without Spark; ``views``: columns of all but ``branch``.

    Raises:
        InvalidInputError: names a column that its table lacks.
    """
    from airflow_paimon.core.sql_text.columns import check_columns

    branch = {"branch": main.schema().field_names} if _branch_has_mains_columns(main, params) else {}
    check_columns(sql, {**views, **branch}, {"branch": main.name, "main": f"main of {main.name}"})


def check_rules(main: Table, params: Mapping[str, Any], locked: Collection[str] = ()) -> None:
    """Check the form's rules, and those of the table, against main's columns.

    Raises:
        InvalidInputError: a rule is wrong. UnsafeOperationError: one calls a function that no form may call.
    """
    from airflow_paimon.core.rules.columns import check_columns
    from airflow_paimon.core.rules.required import required_rules
    from airflow_paimon.core.rules.rules import VIEWS, parse_rules_text

    text, policy = rules_as_json(params["checks"], "Checks"), PaimonHook(params["paimon_conn_id"]).form_policy
    for one in what_runs(text) if "checks" not in locked else ():
        policy.check(one)
    rules = [*parse_rules_text(text or "", "Checks"), *required_rules(main)]
    check_columns(rules, main.schema(), main.name)
    names = [view.partition("=")[0].strip() for view in params["views"] or ()]
    if rules and (taken := [name for name in names if name.lower() in VIEWS]):
        raise InvalidInputError(
            f"{main.name}: the checks have a view {taken[0]!r} already, as well as {', '.join(VIEWS)}; give the "
            "further view another name"
        )


def _refuse_taken(main: Table, branch: str, owner: str) -> None:
    """A run works on a branch of its own; one that was published and is gone would be corrected twice."""
    from airflow_paimon.core.publish.undoable_publishes import undoable_publishes

    if main.branch(branch).exists():
        if own_branch_record(main, {"branch": branch, "owner": owner}) is None:
            raise InvalidInputError(
                f"{main.name} has a branch {branch!r} already, not of this run{run_owner_of(main, branch)}. Give "
                "another name, or leave Branch empty: the run then creates its own branch"
            )
        return
    for publish in undoable_publishes(main):
        if publish.branch == branch:
            raise InvalidInputError(
                f"{main.name}: branch {branch!r} was published already, as snapshot {publish.snapshot.id}, and then "
                "deleted. To correct something else, start a new run with another branch name"
            )
