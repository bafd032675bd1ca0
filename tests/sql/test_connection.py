"""SQL of a Paimon connection: DuckDB's answers over our rows, what reaches the files, and what is refused."""

from __future__ import annotations

import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import FormatError, InvalidInputError, NotFoundError, UnsupportedError
from airflow_paimon.core.schema.schema_plan import AddColumn, SetOption
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import arrow_read, read_arrow, write_arrow
from airflow_paimon.sql.connection import Connection, Cursor
from tests.core.tables import alter_table, run
from tests.data.chain.tables import DAYS, chain_table
from tests.data.chain.tables import write as write_chain
from tests.data.tables import FINE_TYPES, any_row, make_table, rows_of
from tests.randomness import every

duckdb = pytest.importorskip("duckdb")

COLUMNS = {"dt": "STRING NOT NULL", "id": "BIGINT NOT NULL", "amount": "DECIMAL(8, 2)", "note": "STRING"}


def put(table: Table, day: str, *ids: int, amount: int = 1) -> None:
    write_arrow(table, rows_of(COLUMNS, [{"dt": day, "id": i, "amount": amount, "note": f"n{i}"} for i in ids]))


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    """Two days; one key in two versions; the branch fix has one row more."""
    made = make_table(
        tmp_path, COLUMNS, name="sales.orders", primary_keys=["dt", "id"], partition_keys=["dt"], bucket="1"
    )
    put(made, "2026-11-17", 1, 2, 3)
    put(made, "2026-11-18", 1, 2, 3)
    put(made, "2026-11-18", 2, amount=50)
    run(made, "create_tag", tag="v1.0", snapshot=1)
    run(made, "create_branch", branch="fix", snapshot=3)
    put(made.branch("fix"), "2026-11-18", 4)
    return made


@pytest.fixture
def cursor(orders: Table, tmp_path: Path) -> Iterator[Cursor]:
    with closing(Connection(str(tmp_path), memory_limit="200MB", threads=2).cursor()) as found:
        yield found


def test_a_select_over_tables_branches_versions_and_system_tables(cursor: Cursor) -> None:
    def first(statement: str, *parameters: Any) -> Any:
        return cursor.execute(statement, parameters).fetchall()[0]

    assert first("SELECT count(*), sum(amount) FROM sales.orders") == (6, 55)
    assert first("SELECT count(*) FROM sales.orders WHERE dt = ? AND amount > ?", "2026-11-18", 10) == (1,)
    assert cursor.execute("SELECT id FROM sales.orders WHERE id = $x", {"x": 3}).fetchmany(5) == [(3,), (3,)]
    assert first("SELECT count(*) FROM sales.orders$branch_fix") == (7,)
    assert first('SELECT count(*) FROM sales."orders@1"') == (3,)
    assert first('SELECT count(*) FROM sales."orders@v1.0", sales."orders$branch_fix@4"') == (3 * 7,)
    assert first('SELECT count(*) FROM sales."orders@fix.4"') == (7,)
    assert first("SELECT max(snapshot_id) FROM sales.orders$snapshots") == (3,)
    assert first("SELECT count(*) FROM sales.orders$branch_fix$files") == (4,)
    assert first('SELECT count(*) FROM "sales.orders"') == (6,)
    assert first("WITH orders AS (SELECT * FROM sales.orders WHERE id > 2) SELECT count(*) FROM orders") == (2,)
    joined = "SELECT a.amount, sales.orders.amount FROM sales.orders JOIN sales.orders$branch_fix a USING (dt, id)"
    assert len(cursor.execute(joined).fetchall()) == 6
    assert [row[:2] for row in cursor.execute("DESCRIBE sales.orders").fetchall()][2] == ("amount", "DECIMAL(8,2)")
    assert [column[0] for column in cursor.execute("SELECT id AS a, 1 AS b FROM sales.orders").description or ()] == [
        "a",
        "b",
    ]
    assert cursor.fetchone() is not None and len(cursor.fetchall()) == 5 and cursor.fetchone() is None


