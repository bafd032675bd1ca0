"""Chain tables for tests, worked examples among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.planner import plan_rows
from airflow_paimon.data.read_groups import IN_PROCESS, GroupPlan, GroupSizes
from airflow_paimon.data.read_request import ReadRequest
from tests.clock import next_millisecond
from tests.data.tables import make_table

Row = tuple[Any, ...]
Writes = Sequence[tuple[str, str, Sequence[Row]]]
"""Branch, partition with slashes, rows; a row may end with its kind."""

DAILY = {"dt": "STRING"}
DAILY_FORM = ("$dt", "yyyyMMdd")
KINDS = ("+I", "-U", "+U", "-D")


def chain_table(
    folder: Path | str,
    writes: Writes,
    *,
    values: Mapping[str, str] | None = None,
    partitions: Mapping[str, str] = DAILY,
    form: tuple[str, str] = DAILY_FORM,
    chain_keys: str = "",
    buckets: int = 2,
    **options: str,
) -> Table:
    """Key ``k``, sequence ``s``, then ``values``. The branches are written as plain tables and chained afterwards."""
    columns = {"k": "INT NOT NULL", "s": "INT", **(values or {"v": "STRING"})}
    keys = list(partitions)
    main = make_table(
        folder,
        {**columns, **{k: f"{t} NOT NULL" for k, t in partitions.items()}},
        primary_keys=[*keys, "k"],
        partition_keys=keys,
        bucket=str(buckets),
        sequence__field="s",
    )
    branches = {"main": main, "snapshot": main.branch("snapshot"), "delta": main.branch("delta")}
    for name in ("snapshot", "delta"):
        branches[name].store.create(branches[name].paths.schema(0), main.store.read(main.paths.schema(0)))
    for branch, partition, rows in writes:
        next_millisecond()  # time travel tells the branches' states by their times
        write(branches[branch], list(columns), keys, partition, rows)
    chained = {
        "chain-table.enabled": "true",
        "scan.fallback-snapshot-branch": "snapshot",
        "scan.fallback-delta-branch": "delta",
        "partition.timestamp-pattern": form[0],
        "partition.timestamp-formatter": form[1],
        **({"chain-table.chain-partition-keys": chain_keys} if chain_keys else {}),
        **{k.replace("__", ".").replace("_", "-"): v for k, v in options.items()},
    }
    for one in branches.values():
        set_options(one, chained)
    return main


def write(
    branch: Table,
    columns: Sequence[str],
    keys: Sequence[str],
    partition: str,
    rows: Sequence[Row],
    mode: str = "append",
) -> None:
    parts = dict(zip(keys, partition.split("/"), strict=True))
    found = []
    for row in rows:
        kind = row[-1] if row[-1] in KINDS else "+I"
        found.append({**dict(zip(columns, row, strict=False)), **parts, "_row_kind": kind})
    types = dict.fromkeys(("k", "s", "amount"), pa.int32())
    fields = [(n, types.get(n, pa.string())) for n in (*columns, *keys, "_row_kind")]
    write_arrow(branch, pa.Table.from_pylist(found, schema=pa.schema(fields)), mode=mode)


def set_options(table: Table, options: Mapping[str, str]) -> None:
    """A new schema version, as another engine wrote it: some of these options can't be altered through us."""
    schema = table.schema()
    following = replace(schema, id=schema.id + 1, options={**schema.options, **options})
    table.store.create(table.paths.schema(following.id), following.to_bytes())


def seen(table: Table, **more: Any) -> list[Row]:
    return sorted((tuple(r.values()) for r in read_arrow(table, **more).to_pylist()), key=repr)


def planned_chain(table: Table, sizes: GroupSizes = IN_PROCESS, **asked: Any) -> GroupPlan:
    """What is read of few files of a chain table."""
    [group] = plan_rows(table, ReadRequest(**{"mode": "full", **asked}), sizes).groups
    return group


