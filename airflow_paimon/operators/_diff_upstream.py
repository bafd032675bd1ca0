"""Finds the diff that was looked at before a publish, among the tasks upstream, so that no DAG has to hand it on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_paimon.arguments import literal
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.requests import DiffBranches

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

_DIFF = DiffBranches.operation


def diff_text(value: Any) -> str | None:
    """Return a result of ``diff_branches`` as JSON; of a text, it is that already.

    Raises:
        InvalidInputError: it is neither.
    """
    if value is None or (isinstance(value, str) and value.strip() in ("", "None")):
        return None
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    if isinstance(value, str):
        return json.dumps(literal("diff", value))
    raise InvalidInputError(f"diff must be the result of a DiffBranchesOperator, or its JSON, got {value!r}")


def diff_upstream(task: BaseOperator, context: Context, table: str, branch: str, snapshot: int | None) -> str | None:
    """Return the result of the task upstream that compared this branch, as JSON; None: there is none.

    Of several the one that compared ``snapshot`` of the branch, or else the newest one.
    """
    found = [one for task_id in _tasks_with_diffs(task) for one in _results(context, task_id)]
    fitting = [one for one in found if one["table"] == table and one["details"].get("branch") == branch]
    seen = [(one["details"].get("branch_snapshot") or 0, one) for one in fitting]
    exact = [one for at, one in seen if at == snapshot]
    chosen = exact[-1] if exact else max(seen, key=lambda s: s[0])[1] if seen else None
    return None if chosen is None else json.dumps(chosen)


def _tasks_with_diffs(task: BaseOperator) -> list[str]:
    """Return the tasks upstream that compare, mapped ones too, and those whose diff somebody there was shown."""
    upstream: list[Any] = list(task.get_flat_relatives(upstream=True)) if task.get_dag() is not None else []
    own = [one.task_id for one in upstream if getattr(getattr(one, "operator_class", one), "operation", None) == _DIFF]
    shown = [one.diff_task_id for one in upstream if getattr(one, "diff_task_id", None)]
    return list(dict.fromkeys([*own, *shown]))


def _results(context: Context, task_id: str) -> Iterator[dict[str, Any]]:
    """Give the results of a task, of each of its mapped instances."""
    pulled = context["ti"].xcom_pull(task_ids=task_id)
    for one in pulled if isinstance(pulled, list) else [pulled]:
        if isinstance(one, Mapping) and one.get("operation") == _DIFF and isinstance(one.get("details"), Mapping):
            yield dict(one)
