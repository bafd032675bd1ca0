"""Random statements on tables of each kind against SQLite, which evaluates the same conditions and values."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.spark import sql
from airflow_paimon.spark.statements import materialized_source, target_files
from tests.randomness import chance, lives
from tests.spark.jobs.operations import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATEMENTS = lives(6, 12)
MERGES = lives(3, 6)
COLUMNS = ("k", "n", "s", "dt")
Rows = list[tuple[Any, ...]]


class Speaker:
    """Makes expressions that mean the same in Spark and SQLite."""

    def __init__(self, chance: random.Random, *names: str) -> None:
        self._chance = chance
        self._names = names

    def number(self, depth: int = 2) -> str:
        one = self._chance.choice
        name = one(self._names)
        plain = [f"{name}.k", f"{name}.n", str(self._chance.randint(0, 9)), "CAST(NULL AS INT)"]
        if not depth:
            return one(plain)
        a, b = self.number(depth - 1), self.number(depth - 1)
        more = [f"({a} + {b})", f"({a} - {b})", f"coalesce({a}, {b})"]
        more += [f"CASE WHEN {self.condition(depth - 1)} THEN {a} ELSE {b} END"]
        return one([*plain, *more])

    def text(self) -> str:
        one = self._chance.choice
        name = one(self._names)
        return one([f"{name}.s", "'x'", f"({name}.s || 'y')", f"coalesce({name}.s, {name}.dt)", "CAST(NULL AS STRING)"])

    def condition(self, depth: int = 2) -> str:
        one = self._chance.choice
        a, b = self.number(0), self.number(max(depth - 1, 0))
        plain = [f"{a} {one(['=', '<', '>=', '<>'])} {b}", f"{a} IS NULL", f"{a} BETWEEN 2 AND {b}", f"{a} IN (1, {b})"]
        plain += [f"{self.text()} = {self.text()}", f"{one(self._names)}.dt = '{one('pq')}'"]
        if not depth:
            return one(plain)
        c, d = self.condition(depth - 1), self.condition(depth - 1)
        return one([*plain, f"({c} AND {d})", f"({c} OR {d})", f"NOT ({c})"])


class Life:
    """One table, and what SQLite says that it holds."""

    def __init__(self, spark: SparkSession, warehouse: Path, kind: str, chance: random.Random) -> None:
        self._spark = spark
        self._warehouse = str(warehouse)
        self._chance = chance
        self._keyed = kind == "keyed"
        options = {
            "keyed": {"bucket": "2"},
            "tracked": {"row-tracking.enabled": "true"},
            "buckets": {"bucket": "3", "bucket-key": "k"},
            "vectors": {"deletion-vectors.enabled": "true", "row-tracking.enabled": "true"},
        }
        self.table = create_table(
            self._warehouse,
            "d.t",
            [("k", "INT NOT NULL"), ("n", "INT"), ("s", "STRING"), ("dt", "STRING NOT NULL")],
            partition_keys=["dt"],
            primary_keys=["dt", "k"] if self._keyed else [],
            options=options[kind],
        )
        self._db = sqlite3.connect(":memory:")
        for name in ("t", "src"):
            self._db.execute(f"CREATE TABLE {name} (k INT, n INT, s TEXT, dt TEXT)")
        for _ in range(2):
            rows = [row for row in self._rows(12) if not self._has(row)]
            write_arrow(self.table, _arrow(self.table, rows))
            self._db.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)

    def step(self) -> None:
        how = self._chance.choice([self._update, self._delete, self._merge, self._merge])
        how()
        assert _sorted(tuple(r.values()) for r in read_arrow(self.table).to_pylist()) == self.expected()

    def merge(self) -> None:
        self._merge()
        assert _sorted(tuple(r.values()) for r in read_arrow(self.table).to_pylist()) == self.expected()

    def expected(self) -> Rows:
        return _sorted(self._db.execute("SELECT k, n, s, dt FROM t"))

    def _rows(self, count: int) -> Rows:
        one, rows = self._chance.choice, {}
        for _ in range(count):
            k, dt = self._chance.randint(0, 15), one("pq")
            rows[k, dt] = (k, one([None, *range(10)]), one([None, "a", "x", "xy"]), dt)
        return list(rows.values())

    def _has(self, row: tuple[Any, ...]) -> bool:
        found = self._db.execute("SELECT 1 FROM t WHERE k = ? AND dt = ?", (row[0], row[3])).fetchone()
        return self._keyed and found is not None

    def _update(self) -> None:
        speaker = Speaker(self._chance, "t")
        change = f"n = {speaker.number()}, s = {speaker.text()}"
        where = self._chance.choice(
            [speaker.condition(), f"t.k IN (SELECT src.n FROM src WHERE src.k > {speaker.number(0)})"]
        )
        self._source()
        result = sql(self._spark, self._warehouse, f"UPDATE d.t SET {change} WHERE {where}")
        cursor = self._db.execute(_lite(f"UPDATE t SET {change} WHERE {where}"))
        assert result["details"]["rows_updated"] == cursor.rowcount

    def _delete(self) -> None:
        where = f"{Speaker(self._chance, 't').condition()} AND t.k % 3 = {self._chance.randint(0, 2)}"
        result = sql(self._spark, self._warehouse, f"DELETE FROM d.t WHERE {where}")
        assert result["details"]["rows_deleted"] == self._db.execute(_lite(f"DELETE FROM t WHERE {where}")).rowcount

    def _source(self) -> None:
        rows = self._rows(self._chance.randint(0, 12))
        self._db.execute("DELETE FROM src")
        self._db.executemany("INSERT INTO src VALUES (?, ?, ?, ?)", rows)
        self._spark.createDataFrame(rows, "k int, n int, s string, dt string").createOrReplaceTempView("src")

    def _merge(self) -> None:
        self._source()
        both, ours, theirs = (Speaker(self._chance, *names) for names in (("t", "src"), ("t",), ("src",)))
        on = "t.k = src.k AND t.dt = src.dt"
        if self._chance.random() < 0.2:
            on = f"{on} AND {both.condition(1)}" if self._keyed else "t.k = src.k"  # may match a row twice
        parts: list[tuple[str, str, str, tuple[str, str]]] = []  # when, condition, action, values of n and s
        for _ in range(self._chance.randint(0, 2)):
            parts.append(
                ("MATCHED", both.condition(1), self._chance.choice(["UPDATE", "DELETE"]), (both.number(1), both.text()))
            )
        if self._chance.random() < 0.6:
            fresh = self._keyed and "AND t.dt = src.dt AND" in on  # would insert keys that are there
            condition = "src.k < 0" if fresh else theirs.condition(1)
            parts.append(("NOT MATCHED", condition, "INSERT", (theirs.number(1), theirs.text())))
        if self._chance.random() < 0.5 or not parts:
            action = self._chance.choice(["UPDATE", "DELETE"])
            parts.append(
                ("NOT MATCHED BY SOURCE", f"{ours.condition(1)} AND t.n = 3", action, (ours.number(1), ours.text()))
            )
        text = "\n".join([f"MERGE INTO d.t USING src ON {on}", *(_clause(*part) for part in parts)])
        try:
            joined = self._joined(on, parts)
        except ValueError:
            with pytest.raises(InvalidInputError):
                sql(self._spark, self._warehouse, text)
            return
        result = sql(self._spark, self._warehouse, text)["details"]
        done = self._apply(parts, joined)
        assert (result["rows_updated"], result["rows_deleted"], result["rows_inserted"]) == done, text

    def _joined(self, on: str, parts: list[Any]) -> dict[str, Rows]:
        """Let SQLite say for each pair of rows, or lonely row, which clause takes it, and the new values."""
        rows, found = {"t": "t.rowid", "src": "src.rowid"}, {}
        sources = {
            "MATCHED": f"t JOIN src ON {on}",
            "NOT MATCHED": f"src WHERE NOT EXISTS (SELECT 1 FROM t WHERE {on})",
            "NOT MATCHED BY SOURCE": f"t WHERE NOT EXISTS (SELECT 1 FROM src WHERE {on})",
        }
        for when, source in sources.items():
            own = [(i, p) for i, p in enumerate(parts) if p[0] == when]
            row = rows["src" if when == "NOT MATCHED" else "t"]
            action = "".join(f" WHEN {p[1]} THEN {i}" for i, p in own)
            values = ", ".join(f"{v}" for _, p in own for v in p[3]) or "1"
            chosen = f"CASE{action} END" if own else "NULL"
            found[when] = self._db.execute(_lite(f"SELECT {row}, {chosen}, {values} FROM {source}")).fetchall()
        matched = [r[0] for r in found["MATCHED"]]
        if any(p[0] == "MATCHED" for p in parts) and len(set(matched)) < len(matched):
            raise ValueError("a row is matched twice")
        return found

    def _apply(self, parts: list[Any], joined: dict[str, Rows]) -> tuple[int, int, int]:
        done = {"UPDATE": 0, "DELETE": 0, "INSERT": 0}
        for when, rows in joined.items():
            own = [i for i, p in enumerate(parts) if p[0] == when]
            for row, action, *values in rows:
                if action is None:
                    continue
                n, s = values[2 * own.index(action) : 2 * own.index(action) + 2]
                done[parts[action][2]] += 1
                if parts[action][2] == "UPDATE":
                    self._db.execute("UPDATE t SET n = ?, s = ? WHERE rowid = ?", (n, s, row))
                elif parts[action][2] == "DELETE":
                    self._db.execute("DELETE FROM t WHERE rowid = ?", (row,))
                else:
                    k, dt = self._db.execute("SELECT k, dt FROM src WHERE rowid = ?", (row,)).fetchone()
                    self._db.execute("INSERT INTO t VALUES (?, ?, ?, ?)", (k, n, s, dt))
        return done["UPDATE"], done["DELETE"], done["INSERT"]


def _clause(when: str, condition: str, action: str, values: tuple[str, str]) -> str:
    what = {
        "UPDATE": f"UPDATE SET n = {values[0]}, s = {values[1]}",
        "DELETE": "DELETE",
        "INSERT": f"INSERT (k, n, s, dt) VALUES (src.k, {values[0]}, {values[1]}, src.dt)",
    }[action]
    return f"WHEN {when} AND {condition} THEN {what}"


def _lite(text: str) -> str:
    return text.replace("AS STRING", "AS TEXT")


def _arrow(table: Table, rows: Rows) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows], read_arrow(table).schema)


def _sorted(rows: Any) -> Rows:
    return sorted(map(tuple, rows), key=repr)


@pytest.mark.every(4)
@pytest.mark.random
@pytest.mark.parametrize("kind", ["keyed", "tracked", "buckets", "vectors"])
def test_a_life(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    life = Life(spark, tmp_path, kind, chance(kind))
    for number in range(STATEMENTS):
        # each second one looks for its partitions first, as in a table of many files
        monkeypatch.setattr(target_files, "FEW_FILES", 0 if number % 2 else 64)
        life.step()


@pytest.mark.every(2)
@pytest.mark.random
@pytest.mark.parametrize("place", ["source sent to the files", "joined by Spark"])
def test_merges_in_tasks(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The same statements in both ways of finding the rows that match."""
    if place == "joined by Spark":
        monkeypatch.setattr(materialized_source, "KEPT_BYTES", -1)
    life = Life(spark, tmp_path, "tracked", chance("merges in tasks"))
    with in_tasks():
        for _ in range(MERGES):
            life.merge()
