"""Candidates as columns, and names as digests, decide as a plain model of files does."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import numpy as np
import pytest

from airflow_paimon.core.metadata_expiry.contents import NumberedFiles
from airflow_paimon.core.metadata_expiry.listed_files import ListedFiles, _part_of
from airflow_paimon.core.metadata_expiry.orphan_plan import Candidate, Prefixes, Stored, Sums, find_orphans, sort_files
from airflow_paimon.core.parallel.sorted_runs import SortedRuns, cuts_for
from airflow_paimon.core.store import local
from airflow_paimon.core.store.base import FileInfo
from airflow_paimon.core.store.local import LocalStore
from airflow_paimon.core.table.name_digests import digests_of

BEFORE = 1000


@pytest.mark.parametrize("seed", range(20))
def test_the_same_files_as_a_plain_model(seed: int) -> None:
    chance = random.Random(seed)
    writers = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(4)]
    stored: list[Stored] = []
    for at in range(60):
        folder, prefix = chance.choice(
            [("dt=é/bucket-0", "data-"), ("index", "index-"), ("dt=b/bucket-1", "changelog-")]
        )
        suffix = "" if prefix == "index-" else ".parquet"
        time = chance.choice([None, BEFORE, 10, 20, 30, 40, 50, 60])
        stored.append(Stored(f"{folder}/{prefix}{chance.choice(writers)}-{at}{suffix}", at, time))
        if chance.random() < 0.1:
            stored.append(Stored(f"{folder}/{'é' * at}", 3, 5))
    prefixes = Prefixes(("data-",), ("changelog-",))
    listed = ListedFiles(SortedRuns(chance.choice([0, 1000, 1 << 20])), before_ms=BEFORE, most_examples=3)
    for at in range(0, len(stored), 17):
        infos = [FileInfo(f.path, False, f.size, f.modified_ms) for f in stored[at : at + 17]]
        listed.add(_part_of(infos, prefixes, False, 3))
    parts = [sort_files(stored, prefixes)]
    plain = [c for part in parts for c in part.candidates]
    used = [chance.random() < 0.3 for _ in plain]
    named = np.sort(digests_of([c.file.name for c, is_used in zip(plain, used, strict=True) if is_used]))
    files: list[Candidate] = []
    young_sums, held_sums = Sums(), Sums()
    for c, places in listed.by_ranges(cuts_for(len(plain), 10, chance.choice([100, 10000]))):
        judged = find_orphans(c, np.isin(c.names, named), BEFORE, listed.at_work)
        files += listed.values(c, places, judged.orphans)
        young_sums, held_sums = young_sums + judged.young, held_sums + judged.held

    def old(one: Stored) -> bool:
        return one.modified_ms is not None and one.modified_ms < BEFORE

    at_work = {c.writer for c in plain if not old(c.file)}
    free = [c for c, is_used in zip(plain, used, strict=True) if not is_used]
    orphans = sorted((c.file.path, c.file.size, c.kind) for c in free if old(c.file) and c.writer not in at_work)
    assert [(c.file.path, c.file.size, c.kind) for c in sorted(files, key=lambda c: c.file.path)] == orphans
    young = [c.file for c in free if not old(c.file)]
    held = [c.file for c in free if old(c.file) and c.writer in at_work]
    assert (young_sums.files, young_sums.bytes) == (len(young), sum(f.size for f in young))
    assert (held_sums.files, held_sums.bytes) == (len(held), sum(f.size for f in held))
    assert young_sums.first_ms == min((f.modified_ms for f in young if f.modified_ms is not None), default=None)
    unknown = [f for part in parts for f in part.unknown]
    assert (listed.unknown.files, listed.unknown.bytes) == (len(unknown), sum(f.size for f in unknown))
    assert listed.examples == sorted(f.path for f in unknown)[:3]


def test_names_differ_by_each_letter() -> None:
    names = ["", "\0", "\0\0", "a", "a\0", "aaaaaaaa", "aaaaaaaab", "é", "\udc80"]
    names += ["data-" + "x" * n for n in range(20)] + [
        f"data-{uuid.UUID(int=n)}-{m}" for n in range(50) for m in range(50)
    ]
    found = digests_of(names)
    assert len(set(found.tolist())) == len(names)
    assert digests_of(names[::-1]).tolist() == found.tolist()[::-1]
    assert digests_of(["data-x"]).tolist() == [10820356731713760081], "it must be the same in each process"


def test_numbers_of_listed_and_other_files() -> None:
    names = [f"f{n}" for n in range(100)]
    numbered = NumberedFiles(digests_of([*names, "f3"]), np.arange(101))
    assert len(numbered) == 100 and not (numbered.find(names) < 0).any()
    assert numbered.find(["other"]).tolist() == [-1]
    assert numbered.array(["f7", "other", "f7", "other"], [1, 2, 3, 4]).tolist()[1::2] == [100, 100]
    assert numbered.find(["other"]).tolist() == [100] and len(numbered) == 101
    assert numbered.sizes[numbered.find(names)].tolist() == list(range(100)) and numbered.sizes[100] == 2


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
