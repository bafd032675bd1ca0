"""Random chain tables of many shapes against a model of rows: partition columns and keys of several types, one to three
sequence fields in both orders, every meaning of deletes, file formats, and columns that change between the writes.

What `test_chain_differential` does for texts. Filters must never change an answer, whatever they look at.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.commit.files import drop_partitions
from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.table.partition_values import format_partition
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.arrow_read import read_group
from airflow_paimon.data.chain.splits import divide_split
from airflow_paimon.data.files.arrow_types import arrow_type
from tests.core.chain.setups import made
from tests.core.tables import run
from tests.data.chain.compactions import compact, outcomes
from tests.data.chain.tables import planned_chain
from tests.randomness import chance as chance_of
from tests.randomness import lives

DAYS = [date(2025, 2, 26) + timedelta(days=n) for n in range(7)]
MONTHS = (202410, 202411, 202412, 202501, 202502, 202503)
HOURS = [(20250228, h) for h in ("21", "22", "23")] + [(20250301, h) for h in ("00", "01", "02")]
DASHED = ("$dt", "yyyy-MM-dd")
LAYOUTS: Sequence[dict[str, Any]] = [
    {"columns": {"dt": "INT"}, "form": ("$dt", "yyyyMMdd"), "times": [(int(f"{d:%Y%m%d}"),) for d in DAYS]},
    {"columns": {"dt": "DATE"}, "form": DASHED, "times": [(d,) for d in DAYS]},
    {"columns": {"m": "STRING"}, "form": ("$m01", "yyyyMMdd"), "times": [(str(m),) for m in MONTHS]},
    {
        "columns": {"y": "INT", "md": "STRING"},
        "form": ("$y/$md", "yyyy/MM-dd"),
        "times": [(d.year, f"{d:%m-%d}") for d in DAYS],
    },
    {
        "columns": {"g": "INT", "dt": "DATE"},
        "form": DASHED,
        "times": [(d,) for d in DAYS],
        "groups": [(1,), (-5,)],
    },
    {
        "columns": {"region": "STRING", "b": "BIGINT", "m": "INT"},
        "form": ("$m01", "yyyyMMdd"),
        "times": [(m,) for m in MONTHS],
        "groups": [("a b/=%", 1), ("a b/=%", 2), ("", 1)],
    },
    {
        "columns": {"g": "DATE", "dt": "INT", "hour": "STRING"},
        "form": ("$dt $hour:00:00", "yyyyMMdd HH:mm:ss"),
        "times": HOURS,
        "groups": [(date(2024, 1, 1),), (date(1969, 12, 1),)],
    },
]
KEYS = (["INT"], ["STRING"], ["BIGINT"], ["DATE"], ["INT", "STRING"], ["DECIMAL(10, 2)", "INT"], ["TIMESTAMP(3)"])
SEQUENCES = ("INT", "BIGINT", "STRING", "TIMESTAMP(3)", "DECIMAL(10, 2)", "SMALLINT", "DATE")
VALUES = ("INT", "STRING", "DOUBLE", "DECIMAL(10, 2)", "TIMESTAMP(6)", "BOOLEAN", "SMALLINT", "FLOAT")
WIDER = {"SMALLINT": "INT", "INT": "BIGINT", "FLOAT": "DOUBLE", "DECIMAL(10, 2)": "DECIMAL(20, 2)"}
ENGINES: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "deduplicate, ignoring": {"ignore-delete": "true"},
    "partial-update": {"merge-engine": "partial-update"},
    "partial-update, ignoring": {"merge-engine": "partial-update", "ignore-delete": "true"},
    "partial-update, removing": {
        "merge-engine": "partial-update",
        "partial-update.remove-record-on-delete": "true",
    },
}
_SOME: dict[str, Sequence[Any]] = {
    "INT": range(-1, 4),
    "BIGINT": [n * 10**10 for n in range(-1, 4)],
    "SMALLINT": range(-2, 3),
    "STRING": ["", "a", "ab", "ba\0", "é", "z" * 200],
    "BOOLEAN": [False, True],
    "DOUBLE": [0.0, 1.5, float("inf"), -2.0],
    "FLOAT": [0.0, 1.5, -2.5],
    "DATE": [date(1969, 12, 30) + timedelta(days=n) for n in range(5)],
    "DECIMAL(10, 2)": [Decimal(n) / 4 for n in range(-2, 3)],
    "DECIMAL(20, 2)": [Decimal(n) * 10**10 for n in range(-2, 3)],
    "TIMESTAMP(3)": [datetime(1970, 1, 1) + timedelta(milliseconds=1500 * n) for n in range(-1, 4)],
    "TIMESTAMP(6)": [datetime(1970, 1, 1) + timedelta(microseconds=1500 * n) for n in range(-1, 4)],
}

Partition = tuple[Any, ...]
Row = tuple[dict[int, Any], str]
"""Values by the number of their column, and the kind."""


@dataclass(slots=True)
class Column:
    number: int
    name: str
    type: str


class Life:
    """One table and what each branch's partitions hold: every row ever written to them, in order."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = chance_of(seed)
        self.layout = LAYOUTS[seed % len(LAYOUTS)]
        self.engine = chance.choice(list(ENGINES))
        self.partition_keys = list(self.layout["columns"])
        self.groups: list[Partition] = self.layout.get("groups", [()])
        self.times: list[Partition] = list(self.layout["times"])
        keys = {f"k{i}": t for i, t in enumerate(chance.choice(KEYS))}
        sequence = {f"s{i}": chance.choice(SEQUENCES) for i in range(chance.choice([1, 1, 2, 3]))}
        values = {f"v{i}": chance.choice(VALUES) for i in range(chance.randint(1, 3))}
        named = list({**keys, **sequence, **values, **self.layout["columns"]}.items())
        chance.shuffle(named)
        self.columns = [Column(i, n, t) for i, (n, t) in enumerate(named)]
        self.keys, self.sequence, self.parted = (
            [next(c.number for c in self.columns if c.name == n) for n in names]
            for names in (keys, sequence, self.partition_keys)
        )
        self.descending = chance.random() < 0.3
        options = {
            "bucket": str(chance.randint(1, 3)),
            "file.format": chance.choice(["parquet", "parquet", "orc", "avro"]),
            "partition.legacy-name": "false",
            **({"sequence.field.sort-order": "descending"} if self.descending else {}),
            **ENGINES[self.engine],
        }
        self.table = made(
            f"memory://{uuid.uuid4()}/wh",
            column=[f"{name} {data_type}" for name, data_type in named],
            primary_key=[*self.partition_keys, *keys],
            partition_key=self.partition_keys,
            chain_partition_key=self.partition_keys[len(self.groups[0]) :],
            timestamp_pattern=self.layout["form"][0],
            timestamp_formatter=self.layout["form"][1],
            sequence_field=list(sequence),
            option=[f"{key}={value}" for key, value in options.items()],
        )
        self.next_number = 100
        self.held: dict[str, dict[Partition, list[Row]]] = {"main": {}, "snapshot": {}, "delta": {}}

    # -- steps -----------------------------------------------------------------------------------------------------

    def partition(self) -> Partition:
        return (*self.chance.choice(self.groups), *self.chance.choice(self.times))

    def spec(self, target: Partition) -> dict[str, Any]:
        return dict(zip(self.partition_keys, target, strict=True))

    def value(self, data_type: str, null: float = 0.25) -> Any:
        return None if self.chance.random() < null else self.chance.choice(_SOME[data_type])

    def some_rows(self, target: Partition) -> list[Row]:
        kinds = ["+I", "+U"] if self.engine == "partial-update" else ["+I", "+I", "+I", "+U", "-D", "-U"]
        rows = []
        for _ in range(self.chance.randint(1, 8)):
            values = {c.number: self.value(c.type, 0 if c.number in self.keys else 0.25) for c in self.columns
                      if c.number not in self.parted}  # fmt: skip
            rows.append((values | dict(zip(self.parted, target, strict=True)), self.chance.choice(kinds)))
        return rows

    def write(self) -> None:
        branch = self.chance.choices(["delta", "snapshot", "main"], [8, 2, 1])[0]
        target = self.partition()
        rows = self.some_rows(target)
        mode = self.chance.choices(["append", "overwrite", "dynamic_overwrite"], [6, 1, 1])[0]
        more: dict[str, Any] = {"partition": self.spec(target)} if mode == "overwrite" else {}
        if branch == "delta":
            more["on_stale"] = "record"
        try:
            write_arrow(self.table.branch(branch), self._arrow(rows), mode=mode, **more)
        except UnsafeOperationError:  # an anchor that is needed
            assert (branch, mode) != ("delta", "append")
            return
        if "ignoring" in self.engine:
            rows = [r for r in rows if r[1] in ("+I", "+U")]
        if rows:
            self.held[branch][target] = [*(self.held[branch].get(target, []) if mode == "append" else []), *rows]
        elif mode == "overwrite":
            self.held[branch].pop(target, None)

    def _arrow(self, rows: Sequence[Row]) -> pa.Table:
        fields = [(c.name, arrow_type(parse_type(c.type))) for c in self.columns]
        found = [{**{c.name: r.get(c.number) for c in self.columns}, "_row_kind": kind} for r, kind in rows]
        return pa.Table.from_pylist(found, schema=pa.schema([*fields, ("_row_kind", pa.string())]))

    def drop(self) -> None:
        branch, target = self.chance.choice(["delta", "snapshot", "main"]), self.partition()
        try:
            drop_partitions(self.table.branch(branch), [self.spec(target)])
        except UnsafeOperationError:
            assert branch == "snapshot" and target in self.held[branch]
            return
        self.held[branch].pop(target, None)

    def compact(self) -> None:
        target = self.partition()
        if target not in self.held["delta"]:
            return
        types = [parse_type(t) for t in self.layout["columns"].values()]
        text = ",".join(f"{k}='{v}'" for k, v in self.spec(target).items())
        done = outcomes(compact(self.table, text, overwrite=self.chance.random() < 0.3))
        # Full partitions that were built on the old rows are built again, in the order of time.
        for built in sorted({target, *self.held["snapshot"]}):
            if done.get(format_partition(built, self.partition_keys, types), "exists") != "exists":
                self.held["snapshot"][built] = self.merged(self.chain(built))

    def alter(self) -> None:
        free = [c for c in self.columns if c.number not in (*self.keys, *self.sequence, *self.parted)]
        chosen = self.chance.choice(free)
        kind = self.chance.choice(["add", "drop", "rename", "widen", "move"])
        self.next_number += 1
        number = self.next_number
        change = {
            "add": f"add column n{number} STRING",
            "drop": f"drop column {chosen.name}",
            "rename": f"rename column {chosen.name} to r{number}",
            "widen": f"alter column {chosen.name} type {WIDER.get(chosen.type, chosen.type)}",
            "move": f"alter column {chosen.name} first",
        }[kind]
        if (kind == "drop" and len(free) == 1) or (kind == "widen" and chosen.type not in WIDER):
            return
        run(self.table, "alter_chain_table", change=[change])
        if kind in ("drop", "move"):
            self.columns.remove(chosen)
        if kind == "move":
            self.columns.insert(0, chosen)
        elif kind == "add":
            self.columns.append(Column(number, f"n{number}", "STRING"))
        elif kind == "rename":
            chosen.name = f"r{number}"
        elif kind == "widen":
            chosen.type = WIDER[chosen.type]

    # -- the rules -------------------------------------------------------------------------------------------------

    def chain(self, target: Partition) -> list[list[Row]]:
        """The parts that a partition is merged of; the full partition of its own does not count."""
        width = len(self.groups[0])
        own = {b: sorted(p for p in self.held[b] if p[:width] == target[:width]) for b in ("snapshot", "delta")}
        anchor = max((p for p in own["snapshot"] if p < target), default=None)
        deltas = [p for p in own["delta"] if p <= target and (anchor is None or p > anchor)]
        return [*([self.held["snapshot"][anchor]] if anchor else []), *(self.held["delta"][p] for p in deltas)]

    def merged(self, parts: Sequence[Sequence[Row]]) -> list[Row]:
        versions: dict[tuple[Any, ...], list[Row]] = {}
        for rows in parts:  # what comes later wins ties, and sorting keeps that order
            for row in rows:
                versions.setdefault(tuple(row[0][k] for k in self.keys), []).append(row)
        out: list[Row] = []
        for found in versions.values():
            ordered = sorted(found, key=cmp_to_key(self._compared))
            last = self._folded(ordered) if self.engine.startswith("partial") else ordered[-1]
            if last is not None and last[1] in ("+I", "+U"):
                out.append((last[0], "+I"))
        return out

    def _compared(self, one: Row, other: Row) -> int:
        for number in self.sequence:
            a, b = one[0].get(number), other[0].get(number)
            if a is None or b is None:  # null is lowest in both orders
                if (a is None) != (b is None):
                    return -1 if a is None else 1
            elif a != b:
                lower = a.encode() < b.encode() if isinstance(a, str) else a < b
                return -1 if lower != self.descending else 1
        return 0

    @staticmethod
    def _folded(rows: Sequence[Row]) -> Row | None:
        found: dict[int, Any] | None = None
        for values, kind in rows:
            if kind == "-D":
                found = None
            elif kind != "-U":
                found = {**(found or {}), **{n: v for n, v in values.items() if v is not None}}
        return None if found is None else (found, "+I")

    def rows(self, *, carried: bool = False) -> list[str]:
        targets = {p for held in self.held.values() for p in held}
        out = []
        for target in targets:
            stored = next((self.held[b][target] for b in ("main", "snapshot") if target in self.held[b]), None)
            out += self.shown(target, self.chain(target) if stored is None else [stored])
        for group in {p[: len(self.groups[0])] for p in targets} if carried else ():
            at = [self.times.index(p[len(group) :]) for p in targets if p[: len(group)] == group]
            gaps = [(*group, *self.times[i]) for i in range(min(at), max(at))]
            out += [row for p in gaps if p not in targets for row in self.shown(p, self.chain(p))]
        return sorted(out)

    def shown(self, target: Partition, parts: Sequence[Sequence[Row]]) -> list[str]:
        fixed = dict(zip(self.parted, target, strict=True))
        merged = ({**values, **fixed} for values, _ in self.merged(parts))
        return [_text(tuple(values.get(c.number) for c in self.columns)) for values in merged]

    # -- filters ---------------------------------------------------------------------------------------------------

    def condition(self, depth: int = 0) -> pc.Expression:
        if depth < 2 and self.chance.random() < 0.5:
            one, other = self.condition(depth + 1), self.condition(depth + 1)
            return self.chance.choice([one & other, one | other, ~one])
        column = self.chance.choice(self.columns)
        field, data_type = pc.field(column.name), arrow_type(parse_type(column.type))
        is_partition = column.number in self.parted
        at = self.parted.index(column.number) if is_partition else 0
        low, high = (self.partition()[at] if is_partition else self.value(column.type, 0) for _ in range(2))
        a, b = pa.scalar(low, data_type), pa.scalar(high, data_type)
        plain = [
            field == a,
            field != a,
            field.is_null(),
            field.is_valid(),
            field.isin(pa.array([low, high], data_type)),
        ]
        return self.chance.choice(
            plain if column.type == "BOOLEAN" else [*plain, field < a, (field >= a) & (field <= b)]
        )

    def check(self) -> None:
        everything = read_arrow(self.table)
        assert _texts(everything) == self.rows()
        carried = read_arrow(self.table, gap_policy="carry_forward")
        assert _texts(carried) == self.rows(carried=True)
        branches = {b: read_arrow(self.table.branch(b)) for b in ("snapshot", "delta")}
        for branch, found in branches.items():
            assert _texts(found) == sorted(r for p, rows in self.held[branch].items() for r in self.shown(p, [rows]))
        for _ in range(4):
            where = self.condition()
            names = self.chance.sample([c.name for c in self.columns], self.chance.randint(1, len(self.columns)))
            some = read_arrow(self.table, where=where, columns=names)
            assert _texts(some) == _texts(everything.filter(where).select(names)), where
            some = read_arrow(self.table, where=where, gap_policy="carry_forward")
            assert _texts(some) == _texts(carried.filter(where)), where
            for branch, found in branches.items():
                assert _texts(read_arrow(self.table.branch(branch), where=where)) == _texts(found.filter(where)), where
        planned = planned_chain(self.table, batch_rows=2)
        schema, output = planned.inputs.main.schema, planned.inputs.main.output_schema
        cut = tuple(part for split in planned.chains for part in divide_split(split, schema, 1))
        assert _texts(pa.Table.from_batches(read_group(replace(planned, chains=cut)), output)) == _texts(everything)


def _text(values: tuple[Any, ...]) -> str:
    return repr(tuple(v.normalize() + 0 if isinstance(v, Decimal) else v for v in values))


def _texts(rows: pa.Table) -> list[str]:
    return sorted(map(_text, zip(*(c.to_pylist() for c in rows.columns), strict=True)))


@pytest.mark.random
@pytest.mark.parametrize("seed", range(lives(3, 14)))
def test_random_chain_tables_of_all_shapes(seed: int) -> None:
    life = Life(seed)
    for _ in range(2):
        for _ in range(life.chance.randint(3, 8)):
            step = life.chance.choices([life.write, life.compact, life.drop, life.alter], [8, 3, 1, 1])[0]
            step()
        life.check()
