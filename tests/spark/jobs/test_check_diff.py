"""The view diff of rules: by key, in this process and in tasks, with every type, and of columns that were widened."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.schema_plan import WidenColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.data.diff.against import plan_own_changes
from airflow_paimon.spark.jobs.check_views import CheckViews
from airflow_paimon.spark.jobs.diff_branches import diff_frame
from tests.core.tables import alter_table
from tests.spark.jobs.operations import correct, diff, in_tasks, run, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = [
    ("k", "INT NOT NULL"), ("n", "INT"), ("d", "DOUBLE"), ("price", "DECIMAL(10, 2)"), ("day", "DATE"),
    ("at", "TIMESTAMP(6)"), ("zoned", "TIMESTAMP(6) WITH LOCAL TIME ZONE"), ("tags", "ARRAY<STRING>"),
    ("m", "MAP<STRING, INT>"), ("s", "ROW<a INT, b STRING>"), ("raw", "BYTES"),
]  # fmt: skip
TYPES = pa.schema([
    ("k", pa.int32()), ("n", pa.int32()), ("d", pa.float64()), ("price", pa.decimal128(10, 2)), ("day", pa.date32()),
    ("at", pa.timestamp("us")), ("zoned", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string())),
    ("m", pa.map_(pa.string(), pa.int32())), ("s", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ("raw", pa.binary()),
])  # fmt: skip


def row(k: int, n: int | None = 1, **more: Any) -> dict[str, Any]:
    whole = {"d": 0.5, "price": Decimal("1.25"), "day": date(2026, 11, 18), "at": datetime(2026, 11, 18, 1),
             "zoned": datetime(2026, 11, 18, 1, tzinfo=UTC), "tags": ["x", None], "m": [("a", 1), ("b", None)],
             "s": {"a": 1, "b": None}, "raw": b"\x00"}  # fmt: skip
    return {"k": k, "n": n, **whole, **more}


def put(table: Table, *rows: dict[str, Any], kind: str = "+I", types: pa.Schema = TYPES) -> None:
    data = pa.Table.from_pylist(list(rows), types)
    write_arrow(table, data.append_column("_row_kind", pa.array([kind] * len(rows))))


def differences(spark: SparkSession, warehouse: Path) -> dict[int, tuple[Any, ...]]:
    """By key: the kind, and the columns that tell something, now and before; the same in tasks and in this process."""
    plan = plan_own_changes(open_context(build_request("diff_branches", values(warehouse, branch="fix"))), "fix")
    here = diff_frame(spark, plan).collect()
    with in_tasks():
        there = diff_frame(spark, plan).collect()
    assert sorted(here, key=lambda r: r.k) == sorted(there, key=lambda r: r.k)
    return {r.k: (r._change, r.n, r._before and r._before.n, r.m, r.s and r.s.a) for r in here}


def test_rows_that_differ_by_key(spark: SparkSession, tmp_path: Path) -> None:
    options = {"bucket": "2"}
    main = create_table(str(tmp_path), "d.t", COLUMNS, primary_keys=["k"], options=options)
    put(main, *(row(k) for k in range(6)), row(6, d=0.0))
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    assert differences(spark, tmp_path) == {}
    fix = main.branch("fix")
    put(fix, row(1), row(2, 5), row(3, m=[("b", None), ("a", 1)]), row(4, m=None, s=None), row(9), row(6, d=-0.0))
    put(fix, row(5), kind="-D")
    same = ({"a": 1, "b": None}, 1)
    assert differences(spark, tmp_path) == {
        2: ("changed", 5, 1, *same), 4: ("changed", 1, 1, None, None), 5: ("deleted", 1, 1, *same),
        6: ("changed", 1, 1, *same), 9: ("added", 1, None, *same),
    }  # fmt: skip


def test_a_column_that_the_branch_has_widened(spark: SparkSession, tmp_path: Path) -> None:
    main = create_table(str(tmp_path), "d.t", COLUMNS, primary_keys=["k"], options={"bucket": "1"})
    put(main, row(1), row(2))
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    fix = main.branch("fix")
    alter_table(fix, [WidenColumn(name="n", type="BIGINT")])
    wide = TYPES.set(1, pa.field("n", pa.int64()))
    put(fix, row(1, 2**40), types=wide)
    put(fix, row(2), kind="-D", types=wide)
    found = {k: (kind, now, before) for k, (kind, now, before, *_) in differences(spark, tmp_path).items()}
    assert found == {1: ("changed", 2**40, 1), 2: ("deleted", 1, 1)}


def test_rows_that_differ_without_a_key_are_those_of_the_diff(spark: SparkSession, tmp_path: Path) -> None:
    main = create_table(str(tmp_path), "d.t", COLUMNS, options={"bucket": "-1"})
    write_arrow(main, pa.Table.from_pylist([row(1), row(1), row(2), row(3, d=0.0), row(4)], TYPES))
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    correct(spark, tmp_path, "DELETE FROM branch WHERE k = 2; UPDATE branch SET d = -0.0D WHERE k = 3")
    write_arrow(main.branch("fix"), pa.Table.from_pylist([row(1), row(1)], TYPES))
    asked = build_request("check_branch_data", values(tmp_path, branch="fix"))
    plan = plan_own_changes(open_context(asked), "fix")
    rows = CheckViews(spark, asked, plan, {}).diff().collect()  # type: ignore[arg-type]
    found = sorted((r.k, r._change, str(r.d), r._before and r._before.k) for r in rows)
    assert found == [(1, "added", "0.5", None), (1, "added", "0.5", None), (2, "deleted", "0.5", 2),
                     (3, "added", "-0.0", None), (3, "deleted", "0.0", 3)]  # fmt: skip
    total = diff(spark, tmp_path)["total"]
    assert (total["added"], total["deleted"], total["changed"]) == (3, 2, 0)
