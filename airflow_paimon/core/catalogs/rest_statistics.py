"""What a commit changes of each partition, as Paimon tells the server of a REST catalog."""

from __future__ import annotations

import time
from typing import Any

from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import FileKind, ManifestEntry
from airflow_paimon.core.format.manifest_io import read_manifest, read_manifest_list
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.partition_values import partition_path_texts
from airflow_paimon.core.table.paths import manifest_path


def partition_statistics(store: Store, snapshot: Snapshot, schema: TableSchema) -> list[dict[str, Any]]:
    """Sum up the delta of a snapshot by partition; deleted files count negative."""
    path = manifest_path(snapshot.delta_manifest_list)
    names = [m.file_name for m in read_manifest_list(store.read(path), name=path)]
    sums: dict[bytes, dict[str, Any]] = {}
    for name, data in zip(names, store.read_many([manifest_path(n) for n in names]), strict=True):
        for entry in read_manifest(data, name=name):
            if entry.partition not in sums:
                sums[entry.partition] = _nothing(entry, schema)
            _add(sums[entry.partition], entry)
    return list(sums.values())


def _nothing(entry: ManifestEntry, schema: TableSchema) -> dict[str, Any]:
    spec = _spec(entry.partition, schema)
    return {"spec": spec, "recordCount": 0, "fileSizeInBytes": 0, "fileCount": 0, "lastFileCreationTime": 0}


def _add(sums: dict[str, Any], entry: ManifestEntry) -> None:
    sign = -1 if entry.kind == FileKind.DELETE else 1
    sums["recordCount"] += sign * entry.file.row_count
    sums["fileSizeInBytes"] += sign * entry.file.file_size
    sums["fileCount"] += sign
    sums["lastFileCreationTime"] = max(sums["lastFileCreationTime"], _epoch_ms(entry.file.creation_time_ms))
    sums["totalBuckets"] = entry.total_buckets


def _epoch_ms(stored: int | None) -> int:
    """Stored is the local time as if it were UTC."""
    return 0 if stored is None else int(time.mktime(time.gmtime(stored // 1000))) * 1000 + stored % 1000


def _spec(partition: bytes, schema: TableSchema) -> dict[str, str]:
    values = decode_row(partition, schema.partition_types) if schema.partition_keys else ()
    return partition_path_texts(schema, values)
