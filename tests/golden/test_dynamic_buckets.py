"""Tables with dynamic buckets that Paimon 2.0.0 has written: their indexes are as ours, and we go on with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.commit.since import has_dynamic_buckets
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.table.features import check_readable, check_writable
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from tests.data.hash_indexes import check_indexes

ARCHIVES = ("merge-fuzz", "paimon-2.0.0")


@pytest.mark.parametrize("archive", ARCHIVES)
def test_known_keys_stay_and_new_ones_are_indexed(golden: Callable[[str], Path], tmp_path: Path, archive: str) -> None:
    written = 0
    for folder in sorted((golden(archive) / "wh" / "d.db").iterdir()):
        name = f"d.{folder.name}"
        table = open_table(str(golden(archive) / "wh"), name)
        if not has_dynamic_buckets(table.schema()) or refused(table, check_readable):
            continue
        check_indexes(table)
        if refused(table, check_writable):
            continue
        shutil.copytree(folder, tmp_path / "d.db" / folder.name)
        upsert(open_table(str(tmp_path), name))
        written += 1
    assert written


def refused(table: Table, check: Callable[..., None]) -> bool:
    try:
        check(table.schema(), table=table.name)
    except UnsupportedFeatureError:
        return True
    return False


def keys_of(table: Table, rows: pa.Table) -> list[tuple[object, ...]]:
    return sorted((tuple(r.values()) for r in rows.select(table.schema().primary_keys).to_pylist()), key=repr)


def upsert(table: Table) -> None:
    rows = read_arrow(table)
    known = rows.slice(0, 4)
    at = known.schema.get_field_index("k")
    new = known.set_column(at, known.schema.field(at), pc.add(known.column(at), 100_000).cast(known.schema.types[at]))
    before = keys_of(table, rows)
    write_arrow(table, pa.concat_tables([known, new]))
    check_indexes(table)
    after = keys_of(table, read_arrow(table))
    assert after == sorted({*before, *keys_of(table, new)}, key=repr), table.name
    write_arrow(table, rows, mode="overwrite")
    check_indexes(table)
    assert keys_of(table, read_arrow(table)) == before, table.name
