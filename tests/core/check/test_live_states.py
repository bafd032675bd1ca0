"""Live files as numbers: the missing files and numbers of buckets that reading them as values gives."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from airflow_paimon.core.check.live_states import LiveStates, _live_entries_of, entry_digests
from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.binary_row import EMPTY_ROW_BYTES
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, EntryColumns, ManifestEntry
from airflow_paimon.core.format.manifest_io import read_manifest_columns, write_manifest
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.table.live_entries import live_buckets, live_entries
from airflow_paimon.core.table.live_files import net_change
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.reachability import missing_files
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, message, overwrite, run
from tests.stores import CountingStore

SCHEMA = TableSchema(id=0, fields=(), highest_field_id=0)


def _entry(chance: random.Random) -> ManifestEntry:
    file = DataFile(chance.choice("abc"), 10, 1, b"k", b"k", EMPTY_STATS, EMPTY_STATS, 0, 0, 0, chance.randint(0, 1))
    if chance.random() < 0.3:
        file = file._replace(extra_files=chance.choice([(), ("x",), ("x", "a")]),
                             external_path=chance.choice([None, None, "s3://b/x", "s3://b/y"]),
                             embedded_file_index=chance.choice([None, b"i"]))  # fmt: skip
    return ManifestEntry(chance.randint(0, 1), EMPTY_ROW_BYTES, chance.randint(0, 1), 2, file)


def _columns(entries: list[ManifestEntry]) -> EntryColumns:
    return read_manifest_columns(write_manifest(entries))


def test_which_entries_are_live() -> None:
    chance = random.Random(11)
    outcomes = set()
    for _ in range(400):
        # few files, so that the same one comes and goes, over two manifests
        groups = [[_entry(chance) for _ in range(chance.randint(0, 3))] for _ in range(2)]
        entries = [e for group in groups for e in group]
        try:
            change = net_change(entries)
            expected = None if change.deleted else change.added
        except FormatError:
            expected = None
        parts = [entry_digests(SCHEMA, _columns(group)) for group in groups]
        live = _live_entries_of(np.concatenate([p.files for p in parts]), np.concatenate([p.added for p in parts]))
        outcomes.add(expected is None)
        assert (live is None) == (expected is None)
        if live is not None and expected is not None:
            rows = [
                (g, at)
                for g, group in enumerate(groups)
                for at, e in enumerate(group)
                for _ in (0, *e.file.extra_files)
            ]
            of_entries: dict[tuple[int, int], set[bool]] = {}
            for row, there in zip(rows, live.tolist(), strict=True):
                of_entries.setdefault(row, set()).add(there)  # the file and those beside it
            found = [groups[g][at].identifier for g, at in sorted(of_entries) if of_entries[g, at] == {True}]
            assert all(len(there) == 1 for there in of_entries.values())
            assert found == sorted(
                expected, key=lambda key: max(at for at, e in enumerate(entries) if e.identifier == key)
            )
    assert outcomes == {True, False}


@pytest.mark.parametrize(("seed", "memory_bytes"), [(0, 1 << 20), (1, 500), (2, 500)])
def test_the_same_missing_files(tmp_path: Path, seed: int, memory_bytes: int) -> None:
    chance = random.Random(seed)
    table = make_table(tmp_path)
    for number in range(8):
        if chance.random() < 0.5:
            append_beside(table, chance)
        write = overwrite if chance.random() < 0.4 else append
        write(table, chance.choice("abc"), chance.randint(0, 1))
        if chance.random() < 0.3:
            run(table, "create_tag", tag=f"t{number}")
    run(table, "create_branch", branch="fix", snapshot=8)
    append(table.branch("fix"), "d")
    states = LiveStates(table, memory_bytes)

    def compare() -> int:
        found = 0
        for view in (table, table.branch("fix")):
            schema = view.schema()
            for snapshot in (view.latest_snapshot(), *(t.snapshot for t in view.tags())):
                assert snapshot is not None
                live = live_entries(view, snapshot).values()
                lost = missing_files(view, schema, live)
                assert states.missing(view, schema, snapshot) == lost
                found += len(lost)
                buckets: dict[tuple[bytes, int], Counter[int]] = {}
                for entry in live:
                    buckets.setdefault((entry.partition, entry.bucket), Counter())[entry.total_buckets] += 1
                assert live_buckets(view, snapshot) == buckets
        return found

    assert compare() == 0
    for path in [p for p in table.store.walk("") if "bucket-" in p and chance.random() < 0.6]:
        table.store.delete(path)
    states = LiveStates(table, memory_bytes)
    assert compare() > 0


def append_beside(table: Table, chance: random.Random) -> None:
    """Append a file that lies elsewhere, or has files beside it, or both."""
    new = message(table, chance.choice("abe"), chance.randint(0, 1))
    file = new.new_files[0]
    folder = f"dt={StoredPartitions(table.schema()).values(new.partition)[0]}/bucket-{new.bucket}"
    extra = tuple(f"{file.file_name}.{n}" for n in range(chance.randint(0, 2)))
    elsewhere = chance.choice([None, f"s3://bucket/{file.file_name}", f"file:/elsewhere/{file.file_name}"])
    for name in () if elsewhere else extra:
        table.store.create(f"{folder}/{name}", b"placeholder")
    if elsewhere:
        table.store.delete(f"{folder}/{file.file_name}")
    file = file._replace(extra_files=extra, external_path=elsewhere, embedded_file_index=chance.choice([None, b"i"]))
    entry = ManifestEntry(0, new.partition, new.bucket, new.total_buckets, file)
    commit(table, lambda _: Draft(kind=CommitKind.APPEND, entries=[entry], schema=table.schema()))


@pytest.mark.parametrize("elsewhere", ["s3://b/x", "file:/b/x", "/b/x"])
def test_no_folder_is_listed_for_files_elsewhere(tmp_path: Path, elsewhere: str) -> None:
    table = make_table(tmp_path)
    schema, new = table.schema(), message(table, "a")
    table.store.delete(f"dt=a/bucket-0/{new.new_files[0].file_name}")
    file = new.new_files[0]._replace(external_path=elsewhere, extra_files=("y",))
    entry = ManifestEntry(0, new.partition, new.bucket, new.total_buckets, file)
    commit(table, lambda _: Draft(kind=CommitKind.APPEND, entries=[entry], schema=schema))
    store = CountingStore(table.store)
    view, head = Table(store, table.name), table.latest_snapshot()
    assert head is not None
    assert LiveStates(view).missing(view, schema, head) == missing_files(view, schema, [entry]) == []
    assert not [path for _, path in store.tally.log if "dt=a" in path]


def test_a_name_that_leads_elsewhere() -> None:
    plain = _entry(random.Random(0))
    entry = plain._replace(file=plain.file._replace(extra_files=("../x",)))
    with pytest.raises(FormatError, match=r"\.\./x"):
        entry_digests(SCHEMA, _columns([plain, entry]))
