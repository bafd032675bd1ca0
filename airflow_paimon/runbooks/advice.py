"""What to do after a run that corrects or undoes failed or was rejected: by task and by kind of error.

Advice is given only where it helps; where an error's own message says all, there is none. What is named to be deleted
is what the run itself has made.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.core.format.snapshot import SnapshotRef
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.runbooks.form import form_of_table, in_form_words, open_main, table_names
from airflow_paimon.runbooks.kinds import Kind, dag_for
from airflow_paimon.runbooks.leftovers import find_leftovers, own_branch_record, reason_to_keep, stands
from airflow_paimon.runbooks.pages import page_address
from airflow_paimon.task_run import REFUSALS

PUBLISHING = ("report", "merge", "fast_forward", "publish")
"""Tasks that plan a publish, or do it."""
AGAIN = "trigger this DAG again"
WITHOUT_WRITERS = (
    f"stop the Flink job with a savepoint and {AGAIN} with Writers are stopped, or let it run without rows of these "
    f"buckets"
)
_SWITCHES = ("Writers are stopped", "Keep appended rows", "Revert conflicting compaction")


def next_steps(
    params: Mapping[str, Any], planned: Sequence[Mapping[str, Any]], failed: str, error: Mapping[str, Any] | None
) -> list[str]:
    """Say what helps against the failure of this task, then how to remove what still stands of the run.

    :param planned: what ``plan_branch`` has returned of each table
    :param error: the error object that the task left, None when it left none
    """
    forms = [form_of_table(params, one) for one in planned]
    mains = [open_main(form) for form in forms]
    exist = all(_branch_stands(main, one) for main, one in zip(mains, planned, strict=True))
    helps = _advice(params, failed, error, exist)
    published = [stands(main, one) for main, one in zip(mains, planned, strict=True)]
    # A Clear after other failures publishes the rest, or takes back what stands.
    if error and error["kind"] in (*REFUSALS, "corrupt") and any(published) and not all(published):
        first = (
            f"first undo what is published, by {dag_for(Kind.PIPELINE_UNDO, planned[0]['owner'])} and the form above "
            f"(if that is refused, its message names another way)"
        )
        helps = f"{first}. Then {helps}" if helps else first
    lines = advice_for(helps)
    for form, one in () if is_late_failure(failed, error) else zip(forms, planned, strict=True):
        lines += removal_advice(form, one)
    return lines


def _branch_stands(main: Table, planned: Mapping[str, Any]) -> bool:
    return own_branch_record(main, planned) is not None and main.branch(planned["branch"]).exists()


def is_late_failure(failed: str, error: Mapping[str, Any] | None) -> bool:
    """Whether a branch stays because somebody has written it after its publish: nobody else has these rows."""
    return failed == "delete_branch" and error is not None and error["kind"] == "conflict"


def advice_for(advice: str | None) -> list[str]:
    """Return advice as a line of the log; none where there is none."""
    return [f"What helps: {advice}"] if advice else []


def form_advice(error: Mapping[str, Any] | None) -> list[str]:
    """Say what helps when the check of the form failed, before anything was made."""
    kind = error["kind"] if error else "error"
    if kind in (*REFUSALS, "corrupt"):
        return advice_for(against(error))
    return advice_for(_passing("check_params", False))


def against(error: Mapping[str, Any] | None, failed: str = "") -> str | None:
    """Say what helps against a refusal or damage, as far as that is the same for all of these DAGs.

    None: nothing that the error's message doesn't say by itself, above all for a refusal for safety.
    """
    kind, said = error["kind"] if error else "error", in_form_words(str((error or {}).get("message", "")))
    switches = " or ".join(name for name in _SWITCHES if name in said)
    match kind:
        case "invalid-input" | "not-found" | "already-exists" | "unsupported":
            return f"correct what the message names, and {AGAIN}. The same form fails the same way"
        case "conflict" if is_late_failure(failed, error):
            return (
                "main has the correction. The branch was written after its publish: compare it with main "
                "(diff_branches), then publish what was added (merge_branch) or delete the branch (delete_branch)"
            )
        case "conflict" if failed in PUBLISHING:
            again = f"{AGAIN}: main changed in the same partitions, and a new run starts from main as it is now"
            return f"{again}; or with {switches}, where the message names it" if switches else again
        case "conflict":
            return f"{AGAIN}: another job was faster"
        case "unsafe" if switches:
            return f"{AGAIN} with {switches}, when no writer of main stays open meanwhile"
        case "corrupt":
            return "the table's files contradict themselves, and no retry helps. Before anything else run check_table"
        case _:
            return None


def _advice(params: Mapping[str, Any], failed: str, error: Mapping[str, Any] | None, stands: bool) -> str | None:
    kind = error["kind"] if error else "error"
    match kind:
        case "unsupported":
            return _unsupported(params, error or {})
        case "unsafe":
            return _unsafe(params, error or {}, stands)
        case "outcome-unknown":
            return (
                f"see above whether main has the correction. If it does not, clear task {failed} with its downstream: "
                f"a publish that succeeded is found, and not done twice"
            )
        case "invalid-input" | "not-found" | "already-exists" | "conflict" | "corrupt":
            return against(error, failed)
        case _:
            return _passing(failed, stands)


def _unsupported(params: Mapping[str, Any], error: Mapping[str, Any]) -> str | None:
    if error.get("class") == "UnsupportedFeatureError" and params.get("engine") == "embedded":
        jar = f"Paimon's jar in the Spark options of its connection: {page_address('engines')}"
        return f"{AGAIN} with Engine: connector, and {jar}"
    if "engine" not in params:
        return against(error)
    return f"nothing in this form: the message names what is not supported. Limits: {page_address('limits')}"


def _unsafe(params: Mapping[str, Any], error: Mapping[str, Any], stands: bool) -> str | None:
    if error.get("missing_checks"):
        return f"{_clear('check', stands)}, so that the checks that the table requires by now are done"
    if error.get("rules"):
        return f"{AGAIN} with SQL that corrects the rows that the message names as well, or with other Checks"
    if error.get("would_discard") and params.get("publish") == "fast_forward":
        return f"{AGAIN} with Publish by: merge, which publishes only what the branch changed"
    return against(error)


def _passing(failed: str, stands: bool) -> str:
    """Advice for failures of Spark, the storage or a worker, which may not happen again in a retry."""
    if failed == "wait_for_quiet":
        return f"{WITHOUT_WRITERS}; then {_clear(failed, stands)}"
    if failed == "wait":
        return f"find out why the job that fills the branch is late, then {_clear(failed, stands)}"
    return (
        f"read the log of task {failed}. When its cause is over (storage, Spark, a lost worker): "
        f"{_clear(failed, stands)}. For more memory {AGAIN}, with the sizes of killed Spark jobs in the runbook"
    )


def _clear(failed: str, stands: bool) -> str:
    if failed == "check_params" or stands:
        return f"clear task {failed} with its downstream"
    return "clear task check_params with its downstream; the run then starts over, with a new branch"


def removal_advice(params: Mapping[str, Any], planned: Mapping[str, Any]) -> list[str]:
    """Say how to remove what a run has made of a table and what still exists: by the form of a DAG, and by commands for
    any machine.
    """
    main = open_main(params)
    branch, tag = _branch_stands(main, planned), main.find_tag(planned["tag"]) is not None
    if not branch and not tag:
        return []
    commands, note = [], _about_options(params)
    if branch:
        seen = SnapshotRef.of(main.branch(planned["branch"]).latest_snapshot()).text
        by_name = f"--branch {planned['branch']} --expected-branch-snapshot {seen}"
        commands.append(f"{_job(params, 'delete_branch', planned['table'])} {by_name} --if-missing skip")
    if tag:
        on = "" if main.branch_name == MAIN else f" --branch {main.branch_name}"
        job = _job(params, "delete_tag", planned["table"])
        commands.append(f"{job}{on} --tag {planned['tag']} --if-missing skip")
    left = next((one for one in find_leftovers(main) if one.owner == planned["owner"]), None)
    if left is None:  # without a branch the DAG would remove what other runs left as well
        return ["To remove what this run made, in a shell:", *commands, *note]
    if left.protected:
        return [f"{left.label[:1].upper()}{left.label[1:]}: stays, as it is {left.protected}"]
    why = reason_to_keep(left, in_use=False, drop_unpublished=False)
    form = {"table": planned["table"], "branches": [left.branch], "drop_unpublished": left.unpublished > 0}
    return [
        f"To remove what this run made{f', although {why}' if why else ''}: trigger "
        f"{dag_for(Kind.CLEANUP, planned['owner'])} with",
        json.dumps(form),
        "or in a shell:",
        *commands,
        *note,
    ]


def check_advice(params: Mapping[str, Any], errors: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Return the commands that check the form's tables; none unless an error says that one's files are damaged."""
    if not any(error and error["kind"] == "corrupt" for error in errors.values()):
        return []
    names = dict.fromkeys(name.partition("$")[0] for name in table_names(params))
    return [*(_job(params, "check_table", name) for name in names), *_about_options(params)]


def _job(params: Mapping[str, Any], operation: str, table: str) -> str:
    hook = PaimonHook(params["paimon_conn_id"])
    options = " --storage-options FILE" if hook.storage_options else ""
    reach = f"--warehouse {shlex.quote(hook.warehouse)} --table {shlex.quote(table)}"
    return f"python -m airflow_paimon job {operation} {reach}{options}"


def _about_options(params: Mapping[str, Any]) -> list[str]:
    conn_id, options = params["paimon_conn_id"], PaimonHook(params["paimon_conn_id"]).storage_options
    if not options:
        return []
    return [
        f"FILE is a JSON file that only you can read, with the options by which connection {conn_id} reaches the "
        f"storage: {', '.join(sorted(options))}. A user who may see connections gets their values from: airflow "
        f"connections get {conn_id} -o json"
    ]
