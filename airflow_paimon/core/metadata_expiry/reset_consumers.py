"""reset_consumer and clear_consumers: positions of streaming readers, as people set and delete them.

A consumer keeps every snapshot from the one that it reads next. Who moves it on, or deletes it, lets an expiry take
what it has not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.plan import Action, Delete, Plan
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import ClearConsumers, ResetConsumer
from airflow_paimon.core.store.base import read_if_exists
from airflow_paimon.core.streaming.consumers import check_consumer_id, position_at
from airflow_paimon.core.table.consumers import Consumer, consumer_path, find_consumer, read_consumers
from airflow_paimon.core.table.options import requested_duration
from airflow_paimon.core.table.table import Table


def reset_consumer(context: Context, request: ResetConsumer) -> OperationResult:
    """Set what a consumer reads next, or delete the consumer. One that isn't there yet is made.

    Raises:
        InvalidInputError: the snapshot is not there, so its reader would fail. NotFoundError: no consumer to delete.
    """
    view, name = context.table.branch(request.branch).require(), check_consumer_id(request.consumer)
    stood = find_consumer(view, name)
    details = {"consumer": name, "next_snapshot": request.next_snapshot, "previous_snapshot": stood}
    if request.next_snapshot is None:
        if stood is None and request.if_missing == "skip":
            return context.result(None, branch=request.branch, changed=False, details=details)
        if stood is None:
            known = ", ".join(sorted(c.name for c in read_consumers(view))[:10]) or "none"
            raise NotFoundError(f"{view.label} has no consumer {name!r} (its consumers: {known})")
        path = consumer_path(view, name)
        action: Action = Delete(path=path, expected=read_if_exists(view.store, path), reason="asked for")
    else:
        _check_position(view, request.next_snapshot)
        action = position_at(view, name, request.next_snapshot, "asked for")
    plan = Plan(operation=request.operation, table=view.name, actions=(action,), summary=details)
    changed = stood != request.next_snapshot
    if not request.dry_run and changed:
        execute(view, plan.actions)
    return context.result(plan, branch=request.branch, changed=changed, details=details)


def _check_position(view: Table, wanted: int) -> None:
    ids = view.snapshot_ids()
    first, following = (ids[0], ids[-1] + 1) if ids else (1, 1)
    if not first <= wanted <= following:
        raise InvalidInputError(
            f"{view.label}: next_snapshot must be from {first} to {following} (the next commit); snapshot {wanted} "
            "does not exist"
        )


def clear_consumers(context: Context, request: ClearConsumers) -> OperationResult:
    """Delete consumers of a branch: all, or those that fit. ``details.deleted`` has each with where it stood.

    Raises:
        InvalidInputError: an expression is none, or ``idle_for`` is no duration.
    """
    view = context.table.branch(request.branch).require()
    is_meant = _chooser(request, context.now_ms)
    found = [c for c in read_consumers(view) if is_meant(c)]
    found.sort(key=lambda c: c.name)
    actions = [
        Delete(path=consumer_path(view, c.name), expected=c.data, reason=f"stood at {c.next_snapshot}") for c in found
    ]
    listed = [{"consumer": c.name, "next_snapshot": c.next_snapshot} for c in found]
    plan = Plan(operation=request.operation, table=view.name, actions=tuple(actions), summary={"consumers": len(found)})
    if not request.dry_run:
        execute(view, actions)
    return context.result(plan, branch=request.branch, changed=bool(found), details={"deleted": listed})


def _chooser(request: ClearConsumers, now_ms: int) -> Callable[[Consumer], bool]:
    """Read what was asked for once, so that it is checked whether or not there is a consumer."""
    including, excluding = _expression("including", request.including), _expression("excluding", request.excluding)
    idle = None if request.idle_for is None else requested_duration(request.idle_for, "idle_for")

    def is_meant(consumer: Consumer) -> bool:
        if including is not None and not including.fullmatch(consumer.name):
            return False
        if excluding is not None and excluding.fullmatch(consumer.name):
            return False
        if idle is None:
            return True
        return consumer.modified_ms is not None and consumer.modified_ms < now_ms - idle.total_seconds() * 1000

    return is_meant


def _expression(option: str, text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise InvalidInputError(f"clear_consumers: {option} {text!r} is not a regular expression: {error}") from None
