"""States that share no manifest are compared by digests first, with the result of reading all their files."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, ManifestEntry, ManifestFile
from airflow_paimon.core.format.manifest_io import describe_manifest, write_manifest
from airflow_paimon.core.table.history import changed_files
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, run
from tests.stores import CountingStore

BESIDE = ({}, {}, {}, {"extra_files": ("x",)}, {"external_path": "s3://b/x"}, {"embedded_file_index": b""})


def stored(table: Table, name: str, entries: list[ManifestEntry]) -> ManifestFile:
    data = write_manifest(entries)
    table.store.create(manifest_path(name), data)
    return describe_manifest(name, len(data), entries, table.schema().partition_types)


def entry(table: Table, chance: random.Random) -> ManifestEntry:
    file = DataFile(chance.choice("abc"), 10, 1, b"k", b"k", EMPTY_STATS, EMPTY_STATS, 0, 0, 0, chance.choice([0, 5]))
    partition = encode_row((chance.choice("abc"),), table.schema().partition_types)
    return ManifestEntry(0, partition, chance.randint(0, 1), 2, file._replace(**chance.choice(BESIDE)))  # type: ignore[arg-type]


def state(table: Table, name: str, chance: random.Random, live: list[ManifestEntry]) -> list[ManifestFile]:
    """Manifests with these live files, in any order, some of which were deleted and came back, over two manifests."""
    entries = chance.sample(live, len(live))
    gone = [e for e in (entry(table, chance) for _ in range(3)) if e.identifier not in {x.identifier for x in live}]
    gone = list({e.identifier: e for e in gone}.values())
    again = chance.sample(entries, len(entries) // 3)
    both = [*entries, *gone], [*(e.deleted() for e in (*gone, *again)), *again]
    return [stored(table, f"{name}-{n}", some) for n, some in enumerate(both) if some]


def test_the_same_difference_as_of_all_files(tmp_path: Path) -> None:
    table, chance = make_table(tmp_path), random.Random(5)
    differed = 0
    for number in range(60):
        old = list({e.identifier: e for e in (entry(table, chance) for _ in range(12))}.values())
        new = [e for e in old if chance.random() < 0.9]
        new += [e for e in (entry(table, chance) for _ in range(2)) if e.identifier not in {x.identifier for x in old}]
        new = list({e.identifier: e for e in new}.values())
        sides = state(table, f"o{number}", chance, old), state(table, f"n{number}", chance, new)
        whole = changed_files(table, *sides, merged_bytes=1 << 30)
        found = changed_files(table, *sides, merged_bytes=0)
        assert found == whole
        assert set(whole[0]) == {e.identifier for e in new} - {e.identifier for e in old}
        differed += found != ({}, {})
    assert 20 < differed < 60


def test_a_file_added_twice_is_an_error_here_too(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    one = entry(table, random.Random(0))
    twice = [stored(table, "m-0", [one]), stored(table, "m-1", [one])]
    with pytest.raises(FormatError, match="added twice"):
        changed_files(table, [stored(table, "m-2", [one])], twice, merged_bytes=0)


def test_objects_are_made_of_partitions_that_differ(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    for day in "abcd":
        append(table, day)
    old = all_manifests(table, table.latest_snapshot())
    append(table, "b")
    run(table, "compact_manifest")
    store = CountingStore(table.store)
    added, removed = changed_files(
        replace(table, store=store), old, all_manifests(table, table.latest_snapshot()), merged_bytes=0
    )
    assert (len(added), len(removed)) == (1, 0)
    read = [uris.count("manifest/") for method, uris in store.tally.log if method == "read_many"]
    assert read == [4, 1, 1, 1], "of both sides for digests; the manifest of b of before, and the merged one"
