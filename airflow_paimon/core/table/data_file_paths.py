"""Where data files lie, relative to the table root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_values import partition_path
from airflow_paimon.core.table.paths import bucket_dir, checked_name


def bucket_folder(schema: TableSchema, values: Sequence[Any], bucket: int) -> str:
    """Folder of a bucket's files, relative to the table root."""
    options = TableOptions(schema.options)
    parts = [options.data_path_directory] if options.data_path_directory else []
    if schema.partition_keys:
        parts.append(partition_path(schema, values))
    return "/".join([*parts, bucket_dir(bucket)])


def legacy_schema(schema: TableSchema) -> TableSchema | None:
    """Return the schema as seen by an engine without ``partition.legacy-name`` (0.9), which names folders differently.

    None where that makes no difference, or where such a folder name is unpredictable (BINARY).
    """
    binary = any(t.root in ("BINARY", "VARBINARY", "BYTES") for t in schema.partition_types)
    if TableOptions(schema.options).legacy_partition_name or not schema.partition_keys or binary:
        return None
    return replace(schema, options={**schema.options, "partition.legacy-name": "true"})


def data_file_path(schema: TableSchema, values: Sequence[Any], bucket: int, file: DataFile) -> str:
    """Path of a data file, relative to the table root; an absolute URI for an external file."""
    return file.external_path or f"{bucket_folder(schema, values, bucket)}/{checked_name(file.file_name)}"
