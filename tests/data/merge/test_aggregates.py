"""The aggregate functions: what Paimon was measured to return, and a model that folds one row after the other."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.core.table.merge_options import FUNCTIONS, AggregateOptions, aggregate_problems
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.data.files.arrow_types import arrow_type
from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.rules import CLASSES, aggregator
from tests.data.merge.aggregate_model import EXACT, Model, Refused, comparable
from tests.randomness import chance as chance_of

ACTIONS = {"+": "add", "-": "retract", "<": "late", "=": "initial", "0": "skip"}


def test_each_function_that_a_table_may_name_has_a_class() -> None:
    assert set(CLASSES) == FUNCTIONS


def row_type(**fields: str) -> dict[str, Any]:
    return {"type": "ROW", "fields": [{"id": i + 5, "name": n, "type": t} for i, (n, t) in enumerate(fields.items())]}


TYPES: dict[str, Any] = {
    "ints": {"type": "ARRAY", "element": "INT"},
    "bytes": {"type": "ARRAY", "element": "BYTES"},
    "lists": {"type": "ARRAY", "element": {"type": "ARRAY", "element": "INT"}},
    "map": {"type": "MAP", "key": "INT", "value": "INT"},
    "times": {"type": "MAP", "key": "STRING", "value": row_type(v="INT", t="STRING")},
    "table": {"type": "ARRAY", "element": row_type(k="INT", v="STRING", s="INT")},
    "maps": {"type": "ARRAY", "element": {"type": "MAP", "key": "INT", "value": "INT"}},
}


def field_of(kind: str) -> DataField:
    return DataField(1, "c", parse_type(TYPES.get(kind, kind)))


def fold(function: str, kind: str, groups: Sequence[str | Sequence[tuple[Any, str]]], **options: str) -> list[Any]:
    """Fold groups of (value, action), the action being one of ``+ - < = 0``."""
    field = field_of(kind)
    raw = {f"fields.c.{name.replace('_', '-')}": value for name, value in options.items()}
    chosen = aggregator(TableOptions(raw), field, function=function)
    flat = [record for group in groups for record in group]
    sizes = [len(group) for group in groups]
    actions = np.array([ACTIONS[action] for _, action in flat])
    # A slice, as merging makes them.
    values = pa.array([None, *(value for value, _ in flat)], arrow_type(field.type))[1:]
    folded = chosen.fold(
        values,
        np.cumsum(sizes) - sizes,
        retract=actions == "retract",
        used=actions != "skip",
        late=actions == "late",
        initial=actions == "initial",
    )
    folded.validate()
    assert folded.type == arrow_type(field.type)
    return list(folded.to_pylist())


def one(function: str, kind: str, text: str, *values: Any, **options: str) -> Any:
    """Fold one key: ``text`` has one action per value. A second key beside it must not be mixed with it."""
    records = list(zip(values, text, strict=True))
    neighbour: list[tuple[Any, str]] = [(None, "+"), (None, "+")]
    first, result, last = fold(function, kind, [neighbour, records, neighbour], **options)
    assert first is None and last is None
    return result


def dec(*values: str) -> list[Decimal]:
    return [Decimal(v) for v in values]


@pytest.mark.parametrize(
    ("function", "kind", "actions", "values", "expected"),
    [
        ("sum", "INT", "++", [5, 7], 12),
        ("sum", "INT", "+-", [5, 5], 0),
        ("sum", "INT", "-+", [5, 7], 2),
        ("sum", "INT", "--", [5, 6], -11),
        ("sum", "INT", "+-+", [5, 5, 3], 3),
        ("sum", "INT", "+=+", [5, 5, 3], 8),
        ("sum", "INT", "++<<", [1, 2, 4, 8], 15),
        ("sum", "INT", "+0+", [1, 2, 4], 5),
        ("sum", "INT", "++", [None, 4], 4),
        ("sum", "INT", "-+", [None, None], None),
        ("sum", "TINYINT", "-+", [127, 1], -126),
        ("sum", "BIGINT", "++-", [2**63 - 2, 1, 2**63 - 1], 0),
        ("sum", "BIGINT", "+-", [-1, -(2**63)], 2**63 - 1),
        ("sum", "DECIMAL(5, 2)", "++", dec("999.99", "0.01"), Decimal("1000.00")),
        ("sum", "DECIMAL(20, 2)", "++", dec("999999999999999999.99", "0.01"), None),
        ("sum", "DECIMAL(20, 2)", "+++", dec("999999999999999999.99", "0.01", "7.00"), Decimal("7.00")),
        ("sum", "DECIMAL(38, 0)", "++-", dec("9" * 38, "1", "5"), Decimal(-5)),
        ("sum", "DECIMAL(18, 0)", "++", dec("9" * 18, "9" * 18), Decimal(2 * (10**18 - 1))),
        ("product", "INT", "+-", [7, 2], 3),
        ("product", "INT", "+-", [-7, 2], -3),
        ("product", "INT", "-+", [7, 2], 2),
        ("product", "BIGINT", "++-", [2**40, 2**20, 2**59], 2),
        ("product", "DECIMAL(5, 2)", "++", dec("1.15", "1.15"), Decimal("1.32")),
        ("product", "DECIMAL(5, 2)", "++", dec("100.00", "10.00"), None),
        ("product", "DECIMAL(5, 2)", "+++", dec("100.00", "10.00", "3.00"), Decimal("3.00")),
        ("product", "DECIMAL(5, 2)", "+-", dec("1.00", "8.00"), Decimal("0.13")),
        ("max", "INT", "+++", [1, None, 3], 3),
        ("min", "INT", "+++", [1, None, 3], 1),
        ("max", "DOUBLE", "++", [float("inf"), float("nan")], float("nan")),
        ("min", "DOUBLE", "++", [0.0, -0.0], -0.0),
        ("max", "FLOAT", "++", [-0.0, 0.0], 0.0),
        ("max", "BYTES", "++", [b"\x7f\xff", b"\x80"], b"\x80"),
        ("max", "STRING", "++", ["z", "é"], "é"),
        ("min", "DECIMAL(38, 2)", "++", dec("-" + "9" * 30, "1.00"), Decimal("-" + "9" * 30)),
        ("last_value", "STRING", "++", ["x", None], None),
        ("last_value", "STRING", "++-", ["x", "y", "z"], None),
        ("last_value", "STRING", "+<", ["x", "y"], "x"),
        ("last_non_null_value", "STRING", "++", ["x", None], "x"),
        ("last_non_null_value", "STRING", "+-", ["x", "x"], None),
        ("last_non_null_value", "STRING", "+-", ["x", None], "x"),
        ("last_non_null_value", "STRING", "+-<<", ["x", "x", "y", "z"], "y"),
        ("first_value", "INT", "++", [None, 1], None),
        ("first_value", "INT", "++<<", [100, 200, 300, 400], 400),
        ("first_value", "INT", "=+", [9, 1], 1),
        ("first_value", "INT", "+=+", [5, 9, 1], 9),
        ("first_non_null_value", "INT", "++", [None, 1], 1),
        ("first_not_null_value", "INT", "+++", [None, 1, 2], 1),
        ("primary-key", "INT", "+-", [1, 1], 1),
        ("bool_and", "BOOLEAN", "+++", [True, None, False], False),
        ("bool_and", "BOOLEAN", "++", [True, None], True),
        ("bool_or", "BOOLEAN", "+++", [False, None, True], True),
        ("bool_or", "BOOLEAN", "++", [None, None], None),
        ("listagg", "STRING", "++", ["a", "  \t"], "a"),
        ("listagg", "STRING", "++", ["\u2003", "b"], "b"),
        ("listagg", "STRING", "++", ["a", "\u00a0"], "a,\u00a0"),
        ("listagg", "STRING", "+++", ["a", None, "b"], "a,b"),
        ("listagg", "STRING", "++<", ["a", "b", "c"], "c,a,b"),
        ("collect", "ints", "++", [[5, 1], [3, 17, 1]], [5, 1, 3, 17, 1]),
        ("collect", "ints", "+-", [[1, 2, 2, 3], [2, 9]], [1, 2, 3]),
        ("collect", "ints", "++", [None, [2, 2]], [2, 2]),
        ("collect", "ints", "-+", [[2], [2, 2]], [2, 2]),
        ("collect", "ints", "-+", [[2], None], None),
        ("merge_map", "map", "++", [[(1, 1), (2, 2)], [(2, 20), (3, 3)]], [(1, 1), (2, 20), (3, 3)]),
        ("merge_map", "map", "+-", [[(1, 1), (2, 2)], [(2, 99)]], [(1, 1)]),
        ("merge_map", "map", "+<", [[(1, 1)], [(1, 2), (3, 3)]], [(1, 1), (3, 3)]),
        ("theta_sketch", "BYTES", "++", [None, b"one"], b"one"),
        ("rbm64", "BYTES", "++", [b"one", None], b"one"),
    ],
)  # fmt: skip
def test_a_fold_equals_what_paimon_was_measured_to_return(
    function: str, kind: str, actions: str, values: list[Any], expected: Any
) -> None:
    result = one(function, kind, actions, *values)
    unordered = isinstance(expected, list) and function != "collect"
    assert comparable(result, ordered=not unordered) == comparable(expected, ordered=not unordered)


def test_first_value_and_the_record_that_was_removed() -> None:
    """Paimon remembers that it had a value before the delete, so the deleted one stays."""
    assert fold("first_value", "INT", [[(5, "+"), (9, "="), (1, "+")], [(9, "="), (1, "+")]]) == [9, 1]
    assert fold("first_non_null_value", "INT", [[(None, "+"), (9, "="), (1, "+")]]) == [1]


def test_options_of_texts_and_lists() -> None:
    assert one("listagg", "STRING", "++", "a", "b", list_agg_delimiter="; ") == "a; b"
    assert one("listagg", "STRING", "++", "a,a", "a,b,,b", distinct="true") == "a,a,b"
    assert one("collect", "ints", "++", None, [2, 2], distinct="true") == [2]
    assert one("collect", "bytes", "++", [b"x"], [b"x"], distinct="true") == [b"x", b"x"]
    assert one("collect", "lists", "+++", [[1], [1]], [[1], None], [None, [2, 1]], distinct="true") == [
        [1],
        None,
        [2, 1],
    ]
    maps = [[(1, 1), (2, 2)]], [[(2, 2), (1, 1)], [(2, 1), (1, 2)]]
    assert one("collect", "maps", "++", *maps, distinct="true") == [maps[0][0], maps[1][1]]
    assert one("collect", "ints", "+<", [1], [2]) == [1, 2]
    assert one("collect", "ints", "+<", [1], [2], ignore_retract="true") == [2, 1]
    assert one("max", "INT", "+-", 5, 9, ignore_retract="true") == 5


def entry(key: str, value: int, time: str | None) -> tuple[str, dict[str, Any]]:
    return key, {"v": value, "t": time}


def test_a_map_with_times_keeps_the_latest_value_by_text() -> None:
    function, kind = "merge_map_with_keytime", "times"
    assert one(function, kind, "++", [entry("a", 1, "01-02")], [entry("a", 2, "01-03")]) == [entry("a", 2, "01-03")]
    assert one(function, kind, "++", [entry("a", 1, "01-02")], [entry("a", 2, "01-02")]) == [entry("a", 1, "01-02")]
    assert one(function, kind, "++", [entry("a", 1, "9")], [entry("a", 2, "10")]) == [entry("a", 1, "9")]
    assert one(function, kind, "++", [entry("a", 1, "9")], [("a", None)]) == []
    assert one(function, kind, "++", [entry("a", 1, None)], [entry("a", 2, None)]) == [entry("a", 1, None)]
    # U+1F600 is above U+FF5E, but its first code unit, which Java compares, is below.
    assert one(function, kind, "++", [entry("a", 1, "\uff5e")], [entry("a", 2, "\U0001f600")])[0][1]["v"] == 1


def nested(*rows: tuple[int | None, str | None, int | None]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v, "s": s} for k, v, s in rows]


def test_tables_in_a_column() -> None:
    two, more = nested((1, "a", 5), (2, "b", 5)), nested((3, "c", 5), (1, "z", 4))
    update = ("nested_update", "table", "++", two, more)
    assert one(*update, count_limit="3") == [*two, more[0]]
    assert one(*update, nested_key="k", count_limit="2") == [two[1], more[1]]
    assert one(*update, nested_key="k", nested_sequence_field="s") == [*two, more[0]]
    assert one("nested_update", "table", "+-", [*two, None, two[0]], [two[0]]) == [two[1]]
    keyless = nested((None, "x", 1), (1, "y", 1))
    assert one("nested_update", "table", "++", keyless, None, nested_key="k") == keyless
    ignored = {"nested_key": "k", "nested_key_null_strategy": "ignore"}
    assert one("nested_update", "table", "++", keyless, None, **ignored) == keyless[1:]
    with pytest.raises(UnsupportedFeatureError, match="nested key is null"):
        one("nested_update", "table", "++", keyless, None, **(ignored | {"nested_key_null_strategy": "error"}))
    rows = nested((1, "a", None)), nested((1, None, 7))
    assert one("nested_partial_update", "table", "++", *rows, nested_key="k") == nested((1, "a", 7))


@pytest.mark.parametrize(
    ("function", "kind", "actions", "values", "message"),
    [
        ("sum", "INT", "++", [2**31 - 1, 1], "overflows int32"),
        ("sum", "TINYINT", "++", [127, 1], "overflows int8"),
        ("sum", "TINYINT", "++-", [127, 1, 1], "overflows int8"),
        ("sum", "BIGINT", "++", [2**63 - 1, 1], "overflows int64"),
        ("sum", "BIGINT", "-+", [-(2**63), 1], "overflows int64"),
        ("sum", "DECIMAL(9, 0)", "+++", dec("999999999", "999999999", "999999999"), "overflows decimal128"),
        ("product", "BIGINT", "++", [2**40, 2**40], "overflows int64"),
        ("product", "INT", "+-", [1, 0], "divides by zero"),
        ("product", "DECIMAL(5, 2)", "+-", dec("1.00", "3.00"), "the quotient has no end"),
        ("max", "INT", "+-", [1, 1], r"max does not support retractions.*fields\.c\.ignore-retract=true"),
        ("listagg", "STRING", "+-", ["a", "a"], "listagg does not support retractions"),
        ("hll_sketch", "BYTES", "++", [b"a", b"b"], "hll_sketch is not merged by the built-in engine"),
        ("rbm32", "BYTES", "++", [b"a", b"b"], "rbm32 is not merged"),
    ],
)  # fmt: skip
def test_a_fold_that_paimon_refuses_is_refused(
    function: str, kind: str, actions: str, values: list[Any], message: str
) -> None:
    with pytest.raises(UnsupportedFeatureError, match=f"Column 'c'.*{message}"):
        one(function, kind, actions, *values)


INTEGERS = ("TINYINT", "INT", "BIGINT")
DECIMALS = ("DECIMAL(4, 1)", "DECIMAL(6, 2)", "DECIMAL(18, 0)", "DECIMAL(20, 2)", "DECIMAL(38, 3)")
ORDERED = ("INT", "DOUBLE", "STRING", "BYTES", "DECIMAL(20, 2)")
IGNORED = {"ignore-retract": "true"}
JOINED = {"list-agg-delimiter": "--", **IGNORED}
CASES: list[tuple[str, str, dict[str, str]]] = [
    *((f, t, {}) for f in ("sum", "product") for t in (*INTEGERS, "FLOAT", "DOUBLE", *DECIMALS)),
    *((f, t, IGNORED) for f in ("max", "min") for t in ORDERED),
    *((f, "STRING", {}) for f in ("last_value", "last_non_null_value")),
    *((f, "INT", IGNORED) for f in ("first_value", "first_non_null_value")),
    *((f, "BOOLEAN", IGNORED) for f in ("bool_and", "bool_or")),
    *(("listagg", "STRING", {"distinct": d, **JOINED}) for d in ("true", "false")),
    *(("collect", t, {"distinct": d}) for t in ("ints", "lists", "table", "maps", "bytes") for d in ("true", "false")),
    ("collect", "ints", IGNORED),
    ("collect", "lists", {"distinct": "true", **IGNORED}),
    ("merge_map", "map", {}),
    ("merge_map", "map", IGNORED),
    ("merge_map_with_keytime", "times", IGNORED),
    ("nested_update", "table", {}),
    ("nested_update", "table", {"count-limit": "3"}),
    ("nested_update", "table", {"nested-key": "k"}),
    ("nested_update", "table", {"nested-key": "k, v", "nested-sequence-field": "s", "count-limit": "2"}),
    ("nested_update", "table", {"nested-key": "k", "nested-sequence-field": "s", "nested-key-null-strategy": "ignore"}),
    ("nested_partial_update", "table", {"nested-key": "k", "ignore-retract": "true"}),
]  # fmt: skip


def random_value(chance: Any, kind: str) -> Any:
    if chance.random() < 0.25:
        return None
    if kind in ("ints", "lists", "table", "maps", "bytes"):
        element = {"ints": "SMALL", "lists": "ints", "table": "row", "maps": "map", "bytes": "BYTES"}[kind]
        return [random_value(chance, element) for _ in range(chance.randrange(4))]
    if kind == "map":
        return [(key, chance.choice([None, 1, 2])) for key in sorted(chance.sample(range(4), chance.randrange(4)))]
    if kind == "times":
        keys = chance.sample(["a", "b", "c"], chance.randrange(4))
        rows = [None, *({"v": chance.randrange(9), "t": t} for t in (None, "9", "10", "11", "\uff5e", "\U0001f600"))]
        return [(key, chance.choice(rows)) for key in keys]
    if kind == "row":
        return {
            "k": chance.choice([None, 1, 2, 3]),
            "v": chance.choice([None, "x", "y"]),
            "s": chance.choice([None, 1, 2]),
        }
    if kind.startswith("DECIMAL"):
        precision, scale = map(int, kind[8:-1].split(","))
        digits = chance.choice([1, 2, precision])
        return Decimal(chance.randrange(-(10**digits) + 1, 10**digits)).scaleb(-scale, context=EXACT)
    simple: dict[str, list[Any]] = {
        "SMALL": [0, 1, 2, 3],
        "TINYINT": [-128, 127, 0, 1, -1, 2, 40],
        "INT": [-(2**31), 2**31 - 1, 0, 1, 7, -7],
        "BIGINT": [-(2**63), 2**63 - 1, 0, 1, -1, 2**40, 3],
        "FLOAT": [0.0, -0.0, 1.5, 2.0**-24, -(2.0**24) - 2, 2.0**127, float("nan"), float("inf")],
        "DOUBLE": [0.0, -0.0, 0.1, 0.2, -0.7, 1e300, float("nan"), float("-inf")],
        "BOOLEAN": [True, False],
        "STRING": ["", " ", "a", "b--a", "--", "\t\n", "\u2003", "é", "a--a--c", "x" * 9],
        "BYTES": [b"", b"\x80", b"\x7f", b"a"],
    }
    return chance.choice(simple[kind])


@pytest.mark.random
@pytest.mark.every(3)
@pytest.mark.parametrize("flavour", ["plain", "retracts", "late", "removed"])
@pytest.mark.parametrize(("function", "kind", "options"), CASES, ids=lambda v: str(v).replace(" ", ""))
def test_a_fold_equals_the_model(function: str, kind: str, options: dict[str, str], flavour: str) -> None:
    chance = chance_of(f"{function}{kind}{options}{flavour}")
    actions = {"plain": "+", "retracts": "++-", "late": "+-<<0", "removed": "++-="}[flavour]
    model = Model(_parsed(function, kind, options), arrow_type(field_of(kind).type))
    groups, expected = [], []
    for _ in range(120):
        group = [(random_value(chance, kind), chance.choice(actions)) for _ in range(chance.choice([1, 2, 2, 3, 5, 9]))]
        if group[0][1] == "<":
            group[0] = (group[0][0], "+")
        try:
            result = model.fold([(value, ACTIONS[action]) for value, action in group])
        except Refused:
            if flavour == "removed":
                continue  # what was before a removed record is not folded at all here
            with pytest.raises(UnsupportedFeatureError):
                fold(function, kind, [group], **{k.replace("-", "_"): v for k, v in options.items()})
            continue
        groups.append(group)
        expected.append(result)
    assert len(groups) > 5
    results = fold(function, kind, groups, **{k.replace("-", "_"): v for k, v in options.items()})
    ordered = function not in ("merge_map", "merge_map_with_keytime", "nested_partial_update") and not (
        (options.get("distinct") == "true" and kind in ("ints", "bytes")) or "nested-key" in options
    )
    for group, result, wanted in zip(groups, results, expected, strict=True):
        assert comparable(result, ordered=ordered) == comparable(wanted, ordered=ordered), group


def _parsed(function: str, kind: str, options: dict[str, str]) -> AggregateOptions:
    raw = {f"fields.c.{name}": value for name, value in options.items()}
    return aggregator(TableOptions(raw), field_of(kind), function=function).options


def schema_of(options: dict[str, str], **types: str) -> TableSchema:
    fields = [DataField(0, "k", parse_type("INT NOT NULL"))]
    fields += [DataField(i + 1, n, parse_type(TYPES.get(t, t))) for i, (n, t) in enumerate(types.items())]
    return TableSchema(
        id=0,
        fields=tuple(fields),
        highest_field_id=90,
        primary_keys=("k",),
        options={"merge-engine": "aggregation", "bucket": "1", **options},
    )


REMOVES = {"aggregation.remove-record-on-delete": "true"}


def default(function: str) -> dict[str, str]:
    return {"fields.default-aggregate-function": function}


def of_c(function: str, **more: str) -> dict[str, str]:
    """The options that give column c a function."""
    return {f"fields.c.{n.replace('_', '-')}": v for n, v in {"aggregate_function": function, **more}.items()}


def functions_of(schema: TableSchema) -> dict[str, Aggregate]:
    options = TableOptions(schema.options)
    keys, sequence = schema.primary_keys, options.sequence_fields
    return {f.name: aggregator(options, f, keys=keys, sequence_fields=sequence) for f in schema.fields}


def test_each_column_has_its_function() -> None:
    schema = schema_of({"fields.s.aggregate-function": "sum", "sequence.field": "q"}, s="INT", l="STRING", q="INT")
    functions = functions_of(schema)
    names = [f.options.function for f in functions.values()]
    assert names == ["primary-key", "sum", "last_non_null_value", "last_value"]
    columns = {
        "k": pa.array([1, 1, 2, 2, 3, 3], pa.int32()),
        "s": pa.array([5, 7, 5, 5, 5, 7], pa.int32()),
        "l": pa.array(["x", None, "x", "x", "x", "y"]),
        "q": pa.array([1, None, 1, 2, 1, 2], pa.int32()),
    }
    retract = np.array([False, False, False, True, True, False])
    folded = {n: functions[n].fold(c, np.array([0, 2, 4]), retract=retract) for n, c in columns.items()}
    assert {n: c.to_pylist() for n, c in folded.items()} == {
        "k": [1, 2, 3],
        "s": [12, 0, 2],
        "l": ["x", None, "y"],
        "q": [None, None, 2],
    }


@pytest.mark.parametrize(
    ("options", "kind", "problem"),
    [
        (of_c("count"), "INT", "fields.c.aggregate-function=count of column 'c'"),
        (default("avg"), "INT", "fields.default-aggregate-function=avg"),
        (of_c("sum"), "STRING", "sum for column 'c' of type STRING"),
        (of_c("max"), "BOOLEAN", "max for column 'c' of type BOOLEAN"),
        (of_c("listagg"), "VARCHAR(9)", "of type VARCHAR(9)"),
        (of_c("nested_partial_update"), "table", "needs fields.c.nested-key"),
        (of_c("nested_update", nested_sequence_field="s"), "table", "needs fields.c.nested-key"),
        (of_c("nested_update", nested_key="q"), "table", "fields.c.nested-key names 'q'"),
        (of_c("nested_update", count_limit="many"), "table", "fields.c.count-limit"),
        (of_c("merge_map_with_keytime", ts_field="v"), "times", "fields.c.ts-field=v"),
        (of_c("sum", ignore_retract="true") | REMOVES, "INT", "fields.c.ignore-retract=true contradicts"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_found_in_the_schema(options: dict[str, str], kind: str, problem: str) -> None:
    schema = schema_of(options, c=kind)
    ((feature, way_out),) = aggregate_problems(schema)
    assert problem in feature and way_out
    with pytest.raises((UnsupportedFeatureError, InvalidInputError)):
        functions_of(schema)


def test_functions_that_are_allowed_have_no_problem() -> None:
    fine = {"fields.a.aggregate-function": "sum", **of_c("nested_update", nested_key="k, v")}
    assert list(aggregate_problems(schema_of(fine, a="BIGINT", c="table", d="STRING"))) == []
    grouped = {"merge-engine": "partial-update", "fields.g.sequence-group": "a", **default("sum")}
    assert list(aggregate_problems(schema_of(grouped, g="STRING", a="INT"))) == []
