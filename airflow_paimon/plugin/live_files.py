"""The live files of a snapshot in columns: what the tabs Partitions and Files show, a tenth of the entries' size."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.scan import live_entries
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table

_SOURCES = ("append", "compaction")


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """``files``: partition, bucket, level, rows, bytes, created (epoch milliseconds), source, schema, name, external.

    ``partitions``: partition, files, rows, bytes, buckets, newest, small.
    """

    files: pa.Table
    partitions: pa.Table

    @property
    def weight(self) -> int:
        """Bytes in memory."""
        return int(self.files.nbytes + self.partitions.nbytes)


def read_live_files(table: Table, snapshot: Snapshot | None, small_below: int) -> LiveFiles:
    """Read what is live in a snapshot. ``small_below``: bytes under which a file counts as small."""
    entries = live_entries(table, snapshot).values()
    stored = StoredPartitions(table.schema())
    numbers: dict[bytes, int] = {}
    texts: list[str] = []
    at = []
    for entry in entries:
        found = numbers.get(entry.partition)
        if found is None:
            text = stored.text(entry.partition)
            found = numbers[entry.partition] = len(texts)
            texts.append(text)
        at.append(found)
    fields = [(e.bucket, f.level, f.row_count, f.file_size, f.creation_time_ms, f.file_source, f.schema_id,
               f.file_name, f.external_path) for e in entries for f in (e.file,)]  # fmt: skip
    columns = list(zip(*fields, strict=True)) if fields else [()] * 9
    kinds = (pa.int32(), pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.int8(), pa.int64(), pa.string(),
             pa.string())  # fmt: skip
    names = ("bucket", "level", "rows", "bytes", "created", "source", "schema", "name", "external")
    arrays = {n: pa.array(c, k) for n, c, k in zip(names, columns, kinds, strict=True)}
    partition = pa.DictionaryArray.from_arrays(pa.array(at, pa.int32()), pa.array(texts, pa.string()))
    files = pa.table({"partition": partition.cast(pa.string()) if texts else pa.array([], pa.string()), **arrays})
    return LiveFiles(files, _by_partition(files, small_below))


def _by_partition(files: pa.Table, small_below: int) -> pa.Table:
    import pyarrow.compute as pc

    small = pc.cast(pc.less(files["bytes"], small_below), pa.int64())
    grouped = (
        files.append_column("small", small)
        .group_by("partition")
        .aggregate(
            [("name", "count"), ("rows", "sum"), ("bytes", "sum"), ("bucket", "count_distinct"), ("created", "max"),
             ("small", "sum")]
        )
    )  # fmt: skip
    return grouped.select(
        ["partition", "name_count", "rows_sum", "bytes_sum", "bucket_count_distinct", "created_max", "small_sum"]
    ).rename_columns(["partition", "files", "rows", "bytes", "buckets", "newest", "small"])


def source_name(source: int | None) -> str:
    """Say who wrote a file."""
    return "-" if source is None or source >= len(_SOURCES) else _SOURCES[source]
