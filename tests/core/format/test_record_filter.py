"""Stepping over the entries of other partitions: what is kept, what is refused, and that it does step."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.avro.container import read_container, write_container
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import DataFile, ManifestEntry, Stats
from airflow_paimon.core.format.manifest_io import read_manifest, write_manifest
from airflow_paimon.core.format.types import AtomicType
from tests.core.format.avro_files import Only

STRING = AtomicType("STRING")
DAYS = [encode_row([f"day-{'x' * (i % 11)}{i:03d}"], [STRING]) for i in range(50)]


def entries(number: int, seed: int = 0) -> list[ManifestEntry]:
    """Entries as other engines write them: sizes of every field vary."""
    draw = random.Random(seed)

    def row() -> bytes:
        return encode_row(["k" * draw.randrange(40)], [STRING])

    def stats() -> Stats:
        nulls = tuple(draw.choice([None, 0, 7, 300]) for _ in range(draw.randrange(3)))
        return Stats(row(), row(), draw.choice([None, nulls]))

    def file(i: int) -> DataFile:
        extra = tuple(f"data-{i}.parquet.index-{n}" for n in range(draw.randrange(3)))
        return DataFile(
            f"data-{i}.parquet", draw.randrange(1 << 40), draw.randrange(1 << 20), row(), row(), stats(), stats(),
            i, i + 1, 0, draw.randrange(6), extra, draw.choice([None, 1795244527803]), draw.choice([None, 0]),
            draw.choice([None, draw.randbytes(draw.randrange(90))]), draw.choice([None, 0, 1]),
            draw.choice([None, ("a",), ("a", "bb")]), draw.choice([None, f"s3://b/{i}"]), draw.choice([None, i]),
        )  # fmt: skip

    return [ManifestEntry(draw.randrange(2), draw.choice(DAYS), draw.randrange(200), 200, file(i)) for i in
            range(number)]  # fmt: skip


def blocks(data: bytes) -> Iterator[tuple[int, bytes]]:
    return read_container(data).blocks


def one_block(data: bytes) -> tuple[int, bytes]:
    parts = list(blocks(data))
    return sum(n for n, _ in parts), b"".join(b for _, b in parts)


@pytest.mark.parametrize("wanted", [0, 1, 3, 50])
def test_all_entries_of_the_partitions_come_and_no_others(wanted: int) -> None:
    written = entries(6000)
    days = set(DAYS[:wanted])
    only = Only(*days)
    read = [e for part in (written[:4000], written[4000:]) for e in read_manifest(write_manifest(part), only=only)]
    assert read == [e for e in written if e.partition in days]


def test_a_value_of_another_field_is_no_partition() -> None:
    """Bytes that look like a wanted entry lie within another one: in its key, and in its name."""
    (wanted,) = entries(1)
    looks = write_manifest([wanted])
    inside = next(block for _, block in blocks(looks))
    others = [e for e in entries(200, seed=1) if e.partition != wanted.partition]
    others = [e._replace(file=e.file._replace(min_key=inside, embedded_file_index=inside * 2)) for e in others]
    read = read_manifest(write_manifest([*others, wanted]), only=Only(wanted.partition))
    assert read == [wanted]


def test_damaged_blocks_are_refused() -> None:
    data = write_manifest(entries(300))
    schema, (number, block) = read_container(data).schema, one_block(data)
    nothing = Only()
    for wrong in [(number, block[:-1]), (number, block + b"\0"), (number, block[1:])]:
        with pytest.raises((FormatError, UnsupportedFeatureError), match="x: "):
            read_manifest(write_container(schema, [wrong]), name="x", only=nothing)
    assert read_manifest(data, only=nothing) == []


def test_a_later_format_version_is_refused_although_nobody_asked_for_its_entry() -> None:
    data = write_manifest(entries(300))
    schema, (number, block) = read_container(data).schema, one_block(data)
    (_, first) = one_block(write_manifest(entries(1)))
    later = write_container(schema, [(number + 1, block + b"\x06" + first[1:])])
    with pytest.raises(UnsupportedFeatureError, match="format version 3"):
        read_manifest(later, only=Only())
