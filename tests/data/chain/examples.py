"""The worked examples of chain tables: what Paimon's own tests write, ask and get, as data.

Read in one process by ``test_chain_examples``, through Spark by ``tests/spark/test_chain_examples``. A key of Paimon's
examples (t1, t2, t3) is our (k, s, v).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.format.manifest import DeletionVectorRange, IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from tests.core.format.test_deletion_vectors import _bin_32, _bitmap, _index_file
from tests.data.chain.tables import (
    DAYS,
    PARTIAL,
    TWO_VALUES,
    Row,
    Writes,
    chain_table,
    on,
    set_options,
    versions,
    write,
)

Where = Mapping[str, Any]
"""Column to value, to a list of values (IN) or to a pair of bounds (BETWEEN); all of them hold."""
HOUR_FORM = ("$dt $hour:00:00", "yyyyMMdd HH:mm:ss")


def as_expression(where: Where) -> pc.Expression | None:
    """The filter for Arrow."""
    parts = []
    for name, asked in where.items():
        column = pc.field(name)
        if isinstance(asked, list):
            parts.append(column.isin(asked))
        elif isinstance(asked, tuple):
            parts.append((column >= asked[0]) & (column <= asked[1]))
        else:
            parts.append(column == asked)
    return reduce(lambda a, b: a & b, parts) if parts else None


def as_sql(where: Where) -> str | None:
    """The filter for Spark."""
    parts = []
    for name, asked in where.items():
        if isinstance(asked, list):
            parts.append(f"{name} IN ({', '.join(map(repr, asked))})")
        elif isinstance(asked, tuple):
            parts.append(f"{name} BETWEEN {asked[0]!r} AND {asked[1]!r}")
        else:
            parts.append(f"{name} = {asked!r}")
    return " AND ".join(parts) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """``main`` and ``delta`` are queries of that branch with what comes out of them; ``options`` go to chain_table.

    ``through_spark``: which of main's queries Spark is asked, too; it takes a second for each.
    """

    writes: Writes
    options: Mapping[str, Any] = field(default_factory=dict)
    main: Sequence[tuple[Where, list[Row]]] = ()
    delta: Sequence[tuple[Where, list[Row]]] = ()
    through_spark: Sequence[int] = (0,)

    def made(self, folder: Path | str) -> Table:
        return chain_table(folder, self.writes, **self.options)


def rows(*groups: list[Row]) -> list[Row]:
    """Several partitions' rows, in the order in which reads are compared."""
    return sorted((r for group in groups for r in group), key=repr)


A, B = "1", "1-1"
FOUR = versions(range(1, 5), 2, B)
SIX = [*FOUR, (5, 1, A), (6, 1, A)]
STEPS: Sequence[list[Row]] = (
    [(1, 1, A), (2, 1, A)],  # no anchor
    [(1, 1, A), (2, 1, A)],  # main
    [(1, 2, B), (2, 2, B), (3, 1, A), (4, 1, A)],  # anchor and delta
    FOUR,  # snapshot
    SIX,  # anchor and delta
    SIX,  # snapshot hides the delta
)
"""What the six partitions of testChainTable read as, in the order of time."""


def moved(found: Writes, times: Mapping[str, str], prefix: str = "", plus: int = 0) -> list[tuple[str, str, list[Row]]]:
    """The same data at other times, in a group, with other keys; without row 7."""
    return [
        (branch, prefix + times[at], [(r[0] + plus, *r[1:]) for r in written if r[0] != 7])
        for branch, at, written in found
    ]


def stepped(times: Mapping[str, str], prefix: str = "", plus: int = 0) -> dict[str, list[Row]]:
    """What each partition reads as, by its values with slashes."""
    partitions = [prefix + t for t in times.values()]
    return {p: on(p, *((k + plus, s, v) for k, s, v in found)) for p, found in zip(partitions, STEPS, strict=True)}


