"""Tables of millions of files without the files: manifests written block by block, and a store that lists what they
name as if it were there.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.format.avro.container import read_container, write_container
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import ManifestEntry, ManifestFile
from airflow_paimon.core.format.manifest_blocks import block_index
from airflow_paimon.core.format.manifest_io import describe_manifest, write_manifest, write_manifest_list
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.format.types import DataType
from airflow_paimon.core.store.base import FileInfo, Store
from airflow_paimon.core.store.wrapper import StoreWrapper
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.table import Table
from benchmarks.metadata import BUCKETS, make_empty_table, new_file

DAYS = 1000
_A_MANIFEST = 250_000
_A_BLOCK = 300
_OLD_MS = 1_600_000_000_000
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_DAY = re.compile(r"dt=day-(\d{4})(?:/bucket-(\d+))?")
_NAME = "data-00000000-0000-0000-0000-000000000000-0.parquet"
_DIGITS = [at for at, letter in enumerate(_NAME) if letter == "0" and at < 41]
"""Where the 32 digits of the uuid stand."""


def file_names(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return the names of files, one a row: a uuid that looks as random as any."""
    high = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    low = (high ^ (high >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    raw = np.stack([high, low], axis=1).view(np.uint8)
    names = np.tile(np.frombuffer(_NAME.encode(), np.uint8), (len(numbers), 1))
    names[:, _DIGITS] = _HEX[np.stack([raw >> 4, raw & 15], axis=2).reshape(len(numbers), 32)]
    return names


def texts(names: npt.NDArray[np.uint8]) -> list[str]:
    """Return rows of letters as texts."""
    joined, size = names.tobytes().decode(), names.shape[1]
    return [joined[at : at + size] for at in range(0, len(joined), size)]


class _Place(NamedTuple):
    partition: bytes
    bucket: int
    total_buckets: int


def make_table_by_day(warehouse: Path, files: int) -> Table:
    """Make a primary-key table with that many live files; those of a day lie together, as its writers left them.

    Every entry is a copy of one that the package has encoded, with another day, bucket and name.
    """
    table = make_empty_table(warehouse)
    schema = table.schema()
    types, key = schema.partition_types, encode_row((1,), (schema.field("k").type,))
    one = new_file(0, key)._replace(file_name=_NAME)

    def entry(number: int) -> ManifestEntry:
        day = f"day-{number // (files // DAYS):04d}"
        return ManifestEntry(0, encode_row((day,), types), number % BUCKETS, BUCKETS, one)

    commit(table, lambda head: Draft(kind=CommitKind.APPEND, entries=[entry(0)], schema=schema))
    container = read_container(write_manifest([entry(0)]))
    [(_, template)] = container.blocks
    rows: list[ManifestFile] = []
    for start in range(0, files, _A_MANIFEST):
        numbers = np.arange(start, min(start + _A_MANIFEST, files))
        places = _places(numbers, files // DAYS, types)
        blocks = _blocks(template, numbers, files // DAYS)
        data = write_container(container.schema, blocks, lambda sizes, of=places: block_index(of, types, sizes))
        name = f"manifest-{uuid.uuid4()}-0"
        table.store.create(manifest_path(name), data)
        both = [entry(int(numbers[0])), entry(int(numbers[-1]))]
        described = describe_manifest(name, len(data), both, types)
        rows.append(described._replace(num_added_files=len(numbers), min_bucket=0, max_bucket=BUCKETS - 1))
    lists = {f"manifest-list-{uuid.uuid4()}-{n}": write_manifest_list(some) for n, some in enumerate((rows, []))}
    for name, data in lists.items():
        table.store.create(manifest_path(name), data)
    (base, base_data), (delta, delta_data) = lists.items()
    first = replace(
        table.snapshot(1),
        base_manifest_list=base,
        base_manifest_list_size=len(base_data),
        delta_manifest_list=delta,
        delta_manifest_list_size=len(delta_data),
        total_record_count=files * one.row_count,
        delta_record_count=files * one.row_count,
    )
    table.store.replace(table.paths.snapshot(1), first.to_bytes())
    return table


def _places(numbers: npt.NDArray[np.int64], per_day: int, types: Sequence[DataType]) -> list[_Place]:
    """Return what the index of a manifest's blocks needs of each entry."""
    days = {day: encode_row((f"day-{day:04d}",), types) for day in np.unique(numbers // per_day).tolist()}
    pairs = zip((numbers // per_day).tolist(), (numbers % BUCKETS).tolist(), strict=True)
    return [_Place(days[day], bucket, BUCKETS) for day, bucket in pairs]


def _blocks(template: bytes, numbers: npt.NDArray[np.int64], per_day: int) -> Iterator[tuple[int, bytes]]:
    day, name = template.index(b"day-0000") + 4, template.index(_NAME.encode())
    bucket = day + 4  # after the partition, as numbers of one byte: bucket, number of buckets
    assert template[bucket] == 0 and template[bucket + 1] == 2 * BUCKETS
    entries = np.tile(np.frombuffer(template, np.uint8), (len(numbers), 1))
    days = numbers // per_day
    for at in range(4):
        entries[:, day + at] = 48 + days // 10 ** (3 - at) % 10
    entries[:, bucket] = numbers % BUCKETS * 2
    entries[:, name : name + len(_NAME)] = file_names(numbers)
    for start in range(0, len(numbers), _A_BLOCK):
        some = entries[start : start + _A_BLOCK]
        yield len(some), some.tobytes()


@dataclass(eq=False)
class ListedStore(StoreWrapper):
    """The store of such a table, in whose listings its data files are. ``per_day``: how many a day has."""

    inner: Store
    per_day: int

    def child(self, path: str) -> Store:
        return self.inner.child(path)

    def names(self, path: str) -> list[str]:
        return [*self.inner.names(path), *(info.name.rpartition("/")[2] for info in self._listed(path))]

    def walk(self, path: str) -> list[str]:
        return sorted([*self.inner.walk(path), *(info.name for info in self._listed(path))])

    def files(self, path: str) -> Sequence[FileInfo]:
        return [info for part in self.files_in_parts(path) for info in part]

    def files_in_parts(self, path: str) -> Iterator[Sequence[FileInfo]]:
        yield from self.inner.files_in_parts(path)
        for day in range(DAYS) if not path else ():
            yield self._listed(f"dt=day-{day:04d}")
        if path:
            yield self._listed(path)

    def divided(self, path: str) -> tuple[Sequence[str], Sequence[FileInfo]]:
        folders, objects = self.inner.divided(path)
        days = [f"dt=day-{day:04d}" for day in range(DAYS)] if not path else []
        return [*dict.fromkeys([*folders, *days])], objects

    def _listed(self, path: str) -> list[FileInfo]:
        found = _DAY.fullmatch(path)
        if found is None:
            return []
        numbers = np.arange(int(found[1]) * self.per_day, (int(found[1]) + 1) * self.per_day)
        if found[2] is not None:
            numbers = numbers[numbers % BUCKETS == int(found[2])]
        day = path.partition("/")[0]
        places: Iterable[tuple[int, str]] = zip((numbers % BUCKETS).tolist(), texts(file_names(numbers)), strict=True)
        return [FileInfo(f"{day}/bucket-{bucket}/{name}", False, 1000, _OLD_MS) for bucket, name in places]
