"""Fields of manifests taken by an expression are those that the decoder reads, also of damaged blocks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.avro import raw_columns
from airflow_paimon.core.format.avro.container import read_container, write_container
from airflow_paimon.core.format.avro.raw_columns import RawColumns
from airflow_paimon.core.format.manifest import DataFile, EntryColumns, EntryNames, EntryRowIds, ManifestEntry, Stats
from airflow_paimon.core.format.manifest_io import (
    read_manifest,
    read_manifest_columns,
    read_manifest_names,
    read_manifest_row_ids,
    write_manifest,
)

NEVER = 1 << 30


def entry(chance: random.Random, at: int, sizes: int) -> ManifestEntry:
    def some_bytes() -> bytes:
        return chance.randbytes(chance.randint(0, sizes))

    stats = Stats(some_bytes(), some_bytes(), chance.choice([None, (), (1, None), (0, 300)]))
    file = DataFile(
        file_name=f"data-é{at}" + "x" * chance.choice([0, 0, 80]),
        file_size=chance.choice([0, 70, 9000, 2**40]),
        first_row_id=chance.choice([None, 0, 300, 2**40]),
        row_count=at,
        min_key=some_bytes(),
        max_key=some_bytes(),
        key_stats=stats,
        value_stats=stats,
        min_sequence_number=-at,
        max_sequence_number=chance.getrandbits(62),
        schema_id=chance.randint(0, 1),
        level=chance.randint(0, 5),
        extra_files=chance.choice([(), (), ("a", f"index-{at}")]),
        creation_time_ms=chance.choice([None, 1_700_000_000_000 + at]),
        embedded_file_index=chance.choice([None, None, b"", b"index"]),
        file_source=chance.choice([None, 0, 1]),
        value_stats_cols=chance.choice([None, (), ("a",)]),
        external_path=chance.choice([None, None, f"s3://b/{at}"]),
    )
    return ManifestEntry(chance.randint(0, 1), chance.choice([b"", b"day-1", b"d" * 70]), at % 300, 300, file)


def columns_of(entries: list[ManifestEntry]) -> EntryColumns:
    rows = [
        (e.kind, e.partition, e.bucket, e.total_buckets, f.file_name, f.file_size, f.row_count, f.max_sequence_number,
         f.schema_id, f.level, f.extra_files, f.creation_time_ms, f.embedded_file_index, f.file_source, f.external_path)
        for e in entries
        for f in [e.file]
    ]  # fmt: skip
    return EntryColumns._make(map(list, zip(*rows, strict=True)))


@pytest.mark.parametrize("sizes", [0, 3, 40])
def test_the_same_as_of_entries(sizes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    take = RawColumns.take

    def counted(self: RawColumns, number: int, block: bytes, out: Any) -> bool:
        taken.append(take(self, number, block, out))
        return taken[-1]

    monkeypatch.setattr(RawColumns, "take", counted)
    chance = random.Random(sizes)
    entries = [entry(chance, at, sizes) for at in range(3000)]
    data = write_manifest(entries)
    assert read_manifest(data) == entries
    assert read_manifest_columns(data) == columns_of(entries)
    c = columns_of(entries)
    names = EntryNames(c.kinds, c.file_names, c.file_sizes, c.extra_files, c.external_paths)
    assert read_manifest_names(data) == names
    ids = EntryRowIds(c.kinds, c.file_names, c.row_counts, [e.file.first_row_id for e in entries])
    assert read_manifest_row_ids(data) == ids
    assert sum(taken) > len(taken) / 2 or sizes == 40, "expressions took little"


def test_small_manifests_make_no_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_columns.re, "compile", lambda *_: pytest.fail("it takes longer than decoding"))
    entries = [entry(random.Random(1), at, 3) for at in range(20)]
    assert read_manifest_columns(write_manifest(entries)) == columns_of(entries)


def test_damaged_blocks_are_the_decoders_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    container = read_container(write_manifest([entry(chance, at, 2) for at in range(400)]))
    blocks = list(container.blocks)

    def read(data: bytes) -> Any:
        try:
            return read_manifest_columns(data)
        except PaimonError as error:
            return type(error), error.message

    usual = raw_columns.LEARN_BYTES
    for _ in range(60):
        number, block = blocks[0]
        damaged = bytearray(block)
        for _ in range(chance.randint(1, 2)):
            damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 2, 3, 4, 0x80, 0xFF, chance.randrange(256)])
        cut = chance.choice([0, 0, 1, 50])
        data = write_container(
            container.schema,
            [*blocks, (number, bytes(damaged[: len(damaged) - cut])), (number + chance.choice([0, 1]), block)],
        )
        monkeypatch.setattr(raw_columns, "LEARN_BYTES", NEVER)
        expected = read(data)
        monkeypatch.setattr(raw_columns, "LEARN_BYTES", usual)
        assert read(data) == expected