DAY_TIMES = {f"202508{d:02}": f"202508{d:02}" for d in range(9, 15)}
HOUR_TIMES = dict(
    zip(
        DAY_TIMES,
        ("20250810/21", "20250810/22", "20250810/23", "20250811/00", "20250811/01", "20250811/02"),
        strict=True,
    )
)
DAY = stepped(DAY_TIMES)
HOUR = stepped(HOUR_TIMES)
DAILY = Example(
    writes=DAYS,
    main=[
        ({}, rows(*DAY.values())),
        *(({"dt": day}, found) for day, found in DAY.items()),
        ({"dt": "20250811", "k": 1}, on("20250811", (1, 2, B))),
        ({"dt": "20250811", "k": 4}, on("20250811", (4, 1, A))),
        ({"dt": "20250811", "k": 7}, []),
        ({"dt": "20250812", "k": 7}, []),
        ({"dt": ["20250811", "20250812"], "k": 1}, rows(on("20250811", (1, 2, B)), on("20250812", (1, 2, B)))),
        (
            {"dt": ["20250810", "20250811", "20250812", "20250701"]},
            rows(DAY["20250810"], DAY["20250811"], DAY["20250812"]),
        ),
        ({"dt": ("20250811", "20250813")}, rows(DAY["20250811"], DAY["20250812"], DAY["20250813"])),
        ({"v": A, "dt": ("20250811", "20250813")}, [r for d in ("11", "13") for r in DAY[f"202508{d}"] if r[2] == A]),
    ],
    delta=[({"dt": "20250811"}, on("20250811", (2, 2, B), (4, 1, A)))],
    through_spark=(0, 3, 11, 13, 14),
)
HOURLY = Example(
    writes=moved(DAYS, HOUR_TIMES),
    options={"partitions": {"dt": "STRING", "hour": "STRING"}, "form": HOUR_FORM},
    main=[
        ({}, rows(*HOUR.values())),
        *((dict(zip(("dt", "hour"), at.split("/"), strict=True)), found) for at, found in HOUR.items()),
        ({"dt": "20250810", "hour": "23", "k": 1}, on("20250810/23", (1, 2, B))),
        ({"dt": "20250810", "hour": ["22", "23"]}, rows(HOUR["20250810/22"], HOUR["20250810/23"])),
        ({"hour": ("01", "21")}, rows(*(HOUR[t] for t in ("20250810/21", "20250811/01", "20250811/02")))),
    ],
    delta=[({"dt": "20250811", "hour": "01"}, on("20250811/01", (5, 1, A), (6, 1, A)))],
    through_spark=(0, 8),
)


def _grouped(
    groups: Mapping[str, int], columns: Sequence[str], times: Mapping[str, str], shown: int, **more: Any
) -> Example:
    """Each group with the same data: every result holds per group, with a filter on it and without."""
    prefixes = {group: f"{group}/" for group in groups}
    own = {g: stepped(times, prefixes[g], plus) for g, plus in groups.items()}
    keys = [*columns, *more["chain_keys"].split(",")]
    last = list(times.values())
    queries: list[tuple[Where, list[Row]]] = [({}, rows(*(f for g in own.values() for f in g.values())))]
    for at in (last[0], last[2], last[5]):
        chain = dict(zip(keys[len(columns) :], at.split("/"), strict=True))
        queries.append((chain, rows(*(own[g][prefixes[g] + at] for g in groups))))
        for group in groups:
            named = dict(zip(columns, group.split("/"), strict=True))
            queries.append(({**named, **chain}, own[group][prefixes[group] + at]))
    for group in groups:
        named = dict(zip(columns, group.split("/"), strict=True))
        queries.append((named, rows(*own[group].values())))
    first = next(iter(groups))
    return Example(
        writes=[w for g, plus in groups.items() for w in moved(DAYS, times, prefixes[g], plus)],
        options={"partitions": dict.fromkeys(keys, "STRING"), **more},
        main=queries,
        delta=[(dict(zip(keys, f"{first}/{last[4]}".split("/"), strict=True)), on(f"{first}/{last[4]}", *SIX[4:]))],
        through_spark=(shown,),
    )


