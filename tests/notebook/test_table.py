"""What ``airflow_paimon.open_table`` returns: rows for the libraries of a notebook, and what a notebook shows."""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon import open_table
from airflow_paimon.core.errors import FormatError, InvalidInputError, NotFoundError, PaimonError, UnsupportedError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import arrow_read, read_arrow, write_arrow
from airflow_paimon.data.diff import run_diff
from airflow_paimon.notebook.table import ReadableTable
from tests.conftest import require
from tests.core.tables import run
from tests.data.chain.tables import DAYS as CHAIN_DAYS
from tests.data.chain.tables import EXPECTED, chain_table

DAYS = ("2026-11-17", "2026-11-18", "2026-11-19")
INJECTED = "<script>alert('x')</script>"


@pytest.fixture
def orders(tmp_path: Path) -> ReadableTable:
    """Three days of a keyed table, some keys in two versions; on the branch fix one row is changed and one is new."""
    made = create_table(
        str(tmp_path),
        "sales.orders",
        [("id", "BIGINT NOT NULL"), ("dt", "STRING NOT NULL"), ("amount", "DECIMAL(8, 2)"), ("note", "STRING")],
        partition_keys=["dt"],
        primary_keys=["dt", "id"],
        options={"bucket": "1", "airflow-paimon.masked-columns": "note"},
        comment=INJECTED,
    )
    put(made, [(i, day, i) for day in DAYS for i in range(4)])
    put(made, [(1, DAYS[1], 1999), (9, DAYS[1], 9)])
    run(made, "create_tag", tag="before", snapshot=2)
    run(made, "create_branch", branch="fix", tag="before", owner=INJECTED, reason="wrong amount")
    put(made.branch("fix"), [(1, DAYS[1], 19), (10, DAYS[2], 10)])
    return open_table(str(tmp_path), "sales.orders")


def put(table: Table, rows: list[tuple[int, str, int]]) -> None:
    columns = {"id": pa.int64(), "dt": pa.string(), "amount": pa.decimal128(8, 2), "note": pa.string()}
    values = [(i, day, amount, f"secret {i}") for i, day, amount in rows]
    write_arrow(table, pa.Table.from_pylist([dict(zip(columns, v, strict=True)) for v in values], pa.schema(columns)))


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows.column("id").to_pylist())