def test_names_without_a_database_are_those_of_the_default_one(orders: Table, tmp_path: Path, cursor: Cursor) -> None:
    with closing(Connection(str(tmp_path), database="sales").cursor()) as found:
        assert found.execute('SELECT count(*) FROM orders, "orders@1"').fetchall() == [(18,)]
    with pytest.raises(InvalidInputError, match=r"write db\.orders"):
        cursor.execute("SELECT * FROM orders")


def test_a_database_with_a_name_that_duckdb_has_for_itself_keeps_its_rows(orders: Table, tmp_path: Path) -> None:
    for number, database in enumerate(("main", "temp", "system", "memory")):
        put(make_table(tmp_path, COLUMNS, name=f"{database}.orders"), "2026-11-18", 100 + number)
    statement = """SELECT (SELECT max(id) FROM orders), (SELECT max(id) FROM main.orders),
                          (SELECT max(id) FROM "temp.orders"), (SELECT max(id) FROM "system.orders"),
                          (SELECT max(id) FROM "memory.orders")"""
    with closing(Connection(str(tmp_path), database="sales").cursor()) as cursor:
        assert cursor.execute(statement).fetchall() == [(3, 100, 101, 102, 103)]


def test_a_text_is_not_taken_for_a_list_of_its_letters(cursor: Cursor) -> None:
    for ask in (cursor.execute, cursor.arrow, lambda *given: next(cursor.batches(given[0], 1, given[1]))):
        with pytest.raises(InvalidInputError, match="put a single one into a list"):
            ask("SELECT count(*) FROM sales.orders WHERE note = ?", "n")


def test_columns_and_conditions_reach_the_files(cursor: Cursor, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Any, ...]] = []
    original = arrow_read.read_split

    def watched(read: Any, split: Any) -> Any:
        opened.append((split.bucket.values, read.columns))
        return original(read, split)

    monkeypatch.setattr(arrow_read, "read_split", watched)
    assert cursor.execute("SELECT note FROM sales.orders WHERE dt = '2026-11-17' AND id > 1").fetchall()
    (found,) = opened
    assert found[0] == ("2026-11-17",) and "amount" not in found[1]


def all_types(folder: Path) -> pa.Table:
    """Make d.t, with merges to do, and d.u, without keys, of the same rows, which are returned."""
    keyed = make_table(folder, FINE_TYPES, primary_keys=["k"], bucket="2")
    for first in (0, 20):  # some keys in two versions
        rows = [any_row(i) for i in range(first, first + 40)]
        write_arrow(keyed, rows_of(FINE_TYPES, [{**row, "t9": row.get("t3"), "l9": row.get("l3")} for row in rows]))
    found = read_arrow(keyed)
    plain = make_table(folder, FINE_TYPES, name="d.u", bucket="-1")
    for part in (found.slice(0, 17), found.slice(17)):
        write_arrow(plain, part)
    return found


