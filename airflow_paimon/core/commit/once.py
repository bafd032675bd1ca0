"""Retries of operations that commit no snapshot: the ledger says whether this operation id was tried before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_paimon.core.commit.ledger import forget, open_ledger, request_hash
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsafeOperationError,
)
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.table.paths import MAIN

_REFUSALS = (AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError, UnsafeOperationError)


@dataclass(frozen=True, slots=True)
class Attempt:
    """``retried``: the id was tried before and not refused. ``head``: the branch's newest snapshot id back then."""

    retried: bool = False
    head: int = 0


@contextmanager
def attempt(context: Context, branch: str = MAIN) -> Iterator[Attempt]:
    """Enter the operation in the ledger; a first try that is refused leaves no entry, nor does a dry run.

    Raises:
        InvalidInputError: the operation id was used for another request.
    """
    request = context.request
    if not request.operation_id or request.dry_run:
        yield Attempt()
        return
    entry = open_ledger(context.table, request.operation_id, request_hash(request), branch)
    try:
        yield Attempt(retried=not entry.first_try, head=entry.head)
    except _REFUSALS:
        if entry.first_try:
            forget(context.table, request.operation_id)
        raise
