"""``_ROW_ID`` and ``_SEQUENCE_NUMBER`` in reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.errors import FormatError, InvalidInputError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow

IDS = ["_ROW_ID", "_SEQUENCE_NUMBER"]


def switched_on_later(folder: Path) -> Table:
    """A table whose files are older than its row tracking, which Paimon itself does not allow."""
    table = create_table(str(folder / "wh"), "d.t", [("k", "INT")], options={"bucket": "-1"})
    write_arrow(table, pa.table({"k": pa.array([1, 2], pa.int32())}))
    old = table.schema()
    new = replace(old, id=old.id + 1, options={**old.options, "row-tracking.enabled": "true"})
    table.store.create(table.paths.schema(new.id), new.to_bytes())
    return open_table(str(folder / "wh"), "d.t")


@pytest.mark.parametrize("column", IDS)
def test_file_without_ids_is_an_error_that_names_it(tmp_path: Path, column: str) -> None:
    table = switched_on_later(tmp_path)
    [name] = [p.name for p in (tmp_path / "wh" / "d.db" / "t" / "bucket-0").iterdir()]
    assert sorted(read_arrow(table).column("k").to_pylist()) == [1, 2]
    for asked in ({"columns": [column]}, {"columns": ["k"], "where": pc.field(column) > 0}):
        with pytest.raises(FormatError, match=f"d.t: file {name} has no row ids.*INSERT OVERWRITE"):
            read_arrow(table, **asked)


def test_columns_do_not_exist_without_row_tracking(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "wh"), "d.t", [("k", "INT")], options={"bucket": "-1"})
    with pytest.raises(InvalidInputError, match="no column '_ROW_ID'"):
        read_arrow(table, columns=["_ROW_ID"])
    with pytest.raises(InvalidInputError, match="names column '_ROW_ID'"):
        read_arrow(table, where=pc.field("_ROW_ID") == 1)
