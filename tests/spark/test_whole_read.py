"""Reads that Spark's tasks plan, also those of the data source: the rows of ``read_arrow``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from airflow_paimon.core.errors import FormatError, InvalidInputError
from airflow_paimon.core.table.predicate import Condition
from airflow_paimon.core.table.scan import data_file_path, plan_scan
from airflow_paimon.core.table.visibility import hold_each_key_once
from airflow_paimon.data import grouped_read, layers, read_arrow, whole_read, write_arrow
from airflow_paimon.data.chain.whole_read import WholeChain, plan_chain_or_whole
from airflow_paimon.data.grouped_read import grouped
from airflow_paimon.data.merge.sections import key_ranges
from airflow_paimon.data.system_tables import read_system_table
from airflow_paimon.data.whole_read import WholeRead, bytes_of, plan_group, plan_or_whole
from airflow_paimon.spark import datasource, read_table, shares, sql
from airflow_paimon.spark import whole_read as in_tasks
from airflow_paimon.spark.datasource import PaimonReader
from airflow_paimon.spark.failures import task_errors
from airflow_paimon.spark.shares import GroupShare, pieces_of, read_group, read_rows
from airflow_paimon.spark.statements import select
from airflow_paimon.spark.statements.pruning import needed_of
from airflow_paimon.spark.tasks import OPEN_COST_BYTES
from tests.data.chain.tables import DAYS, chain_table, seen
from tests.data.test_whole_read import KINDS, NO_KEYS, branch_of_columns, make, make_anew, put, used
from tests.randomness import chance, lives

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_same_rows(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_read, "MANY_ENTRIES", 0)
    monkeypatch.setattr(in_tasks, "FILES_A_PLAN", 4)
    monkeypatch.setattr(in_tasks, "TASK_BYTES", 4000)
    monkeypatch.setattr(layers, "FEW_FILES", 0)
    for kind in ("keyed", "deletion vectors", "data evolution", "fallback branch"):
        warehouse = str(tmp_path / kind.replace(" ", "_"))
        table = used(kind, chance(f"spark {kind}"), warehouse)
        expected = read_arrow(table)
        found = read_table(spark, warehouse, "d.t", columns=["dt", "v"], where="v > 40 AND k >= 0")
        high = [(r["dt"], r["v"]) for r in expected.to_pylist() if r["v"] > 40]
        assert sorted(map(tuple, found.collect())) == sorted(high)
        audit = read_system_table(table, "audit_log", columns=["rowkind", "v"]).to_pylist()
        rows = read_table(spark, warehouse, "d.t$audit_log", columns=["rowkind", "v"]).collect()
        assert sorted(map(tuple, rows)) == sorted((r["rowkind"], r["v"]) for r in audit)
    [row] = sql(spark, warehouse, "SELECT count(*), sum(v) FROM d.t WHERE v > 40").collect()
    assert tuple(row) == (len(high), sum(v for _, v in high) or None)


def test_chains(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways give the rows of one process, whether a chain is planned at once, or bucket by bucket."""
    rows = [(k, 3, "new") if k % 5 else (k, 3, "", "-D") for k in range(0, 40, 3)]
    table = chain_table(tmp_path, [*DAYS, ("delta", "20250811", rows), ("delta", "20250815", rows)], buckets=3)
    warehouse = str(tmp_path)
    hybrid = {"gap_policy": "carry_forward", "chain_read": "hybrid"}
    expected, all_of_it = seen(table), seen(table, **hybrid)
    high = [(k, v) for k, _, v, day in expected if day >= "20250814" and k < 20]
    monkeypatch.setattr(whole_read, "MANY_ENTRIES", 0)
    monkeypatch.setattr(grouped_read, "MANY_ENTRIES", 0)
    assert isinstance(plan_chain_or_whole(table), WholeChain)
    for files, size in ((1, 4000), (5000, 1 << 27)):
        monkeypatch.setattr(in_tasks, "FILES_A_PLAN", files)
        monkeypatch.setattr(in_tasks, "TASK_BYTES", size)
        found = read_table(spark, warehouse, "d.t", **hybrid).collect()
        assert sorted(map(tuple, found), key=repr) == all_of_it
        found = read_table(spark, warehouse, "d.t", columns=["k", "v"], where="dt >= '20250814' AND k < 20").collect()
        assert sorted(map(tuple, found)) == sorted(high)
    query = "SELECT k, v FROM d.t WHERE dt >= '20250814' AND k < 20"
    assert sorted(map(tuple, sql(spark, warehouse, query).collect())) == sorted(high)
    counted = sql(spark, warehouse, "SELECT count(*) FROM days", views={"days": "d.t"}).collect()
    assert counted[0][0] == len(expected)


