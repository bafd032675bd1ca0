"""The guard: a check by a later package of each commit, before it, and again once it is committed.

The committer doesn't know it. ``airflow_paimon/core/__init__.py``, which Python runs before any module of the package,
registers its import path, and it is imported with the first commit.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_paimon.core.commit.draft import Draft
    from airflow_paimon.core.errors import UnsafeOperationError
    from airflow_paimon.core.format.snapshot import Snapshot
    from airflow_paimon.core.table.table import Table

PostCommitCheck = Callable[["Snapshot | None", "Snapshot"], "UnsafeOperationError | None"]
"""Called with the snapshot before and the committed one. Restores partitions that the commit dropped while another one
came to need them, and returns the error that says so, or that it could not; None: nothing was needed.
"""
CommitGuard = Callable[["Table", "Snapshot | None", "Draft", object], PostCommitCheck | None]
"""Checks every attempt of a commit: a draft that is to go on top of a head, with the caller's ``guard_options``. Raises
a ``PaimonError`` to refuse it. It may write its own records, never a snapshot.
"""


_registered: list[str] = []


def register_guard(path: str) -> None:
    """Register the guard of every commit: ``package.module:name`` of a ``CommitGuard``."""
    _registered[:] = [path]


@cache
def commit_guard() -> CommitGuard:
    """Import the guard."""
    module, _, name = _registered[0].partition(":")
    found: CommitGuard = getattr(importlib.import_module(module), name)
    return found
