"""Tables whose columns are called as columns that we add to rows were: such names now can't be those of columns."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, read_splits, write_arrow
from airflow_paimon.spark import read_table, sql, write_table
from airflow_paimon.spark.jobs import run_spark_operation
from tests.core.tables import run
from tests.randomness import every

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = [
    *(f"__airflow_paimon_{name}" for name in ("file", "position", "count", "paired", "row", "rows", "group", "task",
                                              "change", "source_row", "action", "target", "source", "number")),
    *("_TASK", "_BUCKET", "_SIDE", "_CHANGED", "_CHAIN_POSITION", "__row", "__count", "_tmp_metadata_row_index"),
]  # fmt: skip
KINDS: dict[str, dict[str, str]] = {
    "keyed": {"bucket": "2"},
    "keyed with a changelog": {"bucket": "1", "changelog-producer": "full-compaction"},
    "dynamic buckets": {"bucket": "-1"},
    "append": {"bucket": "-1"},
    "row tracking": {"bucket": "-1", "row-tracking.enabled": "true"},
    "vectors": {"bucket": "-1", "deletion-vectors.enabled": "true"},
    "both": {"bucket": "-1", "row-tracking.enabled": "true", "deletion-vectors.enabled": "true"},
}
NO_KEYS = ("append", "row tracking", "vectors", "both")


def make(warehouse: Path, kind: str) -> Table:
    keys = [] if kind in NO_KEYS else ["k"]
    columns = [("k", "INT NOT NULL"), *((name, "INT") for name in NAMES)]
    return create_table(str(warehouse), "d.t", columns, primary_keys=keys, options=KINDS[kind])


def row(key: int, value: int) -> dict[str, int]:
    return {"k": key, **{name: value * 100 + at for at, name in enumerate(NAMES)}}


def rows(*found: dict[str, int]) -> pa.Table:
    return pa.Table.from_pylist(list(found), pa.schema([(n, pa.int32()) for n in ("k", *NAMES)]))


def in_order(found: pa.Table) -> list[dict[str, Any]]:
    return sorted(found.to_pylist(), key=lambda r: r["k"])


def quoted(name: str) -> str:
    return f"`{name}`"


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "by_tasks"), every(9, product(KINDS, (False, True))))
def test_a_life(
    spark: SparkSession, tmp_path: Path, kind: str, by_tasks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path, kind)
    monkeypatch.setattr(read_splits, "LIMIT_BYTES", -1 if by_tasks else read_splits.LIMIT_BYTES)
    write_arrow(table, rows(*(row(k, 1) for k in range(4))))
    columns = read_table(spark, str(tmp_path), "d.t").schema
    write_table(spark.createDataFrame([tuple(row(4, 1).values())], columns), str(tmp_path), "d.t")
    expected = {k: row(k, 1) for k in range(5)}

    def check() -> None:
        wanted = [expected[k] for k in sorted(expected)]
        assert in_order(read_arrow(table)) == wanted
        found = [r.asDict() for r in read_table(spark, str(tmp_path), "d.t").collect()]
        assert sorted(found, key=lambda r: r["k"]) == wanted

    check()
    run(table, "create_tag", tag="then")
    run(table, "create_branch", branch="fix", tag="then")
    for name in NAMES:
        expected[1][name] += 7
    changes = ", ".join(f"{quoted(n)} = {quoted(n)} + 7" for n in NAMES)
    sql(spark, str(tmp_path), f"UPDATE d.t SET {changes} WHERE k = 1 AND {quoted(NAMES[0])} = 100")
    check()
    sql(spark, str(tmp_path), f"DELETE FROM d.t WHERE k = 2 OR {quoted(NAMES[1])} < 0")
    del expected[2]
    check()
    source = (
        read_table(spark, str(tmp_path), "d.t")
        .where("k IN (0, 3)")
        .selectExpr("CASE k WHEN 0 THEN 0 ELSE 9 END AS k", *(f"{quoted(n)} + 50 AS {quoted(n)}" for n in NAMES))
    )
    text = "MERGE INTO d.t USING s ON t.k = s.k WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    sql(spark, str(tmp_path), text, views={"s": source})
    expected[0] = {"k": 0, **{n: v + 50 for n, v in list(row(0, 1).items())[1:]}}
    expected[9] = {"k": 9, **{n: v + 50 for n, v in list(row(3, 1).items())[1:]}}
    check()
    values = {"warehouse": str(tmp_path), "table": "d.t"}
    diff = run_spark_operation(spark, build_request("diff_branches", {**values, "branch": "fix", "against": "main"}))
    alone = 1 if kind not in ("append", "vectors") else 3
    found = {name: diff.details["total"][name] for name in ("added", "changed", "deleted")}
    assert found == {"added": alone, "changed": 3 - alone, "deleted": alone}
    for key in (20, 21, 22):
        write_arrow(table, rows(expected.setdefault(key, row(key, 2))))
    compacted = run_spark_operation(spark, build_request("compact", {**values, "min_files": 2}))
    assert compacted.changed or "changelog" in kind
    check()


@pytest.mark.parametrize("name", ["file", ""])
def test_no_table_has_such_a_column(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match="is a column name that Paimon keeps"):
        create_table(str(tmp_path), "d.t", [("k", "INT"), (internal_column(name), "INT")])
