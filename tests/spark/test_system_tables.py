"""$audit_log and $ro of a branch in Python, read_table and the data source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.data import read_system_table
from airflow_paimon.spark import read_table, register
from tests.core.tables import run as operate
from tests.spark.jobs.operations import make_branch, put

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG = "d.t$branch_fix$audit_log"
CHANGED = [("+U", 1, "fixed", "a"), ("-D", 2, None, "a"), ("+I", 50, "new", "a")]


def change(warehouse: Path, **options: str) -> None:
    _, fix = make_branch(warehouse, **options)
    put(fix, [(1, "fixed", "a", "+U"), (2, None, "a", "-D"), (50, "new", "a", "+I")])


def found(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=str)


def test_read_table_and_the_data_source_give_kinds_and_deletes(spark: SparkSession, tmp_path: Path) -> None:
    change(tmp_path)
    where = "dt = 'a' AND (k < 3 OR k = 50)"
    expected = sorted([("+I", 0, "a0", "a"), *CHANGED], key=str)
    assert read_table(spark, str(tmp_path), LOG).columns == ["rowkind", "k", "v", "dt"]
    assert found(read_table(spark, str(tmp_path), LOG, where=where)) == expected
    deleted = read_table(spark, str(tmp_path), LOG, where="rowkind = '-D'", columns=["k", "rowkind"])
    assert found(deleted) == [(2, "-D")]
    assert found(read_table(spark, str(tmp_path), LOG, version=3, columns=["rowkind"]).distinct()) == [("+I",)]
    register(spark)
    options = {"warehouse": str(tmp_path), "table": LOG}
    frame = spark.read.format("airflow_paimon").options(**options).load()
    assert frame.columns == ["rowkind", "k", "v", "dt"]
    assert found(frame.where(where)) == expected
    pruned = spark.read.format("airflow_paimon").options(**options, where=where, columns="v,rowkind").load()
    assert found(pruned) == sorted([(v, kind) for kind, _, v, _ in expected], key=str)
    with pytest.raises(Exception, match="system table, which only a batch read takes"):
        frame.write.format("airflow_paimon").options(**options).mode("append").save()


def test_the_read_optimized_table_has_what_was_compacted(spark: SparkSession, tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path)
    ro = {"warehouse": str(tmp_path), "table": "d.t$branch_fix$ro"}
    assert read_table(spark, ro["warehouse"], ro["table"]).count() == 0
    put(fix, [(1, "whole", "b")], mode="overwrite", partition={"dt": "b"})
    put(fix, [(2, "later", "b")])
    assert found(read_table(spark, ro["warehouse"], ro["table"])) == [(1, "whole", "b")]
    register(spark)
    assert found(spark.read.format("airflow_paimon").options(**ro).load()) == [(1, "whole", "b")]
    assert read_system_table(main, "$ro").num_rows == 0


def test_sequence_numbers_come_with_the_option(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path)
    put(fix, [(1, "fixed", "a", "+U")])
    for branch in ("main", "fix"):
        operate(main, "alter_table", change=["set table-read.sequence-number.enabled=true"], branch=branch)
    log = read_system_table(fix, "audit_log")
    assert log.column_names == ["rowkind", "_SEQUENCE_NUMBER", "k", "v", "dt"]
    numbers = {(r["dt"], r["k"]): r["_SEQUENCE_NUMBER"] for r in log.to_pylist()}
    assert numbers["a", 1] == max(n for (dt, _), n in numbers.items() if dt == "a")


def test_what_is_no_such_system_table_is_refused(tmp_path: Path) -> None:
    main, _ = make_branch(tmp_path)
    with pytest.raises(InvalidInputError, match=r"\$consumers has no rows of the table"):
        read_system_table(main, "consumers")
    with pytest.raises(InvalidInputError, match="no column 'kind'"):
        read_system_table(main, "audit_log", columns=["kind"])
    with pytest.raises(NotFoundError):
        read_system_table(main.branch("nope"), "audit_log")
