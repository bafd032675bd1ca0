"""From a trigger form to a table: parameters as they are, misspelled ones refused."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_paimon.core.errors import InvalidInputError, did_you_mean
from airflow_paimon.core.table.paths import MAIN, Identifier, parse_identifier
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.notify import (
    asks_four_eyes,
    choose_approvers,
    choose_notifiers,
    four_eyes_note,
    reminder_lead,
)
from airflow_paimon.runbooks.run_date import with_run_date
from airflow_paimon.task_run import ERROR_KEY
from airflow_paimon.task_run import in_airflows_terms as in_airflows_terms

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.core.requests.requests import Request
    from airflow_paimon.core.table.table import Table

STOPPED = "tables_without_writers"
"""Added to a form: its tables of which the run stops all Flink jobs."""
_LOG = logging.getLogger("airflow.task")
_WIDTH = 118
_WHOLE = ("python ", "{", "|", " ")

_FIELDS = {
    "--sql": "SQL",
    "--function": "Function",
    "--view": "Additional input tables",
    "--all-rows": "Allow full-table change",
    "--mode": "Mode",
    "--partitions": "Partitions",
    "--revert-compaction": "Revert conflicting compaction",
    "--writers-stopped": "Writers are stopped",
    "--keep-appended": "Keep appended rows",
    "--on-overlap": "Keys changed on both sides",
    "--keep-later": "Preserve later changes",
    "--skip-checks": "Skip checks",
    "--expiration-time": "Expire after",
}
_FLAG = re.compile(rf"\w+ \(({'|'.join(_FIELDS)})\)|({'|'.join(_FIELDS)})(?![\w-])")


def report_lines(*lines: str, level: int = logging.INFO) -> None:
    """Write lines to the task's log, each as a record of its own; the first one is the summary and has the level.

    The UI doesn't wrap: long prose is broken, commands, JSON and table rows are left whole, to be copied.
    What a task prints instead reaches Airflow by another pipe than its log records: the UI shows it after the marker
    ``Post Execute``, in a group that is folded.
    """
    for number, part in enumerate(part for line in lines for part in _broken(line)):
        _LOG.log(level if number == 0 else logging.INFO, "%s", part)


def _broken(line: str) -> list[str]:
    if len(line) <= _WIDTH or line.startswith(_WHOLE):
        return [line]
    return wrap(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def end_as_failed(summary: str, *lines: str, level: int = logging.ERROR) -> NoReturn:
    """Report lines, and end the task as failed without a traceback under them. The task must have ``retries=0``.

    Airflow logs every exception with its traceback, except the one by which a program ends.
    """
    report_lines(summary, *lines, level=level)
    raise SystemExit(summary)


def form_of(context: Context) -> dict[str, Any]:
    """Return the form's fields as this run means them: with its date, where a field names it by ``{ds}``.

    Raises:
        InvalidInputError: one does, and the run has no logical date.
    """
    return with_run_date(context["params"], context.get("logical_date"))


def form_value(name: str) -> Callable[..., Any]:
    """Return a field of the form, for a templated field: a template could only give text. What is empty is None."""

    def render(context: Context, jinja_env: Any) -> Any:
        return form_of(context)[name] or None

    render.field = name  # type: ignore[attr-defined]
    return render


def xcom_value(task_id: str, key: str | None = None) -> Callable[..., Any]:
    """Return what a task returned, or one item of it, as it is, for a templated field."""

    def render(context: Context, jinja_env: Any) -> Any:
        found = context["ti"].xcom_pull(task_ids=task_id)
        return found if key is None or found is None else found[key]

    return render


def refuse_unknown(conf: Mapping[str, Any] | None, params: Iterable[str]) -> None:
    """Airflow takes the default for a parameter whose name is misspelled; here that is an error.

    ``params`` are those of the DAG: the ones in a task's context hold the unknown keys as well.
    """
    names = list(params)
    unknown = sorted(set(conf or {}) - set(names))
    if not unknown:
        return
    hints = [name + did_you_mean(name, names) for name in unknown]
    raise InvalidInputError(f"There is no parameter {', '.join(hints)}. The parameters are: {', '.join(names)}")


def check_policy(params: Mapping[str, Any], locked: Collection[str] = ()) -> None:
    """Check the form against what its Paimon connection allows; operators check what they get of it once more.

    ``locked``: fields whose values are the DAG's own code.

    Raises:
        UnsafeOperationError: a field says more than a form may.
    """
    values = {name: value for name, value in params.items() if name not in locked}
    PaimonHook(params["paimon_conn_id"]).form_policy.check(values)


def table_of(params: Mapping[str, Any]) -> Identifier:
    """Return the form's table, with the branch of a chain table that it names.

    Raises:
        InvalidInputError: no name of a table, or two branches.
    """
    found, branch = parse_identifier(params["table"]), str(params.get("chain_branch") or "").strip()
    if branch and found.branch not in (MAIN, branch):
        raise InvalidInputError(
            f"Table names branch {found.branch!r}, and Branch of a chain table {branch!r}: give it once"
        )
    return replace(found, branch=branch or found.branch)


def table_names(params: Mapping[str, Any]) -> list[str]:
    """Return the names of all tables that a form is about, as it has them in ``table`` or ``tables``."""
    listed = params.get("tables") or [str(table_of(params))]
    return [str(one["table"] if isinstance(one, Mapping) else one).strip() for one in listed]


def corrected_table(planned: Mapping[str, Any]) -> str:
    """Name what a run corrects: the table, or the branch of a chain table. ``planned``: from ``plan_branch``."""
    table, branch = planned["table"], planned.get("from_branch", MAIN)
    return table if branch == MAIN else f"{table}$branch_{branch}"


def form_of_table(params: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form as it is about one of the tables that a run corrects or undoes."""
    table = corrected_table(planned)
    stopped = bool(params.get("writers_stopped")) or table in params.get(STOPPED, ())
    return {"publish": "merge", **params, "table": table, "writers_stopped": stopped}


