"""Which files of its target a statement looks at: those of the partitions that its condition, or its source, names.

A predicate holds for every row that can change, so a partition that it excludes has none; what other writers commit to
such a partition changes nothing of the statement's result. Where the statement reads its table elsewhere too, as in a
subquery, all of it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.manifest_lists import count_live_files
from airflow_paimon.core.table.partition_values import shown_partition
from airflow_paimon.core.table.partitions import Selection, StoredPartitions, partitions_where
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.scan import ScanPlan, plan_snapshot, with_schemas
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.fallback_branches import other_branch
from airflow_paimon.data.write import partitions_of_rows
from airflow_paimon.spark.jobs.small_input import FEW_FILES, is_small_view
from airflow_paimon.spark.rows_in import from_shipped

Limits = Callable[[Selection | None], Mapping[BucketKey, int]]
"""Returns the highest sequence number that each bucket of some partitions (None: all) may hold."""

_NAMED_FILES = 20_000
"""Of so many files the partitions are looked up for a note, which takes about a quarter of a second."""


class TargetFiles:
    """The files of the head, read once, and no more of them than is asked for. ``whole_read``: all, if they were."""

    def __init__(self, table: Table) -> None:
        self.table, self.schema, self.head = table, table.schema(), table.latest_snapshot()
        self.whole_read: ScanPlan | None = None
        # where a row's key may live in any partition, or rows of another branch may be seen, all have to be known
        self._must_be_whole = (
            not self.schema.partition_keys
            or self.schema.crosses_partitions
            or other_branch(ScanPlan(table, None, self.schema)) is not None
        )

    def whole(self) -> ScanPlan:
        """Return all files."""
        if self.whole_read is None:
            self.whole_read = with_schemas(plan_snapshot(self.table, self.head, self.schema))
        return self.whole_read

    def is_small(self, predicate: Predicate | None) -> bool:
        """Whether the files that can hold rows of a predicate are read in this process."""
        if self.has_many():
            return False
        self.whole()  # of which the files are then chosen
        return is_small_view(f for s in self.of(self.selection(predicate)).splits for f in s.files)

    def selection(self, predicate: Predicate | None) -> Selection | None:
        """Return the partitions that can hold rows of a predicate; None: all have to be known."""
        return None if self._must_be_whole else partitions_where(predicate, self.schema)

    def those(self, partitions: frozenset[bytes] | None) -> Selection | None:
        """Return these partitions; None: all have to be known."""
        return None if self._must_be_whole or partitions is None else StoredPartitions(self.schema).those(partitions)

    def of(self, selection: Selection | None) -> ScanPlan:
        """Return the files of some partitions; None: all."""
        if selection is None or self._must_be_whole:
            return self.whole()
        if self.whole_read is None:
            return with_schemas(plan_snapshot(self.table, self.head, self.schema, selection))
        return replace(self.whole_read, splits=tuple(s for s in self.whole_read.splits if selection(s.partition)))

    def has_many(self) -> bool:
        """Whether there are partitions to leave out, and so many files that it pays to know which before they are read:
        more than are read in this process.
        """
        return (
            not self._must_be_whole and self.whole_read is None and count_live_files(self.table, self.head) > FEW_FILES
        )


def known_partitions(plan: ScanPlan) -> tuple[str, ...]:
    """Return the names of all partitions of a table of which a part was planned; none where there are many files."""
    if not plan.schema.partition_keys or count_live_files(plan.table, plan.snapshot) > _NAMED_FILES:
        return ()
    found = set(live_columns(plan.table, plan.snapshot).partitions)
    return tuple(sorted(shown_partition(plan.schema, v) for v in map(StoredPartitions(plan.schema).values, found)))


def partitions_of(rows: pa.Table, table: Table, schema: TableSchema) -> frozenset[bytes] | None:
    """Return the partitions of rows that Spark gave, in canonical form; None where a look at all files costs less.

    Raises:
        InvalidInputError: values that no partition can have.
    """
    return partitions_of_rows(from_shipped(rows, schema), table.store, table.label)(schema)
