"""``_ROW_ID`` and ``_SEQUENCE_NUMBER`` in reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.errors import FormatError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import run

IDS = ["_ROW_ID", "_SEQUENCE_NUMBER"]


def switched_on_later(folder: Path) -> Table:
    """A table whose files are older than its row tracking, which Paimon itself does not allow."""
    table = create_table(str(folder / "wh"), "d.t", [("k", "INT")], options={"bucket": "-1"})
    write_arrow(table, pa.table({"k": pa.array([1, 2], pa.int32())}))
    _switch(table, "true")
    return open_table(str(folder / "wh"), "d.t")


def _switch(table: Table, on: str) -> None:
    old = table.schema()
    new = replace(old, id=old.id + 1, options={**old.options, "row-tracking.enabled": on})
    table.store.create(table.paths.schema(new.id), new.to_bytes())


@pytest.mark.parametrize("column", IDS)
def test_file_without_ids_is_an_error_that_names_it(tmp_path: Path, column: str) -> None:
    table = switched_on_later(tmp_path)
    [name] = [p.name for p in (tmp_path / "wh" / "d.db" / "t" / "bucket-0").iterdir()]
    assert sorted(read_arrow(table).column("k").to_pylist()) == [1, 2]
    for asked in ({"columns": [column]}, {"columns": ["k"], "where": pc.field(column) > 0}):
        with pytest.raises(FormatError, match=f"d.t: file {name} has no row ids.*INSERT OVERWRITE"):
            read_arrow(table, **asked)


def test_rows_without_ids_get_no_new_rows_beside_them_until_they_are_overwritten(tmp_path: Path) -> None:
    table = switched_on_later(tmp_path)
    new = pa.table({"k": pa.array([3], pa.int32())})
    with pytest.raises(UnsafeOperationError, match=r"d.t: the table holds 1 files without row ids.*overwrite"):
        write_arrow(table, new)
    assert table.latest_snapshot_id() == 1
    assert len(list((tmp_path / "wh" / "d.db" / "t" / "bucket-0").iterdir())) == 1
    write_arrow(table, read_arrow(table), mode="overwrite")
    write_arrow(table, new)
    assert read_arrow(table, columns=["k", *IDS]).to_pydict() == {
        "k": [1, 2, 3], "_ROW_ID": [0, 1, 2], "_SEQUENCE_NUMBER": [2, 2, 3]
    }  # fmt: skip


def test_a_rollback_to_rows_without_ids_is_refused(tmp_path: Path) -> None:
    table = switched_on_later(tmp_path)
    write_arrow(table, read_arrow(table), mode="overwrite")
    with pytest.raises(UnsafeOperationError, match=r"snapshot 1 brings back 1 files without row ids.*Read the rows"):
        run(table, "rollback_to", snapshot=1)
    assert table.latest_snapshot_id() == 2 and not table.tag_names()
    write_arrow(table, pa.table({"k": pa.array([3], pa.int32())}))
    run(table, "rollback_to", snapshot=2)  # these rows have ids
    write_arrow(table, read_arrow(table, version=1), mode="overwrite")
    assert read_arrow(table, columns=["k", "_ROW_ID"]).to_pydict() == {"k": [1, 2], "_ROW_ID": [3, 4]}


def test_a_rollback_over_the_end_of_row_tracking_keeps_the_count_of_ids(tmp_path: Path) -> None:
    """Paimon keeps nextRowId while the option is off, so that no id is given out twice when it is on again."""
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    table = create_table(str(tmp_path / "wh"), "d.t", [("k", "INT")], options=options)
    write_arrow(table, pa.table({"k": pa.array([1, 2], pa.int32())}))
    _switch(table, "false")
    write_arrow(table, pa.table({"k": pa.array([3], pa.int32())}), mode="overwrite")
    run(table, "rollback_to", snapshot=1)
    assert sorted(read_arrow(table).column("k").to_pylist()) == [1, 2]
    _switch(table, "true")
    write_arrow(table, pa.table({"k": pa.array([4], pa.int32())}))
    found = read_arrow(table, columns=["k", "_ROW_ID"]).to_pylist()
    assert {r["k"]: r["_ROW_ID"] for r in found} == {1: 0, 2: 1, 4: 2}


def test_columns_do_not_exist_without_row_tracking(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "wh"), "d.t", [("k", "INT")], options={"bucket": "-1"})
    with pytest.raises(InvalidInputError, match="no column '_ROW_ID'"):
        read_arrow(table, columns=["_ROW_ID"])
    with pytest.raises(InvalidInputError, match="names column '_ROW_ID'"):
        read_arrow(table, where=pc.field("_ROW_ID") == 1)
