"""What to do after a run of ``data_correction`` failed or was rejected: by task and by kind of error."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.table.table import Table
from airflow_paimon.runbooks.form import request_for
from airflow_paimon.runbooks.pages import page_address

_PUBLISHING = ("merge", "fast_forward")
_AGAIN = "trigger this DAG again"


def next_steps(
    params: Mapping[str, Any], main: Table, planned: Mapping[str, Any], failed: str, error: Mapping[str, Any] | None
) -> list[str]:
    """Say what helps against the failure of this task, then how to remove what still stands of the run.

    :param error: the error object that the task left, None when it left none
    """
    stands = main.branch(planned["branch"]).exists()
    return [f"What helps: {_advice(params, failed, error, stands)}", *how_to_remove(params, main, planned)]


def for_the_form(error: Mapping[str, Any] | None) -> list[str]:
    """Say what helps when the check of the form failed, before anything was made."""
    if error and error["kind"] in ("invalid-input", "not-found", "already-exists", "unsupported"):
        return [f"What helps: correct what the message names, and {_AGAIN}"]
    return [f"What helps: {_passing('check_params', False)}"]


def _advice(params: Mapping[str, Any], failed: str, error: Mapping[str, Any] | None, stands: bool) -> str:
    kind = error["kind"] if error else "error"
    match kind:
        case "invalid-input" | "not-found" | "already-exists":
            return f"correct what the message names, and {_AGAIN}. The same form fails the same way"
        case "unsupported":
            return _unsupported(params, error or {})
        case "conflict":
            return f"{_AGAIN}: main changed in the same partitions, and a new run starts from main as it is now"
        case "unsafe":
            return _unsafe(params, failed, error or {}, stands)
        case "outcome-unknown":
            return (
                "see above whether main holds the correction. If it is untouched, clear "
                f"task {failed} with its downstream: a correction that did land is found, and not published twice"
            )
        case "corrupt":
            command = "python -m airflow_paimon job check_table"
            return f"the table's files contradict themselves, and no retry helps. Before anything else: {command}"
        case _:
            return _passing(failed, stands)


def _unsupported(params: Mapping[str, Any], error: Mapping[str, Any]) -> str:
    if error.get("class") == "UnsupportedFeatureError" and params["engine"] == "embedded":
        jar = f"Paimon's jar in the Spark options of its connection: {page_address('engines')}"
        return f"{_AGAIN} with Engine: connector, and {jar}"
    return f"nothing in this form: the message says what is not supported. Limits: {page_address('limits')}"


def _unsafe(params: Mapping[str, Any], failed: str, error: Mapping[str, Any], stands: bool) -> str:
    if error.get("missing_checks"):
        return f"{_clear('check', stands)}, so that the checks that the table requires by now are done"
    if failed == "check":
        return f"{_AGAIN} with SQL that corrects the rows that the message names as well, or with other Checks"
    if failed not in ("report", *_PUBLISHING):
        return f"{_AGAIN}, and leave Branch empty: the run then makes a branch of its own"
    if params["publish"] == "fast_forward":
        return f"{_AGAIN} with Publish by: merge, which takes over only what the branch changed"
    return f"{_AGAIN} with Writers are stopped, when no writer of main stays open over the publish"


def _passing(failed: str, stands: bool) -> str:
    """Advice for failures of Spark, the storage or a worker, which may not happen again in a retry."""
    if failed == "wait":
        return f"find out why the job that fills the branch is late, then {_clear(failed, stands)}"
    return (
        f"read the log of task {failed}. When its cause is over (storage, Spark, a lost worker): "
        f"{_clear(failed, stands)}. For more memory {_AGAIN}, with Spark options such as {{"
        f'"driver_memory": "4g"}}'
    )


def _clear(failed: str, stands: bool) -> str:
    if failed == "check_params" or stands:
        return f"clear task {failed} with its downstream"
    return "clear task check_params with its downstream; the run then starts over, with a new branch"


def how_to_remove(params: Mapping[str, Any], main: Table, planned: Mapping[str, Any]) -> list[str]:
    """Say how to remove what still stands of a run: by a DAG, and by commands that run on any machine."""
    branch, tag = main.branch(planned["branch"]).exists(), main.find_tag(planned["tag"]) is not None
    if not branch and not tag:
        return []
    reach, note = _reach(params, planned)
    job = "python -m airflow_paimon job"
    commands = [f"{job} delete_branch {reach} --branch {planned['branch']} --if-missing skip"] if branch else []
    commands += [f"{job} delete_tag {reach} --tag {planned['tag']} --if-missing skip"] if tag else []
    return [
        "To remove what this run made: trigger data_correction_cleanup for this table, or in a shell:",
        *commands,
        *note,
    ]


def _reach(params: Mapping[str, Any], planned: Mapping[str, Any]) -> tuple[str, list[str]]:
    request = request_for(params, "delete_branch", branch=planned["branch"])
    reach = f"--warehouse {shlex.quote(request.warehouse)} --table {planned['table']}"
    if not request.storage_options:
        return reach, []
    return f"{reach} --storage-options FILE", [
        f"FILE is a JSON file that only you can read, with the options by which connection {params['paimon_conn_id']} "
        f"reaches the storage: {', '.join(sorted(request.storage_options))}. Somebody who may see connections gets "
        f"their values from: airflow connections get {params['paimon_conn_id']} -o json"
    ]
