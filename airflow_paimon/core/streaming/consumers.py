"""Paimon's consumer files: no engine expires a snapshot of the branch that a consumer has yet to read.

See docs/contributing/format.md, Folders: ``consumer/consumer-<id>`` of the branch holds ``{"nextSnapshot" : 5}``.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import FormatError, InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import load_json_object
from airflow_paimon.core.plan import Replace
from airflow_paimon.core.table.consumers import consumer_path, find_consumer
from airflow_paimon.core.table.table import Table

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,199}")


def check_consumer_id(name: str) -> str:
    """Refuse a name that can't be part of a file name."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"The option consumer-id is {name!r}; use letters, digits, '_', '-', '.' and '=', at most 200 characters"
        )
    return name


def claim_consumer(table: Table, name: str, snapshot_id: int, *, ignore_progress: bool) -> None:
    """Protect a new stream's start; again if its first batch is repeated.

    Raises:
        UnsafeOperationError: the consumer exists and stands elsewhere, so another job may depend on it.
    """
    found = None if ignore_progress else find_consumer(table, check_consumer_id(name))
    if found not in (None, max(snapshot_id, 1)):
        raise UnsafeOperationError(
            f"{table.label} has a consumer {name!r} already, next at snapshot {found}: sharing it could make another "
            "job miss rows. Choose another consumer-id; if no job uses it, set consumer.ignore-progress=true "
            f"(scan.snapshot-id={found} continues there)"
        )
    keep_from(table, name, snapshot_id)


def keep_from(table: Table, name: str, snapshot_id: int) -> None:
    """Keep this snapshot and all newer ones of the branch."""
    execute(table, [position_at(table, name, snapshot_id, "a stream has yet to read it")])


def position_at(table: Table, name: str, snapshot_id: int, reason: str) -> Replace:
    """Return the change by which a consumer reads this snapshot next."""
    path = consumer_path(table, check_consumer_id(name))
    fields: dict[str, Any] = {}
    with suppress(NotFoundError, FormatError):  # fields of later releases stay
        fields = load_json_object(table.store.read(path), path)
    data = json.dumps({**fields, "nextSnapshot": max(snapshot_id, 1)}, indent=2).encode()
    return Replace(path=path, data=data, reason=reason)


def refresh_consumer(table: Table, name: str) -> None:
    """Write a consumer again as it is: one that nobody writes looks unused (``consumer.expiration-time``)."""
    found = find_consumer(table, check_consumer_id(name))
    if found is not None:
        keep_from(table, name, found)
