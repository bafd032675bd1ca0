"""Options that name columns, as they apply to an older version of the columns."""

from __future__ import annotations

import pytest

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.core.table.merge_options import options_in_older_names

REMOVE = "partial-update.remove-record-on-sequence-group"


def schema(columns: str, options: dict[str, str]) -> TableSchema:
    """``columns``: the name and the field id of each."""
    pairs = [c.split(":") for c in columns.split()]
    fields = tuple(DataField(int(i), name, parse_type("INT")) for name, i in pairs)
    return TableSchema(id=0, fields=fields, highest_field_id=9, options=options)


@pytest.mark.parametrize(
    ("older", "then", "latest", "now", "expected"),
    [
        ("a:1", {"x": "1", "y": "2"}, "b:1", {"x": "3"}, {"x": "3"}),
        ("a:1 b:2", {}, "b:1 a:2", {"bucket-key": "a,b"}, {"bucket-key": "b,a"}),
        ("a:1", {}, "b:1", {"sequence.field": "b"}, {"sequence.field": "a"}),
        (
            "a:1 b:2",
            {"sequence.field": "a"},
            "a:3 b:2",
            {"sequence.field": "a", "sequence.field.sort-order": "descending"},
            {"sequence.field": "a"},
        ),
        ("a:1", {}, "a:1 b:2", {"sequence.field": "b", "sequence.field.sort-order": "descending"}, {}),
        ("a:1 b:2", {"sequence.field": "a"}, "b:2", {}, {"sequence.field": "a"}),
        (
            "g:1 a:2 b:3",
            {"fields.g.sequence-group": "a", REMOVE: "g"},
            "h:1 c:2 b:3",
            {"fields.h.sequence-group": "c,b", REMOVE: "h"},
            {"fields.g.sequence-group": "a,b", REMOVE: "g"},
        ),
        (
            "g:1 a:2",
            {"fields.g.sequence-group": "a", REMOVE: "g"},
            "h:1 a:2",
            {"fields.h.sequence-group": "a", REMOVE: "g"},  # Paimon does not rename it there
            {"fields.g.sequence-group": "a", REMOVE: "g"},
        ),
        ("g:1 a:2 b:3", {"fields.g.sequence-group": "a,b"}, "g:1 a:2", {"fields.g.sequence-group": "a"},
         {"fields.g.sequence-group": "a,b"}),
        ("a:1", {}, "a:1 g:2 h:3", {"fields.g,h.sequence-group": "a"}, {}),
        ("g:1 h:2 a:3", {}, "h:1 g:2 a:3", {"fields.g,h.sequence-group": "a"}, {"fields.h,g.sequence-group": "a"}),
        (
            "a:1 b:2",
            {"fields.a.f": "min", "fields.b.f": "sum"},
            "b:1 a:3",
            {"fields.b.f": "max", "fields.a.f": "product", "fields.default-aggregate-function": "sum"},
            {"fields.a.f": "max", "fields.b.f": "sum", "fields.default-aggregate-function": "sum"},
        ),
        ("a:1", {}, "b:1", {"fields.b.f": "sum", "fields.a.f": "min", "fields.a.g": "1"},
         {"fields.a.f": "sum", "fields.a.g": "1"}),
        ("v.x:1 w:2", {}, "v:2 v.y:1", {"fields.v.y.f": "sum", "fields.v.map.f": "1"},
         {"fields.v.x.f": "sum", "fields.w.map.f": "1"}),
    ],
    ids=[
        "an option without columns",
        "swapped names",
        "a renamed column",
        "another column of the same name",
        "a column added since",
        "a column dropped since",
        "a renamed sequence group",
        "an old name in an option beside the group",
        "a column of a group dropped since",
        "a group of columns added since",
        "a group of swapped columns",
        "functions of renamed, added and dropped columns",
        "an old name beside the new one",
        "names with dots",
    ],
)  # fmt: skip
def test_options_in_older_names(
    older: str, then: dict[str, str], latest: str, now: dict[str, str], expected: dict[str, str]
) -> None:
    assert options_in_older_names(schema(latest, now), schema(older, then)) == expected
