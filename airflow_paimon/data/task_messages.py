"""Combines the files that several tasks wrote to the same bucket, when the rows were not distributed by bucket.

Such tasks don't know of each other, so all continue from the bucket's highest sequence number. That is harmless unless
two of them gave the same number to the same key: then it would be undefined which row wins, so the files of such tasks
are rewritten with higher numbers. A write therefore raises a bucket's highest number by at most the bucket's rows,
which limits how long a writer that stays open over it can lose newer rows to it (docs/contributing/publishing.md, A
running writer keeps winning).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.data.files.arrow_types import SEQUENCE_FIELD, SEQUENCE_NUMBER, replaced
from airflow_paimon.data.files.read import BATCH_ROWS
from airflow_paimon.data.files.write import RollingWriter, abandoned_on_failure
from airflow_paimon.data.merge.engine import MergeRules
from airflow_paimon.data.merge.runs import align_runs
from airflow_paimon.data.merge.sections import plan_sections, unmerged
from airflow_paimon.data.merge.sort_keys import Keys
from airflow_paimon.data.read import read_stored, read_versions
from airflow_paimon.data.read_splits import ReadSplit, TableRead
from airflow_paimon.data.write import TableWrite, discard_files

log = logging.getLogger(__name__)

_TASK = internal_column("task")
_FULL_RUNS, _LEAST_ROWS = 8, 4096


def merged_messages(write: TableWrite, tasks: Sequence[Sequence[CommitMessage]]) -> list[CommitMessage]:
    """Return the messages of all tasks, adjusted so that they can be committed together.

    No key of a bucket has the same number twice; of two such rows the later task's wins. To find them, keys and numbers
    are read in bounded memory, except for buckets that only one task wrote.

    Raises:
        FormatError: a file that a task has written is gone.
    """
    by_bucket: dict[BucketKey, list[CommitMessage]] = {}
    for task in tasks:
        for message in task:
            by_bucket.setdefault(message.key, []).append(message)
    out: list[CommitMessage] = []
    for messages in by_bucket.values():
        if len(messages) == 1:
            out += messages
        elif write.is_keyed:
            # each task treated its own files as the bucket's only ones; above level 0 files must not share keys
            flat = [replace(m, new_files=tuple(f._replace(level=0) for f in m.new_files)) for m in messages]
            out += _renumbered(write, flat)
        else:
            out += _stacked(write, messages)
    return out


def _stacked(write: TableWrite, messages: Sequence[CommitMessage]) -> list[CommitMessage]:
    """Without a primary key the numbers are only in the files' descriptions."""
    if write.default_buckets <= 0:
        return list(messages)
    out = []
    start = write.next_sequence.get(messages[0].key, 0)
    for message in messages:
        files = []
        for file in message.new_files:
            files.append(file._replace(min_sequence_number=start, max_sequence_number=start + file.row_count - 1))
            start += file.row_count
        out.append(replace(message, new_files=tuple(files)))
    return out


def _renumbered(write: TableWrite, messages: Sequence[CommitMessage]) -> list[CommitMessage]:
    # what a changelog tells last has to be what a read gives: the rows of the later task
    tied = set(range(1, len(messages))) if any(m.changelog for m in messages) else _tied_tasks(write, messages)
    if not tied:
        return list(messages)
    log.info(
        "%s: bucket %s: %s tasks gave their rows numbers that others have; writing their files again",
        write.label,
        messages[0].bucket,
        len(tied),
    )
    kept = [m for at, m in enumerate(messages) if at not in tied]
    start = 1 + max(f.max_sequence_number for m in kept for f in m.new_files)
    out, replaced = kept, []
    for at in sorted(tied):
        found = messages[at]
        moved = _shifted(write, found, start - min(f.min_sequence_number for f in found.new_files))
        start = 1 + max(f.max_sequence_number for f in moved.new_files)
        out.append(moved)
        replaced.append(found)
    discard_files(write, replaced)
    return out


