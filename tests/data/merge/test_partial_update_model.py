"""Partial updates of random versions against a model that applies them one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from airflow_paimon.core.errors import UnsupportedFeatureError
from tests.data.merge.versions import Version, merged
from tests.randomness import lives

COLUMNS = {"k": "INT NOT NULL", "a": "INT", "b": "INT", "g": "INT", "c": "INT", "h1": "INT", "d": "INT", "h2": "INT",
           "e": "INT"}  # fmt: skip
GROUPS = {"g": ("a", "b"), "h1,h2": ("c", "d")}
FUNCTIONS = ["sum", "max", "last_value", "last_non_null_value", "first_value", "first_non_null_value"]
TAKE_BACK = {"sum", "last_value", "last_non_null_value"}

Row = dict[str, Any]


class Refused(Exception):
    """Neither Paimon nor we have a result."""


class Model:
    """One key."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options
        self.groups = {tuple(f.split(",")): cs for f, cs in GROUPS.items() if f"fields.{f}.sequence-group" in options}
        self.row: Row = dict.fromkeys(COLUMNS)
        self.filled = self.saw_insert = self.deleted = False
        self.ready: set[str] = set()

    def result(self, versions: Sequence[tuple[str, Row]]) -> Row | None:
        if len(versions) == 1:
            kind, row = versions[0]
            return row if kind in ("+I", "+U") else None
        for kind, row in versions:
            self.deleted = False
            if kind in ("-U", "-D"):
                self.retract(kind, row)
            else:
                self.insert(row)
        return self.row if self.saw_insert and not self.deleted else None

    def insert(self, new: Row) -> None:
        self.saw_insert = self.filled = True
        grouped = {c for fields, columns in self.groups.items() for c in (*fields, *columns)}
        for column in set(COLUMNS) - grouped:
            if new[column] is not None:
                self.row[column] = new[column]
        for fields, columns in self.groups.items():
            if all(new[f] is None for f in fields):
                continue
            late = self.rank(new, fields) < self.rank(self.row, fields)
            for column in columns:
                function = self.function(column)
                if function is not None:
                    one, other = self.row[column], new[column]
                    self.row[column] = self.agg(column, *((other, one) if late else (one, other)))
                elif not late:
                    self.row[column] = new[column]
            if not late:
                self.row.update({f: new[f] for f in fields})

    def retract(self, kind: str, new: Row) -> None:
        if not self.filled:
            self.row, self.filled = dict(new), True
        if self.options.get("ignore-delete"):
            return
        if not self.groups:
            if not self.options.get("partial-update.remove-record-on-delete"):
                raise Refused
            if kind == "-D":
                self.row, self.deleted = dict(new), True
            return
        leads = {f: self.leads(new, f) for f in self.groups}
        removing = set(self.options.get("partial-update.remove-record-on-sequence-group", "").split(","))
        if kind == "-D" and any(lead and not removing.isdisjoint(f) for f, lead in leads.items()):
            self.row, self.deleted = dict(new), True
            return
        for fields in self.groups:
            if any(new[f] is not None for f in fields):
                self.retract_group(new, fields, leads[fields])

    def leads(self, new: Row, fields: Sequence[str]) -> bool:
        return any(new[f] is not None for f in fields) and self.rank(new, fields) >= self.rank(self.row, fields)

    def retract_group(self, new: Row, fields: tuple[str, ...], leads: bool) -> None:
        for column in self.groups[fields]:
            if self.function(column) is not None:
                self.row[column] = self.take_back(column, self.row[column], new[column])
            elif leads:
                self.row[column] = None
        if leads:
            self.row.update({f: new[f] for f in fields})

    @staticmethod
    def rank(row: Row, fields: Sequence[str]) -> list[Any]:
        return [(row[f] is not None, row[f] or 0) for f in fields]

    def function(self, column: str) -> str | None:
        return self.options.get(f"fields.{column}.aggregate-function")

    def agg(self, column: str, held: Any, new: Any) -> Any:
        function = self.function(column)
        if function == "last_value":
            return new
        if function == "last_non_null_value":
            return held if new is None else new
        if function in ("first_value", "first_non_null_value"):
            if column not in self.ready and (function == "first_value" or new is not None):
                self.ready.add(column)
                return new
            return held
        if held is None or new is None:
            return new if held is None else held
        return held + new if function == "sum" else max(held, new)

    def take_back(self, column: str, held: Any, new: Any) -> Any:
        function = self.function(column)
        if self.options.get(f"fields.{column}.ignore-retract"):
            return held
        if function not in TAKE_BACK:
            raise Refused
        if function == "sum":
            if held is None or new is None:
                return held if new is None else -new
            return held - new
        return None if function == "last_value" or new is not None else held


VALUES = st.one_of(st.none(), st.integers(0, 3))
KINDS = st.sampled_from(["+I", "+I", "+I", "+U", "-D", "-U"])


@st.composite
def tables(draw: st.DrawFn) -> dict[str, str]:
    options = {"merge-engine": "partial-update"}
    if draw(st.booleans()):
        options["ignore-delete"] = "true"
    if not draw(st.integers(0, 3)):
        if "ignore-delete" not in options and draw(st.integers(0, 3)):
            options["partial-update.remove-record-on-delete"] = "true"
        return options
    for fields, columns in GROUPS.items():
        if fields != "g" or draw(st.integers(0, 3)):
            options[f"fields.{fields}.sequence-group"] = ",".join(columns)
            for column in columns:
                if draw(st.booleans()):
                    options[f"fields.{column}.aggregate-function"] = draw(st.sampled_from(FUNCTIONS))
                    if draw(st.booleans()):
                        options[f"fields.{column}.ignore-retract"] = "true"
    if "ignore-delete" not in options and draw(st.booleans()):
        known = [f for fields in GROUPS if f"fields.{fields}.sequence-group" in options for f in fields.split(",")]
        options["partial-update.remove-record-on-sequence-group"] = draw(st.sampled_from(known))
    return options


@st.composite
def versions(draw: st.DrawFn) -> list[tuple[str, Row]]:
    count = draw(st.integers(1, 14))
    return [
        (draw(KINDS), {n: draw(st.integers(1, 3)) if n == "k" else draw(VALUES) for n in COLUMNS}) for _ in range(count)
    ]


@settings(max_examples=lives(40, 300))
@given(tables(), versions())
def test_partial_update_equals_the_model(options: dict[str, str], rows: list[tuple[str, Row]]) -> None:
    given_rows: list[Version] = [(kind, *row.values()) for kind, row in rows]
    try:
        expected = expected_rows(options, rows)
    except Refused:
        event("refused")
        with pytest.raises(UnsupportedFeatureError):
            merged(COLUMNS, options, given_rows)
        return
    event(f"groups: {any(o.endswith('sequence-group') for o in options)}")
    assert [dict(zip(COLUMNS, row[1:], strict=True)) for row in merged(COLUMNS, options, given_rows)] == expected


def expected_rows(options: Mapping[str, str], rows: Sequence[tuple[str, Row]]) -> list[Row]:
    keys = sorted({row["k"] for _, row in rows})
    found = [Model(options).result([(kind, row) for kind, row in rows if row["k"] == key]) for key in keys]
    return [row for row in found if row is not None]
