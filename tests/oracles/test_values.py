"""The form in which rows are compared, and the form in which they travel: what they must tell apart, and what not."""

from __future__ import annotations

import datetime
import os
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.oracles import wire
from tests.oracles.canonical import assert_same_rows, canonical_rows
from tests.oracles.fixtures import REQUIRE_ALL, unavailable
from tests.oracles.paimon_types import to_arrow, to_json
from tests.oracles.processes import OracleGoneError, OracleProcess

EVERY_TYPE = pa.table(
    {
        "float": pa.array([float("nan"), -0.0, None], pa.float32()),
        "double": pa.array([float("inf"), 5e-324, float("-inf")], pa.float64()),
        "decimal": pa.array([Decimal("-0.10"), Decimal("12345678901234567890.12"), None], pa.decimal128(38, 2)),
        "binary": pa.array([b"", b"\x00\xff", None], pa.binary()),
        "date": pa.array([-1_000_000, 0, 3_000_000], pa.int32()).cast(pa.date32()),
        "time": pa.array([0, 86_399_999, None], pa.time32("ms")),
        "nanos": pa.array([-1, 1_234_567_890_123_456_789, None], pa.timestamp("ns")),
        "instant": pa.array([-62_135_596_800_000_000 * 2, 0, None], pa.timestamp("us", "UTC")),
        "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
        "map": pa.array([[("b", 1), ("a", None)], [], None], pa.map_(pa.string(), pa.int64())),
        "row": pa.array(
            [{"x": [{"y": 1}]}, {"x": None}, None], pa.struct([("x", pa.list_(pa.struct([("y", pa.int8())])))])
        ),
    }
)


def test_every_value_survives_the_wire() -> None:
    for name in EVERY_TYPE.column_names:
        column = EVERY_TYPE.column(name).combine_chunks()
        back = pa.table({name: wire.decode(wire.encode(column), column.type)})
        assert_same_rows(back, pa.table({name: column}))


@pytest.mark.parametrize("name", EVERY_TYPE.column_names)
def test_a_slice_has_the_rows_of_the_slice(name: str) -> None:
    column = EVERY_TYPE.select([name])
    parts = canonical_rows(column.slice(0, 1)) + canonical_rows(column.slice(1))
    assert sorted(parts, key=repr) == canonical_rows(column)
    assert canonical_rows(column.slice(1, 1)) == canonical_rows(pa.table({name: column[name].take([1])}))


def one(value: object, kind: pa.DataType) -> list[tuple[object, ...]]:
    return canonical_rows(pa.table({"c": pa.array([value], kind)}))


def test_equal_means_equal() -> None:
    assert one(float("nan"), pa.float32()) == one(float("nan"), pa.float64())
    assert one(0.0, pa.float64()) != one(-0.0, pa.float64())
    assert one(Decimal("1.50"), pa.decimal128(5, 2)) == one(Decimal("1.5"), pa.decimal128(38, 10))
    assert one(1, pa.int8()) == one(1, pa.int64())
    assert one(True, pa.bool_()) != one(1, pa.int32())
    assert one("1", pa.string()) != one(1, pa.int32())
    assert one(b"a", pa.binary()) != one("a", pa.string())
    assert one(1, pa.timestamp("ns")) != one(0, pa.timestamp("ns"))
    assert one(1, pa.timestamp("ms")) == one(1000, pa.timestamp("us"))
    pairs = pa.map_(pa.string(), pa.int32())
    assert one([("a", 1), ("b", 2)], pairs) == one([("b", 2), ("a", 1)], pairs)
    assert one([], pa.list_(pa.int32())) != one(None, pa.list_(pa.int32()))
    fields = pa.struct([("x", pa.int32())])
    assert one({"x": None}, fields) != one(None, fields)


def test_python_rows_equal_arrow_rows() -> None:
    rows = [
        {
            "t": datetime.datetime(2024, 5, 6, 7, 8, 9, 10),
            "z": datetime.datetime(2024, 5, 6, 7, 8, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
            "d": datetime.date(1, 1, 1),
            "m": [("k", Decimal("1.10"))],
            "r": {"a": [1, None], "b": b"x"},
        }
    ]
    types = {
        "t": pa.timestamp("us"),
        "z": pa.timestamp("us", "UTC"),
        "d": pa.date32(),
        "m": pa.map_(pa.string(), pa.decimal128(5, 2)),
        "r": pa.struct([("a", pa.list_(pa.int32())), ("b", pa.binary())]),
    }
    assert canonical_rows(rows) == canonical_rows(pa.Table.from_pylist(rows, schema=pa.schema(list(types.items()))))


def test_rows_are_a_multiset_and_the_difference_is_named() -> None:
    left, right = pa.table({"k": [2, 1, 1]}), pa.table({"k": [1, 2, 2]})
    with pytest.raises(AssertionError, match=r"1 rows too many, 1 missing, of \['k'\]:\n.*only in actual: +\(1,\)"):
        assert_same_rows(left, right)
    with pytest.raises(AssertionError, match="columns"):
        assert_same_rows(left, pa.table({"other": [1]}))


@pytest.mark.parametrize(
    ("text", "json_type", "arrow"),
    [
        ("INT NOT NULL", "INT NOT NULL", pa.int32()),
        ("DECIMAL(20, 3)", "DECIMAL(20, 3)", pa.decimal128(20, 3)),
        ("TIMESTAMP(3)", "TIMESTAMP(3)", pa.timestamp("ms")),
        ("TIMESTAMP(9) WITH LOCAL TIME ZONE", "TIMESTAMP(9) WITH LOCAL TIME ZONE", pa.timestamp("ns", "UTC")),
        ("ARRAY<INT NOT NULL> NOT NULL", {"type": "ARRAY NOT NULL", "element": "INT NOT NULL"}, pa.list_(pa.int32())),
        (
            "MAP<STRING, ROW<a INT, `b c` DECIMAL(5, 2)>>",
            {
                "type": "MAP",
                "key": "STRING",
                "value": {
                    "type": "ROW",
                    "fields": [{"name": "a", "type": "INT"}, {"name": "b c", "type": "DECIMAL(5, 2)"}],
                },
            },
            pa.map_(pa.string(), pa.struct([("a", pa.int32()), ("b c", pa.decimal128(5, 2))])),
        ),
    ],
)
def test_types(text: str, json_type: object, arrow: pa.DataType) -> None:
    assert to_json(text) == json_type
    assert to_arrow(text) == arrow


def test_an_oracle_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    process = OracleProcess("silent", [sys.executable, "-c", "import sys; sys.stdin.read()"], tmp_path / "log")
    with pytest.raises(OracleGoneError, match=r"silent did not answer ping in 0\.2 s"):
        process.request("ping", timeout_s=0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    with pytest.raises(OracleGoneError, match="has ended"):
        process.request("ping")


def test_an_oracle_that_dies_says_its_last_words(tmp_path: Path) -> None:
    program = "import sys; sys.stdin.readline(); sys.exit('out of luck')"
    process = OracleProcess("dying", [sys.executable, "-c", program], tmp_path / "log")
    with process, pytest.raises(OracleGoneError, match="out of luck"):
        process.request("ping", timeout_s=30)


def test_what_is_missing_fails_where_everything_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REQUIRE_ALL, "1")
    with pytest.raises(pytest.fail.Exception, match="not prepared"):
        unavailable("oracle o9 is not prepared")
    monkeypatch.delenv(REQUIRE_ALL)
    with pytest.raises(pytest.skip.Exception, match="not prepared"):
        unavailable("oracle o9 is not prepared")
