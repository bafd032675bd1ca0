"""What the tasks of a compaction get and give: the same for append tables and for tables with a primary key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from airflow_paimon.core.commit.committed import later_snapshots
from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions, Receipt
from airflow_paimon.core.commit.idempotency import REFUSALS, Attempt
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.open_writers import OpenBucket
from airflow_paimon.core.table.properties import DETAILS_PROPERTY
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.compaction_plan import FileGroup
from airflow_paimon.data.write import TableWrite, commit_or_discard, discard_files

log = logging.getLogger(__name__)

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCompaction:
    """A planned compaction of one head. ``left_open``: the buckets that it leaves out, as a running job may have them
    open. ``tasks``: returns the tasks of some groups. ``commit``: commits what they have written; ``ConflictError``:
    plan again.
    """

    write: TableWrite
    groups: Sequence[FileGroup]
    left_open: Sequence[OpenBucket] = ()
    tasks: Callable[[Sequence[FileGroup]], list[CompactionTask]]
    commit: Callable[[Table, Sequence[FileGroup], Sequence[CommitMessage], CommitOptions], Receipt]

    def commit_or_discard(
        self, table: Table, groups: Sequence[FileGroup], messages: Sequence[CommitMessage], options: CommitOptions
    ) -> Receipt | None:
        """Commit what the tasks of some groups have written. None: another commit has changed a bucket, or a job may
        have it open: plan again.
        """
        try:
            return commit_or_discard(self.write, messages, lambda: self.commit(table, groups, messages, options))
        except REFUSALS as error:
            if not isinstance(error, ConflictError) and "open_buckets" not in error.details:
                raise
            log.warning("%s; these files are planned again", error.message)
            return None

    def run(self, run: RunTasks, groups: Sequence[FileGroup]) -> list[TaskOutput]:
        """Run the tasks of some groups; see ``outputs_of``."""
        return outputs_of(self.write, run(self.tasks(groups)))


def outputs_of(write: TableWrite, outputs: Iterable[TaskOutput]) -> list[TaskOutput]:
    """Wait for what tasks return. After a failure of one, the files of the others are deleted."""
    done: list[TaskOutput] = []
    try:
        for output in outputs:
            done.append(output)
    except BaseException:
        discard_files(write, [m for o in done for m in o.messages])
        raise
    return done


def run_here(tasks: Sequence[CompactionTask]) -> Iterator[TaskOutput]:
    """Run tasks one after the other, in this process."""
    return (work.run() for work in tasks)


@dataclass(frozen=True, slots=True)
class Workers:
    """What runs tasks: about ``tasks_at_once`` per call, or more that have ``bytes_at_once`` together. What a call has
    written is committed before the next one.
    """

    run: RunTasks = run_here
    tasks_at_once: int = 1
    bytes_at_once: int = 0


HERE = Workers()


def in_chunks(work: Iterable[T], cost: Callable[[T], tuple[int, int]], workers: Workers) -> Iterator[list[T]]:
    """Divide work into what is run by one call: much that is small, or little that is large. ``cost``: tasks and bytes
    of one; a chunk can be larger by one.
    """
    chunk: list[T] = []
    tasks = size = 0
    for one in work:
        own, more = cost(one)
        if chunk and tasks + own > workers.tasks_at_once and size >= workers.bytes_at_once:
            yield chunk
            chunk, tasks, size = [], 0, 0
        chunk.append(one)
        tasks, size = tasks + own, size + more
    if chunk:
        yield chunk


def committed_earlier(view: Table, tried: Attempt) -> Iterator[tuple[Snapshot, dict[str, Any]]]:
    """Read the commits of an earlier try of an operation that there still are, with their part of its result."""
    later = sorted(later_snapshots(view, tried.head), key=lambda row: row[0]) if tried.retried else ()
    for _, found in later:
        if found is not None and found.commit_user == tried.operation_id and DETAILS_PROPERTY in found.properties:
            yield found, found.values(DETAILS_PROPERTY, dict)
