"""Dynamic buckets written by many tasks: a key gets one bucket, whichever tasks its rows come to."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_paimon.core.errors import ConflictError, FormatError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.bucket import hash_rows
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.partition_values import encode_partition
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.write import plan_write, write_rows
from airflow_paimon.spark import sql, write_table
from airflow_paimon.spark.datasource import register
from airflow_paimon.spark.rows_in import temporary_conf
from airflow_paimon.spark.streaming.sink import commit_batch
from tests.data.hash_indexes import DYNAMIC, SAME_HASH, check_indexes
from tests.randomness import chance
from tests.spark.jobs.operations import correct, in_tasks, rows_of, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL"))
DT = [parse_type("STRING NOT NULL")]
TASKS = {"spark.sql.shuffle.partitions": "5", "spark.sql.adaptive.enabled": "false"}
Model = dict[tuple[int, str], str]


def make(warehouse: Path, **options: str) -> Table:
    keys = {"partition_keys": ["dt"], "primary_keys": ["dt", "k"]}
    return create_table(str(warehouse), "d.t", COLUMNS, options={**DYNAMIC, **options}, **keys)


def check(table: Table, model: Model) -> None:
    check_indexes(table)
    assert rows_of(table) == sorted((k, v, dt) for (k, dt), v in model.items())


def some(spark: SparkSession, random: Random, v: str, dts: str = "abc") -> tuple[DataFrame, Model]:
    keys = [*range(40), *(k for pair in SAME_HASH for k in pair)]
    model = {(random.choice(keys), random.choice(dts)): v for _ in range(30)}
    given = [(k, v, dt) for (k, dt) in model] * 2
    return spark.createDataFrame(given, "k bigint, v string, dt string").repartition(4), model


def without(model: Model, dts: set[str]) -> Model:
    return {key: v for key, v in model.items() if key[1] not in dts}


def test_tasks_of_every_way_to_write_agree(spark: SparkSession, tmp_path: Path) -> None:
    random = chance("dynamic buckets in tasks")
    table = make(tmp_path)
    where: dict[str, Any] = {"warehouse": str(tmp_path), "name": "d.t"}
    register(spark)
    with temporary_conf(spark, TASKS):
        rows, model = some(spark, random, "first")
        write_table(rows, **where)
        check(table, model)
        rows, new = some(spark, random, "again")
        write_table(rows, **where)
        check(table, model := model | new)
        rows, new = some(spark, random, "source")
        rows.write.format("airflow_paimon").options(warehouse=str(tmp_path), table="d.t").mode("append").save()
        check(table, model := model | new)
        rows, new = some(spark, random, "dynamic", "ad")
        write_table(rows, mode="dynamic_overwrite", **where)
        check(table, model := without(model, {dt for _, dt in new}) | new)
        rows, new = some(spark, random, "b only", "b")
        options = {"warehouse": str(tmp_path), "table": "d.t", "partition": "dt=b"}
        rows.write.format("airflow_paimon").options(**options).mode("overwrite").save()
        check(table, model := without(model, {"b"}) | new)
        rows, new = some(spark, random, "last")
        write_table(rows, **where)
        check(table, model | new)


def test_a_hash_in_two_buckets_refuses_the_write_of_another_key(spark: SparkSession, tmp_path: Path) -> None:
    """The driver sees it before it commits, as no task looks at hashes that it has no rows of."""
    table = make(tmp_path)
    given = pa.table({"k": list(range(8)), "v": ["old"] * 8, "dt": ["a"] * 8})
    write_arrow(table, given)
    write_arrow(table, given.set_column(2, "dt", pa.array(["b"] * 8)))
    first, second = (
        e for e in read_index_entries(table, table.latest_snapshot()) if e.partition == encode_partition(("a",), DT)
    )
    hashes = table.store.read(f"index/{first.file_name}")
    mine = table.store.read(f"index/{second.file_name}")
    table.store.replace(f"index/{second.file_name}", hashes[:4] + mine[4:])
    both = hash_rows([pa.array(range(8), pa.int64())], [parse_type("BIGINT NOT NULL")])
    held = {int(h) for h in np.frombuffer(hashes[:4] + mine[:4], ">i4")}
    key = next(k for k in range(8) if int(both[k]) not in held)
    files = set(table.store.walk(""))
    row = spark.createDataFrame([(key, "new", "a")], "k bigint, v string, dt string")
    with pytest.raises(FormatError, match=r"dt=a can't be written.* two buckets, the first of them in 0 and 1"):
        write_table(row, str(tmp_path), "d.t")
    assert set(table.store.walk("")) == files
    write_table(row.selectExpr("k", "v", "'b' AS dt"), str(tmp_path), "d.t")
    assert (key, "new", "b") in rows_of(table)


@pytest.mark.every(2)
@pytest.mark.parametrize("place", ["here", "in tasks"])
def test_statements_and_corrections_keep_each_key_in_its_bucket(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    random = chance(f"dynamic buckets corrected {place}")
    table = make(tmp_path)
    rows, model = some(spark, random, "first")
    write_table(rows, str(tmp_path), "d.t")
    with ExitStack() as stack:
        if place == "in tasks":
            stack.enter_context(temporary_conf(spark, TASKS))
            stack.enter_context(in_tasks())
        sql(spark, str(tmp_path), "UPDATE d.t SET v = 'updated' WHERE k % 2 = 0")
        check(table, model := {key: "updated" if key[0] % 2 == 0 else v for key, v in model.items()})
        merge = """
            MERGE INTO d.t USING (SELECT explode(sequence(0L, 60L)) AS k, 'b' AS dt) s ON t.k = s.k AND t.dt = s.dt
            WHEN MATCHED AND s.k % 3 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'merged'
            WHEN NOT MATCHED THEN INSERT (k, v, dt) VALUES (s.k, 'inserted', s.dt)
        """
        sql(spark, str(tmp_path), merge)
        known = {k for k, dt in model if dt == "b"}
        for k in range(61):
            if k not in known:
                model[k, "b"] = "inserted"
            elif k % 3:
                model[k, "b"] = "merged"
            else:
                del model[k, "b"]
        check(table, model)
        run(tmp_path, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
        query = "SELECT explode(sequence(50L, 70L)) AS k, 'upserted' AS v, 'a' AS dt"
        correct(spark, tmp_path, query, mode="upsert")
        model |= {(k, "a"): "upserted" for k in range(50, 71)}
        check(table.branch("fix"), model)
        query = "SELECT k + 5 AS k, 'moved' AS v, dt FROM branch WHERE dt = 'c'"
        correct(spark, tmp_path, query, partitions=["dt=c"])
        model = without(model, {"c"}) | {(k + 5, "c"): "moved" for k, dt in model if dt == "c"}
        check(table.branch("fix"), model)
        run(tmp_path, "merge_branch", branch="fix", writers_stopped=True)
        check(table, model)
        sql(spark, str(tmp_path), "INSERT INTO d.t SELECT k, 'late', dt FROM d.t WHERE k > 3")
        check(table, {key: "late" if key[0] > 3 else v for key, v in model.items()})


def test_a_batch_of_a_stream_is_committed_once_with_its_index(tmp_path: Path) -> None:
    """Each batch plans anew; a repeated one leaves no index file behind, and one that came too late is refused."""
    table = make(tmp_path)

    def batch(number: int, keys: range, between: range = range(0)) -> None:
        write = plan_write(table, tasks_share_buckets=True)
        given = pa.table({"k": list(keys), "v": [f"batch {number}"] * len(keys), "dt": ["a"] * len(keys)})
        files = write_rows(write, [conform_rows(given, write.schema, write.label)])
        if between:
            write_arrow(table, given.slice(0, 1).set_column(0, "k", pa.array([between[0]])))
        commit_batch(table, write, files, "query", number)

    batch(0, range(10))
    batch(1, range(5, 20))
    check(table, {(k, "a"): "batch 0" if k < 5 else "batch 1" for k in range(20)})
    files = set(table.store.names("index"))
    batch(1, range(5, 20))
    assert set(table.store.names("index")) == files
    with pytest.raises(ConflictError, match="after the dynamic buckets of its rows were chosen"):
        batch(2, range(30, 40), between=range(50, 51))
    batch(2, range(30, 40))
    check_indexes(table)
    assert len(rows_of(table)) == 31


@pytest.mark.thorough
def test_keys_that_move_between_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """The key lacks the partition column: inserts move it, corrections and statements don't leave it in two."""
    options = {"bucket": "-1", "dynamic-bucket.target-row-num": "7"}
    keys = {"partition_keys": ["dt"], "primary_keys": ["k"]}
    table = create_table(str(tmp_path), "d.t", COLUMNS, options=options, **keys)

    def keyed(view: Table, model: dict[int, tuple[str, str]]) -> None:
        assert rows_of(view) == sorted((k, v, dt) for k, (v, dt) in model.items())

    with ExitStack() as stack:
        stack.enter_context(temporary_conf(spark, TASKS))
        stack.enter_context(in_tasks())
        frame = spark.createDataFrame([(k, "a", "abc"[k % 3]) for k in range(40)], "k bigint, v string, dt string")
        write_table(frame.repartition(4), str(tmp_path), "d.t")
        model = {k: ("a", "abc"[k % 3]) for k in range(40)}
        sql(spark, str(tmp_path), "INSERT INTO d.t SELECT k, 'moved', 'b' FROM d.t WHERE k < 12")
        keyed(table, model := model | dict.fromkeys(range(12), ("moved", "b")))
        sql(spark, str(tmp_path), "UPDATE d.t SET v = 'updated' WHERE k % 4 = 0")
        keyed(table, model := {k: ("updated" if k % 4 == 0 else v, dt) for k, (v, dt) in model.items()})
        merge = """
            MERGE INTO d.t USING (SELECT explode(sequence(30L, 50L)) AS k, '{dt}' AS dt) s ON {on}
            WHEN MATCHED THEN UPDATE SET v = 'merged' WHEN NOT MATCHED THEN INSERT (k, v, dt) VALUES (s.k, 'new', s.dt)
        """
        with pytest.raises(InvalidInputError, match=r"the key k=\d+ in dt=c, and dt=., which stays, has it as well"):
            sql(spark, str(tmp_path), merge.format(dt="c", on="t.k = s.k AND t.dt = s.dt"))
        keyed(table, model)
        sql(spark, str(tmp_path), merge.format(dt="c", on="t.k = s.k"))
        keyed(
            table, model := model | {k: ("merged", model[k][1]) if k in model else ("new", "c") for k in range(30, 51)}
        )
        run(tmp_path, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
        fix = table.branch("fix")
        with pytest.raises(InvalidInputError, match="which stays, has it as well"):
            correct(spark, tmp_path, "SELECT 13L AS k, 'x' AS v, 'c' AS dt", mode="upsert")
        with pytest.raises(InvalidInputError, match="which stays, has it as well"):
            correct(spark, tmp_path, "SELECT 13L AS k, 'x' AS v, 'c' AS dt", partitions=["dt=c"])
        keyed(fix, model)
        query = """
            SELECT 13L AS k, 'x' AS v, 'c' AS dt, '+I' AS _row_kind UNION ALL SELECT 13L, 'x', 'b', '-D'
            UNION ALL SELECT 99L, 'x', 'a', '+I'
        """
        correct(spark, tmp_path, query, mode="upsert")
        keyed(fix, model := model | {13: ("x", "c"), 99: ("x", "a")})
        query = "SELECT k, 'both' AS v, CASE WHEN k % 2 = 0 THEN 'a' ELSE 'b' END AS dt FROM branch WHERE dt <> 'c'"
        correct(spark, tmp_path, query, partitions=["dt=a", "dt=b"])
        keyed(fix, model := {k: (v, dt) if dt == "c" else ("both", "ab"[k % 2]) for k, (v, dt) in model.items()})
        run(tmp_path, "merge_branch", branch="fix", writers_stopped=True)
        sql(spark, str(tmp_path), "DELETE FROM d.t WHERE k % 5 = 0")
        keyed(table, model := {k: v for k, v in model.items() if k % 5})
        run(tmp_path, "create_branch", branch="b", snapshot=table.latest_snapshot_id())
        sql(spark, str(tmp_path), "UPDATE d.`t$branch_b` SET v = 'in place' WHERE k % 2 = 1")
        sql(spark, str(tmp_path), "DELETE FROM d.`t$branch_b` WHERE k = 1")
        run(tmp_path, "merge_branch", branch="b")  # a writer that stays open knows where each of these keys is
        model = {k: ("in place" if k % 2 else v, dt) for k, (v, dt) in model.items() if k != 1}
        keyed(table, model)
        sql(spark, str(tmp_path), "INSERT INTO d.`t$branch_b` VALUES (1000, 'new', 'a')")
        with pytest.raises(UnsafeOperationError, match="may have keys that were in other partitions"):
            run(tmp_path, "merge_branch", branch="b")