GROUPS = _grouped({"CN": 0, "US": 10}, ["region"], DAY_TIMES, 0, chain_keys="dt")
HOURLY_GROUPS = _grouped({"CN": 0, "US": 10}, ["region"], HOUR_TIMES, 4, chain_keys="dt,hour", form=HOUR_FORM)
MULTI_GROUPS = _grouped(
    {"CN/food": 0, "CN/toys": 20, "US/food": 10}, ["region", "biz_type"], DAY_TIMES, 6, chain_keys="dt"
)
PARTIAL_UPDATE = Example(
    writes=PARTIAL,
    options={"values": TWO_VALUES, "merge_engine": "partial-update"},
    main=[
        ({"dt": "20250809"}, on("20250809", (3, 1, "c", "C"), (4, 1, "d", "D"))),
        ({"dt": "20250810"}, on("20250810", (1, 1, "a", "A"), (2, 1, "b", "B"))),
        (
            {"dt": "20250811"},
            on("20250811", (1, 3, "a1", "A1"), (2, 3, "b1", "B1"), (3, 1, "c", "C"), (5, 1, "e", "E")),
        ),
        (
            {"dt": "20250812"},
            on("20250812", (1, 4, "a1", "A2"), (2, 3, "b1", "B1"), (3, 1, "c", "C"), (5, 2, "e1", "E")),
        ),
        ({"v2": "A1"}, on("20250811", (1, 3, "a1", "A1"))),
    ],
    delta=[({"dt": "20250812"}, on("20250812", (1, 4, None, "A2"), (5, 2, "e1", None)))],
    through_spark=(2, 4),
)
MULTI_CHAIN_KEYS = Example(
    writes=[
        ("snapshot", "20250809/01", [(3, 1, A)]),
        ("snapshot", "20250809/02", [(4, 1, A)]),
        ("delta", "20250810/03", [(5, 1, A)]),
        ("delta", "20250810/05", [(6, 1, A)]),
    ],
    options=HOURLY.options,
    main=[({"dt": "20250810", "hour": "05"}, on("20250810/05", *((k, 1, A) for k in (4, 5, 6))))],
)
MINUTES = Example(
    writes=[
        ("snapshot", "20250810/01:01", [(3, 1, A)]),
        ("snapshot", "20250810/03:30", [(4, 1, A)]),
        ("delta", "20250810/03:35", [(5, 1, A)]),
        ("delta", "20250810/03:40", [(6, 1, A)]),
        ("delta", "20250810/03:45", [(7, 1, A)]),
    ],
    options={
        "partitions": {"dt": "STRING", "hr_min": "STRING"},
        "form": ("$dt $hr_min:00", "yyyyMMdd HH:mm:ss"),
    },
    main=[({"dt": "20250810", "hr_min": "03:40"}, on("20250810/03:40", *((k, 1, A) for k in (4, 5, 6))))],
)
DELETES = Example(
    writes=[
        ("snapshot", "CN/20250810/20", [(1, 1, A), (2, 1, A)]),
        ("snapshot", "US/20250810/20", [(3, 1, A)]),
        ("snapshot", "CN/20250810/20", [(2, 1, A, "-D")]),
        ("delta", "CN/20250810/21", [(1, 2, B), (4, 1, A)]),
        ("delta", "US/20250810/21", [(5, 1, A)]),
        ("delta", "UK/20250810/21", [(6, 1, A)]),
        ("delta", "CN/20250810/21", [(4, 2, A, "-D")]),
        ("delta", "US/20250810/22", [(5, 2, A, "-D")]),
    ],
    options={
        "partitions": dict.fromkeys(("region", "dt", "hour"), "STRING"),
        "form": HOUR_FORM,
        "chain_keys": "dt,hour",
    },
    main=[
        ({"hour": "20"}, rows(on("CN/20250810/20", (1, 1, A)), on("US/20250810/20", (3, 1, A)))),
        (
            {"hour": "21"},
            rows(
                on("CN/20250810/21", (1, 2, B)),
                on("US/20250810/21", (3, 1, A), (5, 1, A)),
                on("UK/20250810/21", (6, 1, A)),
            ),
        ),
        ({"hour": "22"}, on("US/20250810/22", (3, 1, A))),  # CN and UK have no delta of that hour
    ],
)
CROSS_PARTITION_DELETES = Example(
    writes=[
        ("snapshot", "20250810/20", [(1, 1, A)]),
        ("delta", "20250810/21", [(1, 2, B), (2, 1, A)]),
        ("delta", "20250810/21", [(1, 3, B, "-D")]),
        ("delta", "20250810/22", [(2, 2, A, "-U")]),
    ],
    options=HOURLY.options,
    main=[({"hour": "21"}, on("20250810/21", (2, 1, A))), ({"hour": "22"}, [])],
)
UPDATES = Example(
    writes=[
        ("snapshot", "20250810/20", [(1, 1, A)]),
        ("delta", "20250810/21", [(1, 4, B, "+U")]),
        ("delta", "20250810/22", [(1, 3, A, "-U")]),
    ],
    options=HOURLY.options,
    main=[({"hour": "22"}, on("20250810/22", (1, 4, B)))],
)
EXAMPLES: Mapping[str, Example] = {
    "testChainTable": DAILY,
    "testHourlyChainTable": HOURLY,
    "testChainTableWithGroupPartition": GROUPS,
    "testHourlyChainTableWithGroupPartition": HOURLY_GROUPS,
    "testChainTableWithMultiGroupPartition": MULTI_GROUPS,
    "testChainTableWithPartialUpdate": PARTIAL_UPDATE,
    "testChainTableWithMultiChainKeys": MULTI_CHAIN_KEYS,
    "testChainTableWithMinuteLevelPartitions": MINUTES,
    "delete": DELETES,
    "cross-partition delete": CROSS_PARTITION_DELETES,
    "update": UPDATES,
}


