"""Candidates as columns, and names as digests, decide as a plain model of files does."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import numpy as np
import pytest

from airflow_paimon.core.metadata_expiry.listed_files import ListedFiles
from airflow_paimon.core.metadata_expiry.orphan_plan import (
    UNKNOWN,
    Candidate,
    FileClassifier,
    Prefixes,
    find_orphans,
)
from airflow_paimon.core.metadata_expiry.referenced_files import StoredReferences, _Named
from airflow_paimon.core.metadata_expiry.referenced_files_plan import Sums
from airflow_paimon.core.store import local
from airflow_paimon.core.store.base import FileInfo
from airflow_paimon.core.store.local import LocalStore
from airflow_paimon.core.table.name_digests import digests_of
from airflow_paimon.core.table.spill import SpillBuffer, cuts_for

BEFORE = 1000


@pytest.mark.parametrize("seed", range(20))
def test_the_same_files_as_a_plain_model(seed: int) -> None:
    chance = random.Random(seed)
    writers = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(4)]
    stored: list[FileInfo] = []
    for at in range(60):
        folder, prefix = chance.choice(
            [("dt=é/bucket-0", "data-"), ("index", "index-"), ("dt=b/bucket-1", "changelog-")]
        )
        suffix = "" if prefix == "index-" else ".parquet"
        time = chance.choice([None, BEFORE, 10, 20, 30, 40, 50, 60])
        stored.append(FileInfo(f"{folder}/{prefix}{chance.choice(writers)}-{at}{suffix}", False, at, time))
        if chance.random() < 0.1:
            stored.append(FileInfo(f"{folder}/{'é' * at}", False, 3, 5))
    prefixes = Prefixes(("data-",), ("changelog-",))
    listed = ListedFiles(SpillBuffer(chance.choice([0, 1000, 1 << 20])), prefixes, before_ms=BEFORE)
    for at in range(0, len(stored), 17):
        listed.add(stored[at : at + 17])
    told = [(f, FileClassifier(prefixes).classify(f.name)) for f in stored]
    plain = [(f, *kind) for f, kind in told if kind is not None and kind is not UNKNOWN]
    used = [chance.random() < 0.3 for _ in plain]
    named = np.sort(
        digests_of([f.name.rpartition("/")[2] for (f, *_), is_used in zip(plain, used, strict=True) if is_used])
    )
    files: list[Candidate] = []
    young_sums, held_sums = Sums(), Sums()
    for c, places in listed.by_ranges(cuts_for(len(plain), 10, chance.choice([100, 10000]))):
        found, too_young, busy = find_orphans(c, np.isin(c.names, named), BEFORE, listed.active_writers)
        files += listed.values(c, places, found)
        young_sums, held_sums = young_sums + too_young, held_sums + busy

    def old(one: FileInfo) -> bool:
        return one.modified_ms is not None and one.modified_ms < BEFORE

    active_writers = {writer for f, _, writer in plain if not old(f)}
    free = [c for c, is_used in zip(plain, used, strict=True) if not is_used]
    orphans = sorted((f.name, f.size, kind) for f, kind, writer in free if old(f) and writer not in active_writers)
    assert [(c.path, c.size, c.kind) for c in sorted(files, key=lambda c: c.path)] == orphans
    young = [f for f, *_ in free if not old(f)]
    held = [f for f, _, writer in free if old(f) and writer in active_writers]
    assert (young_sums.files, young_sums.bytes) == (len(young), sum(f.size for f in young))
    assert (held_sums.files, held_sums.bytes) == (len(held), sum(f.size for f in held))
    assert young_sums.first_ms == min((f.modified_ms for f in young if f.modified_ms is not None), default=None)
    unknown = [f for f, kind in told if kind is UNKNOWN]
    assert (listed.unknown.files, listed.unknown.bytes) == (len(unknown), sum(f.size for f in unknown))
    assert listed.examples == sorted(f.name for f in unknown)[:20]


def test_names_differ_by_each_letter() -> None:
    names = ["", "\0", "\0\0", "a", "a\0", "aaaaaaaa", "aaaaaaaab", "é", "\udc80"]
    names += ["data-" + "x" * n for n in range(20)] + [
        f"data-{uuid.UUID(int=n)}-{m}" for n in range(50) for m in range(50)
    ]
    found = digests_of(names)
    assert len(set(found.tolist())) == len(names)
    assert digests_of(names[::-1]).tolist() == found.tolist()[::-1]
    assert digests_of(["data-x"]).tolist() == [10820356731713760081], "it must be the same in each process"


def test_numbers_of_listed_and_named_files() -> None:
    names = [f"f{n}" for n in range(100)]
    listed, named = digests_of([*names, "f3"]), digests_of(["f7", "other"])
    runs = SpillBuffer(1 << 20)
    run = runs.add((named, np.ones(2, np.int32), np.array([1, 2]), np.array([False, True])))
    stored = StoredReferences([_Named(("m",), (), np.sort(digests_of(["f5", "root"])))], {"m": run})
    index = stored.by_ranges(np.zeros(0, np.uint64)).at(0, listed, np.arange(101))
    assert len(index) == 102 and not (index.numbers(listed) < 0).any()
    assert index.numbers(digests_of(["nowhere"])).tolist() == [-1]
    assert index.sizes[index.numbers(digests_of([*names, "other", "root"]))].tolist() == [*range(100), 2, 0]
    assert index.digests[index.external].tolist() == digests_of(["other"]).tolist()
    assert sorted(index.digests[index.times() > 0].tolist()) == sorted(
        digests_of(["f5", "f7", "other", "root"]).tolist()
    )


def test_parts_of_a_folder_are_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_PART", 3)
    for at in range(10):
        path = tmp_path / f"d{at % 4}" / ("e" if at % 3 else ".") / f"f{at}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * at)
    store = LocalStore(str(tmp_path))
    parts = list(store.files_in_parts(""))
    assert len(parts) > 2
    assert sorted((i for part in parts for i in part), key=lambda i: i.name) == list(store.files(""))