def open_main(params: Mapping[str, Any]) -> Table:
    """Open what the form is about: the table on main, or the branch of a chain table. It reads nothing yet."""
    return PaimonHook(params["paimon_conn_id"]).get_table(str(table_of(params)))


def request_for(params: Mapping[str, Any], operation: str, **values: Any) -> Request:
    """Build a request about the form's table, on the branch that ``values`` name, or the form."""
    from airflow_paimon.core.requests.arguments import build_request

    hook, found = PaimonHook(params["paimon_conn_id"]), table_of(params)
    table = str(replace(found, branch=MAIN) if "branch" in values else found)
    reach = {"warehouse": hook.warehouse, "storage_options": hook.storage_options, "table": table}
    return build_request(operation, {**reach, **values})


def failed_instances(context: Context) -> list[tuple[str, int]]:
    """Name the tasks of this run that failed, in the DAG's order, each with its map index; -1 for one without."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
    found = []
    for name in context["dag"].task_ids:
        mapped = (
            re.fullmatch(rf"{re.escape(name)}(?:_(\d+))?", key) for key, state in states.items() if state == "failed"
        )
        found += [(name, int(match[1] or -1)) for match in mapped if match]
    return found


def failed_errors(context: Context) -> dict[str, dict[str, Any] | None]:
    """Return the error objects of the tasks that failed (``kind``, ``message`` ...); mapped ones as ``diff[0]``.

    None where only the task's log says why. Without the task ``rejected``, which says itself what follows.
    """
    found = {}
    for name, index in failed_instances(context):
        if name == "rejected":
            continue
        error = context["ti"].xcom_pull(task_ids=name, key=ERROR_KEY, map_indexes=index)
        found[name if index < 0 else f"{name}[{index}]"] = error
    return found


def error_lines(errors: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Say what failed tasks reported, one after the other; a job's flags by the names of the form's fields."""
    lines = []
    for name, error in errors.items():
        text = f"{error['kind']}: {error['message']}" if error else "see its log"
        lines += f"{name}: {in_form_words(text)}".splitlines()
    return lines


def in_form_words(text: str) -> str:
    """Name the form's fields instead of arguments and flags."""
    return _FLAG.sub(lambda flag: _FIELDS[flag[1] or flag[2]], text)


def has_active_runs(context: Context, dag_id: str, run_id: str | None = None) -> bool:
    """Say whether a run of a DAG, or this one, is queued or running."""
    runs = None if run_id is None else [run_id]
    return bool(context["ti"].get_dr_count(dag_id=dag_id, run_ids=runs, states=["queued", "running"]))


def check_approval(params: Mapping[str, Any], timeout: timedelta, asked_by: str | None = None) -> None:
    """Refuse a form whose ``notify``, ``approvers``, ``remind_before`` or ``four_eyes`` the approval would refuse,
    hours later. ``asked_by``: who triggered the run.
    """
    hook = PaimonHook(params["paimon_conn_id"])
    check_form_four_eyes(params, [params["table"]] if params.get("table") else [], asked_by)
    choose_notifiers(hook.notify, params["notify"] or None, hook.paimon_conn_id)
    choose_approvers(hook.approvers, params["approvers"], hook.paimon_conn_id)
    reminder_lead(hook.remind_before, params["remind_before"], timeout)


def check_form_four_eyes(params: Mapping[str, Any], tables: Sequence[str], asked_by: str | None) -> bool:
    """Whether the form, its connection or one of the tables asks for four eyes; refuses a form that can't have them.

    Raises:
        InvalidInputError, UnsafeOperationError: as ``four_eyes_note`` does.
    """
    if not (params.get("four_eyes") or asks_four_eyes(PaimonHook(params["paimon_conn_id"]), tables)):
        return False
    # A form without the field, as an undo's, is approved where the connection or the table asks for it.
    four_eyes_note(params["approval"] or "four_eyes" not in params, asked_by)
    return True