def test_a_branch_that_is_made_anew_before_its_rows_are_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_read, "MANY_ENTRIES", 0)
    branch = branch_of_columns(str(tmp_path))
    expected = sorted((tuple(row.values()) for row in read_arrow(branch).to_pylist()), key=repr)
    frame = read_table(spark, str(tmp_path), "d.t$branch_b")
    make_anew(branch)
    assert sorted(map(tuple, frame.collect()), key=repr) == expected


@pytest.mark.parametrize("by_tasks", [False, True])
def test_a_branch_that_is_made_anew_while_a_query_is_planned(
    spark: SparkSession, tmp_path: Path, by_tasks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "FEW_FILES", -1)
    if by_tasks:
        monkeypatch.setattr(whole_read, "MANY_ENTRIES", 0)
    branch = branch_of_columns(str(tmp_path))
    expected = sorted((r["k"], r["b"]) for r in read_arrow(branch).to_pylist() if r["b"] is not None)

    def needed(*given: Any) -> Any:
        make_anew(branch)
        return needed_of(*given)

    monkeypatch.setattr(select, "needed_of", needed)
    frame = sql(spark, str(tmp_path), "SELECT k, b FROM d.`t$branch_b` WHERE b IS NOT NULL")
    assert sorted(map(tuple, frame.collect())) == expected != []


def test_tasks_get_files_by_their_bytes(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_read, "MANY_ENTRIES", 0)
    monkeypatch.setattr(in_tasks, "TASK_BYTES", 400)  # less than a file has
    table = make("append", str(tmp_path))
    for _ in range(12):
        put(table, chance("tasks"), "a")
    splits = plan_scan(table).splits
    files = sum(len(s.files) for s in splits)
    frame = read_table(spark, str(tmp_path), "d.t")
    tasks = frame.groupBy(sf.spark_partition_id()).count().count()
    assert 6 < tasks <= files == 12
    with pytest.raises(InvalidInputError, match="no column 'x'"):
        read_table(spark, str(tmp_path), "d.t", columns=["x"])
    table.store.delete(data_file_path(table.schema(), splits[0].values, splits[0].bucket, splits[0].files[0]))
    with pytest.raises(FormatError, match=splits[0].files[0].file_name), task_errors():
        frame.collect()


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_of_the_data_source_plan_their_files(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasource, "FILES_A_TASK", 2)
    monkeypatch.setattr(shares, "TASK_BYTES", 2 * OPEN_COST_BYTES + 1)
    draw = chance(f"data source {kind}")
    monkeypatch.setattr(datasource, "TASK_BYTES", draw.choice([1, 20_000, 1 << 30]))
    table = used(kind, draw)

    monkeypatch.setattr(layers, "FEW_FILES", 0)

    def read(where: str | None, columns: list[str], many: int = 0, system: str | None = None) -> tuple[int, list[str]]:
        monkeypatch.setattr(grouped_read, "MANY_ENTRIES", many)
        reader = PaimonReader(table, None, None, columns, where, "empty", None, system)
        tasks = reader.partitions()
        batches = [batch for task in tasks for batch in reader.read(task)]
        return len(tasks), sorted(repr(row) for b in batches for row in b.to_pylist())

    filters = [f"v > {draw.randint(0, 99)}", f"dt >= 'b' AND k < {draw.randint(5, 20)}", "k < 0"]
    for where in (None, *filters):
        columns = draw.sample(["dt", "k", "v"], draw.randint(1, 3))
        assert read(where, columns)[1] == read(where, columns, many=1 << 30)[1], where
    for system in ("audit_log", "ro"):
        assert read(None, ["v"], system=system)[1] == read(None, ["v"], many=1 << 30, system=system)[1]
    if kind in NO_KEYS:
        tasks, rows = read(None, ["k"])
        assert tasks > 1 and rows
        without = (1, [])  # a task without files
        assert read("k < 0", ["v"]) == without or kind == "data evolution"  # of column files any row may match


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("life", range(lives(1, 20)))
def test_tasks_that_share_a_group(kind: str, life: int) -> None:
    """Together they give its rows, and no two of them get files of one bucket whose keys overlap."""
    draw = chance(f"shares {kind} {life}")
    table, size = used(kind, draw), draw.choice([1, 10_000, 1 << 30])
    whole = plan_or_whole(table, more_than=0)
    assert isinstance(whole, WholeRead)
    types = [field.type for field in table.schema().key_fields] if table.schema().primary_keys else []
    branches = [grouped(branch, files=draw.choice([1, 5, 1000])) for branch in whole.branches]
    for of, group in ((branch.of, group) for branch in branches for group in branch.groups):
        parts, tasks = group.read(), draw.randint(1, 4)
        read, splits = plan_group(of, parts)
        found = [b for n in range(tasks) for b in read_group(of, GroupShare(parts, n, tasks, size))]
        expected = [batch for split in splits for batch in read_rows(read, split)]
        assert rows_in(found) == rows_in(expected)
        ranges = {f.file_name: (low, high) for s in splits for low, high, f in key_ranges(s.files, types) or ()}
        some = pieces_of(splits, size)
        pieces = [[(p.bucket.partition, p.bucket.bucket, f) for p in piece for f in p.files] for piece in some]
        for one, other in combinations(pieces if types else [], 2):
            for (day, bucket, a), (other_day, other_bucket, b) in product(one, other):
                (low, high), (other_low, other_high) = ranges[a.file_name], ranges[b.file_name]
                apart = (day, bucket) != (other_day, other_bucket) or high < other_low or other_high < low
                assert apart or hold_each_key_once([a, b], table.schema())


