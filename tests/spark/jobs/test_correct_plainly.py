"""Statements in plain Python against the same statements in Spark: rows, commits and results."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.correction.plain_merge import read_plain_merge
from airflow_paimon.core.correction.plain_query import read_plain_query
from airflow_paimon.core.correction.plain_statement import PlainStatement, read_plain
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.requests.plain import Here
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.properties import OLDER_FILES_PROPERTY
from airflow_paimon.core.table.scan import live_entries, read_index
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.data.memory_plan import OPEN_BYTES
from airflow_paimon.data.where_text import to_expression
from airflow_paimon.spark.arrow_frames import collect_arrow, frame_of_arrow
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from airflow_paimon.spark.spark_types import spark_schema
from airflow_paimon.spark.statements.plain import NotPlainError, computed
from tests.randomness import chance
from tests.spark.jobs.operations import correct, run, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    ("k", "INT NOT NULL"), ("n", "INT"), ("b", "BIGINT"), ("s", "STRING"), ("p", "DECIMAL(6, 2)"), ("d", "DATE"),
    ("x", "DOUBLE"), ("f", "BOOLEAN"), ("dt", "STRING NOT NULL"),
)  # fmt: skip
CARRIED = (
    ("t", "TIMESTAMP(3)"), ("z", "TIMESTAMP_LTZ(6)"), ("o", "TIME(3)"), ("y", "BYTES"), ("m", "MAP<STRING, INT>"),
    ("r", "ROW<a INT, b ARRAY<STRING>>"), ("c", "CHAR(3)"), ("w", "FLOAT"),
)  # fmt: skip
KINDS = {
    "keyed": {"bucket": "2"},
    "dynamic": {"bucket": "-1", "dynamic-bucket.target-row-num": "5"},
    "vectors": {"bucket": "2", "deletion-vectors.enabled": "true"},
    "partial": {"bucket": "1", "merge-engine": "partial-update"},
    "append": {"bucket": "-1"},
    "tracked": {"bucket": "-1", "row-tracking.enabled": "true"},
    "marked": {"bucket": "-1", "deletion-vectors.enabled": "true"},
}
KEYED = ("keyed", "dynamic", "vectors", "partial")
DATES = ("2026-01-01", "2026-02-28", "2026-03-01")


class Speaker:
    """Makes statements that plain Python reads."""

    def __init__(self, own: random.Random) -> None:
        self.own = own

    def literal(self, name: str) -> str:
        one, number = self.own.choice, self.own.randint(-3, 12)
        return {
            "k": str(number), "n": str(number), "b": one([str(number), "4000000000"]),
            "s": one(["'a'", "'ä'", "'B'", "''", "'a '", "'zz'"]), "p": one([str(number), "1.5", "-2.25", "9999.99"]),
            "d": f"DATE '{one(DATES)}'", "x": one([str(number), "0.1", "-2.5"]), "f": one(["true", "FALSE"]),
            "dt": one(["'p'", "'q'"]),
        }[name]  # fmt: skip

    def condition(self, depth: int = 2) -> str:
        one = self.own.choice
        if depth and self.own.random() < 0.6:
            a, b = self.condition(depth - 1), self.condition(depth - 1)
            return one([f"{a} AND {b}", f"({a}) OR ({b})", f"NOT ({a})", f"NOT {a}", f"({a} OR {b})"])
        name = one(["k", "n", "b", "s", "p", "d", "f", "dt"])
        text = "`d`" if name == "d" and self.own.random() < 0.3 else name
        low, high = self.literal(name), self.literal(name)
        return one([
            f"{text} {one(['=', '<', '<=', '>', '>=', '<>', '!='])} {low}", f"{low} {one(['=', '<', '>='])} {text}",
            f"{text} IS NULL", f"{text} is not null", f"{text} IN ({low}, {high})", f"{text} NOT IN ({low}, {high})",
            f"{text} BETWEEN {low} AND {high}", f"{text} NOT BETWEEN {low} AND {high}",
        ])  # fmt: skip

    def value(self, name: str) -> str:
        one = self.own.choice
        if name not in ("x", "dt") and self.own.random() < 0.3:
            last = one(["", f" ELSE {name}", f" ELSE {self.literal(name)}"])
            other = one([self.literal(name), name])
            return f"CASE WHEN {self.condition(1)} THEN {other} WHEN k = 3 THEN NULL{last} END"
        if name in ("n", "b"):
            other = self.literal(name)
            return one([other, "NULL", f"{name} + {other}", f"({name} - 1) * {other}", f"2 * {name} - {name}"])
        return one([self.literal(name), *(["NULL"] if name != "dt" else []), *(["dt"] if name == "s" else [])])

    def query(self, kind: str) -> str:
        """A SELECT of all columns, some of them computed; of a partition or, of one with keys, of any rows."""
        changed = set(self.own.sample(["n", "b", "s", "p", "d", "f"], 3))
        items = [f"{self.value(n)} AS {n}" if n in changed else n for n, _ in (*COLUMNS, *CARRIED)]
        self.own.shuffle(items)
        what = self.own.choice(["*", ", ".join(items), ", ".join(items)])
        where = (
            f"dt = 'p' AND ({self.condition(1)})" if kind not in KEYED or self.own.random() < 0.5 else self.condition(1)
        )
        return f"SELECT {what} FROM {self.own.choice(['branch', 'main'])} WHERE {where}"

    def merge(self, inserts: bool) -> str:
        """A MERGE of the view ``fixes``, which has each pair of ``k`` and ``dt`` once, or of VALUES."""
        one = self.own.choice
        if self.own.random() < 0.4:
            rows = ", ".join(f"({k}, {self.literal('dt')}, {one(['NULL', '3'])}, {self.literal('p')}, {k})"
                             for k in self.own.sample(range(14), 4))  # fmt: skip
            return (
                f"MERGE INTO branch USING ({one(['', 'SELECT * FROM '])}VALUES {rows} AS v(k, day, n, p, big)) AS new "
                "ON (branch.k = new.k AND day = dt) WHEN MATCHED AND new.n IS NULL THEN DELETE "
                "WHEN MATCHED THEN UPDATE SET n = new.n * 2, p = new.p, b = big"
            )
        alone = one(["", " AND old.p BETWEEN -1 AND 2", f" AND old.dt IN ('p') AND new.f {one(['= true', 'IS NULL'])}"])
        first = one(["new.n > 3", "old.n IS NULL OR new.b = 1", "new.s IN ('a', 'B') AND old.k > 2"])
        then = one(["DELETE", "UPDATE SET old.n = new.n + 1, s = CASE WHEN new.f = true THEN new.s ELSE old.s END",
                    "UPDATE SET b = old.b * 2, d = new.d, f = NULL", "UPDATE SET p = new.p, s = v"])  # fmt: skip
        last = one(["", " WHEN MATCHED THEN DELETE", " WHEN MATCHED THEN UPDATE SET n = new.n, old.b = 7"])
        text = (f"MERGE INTO branch old USING fixes AS new ON new.k = old.k AND old.dt = new.dt{alone} "
                f"WHEN MATCHED AND {first} THEN {then}{last}")  # fmt: skip
        if inserts:
            text += " WHEN NOT MATCHED AND new.k = 17 AND new.dt = 'q' THEN INSERT (k, dt, n, s) VALUES "
            text += "(new.k, new.dt, new.n - 1, 'x')"
        return text

    def statement(self, inserts: bool, *more: str) -> str:
        kind = self.own.choice(["UPDATE", "UPDATE", "DELETE", "INSERT"] if inserts else ["UPDATE", "DELETE"])
        if kind == "DELETE":
            whole = self.own.random() < 0.2
            return f"DELETE FROM branch WHERE {'dt = ' + self.literal('dt') if whole else self.condition(1)}"
        if kind == "UPDATE":
            names = self.own.sample(["n", "b", "s", "p", "d", "x", "f", *more], 2)
            return f"UPDATE branch SET {', '.join(f'{n} = {self.value(n)}' for n in names)} WHERE {self.condition(1)}"
        keys = self.own.sample(range(30), 2)
        rows = [f"({k}, {', '.join(map(self.literal, ('n', 'b', 's', 'p', 'd', 'x', 'f', 'dt')))})" for k in keys]
        return f"INSERT INTO branch (k, n, b, s, p, d, x, f, dt) VALUES {', '.join(rows)}"


def some_rows(own: random.Random, count: int) -> list[dict[str, Any]]:
    def maybe(value: Any) -> Any:
        return None if own.random() < 0.2 else value

    return [
        {"k": k, "n": maybe(own.randint(-3, 12)), "b": maybe(own.choice([1, 4_000_000_000])),
         "s": maybe(own.choice(["a", "ä", "B", "", "a ", "zz"])), "p": maybe(Decimal(own.randint(-300, 300)) / 100),
         "d": maybe(date.fromisoformat(own.choice(DATES))), "x": maybe(own.choice([0.1, -0.0, float("nan")])),
         "f": maybe(own.random() < 0.5), "dt": own.choice("pq"), "t": maybe(datetime(2026, 1, 1, k % 24)),
         "z": maybe(datetime(2026, 1, 1, k % 24, tzinfo=UTC)), "o": maybe(time(k % 24)), "y": maybe(b"\0x"),
         "m": maybe([("a", k)]), "r": maybe({"a": None, "b": ["x", None]}), "c": maybe("ab "), "w": maybe(0.5)}
        for k in range(count)
    ]  # fmt: skip


def typed(rows: list[dict[str, Any]], table: Table) -> pa.Table:
    return pa.Table.from_pylist(rows, read_arrow(table).schema)


def make(warehouse: Path, kind: str, own: random.Random) -> Table:
    keys = ["dt", "k"] if kind in KEYED else []
    options = {"options": KINDS[kind], "partition_keys": ["dt"], "primary_keys": keys}
    table = create_table(str(warehouse), "d.t", (*COLUMNS, *CARRIED), **options)  # type: ignore[arg-type]
    for _ in range(2):
        write_arrow(table, typed(some_rows(own, 12), table))
    for branch in ("plain", "spark"):
        run(warehouse, "create_branch", branch=branch, snapshot=table.latest_snapshot_id())
    return table


FIXES = [c for c in COLUMNS if c[0] not in ("k", "dt", "x")] + [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]


def make_fixes(warehouse: Path, own: random.Random) -> str:
    """A table of rows that a MERGE brings, without NOT NULL; returns the view."""
    fixes = create_table(str(warehouse), "d.fixes", FIXES)
    rows = [{**row, "v": own.choice(["v", None]), "dt": dt} for dt in "pq" for row in some_rows(own, 20)]
    names = read_arrow(fixes).schema.names
    write_arrow(fixes, typed([{n: row[n] for n in names} for row in rows], fixes))
    return "fixes=d.fixes"


def plainly(warehouse: Path, sql: str, *, memory: int = 1 << 30, **more: Any) -> OperationResult | None:
    file = warehouse / "plain.sql"
    file.write_text(sql)
    request = build_request("correct_branch", values(warehouse, sql=str(file), **{"branch": "plain", **more}))
    return run_before_spark(request, Here(memory_bytes=memory))


def state(table: Table, tracked: bool) -> tuple[Any, ...]:
    head = table.latest_snapshot()
    assert head is not None
    columns = [*(name for name, _ in (*COLUMNS, *CARRIED)), *(["_ROW_ID", "_SEQUENCE_NUMBER"] if tracked else [])]
    rows = sorted(repr(tuple(r.values())) for r in read_arrow(table, columns=columns).to_pylist())
    entries = sorted(
        (e.partition, e.bucket, e.total_buckets, e.file.level, e.file.row_count, e.file.min_sequence_number,
         e.file.max_sequence_number, e.file.delete_row_count, e.file.first_row_id, e.file.min_key, e.file.max_key)
        for e in live_entries(table, head).values()
    )  # fmt: skip
    indexes = sorted((str(i.index_type), i.bucket, i.row_count) for i in read_index(table, head))
    counts = (head.total_record_count, head.delta_record_count, head.changelog_record_count, head.next_row_id)
    said = {k: v for k, v in head.properties.items() if "details" not in k and k != OLDER_FILES_PROPERTY}
    return rows, entries, indexes, head.id, head.commit_kind, head.operation, said, *counts


def told(result: OperationResult) -> dict[str, Any]:
    about = result.to_json()
    # Which files may be left out, Spark doesn't tell of each condition.
    left = ("bytes", "files_kept", "plan")
    details = {k: v for k, v in about["details"].items() if not k.startswith(left)}
    if "notes" in details:  # of a condition Spark may repeat a part only, NOT IN (1) of k NOT IN (1)
        details["notes"] = [note.partition(": no row has ")[0] for note in details["notes"]]
    for one in details.get("statements", ()):
        for name in ("notes", "files_kept", "bytes_kept"):
            one.pop(name, None)
    return {"changed": about["changed"], "after": about["snapshot_after"], **details}


@pytest.mark.part(few=2)
@pytest.mark.parametrize("kind", KINDS)
def test_statements_do_what_they_do_in_spark(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    own = chance(f"plain statements {kind}")
    table, view = make(tmp_path, kind, own), make_fixes(tmp_path, own)
    speaker, done = Speaker(own), 0
    inserts = kind != "dynamic"  # which bucket a new key gets depends on how many tasks there are
    moves = () if kind in KEYED else ("dt",)
    texts = [speaker.statement(inserts, *moves) for _ in range(2)]
    texts += [speaker.merge(inserts), f"{speaker.statement(False)}; {speaker.merge(False)}"]
    for sql in texts:
        here = plainly(tmp_path, sql, view=(view,))
        if here is None:  # an UPDATE that would overflow, or give a column null that can't be
            continue
        done += 1
        there = correct(spark, tmp_path, sql, branch="spark", view=(view,))
        assert told(here) == told(there), sql
        assert_same(table, kind, sql)
    assert done


@pytest.mark.part(few=3)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("dynamic", "marked")])
def test_queries_do_what_they_do_in_spark(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    own = chance(f"plain queries {kind}")
    table, speaker = make(tmp_path, kind, own), Speaker(own)
    modes: list[dict[str, Any]] = [{"partitions": ("dt=p",)}, {"mode": "upsert"} if kind in KEYED else {}]
    for asked in modes:
        sql = speaker.query(kind if asked.get("mode") else "overwrite")
        if not asked:
            sql, asked = sql.replace("dt = 'p' AND ", ""), {"partitions": ("dt=p", "dt=q")}
        here = plainly(tmp_path, sql, **asked)
        if here is None:  # a number beyond its type
            continue
        there = correct(spark, tmp_path, sql, branch="spark", **asked)
        assert told(here) == told(there), sql
        assert_same(table, kind, sql)


def assert_same(table: Table, kind: str, sql: str) -> None:
    tracked = kind == "tracked"
    assert state(table.branch("plain"), tracked) == state(table.branch("spark"), tracked), sql


def test_conditions_and_values_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    own = chance("plain conditions")
    table = create_table(str(tmp_path), "d.t", COLUMNS)
    schema, rows = table.schema(), typed(some_rows(own, 40), table)
    speaker = Speaker(own)
    conditions = [speaker.condition(3) for _ in range(60)]
    (batch,) = rows.to_batches()
    values: list[tuple[str, str, pa.Array]] = []
    for name in ("n", "b", "s", "p", "d", "f") * 10:
        value, others = speaker.value(name), ", ".join(n for n, _ in COLUMNS if n != name)
        query = read_plain_query(f"SELECT {others}, {value} AS {name} FROM main", schema, {"main": schema.fields})
        assert query is not None, value
        with suppress(NotPlainError):  # a number beyond its type, which would end the query in Spark
            values.append((name, value, computed(query.values[name], batch, schema.field(name), schema)))
    frame = frame_of_arrow(spark, rows, spark_schema(schema.fields))
    asked = [f"coalesce({c}, false) AS c{i}" for i, c in enumerate(conditions)]
    asked += [f"CAST({v} AS {dict(COLUMNS)[n]}) AS v{i}" for i, (n, v, _) in enumerate(values)]
    found = collect_arrow(frame.selectExpr(*asked))
    for i, (_, value, column) in enumerate(values):
        assert column.to_pylist() == found.column(f"v{i}").to_pylist(), value
    for i, condition in enumerate(conditions):
        plain = read_plain(f"DELETE FROM branch WHERE {condition}", schema)
        assert plain is not None and plain.condition is not None, condition
        expected = [k for k, selected in enumerate(found.column(i).to_pylist()) if selected]
        selected = rows.filter(to_expression(plain.condition, schema)).column("k").to_pylist()
        assert selected == expected, condition


def test_a_table_of_which_no_row_is_left_is_changed_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("m", "MAP<STRING, INT>")], primary_keys=["k"])
    rows = pa.table({"k": pa.array([1], pa.int32()), "m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))})
    write_arrow(table, rows)
    write_arrow(table, rows.append_column("_row_kind", pa.array(["-D"])))
    run(tmp_path, "create_branch", branch="spark", snapshot=2)
    sql = "UPDATE branch SET m = map('b', 2) WHERE k = 1"
    assert correct(spark, tmp_path, sql, branch="spark").details["rows"] == 0


@pytest.mark.parametrize("kind", ["keyed", "marked"])
def test_digits_after_microseconds_are_kept_without_spark(tmp_path: Path, kind: str) -> None:
    columns = [("k", "INT NOT NULL"), ("v", "STRING"), ("t", "TIMESTAMP(9)"), ("r", "ROW<t TIMESTAMP(9)>")]
    keys = ["k"] if kind in KEYED else []
    table = create_table(str(tmp_path), "d.t", columns, primary_keys=keys, options=KINDS[kind])
    nanos = 1_700_000_000_123_456_789
    write_arrow(table, typed([{"k": k, "v": "a", "t": nanos + k, "r": {"t": nanos}} for k in range(3)], table))
    run(tmp_path, "create_branch", branch="plain", snapshot=1)
    before = read_arrow(table).sort_by("k")
    merge = "MERGE INTO branch USING main m ON branch.k = m.k AND m.k = 2 WHEN MATCHED THEN UPDATE SET v = 'm'"
    for sql in ("UPDATE branch SET v = 'x' WHERE k = 0", "DELETE FROM branch WHERE k = 1", merge):
        found = plainly(tmp_path, sql)
        assert found is not None and found.details["rows"] == 1
    after = read_arrow(table.branch("plain")).sort_by("k")
    assert after["v"].to_pylist() == ["x", "m"]
    assert after.select(["t", "r"]).equals(before.take([0, 2]).select(["t", "r"]))


NOT_PLAIN = (
    "UPDATE branch SET n = 1.0 WHERE k = 1", "UPDATE branch SET n = 2147483648", "UPDATE branch SET k = NULL",
    "UPDATE branch SET p = 1.234", "UPDATE branch SET p = 12345", "UPDATE branch SET d = '2026-01-01'",
    "UPDATE branch SET n = b", "UPDATE branch SET n = 2 * 3", "UPDATE branch SET n = n / 2", "UPDATE branch SET n = -n",
    "UPDATE branch SET s = upper(s)", "UPDATE branch SET s = 5", 'UPDATE branch SET s = "a"',
    "UPDATE branch SET s = 'it''s'", r"UPDATE branch SET s = 'a\n'", "UPDATE branch SET s = '${x}'",
    "UPDATE branch SET n = n + NULL", "UPDATE branch SET n = 1, n = 2",
    "UPDATE branch SET N = 1", "UPDATE other SET n = 1", "UPDATE d.branch SET n = 1", "UPDATE branch SET s = n'x'",
    "DELETE FROM branch WHERE x = 1", "DELETE FROM branch WHERE s = 1", "DELETE FROM branch WHERE n = '1'",
    "DELETE FROM branch WHERE n = 1_0", "DELETE FROM branch WHERE n = 1L", "DELETE FROM branch WHERE n = 1e1",
    "DELETE FROM branch WHERE s = DATE '2026-01-01'", "DELETE FROM branch WHERE d = '2026-1-1'",
    "DELETE FROM branch WHERE d = '20260101'", "DELETE FROM branch WHERE f", "DELETE FROM branch WHERE n IN (1, NULL)",
    "DELETE FROM branch WHERE n = k", "DELETE FROM branch WHERE k IN (SELECT 1)",
    "DELETE FROM branch WHERE current_date = d",
    "DELETE FROM branch WHERE n <=> 1", "DELETE FROM branch WHERE n == 1", "DELETE FROM branch WHERE s LIKE 'a'",
    "DELETE FROM branch t WHERE branch.k = 1", "UPDATE branch s SET s.n = 1", "DELETE FROM branch WHERE n = 1 LIMIT 1",
    "INSERT INTO branch SELECT 1", "INSERT INTO branch (n) VALUES (1)", "INSERT INTO branch (k, dt) VALUES (1, 'p', 2)",
    "INSERT OVERWRITE branch VALUES (1)", "INSERT INTO branch (k, dt) VALUES (1, 'p') AS t",
    "DELETE FROM branch WHERE n = 1 /* AND k = 2", "DELETE FROM branch WHERE n = 1 /* a /* b */ AND k = 2",
    "DELETE FROM branch WHERE n < > 1", "DELETE FROM branch WHERE n ! = 1", "DELETE FROM branch WHERE n >/**/= 1",
    "DELETE /*+ x */ FROM branch", "MERGE INTO branch USING main ON true WHEN MATCHED THEN DELETE", "SELECT 1", "",
)  # fmt: skip


@pytest.mark.parametrize("sql", NOT_PLAIN)
def test_what_only_spark_can_say_is_left_to_spark(tmp_path: Path, sql: str) -> None:
    assert read_plain(sql, create_table(str(tmp_path), "d.t", COLUMNS).schema()) is None


NO_QUERY = (
    "SELECT k, n FROM branch", "SELECT *, 1 AS n FROM branch", "SELECT DISTINCT * FROM branch", "SELECT * FROM other",
    "SELECT * FROM branch, main", "SELECT * FROM branch JOIN main", "SELECT * FROM branch LIMIT 1",
    "SELECT * FROM branch ORDER BY k", "SELECT * FROM branch WHERE k IN (SELECT 1)", "SELECT * FROM d.branch",
    "SELECT * FROM (SELECT * FROM branch)", "SELECT * FROM branch UNION SELECT * FROM main", "SELECT *", "SELECT",
    "SELECT * FROM branch cross", "SELECT * FROM branch limit", "SELECT * FROM less", "WITH x AS (SELECT 1) SELECT 1",
    "VALUES (1)", "FROM branch", "SELECT branch.* FROM branch", "SELECT * EXCEPT (n) FROM branch",
)  # fmt: skip
NO_ITEM = (
    "1.5 AS x", "1 AS x", "n AS x", "upper(s) AS x", "x + 1 AS x", "x x", "x AS x, x", "x AS X", "(x) AS x", "t.x",
    "CASE WHEN k = 1 THEN x END AS x", "CASE k WHEN 1 THEN x END AS x", "CASE x END AS x", "k AS k, x AS x",
    "max(x) OVER () AS x",
)  # fmt: skip
NO_MERGE = (
    "ON old.k = new.k", "ON old.k = new.k WHEN MATCHED THEN DELETE WHEN MATCHED THEN DELETE", "ON old.k > new.k {d}",
    "ON old.k = new.n OR old.n = new.n {d}", "ON old.k = 1 {d}", "ON k = new.k {d}",
    "ON old.b = new.k {d}", "ON old.x = new.x {d}",
    "ON old.k = new.k AND (old.k = 1 OR new.k = 2) {d}", "ON old.k = old.n {d}",
    "ON old.k = new.k WHEN NOT MATCHED BY SOURCE THEN DELETE",
    "ON old.k = new.k WHEN MATCHED THEN UPDATE SET n = n + 1",
    "ON old.k = new.k WHEN MATCHED THEN UPDATE SET new.n = 1",
    "ON old.k = new.k WHEN NOT MATCHED THEN INSERT (k, dt) VALUES (old.k, 'p')",
    "ON old.k = new.k {d} WHEN MATCHED THEN DELETE",
    "ON old.k = new.k WHEN NOT MATCHED THEN INSERT (k) VALUES (new.k)", "ON old.k = new.k WHEN NOT MATCHED THEN DELETE",
    "ON old.k = new.k WHEN NOT MATCHED THEN INSERT (k, dt) VALUES (new.k, 'p', 1)",
    "ON old.k = new.k WHEN NOT MATCHED AND old.n = 1 THEN INSERT *", "ON old.k = new.k WHEN MATCHED THEN INSERT *",
)  # fmt: skip


def test_queries_and_merges_that_only_spark_knows(tmp_path: Path) -> None:
    schema = create_table(str(tmp_path), "d.t", COLUMNS).schema()
    views = {"branch": schema.fields, "main": schema.fields, "less": schema.fields[1:]}
    names = ", ".join(n for n, _ in COLUMNS if n != "x")
    for sql in (*NO_QUERY, *(f"SELECT {names}, {item} FROM branch" for item in NO_ITEM)):
        assert read_plain_query(sql, schema, views) is None, sql
    for sql in ("select * from Branch c where c.k = 1 -- why", f"SELECT {names}, NULL AS x FROM main"):
        assert read_plain_query(sql, schema, views) is not None, sql
    for on in (f"{on.replace('{d}', 'WHEN MATCHED THEN DELETE')}" for on in NO_MERGE):
        assert read_plain_merge(f"MERGE INTO branch old USING main new {on}", schema, views) is None, on
    for named in ("branch n USING main m ON n.k = m.k", "branch b USING main m ON b.k = m.k"):
        assert read_plain_merge(f"MERGE INTO {named} WHEN MATCHED THEN DELETE", schema, views) is None, (
            "a column's name"
        )
    found = read_plain_merge(
        "merge into branch using main on branch.k = main.k and `branch`.dt = main.dt and main.n = 1 "
        "when matched then update set * when not matched by target then insert *", schema, views)  # fmt: skip
    assert found is not None and found.equal == (("k", "k"), ("dt", "dt")) and len(found.source_columns) == len(COLUMNS)
    assert found.condition_text == "branch.k = main.k and `branch`.dt = main.dt and main.n = 1"
    assert read_plain_merge("MERGE INTO branch USING branch s ON branch.k = s.k WHEN MATCHED THEN DELETE", schema,
                            {"main": schema.fields}) is None  # fmt: skip


def test_lists_of_decimals_that_spark_rounds_are_left_to_spark(tmp_path: Path) -> None:
    """Spark gives a list one type: of DECIMAL(38, 30) and an INT it is DECIMAL(38, 28)."""
    schema = create_table(str(tmp_path), "d.t", [("p", "DECIMAL(38, 30)"), ("q", "DECIMAL(38, 18)")]).schema()
    for taken in ("DELETE FROM branch WHERE p = 1 AND q IN (1, 2.5)", "INSERT INTO branch (p) VALUES (1)",
                  "INSERT INTO branch (q) VALUES (1), (0.000000000000000001)"):  # fmt: skip
        assert read_plain(taken, schema) is not None
    for left in ("p IN (1)", "p NOT IN (1, 2)", "p IN (0.5)"):
        assert read_plain(f"DELETE FROM branch WHERE {left}", schema) is None
    assert read_plain("INSERT INTO branch (p) VALUES (1), (0.000000000000000000000000000001)", schema) is None


def test_names_and_columns(tmp_path: Path) -> None:
    schema = create_table(str(tmp_path), "d.t", (*COLUMNS, ("date", "DATE"), ("a b", "INT"))).schema()

    def read(sql: str) -> PlainStatement:
        found = read_plain(sql, schema)
        assert found is not None, sql
        return found

    assert read("update `branch` AS t set t.n = 1, `a b` = 2 where t.k = 1").alias == "t"
    assert read("delete from branch where `date` = date '2026-01-01'").condition is not None
    assert read_plain("delete from branch where date = date '2026-01-01'", schema) is None
    found = read("INSERT INTO TABLE branch (dt, k) VALUES ('p', 1), ('q', -2) -- why")
    assert (found.columns, len(found.rows), found.rows[1][0], found.rows[1][-3]) == (("dt", "k"), 2, -2, "q")
    assert read("DELETE FROM branch -- where\n WHERE  k =\n 1").condition_text == "k =\n 1"


def test_a_statement_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    own = chance("plain limits")
    for kind in ("keyed", "append"):
        warehouse = tmp_path / kind
        warehouse.mkdir()
        table = make(warehouse, kind, own).branch("plain")
        before = table.latest_snapshot_id()
        write_arrow(table, typed(some_rows(own, 3), table))
        head = table.latest_snapshot_id()
        assert plainly(warehouse, "DELETE FROM branch WHERE k > 0", memory=OPEN_BYTES) is None
        assert plainly(warehouse, "UPDATE branch SET n = 2147483647 - n + 100 WHERE k >= 0", operation_id="o") is None
        assert plainly(warehouse, "DELETE FROM branch WHERE k = 1", memory=0) is None
        assert plainly(warehouse, "DELETE FROM branch") is None, "refused by Spark's job, with the flag for it"
        assert plainly(warehouse, "UPDATE branch SET dt = s WHERE k >= 0") is None, "of rows with null"
        twice = "MERGE INTO branch t USING main s ON t.dt = s.dt WHEN MATCHED THEN UPDATE SET n = 1"
        assert plainly(warehouse, twice) is None, "refused by Spark's job: rows match twice"
        select = "SELECT * FROM branch WHERE k > 0"
        assert plainly(warehouse, select, partitions=("dt=p", "dt=q"), memory=OPEN_BYTES) is None
        assert table.latest_snapshot_id() == head != before
        done = plainly(warehouse, "DELETE FROM branch WHERE k = 1", operation_id="o")
        assert done is not None, "the id of what was not done may be used again"
        again = plainly(warehouse, "DELETE FROM branch WHERE k = 1", operation_id="o")
        assert again is not None and again.details["replayed"] and again.snapshot_after == done.snapshot_after
        with pytest.raises(InvalidInputError, match="k"):
            plainly(warehouse, "INSERT INTO branch (kk) VALUES (1)")


def test_a_dry_run_writes_nothing_and_a_retry_in_spark_finds_what_landed(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path, "keyed", chance("plain retries"))
    dry = plainly(tmp_path, "UPDATE branch SET n = 7 WHERE dt = 'p'", dry_run=True)
    assert dry is not None and dry.changed and dry.details["rows_updated"] > 0
    assert table.branch("plain").latest_snapshot_id() == table.latest_snapshot_id()
    sql = "UPDATE branch SET n = 7 WHERE dt = 'p'"
    done = plainly(tmp_path, sql, operation_id="one")
    assert done is not None and done.changed
    again = correct(spark, tmp_path, sql, branch="plain", operation_id="one")
    assert again.details["replayed"] and again.snapshot_after == done.snapshot_after


def test_a_try_in_spark_finds_what_the_one_before_has_written(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path, "append", chance("plain tries"))
    texts: tuple[tuple[str, dict[str, Any]], ...] = (
        ("UPDATE branch SET n = 7 -- why\n WHERE k > 1", {}),
        ("/* both */ UPDATE branch SET n = 8 WHERE k > 1;\nDELETE FROM branch -- these\nWHERE k > 3", {}),
        ("MERGE INTO branch USING (VALUES (1) AS w(k)) AS v ON v.k = branch.k WHEN MATCHED THEN UPDATE SET n = 9", {}),
        ("SELECT * -- all\nFROM branch WHERE dt = 'p'", {"partitions": ("dt=p",)}),
    )
    for number, (sql, more) in enumerate(texts):
        here = plainly(tmp_path, sql, operation_id=f"op-{number}", **more)
        assert here is not None and here.changed
        there = correct(spark, tmp_path, sql, branch="plain", operation_id=f"op-{number}", **more)
        assert there.to_json()["details"]["replayed"] and there.snapshot_after == here.snapshot_after
    assert read_arrow(table.branch("plain")).num_rows == 8


def test_rows_that_match_many_others_are_not_paired_one_by_one(tmp_path: Path) -> None:
    count = 2000
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("s", "STRING")])
    write_arrow(table, pa.table({"k": pa.array(range(count), pa.int32()), "s": ["x"] * (count - 1) + [None]}))
    run(tmp_path, "create_branch", branch="plain", snapshot=1)
    sql = ("MERGE INTO branch USING main ON branch.s = main.s AND branch.k > 5 AND main.k < 1900 WHEN MATCHED THEN "
           "DELETE WHEN NOT MATCHED AND main.k > 1997 THEN INSERT *")  # fmt: skip
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    try:
        found = plainly(tmp_path, sql)
    finally:
        pa.set_memory_pool(usual)
    assert found is not None and found.details["rows_deleted"] == count - 7
    assert counted.max_memory() < count * count  # of bytes, for four million pairs
    left = sorted(read_arrow(table.branch("plain")).column("k").to_pylist())
    assert left == [*range(6), 1998, 1999, 1999]


def test_a_row_that_moved_before_by_a_deletion_vector_is_no_hindrance_to_its_partition(tmp_path: Path) -> None:
    options = {"row-tracking.enabled": "true", "deletion-vectors.enabled": "true"}
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("dt", "STRING")], partition_keys=["dt"], options=options)
    write_arrow(table, pa.table({"k": pa.array(range(6), pa.int32()), "dt": ["p"] * 3 + ["q"] * 3}))
    for name, moved in (("plain", True), ("later", False)):
        run(tmp_path, "create_branch", branch=name, snapshot=table.latest_snapshot_id())
        if moved:
            assert plainly(tmp_path, "UPDATE branch SET dt = 'q' WHERE k = 2") is not None
            run(tmp_path, "merge_branch", branch=name)
    for sql in ("UPDATE branch SET k = 20 WHERE k = 2", "UPDATE branch SET k = 10 WHERE k = 1"):
        assert plainly(tmp_path, sql, branch="later") is not None
    assert run(tmp_path, "merge_branch", branch="later", partitions=("dt=q",)).changed
    rows = read_arrow(table, columns=["k", "dt", "_ROW_ID"]).to_pylist()
    assert sorted(tuple(r.values()) for r in rows) == [
        (0, "p", 0), (1, "p", 1), (3, "q", 3), (4, "q", 4), (5, "q", 5), (20, "q", 2),
    ]  # fmt: skip
    assert run(tmp_path, "check_table", verify_files=True).details["ok"]


def test_a_view_of_the_branch_itself_is_left_to_spark(tmp_path: Path) -> None:
    """It shows what the statements before it did, and the state of each try."""
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("n", "INT")])
    write_arrow(table, pa.table({"k": pa.array([1], pa.int32()), "n": pa.array([1], pa.int32())}))
    run(tmp_path, "create_branch", branch="plain", snapshot=1)
    merge = "MERGE INTO branch b USING Me ON b.k = me.k WHEN MATCHED THEN UPDATE SET n = Me.n + 1"
    for text, is_own in (("d.t$branch_plain", True), ("d.t$branch_plain@1", False), ("d.t", False)):
        for sql in (merge, f"UPDATE branch SET n = 5 WHERE k = 1;{merge}"):
            found = plainly(tmp_path, sql.replace("me.k", "Me.k"), view=(f"Me={text}",))
            assert (found is None) == is_own, sql
    assert read_arrow(table.branch("plain")).to_pylist() == [{"k": 1, "n": 2}]