class Shown(HTMLParser):
    """The elements and the text of a fragment."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def shown(value: Any) -> Shown:
    return Shown(value._repr_html_())


def test_rows_of_a_branch_and_of_an_earlier_state(orders: ReadableTable) -> None:
    assert orders.to_arrow().equals(read_arrow(orders))
    assert ids(orders.to_arrow(["id"], "dt = '2026-11-18' AND amount > 2")) == [1, 3, 9]
    assert ids(orders.to_arrow(["id"], (pc.field("dt") == DAYS[1]) & (pc.field("amount") > Decimal(2)))) == [1, 3, 9]
    assert orders.to_arrow(["id"]).column_names == ["id"]
    assert ids(orders.to_arrow(where="dt = '2026-11-19'", branch="fix")) == [0, 1, 2, 3, 10]
    assert ids(orders.branch("fix").to_arrow(where="dt = '2026-11-19'")) == [0, 1, 2, 3, 10]
    assert 9 not in ids(orders.to_arrow(snapshot=1))
    assert 9 in ids(orders.to_arrow(tag="before"))
    assert ids(orders.to_arrow(timestamp=orders.snapshot(1).time_millis)) == sorted([*range(4)] * 3)
    assert orders.to_arrow(limit=5).num_rows == 5 and orders.to_arrow(limit=0).num_rows == 0
    assert orders.to_arrow(limit=0).schema == orders.to_arrow().schema


def test_a_condition_as_text_compares_floating_point_numbers(tmp_path: Path) -> None:
    made = create_table(str(tmp_path), "d.t", [("f", "FLOAT"), ("d", "DOUBLE")], options={"bucket": "-1"})
    columns = {"f": pa.array([0.1, 2.5, float("nan"), None], pa.float32()), "d": [0.1, 2.5, 1e3, float("nan")]}
    write_arrow(made, pa.table(columns))
    table = open_table(str(tmp_path), "d.t")
    expected = {
        "d = 0.1": 1, "f = 0.1": 0, "f > 1": 2, "f != 2.5": 2, "d >= 0.1": 4, "d < -1.5": 0, "d IN (2.5, 1000)": 2,
        "d = 'NaN'": 1,
        "f IN (2.5, 'NaN')": 2, "d >= 'NaN'": 1, "d > 'NaN'": 0, "f < 'NaN'": 2, "f <= 'NaN'": 3, "f != 'NaN'": 2,
        "f BETWEEN 2.5 AND 'NaN'": 2,
    }  # fmt: skip
    assert {text: table.count(text) for text in expected} == expected
    assert {text: table.to_arrow(where=text).num_rows for text in expected} == expected


def test_conditions_on_times_are_exact_and_say_which_take_a_zone(tmp_path: Path) -> None:
    kinds = {"t": "TIMESTAMP(6)", "z": "TIMESTAMP(6) WITH LOCAL TIME ZONE", "n": "TIMESTAMP(9)"}
    made = create_table(str(tmp_path), "d.t", list(kinds.items()), options={"bucket": "-1"})
    noon, nanos = dt.datetime(2026, 1, 1, 12), 1_767_268_800_000_000_001
    row = {"t": noon, "z": noon.replace(tzinfo=dt.UTC), "n": nanos}
    write_arrow(made, pa.Table.from_pylist([row, {**row, "n": nanos + 1}], read_arrow(made).schema))
    table, t, z = open_table(str(tmp_path), "d.t"), pc.field("t"), pc.field("z")
    naive, aware = dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for where in ((t > naive) & (t < aware), t == aware, z != naive, t.isin([aware]), (z > aware) | (t > aware)):
        with pytest.raises(InvalidInputError, match=r"[tz] takes times with(out)? a time zone"):
            table.to_arrow(where=where)
    assert table.to_arrow(where=(t > naive) & (z > aware)).num_rows == 2
    wrong = {"t > '2026-01-01' AND t < '2027-01-01T00:00Z'": "without a zone", "z IN ('2026-01-01')": "with a zone",
             "t = '2026-01-01 12:00:00.0000001'": "is not a value"}  # fmt: skip
    for text, why in wrong.items():
        with pytest.raises(InvalidInputError, match=why):
            table.count(text)
    exact = {
        "n = '2026-01-01 12:00:00.000000001'": 1,
        "n > '2026-01-01 12:00:00.000000001'": 1,
        "z = '2026-01-01T13:00:00+01:00'": 2,
    }
    assert {text: table.count(text) for text in exact} == exact


def test_counts_are_those_of_a_reader(orders: ReadableTable, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = orders.require().snapshots()[-1].total_record_count
    assert (orders.count(), stored) == (13, 14)
    assert orders.count("dt = '2026-11-18' AND id = 1") == 1
    assert orders.count(branch="fix") == 14 and orders.count(snapshot=1) == 12 and orders.count(tag="before") == 13
    opened: list[int] = []
    original = arrow_read.read_split
    monkeypatch.setattr(arrow_read, "read_split", lambda r, s: opened.append(s.bucket.bucket) or original(r, s))
    assert orders.count() == 13
    assert len(opened) == 1, "files that nothing has to be merged with are not opened"


def test_a_count_without_a_look_into_files_of_deletion_vectors(tmp_path: Path, golden: Any) -> None:
    for path in sorted(golden("paimon-2.0.0").rglob("schema/schema-0")):
        table = open_table(path=path.parent.parent)
        try:
            rows = read_arrow(table)
        except PaimonError:
            continue
        assert table.count() == rows.num_rows, table.name
        column = rows.column_names[0]
        assert table.count(pc.field(column).is_valid() | pc.field(column).is_null()) == rows.num_rows, table.name


def test_batches_are_read_one_by_one(orders: ReadableTable, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    original = arrow_read.read_split
    monkeypatch.setattr(arrow_read, "read_split", lambda r, s: opened.append(s.bucket.values) or original(r, s))
    reader = orders.to_batches(limit=1)
    assert opened == []
    assert reader.read_next_batch().num_rows == 1 and len(opened) == 1
    with pytest.raises(StopIteration):
        reader.read_next_batch()
    assert len(opened) == 1, "nothing is opened once there are enough rows"


def test_a_missing_file_is_told_as_what_it_is(orders: ReadableTable, tmp_path: Path) -> None:
    for file in (tmp_path / "sales.db" / "orders").rglob("data-*"):
        file.unlink()
    with pytest.raises(FormatError, match="data-"):
        orders.to_arrow()


def test_a_chain_table_is_read_as_its_main_view_is(tmp_path: Path) -> None:
    made = chain_table(tmp_path, CHAIN_DAYS)
    table = open_table(path=made.store.uri)
    expected = read_arrow(made)
    assert expected.num_rows == sum(map(len, EXPECTED.values())) > 0
    assert table.to_arrow().equals(expected) and table.count() == expected.num_rows
    day = min(EXPECTED)
    assert table.count(f"dt = '{day}'") == len(EXPECTED[day]) == table.to_arrow(where=f"dt = '{day}'").num_rows
    changes = read_arrow(made, chain_read="incremental")
    assert table.to_arrow(chain_read="incremental").equals(changes) and changes.num_rows != expected.num_rows


def test_frames(orders: ReadableTable) -> None:
    frame = orders.to_pandas(["id", "amount"], "dt = '2026-11-18'", branch="fix")
    assert dict(zip(frame["id"], map(float, frame["amount"]), strict=True)) == {0: 0, 1: 19, 2: 2, 3: 3, 9: 9}


def test_polars(orders: ReadableTable) -> None:
    require(find_spec("polars"), "polars is not installed: make venv")
    import polars

    frame = orders.to_polars(where="dt = '2026-11-18'")
    assert isinstance(frame, polars.DataFrame)
    assert sorted(frame["id"].to_list()) == [0, 1, 2, 3, 9]


def test_duckdb(orders: ReadableTable) -> None:
    require(find_spec("duckdb"), "duckdb is not installed: make venv")
    import duckdb

    relation = orders.to_duckdb(["id", "amount"], "dt = '2026-11-18'")
    for _ in range(2):  # a relation on a stream would be empty the second time
        assert relation.aggregate("count(*), max(amount)::INT").fetchall() == [(5, 1999)]
    connection = duckdb.connect()
    orders.to_duckdb(name='my "orders"', connection=connection)
    orders.to_duckdb(name="fix", connection=connection, branch="fix", where="id = 10")
    assert connection.sql('SELECT count(*) FROM "my ""orders""" JOIN fix USING (dt)').fetchall() == [(4,)]


