"""The live files of a snapshot in columns, a tenth of the entries' size, and the list of its partitions."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from airflow_paimon.core.format.manifest import FileSource
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.data_file_paths import bucket_folder
from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.core.table.live_files import SMALL_FILE_RATIO
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.table import Table
from airflow_paimon.shown.listing import AnnotatedValue, Listing, heads, utc_time
from airflow_paimon.shown.lists import STORED_ROWS

_SOURCES = {source.value: source.name for source in FileSource}


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """``files``: partition, stored (as manifests have it), bucket, level, rows, bytes, created (epoch milliseconds),
    source, schema, name, external.

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
    live = live_columns(table, snapshot)
    stored = pa.array(live.partitions, pa.binary()).dictionary_encode()
    text = StoredPartitions(table.schema()).text
    texts = pa.array(map(text, stored.dictionary.to_pylist()), pa.string())
    files = pa.table({
        "partition": texts.take(stored.indices),
        "stored": stored,
        "bucket": pa.array(live.buckets, pa.int32()),
        "level": pa.array(live.levels, pa.int32()),
        "rows": pa.array(live.row_counts, pa.int64()),
        "bytes": pa.array(live.file_sizes, pa.int64()),
        "created": pa.array(live.creation_times_ms, pa.int64()),
        "source": pa.array(live.file_sources, pa.int8()),
        "schema": pa.array(live.schema_ids, pa.int64()),
        "name": pa.array(live.file_names, pa.string()),
        "external": pa.array(live.external_paths, pa.string()),
    })  # fmt: skip
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


def small_below(options: TableOptions) -> int:
    """Return the bytes below which a file is small."""
    return max(1, int(SMALL_FILE_RATIO * options.target_file_size))


def partitions(live: pa.Table) -> Listing:
    """List partitions of ``LiveFiles``."""
    rows = [
        (one["partition"], one["rows"], one["files"], one["bytes"], one["bytes"] // max(1, one["files"]),
         utc_time(one["newest"]), one["small"])
        for one in live.to_pylist()
    ]  # fmt: skip
    names = heads(
        "partition | stored rows: number | files: number | size: size | average file: size | newest file: utc"
        " | small files: number"
    )
    help = {
        "stored rows": STORED_ROWS,
        "newest file": "When it was written",
        "small files": "Files below 0.7 of target-file-size, which compact would merge",
    }
    return Listing(title="partitions", columns=names, rows=rows, help=help)


def files(live: pa.Table, schema: TableSchema) -> Listing:
    """List files of ``LiveFiles``, with their paths in the table's folder."""
    values = StoredPartitions(schema).values
    rows = [
        (one["partition"], one["bucket"], one["level"], one["rows"], one["bytes"], one["schema"],
         _SOURCES.get(one["source"]), utc_time(one["created"]),
         AnnotatedValue(
             one["external"] or f"{bucket_folder(schema, values(one['stored']), one['bucket'])}/{one['name']}",
             short=one["name"]))
        for one in live.to_pylist()
    ]  # fmt: skip
    names = heads(
        "partition | bucket: number | level: number | stored rows: number | size: size | schema: number | source"
        " | created: utc | file"
    )
    help = {"stored rows": STORED_ROWS, "source": "What wrote it: APPEND is a writer, COMPACT a compaction"}
    return Listing(title="files", columns=names, rows=rows, help=help)
