"""Partition directories as Paimon names them, and what users may write."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.binary_row import decode_row, encode_row
from airflow_paimon.core.format.manifest_io import read_manifest
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.format.types import DataType, parse_field, parse_type
from airflow_paimon.core.table.partition_text import DEFAULT_PARTITION, escape_path_name
from airflow_paimon.core.table.partition_values import format_partition, parse_partition_spec, partition_path
from tests.core.format.row_cases import typed_values
from tests.core.tables import partition_schema

LTZ = "TIMESTAMP(6) WITH LOCAL TIME ZONE"
NOON = Timestamp.from_datetime(datetime(2024, 1, 2, 3, 4, 5))


def _path(type_text: str, value: Any, legacy: bool = True, zone: tzinfo | None = None) -> str:
    return partition_path(partition_schema(["p"], [parse_type(type_text)], legacy), [value], zone)


@pytest.mark.parametrize(
    ("type_text", "value", "legacy", "new"),
    [
        ("STRING", "a b/=%", "a b%2F%3D%25", "a b%2F%3D%25"),
        ("STRING", "日本+&", "日本+&", "日本+&"),
        ("INT", -7, "-7", "-7"),
        ("BIGINT", 9999999999, "9999999999", "9999999999"),
        ("BOOLEAN", True, "true", "true"),
        ("DATE", date(2024, 1, 2), "19724", "2024-01-02"),
        ("DATE", date(1969, 12, 31), "-1", "1969-12-31"),
        ("DATE", date(1, 1, 1), "-719162", "0001-01-01"),
        ("DECIMAL(10, 2)", Decimal("1.5"), "1.50", "1.50"),
        ("DECIMAL(38, 0)", Decimal(10**37), "1" + "0" * 37, "1" + "0" * 37),
        ("DECIMAL(38, 10)", Decimal("-1E-10"), "-0.0000000001", "-0.0000000001"),
        ("DOUBLE", 1.5, "1.5", "1.5"),
        ("DOUBLE", 1e10, "1.0E10", "1.0E10"),
        ("DOUBLE", -0.001, "-0.001", "-0.001"),
        ("FLOAT", 0.10000000149011612, "0.1", "0.1"),
        ("TIMESTAMP(6)", NOON, "2024-01-02T03%3A04%3A05", "2024-01-02 03%3A04%3A05.000000"),
        ("TIMESTAMP(3)", Timestamp(NOON.millis - 5000), "2024-01-02T03%3A04", "2024-01-02 03%3A04%3A00.000"),
        ("TIMESTAMP(0)", NOON, "2024-01-02T03%3A04%3A05", "2024-01-02 03%3A04%3A05"),
        ("TIMESTAMP(6)", NOON._replace(nanos_of_milli=120_000), "2024-01-02T03%3A04%3A05.000120",
         "2024-01-02 03%3A04%3A05.000120"),
        ("TIMESTAMP(9)", NOON._replace(nanos_of_milli=1), "2024-01-02T03%3A04%3A05.000000001",
         "2024-01-02 03%3A04%3A05.000000001"),
        ("TIMESTAMP(3)", Timestamp(NOON.millis + 120), "2024-01-02T03%3A04%3A05.120", "2024-01-02 03%3A04%3A05.120"),
        ("TIME(0)", 3_723_000, "3723000", "01%3A02%3A03"),
        ("TIME(3)", 3_723_040, "3723040", "01%3A02%3A03.04"),
        ("TIME(3)", 0, "0", "00%3A00%3A00.0"),
    ],
)  # fmt: skip
def test_directory_names(type_text: str, value: Any, legacy: str, new: str) -> None:
    assert _path(type_text, value) == f"p={legacy}"
    assert _path(type_text, value, legacy=False) == f"p={new}"


@pytest.mark.parametrize("value", [None, "", " ", "\t \u2003"])
def test_blank_values_share_a_directory(value: str | None) -> None:
    assert _path("STRING", value) == "p=__DEFAULT_PARTITION__"
    assert partition_path(partition_schema(["p"], [parse_type("STRING")], default="none"), [value]) == "p=none"


def test_no_break_space_is_not_blank_for_java() -> None:
    assert _path("STRING", "\xa0") == "p=\xa0"


def test_escaping() -> None:
    escaped = {c for c in map(chr, range(0x3000)) if escape_path_name(c) != c}
    assert escaped == {*map(chr, range(0x20)), "\x7f", *"\"#%'*/:=?\\{}[]^"}
    assert escape_path_name("\n/é") == "%0A%2Fé"
    keys = ["a=b", "c"]
    schema = partition_schema(keys, [parse_type("INT")] * 2)
    assert partition_path(schema, [1, 2]) == "a%3Db=1/c=2" and partition_path(schema, [1]) == "a%3Db=1"


def test_binary() -> None:
    with pytest.raises(UnsupportedFeatureError, match="column p is of type BYTES"):
        _path("BYTES", b"x")
    assert _path("BYTES", "é".encode(), legacy=False) == "p=é"
    with pytest.raises(UnsupportedFeatureError, match="not UTF-8"):
        _path("BYTES", b"\xff", legacy=False)


def test_local_time_zone_names_depend_on_the_zone() -> None:
    assert _path(LTZ, NOON) == "p=2024-01-02T03%3A04%3A05"
    assert _path(LTZ, NOON, legacy=False, zone=UTC) == "p=2024-01-02 03%3A04%3A05.000000"
    shanghai = ZoneInfo("Asia/Shanghai")
    assert _path(LTZ, NOON, legacy=False, zone=shanghai) == "p=2024-01-02 11%3A04%3A05.000000"


@pytest.mark.parametrize("archive", ["paimon-2.0.0", "paimon-0.9.0", "table-fuzz", "chain-fuzz"])
def test_golden_directories(golden: Callable[[str], Path], archive: str) -> None:
    """Every partition of every manifest entry leads to a directory that the connector made."""
    seen = set()
    for table in sorted((golden(archive) / "wh" / "d.db").iterdir()):
        schema = json.loads((table / "schema" / "schema-0").read_text())
        keys = schema["partitionKeys"]
        types = [parse_field(f).type for k in keys for f in schema["fields"] if f["name"] == k]
        # 0.9.0 doesn't know the option yet.
        legacy = schema["options"].get("partition.legacy-name") != "false" or archive == "paimon-0.9.0"
        manifests = [p for p in (table / "manifest").glob("manifest-*") if "list" not in p.name]
        rows = {e.partition for p in manifests for e in read_manifest(p.read_bytes())} if keys else set()
        for row in rows:
            values = decode_row(row, types)
            path = partition_path(partition_schema(keys, types, legacy), values, UTC)
            assert (table / path).is_dir(), path
            assert encode_row(values, types) == row
            human = format_partition(values, keys, types)
            assert tuple(parse_partition_spec(human, keys, types).values()) == values
            seen.add((table.name, path))
    assert len(seen) > 20


@given(st.data(), typed_values(nans=False))
def test_human_form_round_trip(data: st.DataObject, column: tuple[DataType, st.SearchStrategy[Any]]) -> None:
    data_type, values = column
    value = data.draw(st.none() | values)
    text = format_partition([value], ["p"], [data_type])
    assert parse_partition_spec(text, ["p"], [data_type]) == {"p": value}
    assert parse_partition_spec({"p": value}, ["p"], [data_type]) == {"p": value}


TOKYO = timezone(timedelta(hours=9))


@pytest.mark.parametrize(
    ("type_text", "given_value", "expected"),
    [
        ("STRING", "7", "7"),
        ("STRING", "", ""),
        ("STRING", DEFAULT_PARTITION, None),
        ("INT", None, None),
        ("INT", "7", 7),
        ("INT", " -7 ", -7),
        ("BIGINT", 7, 7),
        ("BOOLEAN", "TRUE", True),
        ("BOOLEAN", False, False),
        ("DATE", "2025-01-31", date(2025, 1, 31)),
        ("DATE", date(2025, 1, 31), date(2025, 1, 31)),
        ("DECIMAL(10, 2)", "1.5", Decimal("1.50")),
        ("DECIMAL(10, 2)", 3, Decimal(3)),
        ("DOUBLE", "1.5", 1.5),
        ("FLOAT", "0.1", 0.10000000149011612),
        ("TIME(3)", "01:02:03.040", 3_723_040),
        ("TIME(3)", time(1, 2, 3), 3_723_000),
        ("TIMESTAMP(6)", "2024-01-02 03:04:05", NOON),
        ("TIMESTAMP(6)", "2024-01-02T03:04:05.000120", NOON._replace(nanos_of_milli=120_000)),
        ("TIMESTAMP(9)", "2024-01-02T03:04:05.000000001", NOON._replace(nanos_of_milli=1)),
        ("TIMESTAMP(6)", "2024-01-02", Timestamp(NOON.millis - 11_045_000)),
        ("TIMESTAMP(6)", datetime(2024, 1, 2, 3, 4, 5), NOON),
        (LTZ, "2024-01-02 03:04:05Z", NOON),
        (LTZ, "2024-01-02 12:04:05.5+09:00", Timestamp(NOON.millis + 500)),
        (LTZ, datetime(2024, 1, 2, 12, 4, 5, tzinfo=TOKYO), NOON),
        ("BYTES", "0x01ff", b"\x01\xff"),
        ("BYTES", b"x", b"x"),
    ],
)
def test_what_users_may_write(type_text: str, given_value: Any, expected: Any) -> None:
    parsed = parse_partition_spec({"p": given_value}, ["p"], [parse_type(type_text)])
    assert parsed == {"p": expected}
    assert type(parsed["p"]) is type(expected)


@pytest.mark.parametrize(
    ("type_text", "given_value", "form"),
    [
        ("STRING", 7, "a string"),
        ("INT", "7.0", "a whole number"),
        ("INT", "", "a whole number"),
        ("INT", True, "a whole number"),
        ("INT", "1_000", "a whole number"),
        ("TINYINT", 128, "a whole number"),
        ("BOOLEAN", "yes", "true or false"),
        ("BOOLEAN", 1, "true or false"),
        ("DATE", "20250131", "2025-01-31"),
        ("DATE", "20119", "2025-01-31"),
        ("DATE", "2025-02-30", "2025-01-31"),
        ("DATE", datetime(2025, 1, 1), "2025-01-31"),
        ("DATE", 20119, "2025-01-31"),
        ("DECIMAL(3, 1)", "1.23", "decimal number"),
        ("DECIMAL(3, 1)", "NaN", "decimal number"),
        ("DECIMAL(3, 1)", 1.5, "decimal number"),
        ("DECIMAL(3, 1)", "1_0", "decimal number"),
        ("DOUBLE", "1_0", "number"),
        ("FLOAT", "\u0661", "number"),
        ("FLOAT", "1e39", "a number"),
        ("FLOAT", "x", "a number"),
        ("TIME(3)", "25:00:00", "12:30:00"),
        ("TIME(3)", -1, "12:30:00"),
        ("TIMESTAMP(6)", "2024-01-02 03:04:05Z", "without a time zone"),
        ("TIMESTAMP(6)", "2024-01-02 03:04:05.0000001", "without a time zone"),
        ("TIMESTAMP(0)", "2024-01-02 03:04:05.5", "without a time zone"),
        ("TIMESTAMP(6)", "noon", "without a time zone"),
        ("TIMESTAMP(6)", datetime(2024, 1, 2, tzinfo=UTC), "without a time zone"),
        (LTZ, "2024-01-02 03:04:05", "with a time zone"),
        ("BYTES", "01ff", "0x01ff"),
        ("BYTES", "0xz", "0x01ff"),
    ],
)
def test_what_users_may_not_write(type_text: str, given_value: Any, form: str) -> None:
    with pytest.raises(InvalidInputError, match=f"partition column p .*give .*{form}"):
        parse_partition_spec({"p": given_value}, ["p"], [parse_type(type_text)])


def test_keys() -> None:
    keys, types = ["dt", "h"], [parse_type("DATE"), parse_type("INT")]
    assert parse_partition_spec({"h": "3"}, keys, types) == {"h": 3}
    assert list(parse_partition_spec({"h": "3", "dt": "2025-01-01"}, keys, types)) == keys
    with pytest.raises(InvalidInputError, match="'hour' is not a partition column: the partition columns are dt, h"):
        parse_partition_spec({"hour": 3}, keys, types)
    with pytest.raises(InvalidInputError, match="not partitioned"):
        parse_partition_spec({"dt": 3}, [], [])
    with pytest.raises(InvalidInputError, match="at least one of the columns dt, h"):
        parse_partition_spec({}, keys, types)
    with pytest.raises(UnsupportedFeatureError, match="column p is of type ARRAY"):
        parse_partition_spec({"p": [1]}, ["p"], [parse_type({"type": "ARRAY", "element": "INT"})])


def test_human_form() -> None:
    types = [parse_type(t) for t in ("DATE", "INT", "BYTES", LTZ)]
    values = [date(2025, 1, 1), None, b"\x01", NOON]
    expected = "dt=2025-01-01/h=__DEFAULT_PARTITION__/b=0x01/t=2024-01-02 03:04:05+00:00"
    assert format_partition(values, ["dt", "h", "b", "t"], types) == expected
    assert format_partition([], [], []) == ""
