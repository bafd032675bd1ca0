"""What counts as small enough for one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.data.read_splits import LIMIT_BYTES, LIMIT_ROWS, OPEN_BYTES, fits_in_process
from tests.core.tables import append, make_table


@pytest.mark.parametrize(
    ("count", "size", "rows", "fits"),
    [
        (0, 0, 0, True),
        (1, LIMIT_BYTES - OPEN_BYTES, 1, True),
        (1, LIMIT_BYTES, 1, False),
        (LIMIT_BYTES // OPEN_BYTES, 0, 1, True),
        (LIMIT_BYTES // OPEN_BYTES + 1, 0, 1, False),
        (1, 1, LIMIT_ROWS + 1, False),
    ],
)
def test_bytes_files_and_rows_are_bounded(tmp_path: Path, count: int, size: int, rows: int, fits: bool) -> None:
    table = make_table(tmp_path)
    append(table, "1")
    [file] = plan_scan(table).splits[0].files
    assert fits_in_process([file._replace(file_size=size, row_count=rows)] * count) is fits