def _tied_tasks(write: TableWrite, messages: Sequence[CommitMessage]) -> set[int]:
    """Return the positions of messages that share a key and its number with an earlier one."""
    task_of = {f.file_name: at for at, m in enumerate(messages) for f in m.new_files}
    files = [f for m in messages for f in m.new_files]
    tied: set[int] = set()
    for section in plan_sections(files, write.schema):
        if len({task_of[f.file_name] for f in section.files}) > 1:
            tied |= _ties_of(write, messages[0], section.files, task_of)
    return tied


def _ties_of(
    write: TableWrite, message: CommitMessage, files: Sequence[DataFile], task_of: Mapping[str, int]
) -> set[int]:
    rules = MergeRules(keys=write.schema.trimmed_primary_keys)
    rows = max(_LEAST_ROWS, BATCH_ROWS * _FULL_RUNS // max(len(files), _FULL_RUNS))
    runs = [_keys_and_numbers(write, message, f, task_of[f.file_name], rows) for f in files]
    tied: set[int] = set()
    for slices, keys in align_runs(runs, rules):
        if len(slices) > 1:
            numbers, tasks = (
                np.concatenate([np.asarray(s.column(name).to_numpy()) for s in slices])
                for name in (SEQUENCE_NUMBER, _TASK)
            )
            tied |= _later_twins(np.concatenate(keys), numbers, tasks)
    return tied


def _later_twins(keys: Keys, numbers: npt.NDArray[np.int64], tasks: npt.NDArray[np.int32]) -> set[int]:
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(same):
        return set()
    contested = order[np.union1d(same, same + 1)]
    group = np.unique(keys[contested], return_inverse=True)[1]
    ranked = contested[np.lexsort((tasks[contested], numbers[contested], group))]
    twin = (keys[ranked][1:] == keys[ranked][:-1]) & (numbers[ranked][1:] == numbers[ranked][:-1])
    return set(tasks[ranked[1:][twin]].tolist())


def _keys_and_numbers(
    write: TableWrite, message: CommitMessage, file: DataFile, task: int, rows: int
) -> Iterator[pa.RecordBatch]:
    schema = write.schema
    fields = (*(schema.field(n) for n in schema.trimmed_primary_keys), SEQUENCE_FIELD)
    for batch in read_stored(_read(write, rows), _split(write, message, [file]), fields):
        yield batch.append_column(_TASK, pa.array(np.full(batch.num_rows, task, np.int32)))


def _shifted(write: TableWrite, message: CommitMessage, by: int) -> CommitMessage:
    """Rewrite a message's files with sequence numbers increased by ``by``."""
    return replace(
        message,
        new_files=_shifted_files(write, message, message.new_files, by),
        changelog=message.changelog and _shifted_files(write, message, message.changelog, by, is_changelog=True),
    )


def _shifted_files(
    write: TableWrite, message: CommitMessage, shifted: Sequence[DataFile], by: int, *, is_changelog: bool = False
) -> tuple[DataFile, ...]:
    split = _split(write, message, shifted)
    target = write.target(split.bucket, is_changelog=is_changelog)
    files: list[DataFile] = []
    for part in split.divided():  # a task may have written several runs with common keys
        writer = RollingWriter(target)
        with abandoned_on_failure([writer]):
            for batch in read_versions(_read(write, BATCH_ROWS), part):
                writer.write(replaced(batch, SEQUENCE_NUMBER, batch.column(SEQUENCE_NUMBER).to_numpy() + by))
            files += writer.finish()
    return tuple(files)


def _read(write: TableWrite, batch_rows: int) -> TableRead:
    schema = write.schema
    return TableRead(
        store=write.store,
        label=write.label,
        schema=schema,
        schemas={schema.id: schema},
        columns=schema.field_names,
        batch_rows=batch_rows,
    )


def _split(write: TableWrite, message: CommitMessage, files: Sequence[DataFile]) -> ReadSplit:
    """Return a split for each of these files, unmerged."""
    values = StoredPartitions(write.schema).values(message.partition)
    bucket = BucketSplit(message.partition, values, message.bucket, message.total_buckets, tuple(files))
    return ReadSplit(bucket=bucket, sections=tuple(unmerged(files)))
