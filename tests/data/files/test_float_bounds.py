"""Parquet files have no bounds of floats where a row group holds NaN, and those of all other columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.data.files.arrow_types import VALUE_KIND, arrow_schema
from airflow_paimon.data.files.write import FileTarget, RollingWriter

NAN = float("nan")
COLUMNS = [
    ("k", "DOUBLE NOT NULL"), ("i", "INT"), ("f", "FLOAT"), ("list", "ARRAY<DOUBLE>"), ("map", "MAP<DOUBLE, FLOAT>"),
    ("row", "ROW<a DOUBLE, b ARRAY<ROW<c FLOAT>>, s STRING>"),
]  # fmt: skip


def row(value: float | None) -> dict[str, Any]:
    return {
        "k": value, "i": 1, "f": value, "list": [value], "map": [(1.0, value)],
        "row": {"a": value, "b": [{"c": value}, None], "s": "x"},
    }  # fmt: skip


def bounds(path: Path, group: int) -> dict[str, bool]:
    found = pq.ParquetFile(path).metadata.row_group(group)
    columns = [found.column(i) for i in range(found.num_columns)]
    assert all(c.statistics.null_count == 0 for c in columns if c.path_in_schema != "row.b.list.element.c")
    return {c.path_in_schema: c.statistics.has_min_max for c in columns}


def test_a_row_group_with_nan_has_no_bounds_of_that_column(tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.t", COLUMNS, primary_keys=["k"], options={"bucket": "1"})
    writer = RollingWriter(FileTarget(store=table.store, schema=table.schema(), values=(), bucket=0))
    later = {**row(3.0), "k": NAN, "map": [(NAN, 1.0)]}
    groups = ([row(1.0), row(2.0)], [row(2.5), later], [{**row(4.0), "k": NAN, "f": NAN, "row": row(NAN)["row"]}])
    for number, group in enumerate(groups):
        rows = pa.RecordBatch.from_pylist(group, arrow_schema(table.schema().fields))
        rows = rows.append_column("_SEQUENCE_NUMBER", pa.array([number] * len(group), pa.int64()))
        writer.write(rows.append_column(VALUE_KIND, pa.array([0] * len(group), pa.int8())))
        writer._flush()
    [file] = writer.finish()
    path = tmp_path / "d.db" / "t" / "bucket-0" / file.file_name
    assert path.stat().st_size == file.file_size
    without = [{name for name, known in bounds(path, group).items() if not known} for group in range(3)]
    keys = {"_KEY_k", "k"}
    assert without == [
        set(), keys | {"map.key_value.key", "map.key_value.value"}, keys | {"f", "row.a", "row.b.list.element.c"},
    ]  # fmt: skip
    assert repr(pq.read_table(path, columns=["k", "f"]).to_pylist()[-1]) == "{'k': nan, 'f': nan}"
