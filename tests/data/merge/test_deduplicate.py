"""The vectorised merge against a dictionary: ties, deletes, nulls in the sequence, several fields, both directions."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from airflow_paimon.core.errors import FormatError
from airflow_paimon.data.merge.engine import Deduplicate, MergeRules
from airflow_paimon.data.merge.runs import merge_runs
from airflow_paimon.data.merge.sort_keys import order_values, sort_keys
from tests.randomness import chance as chance_of
from tests.randomness import lives

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        ("k", pa.int32()),
        ("k2", pa.string()),
        ("s1", pa.int64()),
        ("s2", pa.string()),
        ("_SEQUENCE_NUMBER", pa.int64()),
        ("_VALUE_KIND", pa.int8()),
        ("v", pa.string()),
    ]
)


def _rank(value: Any, descending: bool) -> Any:
    """Null is lowest in both directions."""
    if value is None:
        return (0, 0)
    return (1, _Reversed(value) if descending else value)


class _Reversed:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.value == other.value


def model(rows: Sequence[Row], rules: MergeRules) -> list[Row]:
    """What the deduplicate engine says; ``rows`` are in the order of their runs."""
    winners: dict[Any, tuple[Any, Row]] = {}
    for position, row in enumerate(rows):
        retract = row["_VALUE_KIND"] in (1, 3)
        if retract and rules.engine.skips_retracts:
            continue
        fields = tuple(_rank(row[name], rules.descending) for name in rules.sequence)
        order = (*fields, row["_SEQUENCE_NUMBER"], not retract, position)
        key = tuple(row[name] for name in rules.keys)
        if key not in winners or winners[key][0] < order:
            winners[key] = (order, row)
    return [row for key, (_, row) in sorted(winners.items()) if row["_VALUE_KIND"] in (0, 2)]


def batches(rows: Sequence[Row], sizes: Sequence[int]) -> Iterator[pa.RecordBatch]:
    start, turn = 0, 0
    while start < len(rows):
        size = sizes[turn % len(sizes)]
        yield pa.RecordBatch.from_pylist(list(rows[start : start + size]), schema=SCHEMA)
        start, turn = start + size, turn + 1


def merged(runs: Sequence[Sequence[Row]], rules: MergeRules, sizes: Sequence[int]) -> list[Row]:
    parts = merge_runs([batches(run, sizes) for run in runs], rules)
    return [row for part in parts for row in part.to_pylist()]


KEYS = st.one_of(st.just(("k",)), st.just(("k", "k2")), st.just(("k2",)), st.just(("k2", "k")))
SEQUENCES = st.sampled_from([(), ("s1",), ("s2",), ("s1", "s2")])
TEXTS = st.sampled_from(["", "a", "ab", "b", "é", "a\0", "\0", "x" * 9, "x" * 200])


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[list[Row]], MergeRules, list[int]]:
    keys = draw(KEYS)
    rules = MergeRules(
        keys=keys,
        sequence=draw(SEQUENCES),
        descending=draw(st.booleans()),
        engine=Deduplicate(skips_retracts=draw(st.booleans())),
    )
    runs = []
    for _ in range(draw(st.integers(1, 4))):
        rows: dict[Any, Row] = {}
        for _ in range(draw(st.integers(0, 9))):
            row = {
                "k": draw(st.integers(-3, 4)),
                "k2": draw(TEXTS),
                "s1": draw(st.one_of(st.none(), st.integers(0, 3))),
                "s2": draw(st.one_of(st.none(), TEXTS)),
                "_SEQUENCE_NUMBER": draw(st.integers(0, 5)),
                "_VALUE_KIND": draw(st.sampled_from([0, 0, 0, 1, 2, 3])),
                "v": draw(TEXTS),
            }
            rows[tuple(row[name] for name in keys)] = row
        runs.append([row for _, row in sorted(rows.items())])
    return runs, rules, draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))


@settings(max_examples=lives(20, 250))
@given(problems())
def test_merge_equals_the_model(problem: tuple[list[list[Row]], MergeRules, list[int]]) -> None:
    runs, rules, sizes = problem
    expected = model([row for run in runs for row in run], rules)
    event(f"rows dropped: {sum(map(len, runs)) > len(expected)}")
    assert merged(runs, rules, sizes) == expected


@pytest.mark.random
@pytest.mark.parametrize("seed", range(6))
def test_merge_of_many_rows_equals_the_model(seed: int) -> None:
    chance = chance_of(seed)
    rules = MergeRules(keys=("k",), sequence=("s1",) if seed % 2 else ())
    runs = []
    for run in range(5):
        keys = sorted(chance.sample(range(20_000), 4_000 if run else 15_000))
        runs.append(
            [
                {
                    "k": key,
                    "k2": "",
                    "s1": chance.choice([None, 1, 2, 3]),
                    "s2": None,
                    "_SEQUENCE_NUMBER": chance.randrange(10),
                    "_VALUE_KIND": chance.choice([0, 0, 0, 3]),
                    "v": f"{run}-{key}",
                }
                for key in keys
            ]
        )
    assert merged(runs, rules, [997, 64]) == model([row for run in runs for row in run], rules)


def test_an_unsorted_run_is_refused() -> None:
    rows = [dict.fromkeys(SCHEMA.names, None) | {"k": k, "_SEQUENCE_NUMBER": 0, "_VALUE_KIND": 0} for k in (2, 1)]
    with pytest.raises(FormatError, match="not sorted by the primary key"):
        merged([rows], MergeRules(keys=("k",)), [10])


def test_a_run_that_is_unsorted_between_batches_is_refused() -> None:
    rows = [dict.fromkeys(SCHEMA.names, None) | {"k": k, "_SEQUENCE_NUMBER": 0, "_VALUE_KIND": 0} for k in (5, 6, 1, 2)]
    with pytest.raises(FormatError, match="not sorted by the primary key"):
        merged([rows, rows[:2]], MergeRules(keys=("k",)), [2])


EXACT = Context(prec=50)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(9, 2): st.decimals(-9999999, 9999999, places=2),
    pa.decimal128(38, 3): st.integers(-(10**38) + 1, 10**38 - 1).map(lambda i: Decimal(i).scaleb(-3, EXACT)),
    pa.string(): st.text(max_size=12),
    pa.binary(): st.binary(max_size=12),
    pa.date32(): st.dates(),
    pa.time32("ms"): st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("ms", "UTC"): st.datetimes(timezones=st.just(datetime.UTC)).map(
        lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)
    ),
}


def _orderable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value + 0.0 if isinstance(value, float) else value


@pytest.mark.parametrize("kind", VALUES, ids=str)
@settings(max_examples=lives(8, 80))
@given(data=st.data())
def test_sort_keys_order_as_the_values_do(kind: pa.DataType, data: st.DataObject) -> None:
    one = data.draw(st.lists(VALUES[kind], min_size=1, max_size=8))
    two = data.draw(st.lists(VALUES[kind], min_size=1, max_size=8))
    tail = data.draw(st.lists(st.integers(0, 2), min_size=len(one) + len(two), max_size=len(one) + len(two)))
    columns = [pa.array([None, *values], kind)[1:] for values in (one, two)]  # slices, as merging makes them
    for compound in (False, True):
        runs = [[columns[0]], [columns[1]]]
        rows = [(_orderable(v),) for v in one + two]
        if compound:
            runs = [[columns[0], pa.array(tail[: len(one)])], [columns[1], pa.array(tail[len(one) :])]]
            rows = [(value, t) for (value,), t in zip(rows, tail, strict=True)]
        keys = np.concatenate(sort_keys(runs)).tolist()
        for i, a in enumerate(rows):
            for j, b in enumerate(rows):
                assert (keys[i] < keys[j], keys[i] == keys[j]) == (a < b, a == b)


@settings(max_examples=lives(10, 120))
@given(
    prefix=st.sampled_from(["", "customer-", "é-and-so-on-"]),
    tails=st.lists(st.text(alphabet="abz\x01é", max_size=9), min_size=2, max_size=9),
    number=st.sampled_from([0, 1, 2**31, 2**63 - 1]),
    stranger=st.booleans(),
)
def test_keys_that_begin_alike_order_as_whole_ones_do(
    prefix: str, tails: list[str], number: int, stranger: bool
) -> None:
    """What all have in common is left out; a stranger among them, between the ends, must not be cut as they are."""
    texts = [prefix + tail for tail in tails]
    texts[1:1] = ["aa-quite-something-else"] if stranger else []
    numbers = [(number * at) % 2**63 - at for at in range(len(texts))]
    for key in ((texts,), (texts, numbers), (numbers, texts)):
        rows = list(zip(*([v.encode() if isinstance(v, str) else v for v in column] for column in key), strict=True))
        halves = [[pa.array(c[:2]) for c in key], [pa.array(c[2:], pa.array(c).type) for c in key]]
        keys = np.concatenate(sort_keys(halves)).tolist()
        for i, a in enumerate(rows):
            for j, b in enumerate(rows):
                assert (keys[i] < keys[j], keys[i] == keys[j]) == (a < b, a == b)


def test_float_keys_take_zero_and_nan_as_one_value_each() -> None:
    values = [float("-inf"), -1.0, -0.0, 0.0, 1.0, float("inf"), float("nan"), -float("nan")]
    keys = sort_keys([[pa.array(values)]])[0].tolist()
    assert keys == sorted(keys)
    assert (keys[2] == keys[3], keys[6] == keys[7], len(set(keys))) == (True, True, 6)


@example([None, 3, None, 1], True)
@given(st.lists(st.one_of(st.none(), st.integers(-5, 5))), st.booleans())
def test_null_is_lowest_in_both_directions(values: list[int | None], descending: bool) -> None:
    ranked = list(zip(*(a.tolist() for a in order_values(pa.array(values, pa.int64()), descending)), strict=True))
    for a, x in zip(values, ranked, strict=True):
        for b, y in zip(values, ranked, strict=True):
            assert (x < y) == (_rank(a, descending) < _rank(b, descending))


_LONG = "a prefix of more than eight bytes "
_DAY = datetime.date(2026, 11, 26)
ORDERED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [False, True]),
    (pa.int8(), [-128, 0, 127]),
    (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
    (pa.float32(), [float("-inf"), -1.5, 0.0, 1.5, float("inf"), float("nan")]),
    (pa.date32(), [datetime.date(1, 1, 1), _DAY, datetime.date(9999, 12, 31)]),
    (pa.timestamp("us"), [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)]),
    (pa.decimal128(9, 2), [Decimal("-1.25"), Decimal("0.00"), Decimal("9.99")]),
    (pa.decimal128(38, 0), [Decimal(-(10**37)), Decimal(-1), Decimal(0), Decimal(2**64), Decimal(10**37)]),
    (pa.string(), ["", "a", "b", "\x7f", "\u00e9", "\U0001f600"]),
    (pa.string(), ["", _LONG, _LONG + "a", _LONG + "b"]),
    (pa.string(), ["", "\0", "a\0", "a\0b"]),
    (pa.binary(), [b"", b"\x01", b"\x80", b"\xff" * 8]),
]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("kind", "ascending"), ORDERED, ids=lambda v: str(v) if isinstance(v, pa.DataType) else "")
def test_values_of_each_type_in_their_order(kind: pa.DataType, ascending: list[Any], descending: bool) -> None:
    nulls = [None] * 2
    for low in (nulls, []):
        expected = [*low, *(reversed(ascending) if descending else ascending)]
        column = pa.array([*reversed(expected), *expected], kind).slice(len(expected))
        words = order_values(column, descending)
        assert np.lexsort(words[::-1]).tolist() == list(range(len(expected)))
        assert len(set(zip(*(w.tolist() for w in words), strict=True))) == len(ascending) + bool(low)
        assert words[-1].dtype == np.int64
    assert [w.tolist() for w in order_values(pa.array(nulls, kind), descending)] == [[False] * 2, [0] * 2]