def test_every_condition_selects_the_rows_that_duckdb_selects_of_a_table_of_its_own(tmp_path: Path) -> None:
    """A condition that is pushed down is not looked at again, so ours must be true for the very same rows."""
    stored = all_types(tmp_path)
    theirs = duckdb.connect()
    theirs.execute("SET TimeZone = 'UTC'")
    theirs.register("arrow", stored)
    theirs.execute("CREATE TABLE stored AS FROM arrow")
    values = {n: [v for v in stored.column(n).to_pylist() if v is not None][::15] for n in stored.column_names}
    conditions: list[tuple[str, list[Any]]] = []
    conditions += [(f'"{name}" IS NULL', []) for name in ("pairs", "row", "nested")]
    for name in (n for n in stored.column_names if n not in ("pairs", "row", "nested")):
        simple = [f'"{name}" {sign} ?' for sign in ("=", "<>", "<", ">=")]
        conditions += [(text, [value]) for text in simple for value in values[name][:1]]
        conditions += [(f'"{name}" IS NULL', []), (f'"{name}" IS NOT NULL AND k > ?', [7])]
        two = [values[name][0], values[name][-1]]
        conditions += [(f'"{name}" IN (?, ?)', two), (f'"{name}" BETWEEN ? AND ?', two)]
        conditions += [(f'"{name}" = ? OR k = ? OR "{name}" IS NULL', [two[0], 5])]
    conditions += [
        ("f32 = 'nan'", []), ("f32 > 3", []), ("f32 < 'nan'", []), ("f64 = 0", []), ("f64 < 'inf'", []),
        ("\"row\".a = 4", []), ("\"row\".b IS NULL", []), ("text LIKE 'h%'", []), ("text >= 'x'", []),
        ("day > '2000-01-01'", []), ("l3 >= '2001-01-01'", []), ("t3 < '2001-01-01 00:00:00'", []),
        ("NOT (flag AND k < 20)", []), ("i8 + 1 > 100", []), ("d8 * 2 > 1.5", []), ("k % 2 = 0", []),
    ]  # fmt: skip
    with closing(Connection(str(tmp_path)).cursor()) as cursor:
        for condition, given in every(4, conditions):
            expected = theirs.execute(f"SELECT k FROM stored WHERE {condition} ORDER BY k", given).fetchall()
            both = [f"SELECT '{name}' AS name, k FROM d.{name} WHERE {condition}" for name in ("t", "u")]
            ours = cursor.execute(" UNION ALL ".join(both) + " ORDER BY ALL", given * 2).fetchall()
            assert ours == [(name, *row) for name in ("t", "u") for row in expected], (condition, given)
        reordered = ", ".join(f'"{name}"' for name in reversed(stored.column_names))
        whole = cursor.arrow(f"SELECT {reordered} FROM d.t ORDER BY k")
        assert repr(whole.to_pylist()) == repr(
            theirs.sql(f"SELECT {reordered} FROM stored ORDER BY k").to_arrow_table().to_pylist()
        )
    theirs.close()


def test_arrow_tables_in_one_piece_and_in_several(cursor: Cursor) -> None:
    whole = cursor.arrow("SELECT id, amount FROM sales.orders WHERE id < ? ORDER BY dt, id", [3])
    parts = list(cursor.batches("SELECT id, amount FROM sales.orders WHERE id < ? ORDER BY dt, id", 3, [3]))
    assert [part.num_rows for part in parts] == [3, 1]
    assert pa.concat_tables(parts).equals(whole) and whole.column("id").to_pylist() == [1, 2, 1, 2]
    assert whole.schema.field("amount").type == pa.decimal128(8, 2)


def test_all_statements_of_a_connection_see_one_state_until_it_commits(orders: Table, tmp_path: Path) -> None:
    connection = Connection(str(tmp_path))
    count = "SELECT (SELECT count(*) FROM sales.orders), (SELECT max(id) FROM sales.orders)"
    with closing(connection.cursor()) as one, closing(connection.cursor()) as two:
        assert one.execute(count).fetchall() == [(6, 3)]
        put(orders, "2026-11-19", 9)
        assert two.execute(count).fetchall() == [(6, 3)]
        assert two.execute("SELECT count(*) FROM sales.orders WHERE dt >= '2026-11-19'").fetchall() == [(0,)]
        connection.commit()
        assert one.execute(count).fetchall() == [(7, 9)]


