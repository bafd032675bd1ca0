"""Buckets of many sorted runs: as few files are open at once as allowed, and the merge gives the same."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.merge import runs as merging
from airflow_paimon.data.merge.runs import few_runs
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from tests import randomness
from tests.data.tables import make_table, rows_of
from tests.data.test_compact import run
from tests.data.test_compact_keyed import told
from tests.stores import _Wrapper

COLUMNS = {"p": "STRING NOT NULL", "k": "INT NOT NULL", "s": "INT", "n": "BIGINT", "v": "STRING"}
AT_ONCE = 5
FILES = 24
ENGINES: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "deduplicate by a field": {"sequence_field": "s"},
    "deduplicate with a changelog": {"changelog_producer": "lookup"},
    "partial-update": {"merge_engine": "partial-update"},
    "partial-update by groups": {
        "merge_engine": "partial-update",
        "fields.s.sequence_group": "n,v",
        "fields.n.aggregate_function": "sum",
        "fields.v.aggregate_function": "listagg",
    },
    "aggregation": {
        "merge_engine": "aggregation",
        "sequence_field": "s",
        "fields.n.aggregate_function": "sum",
        "fields.v.aggregate_function": "listagg",
    },
}


class _OpenFiles(_Wrapper):
    """Counts the data files that are open at once."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.open = self.most = 0

    def open_input(self, path: str) -> Any:
        self.open += 1
        self.most = max(self.most, self.open)
        return _Closing(super().open_input(path), self)


class _Closing:
    def __init__(self, file: Any, store: _OpenFiles) -> None:
        self._file = file
        self._store = store

    def __enter__(self) -> Any:
        return self._file.__enter__()

    def __exit__(self, *about: Any) -> None:
        self._store.open -= 1
        self._file.__exit__(*about)


def many(folder: Path, chance: random.Random, files: int, options: dict[str, str]) -> Table:
    """One bucket with so many files of level 0, whose rows are few and overlap."""
    table = make_table(folder, COLUMNS, primary_keys=["p", "k"], partition_keys=["p"], bucket="1",
                       write_only="true", **options)  # fmt: skip
    for number in range(files):
        keys = chance.sample(range(30), chance.randint(1, 9))
        data = rows_of(COLUMNS, [
            {"p": "a", "k": k, "s": chance.choice([None, 1, number]), "n": chance.randint(0, 9),
             "v": chance.choice([None, f"v{number}"])}
            for k in keys
        ])  # fmt: skip
        plain = options.get("merge_engine", "deduplicate") == "deduplicate"
        kinds = [chance.choice(["+I", "+U", "-D"]) if plain and number % 3 == 0 else "+I" for _ in keys]
        write_arrow(table, data.append_column("_row_kind", pa.array(kinds)))
    return table


def rows(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in read_arrow(table).to_pylist())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.every(2)
def test_a_merge_of_many_runs_gives_what_a_merge_of_all_at_once_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    table = many(tmp_path / "one", randomness.chance(engine), FILES, ENGINES[engine])
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    other = open_table(str(tmp_path / "two"), "d.t")
    expected = rows(table)
    result = run(table)
    compacted, changes = rows(table), told(table, result) if "changelog" in engine else []
    assert len(expected) > 15 and (changes or "changelog" not in engine)
    monkeypatch.setattr(merging, "MOST_RUNS", AT_ONCE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert rows(other) == expected
    result = run(other)
    assert rows(other) == compacted == expected
    assert (told(other, result) if "changelog" in engine else []) == changes
    assert result.details["files_before"] == FILES
    assert not [p for p in (tmp_path / "temporary").iterdir() if p.name != f"airflow-paimon-{os.getuid()}"]


def test_as_few_files_are_open_at_once_as_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = many(tmp_path, random.Random(7), FILES, {})
    store = _OpenFiles(table.store)
    watched = Table(store, table.name)
    expected = rows(table)
    assert rows(watched) == expected
    assert store.most > 2 * AT_ONCE
    assert store.open == 0
    monkeypatch.setattr(merging, "MOST_RUNS", AT_ONCE)
    store.most = 0
    assert rows(watched) == expected
    assert (store.most, store.open) == (AT_ONCE, 0)
    store.most = 0
    read, (split,) = plan_read(plan_scan(watched))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    started = read_split(replace(read, batch_rows=2), split)
    assert next(started).num_rows
    assert list((tmp_path / "temporary").iterdir()) != []
    started.close()  # type: ignore[attr-defined]
    assert list((tmp_path / "temporary").iterdir()) == []
    assert store.most <= AT_ONCE


@pytest.mark.parametrize("number", [1, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE, 40, 41, 300])
def test_first_runs_stay_alone_and_all_others_keep_their_order(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(merging, "MOST_RUNS", AT_ONCE)
    runs = [iter([pa.record_batch({"n": [i]})]) for i in range(number)]

    def align(some: Any) -> Any:
        assert len(some) <= AT_ONCE
        batches = [next(r) for r in some]
        yield batches, [np.zeros(b.num_rows) for b in batches]

    with few_runs(runs, align) as few:
        assert len(few) <= AT_ONCE
        assert list(few[:2]) == runs[:2]
        assert [n for run in few for b in run for n in b.column(0).to_pylist()] == list(range(number))
