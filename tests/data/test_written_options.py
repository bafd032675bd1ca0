"""Options that say how rows become files: thin files, row kinds in a column, other bucket functions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.read_splits import plan_read
from tests.data.tables import make_table, rows_of
from tests.data.test_compact import run

COLUMNS = {"k": "INT NOT NULL", "v": "STRING", "p": "STRING NOT NULL"}


def test_thin_files_hold_each_key_once(tmp_path: Path) -> None:
    options = {"data_file__thin_mode": "true", "bucket": "1"}
    table = make_table(tmp_path, COLUMNS, primary_keys=["k", "p"], partition_keys=["p"], **options)
    for v in "abc":
        write_arrow(table, rows_of(COLUMNS, [{"k": k, "v": v, "p": "x"} for k in range(3)]))
    run(table, max_sorted_runs=1)
    write_arrow(table, rows_of(COLUMNS, [{"k": 2, "v": "d", "p": "x"}]))
    for path in tmp_path.glob("**/bucket-0/*.parquet"):
        assert pq.read_schema(path).names == ["_SEQUENCE_NUMBER", "_VALUE_KIND", "k", "v", "p"]
    assert read_arrow(table, where=pc.field("k") > 0).column("v").to_pylist() == ["c", "d"]


def test_a_column_says_the_row_kind(tmp_path: Path) -> None:
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"], bucket="1", rowkind__field="v")

    def rows(*kinds: str | None) -> pa.Table:
        return rows_of(COLUMNS, [{"k": k, "v": v, "p": "x"} for k, v in enumerate(kinds)])

    write_arrow(table, rows("+I", "+u", "+I", "-d"))
    write_arrow(table, rows("-U", "+I", "+U"))
    found = {r["k"]: r["v"] for r in read_arrow(table).to_pylist()}
    assert found == {1: "+I", 2: "+U"}
    with pytest.raises(InvalidInputError, match=r"column 'v' \(rowkind.field\) must be one of .*, not None"):
        write_arrow(table, rows("+I", None))
    explicit = rows("-D", "-D").append_column("_row_kind", pa.array(["+I", "-D"]))
    write_arrow(table, explicit)
    assert {r["k"]: r["v"] for r in read_arrow(table).to_pylist()} == {0: "-D", 2: "+U"}
    write_arrow(table, rows("+I", "-D"), mode="overwrite")
    assert read_arrow(table).column("k").to_pylist() == [0]


@pytest.mark.parametrize("function", ["mod", "hive"])
@pytest.mark.parametrize("keyed", [True, False])
def test_a_look_up_reads_the_bucket_of_its_key(tmp_path: Path, function: str, keyed: bool) -> None:
    options = {"bucket": "5", "bucket_key": "k", "bucket_function__type": function}
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"] if keyed else [], **options)
    keys = [*range(-20, 20), 2**31 - 1, -(2**31)]
    write_arrow(table, rows_of(COLUMNS, [{"k": k, "v": str(k), "p": "x"} for k in keys]))
    assert {s.bucket for s in plan_scan(table).splits} == set(range(5))
    for key in keys:
        _, splits = plan_read(plan_scan(table), where=pc.field("k") == key)
        assert [s.bucket.bucket for s in splits] == [(key if function == "mod" else key & 0x7FFFFFFF) % 5]
        assert read_arrow(table, where=pc.field("k") == key).column("v").to_pylist() == [str(key)]
