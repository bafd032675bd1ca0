"""What the tasks of a compaction get and give: the same for append tables and for tables with a primary key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_paimon.core.commit.committed import later_snapshots
from airflow_paimon.core.commit.committer import Receipt
from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.commit.idempotency import Attempt
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.open_writers import OpenBucket
from airflow_paimon.core.table.properties import DETAILS_PROPERTY
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.write import TableWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutput:
    """``rows``: written; ``deleted_rows``: of those read that were dropped, ``expired_rows`` of them by their age."""

    messages: tuple[CommitMessage, ...]
    rows: int
    deleted_rows: int
    expired_rows: int = 0


class CompactionTask(Protocol):
    """What a task writes together. Picklable."""

    @property
    def files(self) -> Sequence[DataFile]:
        """The files that it reads."""

    def run(self) -> TaskOutput:
        """Write them again. After a failure the written files are deleted."""


RunTasks = Callable[[Sequence[CompactionTask]], Iterable[TaskOutput]]
"""Runs tasks, in parallel or not; returns the outputs in any order."""


class CompactionGroup(Protocol):
    """Files of one bucket that are replaced by one commit. ``bucket`` names the place; its files may be more."""

    @property
    def bucket(self) -> BucketSplit: ...

    @property
    def files(self) -> tuple[DataFile, ...]: ...

    @property
    def size(self) -> int: ...


class PlannedCompaction(Protocol):
    """A planned compaction of one head."""

    @property
    def write(self) -> TableWrite: ...

    @property
    def groups(self) -> Sequence[CompactionGroup]: ...

    @property
    def left_open(self) -> Sequence[OpenBucket]:
        """The buckets that it leaves out, as a running job may have them open."""

    def tasks(self, chunk: Sequence[CompactionGroup]) -> list[CompactionTask]:
        """Return the tasks of some groups."""

    def commit(
        self, table: Table, chunk: Sequence[CompactionGroup], messages: Sequence[CommitMessage], options: CommitOptions
    ) -> Receipt:
        """Commit what they have written; ``ConflictError``: plan again."""


def committed_earlier(view: Table, tried: Attempt) -> Iterator[tuple[Snapshot, dict[str, Any]]]:
    """Read the commits of an earlier try of an operation that there still are, with their part of its result."""
    later = sorted(later_snapshots(view, tried.head), key=lambda row: row[0]) if tried.retried else ()
    for _, found in later:
        if found is not None and found.commit_user == tried.operation_id and DETAILS_PROPERTY in found.properties:
            yield found, found.values(DETAILS_PROPERTY, dict)


def run_here(tasks: Sequence[CompactionTask]) -> Iterator[TaskOutput]:
    """Run tasks one after the other, in this process."""
    return (work.run() for work in tasks)