def test_a_writer_between_two_scans_of_one_statement_is_not_seen(
    orders: Table, cursor: Cursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, scans = arrow_read.PinnedRows.batches, 0

    def interrupted(self: Any, *asked: Any) -> Any:
        nonlocal scans
        scans += 1
        put(orders, f"2026-12-{scans:02d}", 9)
        return original(self, *asked)

    monkeypatch.setattr(arrow_read.PinnedRows, "batches", interrupted)
    statement = "SELECT (SELECT count(*) FROM sales.orders), (SELECT count(amount) FROM sales.orders WHERE id > 0)"
    assert cursor.execute(statement).fetchall() == [(6, 6)]
    assert scans == 2


def test_a_new_column_is_there_before_the_next_snapshot(orders: Table, cursor: Cursor) -> None:
    alter_table(orders, [AddColumn(name="extra", type="INT")])
    assert cursor.execute("SELECT count(*) FROM sales.orders WHERE extra IS NULL").fetchall() == [(6,)]


def test_chains_and_fallback_branches_are_read_whole(tmp_path: Path) -> None:
    chain = chain_table(tmp_path / "chain", DAYS)
    with closing(Connection(str(tmp_path / "chain")).cursor()) as cursor:
        expected = sorted((r["dt"], r["k"], r["v"]) for r in read_arrow(chain).to_pylist())
        chained = "SELECT dt, k, v FROM d.t ORDER BY ALL"
        assert cursor.execute(chained).fetchall() == expected and expected
        day = [row for row in expected if row[0] == "20250811"]
        assert cursor.execute("SELECT dt, k, v FROM d.t WHERE dt = '20250811' ORDER BY ALL").fetchall() == day
        write_chain(chain.branch("delta"), ["k", "s", "v"], ["dt"], "20250815", [(9, 9, "late")])
        assert cursor.execute(chained).fetchall() == expected
    main = make_table(tmp_path / "pair", COLUMNS, partition_keys=["dt"])
    other = main.branch("other")
    other.store.create(other.paths.schema(0), main.store.read(main.paths.schema(0)))
    put(other, "a", 1, 2)
    put(main, "b", 3)
    alter_table(main, [SetOption(key="scan.fallback-branch", value="other")])
    with closing(Connection(str(tmp_path / "pair")).cursor()) as cursor:
        assert cursor.execute("SELECT dt, id FROM d.t ORDER BY ALL").fetchall() == [("a", 1), ("a", 2), ("b", 3)]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE sales.orders SET amount = 0", r"UPDATE changes rows.*CorrectBranchOperator"),
        ("DELETE FROM sales.orders", "DELETE changes rows"),
        ("INSERT INTO sales.orders SELECT * FROM sales.orders", "INSERT changes rows"),
        ("CREATE TABLE x AS SELECT 1", "CREATE is refused"),
        ("COPY (SELECT 1) TO '/tmp/x.csv'", "COPY is refused"),
        ("ATTACH '/tmp/x.db'", "ATTACH is refused"),
        ("SET enable_external_access = true", "SET is refused"),
        ("INSTALL httpfs", "is refused"),
        ("SELECT 1; DROP TABLE x", "2 statements"),
        ("SELECT * FROM read_csv('/etc/passwd')", r"read_csv\(\.\.\.\) is refused"),
        ("SELECT (SELECT content FROM read_text('/etc/passwd'))", "read_text"),
        ("WITH x AS (SELECT * FROM glob('/*')) SELECT * FROM x", "glob"),
        ("SELECT * FROM duckdb_settings()", "duckdb_settings"),
        ("SELECT * FROM query('SELECT 1')", "query"),
        ("SELECT * FROM arrow_scan(1, 2, 3)", "arrow_scan"),
        ("SELECT * FROM '/etc/passwd'", r"'/etc/passwd' is in no database"),
        ("SELECT * FROM 'x.parquet'", "There is no table x.parquet|no database 'x'"),
        ("SELECT * FROM secret_rows", "is in no database"),
        ("SELECT * FROM a.sales.orders", "three parts"),
        ("SELECT * FROM sales.orders AT (VERSION => 1)", r'"orders@VERSION"'),
        ("SELECT * FROM sales.orders, sales.Orders", "differ only in upper and lower case"),
        ("SELECT * FROM sales.orders$audit_log", "read_system_table"),
        ('SELECT * FROM sales."orders@"', "names no version"),
        ("SELECT nope FROM sales.orders", '"nope" not found'),
        ("SELEC 1", "can't read it as a SELECT"),
        ("", "statement is empty"),
        ("-- only a comment", "statement is empty"),
        ("SHOW TABLES", "python -m airflow_paimon tables"),
        ("PIVOT sales.orders ON dt USING sum(amount)", "a PIVOT needs its values"),
        ("SELECT * FROM temp.orders", 'in one pair of quotes: "temp.orders"'),
    ],
)
def test_what_is_no_select_over_tables_is_refused(cursor: Cursor, statement: str, said: str) -> None:
    secret_rows = pa.table({"a": ["of this process"]})
    with pytest.raises((InvalidInputError, NotFoundError), match=f"(?s){said}"):
        cursor.execute(statement)
    assert secret_rows.num_rows == 1


