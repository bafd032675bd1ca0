"""Tables with rows of a person whose value is ``secret``, and which stored files really hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from tests.core.tables import run
from tests.data.tables import make_table, rows_of

COLUMNS = {"k": "INT NOT NULL", "person": "STRING", "dt": "STRING NOT NULL"}
WHERE = "person = 'secret'"


def keyed(folder: Path, **options: str) -> Table:
    """Keys 0 to 9 in two partitions; 3 is the person's in both."""
    table = make_table(folder, COLUMNS, partition_keys=["dt"], primary_keys=["dt", "k"], **{"bucket": "1", **options})
    for dt in "ab":
        upsert(table, dt, range(10))
    return table


def plain(folder: Path, **options: str) -> Table:
    table = make_table(folder, COLUMNS, partition_keys=["dt"], **options)
    for dt in "ab":
        upsert(table, dt, range(10))
    return table


def upsert(
    table: Table, dt: str, keys: Sequence[int], *, person: Mapping[int, str] | None = None, kind: str | None = None
) -> None:
    """Write keys; the one of 3 is the person's unless ``person`` says otherwise."""
    who = {3: "secret"} if person is None else person
    rows = rows_of(COLUMNS, [{"k": k, "person": who.get(k, f"p{k}"), "dt": dt} for k in keys])
    if kind is not None:
        rows = rows.append_column("_row_kind", pa.array([kind] * len(rows)))
    write_arrow(table, rows)


def holding(table: Table, column: str = "person", value: Any = "secret") -> dict[str, int]:
    """Read every Parquet file of the folder whole: which hold how many rows of the person."""
    root = Path(table.store.uri.removeprefix("file://"))
    found = {}
    for path in root.rglob("*.parquet"):
        values = pq.ParquetFile(path).read().column(column).to_pylist()
        if value in values:
            found[path.relative_to(root).as_posix()] = values.count(value)
    return found


def find(table: Table, where: str = WHERE, **values: Any) -> Mapping[str, Any]:
    result = run(table, "find_rows", where=where, limit=0, **values)
    assert not result.changed
    assert "secret" not in str(result.to_json()), "a result holds a value of a row"
    return result.details


def found(details: Mapping[str, Any]) -> dict[str, int]:
    return {one["path"]: one["rows"] for one in details["found"]}
