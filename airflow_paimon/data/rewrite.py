"""Copy-on-write of whole buckets, for ``correct_branch`` and the fold before a publish.

Without ``sequence.field`` internal sequence numbers decide between versions of a key. A writer that stays open over a
publish continues from the numbers that *main* had at the branch point; files with higher numbers would make its newer
rows lose. So a rewritten bucket holds each key once, as one sorted run of the highest level, with no number above the
bucket's highest at the branch point. A bucket that did not exist there gets -1: Paimon's writers start at 0.

See docs/contributing/publishing.md, A running writer keeps winning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from airflow_paimon.core.chain.guard import chain_part
from airflow_paimon.core.chain.layout import ChainBranch
from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import FormatError, naming_table
from airflow_paimon.core.publish.fold import FOLD
from airflow_paimon.core.table.history import publish_target
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.scan import ScanPlan, plan_scan, with_schemas
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.copy_on_write import replacing_message
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND, replaced
from airflow_paimon.data.files.write import RollingWriter, abandoned_on_failure
from airflow_paimon.data.merge.rules import merge_rules, replacing_rules
from airflow_paimon.data.merge.runs import merge_runs
from airflow_paimon.data.merge.sorted_runs import check_kinds
from airflow_paimon.data.merge.versions import drop_retracts
from airflow_paimon.data.read import read_versions
from airflow_paimon.data.read_splits import ReadSplit, TableRead, plan_read
from airflow_paimon.data.write import TableWrite, commit_or_discard, discard_files, plan_write

log = logging.getLogger(__name__)

NEW_BUCKET = -1
"""``max_sequence`` of a bucket that had no file at the branch point."""

NEW_DELTA_BUCKET = 0
"""The same in a chain table's delta branch: above the -1 of full partitions that compaction builds, as Paimon's readers
let the higher number win where ``sequence.field`` is equal."""

_ABOVE_ALL = 2**62
"""Sequence number of changed rows during the merge, above all stored ones; not the number that is written."""


def new_bucket_number(table: Table) -> int:
    """Return the ``max_sequence`` of buckets without files in this branch."""
    target = publish_target(table.branch(MAIN), table) if chain_part(table) is None else table
    return NEW_DELTA_BUCKET if chain_part(target) == ChainBranch.DELTA else NEW_BUCKET


def rewrite_bucket(
    write: TableWrite,
    bucket: BucketSplit,
    live: tuple[TableRead, ReadSplit] | None,
    changes: Iterable[pa.RecordBatch],
    max_sequence: int = NEW_BUCKET,
    *,
    merges: bool = False,
) -> CommitMessage:
    """Write the new content of a bucket: its live rows, if ``live`` is given, with the changes merged in.

    Both are streamed. The changes are rows as ``conform_rows`` returns them; for a primary-key table sorted by
    key, each key once (``RowSorter``). ``bucket.files``: the files that the commit replaces; without ``live`` the
    changes alone are the bucket's rows. Deleted keys are removed; in a chain table they stay as deletes, which hide
    rows of earlier partitions. On a table with ``sequence.field`` an older change loses, as in any Paimon write; with
    equal fields the change wins. Rows that stay keep their sequence numbers as far as those are not above
    ``max_sequence``.

    A change replaces the row of its key; with ``merges`` the table's merge engine makes one row of both, as it does
    of appended rows after a compaction.

    Raises:
        InvalidInputError: deletes, to which the merge engine gives no meaning.
        FormatError: a live file is missing or corrupt. The written files are deleted.
    """
    target = write.target(
        bucket,
        level=TableOptions(write.schema.options).num_levels - 1 if write.is_keyed else 0,
        max_sequence=max_sequence if write.is_keyed else None,
    )
    writer = RollingWriter(target)
    with abandoned_on_failure([writer]):
        for batch in _rows(write, live, changes, max_sequence, merges):
            writer.write(batch)
        files = writer.finish()
    return replacing_message(bucket, *bucket.files, by=files)


def _rows(
    write: TableWrite,
    live: tuple[TableRead, ReadSplit] | None,
    changes: Iterable[pa.RecordBatch],
    max_sequence: int,
    merges: bool,
) -> Iterator[pa.RecordBatch]:
    if not write.is_keyed:
        names = list(write.schema.field_names)
        if live is not None:
            yield from _ordered(read_versions(*live), names)
        yield from _ordered(iter(changes), names)
        return
    rules = replace(replacing_rules(write.schema), keep_deletes=TableOptions(write.schema.options).chain_table)
    stored = [] if live is None else [read_versions(*live)]
    if merges and TableOptions(write.schema.options).merge_engine != "deduplicate":
        rules = merge_rules(write.schema)
        stored = [map(drop_retracts, run) for run in stored]
        changes = _with_meaning(write, changes)
    names = [*write.schema.field_names, VALUE_KIND, SEQUENCE_NUMBER]
    changed = (b.append_column(SEQUENCE_NUMBER, pa.repeat(_ABOVE_ALL, b.num_rows)) for b in changes)
    for batch in merge_runs([_ordered(run, names) for run in (*stored, changed)], rules):
        numbers = batch.column(SEQUENCE_NUMBER).to_numpy()
        yield replaced(batch, SEQUENCE_NUMBER, np.minimum(numbers, max_sequence))


def _ordered(run: Iterator[pa.RecordBatch], names: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in run:
        yield batch.select(names)


def _with_meaning(write: TableWrite, changes: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in changes:
        with naming_table(write.label):
            check_kinds(batch.column(VALUE_KIND).to_numpy(), write.schema)
        yield batch


def live_bucket(plan: ScanPlan, bucket: BucketSplit, *, chained: bool = False) -> tuple[TableRead, ReadSplit]:
    """Return the argument ``live`` of ``rewrite_bucket`` for a bucket. ``chained``: see ``check_readable``."""
    read, splits = plan_read(
        replace(plan, splits=(bucket,)),
        layered=True,
        chained=chained,
        whole_buckets=True,
    )
    if len(splits) != 1:
        raise FormatError(f"{plan.table.label}: bucket {bucket.bucket} has no file that a read would see")
    return read, splits[0]


def folded(write: TableWrite, plan: ScanPlan, highest: Mapping[BucketKey, int]) -> list[CommitMessage]:
    """Rewrite buckets, their rows unchanged, so that no sequence number is above the given one."""
    plan, bucket_of = with_schemas(plan), StoredPartitions(plan.schema).bucket
    found = {bucket_of(s): s for s in plan.splits}
    messages: list[CommitMessage] = []
    try:
        for key, limit in sorted(highest.items()):
            if key in found:
                messages.append(rewrite_bucket(write, found[key], live_bucket(plan, found[key]), (), limit))
    except BaseException:
        discard_files(write, messages)
        raise
    return messages


def fold_buckets(branch: Table, limits: Mapping[BucketKey, int]) -> None:
    """Rewrite buckets of a branch, their rows unchanged, so that no sequence number is above the given one: one commit.

    In this process, one bucket after the other. Every publish calls it first where it is needed.

    Raises:
        ConflictError: a bucket changed meanwhile; nothing was published.
    """
    if not limits:
        return
    schema = branch.schema()
    plan = plan_scan(branch, selection=StoredPartitions(schema).those(key.partition for key in limits))
    write = plan_write(branch, by_buckets=True)
    log.info("%s: folding %d buckets", branch.label, len(limits))
    messages = folded(write, plan, limits)
    properties = {OPERATION_PROPERTY: FOLD}
    options = CommitOptions(properties=properties, written_with=write.schema)
    commit_or_discard(write, messages, lambda: commit_buckets(branch, messages, options, vectors=plan.index_entries))
