"""Parquet files have no bounds of floats, from which Arrow leaves out NaN, and those of other columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.data import write_arrow

COLUMNS = [
    ("k", "DOUBLE NOT NULL"), ("i", "INT"), ("s", "STRING"), ("f", "FLOAT"), ("list", "ARRAY<DOUBLE>"),
    ("row", "ROW<a DOUBLE>"),
]  # fmt: skip


def test_floats_have_no_bounds(tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.t", COLUMNS, primary_keys=["k"], options={"bucket": "1"})
    nan = float("nan")
    rows = {"k": [1.0, nan], "i": pa.array([1, 2], pa.int32()), "s": ["a", "b"], "f": pa.array([nan, 1], pa.float32()),
            "list": [[nan], [1.0]], "row": [{"a": nan}, {"a": 1.0}]}  # fmt: skip
    write_arrow(table, pa.table(rows))
    [path] = (tmp_path / "d.db" / "t" / "bucket-0").glob("*.parquet")
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    bounded = {c.path_in_schema for c in columns if c.statistics is not None and c.statistics.has_min_max}
    assert bounded == {"_SEQUENCE_NUMBER", "_VALUE_KIND", "i", "s"}
