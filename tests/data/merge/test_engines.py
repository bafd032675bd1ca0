"""Merge engines, version by version: the results are those of Paimon 2.0.0."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from tests.data.merge.versions import Version, merged, row_of

TWO = {"k": "INT NOT NULL", "a": "STRING", "b": "STRING"}
GROUPED = {"k": "INT NOT NULL", "a": "INT", "g": "INT", "b": "INT", "h": "INT"}
SIX = {"f0": "INT NOT NULL", **{f"f{i}": "INT" for i in range(1, 7)}}
NUMBER = {"k": "INT NOT NULL", "s": "INT", "t": "STRING"}

PARTIAL = {"merge-engine": "partial-update"}
IGNORE = {**PARTIAL, "ignore-delete": "true"}
REMOVE = {**PARTIAL, "partial-update.remove-record-on-delete": "true"}
GROUPS = {**PARTIAL, "fields.g.sequence-group": "a", "fields.h.sequence-group": "b"}
REMOVE_G = {**GROUPS, "partial-update.remove-record-on-sequence-group": "g"}
F_GROUPS = {**PARTIAL, "fields.f3.sequence-group": "f1,f2", "fields.f6.sequence-group": "f4,f5"}
AGGREGATION = {"merge-engine": "aggregation", "fields.s.aggregate-function": "sum"}
FIRST = {"merge-engine": "first-row"}


def plus(*values: Any) -> Version:
    return ("+I", 1, *values)


def minus(*values: Any, kind: str = "-D") -> Version:
    return (kind, 1, *values)


PARTIAL_CASES: list[tuple[str, dict[str, str], list[Version], tuple[Any, ...] | None]] = [
    ("a null keeps", PARTIAL, [plus("a", None), plus(None, "b")], ("a", "b")),
    ("an ignored delete", IGNORE, [plus("a", "b"), minus(None, None)], ("a", "b")),
    ("an ignored delete that comes first", IGNORE, [minus("x", "y"), plus("c", None)], ("c", "y")),
    ("an update before", REMOVE, [plus("a", "b"), minus("a", "b", kind="-U")], ("a", "b")),
    ("an update before that comes first", REMOVE, [minus("x", "y", kind="-U"), plus("c", None)], ("c", "y")),
    ("a delete", REMOVE, [plus("a", "b"), minus("a", "b")], None),
    ("a delete, and its values come back", REMOVE, [plus("a", "b"), minus("a", "b"), plus("c", None)], ("c", "b")),
    ("a delete without values", REMOVE, [plus("a", "b"), minus(None, None), plus("c", None)], ("c", None)),
    ("an update before after a delete", REMOVE, [plus("a", "b"), minus("x", "y"), minus("z", "z", kind="-U")],
     ("x", "y")),
    ("only retracts", IGNORE, [minus("x", "y"), minus("z", "y")], None),
]  # fmt: skip


@pytest.mark.parametrize(("what", "options", "versions", "row"), PARTIAL_CASES)
def test_partial_update(what: str, options: dict[str, str], versions: list[Version], row: Version | None) -> None:
    assert row_of(TWO, options, *versions) == row, what


GROUP_CASES: list[tuple[dict[str, str], list[Version], tuple[Any, ...] | None]] = [
    (GROUPS, [plus(10, 1, 20, 1), plus(None, 2, None, None)], (None, 2, 20, 1)),
    (GROUPS, [plus(10, 5, 20, 5), plus(11, 4, 21, 6)], (10, 5, 21, 6)),
    (GROUPS, [plus(10, 5, 20, 5), plus(11, 5, 21, 5)], (11, 5, 21, 5)),
    (GROUPS, [plus(10, 5, 20, 5), minus(10, 6, 20, None)], (None, 6, 20, 5)),
    (GROUPS, [minus(10, 6, 20, 3), minus(10, 7, 20, 4)], None),
    (REMOVE_G, [plus(10, 5, 20, 5), minus(10, 6, 20, 5)], None),
    (REMOVE_G, [plus(10, 5, 20, 5), minus(10, 4, 20, 4)], (10, 5, 20, 5)),
    (REMOVE_G, [plus(10, 5, 20, 5), minus(10, 6, 20, None, kind="-U")], (None, 6, 20, 5)),
    (REMOVE_G, [plus(10, 5, 20, 5), minus(10, 6, 20, 5), plus(99, 5, 77, 7)], (10, 6, 77, 7)),
]  # fmt: skip


@pytest.mark.parametrize(("options", "versions", "row"), GROUP_CASES)
def test_sequence_groups(options: dict[str, str], versions: list[Version], row: tuple[Any, ...] | None) -> None:
    assert row_of(GROUPED, options, *versions) == row


def test_a_group_step_by_step() -> None:
    steps = [
        (plus(1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1)),
        (plus(2, 2, 2, 2, 2, None), (2, 2, 2, 1, 1, 1)),
        (plus(3, 3, 1, 3, 3, 3), (2, 2, 2, 3, 3, 3)),
        (minus(1, 1, 3, 1, 1, None), (None, None, 3, 3, 3, 3)),
        (minus(1, 1, 3, 1, 1, 4), (None, None, 3, None, None, 4)),
    ]
    versions = [v for v, _ in steps]
    for count in range(2, len(steps) + 1):
        assert row_of(SIX, F_GROUPS, *versions[:count]) == steps[count - 1][1]
    removing = {**F_GROUPS, "partial-update.remove-record-on-sequence-group": "f6"}
    assert row_of(SIX, removing, *versions) is None
    assert row_of(SIX, removing, *versions[:4]) == steps[3][1]


def test_a_group_with_several_fields_is_compared_in_their_order() -> None:
    columns = {"k": "INT NOT NULL", "g1": "INT", "v": "STRING", "g2": "INT"}
    options = {**PARTIAL, "fields.g1,g2.sequence-group": "v"}
    assert row_of(columns, options, plus(1, "a", 9), plus(2, "b", 1)) == (2, "b", 1)
    assert row_of(columns, options, plus(2, "a", 9), plus(2, "b", 1)) == (2, "a", 9)
    assert row_of(columns, options, plus(2, "a", None), plus(2, "b", 1)) == (2, "b", 1)
    assert row_of(columns, options, plus(1, "a", 1), plus(None, "b", 7)) == (1, "a", 1)
    assert row_of(columns, options, plus(1, "a", 1), plus(None, "b", None)) == (1, "a", 1)


@pytest.mark.parametrize("fields", ["g1", "g1,g2", "g2,g1"])
def test_fields_of_a_group_may_lie_as_far_apart_as_their_type_allows(fields: str) -> None:
    columns = {"k": "INT NOT NULL", "g1": "BIGINT", "v": "STRING", "g2": "BIGINT"}
    options = {**PARTIAL, f"fields.{fields}.sequence-group": "v"}
    low, high = plus(-(2**63), "low", 1 - 2**63), plus(2**63 - 1, "high", 2**63 - 2)
    between, null = plus(0, "between", 0), plus(None, "null", None)
    for versions in ([low, high, between, null], [high, null, low, between], [between, low, null, high]):
        row = row_of(columns, options, *versions)
        assert row is not None
        assert row[:2] == high[2:4]
    assert row_of(columns, options, null, low) == low[2:]


def test_sequence_fields_of_the_table_order_the_versions_before_the_groups() -> None:
    options = {**GROUPS, "sequence.field": "b"}
    assert row_of(GROUPED, options, plus(10, 1, 9, 1), plus(11, 1, 8, 1)) == (10, 1, 9, 1)


@pytest.mark.parametrize(
    ("function", "versions", "value"),
    [
        ("first_value", [(5, 100), (6, 200), (1, 300), (3, 400)], 400),
        ("sum", [(5, 1), (6, 2), (1, 4), (3, 8)], 15),
        ("last_value", [(5, 1), (6, None), (1, 4)], None),
        ("last_non_null_value", [(5, 1), (6, None), (1, 4)], 1),
        ("last_non_null_value", [(5, None), (1, 4)], 4),
        ("max", [(5, 1), (None, 9), (4, 3)], 3),
    ],
)
def test_aggregates_in_groups(function: str, versions: list[tuple[Any, Any]], value: Any) -> None:
    options = {**GROUPS, "fields.a.aggregate-function": function}
    row = row_of(GROUPED, options, *(plus(v, g, None, None) for g, v in versions))
    assert row is not None
    assert row[0] == value


def test_a_delete_is_taken_back_from_a_sum_whatever_its_sequence() -> None:
    options = {**GROUPS, "fields.a.aggregate-function": "sum"}
    assert row_of(GROUPED, options, plus(10, 5, 1, 1), minus(4, 6, 1, 1)) == (6, 6, None, 1)
    assert row_of(GROUPED, options, plus(10, 5, 1, 1), minus(4, 3, 1, 1)) == (6, 5, None, 1)
    # a retract that comes first begins the row with its value, and is then taken back from it
    assert row_of(GROUPED, options, minus(10, 5, 7, None), plus(3, 6, 1, 1)) == (3, 6, 1, 1)
    assert row_of(GROUPED, options, minus(10, None, 7, None), plus(3, 6, None, None)) == (13, 6, 7, None)


def test_partial_updates_with_deletes_need_an_option() -> None:
    for versions in ([plus("a", "b"), minus("a", "b")], [plus("a", "b"), minus("a", "b", kind="-U")]):
        with pytest.raises(UnsupportedFeatureError, match="remove-record-on-delete"):
            row_of(TWO, PARTIAL, *versions)


AGGREGATION_CASES: list[tuple[dict[str, str], list[Version], tuple[Any, ...] | None]] = [
    ({}, [plus(5, "x"), plus(7, None)], (12, "x")),
    ({}, [plus(5, "x"), minus(5, "x")], (0, None)),
    ({}, [minus(5, "x", kind="-U"), ("+U", 1, 7, "y")], (2, "y")),
    ({}, [minus(5, None), minus(6, None)], (-11, None)),
    ({"aggregation.remove-record-on-delete": "true"}, [plus(5, "x"), minus(5, "x")], None),
    ({"aggregation.remove-record-on-delete": "true"}, [plus(5, "x"), minus(5, "x", kind="-U"), plus(3, "x")], (3, "x")),
    ({"aggregation.remove-record-on-delete": "true"}, [plus(5, "x"), minus(5, "y"), plus(3, None)], (8, "y")),
    ({"fields.s.aggregate-function": "max", "fields.s.ignore-retract": "true"}, [plus(5, "x"), minus(5, None)],
     (5, "x")),
    ({"sequence.field": "s"}, [plus(5, "x"), plus(4, "y")], (5, "x")),
    ({"ignore-delete": "true"}, [plus(5, "x"), minus(5, None)], (0, "x")),
]  # fmt: skip


@pytest.mark.parametrize(("options", "versions", "row"), AGGREGATION_CASES)
def test_aggregation(options: dict[str, str], versions: list[Version], row: tuple[Any, ...] | None) -> None:
    assert row_of(NUMBER, {**AGGREGATION, **options}, *versions) == row


def test_first_row() -> None:
    assert row_of(TWO, FIRST, plus("a", None), plus("b", "c")) == ("a", None)
    assert row_of(TWO, {**FIRST, "ignore-delete": "true"}, minus("x", "y"), plus("b", "c"), plus("d", "e")) == (
        "b",
        "c",
    )
    with pytest.raises(UnsupportedFeatureError, match="ignore-delete"):
        row_of(TWO, FIRST, plus("a", None), minus("a", None))


@pytest.mark.parametrize("options", [{}, PARTIAL, GROUPS, AGGREGATION, FIRST], ids=lambda o: o.get("merge-engine"))
def test_a_lone_version_never_meets_the_engine(options: dict[str, str]) -> None:
    """It is neither negated, nor an error, nor another kind."""
    for kind in ("-D", "-U"):
        assert merged(NUMBER, options, [(kind, 1, 5, "x"), ("+U", 2, 7, None)]) == [("+U", 2, 7, None)]


@pytest.mark.parametrize("options", [{}, PARTIAL, GROUPS, AGGREGATION], ids=lambda o: o.get("merge-engine"))
def test_of_a_key_with_several_versions_the_row_is_an_insert(options: dict[str, str]) -> None:
    columns = {**NUMBER, "g": "INT", "h": "INT"} if options == GROUPS else NUMBER
    versions = [("+U", 1, 5, "x", *[None] * (len(columns) - 3)) for _ in range(2)]
    ((kind, *_),) = merged(columns, options, versions)
    assert kind == ("+I" if options else "+U")


def test_the_look_up_rule_keeps_level_0_and_the_lowest_level_above() -> None:
    three = [plus(10, None), plus(13, None), plus(100, None)]
    assert row_of(NUMBER, AGGREGATION, *three, levels=[5, 4, 0]) == (113, None)
    assert row_of(NUMBER, AGGREGATION, *three) == (123, None)
    assert row_of(NUMBER, AGGREGATION, *three, plus(7, None), levels=[5, 4, 0, 0]) == (120, None)
    # what is left is merged even if it is one version: the -D is taken back, not dropped
    assert row_of(NUMBER, AGGREGATION, plus(10, "x"), minus(3, "x"), levels=[5, 4]) == (-3, None)
    assert row_of(TWO, PARTIAL, plus("a", "b"), plus("c", None), levels=[5, 4]) == ("c", None)


ORDERED = {"k": "INT NOT NULL", "a": "STRING", "q": "INT", "r": "INT"}
ENGINES: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "partial-update": PARTIAL,
    "aggregation": {"merge-engine": "aggregation", "fields.a.aggregate-function": "last_value"},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_null_is_lowest_in_both_orders_of_several_sequence_fields(engine: str) -> None:
    options = {**ENGINES[engine], "sequence.field": "q,r"}
    descending = {**options, "sequence.field.sort-order": "descending"}
    for one, other, last_up, last_down in [
        ((1, 1), (2, 0), "b", "a"),
        ((2, 1), (2, 0), "a", "b"),
        ((None, 5), (1, 1), "b", "b"),
        ((1, None), (1, 3), "b", "b"),
        ((2, 2), (2, 2), "b", "b"),
    ]:
        for order, last in ((options, last_up), (descending, last_down)):
            row = row_of(ORDERED, order, plus("a", *one), plus("b", *other))
            assert row is not None
            assert row[0] == last, (one, other, order)


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_sequence_numbers_have_one_result(engine: str) -> None:
    versions = [plus("a", 1, None), plus("b", 1, None)]
    rows = {row_of(ORDERED, ENGINES[engine], *versions, numbers=[7, 7]) for _ in range(3)}
    assert rows == {("b", 1, None)}


def test_a_column_that_came_later_is_null_in_older_versions() -> None:
    for function, value in (("sum", 4), ("last_value", 4), ("first_value", None), ("first_non_null_value", 4)):
        options = {"merge-engine": "aggregation", "fields.s.aggregate-function": function}
        assert row_of(NUMBER, options, plus(None, "x"), plus(4, None)) == (value, "x")
    options = {"merge-engine": "aggregation", "fields.s.aggregate-function": "last_value"}
    assert row_of(NUMBER, options, plus(4, "x"), plus(None, None)) == (None, "x")
