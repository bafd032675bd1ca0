"""Chain tables and layered tables through Spark: the same rows as in one process, by both ways of reading."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.schema.schema_plan import RemoveOption, SetOption
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark import read_table, write_table
from airflow_paimon.spark.datasource import register
from airflow_paimon.spark.native_scan import divide
from tests.core.tables import alter_table
from tests.data.chain.compactions import compact
from tests.data.chain.tables import (
    DAYS,
    EXPECTED,
    GAPPED,
    PARTIAL,
    TWO_VALUES,
    Row,
    Writes,
    chain_table,
    day_is,
    on,
    planned_chain,
    seen,
    set_options,
    write,
)
from tests.data.tables import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def through_spark(spark: SparkSession, warehouse: Path, **options: Any) -> list[Row]:
    return sorted((tuple(r) for r in read_table(spark, str(warehouse), "d.t", **options).collect()), key=repr)


def through_source(spark: SparkSession, warehouse: Path, name: str = "d.t", **options: str) -> list[Row]:
    register(spark)
    asked = {"warehouse": str(warehouse), "table": name, **options}
    return sorted((tuple(r) for r in spark.read.format("airflow_paimon").options(**asked).load().collect()), key=repr)


def test_daily_chain(spark: SparkSession, tmp_path: Path) -> None:
    table = chain_table(tmp_path, DAYS)
    everything = sorted((r for rows in EXPECTED.values() for r in rows), key=repr)
    assert through_spark(spark, tmp_path) == through_source(spark, tmp_path) == everything
    assert through_spark(spark, tmp_path, where="dt = '20250811'") == EXPECTED["20250811"]
    two = "dt IN ('20250811', '20250812') AND k = 1"
    found = [(1, 2, "1-1", "20250811"), (1, 2, "1-1", "20250812")]
    assert through_spark(spark, tmp_path, where=two) == through_source(spark, tmp_path, where=two) == found
    some = "dt BETWEEN '20250811' AND '20250813'"
    assert through_spark(spark, tmp_path, where=some, columns=["dt"]) == [
        (day,) for day, rows in sorted(EXPECTED.items()) if "20250811" <= day <= "20250813" for _ in rows
    ]
    changes = on("20250811", (2, 2, "1-1"), (4, 1, "1"))
    assert through_spark(spark, tmp_path, branch="delta", where="dt = '20250811'") == changes
    assert through_source(spark, tmp_path, "d.t$branch_delta", where="dt = '20250811'") == changes
    moment = str(table.branch("delta").snapshot(2).time_millis)
    assert through_source(spark, tmp_path, timestamp=moment) == seen(table, timestamp=moment)
    # what is stored as a full partition is Spark's own reader's
    read = planned_chain(table)
    assert all(not divide(spark, part, splits).merged for part, splits in read.layers)
    assert {t.values[0] for s in read.chains for t in s.targets} == {"20250809", "20250811", "20250813"}


def test_groups_hours_partial_updates_and_value_filters(spark: SparkSession, tmp_path: Path) -> None:
    hourly = chain_table(
        tmp_path / "hours",
        [
            ("snapshot", "CN/20250809/02", [(4, 1, "a"), (5, 1, "a")]),
            ("delta", "CN/20250810/03", [(5, 2, "b")]),
            ("delta", "CN/20250810/05", [(6, 1, "a"), (4, 2, "", "-D")]),
            ("delta", "US/20250810/05", [(7, 1, "a")]),
        ],
        partitions={"region": "STRING", "dt": "STRING", "hour": "STRING"},
        form=("$dt $hour:00:00", "yyyyMMdd HH:mm:ss"),
        chain_keys="dt,hour",
    )
    five = "dt = '20250810' AND hour = '05'"
    found = through_spark(spark, tmp_path / "hours", columns=["region", "k", "v"], where=five)
    assert found == [("CN", 5, "b"), ("CN", 6, "a"), ("US", 7, "a")]
    assert through_source(spark, tmp_path / "hours") == seen(hourly)
    folded = chain_table(tmp_path / "folds", PARTIAL, values=TWO_VALUES, merge_engine="partial-update")
    assert through_spark(spark, tmp_path / "folds") == through_source(spark, tmp_path / "folds") == seen(folded)
    writes = [("snapshot", "20250810", [(1, 1, "old")]), ("delta", "20250811", [(1, 2, "new")])]
    chain_table(tmp_path / "stale", writes)
    stale = "dt = '20250811' AND v = 'old'"
    assert through_spark(spark, tmp_path / "stale", where=stale) == []
    assert read_table(spark, str(tmp_path / "stale"), "d.t").where(stale).collect() == []


def test_gaps(spark: SparkSession, tmp_path: Path) -> None:
    table = chain_table(tmp_path, GAPPED)
    gap = "dt = '20250812'"
    carried = seen(table, where=day_is("20250812"), gap_policy="carry_forward")
    assert carried == on("20250812", (1, 1, "a"), (2, 1, "a"))
    assert through_spark(spark, tmp_path, where=gap) == through_source(spark, tmp_path, where=gap) == []
    assert through_spark(spark, tmp_path, where=gap, gap_policy="carry_forward") == carried
    assert through_source(spark, tmp_path, where=gap, **{"gap-policy": "carry_forward"}) == carried
    with pytest.raises(InvalidInputError, match="gap_policy must be one of"):
        read_table(spark, str(tmp_path), "d.t", gap_policy="nearest")


def test_layered_tables(spark: SparkSession, tmp_path: Path) -> None:
    """``scan.fallback-branch`` and ``scan.primary-branch``: a missing branch is an error, never half the rows."""
    columns = {"k": "INT NOT NULL", "s": "INT", "v": "STRING", "dt": "STRING NOT NULL"}
    keyed = {"primary_keys": ["dt", "k"], "partition_keys": ["dt"], "bucket": "1"}
    main = make_table(tmp_path, columns, **keyed)  # type: ignore[arg-type]
    other = main.branch("other")
    other.store.create(other.paths.schema(0), main.store.read(main.paths.schema(0)))
    _put(main, "a", (1, "main"), (2, "main"))
    _put(other, "a", (1, "other"))
    _put(other, "b", (3, "other"))
    _put(other, "b", (3, "again"))
    for key, expected in (
        ("scan.fallback-branch", [(1, 0, "main", "a"), (2, 0, "main", "a"), (3, 0, "again", "b")]),
        ("scan.primary-branch", [(1, 0, "other", "a"), (3, 0, "again", "b")]),
    ):
        alter_table(main, [SetOption(key=key, value="other")])
        assert through_spark(spark, tmp_path) == through_source(spark, tmp_path) == seen(main) == expected
        set_options(main, {key: "gone"})  # as Java leaves it when the branch is deleted
        for read in (through_spark, through_source):
            with pytest.raises(Exception, match=r"'gone'.*does not exist") as failure:
                read(spark, tmp_path)
            assert read is through_source or failure.type is NotFoundError
        alter_table(main, [RemoveOption(key=key)])


def _put(table: Table, day: str, *rows: tuple[int, str]) -> None:
    write(table, ["k", "s", "v"], ["dt"], day, [(k, 0, v) for k, v in rows])


def test_writes(spark: SparkSession, tmp_path: Path) -> None:
    writes: Writes = [
        ("snapshot", "20250810", [(1, 1, "a")]),
        ("delta", "20250811", [(2, 1, "b")]),
    ]
    table = chain_table(tmp_path, writes)
    compact(table, "dt=20250811")
    late = spark.createDataFrame([(3, 2, "late", "20250811")], "k int, s int, v string, dt string")
    with pytest.raises(UnsafeOperationError, match="would be invisible"):
        write_table(late, str(tmp_path), "d.t", branch="delta")
    with pytest.raises(InvalidInputError, match="compact_chain_table --pending"):
        write_table(late, str(tmp_path), "d.t", branch="delta", on_stale="rebuild")
    done = write_table(late, str(tmp_path), "d.t", branch="delta", on_stale="record", operation_id="late")
    assert [s["partition"] for s in done["details"]["stale"]] == ["dt=20250811"]
    compact(table, pending=True, max_chain_length=9)
    full = on("20250811", (1, 1, "a"), (2, 1, "b"), (3, 2, "late"))
    assert seen(table, where=day_is("20250811")) == full
    again = write_table(late, str(tmp_path), "d.t", branch="delta", on_stale="record", operation_id="late")
    assert again["snapshot_after"] == done["snapshot_after"]
    register(spark)
    source = late.write.format("airflow_paimon").option("warehouse", str(tmp_path)).option("table", "d.t$branch_delta")
    with pytest.raises(PySparkException, match="would be invisible"):
        source.mode("append").save()
    with pytest.raises(PySparkException, match="compact_chain_table --pending"):
        source.option("on-stale", "drop").mode("append").save()
    source.option("mode", "dynamic_overwrite").option("on-stale", "record").mode("overwrite").save()
    compact(table, pending=True, max_chain_length=9)
    assert seen(table, where=day_is("20250811")) == on("20250811", (1, 1, "a"), (3, 2, "late"))
