"""NaN beside O3, Paimon's Java engine: it is the greatest value there, and readers skip row groups by their bounds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.where import where_argument
from tests.oracles.drivers import JavaOracle

pytestmark = pytest.mark.oracle

NAN = float("nan")
COLUMNS = [("k", "DOUBLE NOT NULL"), ("d", "DOUBLE"), ("f", "FLOAT")]
ROWS = pa.table({"k": [1.0, NAN], "d": [1.0, NAN], "f": pa.array([1.0, NAN], pa.float32())})
FILTERS = ((">", 5.0), (">=", 5.0), ("=", "NaN"), ("!=", 1.0))


@pytest.mark.parametrize("keys", [(), ("k",)], ids=["append", "keyed"])
def test_java_finds_nan_in_our_files_and_we_in_its(java_oracle: JavaOracle, tmp_path: Path, keys: tuple[str]) -> None:
    ours = create_table(str(tmp_path), "d.t", COLUMNS, primary_keys=keys, options={"bucket": "1", "bucket-key": "k"})
    theirs = create_table(str(tmp_path), "d.u", COLUMNS, primary_keys=keys, options={"bucket": "1", "bucket-key": "k"})
    write_arrow(ours, ROWS)
    java_oracle.write(tmp_path, "d.u", ROWS)
    for name in ROWS.column_names:
        for operator, value in FILTERS:
            found = java_oracle.read(tmp_path, "d.t", filters=[(name, operator, value)])
            assert [repr(v) for v in found.column(name).to_pylist()] == ["nan"], (name, operator)
            text = f"{name} {operator} '{value}'"
            for table in (ours, theirs):
                rows = read_arrow(table, where=where_argument(table, text))
                assert [repr(v) for v in rows.column(name).to_pylist()] == ["nan"], text
