"""Guards: checks by other packages before each commit, and again once it is committed.

The committer doesn't know the guards. A guard registers by its import path in ``airflow_paimon/core/__init__.py``,
which Python runs before any module of the package, and is imported with the first commit.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from airflow_paimon.core.commit.draft import Draft
    from airflow_paimon.core.errors import UnsafeOperationError
    from airflow_paimon.core.format.snapshot import Snapshot
    from airflow_paimon.core.table.table import Table

_paths: list[str] = []


class LostInputs(Protocol):
    """Partitions that a commit dropped while a concurrent commit came to need them."""

    @property
    def partitions(self) -> frozenset[tuple[Any, ...]]:
        """Their decoded values."""

    @property
    def beside_appends(self) -> bool:
        """Whether they are restored even if rows were appended to them meanwhile."""

    @property
    def guard_options(self) -> object:
        """The ``CommitOptions.guard_options`` of the commit that restores them."""

    def restored(self, snapshot_id: int | None) -> UnsafeOperationError:
        """Describe the restoration; ``snapshot_id`` restored them (None: another commit did)."""

    def not_restored(self, before: int | None, why: str) -> UnsafeOperationError:
        """Describe a failed restoration; ``before``: the snapshot that still holds them."""


class PostCommitCheck(Protocol):
    """A guard's check after the commit was committed."""

    def run(self) -> LostInputs | None:
        """Return the partitions to restore; None: none."""

    def not_made(self, why: str) -> UnsafeOperationError:
        """Describe a commit that was made although ``run`` failed: dropped partitions may be needed."""


class CommitGuard(Protocol):
    """Checks every attempt of every commit. It may write its own records, never a snapshot."""

    def check(self, table: Table, head: Snapshot | None, draft: Draft) -> PostCommitCheck | None:
        """Check a draft that is to go on top of ``head``.

        Raises:
            PaimonError: the commit is refused; nothing was published.
        """


def register_guard(path: str) -> None:
    """Register a guard for every commit: ``package.module:name`` of an object with the methods of ``CommitGuard``."""
    if path not in _paths:
        _paths.append(path)
        _loaded.cache_clear()


def check_draft(table: Table, head: Snapshot | None, draft: Draft) -> tuple[PostCommitCheck, ...]:
    """Call all guards; return the post-commit checks."""
    found = [guard.check(table, head, draft) for guard in _loaded()]
    return tuple(check for check in found if check is not None)


@cache
def _loaded() -> Sequence[CommitGuard]:
    named = [path.partition(":") for path in _paths]
    return tuple(getattr(importlib.import_module(module), name) for module, _, name in named)
