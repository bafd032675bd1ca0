"""Statements in plain Python against the same statements in Spark: rows, commits and results."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.correction.plain_statement import PlainStatement, read_plain
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.requests.plain import Here
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.scan import live_entries, read_index
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.data.memory_plan import OPEN_BYTES
from airflow_paimon.data.where_text import to_expression
from airflow_paimon.spark.arrow_frames import collect_arrow, frame_of_arrow
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from airflow_paimon.spark.spark_types import spark_schema
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
        if name in ("n", "b"):
            other = self.literal(name)
            return one([other, "NULL", f"{name} + {other}", f"({name} - 1) * {other}", f"2 * {name} - {name}"])
        return one([self.literal(name), *(["NULL"] if name != "dt" else []), *(["dt"] if name == "s" else [])])

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
    said = {k: v for k, v in head.properties.items() if "details" not in k}
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


@pytest.mark.parametrize("kind", KINDS)
def test_statements_do_what_they_do_in_spark(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    own = chance(f"plain statements {kind}")
    table = make(tmp_path, kind, own)
    speaker, done = Speaker(own), 0
    inserts = kind != "dynamic"  # which bucket a new key gets depends on how many tasks there are
    moves = () if kind in KEYED else ("dt",)
    texts = [speaker.statement(inserts, *moves) for _ in range(3)]
    texts.append("; ".join(speaker.statement(False) for _ in range(2)))
    for sql in texts:
        here = plainly(tmp_path, sql)
        if here is None:  # an UPDATE that would overflow, or give a column null that can't be
            continue
        done += 1
        there = correct(spark, tmp_path, sql, branch="spark")
        assert told(here) == told(there), sql
        tracked = kind == "tracked"
        assert state(table.branch("plain"), tracked) == state(table.branch("spark"), tracked), sql
    assert done


def test_conditions_and_values_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    own = chance("plain conditions")
    table = create_table(str(tmp_path), "d.t", COLUMNS)
    schema, rows = table.schema(), typed(some_rows(own, 40), table)
    speaker = Speaker(own)
    conditions = [speaker.condition(3) for _ in range(60)]
    frame = frame_of_arrow(spark, rows, spark_schema(schema.fields))
    found = collect_arrow(frame.selectExpr(*(f"coalesce({c}, false) AS c{i}" for i, c in enumerate(conditions))))
    for i, condition in enumerate(conditions):
        plain = read_plain(f"DELETE FROM branch WHERE {condition}", schema)
        assert plain is not None and plain.condition is not None, condition
        expected = [k for k, selected in enumerate(found.column(i).to_pylist()) if selected]
        selected = rows.filter(to_expression(plain.condition, schema)).column("k").to_pylist()
        assert selected == expected, condition


NOT_PLAIN = (
    "UPDATE branch SET n = 1.0 WHERE k = 1", "UPDATE branch SET n = 2147483648", "UPDATE branch SET k = NULL",
    "UPDATE branch SET p = 1.234", "UPDATE branch SET p = 12345", "UPDATE branch SET d = '2026-01-01'",
    "UPDATE branch SET n = b", "UPDATE branch SET n = 2 * 3", "UPDATE branch SET n = n / 2", "UPDATE branch SET n = -n",
    "UPDATE branch SET s = upper(s)", "UPDATE branch SET s = 5", 'UPDATE branch SET s = "a"',
    "UPDATE branch SET s = 'it''s'", r"UPDATE branch SET s = 'a\n'", "UPDATE branch SET s = '${x}'",
    "UPDATE branch SET dt = s", "UPDATE branch SET n = n + NULL", "UPDATE branch SET n = 1, n = 2",
    "UPDATE branch SET N = 1", "UPDATE other SET n = 1", "UPDATE d.branch SET n = 1", "UPDATE branch SET s = n'x'",
    "DELETE FROM branch WHERE x = 1", "DELETE FROM branch WHERE s = 1", "DELETE FROM branch WHERE n = '1'",
    "DELETE FROM branch WHERE n = 1_0", "DELETE FROM branch WHERE n = 1L", "DELETE FROM branch WHERE n = 1e1",
    "DELETE FROM branch WHERE s = DATE '2026-01-01'", "DELETE FROM branch WHERE d = '2026-1-1'",
    "DELETE FROM branch WHERE d = '20260101'", "DELETE FROM branch WHERE f", "DELETE FROM branch WHERE n IN (1, NULL)",
    "DELETE FROM branch WHERE n = k", "DELETE FROM branch WHERE k IN (SELECT 1)",
    "DELETE FROM branch WHERE current_date = d",
    "DELETE FROM branch WHERE n <=> 1", "DELETE FROM branch WHERE n == 1", "DELETE FROM branch WHERE s LIKE 'a'",
    "DELETE FROM branch t WHERE branch.k = 1", "DELETE FROM branch WHERE n = 1 LIMIT 1",
    "INSERT INTO branch SELECT 1", "INSERT INTO branch (n) VALUES (1)", "INSERT INTO branch (k, dt) VALUES (1, 'p', 2)",
    "INSERT OVERWRITE branch VALUES (1)", "INSERT INTO branch (k, dt) VALUES (1, 'p') AS t",
    "DELETE FROM branch WHERE n = 1 /* AND k = 2", "DELETE FROM branch WHERE n = 1 /* a /* b */ AND k = 2",
    "DELETE FROM branch WHERE n < > 1", "DELETE FROM branch WHERE n ! = 1", "DELETE FROM branch WHERE n >/**/= 1",
    "DELETE /*+ x */ FROM branch", "MERGE INTO branch USING main ON true WHEN MATCHED THEN DELETE", "SELECT 1", "",
)  # fmt: skip


@pytest.mark.parametrize("sql", NOT_PLAIN)
def test_what_only_spark_can_say_is_left_to_spark(tmp_path: Path, sql: str) -> None:
    assert read_plain(sql, create_table(str(tmp_path), "d.t", COLUMNS).schema()) is None


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
    texts = (
        "UPDATE branch SET n = 7 -- why\n WHERE k > 1",
        "/* both */ UPDATE branch SET n = 8 WHERE k > 1;\nDELETE FROM branch -- these\nWHERE k > 3",
    )
    for number, sql in enumerate(texts):
        here = plainly(tmp_path, sql, operation_id=f"op-{number}")
        assert here is not None and here.changed
        there = correct(spark, tmp_path, sql, branch="plain", operation_id=f"op-{number}")
        assert there.to_json()["details"]["replayed"] and there.snapshot_after == here.snapshot_after
    assert read_arrow(table.branch("plain")).num_rows == 8
