"""The values that manifests and manifest lists hold. ``manifest_io`` encodes and decodes them.

Named tuples, not dataclasses: a table has 100,000 of them and a named tuple is built several times faster.

``unknown`` of each are the fields that a later release has added. Manifests and their lists keep them when they are
written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from airflow_paimon.core.format.avro.types import Unknown
from airflow_paimon.core.format.binary_row import EMPTY_ROW_BYTES


class FileKind(IntEnum):
    """``_KIND`` of a manifest entry."""

    ADD = 0
    DELETE = 1


class FileSource(IntEnum):
    """``_FILE_SOURCE`` of a data file."""

    APPEND = 0
    COMPACT = 1


class Stats(NamedTuple):
    """Statistics of some columns. ``min_values``/``max_values`` are BinaryRows (with arity prefix)."""

    min_values: bytes
    max_values: bytes
    null_counts: tuple[int | None, ...] | None
    unknown: Unknown = ()


EMPTY_STATS = Stats(EMPTY_ROW_BYTES, EMPTY_ROW_BYTES, ())


class DataFile(NamedTuple):
    """``_FILE`` of a manifest entry, in the order of the Avro record. Times are epoch milliseconds as stored."""

    file_name: str
    file_size: int
    row_count: int
    min_key: bytes
    max_key: bytes
    key_stats: Stats
    value_stats: Stats
    min_sequence_number: int
    max_sequence_number: int
    schema_id: int
    level: int
    extra_files: tuple[str, ...] = ()
    creation_time_ms: int | None = None
    delete_row_count: int | None = None
    embedded_file_index: bytes | None = None
    file_source: int | None = None
    value_stats_cols: tuple[str, ...] | None = None
    external_path: str | None = None
    first_row_id: int | None = None
    write_cols: tuple[str, ...] | None = None
    write_cols_sequences: tuple[int, ...] | None = None
    unknown: Unknown = ()


class FileId(NamedTuple):
    """The identity of a manifest entry (docs/contributing/format.md, Manifests)."""

    partition: bytes
    bucket: int
    level: int
    file_name: str
    extra_files: tuple[str, ...]
    embedded_file_index: bytes | None
    external_path: str | None


class ManifestEntry(NamedTuple):
    """One data file added to or deleted from a (partition, bucket). ``partition`` is the stored BinaryRow, verbatim."""

    kind: int
    partition: bytes
    bucket: int
    total_buckets: int
    file: DataFile
    unknown: Unknown = ()

    @property
    def identifier(self) -> FileId:
        f = self.file
        return FileId(
            self.partition, self.bucket, f.level, f.file_name, f.extra_files, f.embedded_file_index, f.external_path
        )

    def deleted(self) -> ManifestEntry:
        """Return the DELETE of this ADD: only ``_KIND`` differs, or Paimon would not match them."""
        return self._replace(kind=FileKind.DELETE.value)

    def added(self) -> ManifestEntry:
        """Return the ADD of this entry."""
        return self._replace(kind=FileKind.ADD.value)


class EntryColumns(NamedTuple):
    """The fields of many manifest entries as columns: those that identify files, and those that an overview shows.
    ``first_row_ids``: None of a file without.

    A table with 100,000 files needs no object for each of them, and no statistics, to be listed.
    """

    kinds: list[int]
    partitions: list[bytes]
    buckets: list[int]
    total_buckets: list[int]
    file_names: list[str]
    file_sizes: list[int]
    row_counts: list[int]
    max_sequence_numbers: list[int]
    schema_ids: list[int]
    levels: list[int]
    extra_files: list[tuple[str, ...]]
    creation_times_ms: list[int | None]
    embedded_file_indexes: list[bytes | None]
    file_sources: list[int | None]
    external_paths: list[str | None]
    first_row_ids: list[int | None]

    def identifiers(self) -> Iterator[FileId]:
        """Return what ``ManifestEntry.identifier`` is of each entry, in order."""
        parts = (self.partitions, self.buckets, self.levels, self.file_names, self.extra_files,
                 self.embedded_file_indexes, self.external_paths)  # fmt: skip
        return map(FileId._make, zip(*parts, strict=True))


class ManifestFile(NamedTuple):
    """A row of a manifest list: one manifest and its statistics. None = unknown."""

    file_name: str
    file_size: int
    num_added_files: int
    num_deleted_files: int
    partition_stats: Stats
    schema_id: int
    min_bucket: int | None = None
    max_bucket: int | None = None
    min_level: int | None = None
    max_level: int | None = None
    min_row_id: int | None = None
    max_row_id: int | None = None
    unknown: Unknown = ()


class DeletionVectorRange(NamedTuple):
    """Where an index file holds the deletion vector of a data file. ``length`` as stored: see ``deletion_vectors``."""

    data_file: str
    offset: int
    length: int
    cardinality: int | None = None
    unknown: Unknown = ()


class GlobalIndex(NamedTuple):
    """What a global index file covers. It is only preserved."""

    row_range_start: int
    row_range_end: int
    index_field_id: int
    extra_field_ids: tuple[int, ...] | None = None
    index_meta: bytes | None = None
    source_meta: bytes | None = None
    unknown: Unknown = ()


class IndexEntry(NamedTuple):
    """A row of an index manifest (always ADD: the file is a full list), in the order of the Avro record.

    Reading ignores ``unknown``, also that of the parts; rewriting refuses it, as it may tell which rows are there.
    """

    kind: int
    partition: bytes
    bucket: int
    index_type: str
    file_name: str
    file_size: int
    row_count: int
    deletion_vector_ranges: tuple[DeletionVectorRange | None, ...] | None = None
    external_path: str | None = None
    global_index: GlobalIndex | None = None
    unknown: Unknown = ()

    def unknown_names(self) -> list[str]:
        """Return the names of all fields that a later release has added, those of the parts too."""
        parts = [self, self.global_index, *(self.deletion_vector_ranges or ())]
        return [str(json.loads(text)["name"]) for part in parts if part is not None for text, _ in part.unknown]