@pytest.mark.parametrize(
    ("call", "package"), [("to_pandas", "pandas"), ("to_polars", "polars"), ("to_duckdb", "duckdb")]
)
def test_what_is_not_installed_is_named(
    orders: ReadableTable, monkeypatch: pytest.MonkeyPatch, call: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError, match=f"{call} needs the package {package}.*pip install {package}"):
        getattr(orders, call)()


def test_wrong_arguments_are_named(orders: ReadableTable) -> None:
    for limit in (-1, "5", True):
        with pytest.raises(InvalidInputError, match="limit is a whole number from 0 on"):
            orders.head(limit)  # type: ignore[arg-type]
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"snapshot": 1, "tag": "before"}, "a snapshot or a tag, not both"),
        ({"limit": -1}, "limit is a number of rows"),
        ({"where": 5}, "or a pyarrow expression, not int"),
        ({"where": "amuont > 1"}, "there is no column 'amuont'"),
        ({"columns": ["nope"]}, "no column 'nope'"),
        ({"tag": 3}, "tag is the name of a tag"),
        ({"timestamp": 5, "snapshot": 1}, "version or timestamp, not both"),
    ]
    for arguments, message in refusals:
        with pytest.raises(InvalidInputError, match=message):
            orders.to_arrow(**arguments)
    with pytest.raises(NotFoundError, match="no branch 'nope'"):
        orders.to_arrow(branch="nope")


