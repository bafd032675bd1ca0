"""The life of a chain table from set-up to a repaired night, all through the operations that users run."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa

from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.chain.setups import made
from tests.core.tables import run
from tests.data.chain.compactions import change, compact, outcomes

NEW: dict[str, Any] = {
    "column": ["region STRING", "dt STRING", "k INT", "s INT", "v STRING"],
    "primary_key": ["region", "dt", "k"],
    "partition_key": ["region", "dt"],
    "chain_partition_key": ["dt"],
    "timestamp_pattern": "$dt",
    "timestamp_formatter": "yyyyMMdd",
    "sequence_field": ["s"],
    "option": ["bucket=2"],
}


def put(branch: Table, region: str, day: str, *rows: tuple[Any, ...]) -> None:
    schema = branch.schema()
    names = [n for n in schema.field_names if n not in ("region", "dt")]
    found = [{"region": region, "dt": f"202501{day}", **dict(zip(names, row, strict=True))} for row in rows]
    types = {"k": pa.int32(), "s": pa.int32(), "w": pa.int32()}
    write_arrow(branch, pa.Table.from_pylist(found, pa.schema([(n, types.get(n, pa.string())) for n in found[0]])))


def day_of(table: Table, region: str, day: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = read_arrow(table, columns=["region", "dt", "k", *columns]).to_pylist()
    found = [r for r in rows if (r["region"], r["dt"]) == (region, f"202501{day}")]
    return sorted(tuple(r[n] for n in ("k", *columns)) for r in found)


def check(table: Table) -> dict[str, Any]:
    return dict(run(table, "check_chain_table").details)


def test_the_life_of_a_chain_table() -> None:
    table = made(f"memory://{uuid.uuid4()}/wh", **NEW)
    full, delta = table.branch("snapshot"), table.branch("delta")
    put(full, "CN", "01", (1, 1, "a"), (2, 1, "b"))
    put(delta, "CN", "02", (1, 2, "a2"), (3, 1, "c"))
    put(delta, "CN", "03", (2, 3, "b3"))
    put(delta, "US", "02", (9, 1, "z"))
    third = [(1, "a2"), (2, "b3"), (3, "c")]
    assert day_of(table, "CN", "03", "v") == third
    assert outcomes(compact(table, "region=CN,dt=20250103")) == {"region=CN/dt=20250103": "compacted"}
    assert day_of(table, "CN", "03", "v") == third
    assert (check(table)["findings"], check(table)["recorded"]) == ([], 1)

    change(table, "delta", "CN/20250102", [(3, 5, "late")])
    assert check(table)["stale"] == ["region=CN/dt=20250103"]
    assert day_of(table, "CN", "03", "v") == third, "hidden by the full partition"
    compact(table, "region=CN,dt=20250103", overwrite=True)
    assert day_of(table, "CN", "03", "v") == [(1, "a2"), (2, "b3"), (3, "late")]
    assert check(table)["stale"] == []

    run(table, "alter_chain_table", change=["add column w INT", "rename column v to value"])
    put(delta, "CN", "04", (1, 9, "a9", 7))
    assert check(table)["findings"] == []
    assert day_of(table, "CN", "04", "value", "w") == [(1, "a9", 7), (2, "b3", None), (3, "late", None)]
    compact(table, "dt=20250104")
    assert day_of(table, "CN", "04", "value", "w") == [(1, "a9", 7), (2, "b3", None), (3, "late", None)]
    assert day_of(table, "US", "02", "value") == [(9, "z")]
    assert check(table)["anchors"] == 3
