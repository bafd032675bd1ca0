"""What a task's run is called in the table's metadata, who triggered it, and its errors in Airflow's terms."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import get_current_context

from airflow_paimon._compat import AirflowException, AirflowFailException
from airflow_paimon.core.errors import PaimonError, error_to_json

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon._compat import BaseOperator

ERROR_KEY = "paimon_error"
"""XCom key of a failed try's error object: ``kind``, ``code``, ``message`` and what else it has."""
PROGRESS_KEY = "paimon_progress"
"""The XCom with what a task's Spark job said last of how far it is."""
RAN_ON_KEY = "paimon_ran_on"
"""The XCom with where an operator's task has run: ``ran_on`` of its result."""
REFUSALS = ("invalid-input", "not-found", "already-exists", "unsupported", "conflict", "unsafe")
"""Kinds of errors after which nothing has been changed."""

_LONGEST_MESSAGE = 4000
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def triggering_user(context: Context) -> str | None:
    """Name who triggered the run; None for a run that no user triggered, and before Airflow knew."""
    return getattr(context["dag_run"], "triggering_user_name", None)


def deadline_of(operator: BaseOperator, context: Context) -> float | None:
    """Return when the ``execution_timeout`` of a task has passed, in epoch seconds; None without one."""
    limit, started = operator.execution_timeout, context["ti"].start_date
    return None if limit is None or started is None else (started + limit).timestamp()


def operation_id(context: Context, max_tries: int | None = None) -> str:
    """
    Name this operation: the same for all tries of a task instance, another one after Clear.

    Airflow raises ``max_tries`` on Clear and leaves it alone on a retry. With a lower one this names the operation that
    the task instance was then.
    """
    ti = context["ti"]
    tries = ti.max_tries if max_tries is None else max_tries
    parts = [ti.dag_id, ti.run_id, ti.task_id, ti.map_index, tries]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return f"{commit_user_prefix(ti.dag_id, ti.task_id)}{digest}"


def keys_of_earlier_tries(ti: Any) -> list[str]:
    """Return the keys of the XComs that the last try of a task has left, and that Airflow has deleted at this start.

    Airflow's public API doesn't say them; empty where this version has no such list.
    """
    return list(getattr(getattr(ti, "_ti_context_from_server", None), "xcom_keys_to_clear", None) or ())


def commit_user_prefix(dag_id: str, task_id: str) -> str:
    """Return what the operation ids, and so the commit users, of a task's runs start with."""
    return f"airflow-{_UNSAFE.sub('-', f'{dag_id}-{task_id}')[:80]}-"


def result_name(context: Context) -> str:
    """Name the result file of this try."""
    ti = context["ti"]
    digest = hashlib.sha256(json.dumps([ti.dag_id, ti.run_id, ti.task_id]).encode()).hexdigest()[:8]
    parts = [_UNSAFE.sub("-", str(part))[:80] for part in (ti.dag_id, ti.run_id, ti.task_id)]
    return "/".join([*parts, f"{digest}-map{ti.map_index}-max{ti.max_tries}-try{ti.try_number}.json"])


def airflow_error(error: PaimonError) -> AirflowException:
    """Turn an error into Airflow's: one that a retry can't help against fails the task at once."""
    text = error.message if len(error.message) <= _LONGEST_MESSAGE else error.message[:_LONGEST_MESSAGE] + " ..."
    message = f"{error.kind}: {text}" if error.code is None else f"{error.kind} ({error.code}): {text}"
    if error.details:
        message += f" | {json.dumps(error.details)[:_LONGEST_MESSAGE]}"
    return AirflowException(message) if error.retryable else AirflowFailException(message)


def answer_of(event: dict[str, Any]) -> Any:
    """Return what a trigger has found, or raise its error."""
    if "error" in event:
        text = f"{event['error']['kind']}: {event['error']['message']}"
        raise AirflowException(text) if event["retryable"] else AirflowFailException(text)
    return event["found"]


@contextmanager
def in_airflows_terms(context: Context | None = None) -> Iterator[None]:
    """Turn errors of the core into Airflow's, and leave the error object in XCom; ``context``: the task's, or the
    current one.
    """
    try:
        yield
    except PaimonError as error:
        (context or get_current_context())["ti"].xcom_push(key=ERROR_KEY, value=error_to_json(error))
        # What the message says by itself needs no traceback.
        raise airflow_error(error) from (error if error.retryable else None)
