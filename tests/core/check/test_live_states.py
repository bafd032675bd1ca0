"""Live files as numbers: the missing files and numbers of buckets that reading them as values gives."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from airflow_paimon.core.check.live_states import LiveStates, entries_of, live_entries_of
from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, EntryPlaces, ManifestEntry
from airflow_paimon.core.format.manifest_io import read_manifest_places, write_manifest
from airflow_paimon.core.table.live_files import net_change
from airflow_paimon.core.table.reachability import missing_files
from airflow_paimon.core.table.scan import live_entries
from airflow_paimon.core.whole_table.workers import Workers
from tests.core.tables import append, make_table, overwrite, run
from tests.core.whole_table.pieces import shuffled

WORKERS = {
    "here": Workers(),
    "little memory": Workers(memory_bytes=500),
    "tasks": Workers(memory_bytes=500, in_tasks=shuffled, worth_it=0),
}


def _entry(chance: random.Random) -> ManifestEntry:
    file = DataFile(chance.choice("abc"), 10, 1, b"k", b"k", EMPTY_STATS, EMPTY_STATS, 0, 0, 0, chance.randint(0, 1))
    return ManifestEntry(chance.randint(0, 1), chance.choice([b"", b"p"]), chance.randint(0, 1), 2, file)


def _columns(entries: list[ManifestEntry]) -> EntryPlaces:
    return read_manifest_places(write_manifest(entries))


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
        parts = [part for group in groups if (part := entries_of(_columns(group))) is not None]
        live = live_entries_of(np.concatenate([p.files for p in parts]), np.concatenate([p.added for p in parts]))
        outcomes.add(expected is None)
        assert (live is None) == (expected is None)
        if live is not None and expected is not None:
            assert [e.identifier for e, there in zip(entries, live.tolist(), strict=True) if there] == sorted(
                expected, key=lambda key: max(at for at, e in enumerate(entries) if e.identifier == key)
            )
    assert outcomes == {True, False}


@pytest.mark.parametrize(("seed", "workers"), [(0, "here"), (1, "little memory"), (2, "little memory"), (3, "tasks")])
def test_the_same_missing_files(tmp_path: Path, seed: int, workers: str) -> None:
    chance = random.Random(seed)
    table = make_table(tmp_path)
    for number in range(8):
        write = overwrite if chance.random() < 0.4 else append
        write(table, chance.choice("abc"), chance.randint(0, 1))
        if chance.random() < 0.3:
            run(table, "create_tag", tag=f"t{number}")
    run(table, "create_branch", branch="fix", snapshot=8)
    append(table.branch("fix"), "d")
    states = LiveStates(table, WORKERS[workers])

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
                counts: dict[bytes, set[int]] = {}
                for entry in live:
                    if entry.total_buckets > 0:
                        counts.setdefault(entry.partition, set()).add(entry.total_buckets)
                assert states.bucket_counts(view, snapshot) == counts
                assert states.buckets(view, snapshot) == {(e.partition, e.bucket) for e in live}
        return found

    assert compare() == 0
    for path in [p for p in table.store.walk("") if "bucket-" in p and chance.random() < 0.6]:
        table.store.delete(path)
    states = LiveStates(table, WORKERS[workers])
    assert compare() > 0


def test_files_beside_files_are_left_to_whoever_reads_values() -> None:
    plain = _entry(random.Random(0))
    for beside in ({"extra_files": ("x",)}, {"external_path": "s3://b/x"}, {"embedded_file_index": b"i"}):
        entry = plain._replace(file=plain.file._replace(**beside))  # type: ignore[arg-type]
        assert entries_of(_columns([plain, entry])) is None
    assert entries_of(_columns([plain])) is not None
