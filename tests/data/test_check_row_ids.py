"""check_table on row-tracking tables: ids that are missing, on two rows, or ahead of the table's counter."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.format.manifest import DataFile, ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data.check_rows import duplicate_row_ids
from airflow_paimon.data.write import plan_write, write_rows
from tests.core.tables import run
from tests.data.row_statements import statement
from tests.data.test_copy_on_write import insert, make, renamed
from tests.data.test_row_columns import switched_on_later
from tests.oracles.golden import golden_index


def found(table: Table, **asked: Any) -> dict[str, str]:
    findings = run(table, "check_table", **asked).details["findings"]
    return {f["id"]: f["message"] for f in findings if "row-ids" in f["id"]}


def copied(table: Table, name: str, **changes: Any) -> str:
    """Add a live file once more under another name, as other engines do by a clone or a rollback."""
    entry = next(e for e in live_entries(table, table.latest_snapshot()).values() if e.file.row_count > 1)
    folder = Path(table.store.uri.removeprefix("file://")) / "bucket-0"
    shutil.copy(folder / entry.file.file_name, folder / name)
    file: DataFile = entry.file._replace(file_name=name, **changes)
    new = ManifestEntry(0, entry.partition, 0, -1, file)
    commit(table, lambda _: Draft(kind=CommitKind.APPEND, entries=[new], schema=table.schema()))
    return entry.file.file_name


def test_lives_of_the_connector_and_of_this_package_are_clean(golden: Callable[[str], Path], tmp_path: Path) -> None:
    for life in golden_index("row-tracking-fuzz"):
        table = open_table(str(golden("row-tracking-fuzz") / "wh"), life["table"])
        assert not found(table), life["table"]
    table = make(tmp_path)
    insert(table, (1, "a"), (2, "b"), (3, "c"))
    statement(table, renamed(i2="B"))
    statement(table, lambda row: row if row["id"] != 3 else None, [{"id": 9, "name": "z"}])
    assert not found(table)


def test_ids_on_two_rows(tmp_path: Path) -> None:
    table = make(tmp_path)
    insert(table, (1, "a"), (2, "b"))
    old = copied(table, "copy.parquet")
    [(name, message)] = found(table).items()
    assert name == "duplicate-row-ids:main"
    assert "2 row ids are on two rows, e.g. 0 in copy.parquet" in message and old in message
    assert not found(table, verify_files=False)


def test_ids_on_two_rows_of_files_that_store_them(tmp_path: Path) -> None:
    """Ranges alone prove nothing: stored files leave holes in theirs."""
    table = make(tmp_path)
    insert(table, *((i, "x") for i in range(6)))
    statement(table, lambda row: None if row["id"] in (2, 3) else {**row, "name": "y"})
    insert(table, (7, "z"))
    assert not found(table)
    copied(table, "copy.parquet")
    [(name, message)] = found(table).items()
    assert name == "duplicate-row-ids:main"
    assert "4 row ids are on two rows" in message
    head = table.latest_snapshot()
    assert head is not None
    files = [e.file for e in live_entries(table, head).values()]
    assert duplicate_row_ids(table, head, files, limit=3) is None


def test_ids_that_were_not_given_out_and_files_without_ids(tmp_path: Path) -> None:
    table = make(tmp_path)
    insert(table, (1, "a"), (2, "b"))
    copied(table, "copy.parquet", first_row_id=5)
    [(name, message)] = found(table).items()
    assert name == "row-ids-ahead:main" and "from nextRowId (2) on (copy.parquet)" in message
    other = switched_on_later(tmp_path / "other")
    insert_keys(other, 3, 4)
    copied(other, "copy.parquet", first_row_id=0)  # beside a file without ids
    assert "duplicate-row-ids:main" in found(other)
    name, message = next(iter((n, m) for n, m in found(other).items() if n.startswith("missing")))
    assert name == "missing-row-ids:main" and "1 files have no row ids" in message


def insert_keys(table: Table, *keys: int) -> None:
    """As an engine that doesn't look at the rows without ids."""
    new = write_rows(plan_write(table), pa.table({"k": pa.array(keys, pa.int32())}).to_batches())
    entries = [e for m in new for e in m.entries()]
    commit(table, lambda _: Draft(kind=CommitKind.APPEND, entries=entries, schema=table.schema()))


@pytest.mark.parametrize(
    ("first", "name", "torn"),
    [(0, "columns.parquet", False), (1, "columns.parquet", True), (1, "a.blob", False), (1, "a.vector.parquet", False)],
)
def test_data_evolution_needs_equal_ranges(tmp_path: Path, first: int, name: str, torn: bool) -> None:
    table = make(tmp_path)
    insert(table, (1, "a"), (2, "b"))
    insert(table, (3, "c"))
    schema = table.schema()
    new = replace(schema, id=schema.id + 1, options={**schema.options, "data-evolution.enabled": "true"})
    table.store.create(table.paths.schema(new.id), new.to_bytes())
    copied(table, name, first_row_id=first)
    assert ("torn-row-ids:main" in found(table)) == torn
