"""Which partitions a write, an overwrite, a drop and a read take for one: floats, nulls, and rows that are deletes."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.drop import drop_partitions
from tests.data.tables import make_table, rows_of
from tests.data.used_tables import compacted
from tests.oracles.canonical import assert_same_rows
from tests.oracles.drivers import JavaOracle

TEXTS = {"p": "STRING", "k": "INT NOT NULL", "v": "STRING"}


def partitions(table: Table) -> list[tuple[str, int]]:
    """(text of the partition value, key) of all rows."""
    return sorted((repr(r["p"]), r["k"]) for r in read_arrow(table).to_pylist())


VALUES = [0.0, -0.0, math.nan, 1.5, None]


@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT", "DOUBLE NOT NULL"])
def test_every_float_is_a_partition_of_its_own(tmp_path: Path, kind: str) -> None:
    """As in Paimon, which compares the stored bytes: 0.0 and -0.0 are two, and NaN is one."""
    keyed = kind.endswith("NOT NULL")
    columns = {"p": kind, "k": "INT NOT NULL", "v": "STRING"}
    options: dict[str, Any] = {"primary_keys": ["p", "k"], "bucket": "1"} if keyed else {}
    table = make_table(tmp_path, columns, partition_keys=["p"], **options)
    values = VALUES[:-1] if keyed else VALUES
    start = [{"p": p, "k": i, "v": "old"} for i, p in enumerate(values)]
    for at, value in enumerate(values):
        others = sorted((repr(v), i) for i, v in enumerate(values) if i != at)
        write_arrow(table, rows_of(columns, start), mode="overwrite")
        new = rows_of(columns, [{"p": value, "k": 9, "v": "new"}])
        write_arrow(table, new, mode="dynamic_overwrite")
        assert partitions(table) == sorted([*others, (repr(value), 9)])
        write_arrow(table, new, mode="overwrite", partition={"p": value})
        assert partitions(table) == sorted([*others, (repr(value), 9)])
        drop_partitions(table, [{"p": value}])
        assert partitions(table) == others
        text = "__DEFAULT_PARTITION__" if value is None else value
        choice = choose_partitions(table.schema(), [f"p={text}"], "d.t")
        assert [choice.matches((v,)) for v in values] == [i == at for i in range(len(values))]


@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT NOT NULL"])
def test_zeros_of_both_signs_are_replaced_together(tmp_path: Path, kind: str) -> None:
    """They are equal in Python, and two partitions all the same."""
    options: dict[str, Any] = {"primary_keys": ["p", "k"], "bucket": "1"} if "NOT NULL" in kind else {}
    columns = {"p": kind, "k": "INT NOT NULL", "v": "STRING"}
    table = make_table(tmp_path, columns, partition_keys=["p"], **options)
    for text in ("old", "older"):
        write_arrow(table, rows_of(columns, [{"p": p, "k": k, "v": text} for p in (0.0, -0.0) for k in (1, 2)]))
    new = [{"p": p, "k": 2, "v": "new"} for p in (0.0, -0.0)]
    write_arrow(table, rows_of(columns, new), mode="dynamic_overwrite")
    assert partitions(table) == [("-0.0", 2), ("0.0", 2)]
    assert set(read_arrow(table).column("v").to_pylist()) == {"new"}


def test_all_bit_patterns_of_nan_are_one_partition(tmp_path: Path) -> None:
    table = make_table(tmp_path, {"p": "DOUBLE", "k": "INT NOT NULL", "v": "STRING"}, partition_keys=["p"])
    odd = np.frombuffer(struct.pack("<2Q", 0x7FF8000000000001, 0xFFF8000000000000), "<f8")
    data = pa.table({"p": odd, "k": pa.array([1, 2], pa.int32()), "v": ["a", "b"]})
    write_arrow(table, data)
    assert partitions(table) == [("nan", 1), ("nan", 2)]
    assert len({s.partition for s in plan_scan(table).splits}) == 1
    write_arrow(table, data.slice(0, 1), mode="dynamic_overwrite")
    assert partitions(table) == [("nan", 1)]


@pytest.mark.parametrize("mode", ["append", "overwrite", "dynamic_overwrite"])
@pytest.mark.parametrize("default", ["__DEFAULT_PARTITION__", "nothing"])
def test_the_text_that_names_null_is_refused_as_a_partition(tmp_path: Path, default: str, mode: str) -> None:
    table = make_table(tmp_path, TEXTS, partition_keys=["p"], partition__default_name=default)
    write_arrow(table, rows_of(TEXTS, [{"p": None, "k": 1}]))
    for value in {default, "__DEFAULT_PARTITION__"}:
        with pytest.raises(InvalidInputError, match=f"'p' has the string '{value}', which represents null"):
            write_arrow(table, rows_of(TEXTS, [{"p": "a", "k": 2}, {"p": value, "k": 2}]), mode=mode)
    assert partitions(table) == [("None", 1)]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


KEYED = {"p": "STRING NOT NULL", "k": "INT NOT NULL", "v": "STRING"}


def keyed_table(folder: Path, **options: str) -> Table:
    table = make_table(folder, KEYED, primary_keys=["p", "k"], partition_keys=["p"], bucket="2", **options)
    write_arrow(table, rows_of(KEYED, [{"p": p, "k": k, "v": "old"} for p in "abc" for k in range(4)]))
    return table


def deletes(*rows: tuple[str, int], kinds: list[str] | None = None) -> pa.Table:
    data = rows_of(KEYED, [{"p": p, "k": k} for p, k in rows])
    return data.append_column("_row_kind", pa.array(kinds or ["-D"] * len(rows)))


def test_a_dynamic_overwrite_empties_a_partition_whose_rows_are_all_deletes(tmp_path: Path) -> None:
    table = keyed_table(tmp_path)
    result = write_arrow(table, deletes(("a", 0), ("b", 9), kinds=["-D", "+I"]), mode="dynamic_overwrite")
    assert partitions(table) == [("'b'", 9), *((f"'{p}'", k) for p in "c" for k in range(4))]
    assert (result["details"]["files"], result["details"]["buckets"]) == (1, 1)
    result = write_arrow(table, deletes(("b", 77)), mode="dynamic_overwrite")
    assert {p for p, _ in partitions(table)} == {"'c'"} and result["changed"]
    assert not write_arrow(table, deletes(("z", 1)), mode="dynamic_overwrite")["changed"]


def test_deletes_outside_the_partition_to_overwrite_are_refused(tmp_path: Path) -> None:
    table = keyed_table(tmp_path)
    with pytest.raises(InvalidInputError, match="p=b lie outside"):
        write_arrow(table, deletes(("b", 1)), mode="overwrite", partition={"p": "a"})
    assert len(partitions(table)) == 12


def test_rows_that_the_table_ignores_make_no_partition(tmp_path: Path) -> None:
    table = keyed_table(tmp_path, ignore_delete="true")
    assert not write_arrow(table, deletes(("a", 0)), mode="dynamic_overwrite")["changed"]
    assert len(partitions(table)) == 12


OLD_NULL = bytes.fromhex("000000010001000000000000") + bytes(8)
"""A null TIMESTAMP(6) as Paimon stored it before 1.1."""
ODD_NAN = encode_row([0.0], [parse_type("DOUBLE NOT NULL")])[:-8] + struct.pack("<Q", 0xFFF8000000000000)


@pytest.mark.oracle
@pytest.mark.parametrize(("kind", "value", "stored", "bucket"), [
    ("TIMESTAMP(6)", None, OLD_NULL, "-1"), ("DOUBLE NOT NULL", math.nan, ODD_NAN, "-1"),
    ("DOUBLE NOT NULL", math.nan, ODD_NAN, "1"),
])  # fmt: skip
def test_an_upsert_meets_the_rows_of_a_partition_that_is_stored_in_another_form(
    java_oracle: JavaOracle, tmp_path: Path, kind: str, value: object, stored: bytes, bucket: str
) -> None:
    """Java merges only rows whose partition has the same bytes."""
    columns, keys = {"p": kind, "k": "INT NOT NULL", "v": "STRING"}, ["k"] if value is None else ["p", "k"]
    table = make_table(tmp_path, columns, partition_keys=["p"], primary_keys=keys, bucket=bucket,
                       target_file_size="1 b")  # fmt: skip
    write_arrow(table, rows_of(columns, [{"p": value, "k": k, "v": "old"} for k in range(4)]))
    head = table.latest_snapshot()
    live = live_entries(table, head).values()
    entries = [some for e in live for some in (e.deleted(), e._replace(partition=stored))]
    index = [i._replace(partition=stored) for i in read_index_entries(table, head)]
    draft = Draft(kind=CommitKind.OVERWRITE, entries=entries, schema=table.schema(), index_entries=index)
    commit(table, lambda _: draft)
    write_arrow(table, rows_of(columns, [{"p": value, "k": k, "v": "new"} for k in (1, 2, 7)]))
    assert_same_rows(read_arrow(table), java_oracle.read(tmp_path, "d.t"))
    assert {r["k"]: r["v"] for r in read_arrow(table).to_pylist()} == {0: "old", 1: "new", 2: "new", 3: "old", 7: "new"}
    assert {i.partition for i in read_index_entries(table, table.latest_snapshot())} <= {stored}
    compacted(table, 2)
    head = table.latest_snapshot()
    assert {e.partition for e in live_entries(table, head).values()} == {stored}
    compacted(table, 2)
    assert table.latest_snapshot() == head, "a bucket in one form, whichever, is not written again for its form"
    # files of both forms without a common key, none of which has to be written again for another reason
    write_arrow(table, rows_of(columns, [{"p": value, "k": 9, "v": "other"}]))
    (new,) = (e for e in live_entries(table, table.latest_snapshot()).values() if not e.file.level)
    other = encode_row([value], [parse_type(kind)])
    assert new.partition == stored != other
    moved = new._replace(partition=other, file=new.file._replace(level=5))
    moves = Draft(kind=CommitKind.OVERWRITE, entries=[new.deleted(), moved], schema=table.schema())
    commit(table, lambda _: moves)
    compacted(table, 2)
    assert {e.partition for e in live_entries(table, table.latest_snapshot()).values()} == {other}
    assert_same_rows(read_arrow(table), java_oracle.read(tmp_path, "d.t"))
