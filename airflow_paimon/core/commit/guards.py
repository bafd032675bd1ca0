"""Guards of commits: what other rooms want to check before each commit, and again after it has landed.

The committer knows none of them. A guard registers under its import path in ``airflow_paimon/core/__init__.py``, which
Python runs before any module of the package: no import can be forgotten. It is imported when the first commit is made.
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
    """Partitions that a commit dropped although another commit, at the same moment, made them needed."""

    @property
    def partitions(self) -> frozenset[tuple[Any, ...]]:
        """Their decoded values."""

    @property
    def beside_appends(self) -> bool:
        """Whether they are restored although rows were appended to them meanwhile."""

    @property
    def guard_options(self) -> object:
        """The ``Draft.guard_options`` of the commit that restores them."""

    def restored(self, snapshot_id: int | None) -> UnsafeOperationError:
        """Describe what happened; ``snapshot_id`` restored them (None: somebody else did)."""

    def not_restored(self, before: int | None, why: str) -> UnsafeOperationError:
        """Describe what happened when restoring failed; ``before``: the snapshot that still holds them."""


class PostCommitCheck(Protocol):
    """What a guard wants to look at once more when the commit has landed."""

    def run(self) -> LostInputs | None:
        """Return what has to be restored; None: nothing."""

    def not_made(self, why: str) -> UnsafeOperationError:
        """Describe a commit that stands although ``run`` failed: nobody knows whether what it dropped is needed."""


class CommitGuard(Protocol):
    """Checks every attempt of every commit. It may write records of its own room, never a snapshot."""

    def check(self, table: Table, head: Snapshot | None, draft: Draft) -> PostCommitCheck | None:
        """Check a draft that is to go on top of ``head``.

        Raises:
            PaimonError: the commit is refused; nothing was published.
        """


def register_guard(path: str) -> None:
    """Let every commit pass this guard: ``package.module:name`` of an object with the methods of ``CommitGuard``."""
    if path not in _paths:
        _paths.append(path)
        _loaded.cache_clear()


def check_draft(table: Table, head: Snapshot | None, draft: Draft) -> tuple[PostCommitCheck, ...]:
    """Ask all guards; returns the checks to run after the commit."""
    found = [guard.check(table, head, draft) for guard in _loaded()]
    return tuple(check for check in found if check is not None)


@cache
def _loaded() -> Sequence[CommitGuard]:
    named = [path.partition(":") for path in _paths]
    return tuple(getattr(importlib.import_module(module), name) for module, _, name in named)
