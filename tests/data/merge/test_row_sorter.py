"""Rows sorted per bucket in bounded memory, and a key that comes twice found wherever the two rows lie."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.data.dynamic_buckets import Assigners
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.merge.sorted_runs import RowSorter
from airflow_paimon.data.write import TableWrite, distribute, plan_write
from tests.data.tables import make_table, rows_of

COLUMNS = {"k": "STRING NOT NULL", "j": "INT NOT NULL", "v": "STRING"}


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def plan(folder: Path, **options: str) -> TableWrite:
    return plan_write(make_table(folder, COLUMNS, primary_keys=["k", "j"], bucket="3", bucket_key="k", **options))


def fed(
    sorter: RowSorter, write: TableWrite, rows: list[dict[str, Any]], kinds: list[str] | None = None
) -> set[BucketKey]:
    keys = set()
    for at in range(0, len(rows), 7):
        data = rows_of(COLUMNS, rows[at : at + 7])
        if kinds is not None:
            data = data.append_column("_row_kind", pa.array(kinds[at : at + 7]))
        for part in distribute(write, conform_rows(data, write.schema, write.label), Assigners(None)):
            keys.add(BucketKey(part.partition, part.bucket))
            sorter.add(BucketKey(part.partition, part.bucket), part.batch, part.indices)
    return keys


@pytest.mark.parametrize("limit", [1, 500, 1 << 30])
def test_rows_come_back_in_order_and_nothing_is_left_on_disk(tmp_path: Path, scratch: Path, limit: int) -> None:
    write = plan(tmp_path)
    rows = [{"k": f"k{i % 40}", "j": i, "v": str(i)} for i in range(300)]
    random.Random(limit).shuffle(rows)
    with RowSorter(write.schema, write.label, limit) as sorter:
        keys = fed(sorter, write, rows)
        assert bool(list(scratch.rglob("*.arrow"))) == (limit < 1 << 30)
        found = {key: [r for b in sorter.rows(key) for r in b.to_pylist()] for key in keys}
    assert len(found) == 3
    for own in found.values():
        assert [(r["k"], r["j"]) for r in own] == sorted((r["k"], r["j"]) for r in own)
    together = [{n: r[n] for n in COLUMNS} for own in found.values() for r in own]
    assert sorted(together, key=lambda r: r["j"]) == sorted(rows, key=lambda r: r["j"])
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("limit", [1, 1 << 30], ids=["in-other-runs", "in-memory"])
@pytest.mark.parametrize("apart", [1, 60])
def test_a_key_that_comes_twice_is_refused(tmp_path: Path, scratch: Path, limit: int, apart: int) -> None:
    write = plan(tmp_path)
    rows = [{"k": "a", "j": i, "v": "x"} for i in range(80)]
    rows.insert(5 + apart, {"k": "a", "j": 5, "v": "twin"})
    with (
        pytest.raises(InvalidInputError, match="a primary key more than once, such as k = 'a', j = 5"),
        RowSorter(write.schema, write.label, limit) as sorter,
    ):
        for key in fed(sorter, write, rows):
            list(sorter.rows(key))
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("limit", [1, 1 << 30])
def test_what_the_table_ignores_is_left_out(tmp_path: Path, scratch: Path, limit: int) -> None:
    write = plan(tmp_path, ignore_delete="true")
    rows = [{"k": "a", "j": i, "v": "x"} for i in range(20)]
    with RowSorter(write.schema, write.label, limit) as sorter:
        (key,) = fed(sorter, write, rows, ["-D" if i % 2 else "+I" for i in range(20)])
        assert [r["j"] for b in sorter.rows(key) for r in b.to_pylist()] == list(range(0, 20, 2))


@pytest.mark.parametrize("limit", [1, 1 << 30], ids=["in-other-runs", "in-memory"])
def test_a_key_that_comes_twice_is_refused_even_if_one_row_is_ignored(tmp_path: Path, limit: int) -> None:
    """How much memory there is must not decide whether rows are refused."""
    write = plan(tmp_path, ignore_delete="true")
    rows = [{"k": "a", "j": i % 20, "v": "x"} for i in range(21)]
    with (
        pytest.raises(InvalidInputError, match="a primary key more than once, such as k = 'a', j = 0"),
        RowSorter(write.schema, write.label, limit) as sorter,
    ):
        for key in fed(sorter, write, rows, ["-D", *["+I"] * 20]):
            list(sorter.rows(key))


@pytest.mark.parametrize("limit", [1, 500, 1 << 30])
def test_rows_with_one_key_are_combined_across_runs(tmp_path: Path, scratch: Path, limit: int) -> None:
    """In the order in which they came, as the texts of listagg show."""
    options = {"merge_engine": "aggregation", "fields__v__aggregate_function": "listagg"}
    write = plan(tmp_path, **options)
    chance = random.Random(limit)
    rows = [{"k": f"k{chance.randrange(9)}", "j": 0, "v": chance.choice([None, str(i)])} for i in range(200)]
    expected: dict[str, list[str]] = {}
    for row in rows:
        expected.setdefault(row["k"], []).extend([row["v"]] if row["v"] else [])
    with RowSorter(write.schema, write.label, limit, combines=True) as sorter:
        keys = fed(sorter, write, rows)
        assert bool(list(scratch.rglob("*.arrow"))) == (limit < 1 << 30)
        found = [r for key in keys for b in sorter.rows(key) for r in b.to_pylist()]
    assert {r["k"]: r["v"] for r in found} == {k: ",".join(v) or None for k, v in expected.items()}
    assert len(found) == len(expected)
    assert set(found[0]) == {*COLUMNS, "_VALUE_KIND"}
