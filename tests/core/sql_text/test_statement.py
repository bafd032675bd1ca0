"""What the words of a correction's SQL say: never less than the rows that the condition really selects."""

from __future__ import annotations

import random
import sqlite3

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.core.sql_text.checks import check_is_query
from airflow_paimon.core.sql_text.statement import StatementScope, read_sql, statement_kind
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Condition, exactly, may_match

TYPES = {"dt": "STRING", "k": "BIGINT", "amount": "DECIMAL(10, 2)", "day": "DATE", "d": "DOUBLE"}
SCHEMA = TableSchema(
    id=0,
    fields=tuple(DataField(i, name, parse_type(t)) for i, (name, t) in enumerate(TYPES.items())),
    highest_field_id=len(TYPES),
    partition_keys=("dt",),
    primary_keys=(),
    options={},
)


def scope(sql: str) -> StatementScope:
    return read_sql(sql, SCHEMA)


A, SEVEN = Condition("dt", "=", "a"), Condition("k", "<", 7)
OUTSIDE = AnyOf((Condition("k", "<", 1), Condition("k", ">", 3)))


@pytest.mark.parametrize(
    ("condition", "predicate", "whole"),
    [
        ("dt = 'a' AND k < 7", AllOf((A, SEVEN)), True),
        ("branch.DT = 'a' and (7 > K or `k` <> 2)", AllOf((A, AnyOf((SEVEN, Condition("k", "!=", 2))))), True),
        (
            "k BETWEEN -1 AND 3 AND dt = 'a'",
            AllOf((AllOf((Condition("k", ">=", -1), Condition("k", "<=", 3))), A)),
            True,
        ),
        ("dt IN ('a', 'b') AND d > 1.5", Condition("dt", "in", ("a", "b")), False),
        ("dt = 'a' AND k + 1 BETWEEN 2 AND 3 AND k < 7", AllOf((A, SEVEN)), False),
        ("dt = 'a' AND CASE WHEN k = 1 OR k = 2 THEN true ELSE false END AND k < 7", AllOf((A, SEVEN)), False),
        ("dt = 'a' OR upper(dt) = 'B'", None, False),
        ("NOT dt = 'a' AND k < 7", AllOf((Condition("dt", "!=", "a"), SEVEN)), True),
        ("NOT (dt = 'a' OR upper(dt) = 'B') AND k < 7", AllOf((Condition("dt", "!=", "a"), SEVEN)), False),
        ("NOT (dt = 'a' AND upper(dt) = 'B') AND k < 7", SEVEN, False),
        ("dt NOT IN ('a') AND k NOT BETWEEN 1 AND 3", AllOf((Condition("dt", "not in", ("a",)), OUTSIDE)), True),
        ("dt LIKE 'a%' AND dt = \"k\" AND k < 7e0", Condition("dt", "like", "a%"), False),
        ("k < 7 AND d = ${limit}", None, False),
        ("dt = 'a' || 'b' AND k < 7", SEVEN, False),
        ("dt = 'it''s' AND k < 7", SEVEN, False),
        ("k = '7' AND dt = 5 AND k < 7", SEVEN, False),
        ("dt IN (SELECT dt FROM main WHERE k < 7)", None, False),
        ("dt IS NOT NULL", Condition("dt", "is not null"), True),
    ],
)
def test_a_condition(condition: str, predicate: object, whole: bool) -> None:
    found = scope(f"UPDATE branch SET d = 1 WHERE {condition}")
    assert (found.predicate, found.whole) == (predicate, whole)


def test_no_row_that_is_selected_is_missed() -> None:
    """SQLite is another reader of the same words."""
    chance = random.Random(20261118)
    rows = [(dt, k) for dt in ("a", "b", "c", None) for k in (*range(5), None)]
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE branch (dt TEXT, k INTEGER)")
        database.executemany("INSERT INTO branch VALUES (?, ?)", rows)
        pruned = 0
        for _ in range(400):
            condition = _condition(chance, 3)
            found = scope(f"DELETE FROM branch WHERE {condition}")
            types = {f.name: f.type for f in SCHEMA.fields}
            selected = set(database.execute(f"SELECT dt, k FROM branch WHERE {condition}"))
            kept = {r for r in rows if may_match(found.predicate, {"dt": exactly(r[0]), "k": exactly(r[1])}, types)}
            assert selected <= kept, condition
            assert not found.whole or selected == kept, condition
            pruned += len(kept) < len(rows)
        assert pruned > 100


