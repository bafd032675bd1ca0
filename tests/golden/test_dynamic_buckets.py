"""Tables with dynamic buckets that Paimon 2.0.0 has written: their indexes are as ours, and we go on with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.commit.conditions import has_dynamic_buckets
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.table.features import check_readable, check_writable
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from tests.data.hash_indexes import check_indexes
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import World

ARCHIVES = ("merge-fuzz", "paimon-2.0.0")


@pytest.mark.parametrize("archive", ARCHIVES)
@pytest.mark.every(2)
def test_known_keys_stay_and_new_ones_are_indexed(golden: Callable[[str], Path], tmp_path: Path, archive: str) -> None:
    appended, rewritten = 0, 0
    for folder in sorted((golden(archive) / "wh" / "d.db").iterdir()):
        name = f"d.{folder.name}"
        table = open_table(str(golden(archive) / "wh"), name)
        if not has_dynamic_buckets(table.schema()) or refused(check_readable, table):
            continue
        check_indexes(table)
        if not refused(check_writable, table):
            append(copy(folder, tmp_path / "appended"))
            appended += 1
        if not refused(check_writable, table, by_buckets=True):
            rewrite(copy(folder, tmp_path / "rewritten"))
            rewritten += 1
    assert appended and rewritten


def copy(folder: Path, to: Path) -> Table:
    shutil.copytree(folder, to / "d.db" / folder.name)
    return open_table(str(to), f"d.{folder.name}")


def refused(check: Callable[..., None], table: Table, **how: bool) -> bool:
    try:
        check(table.schema(), table=table.name, **how)
    except UnsupportedFeatureError:
        return True
    return False


def keys_of(table: Table, rows: pa.Table) -> list[tuple[object, ...]]:
    return sorted((tuple(r.values()) for r in rows.select(table.schema().primary_keys).to_pylist()), key=repr)


def some(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Known keys, and as many new ones."""
    known = rows.slice(0, 4)
    at = known.schema.get_field_index("k")
    new = pc.add(known.column(at), 100_000).cast(known.schema.types[at])
    return known, known.set_column(at, known.schema.field(at), new)


def append(table: Table) -> None:
    rows = read_arrow(table)
    known, new = some(rows)
    write_arrow(table, pa.concat_tables([known, new]))
    check_indexes(table)
    assert keys_of(table, read_arrow(table)) == sorted(keys_of(table, rows) + keys_of(table, new), key=repr), table.name
    write_arrow(table, rows, mode="overwrite")
    check_indexes(table)
    assert keys_of(table, read_arrow(table)) == keys_of(table, rows), table.name


def rewrite(table: Table) -> None:
    """As a correction does: buckets with deletion vectors too."""
    rows = read_arrow(table)
    known, new = some(rows)
    warehouse = Path(table.store.uri.removeprefix("file://")).parents[1]
    World(warehouse, cast(JavaOracle, None), table.name).correct("main", pa.concat_tables([known, new]).to_pylist())
    check_indexes(table)
    assert keys_of(table, read_arrow(table)) == sorted(keys_of(table, rows) + keys_of(table, new), key=repr), table.name
