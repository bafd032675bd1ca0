"""Guards: checks by other packages before each commit, and again once it is committed.

The committer doesn't know the guards. A guard registers by its import path in ``airflow_paimon/core/__init__.py``,
which Python runs before any module of the package, and is imported with the first commit.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_paimon.core.commit.draft import Draft
    from airflow_paimon.core.errors import UnsafeOperationError
    from airflow_paimon.core.format.snapshot import Snapshot
    from airflow_paimon.core.table.table import Table

_paths: list[str] = []


PostCommitCheck = Callable[["Snapshot | None", "Snapshot"], "UnsafeOperationError | None"]
"""Called with the snapshot before and the committed one. Restores partitions that the commit dropped while another one
came to need them, and returns the error that says so, or that it could not; None: nothing was needed.
"""
CommitGuard = Callable[["Table", "Snapshot | None", "Draft"], PostCommitCheck | None]
"""Checks every attempt of a commit: a draft that is to go on top of a head. Raises a ``PaimonError`` to refuse it.
It may write its own records, never a snapshot.
"""


def register_guard(path: str) -> None:
    """Register a guard for every commit: ``package.module:name`` of a ``CommitGuard``."""
    if path not in _paths:
        _paths.append(path)
        _loaded.cache_clear()


def check_draft(table: Table, head: Snapshot | None, draft: Draft) -> tuple[PostCommitCheck, ...]:
    """Call all guards; return the post-commit checks."""
    found = [guard(table, head, draft) for guard in _loaded()]
    return tuple(check for check in found if check is not None)


@cache
def _loaded() -> Sequence[CommitGuard]:
    named = [path.partition(":") for path in _paths]
    return tuple(getattr(importlib.import_module(module), name) for module, _, name in named)
