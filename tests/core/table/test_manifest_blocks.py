"""The index of a manifest's blocks: a read of some partitions gives the same with it and without, from less bytes; what
is damaged is found; entries of a partition lie together.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.commit.manifest_merge_plan import in_order
from airflow_paimon.core.errors import FormatError, PaimonError
from airflow_paimon.core.format import manifest_blocks
from airflow_paimon.core.format.avro import encoder
from airflow_paimon.core.format.avro.container import Header, read_header
from airflow_paimon.core.format.binary_row import EMPTY_ROW_BYTES
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, ManifestEntry
from airflow_paimon.core.format.manifest_blocks import KEY, indexed_blocks
from airflow_paimon.core.format.manifest_io import read_manifest, read_manifest_columns, write_manifest
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_columns, live_entries
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.partition_values import encode_partition
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.table import Table, open_table
from tests.core.format.avro_files import fastavro_records
from tests.core.tables import append, make_table
from tests.randomness import chance as chance_of
from tests.randomness import lives

DAYS: list[str | None] = [None, *(f"day-{i:02d}" for i in range(20))]


def new_table(uri: str | None = None, **options: str) -> Table:
    columns = [("k", "INT"), ("dt", "STRING"), ("h", "INT")]
    where = uri or f"memory://{uuid.uuid4()}/wh"
    return create_table(where, "d.t", columns, partition_keys=["dt", "h"], options={"bucket": "-1", **options})


def entry(schema: TableSchema, day: str | None, hour: int | None, number: int, draw: random.Random) -> ManifestEntry:
    partition = encode_partition((day, hour), StoredPartitions(schema).types)
    file = DataFile(f"data-{number}.parquet", draw.randrange(1 << 40), 7, EMPTY_ROW_BYTES, EMPTY_ROW_BYTES, EMPTY_STATS,
                    EMPTY_STATS, number, number, draw.randrange(3), draw.randrange(6))  # fmt: skip
    return ManifestEntry(0, partition, draw.randrange(8), 8, file)


def random_entries(schema: TableSchema, draw: random.Random, number: int) -> list[ManifestEntry]:
    """Additions and deletions of several partitions, in no order."""
    days, hours = draw.sample(DAYS, draw.randrange(2, len(DAYS))), [None, 0, 1]
    made = [entry(schema, draw.choice(days), draw.choice(hours), i, draw) for i in range(number)]
    return [e.deleted() if draw.random() < 0.2 else e for e in made]


def header_of(data: bytes) -> Header:
    return read_header(data)


def some_selection(stored: StoredPartitions, draw: random.Random, entries: Iterable[ManifestEntry]) -> Selection:
    day = stored.selection([{"dt": draw.choice(DAYS)} for _ in range(draw.randrange(1, 3))])
    there = stored.those(e.partition for e in draw.sample(list(entries), 3))
    hour = stored.selection([{"h": draw.choice([None, 1])}])
    none = stored.selection([{"dt": "day-99"}])
    return draw.choice([day, there, hour, none, stored.where(lambda values: values[1] is None)])


@pytest.mark.random
@pytest.mark.parametrize("life", range(lives(4, 60)))
def test_the_same_entries_as_without_an_index(monkeypatch: pytest.MonkeyPatch, life: int) -> None:
    chance = chance_of(life)
    monkeypatch.setattr(encoder, "BLOCK_BYTES", chance.choice([300, 2000, 9000]))
    monkeypatch.setattr(manifest_blocks, "_LARGEST_PART", 0)
    schema = new_table().schema()
    stored = StoredPartitions(schema)
    entries = random_entries(schema, chance, chance.choice([50, 600, 2000]))
    if chance.random() < 0.8:
        entries = in_order(entries, stored)
    plain, indexed = write_manifest(entries), write_manifest(entries, stored.types)
    assert KEY in header_of(indexed).metadata or len(entries) == 50
    assert KEY not in header_of(plain).metadata
    assert read_manifest(indexed) == read_manifest(plain) == entries
    assert fastavro_records(indexed) == fastavro_records(plain), "another reader doesn't look at it"
    for _ in range(10):
        selection = some_selection(stored, chance, entries)
        wanted = [e for e in entries if selection(e.partition)]
        for data in (plain, indexed):
            assert read_manifest(data, only=selection) == wanted
            found = read_manifest_columns(data, only=selection)
            assert list(found.identifiers()) == [e.identifier for e in wanted]


def test_a_partition_needs_few_blocks_of_a_manifest_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "BLOCK_BYTES", 2000)
    schema = new_table().schema()
    stored = StoredPartitions(schema)
    draw = random.Random(5)
    entries = in_order([entry(schema, draw.choice(DAYS[1:]), 1, i, draw) for i in range(3000)], stored)
    data = write_manifest(entries, stored.types)
    one = stored.those([entries[1500].partition])
    blocks = indexed_blocks(header_of(data), len(data))
    assert blocks is not None
    assert sum(b.end - b.start for b in blocks if one.may_be_in(b)) < len(data) / 5
    assert [e.partition for e in read_manifest(data, only=one)] == [
        e.partition for e in entries if e.partition == entries[1500].partition
    ]
    assert not any(map(stored.selection([{"dt": "day-99"}]).may_be_in, blocks))


def test_bounds_of_blocks_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "BLOCK_BYTES", 2000)
    schema = new_table().schema()
    stored = StoredPartitions(schema)
    entries = in_order(random_entries(schema, random.Random(8), 2000), stored)
    data = write_manifest(entries, stored.types)
    blocks = indexed_blocks(header_of(data), len(data))
    assert blocks is not None
    assert sum(b.entries for b in blocks) == len(entries)
    at = 0
    for block in blocks:
        part, at = entries[at : at + block.entries], at + block.entries
        assert (block.min_bucket, block.max_bucket) == (min(e.bucket for e in part), max(e.bucket for e in part))
        assert (block.min_total_buckets, block.max_total_buckets) == (8, 8)
        values = [stored.values(e.partition) for e in part]
        days = [v[0] for v in values if v[0] is not None]
        low, high = stored.values(block.partition_stats.min_values), stored.values(block.partition_stats.max_values)
        assert (low[0], high[0]) == (min(days, default=None), max(days, default=None))
        assert block.partition_stats.null_counts == tuple(sum(v[i] is None for v in values) for i in range(2))


def test_small_manifests_and_too_long_indexes_are_left_out() -> None:
    schema = new_table().schema()
    stored = StoredPartitions(schema)
    entries = random_entries(schema, random.Random(1), 100)
    assert write_manifest(entries, stored.types) == write_manifest(entries)
    sizes = [manifest_blocks.BlockSize(5, 100)] * 20
    assert not manifest_blocks.block_index(entries, stored.types, sizes)
    assert manifest_blocks.block_index(entries, stored.types, [manifest_blocks.BlockSize(5, 100_000)] * 20)


def test_a_damaged_index_is_no_reason_to_miss_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(manifest_blocks, "_LARGEST_PART", 0)
    schema = new_table().schema()
    stored, draw = StoredPartitions(schema), random.Random(3)
    entries = in_order(random_entries(schema, draw, 400), stored)
    data = write_manifest(entries, stored.types)
    selection = stored.those([entries[200].partition])
    wanted = [e for e in entries if selection(e.partition)]
    value = header_of(data).metadata[KEY]
    start = data.index(value)
    for _ in range(150):
        at = start + draw.randrange(len(value))
        damaged = data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
        assert read_manifest(damaged, only=selection) == wanted
    index = json.loads(value[9:])
    for change in ({"version": 2}, {"blocks": []}, {"blocks": index["blocks"][1:]}, {"rows": []}, {"rows": 7},
                   {"blocks": [[1, 2]]}, {"blocks": [b[:2] + [None] * 7 for b in index["blocks"]]}):  # fmt: skip
        text = json.dumps({**index, **change}).encode()
        value = b"%08x %b" % (manifest_blocks.zlib.crc32(text), text)
        header = Header("", {KEY: value}, b"", header_of(data).end, "null")
        assert indexed_blocks(header, len(data)) is None, change


def test_damaged_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(manifest_blocks, "_LARGEST_PART", 0)
    schema = new_table().schema()
    stored = StoredPartitions(schema)
    entries = in_order(random_entries(schema, random.Random(4), 1000), stored)
    data = write_manifest(entries, stored.types)
    only = stored.those([entries[500].partition])
    header = header_of(data)
    chosen = [b for b in indexed_blocks(header, len(data)) or () if only.may_be_in(b)]
    first, (start, end) = chosen[0], (chosen[0].start, chosen[-1].end)
    for at in (start, start + 1, start + 6, first.end - 3, end - 1):  # the numbers, the content, the markers
        damaged = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        with pytest.raises(FormatError, match=r"^m: "):
            read_manifest(damaged, name="m", only=only)
    for size in (end - 1, start + 3, header.end - 1):
        with pytest.raises(FormatError, match=r"^m: "):
            read_manifest(data[:size], name="m", only=only)


def test_a_manifest_that_is_cut_off_damaged_or_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "BLOCK_BYTES", 4000)
    table = new_table()
    schema, draw = table.schema(), random.Random(6)
    added = [entry(schema, draw.choice(DAYS), 1, i, draw) for i in range(1000)]
    commit(table, lambda head: Draft(kind=CommitKind.APPEND, entries=added, schema=schema))
    head, selection = table.latest_snapshot(), StoredPartitions(schema).selection([{"dt": "day-05"}])
    (manifest,) = all_manifests(table, head)
    path = f"manifest/{manifest.file_name}"
    data = table.store.read(path)
    chosen = [b for b in indexed_blocks(header_of(data), len(data)) or () if selection.may_be_in(b)]
    at = chosen[0].start + 40
    for other in (data[:-1], data[: len(data) // 2], data[:100], b"", data + b"x", data[:at] + b"!" + data[at + 1 :]):
        table.store.replace(path, other)
        for read in (live_entries, live_columns):
            with pytest.raises(FormatError, match=manifest.file_name):
                read(table, head, selection)
    table.store.delete(path)
    with pytest.raises(FormatError, match=f"{manifest.file_name} of a live snapshot is missing"):
        live_entries(table, head, selection)


def test_manifests_begin_with_a_partition_and_stay_apart() -> None:
    table = new_table(**{"manifest.target-file-size": "8 kb"})
    schema, draw = table.schema(), random.Random(7)
    added = [entry(schema, draw.choice(DAYS), 1, i, draw) for i in range(3000)]
    commit(table, lambda head: Draft(kind=CommitKind.APPEND, entries=added, schema=schema))
    rows = all_manifests(table, table.latest_snapshot())
    stored = StoredPartitions(schema)
    assert len(rows) > 6
    reads = [sum(stored.selection([{"dt": day}]).may_be_in(m) for m in rows) for day in DAYS if day]
    assert sum(n == 1 for n in reads) > 10, "most days lie in one manifest, as it ends with a day"
    assert max(reads) <= 2


def test_merging_in_commits_keeps_partitions_together() -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh", **{"manifest.merge-min-count": "5"})
    for i in range(14):
        append(table, f"day-{i % 3}", i % 2)
    merged = max(all_manifests(table, table.latest_snapshot()), key=lambda m: m.num_added_files)
    entries = read_entries(table, [merged])[0]
    assert len(entries) >= 5
    places = [(e.partition, e.bucket) for e in entries]
    assert places == sorted(places)


def test_entries_of_a_file_keep_their_order() -> None:
    """The addition and the deletion of a file may stand in one manifest: which is first decides."""
    schema = new_table().schema()
    stored, draw = StoredPartitions(schema), random.Random(2)
    added = [entry(schema, draw.choice(DAYS), draw.choice([None, 1]), i, draw) for i in range(300)]
    both = [e for a in added for e in draw.choice([[a], [a.deleted(), a], [a, a.deleted()]])]
    ordered = in_order(both, stored)
    for a in added:
        assert [e for e in ordered if e.identifier == a.identifier] == [e for e in both if e.identifier == a.identifier]


@pytest.mark.parametrize("archive", ["paimon-2.0.0", "paimon-0.9.0"])
def test_manifests_of_other_engines(golden: Callable[[str], Path], archive: str) -> None:
    read = 0
    for schema_file in sorted(golden(archive).glob("wh/d.db/*/schema/schema-0"))[:12]:
        folder = schema_file.parent.parent
        try:
            stored = StoredPartitions(open_table(path=str(folder)).schema())
        except PaimonError:
            continue
        for path in folder.glob("manifest/manifest-*"):
            if path.name.startswith("manifest-list"):
                continue
            entries = read_manifest(path.read_bytes())
            if not entries or not stored.keys:
                continue
            selection = stored.those([entries[len(entries) // 2].partition])
            assert read_manifest(path.read_bytes(), only=selection) == [e for e in entries if selection(e.partition)]
            again = write_manifest(in_order(entries, stored), stored.types)
            assert sorted(e.identifier for e in read_manifest(again)) == sorted(e.identifier for e in entries)
            read += 1
    assert read > 3
