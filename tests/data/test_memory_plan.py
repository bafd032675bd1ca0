"""What fits into the memory that plain Python may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.data.memory_plan import DEFAULT_BYTES, OPEN_BYTES, fits, memory_of
from tests.core.tables import append, make_table

MIB = 1 << 20


def test_bytes_rows_columns_and_files_count(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, "1")
    [file] = plan_scan(table).splits[0].files
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("d", "DECIMAL(30, 2)"), ("r", "ROW<a INT, b ARRAY<INT>>")]
    schema = create_table(str(tmp_path / "wide"), "d.t", columns).schema()
    width = 8 + 32 + 16 + (8 + 8 + (32 + 8))

    def taken(size: int, rows: int, suffix: str = "parquet", columns: TableSchema = schema) -> int:
        name = f"data-1.{suffix}"
        return memory_of([file._replace(file_size=size, row_count=rows, file_name=name)], columns) - OPEN_BYTES

    assert taken(MIB, 0) == taken(MIB, 0, "orc") == 6 * MIB
    assert taken(MIB, 0, "avro") == 4 * MIB
    assert taken(MIB, 0, "what.ever") == 8 * MIB
    assert taken(0, 1000) == 1000 * width
    assert taken(MIB, 1000) == 6 * MIB + 1000 * width
    assert memory_of([file] * 3, schema) == 3 * memory_of([file], schema)


@pytest.mark.parametrize(
    ("files", "memory", "expected"),
    [(0, 0, False), (0, 1, True), (1, OPEN_BYTES, False), (1, 2 * OPEN_BYTES, True), (600, DEFAULT_BYTES, False)],
)
def test_a_limit(tmp_path: Path, files: int, memory: int, expected: bool) -> None:
    table = make_table(tmp_path)
    append(table, "1")
    found = plan_scan(table)
    assert fits(list(found.splits[0].files) * files, found.schema, memory) is expected