def test_what_a_notebook_shows_is_escaped(orders: ReadableTable) -> None:
    run(
        orders,
        "alter_table",
        change=[f"set x={INJECTED}", f"alter column note comment '{INJECTED.replace(chr(39), '')}'"],
    )
    put(orders, [(100, INJECTED, 1)])
    views = [
        orders, orders.columns(), orders.history(), orders.branches(), orders.tags(), orders.options,
        orders.partitions(), orders.head(50), orders.diff("fix", against="main"),
    ]  # fmt: skip
    for view in views:
        assert shown(view).tags <= {"table", "thead", "tbody", "tr", "th", "td", "p"}
    in_text = [view for view in views if "<script>" in shown(view).text]
    assert len(in_text) >= 6, "it is there to read"


def test_what_a_notebook_shows(orders: ReadableTable) -> None:
    table = shown(orders).text
    assert all(text in table for text in ("sales.orders", "dt, id", "main, fix", "DECIMAL(8, 2)"))
    assert repr(orders) == f"<Paimon table sales.orders, branch main, at {orders.store.uri}>"
    assert [row["snapshot"] for row in orders.history()] == [2, 1]
    assert "1 more snapshots: limit=0 shows all" in shown(orders.history(limit=1)).text
    assert [row["branch"] for row in orders.branches()] == ["main", "fix"]
    assert "wrong amount" in repr(orders.branches())
    assert orders.tags()[0].name == "airflow-paimon-branch-fix" and "before" in repr(orders.tags())
    assert orders.options["bucket"] == "1" and "bucket" in shown(orders.options).text
    assert isinstance(orders.branch("fix"), ReadableTable) and isinstance(orders.require(), ReadableTable)
    assert "unreadable" in shown(orders.branch("nope")).text


def test_masked_columns_are_hidden_where_rows_are_shown(orders: ReadableTable) -> None:
    rows = orders.head(3)
    assert len(rows) == 3 and {row["note"] for row in rows} == {"***"}
    assert [row["id"] for row in orders.head(5, ["id"], "dt = '2026-11-18' AND id = 9")] == [9]
    assert "secret" not in shown(rows).text + repr(rows) + shown(orders.diff("fix")).text
    assert orders.to_arrow(["note"], limit=1).column("note")[0].as_py().startswith("secret"), "a read hides nothing"


def test_a_diff(orders: ReadableTable, monkeypatch: pytest.MonkeyPatch) -> None:
    found = orders.diff("fix")
    assert found.different and {k: found.total[k] for k in ("added", "changed", "deleted")} == {
        "added": 1,
        "changed": 1,
        "deleted": 0,
    }
    (changed,) = found.samples("changed")
    assert (changed["before"]["amount"], changed["after"]["amount"]) == ("1999.00", "19.00")
    assert all(text in shown(found).text for text in ("1 added", "1999.00", "19.00", "dt=2026-11-18"))
    assert "1 changed" in repr(found)
    assert orders.branch("fix").diff("fix").details == found.details, "the same from any view"
    assert orders.diff("fix", partitions="dt=2026-11-18").total["added"] == 0
    assert "no row differs" in repr(orders.diff("fix", partitions="dt=2026-11-17"))
    monkeypatch.setattr(run_diff, "fits", lambda *_: False)
    with pytest.raises(UnsupportedError, match=r"however_large=True"):
        orders.diff("fix")
    assert orders.diff("fix", however_large=True).details == found.details