def test_duckdb_itself_is_closed_to_files_settings_and_the_process(cursor: Cursor) -> None:
    """The second wall, should a statement get past our look at it."""
    session = cursor._session
    rows = pa.table({"a": ["of this process"]})
    for statement in ("SELECT * FROM read_text('/etc/hostname')", "COPY (SELECT 1) TO '/tmp/airflow-paimon-x.csv'",
                      "ATTACH '/tmp/airflow-paimon-x.db'", "SET enable_external_access = true", "SELECT * FROM rows",
                      "SET lock_configuration = false", "INSTALL httpfs", "LOAD httpfs"):  # fmt: skip
        with pytest.raises(duckdb.Error):
            session.execute(statement)
    assert rows.num_rows == 1 and not Path("/tmp/airflow-paimon-x.csv").exists()


def test_what_isnt_there_is_named(cursor: Cursor) -> None:
    with pytest.raises(NotFoundError, match=r"no table sales\.nope"):
        cursor.execute("SELECT * FROM sales.nope")
    with pytest.raises(NotFoundError, match="no branch 'nope'"):
        cursor.execute("SELECT * FROM sales.orders$branch_nope")
    with pytest.raises(NotFoundError, match="'nope'"):
        cursor.execute('SELECT * FROM sales."orders@nope"')


def test_a_damaged_table_is_said_to_be_damaged(tmp_path: Path) -> None:
    made = create_table(str(tmp_path), "d.t", [("id", "INT"), ("v", "STRING")], options={"bucket": "-1"})
    write_arrow(made, pa.table({"id": pa.array(range(9), pa.int32()), "v": ["x"] * 9}))
    (file,) = (path for path in (tmp_path / "d.db" / "t").rglob("data-*.parquet"))
    content = file.read_bytes()
    file.unlink()
    with closing(Connection(str(tmp_path)).cursor()) as cursor:
        with pytest.raises(FormatError, match="data-"):
            cursor.execute("SELECT sum(id) FROM d.t").fetchall()
        file.write_bytes(content)
        assert cursor.execute("SELECT sum(id) FROM d.t").fetchall() == [(36,)]


def test_more_memory_than_allowed_and_settings_that_duckdb_refuses(orders: Table, tmp_path: Path) -> None:
    with (
        closing(Connection(str(tmp_path), memory_limit="10MB", threads=1).cursor()) as cursor,
        pytest.raises(UnsupportedError, match="raise memory_limit"),
    ):
        cursor.execute("SELECT list(repeat('x', 1000) || i) FROM range(1000000) r(i)").fetchall()
    with pytest.raises(InvalidInputError, match="memory_limit"):
        Connection(str(tmp_path), memory_limit="much").cursor()


def test_without_duckdb_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'airflow-paimon\[sql\]'"):
        Connection(str(tmp_path)).cursor()
    monkeypatch.setitem(sys.modules, "duckdb", type(sys)("duckdb"))
    monkeypatch.setattr(sys.modules["duckdb"], "__version__", "1.4.1", raising=False)
    with pytest.raises(UnsupportedError, match=r"2\.0, and here is 1\.4\.1"):
        Connection(str(tmp_path)).cursor()


def test_the_folder_for_what_memory_has_no_room_for_is_the_users_alone(
    orders: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    cursor = Connection(str(tmp_path), memory_limit="40MB", threads=1).cursor()
    rows = cursor.execute("SELECT i, random() AS r, repeat('x', 90) AS x FROM range(1000000) t(i) ORDER BY r")
    rows.fetchone()
    [folder] = (tmp_path / "temporary").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert any(folder.iterdir())  # it was needed
    cursor.close()
    assert not folder.exists()
