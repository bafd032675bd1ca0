"""What Paimon checks of tables with row ids, or an order of their files, each time it opens one (pure).

See ``opening_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import TableOptions

_VECTORS = "deletion-vectors.enabled"
_CLUSTERED, _ORDERING = "pk-clustering-override", "sequence.snapshot-ordering"


def row_tracking(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if options.row_tracking and schema.primary_keys:
        yield "row-tracking.enabled=true doesn't go with a primary key: only append tables have row ids"
    if options.row_tracking and options.bucket != -1:
        yield f"row-tracking.enabled=true needs bucket=-1, not {options.bucket}"
    if options.data_evolution and not options.row_tracking:
        yield "data-evolution.enabled=true needs row-tracking.enabled=true as well"
    if options.data_evolution and options.flag("clustering.incremental"):
        yield "data-evolution.enabled=true doesn't go with clustering.incremental=true"


def order_of_files(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    """``clustering.incremental``, ``pk-clustering-override`` and ``manifest-sort``."""
    if options.flag("clustering.incremental"):
        if schema.primary_keys:
            yield "clustering.incremental=true is for tables without a primary key"
        if options.bucket != -1 and options.flag("bucket-append-ordered", True):
            yield "clustering.incremental=true needs bucket-append-ordered=false with a number of buckets"
        if options.bucket != -1 and options.deletion_vectors:
            yield f"clustering.incremental=true doesn't go with {_VECTORS}=true and a number of buckets"
    if options.flag(_CLUSTERED):
        yield from _clustered(options)
    if options.flag("manifest-sort.enabled"):
        if not schema.partition_keys and not options.data_evolution:
            yield "manifest-sort.enabled=true is for tables with partitions"
        field = options.given("manifest-sort.partition-field")
        if field and field not in schema.partition_keys:
            yield f"manifest-sort.partition-field={field!r} is not a partition column"


def _clustered(options: TableOptions) -> Iterator[str]:
    engine, producer = options.merge_engine, options.text("changelog-producer", "none").lower()
    if not options.names("clustering.columns"):
        yield f"{_CLUSTERED}=true needs clustering.columns"
    if engine not in ("deduplicate", "first-row"):
        yield f"{_CLUSTERED}=true doesn't go with merge-engine={engine}"
    elif engine != "first-row" and not options.deletion_vectors:
        yield f"{_CLUSTERED}=true needs {_VECTORS}=true"
    if producer not in ("none", "input"):
        yield f"{_CLUSTERED}=true doesn't go with changelog-producer={producer}"
    for key in ("record-level.expire-time", "sequence.field"):
        if options.given(key) is not None:
            yield f"{_CLUSTERED}=true doesn't go with {key}"


def sequence_numbers(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    """Options about the numbers of rows of tables with a primary key."""
    for key in (_ORDERING, "table-read.sequence-number.enabled"):
        if options.flag(key) and not schema.primary_keys:
            yield f"{key}=true needs a primary key"
    if options.flag(_ORDERING) and options.given("sequence.field") is not None:
        yield f"{_ORDERING}=true doesn't go with sequence.field"
    if options.flag(_ORDERING) and not options.write_only:
        yield f"{_ORDERING}=true needs write-only=true"