def on(day: str, *rows: Row) -> list[Row]:
    """These rows as a read of that partition gives them."""
    return sorted(((*r, *day.split("/")) for r in rows), key=repr)


def day_is(day: str) -> pc.Expression:
    return pc.field("dt") == day


def versions(keys: range, s: int, v: str) -> list[Row]:
    return [(k, s, v) for k in keys]


DAYS: Writes = [
    ("main", "20250810", [(1, 1, "1"), (2, 1, "1")]),
    ("delta", "20250809", [(1, 1, "1"), (2, 1, "1")]),
    ("delta", "20250810", [(1, 2, "1-1"), (3, 1, "1")]),
    ("delta", "20250811", [(2, 2, "1-1"), (4, 1, "1")]),
    ("delta", "20250812", [(3, 2, "1-1"), (4, 2, "1-1"), (7, 1, "d7")]),
    ("delta", "20250813", [(5, 1, "1"), (6, 1, "1")]),
    ("delta", "20250814", [(5, 2, "1-1"), (6, 2, "1-1")]),
    ("snapshot", "20250810", [(1, 2, "1-1"), (2, 1, "1"), (3, 1, "1")]),
    ("snapshot", "20250812", versions(range(1, 5), 2, "1-1")),
    ("snapshot", "20250814", [*versions(range(1, 5), 2, "1-1"), (5, 1, "1"), (6, 1, "1")]),
]
"""testChainTable."""
EXPECTED = {
    "20250809": on("20250809", (1, 1, "1"), (2, 1, "1")),
    "20250810": on("20250810", (1, 1, "1"), (2, 1, "1")),
    "20250811": on("20250811", (1, 2, "1-1"), (2, 2, "1-1"), (3, 1, "1"), (4, 1, "1")),
    "20250812": on("20250812", *versions(range(1, 5), 2, "1-1")),
    "20250813": on("20250813", *versions(range(1, 5), 2, "1-1"), (5, 1, "1"), (6, 1, "1")),
    "20250814": on("20250814", *versions(range(1, 5), 2, "1-1"), (5, 1, "1"), (6, 1, "1")),
}

PARTIAL: Writes = [
    ("main", "20250810", [(1, 1, "a", "A"), (2, 1, "b", "B")]),
    ("delta", "20250809", [(3, 1, "c", "C"), (4, 1, "d", "D")]),
    ("delta", "20250810", [(1, 2, None, "A1"), (2, 2, "b1", None), (3, 1, "c", "C")]),
    ("delta", "20250811", [(1, 3, "a1", None), (2, 3, None, "B1"), (5, 1, "e", "E")]),
    ("delta", "20250812", [(1, 4, None, "A2"), (5, 2, "e1", None)]),
    ("snapshot", "20250810", [(1, 2, "a", "A1"), (2, 2, "b1", "B"), (3, 1, "c", "C")]),
    ("snapshot", "20250812", [(1, 4, "a1", "A2"), (2, 3, "b1", "B1"), (3, 1, "c", "C"), (5, 2, "e1", "E")]),
]
"""testChainTableWithPartialUpdate."""
TWO_VALUES = {"v1": "STRING", "v2": "STRING"}
PARTIAL_DELETES: Writes = [
    ("snapshot", "20250810", [(1, 1, "a", None), (2, 1, None, "B")]),
    ("delta", "20250811", [(1, 2, None, "A1"), (2, 2, "b1", None), (5, 1, "e", "E")]),
    ("delta", "20250811", [(1, 3, None, None, "-D"), (2, 3, None, None, "-U")]),
    ("delta", "20250812", [(2, 4, "b2", "B", "+U"), (5, 2, None, None, "-D")]),
]
GAPPED: Writes = [
    ("snapshot", "20250810", [(1, 1, "a")]),
    ("delta", "20250811", [(2, 1, "a")]),
    ("delta", "20250813", [(1, 2, "a", "-D")]),
]
