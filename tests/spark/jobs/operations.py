"""Operations on rows, for tests: a table with three partitions, its branch, and ``correct``/``diff`` on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, read_splits
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.execution import run_operation
from airflow_paimon.spark.jobs import run_spark_operation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[Any, ...]]


def values(warehouse: Path | str, **more: Any) -> dict[str, Any]:
    return {"warehouse": str(warehouse), "table": "d.t", **more}


def run(warehouse: Path | str, operation: str, **more: Any) -> OperationResult:
    return run_operation(build_request(operation, values(warehouse, **more)))


def correct(spark: SparkSession, warehouse: Path, sql: str | None = None, **more: Any) -> OperationResult:
    if sql is not None:
        file = warehouse / "query.sql"
        file.write_text(sql)
        more["sql"] = str(file)
    return run_spark_operation(spark, build_request("correct_branch", values(warehouse, **{"branch": "fix", **more})))


def diff(spark: SparkSession, warehouse: Path, **more: Any) -> dict[str, Any]:
    """Compare in this process, as small differences are, and in tasks: both must find the same."""
    request = build_request("diff_branches", values(warehouse, **{"branch": "fix", **more}))
    here = dict(run_spark_operation(spark, request).details)
    with in_tasks():
        there = dict(run_spark_operation(spark, request).details)
    assert _without_order(there) == _without_order(here)
    return here


@contextmanager
def in_tasks() -> Iterator[None]:
    """Treat nothing as small enough for the driver process."""
    limit, read_splits.LIMIT_BYTES = read_splits.LIMIT_BYTES, -1
    try:
        yield
    finally:
        read_splits.LIMIT_BYTES = limit


def _without_order(details: dict[str, Any]) -> dict[str, Any]:
    """Without a primary key any of the rows may be a sample, and of equal rows any row id."""
    out: dict[str, Any] = json.loads(json.dumps(details))
    for partition in out["partitions"] if out["key"] in ([], ["_ROW_ID"]) else ():
        partition["samples"] = {kind: len(rows) for kind, rows in partition["samples"].items()}
    return out


def rows_of(table: Table, **options: Any) -> Rows:
    return sorted(tuple(r.values()) for r in read_arrow(table, **options).to_pylist())


def put(table: Table, rows: Rows, **options: Any) -> None:
    columns = ["k", "v", "dt", "_row_kind"][: len(rows[0])]
    write_arrow(table, pa.table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))), **options)


def make_branch(warehouse: Path, *, primary: bool = True, **options: str) -> tuple[Table, Table]:
    """Make main with the partitions a, b and c of ten rows each, and its branch ``fix``."""
    main = create_table(
        str(warehouse),
        "d.t",
        [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")],
        partition_keys=["dt"],
        primary_keys=["dt", "k"] if primary else [],
        options={"bucket": "2" if primary else "-1", **options},
    )
    for dt in "abc":
        put(main, [(k, f"{dt}{k}", dt) for k in range(10)])
    run(warehouse, "create_tag", tag="base")
    run(warehouse, "create_branch", branch="fix", tag="base")
    return main, main.branch("fix")
