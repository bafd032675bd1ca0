"""Changes of a table outside of commits: single files put if absent, and the actions of plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import assert_never

from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    OutcomeUnknownError,
    StorageError,
)
from airflow_paimon.core.plan import (
    Action,
    CompactPartition,
    Delete,
    DeleteFolders,
    DropPartition,
    PutNew,
    PutSnapshot,
    RebuildIndexes,
    Replace,
    ReplaceBucket,
    SetTag,
    UpdateCatalog,
)
from airflow_paimon.core.store.base import run_parallel
from airflow_paimon.core.store.threads import map_parallel
from airflow_paimon.core.table.table import Table

_DELETE_TRIES = 3
_DELETES_AT_ONCE = 16


def require_committable(table: Table) -> None:
    """Refuse a storage without an atomic put-if-absent, or a catalog's table, before anything is written."""
    refused = table.store.commits_refused
    if refused is not None:
        raise type(refused)(f"{table.label}: {refused.message}")


def put_new(table: Table, path: str, data: bytes) -> None:
    """Put one file if absent, outside a plan: schema versions, operation records."""
    require_committable(table)
    table.store.create(path, data)


def execute(table: Table, actions: Iterable[Action], on_action: Callable[[Action], None] | None = None) -> None:
    """Carry out actions in order; stop at the first failure.

    Raises:
        AlreadyExistsError: a ``PutNew`` found another file at its path. ConflictError: a ``Delete`` or ``Replace`` did.
    """
    require_committable(table)
    for action in actions:
        _perform(table, action)
        if on_action is not None:
            on_action(action)


def execute_at_once(table: Table, actions: Sequence[Action]) -> None:
    """Carry out actions of which none needs another one: side by side where each waits for a server.

    The first failure is raised when all that were begun have ended; others may have been carried out.
    """
    require_committable(table)
    run_parallel(table.store, [partial(_perform, table, action) for action in actions])


def _perform(table: Table, action: Action) -> None:
    match action:
        case (
            SetTag()
            | ReplaceBucket()
            | DropPartition()
            | RebuildIndexes()
            | CompactPartition()
            | UpdateCatalog()
            | PutSnapshot()
        ):
            raise AssertionError(f"{action.path}: a {type(action).__name__} is not a file action")
        case PutNew():
            try:
                table.store.create(action.path, action.data)
            except AlreadyExistsError:
                if not (action.same_ok and table.store.read(action.path) == action.data):
                    raise
        case Replace():
            if action.expected is None:
                table.store.replace(action.path, action.data)
            elif not table.store.replace_same(action.path, action.data, action.expected):
                raise _changed(table, action.path, "replaced")
        case Delete():
            delete_one(table, action)
        case DeleteFolders():
            table.store.delete_empty(action.path)
        case _:
            assert_never(action)


def delete_one(table: Table, action: Delete) -> bool:
    """Carry out a deletion. Return whether the file that was expected was there.

    Raises:
        ConflictError: another file is at its path, and stays.
    """
    if action.expected is None:
        table.store.delete(action.path)
        return False
    deleted = table.store.delete_same(action.path, action.expected)
    if deleted is False:
        raise _changed(table, action.path, "deleted")
    return deleted is True


def _changed(table: Table, path: str, what: str) -> ConflictError:
    return ConflictError(f"{table.name}: {path} was changed by another process meanwhile, so it was not {what}")


def delete_files(table: Table, paths: Sequence[str]) -> list[str]:
    """Delete many files that nothing refers to, several at a time; return those that could not be deleted.

    A missing file is not an error, so a deletion whose answer was lost is simply tried again.
    """

    def delete(path: str) -> str | None:
        for _ in range(_DELETE_TRIES):
            try:
                table.store.delete(path)
                return None
            except (StorageError, OutcomeUnknownError):
                continue
        return path

    return [path for path in map_parallel(delete, paths, _DELETES_AT_ONCE) if path is not None]