def rows_in(batches: Iterable[pa.RecordBatch]) -> list[str]:
    return sorted(repr(row) for batch in batches for row in batch.to_pylist())


def test_how_large_the_files_are_is_estimated() -> None:
    table = make("append")
    for day, number in (("a", 2000), ("b", 20_000), ("c", 2000)):
        ks = pa.array(range(number), pa.int32())
        write_arrow(table, pa.table({"dt": [day] * number, "k": ks, "v": ks}))
    size = sum(f.file_size for s in plan_scan(table).splits for f in s.files)
    whole = plan_or_whole(table, more_than=0)
    assert isinstance(whole, WholeRead) and whole.rows == 24_000
    assert size / 2 < bytes_of(whole) < size * 2
    assert size / 8 < bytes_of(replace(whole, rows=None)) < size * 8
    some = plan_or_whole(table, predicate=Condition("dt", "=", "c"), more_than=0)
    assert isinstance(some, WholeRead) and some.rows == 8000 and bytes_of(some) < bytes_of(whole)


def test_the_files_of_one_bucket_are_divided_among_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_read, "MANY_ENTRIES", 0)
    monkeypatch.setattr(datasource, "FILES_A_TASK", 2)
    monkeypatch.setattr(shares, "TASK_BYTES", 2 * OPEN_COST_BYTES + 1)
    table = make("keyed")
    for k in range(9):
        write_arrow(table, pa.table({"dt": ["a"], "k": pa.array([k], pa.int32()), "v": pa.array([k], pa.int32())}))
    reader = PaimonReader(table, None, None, ["k"], None, "empty", None, None)
    tasks = reader.partitions()
    assert len(tasks) >= 4  # of two buckets
    assert sorted(k for task in tasks for batch in reader.read(task) for k in batch.column(0).to_pylist()) == [
        *range(9)
    ]


def test_what_a_filter_leaves_is_divided_as_a_small_read(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make("append")
    for k in range(40):
        write_arrow(table, pa.table({"dt": ["a"], "k": pa.array([k], pa.int32()), "v": pa.array([k], pa.int32())}))

    def tasks(where: str, many: int) -> int:
        monkeypatch.setattr(grouped_read, "MANY_ENTRIES", many)
        return len(PaimonReader(table, None, None, ["k"], where, "empty", None).partitions())

    for where in ("k < 20", "k >= 0"):
        assert tasks(where, 0) == tasks(where, 1 << 30) > 5
