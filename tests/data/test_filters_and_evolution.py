"""Filters on tables whose columns were added, renamed, widened and dropped give the rows that a row model has.

Each filter is read as an Arrow expression, as a predicate that only prunes, and as the data source's option ``where``.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.schema.schema_plan import AddColumn, DropColumn, RenameColumn, WidenColumn
from airflow_paimon.core.sql_text.condition import parse_condition
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Condition, Operator, Predicate, like_pattern
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.files import write as file_writes
from airflow_paimon.data.files.arrow_types import arrow_type
from airflow_paimon.data.planner import plan_rows
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.where import to_expression
from tests.core.tables import alter_table
from tests.data.tables import make_table
from tests.randomness import chance, lives

UTC = dt.UTC
DAY, MOMENT = dt.date(2025, 1, 1), dt.datetime(2025, 1, 1)
MAKERS: dict[str, Callable[[random.Random], Any]] = {
    "INT": lambda c: c.randrange(-6, 6),
    "BIGINT": lambda c: c.choice([2**40, -(2**40), c.randrange(-6, 6)]),
    "STRING": lambda c: c.choice(["", "a", "it's", "ab" * 9, "ab" * 8 + "c", "é", "\U0010ffff" * 17, "z" * 20]),
    "BOOLEAN": lambda c: c.random() < 0.5,
    "DATE": lambda c: DAY + dt.timedelta(days=c.randrange(-3, 3)),
    "DECIMAL(6, 2)": lambda c: Decimal(c.randrange(-300, 300)).scaleb(-2),
    "DECIMAL(30, 2)": lambda c: Decimal(c.choice([10**25, -(10**25), c.randrange(-300, 300)])).scaleb(-2),
    "TIMESTAMP(3)": lambda c: MOMENT + dt.timedelta(milliseconds=c.randrange(-5, 5)),
    "TIMESTAMP(6)": lambda c: MOMENT + dt.timedelta(microseconds=c.randrange(-1500, 1500)),
    "TIMESTAMP(6) WITH LOCAL TIME ZONE": lambda c: (MOMENT + dt.timedelta(seconds=c.randrange(-3, 3))).replace(
        tzinfo=UTC
    ),
}
WIDER = {"INT": "BIGINT", "DECIMAL(6, 2)": "DECIMAL(30, 2)", "TIMESTAMP(3)": "TIMESTAMP(6)"}
COMPARISONS: tuple[Operator, ...] = ("=", "!=", "<", "<=", ">", ">=")
Row = dict[str, Any]


@dataclass
class Life:
    """A table and the rows that it must have. Rows go by column names as they are now."""

    table: Table
    keyed: bool
    chance: random.Random
    types: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    names: int = 0

    def name(self) -> str:
        """A new name, or one that was used before for another column."""
        self.names += 1
        taken = [n for n in ("a", "b", "c.x", "d") if n not in self.types]
        return self.chance.choice([*taken, f"n{self.names}"])

    def write(self) -> None:
        fresh = [self._row() for _ in range(self.chance.randrange(1, 30))]
        schema = pa.schema([(f.name, arrow_type(f.type)) for f in self.table.schema().fields])
        write_arrow(self.table, pa.Table.from_pylist(fresh, schema=schema))
        if self.keyed:
            merged = {(r["k"], r["p"]): r for r in (*self.rows, *fresh)}
            self.rows = list(merged.values())
        else:
            self.rows += fresh

    def _row(self) -> Row:
        null = self.chance.choice([0.1, 0.5, 1.0])
        row = {n: None if self.chance.random() < null else MAKERS[t](self.chance) for n, t in self.types.items()}
        return row | {"k": self.chance.randrange(-20, 20), "p": MAKERS[self.types["p"]](self.chance)}

    def alter(self) -> None:
        free = [n for n in self.types if n not in ("k", "p")]
        kind = self.chance.choice(["add", "rename", "widen", "drop"])
        old = self.chance.choice(free) if free else ""
        if kind == "add" or not old:
            name, made = self.name(), self.chance.choice(list(MAKERS))
            alter_table(self.table, [AddColumn(name=name, type=made)])
            self.types[name] = made
            self.rows = [{**r, name: None} for r in self.rows]
        elif kind == "rename":
            new = self.name()
            alter_table(self.table, [RenameColumn(name=old, to_name=new)])
            self.types = {new if n == old else n: t for n, t in self.types.items()}
            self.rows = [{new if n == old else n: v for n, v in r.items()} for r in self.rows]
        elif kind == "widen" and self.types[old] in WIDER:
            self.types[old] = WIDER[self.types[old]]
            alter_table(self.table, [WidenColumn(name=old, type=self.types[old])])
        elif kind == "drop" and len(free) > 1:
            alter_table(self.table, [DropColumn(name=old)])
            del self.types[old]
            self.rows = [{n: v for n, v in r.items() if n != old} for r in self.rows]

    def condition(self) -> Predicate:
        if self.chance.random() < 0.4:
            parts = tuple(self.condition() for _ in range(2))
            return AllOf(parts) if self.chance.random() < 0.5 else AnyOf(parts)
        name = self.chance.choice(list(self.types))
        if self.chance.random() < 0.2:
            return Condition(name, self.chance.choice(["is null", "is not null"]))
        if self.chance.random() < 0.2:
            values = tuple(self._literal(name) for _ in range(self.chance.randrange(1, 4)))
            return Condition(name, self.chance.choice(["in", "not in"]), values)
        if self.types[name] == "STRING" and self.chance.random() < 0.4:
            some = self._literal(name)
            pattern = self.chance.choice([f"{some[:2]}%", f"%{some[-2:]}", f"{some[:1]}_%", some])
            return Condition(name, self.chance.choice(["like", "not like"]), pattern)
        return Condition(name, self.chance.choice(COMPARISONS), self._literal(name))

    def _literal(self, name: str) -> Any:
        held = [r[name] for r in self.rows if r[name] is not None]
        return (
            self.chance.choice(held) if held and self.chance.random() < 0.5 else MAKERS[self.types[name]](self.chance)
        )


def holds(asked: Predicate, row: Row) -> bool:
    if isinstance(asked, AllOf | AnyOf):
        return (all if isinstance(asked, AllOf) else any)(holds(p, row) for p in asked.parts)
    value, given = row[asked.column], asked.value
    if asked.op in ("is null", "is not null"):
        return (value is None) == (asked.op == "is null")
    if value is None:
        return False
    if asked.op in ("in", "not in"):
        return (value in given) == (asked.op == "in")
    if asked.op in ("like", "not like"):
        return (like_pattern(given)[0].fullmatch(value) is not None) == (asked.op == "like")
    return bool(
        {
            "=": lambda: value == given,
            "!=": lambda: value != given,
            "<": lambda: value < given,
            "<=": lambda: value <= given,
            ">": lambda: value > given,
            ">=": lambda: value >= given,
        }[asked.op]()
    )


def expression(asked: Predicate, schema: pa.Schema) -> pc.Expression:
    if isinstance(asked, AllOf | AnyOf):
        one, other = (expression(p, schema) for p in asked.parts)
        return one & other if isinstance(asked, AllOf) else one | other
    kind = schema.field(asked.column).type
    column = pc.field(asked.column)
    if asked.op in ("is null", "is not null"):
        return column.is_null() if asked.op == "is null" else column.is_valid()
    if asked.op in ("in", "not in"):
        found = column.isin(pa.array(asked.value, kind))
        return found if asked.op == "in" else ~found & column.is_valid()
    if asked.op in ("like", "not like"):
        found = pc.match_like(column, asked.value)
        return found if asked.op == "like" else ~found
    given = pc.scalar(pa.scalar(asked.value, kind))
    tests = {"=": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal}
    tests |= {">": pc.greater, ">=": pc.greater_equal}
    return tests[asked.op](column, given)


def text(asked: Predicate) -> str:
    if isinstance(asked, AllOf | AnyOf):
        return "(" + (" AND " if isinstance(asked, AllOf) else " OR ").join(map(text, asked.parts)) + ")"
    column = f"`{asked.column}`"
    if asked.op in ("is null", "is not null"):
        return f"{column} {asked.op.upper()}"
    if asked.op in ("in", "not in"):
        return f"{column} {asked.op.upper()} ({', '.join(map(literal, asked.value))})"
    return f"{column} {asked.op.upper()} {literal(asked.value)}"


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | Decimal):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    if isinstance(value, dt.date):
        return f"'{value.isoformat()}'"
    return "'" + value.replace("'", "''") + "'"


def counted(rows: list[Row]) -> Counter[str]:
    return Counter(repr([(n, plain(v)) for n, v in sorted(r.items())]) for r in rows)


def plain(value: Any) -> Any:
    """Equal values in one form: other scales and zones are the same."""
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return value.astimezone(UTC).isoformat() if isinstance(value, dt.datetime) and value.tzinfo else value


def planned(table: Table, where: pc.Expression | None, predicate: Predicate) -> list[Row]:
    layers = plan_rows(table, ReadRequest(where=where, predicate=predicate)).layers
    return [r for read, splits in layers for s in splits for b in read_split(read, s) for r in b.to_pylist()]


def begin(folder: Path, chance: random.Random, keyed: bool) -> Life:
    partition = chance.choice([t for t in MAKERS if t != "BOOLEAN"])
    types = {"p": partition, "k": "INT", "a": chance.choice(list(MAKERS)), "c": "INT"}
    columns: dict[str, Any] = {n: f"{t} NOT NULL" if n in ("p", "k") and keyed else t for n, t in types.items()}
    columns["c"] = {"type": "ROW", "fields": [{"id": 0, "name": "x", "type": "INT"}]}
    options = {
        "metadata__stats_mode": chance.choice(["full", "truncate(2)", "truncate(16)", "counts", "none"]),
        "metadata__stats_dense_store": chance.choice(["true", "false"]),
    }
    kind: dict[str, Any] = {"primary_keys": ["p", "k"], "bucket": "2"} if keyed else {}
    if not keyed and chance.random() < 0.5:
        kind = {"bucket": "2", "bucket_key": "k"}
    partitioned = keyed or chance.random() < 0.6
    table = make_table(folder, columns, partition_keys=["p"] if partitioned else [], **kind, **options)
    del types["c"]  # not filtered by, but ``c.x`` may be the name of another column
    return Life(table, keyed, chance, types)


@pytest.mark.random
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append"])
@pytest.mark.parametrize("case", range(lives(1, 3)))
def test_filters_give_the_rows_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: int, keyed: bool
) -> None:
    monkeypatch.setattr(file_writes, "ROW_GROUP_ROWS", 5)
    life = begin(tmp_path, chance(f"filters/{keyed}/{case}"), keyed)
    for _ in range(4):
        life.write()
        life.alter()
        schema = life.table.schema()
        names = list(life.types)
        assert counted(read_arrow(life.table, columns=names).to_pylist()) == counted(life.rows)
        arrow = pa.schema([(f.name, arrow_type(f.type)) for f in schema.fields])
        for _ in range(6):
            asked = life.condition()
            expected = counted([r for r in life.rows if holds(asked, r)])
            found = read_arrow(life.table, columns=names, where=expression(asked, arrow))
            assert counted(found.to_pylist()) == expected, asked
            pruned = [{n: r[n] for n in names} for r in planned(life.table, None, asked)]
            assert expected <= counted([r for r in pruned if holds(asked, r)]) == expected, asked
            parsed = parse_condition(text(asked), schema)
            found_by_text = planned(life.table, to_expression(parsed, schema), parsed)
            assert counted([{n: r[n] for n in names} for r in found_by_text]) == expected, text(asked)