def with_deletion_vectors(folder: Path | str) -> Table:
    """testChainTableWithDeletionVectors: the rows that DELETE took are marked in their files."""
    table = chain_table(
        folder,
        [],
        partitions={"region": "STRING", "date": "STRING"},
        form=("$date", "yyyyMMdd"),
        chain_keys="date",
        buckets=1,
        **{"chain-table__enabled": "false"},
    )
    written: Writes = [
        ("snapshot", "CN/20260222", [(1, 1, A), (6, 1, A)]),
        ("snapshot", "CN/20260223", [(1, 2, A), (2, 2, A), (3, 1, A)]),
        ("snapshot", "US/20260223", [(11, 1, A)]),
        ("delta", "CN/20260224", [(1, 3, A), (4, 1, A), (5, 1, A)]),
        ("delta", "US/20260224", [(12, 1, A)]),
    ]
    for branch, partition, found in written:
        write(table.branch(branch), ["k", "s", "v"], ["region", "date"], partition, found, mode="dynamic_overwrite")
    mark_deleted(table.branch("snapshot"), ("CN", "20260223"), [2])
    mark_deleted(table.branch("delta"), ("CN", "20260224"), [1])
    for branch in ("main", "snapshot", "delta"):
        set_options(table.branch(branch), {"chain-table.enabled": "true", "deletion-vectors.enabled": "true"})
    return table


VECTORED = rows(on("CN/20260224", (1, 3, A), (2, 2, A), (5, 1, A)), on("US/20260224", (11, 1, A), (12, 1, A)))
"""What ``with_deletion_vectors`` reads as on its last day."""


def mark_deleted(branch: Table, partition: tuple[str, ...], positions: Sequence[int]) -> None:
    """Commit a deletion vector for the one file of a partition; the branch has no other one."""
    plan = plan_scan(branch)
    (held,) = (s for s in plan.splits if s.values == partition)
    stored = _index_file(_bin_32(_bitmap(list(positions), runs=False)))
    name = f"index-{'-'.join(partition)}"
    branch.store.create(f"index/{name}", stored)
    where = DeletionVectorRange(held.files[0].file_name, 1, len(stored) - 9, len(positions))
    entry = IndexEntry(0, held.partition, 0, "DELETION_VECTORS", name, len(stored), 1, (where,))
    schema, entries = branch.schema(), [*plan.index_entries, entry]
    commit(branch, lambda _: Draft(kind=CommitKind.OVERWRITE, entries=[], index_entries=entries, schema=schema))
