"""Single data files: what other writers store otherwise, what is damaged, what Arrow can't hold."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import FormatError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.core.store import Store, open_store
from airflow_paimon.data.files.arrow_types import arrow_type
from airflow_paimon.data.files.evolution import plan_mapping
from airflow_paimon.data.files.read import read_data_file


def fields(**columns: Any) -> list[DataField]:
    return [DataField(i, n, parse_type(t)) for i, (n, t) in enumerate(columns.items())]


def values(folder: Path, name: str, wanted: list[DataField], **more: Any) -> list[dict[str, Any]]:
    store: Store = open_store(str(folder))
    return [row for b in read_data_file(store, name, wanted, **more) for row in b.rows.to_pylist()]


def test_other_writers_forms_of_a_type_are_converted(tmp_path: Path) -> None:
    table = pa.table(
        {
            "s": pa.array(["a", None], pa.large_string()),
            "d": pa.array(["x", "y"]).dictionary_encode(),
            "b": pa.array([b"ab", b"cd"], pa.binary(2)),
            "i": pa.array([1, 2], pa.int32()),
            "t": pa.array([0, 1], pa.timestamp("us")),
            "l": pa.array([[1], None], pa.list_(pa.field("item", pa.int32()))),
        }
    )
    pq.write_table(table, tmp_path / "f.parquet")
    wanted = fields(s="STRING", d="STRING", b="BYTES", i="TINYINT", t="TIMESTAMP(6) WITH LOCAL TIME ZONE",
                    l={"type": "ARRAY", "element": "INT"}, gone="INT")  # fmt: skip
    first = values(tmp_path, "f.parquet", wanted)[0]
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert first == {"s": "a", "d": "x", "b": b"ab", "i": 1, "t": moment, "l": [1], "gone": None}


def test_another_type_than_the_schema_says_is_corruption(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["1"]}), tmp_path / "f.parquet")
    with pytest.raises(FormatError, match="column 'a' should hold int32, not string"):
        values(tmp_path, "f.parquet", fields(a="INT"))


@pytest.mark.parametrize("kind", ["parquet", "orc", "avro"])
@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "missing"])
def test_damaged_files_are_named(tmp_path: Path, kind: str, damage: str) -> None:
    path = tmp_path / f"f.{kind}"
    table = pa.table({"a": pa.array(range(10_000), pa.int32())})
    if kind == "orc":
        orc.write_table(table, path)
    else:
        pq.write_table(table, path)
    data = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "garbage": b"x" * 500, "missing": b""}[damage])
    if damage == "missing":
        path.unlink()
    with pytest.raises(FormatError, match=rf"f\.{kind}" if damage == "missing" or kind != "avro" else "Avro data file"):
        values(tmp_path, path.name, fields(a="INT"))


def test_a_format_that_we_do_not_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.lance").write_bytes(b"")
    with pytest.raises(UnsupportedFeatureError, match="'lance'"):
        values(tmp_path, "f.lance", fields(a="INT"))


def test_rows_keep_their_positions_when_row_groups_are_skipped(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array(range(100), pa.int32())}), tmp_path / "f.parquet", row_group_size=10)
    batches = read_data_file(
        open_store(str(tmp_path)),
        "f.parquet",
        fields(a="INT"),
        batch_rows=7,
        keep_row_group=lambda _, i: i in (2, 3, 7),
    )
    found = [(b.start, b.rows.column(0).to_pylist()) for b in batches]
    assert [v for _, rows in found for v in rows] == [*range(20, 40), *range(70, 80)]
    assert all(rows[0] == start and len(rows) <= 7 for start, rows in found)


def int96(folder: Path, moments: list[Any], unit: str = "us") -> None:
    table = pa.table({"t": pa.array(moments, pa.timestamp(unit)), "n": pa.array([[m] for m in moments],
                      pa.list_(pa.timestamp(unit)))})  # fmt: skip
    pq.write_table(table, folder / "f.parquet", use_deprecated_int96_timestamps=True)


NESTED = {"type": "ARRAY", "element": "TIMESTAMP(9)"}


def test_int96_is_read_to_the_precision_of_the_column(tmp_path: Path) -> None:
    far = dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
    int96(tmp_path, [far, dt.datetime(1, 1, 1), None])
    assert [r["t"] for r in values(tmp_path, "f.parquet", fields(t="TIMESTAMP(6)"))] == [
        far,
        dt.datetime(1, 1, 1),
        None,
    ]
    int96(tmp_path, [-1, 1_700_000_000_123_456_789], unit="ns")
    store = open_store(str(tmp_path))
    (batch,) = read_data_file(store, "f.parquet", fields(t="TIMESTAMP(9)", n=NESTED))
    assert batch.rows.column("t").cast(pa.int64()).to_pylist() == [-1, 1_700_000_000_123_456_789]


@pytest.mark.parametrize("moment", [dt.datetime(9999, 12, 31), dt.datetime(2400, 1, 1), dt.datetime(1500, 1, 1)])
@pytest.mark.parametrize("wanted", [{"t": "TIMESTAMP(9)"}, {"n": NESTED}], ids=["column", "nested"])
def test_what_nanoseconds_can_not_hold_is_refused(tmp_path: Path, moment: dt.datetime, wanted: dict[str, Any]) -> None:
    int96(tmp_path, [dt.datetime(2024, 1, 1), None, moment])
    with pytest.raises(UnsupportedFeatureError, match="1677"):
        values(tmp_path, "f.parquet", fields(**wanted))


def test_far_timestamps_of_orc_files_are_refused(tmp_path: Path) -> None:
    """Older releases of Arrow wrap them silently: then a microsecond column has odd nanoseconds."""
    orc.write_table(pa.table({"t": pa.array([dt.datetime(9999, 1, 1)], pa.timestamp("us"))}), tmp_path / "f.orc")
    with pytest.raises(PaimonError):
        values(tmp_path, "f.orc", fields(t="TIMESTAMP(6)"))


ROW_A = {"type": "ROW", "fields": [{"id": 5, "name": "x", "type": "INT"}, {"id": 6, "name": "y", "type": "STRING"}]}
ROW_B = {"type": "ROW", "fields": [{"id": 6, "name": "z", "type": "STRING"}, {"id": 7, "name": "x", "type": "INT"},
                                   {"id": 5, "name": "w", "type": "BIGINT"}]}  # fmt: skip
ROWS: list[Any] = [None, {"x": 1, "y": "q"}, {"x": None, "y": "w"}, None]
EVOLVED: list[Any] = [None, {"z": "q", "x": None, "w": 1}, {"z": "w", "x": None, "w": None}, None]
SHAPES: dict[str, tuple[Any, Any, list[Any], list[Any]]] = {
    "row": (ROW_A, ROW_B, ROWS, EVOLVED),
    "array": ({"type": "ARRAY", "element": ROW_A}, {"type": "ARRAY", "element": ROW_B},
              [None, ROWS[:3], [], ROWS[1:]], [None, EVOLVED[:3], [], EVOLVED[1:]]),
    "map": ({"type": "MAP", "key": "STRING", "value": ROW_A}, {"type": "MAP", "key": "STRING", "value": ROW_B},
            [None, [("a", ROWS[1])], [], [("b", None), ("c", ROWS[2])]],
            [None, [("a", EVOLVED[1])], [], [("b", None), ("c", EVOLVED[2])]]),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("piece", [(0, 4), (1, 2), (2, 2), (3, 1), (1, 0)])
def test_rows_inside_evolve_by_field_id(shape: str, piece: tuple[int, int]) -> None:
    before, after, stored, expected = SHAPES[shape]
    written = [DataField(1, "a", parse_type(before))]
    mapping = plan_mapping(written, [DataField(1, "b", parse_type(after)), DataField(2, "a", parse_type("INT"))])
    batch = pa.RecordBatch.from_arrays([pa.array(stored, arrow_type(written[0].type))], names=["a"])
    start, length = piece
    result = mapping.apply(batch.slice(start, length)).to_pylist()
    assert result == [{"b": e, "a": None} for e in expected[start : start + length]]


@pytest.mark.parametrize(
    "before, after",
    [
        ("STRING", "INT"),
        ("INT", "STRING"),
        ("VARCHAR(9)", "VARCHAR(3)"),
        ("CHAR(3)", "CHAR(5)"),
        ("TIMESTAMP(6)", "DATE"),
        ("TIMESTAMP(6)", "TIMESTAMP(3)"),
        ("DECIMAL(9, 2)", "DECIMAL(9, 1)"),
        ("DECIMAL(9, 2)", "DOUBLE"),
        ("INT", ROW_A),
    ],
)
def test_a_type_change_that_we_do_not_convert_is_refused_before_a_row_is_read(before: Any, after: Any) -> None:
    written, wanted = DataField(1, "a", parse_type(before)), DataField(1, "a", parse_type(after))
    with pytest.raises(UnsupportedFeatureError, match=r"'a' changed its type .*connector"):
        plan_mapping([written], [wanted])