def _condition(chance: random.Random, depth: int) -> str:
    if depth and chance.random() < 0.7:
        parts = [_condition(chance, depth - 1) for _ in range(chance.randint(2, 3))]
        joined = chance.choice((" AND ", " or ")).join(parts)
        return f"({joined})" if chance.random() < 0.8 else joined
    k, dt = chance.randint(0, 4), chance.choice("abc")
    return chance.choice([
        f"k = {k}", f"k <= {k}", f"{k} < k", f"k <> {k}", f"dt = '{dt}'", f"branch.dt IN ('{dt}', 'a')",
        f"dt >= '{dt}'", f"dt LIKE '{dt}%'", f"NOT dt LIKE '%{dt}'", f"dt NOT IN ('{dt}')", f"k NOT BETWEEN {k} AND 3",
        f"k BETWEEN {k} AND 3", f"NOT k = {k}", f"k + 1 > {k}", f"k NOT IN ({k})",
        f"NOT (k = {k} OR dt = '{dt}')", "k IS NULL", "dt IS NOT NULL",
        f"CASE WHEN k = {k} AND dt = '{dt}' THEN 1 ELSE 0 END = 1", f"k = {k} + 1",
        f"k % 2 BETWEEN 0 AND {k}", f"dt || 'x' = '{dt}x'",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "kind", "relations", "predicate"),
    [
        ("UPDATE branch AS b SET d = 1 WHERE b.dt = 'a' AND branch.k < 7", "UPDATE", (), A),
        ("/* a /* b */ c */ DELETE FROM branch WHERE dt = 'a' -- or all", "DELETE", (), A),
        ("DELETE FROM branch", "DELETE", (), None),
        (
            "MERGE INTO branch t USING (SELECT * FROM sales.fixes WHERE k < 1) AS s ON t.k = s.k AND t.dt = 'a' "
            "AND k < 7 AND CASE WHEN true THEN true END "
            "WHEN MATCHED AND t.k < 7 THEN UPDATE SET d = s.d WHEN NOT MATCHED THEN INSERT *",
            "MERGE", ("sales.fixes",), A,
        ),
        (
            "MERGE INTO branch t USING main s ON t.k = s.k AND t.dt = 'a' WHEN NOT MATCHED BY SOURCE THEN DELETE",
            "MERGE", ("main",), None,
        ),
        ("INSERT INTO branch SELECT * FROM branch WHERE dt = 'a'", "INSERT", ("branch",), None),
        ("INSERT OVERWRITE TABLE branch PARTITION (dt = 'a') SELECT k FROM main", "INSERT OVERWRITE", ("main",), None),
        ("SELECT *, '; from x' FROM branch WHERE dt = 'a' GROUP BY k", "SELECT", ("branch",), A),
        ("SELECT * FROM (SELECT upper(dt) AS dt FROM branch) WHERE dt = 'a'", "SELECT", ("branch",), None),
        ("SELECT * FROM branch b JOIN d.Rates AS r ON b.k = r.k WHERE dt = 'a'", "SELECT", ("branch", "d.Rates"), None),
        ("SELECT * FROM branch WHERE dt = 'a' LIMIT 5", "SELECT", ("branch",), A),
        ("SELECT * FROM branch, main WHERE dt = 'a'", "SELECT", ("branch", "main"), None),
    ],
)  # fmt: skip
def test_what_is_read_and_written(sql: str, kind: str, relations: tuple[str, ...], predicate: object) -> None:
    found = scope(sql)
    assert (found.kind, found.relations, found.predicate) == (kind, relations, predicate)


def test_the_partition_of_an_insert_overwrite() -> None:
    assert scope("INSERT OVERWRITE branch PARTITION (dt = 'a', k) SELECT 1").partition == "dt='a'"
    assert scope("INSERT OVERWRITE branch PARTITION (dt = r'a', k = 1, x = 'a\\\\b') SELECT 1").partition == "k=1"
    assert scope("INSERT OVERWRITE branch SELECT 1").partition == ""


def test_statements_are_distinguished_from_queries_by_words_outside_parentheses() -> None:
    kinds = {
        "UPDATE branch SET amount = 1": "UPDATE",
        "-- why\n/* a /* nested */ one */ delete FROM branch WHERE id IN (SELECT id FROM main)": "DELETE",
        "MERGE INTO branch USING fixes ON true WHEN MATCHED THEN DELETE": "MERGE",
        "WITH a AS (SELECT 1 AS id), b AS (SELECT 2 AS id) INSERT INTO branch SELECT * FROM a": "INSERT",
        "WITH `update` AS (SELECT 1 AS id) SELECT * FROM `update`": None,
        "SELECT * FROM branch WHERE note = 'UPDATE'": None,
        "(SELECT * FROM branch)": None,
        "": None,
    }
    assert {sql: statement_kind(sql) for sql in kinds} == kinds


@pytest.mark.parametrize("sql", ["DROP TABLE branch", "/* a /* b */ */ TRUNCATE TABLE branch", "CALL sys.compact()"])
def test_other_statements_are_named(sql: str) -> None:
    assert statement_kind(sql) is None
    with pytest.raises(InvalidInputError, match=r"starts with '[A-Z]+': give one UPDATE"):
        check_is_query(sql)
