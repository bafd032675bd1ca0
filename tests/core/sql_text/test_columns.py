"""Unknown columns of a correction's SQL: what is named, and what is left to Spark because Spark runs it."""

from __future__ import annotations

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.sql_text.checks import check_all_rows
from airflow_paimon.core.sql_text.columns import check_columns
from airflow_paimon.core.sql_text.statement import statement_kind

VIEWS = {
    "branch": ["dt", "id", "amount", "note", "ts", "item", "tags"],
    "main": ["dt", "id", "amount", "note", "ts", "item", "tags"],
    "rates": ["currency", "rate"],
}
"""``item`` is a struct with the field ``code``, ``tags`` an array: see the test against Spark."""

CONDITIONS = [
    "dt = '2026-11-18' AND NOT amount > 5 OR id IS NULL",
    "DT >= DATE '2026-11-18' AND `amount` BETWEEN id AND 7 AND note LIKE 'a%' ESCAPE '!'",
    "item.code = 1 AND b.item.code IN (1, 2) AND tags[0] = 'x' AND size(tags) > 1",
    "ts > current_timestamp - INTERVAL 1 DAY AND ts < now() + INTERVAL '2' HOURS AND ts > TIMESTAMP '2026-01-01'",
    "CAST(amount AS DECIMAL(10, 2)) > 1 AND extract(YEAR FROM ts) = 2026 AND year(ts) = 2026",
    "CASE WHEN amount > 1 THEN id WHEN note IS NOT NULL THEN 2 ELSE 3 END > 2",
    "CASE note WHEN 'a' THEN true ELSE false END",
    "trim(BOTH 'x' FROM note) = 'a' AND substring(note FROM 2 FOR 1) = 'b' AND position('a' IN note) = 1",
    "note IS DISTINCT FROM 'a' AND note <=> 'b' AND amount = -id AND id % 2 = 0 AND id DIV 2 = 1",
    "exists(tags, t -> t = 'x') AND array_contains(transform(tags, (t, i) -> concat(t, i)), 'x')",
    "amount::int = 1 AND timestampadd(DAY, 1, ts) > ts AND date_add(dt, 1) > current_date",
    "struct(amount AS a, id AS i).a > 1 AND named_struct('z', id).z = 1",
    "CAST(tags AS ARRAY<STRING>)[0] = 'q' AND note COLLATE UTF8_BINARY = 'a'",
    "id IN (SELECT id FROM main WHERE nope.x IS NULL) AND (SELECT max(r.rate) FROM rates r) > 1",
]
"""Of one table called ``b``; the last one reads others, whose columns are not looked at without a name before them."""
RUNS = [
    *(f"SELECT * FROM branch b WHERE {one}" for one in CONDITIONS[:-1]),
    *(f"SELECT dt, amount / 100 AS cents, note n, cents + 1 FROM branch b WHERE {one}" for one in CONDITIONS[:3]),
    "SELECT dt, sum(amount) total FROM branch GROUP BY dt HAVING total > 1 ORDER BY total DESC NULLS LAST LIMIT 3",
    "SELECT dt, id, count(*) OVER (PARTITION BY dt ORDER BY id) c, rank() OVER w FROM branch WINDOW w AS (ORDER BY id)",
    "SELECT dt, stack(2, 1, id, 2, id) AS (a, b) FROM branch WHERE id > 0",
    "SELECT inline(array(struct(dt AS d, id AS i))), note FROM branch",
    "SELECT x.d, x.i FROM branch AS x(d, i, a, n, t, it, tg)",
    "SELECT b.dt, r.rate FROM branch b JOIN rates r ON r.currency = b.note",
    "WITH branch AS (SELECT 1 AS other) SELECT branch.other, other FROM branch",
    "WITH c (z) AS (SELECT id FROM branch) SELECT c.z FROM c",
    "SELECT s.z FROM (SELECT id AS z FROM branch) s JOIN main ON main.id = s.z",
    "SELECT item.code, main.item.code FROM main",
    "SELECT * EXCEPT (note) FROM branch WHERE id = 1",
    "SELECT b.id FROM branch b WHERE EXISTS (SELECT 1 FROM rates b WHERE b.rate > 1)",
    "SELECT id, e FROM branch LATERAL VIEW explode(tags) t AS e WHERE e = 'x'",
    "SELECT 'a' 'b' AS c, 1 one, one + 1 FROM branch",
    "FROM branch SELECT id",
    "SELECT id i, max(amount) j FROM branch GROUP BY ALL ORDER BY ALL",
]
"""Spark runs these: tests/spark/test_sql_columns.py."""
LEFT_TO_SPARK = [
    "UPDATE branch SET amount = amuont / 100 WHERE round(amuont) > 5",
    "SELECT dt, id, amuont AS amount, note FROM branch",
    *(f"UPDATE branch b SET amount = 1, b.note = DEFAULT WHERE {one}" for one in CONDITIONS),
    *(f"DELETE FROM branch b WHERE {one}" for one in CONDITIONS),
    "MERGE INTO branch b USING rates r ON b.note = r.currency WHEN MATCHED AND r.rate > 1 THEN UPDATE SET amount = "
    "b.amount * r.rate, b.note = 'x' WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (dt, id) VALUES ('a', 1)",
    "MERGE INTO branch USING (SELECT id AS nope FROM main) s ON s.nope = branch.id WHEN MATCHED THEN UPDATE SET *",
    "INSERT INTO branch (dt, id) SELECT currency, 1 FROM rates",
    "INSERT OVERWRITE branch PARTITION (dt = '2026-11-18') SELECT raw.other FROM db.raw raw",
    "INSERT INTO branch SELECT m.dt, m.id FROM main m",
    "UPDATE branch SET amount = unknown.column WHERE id = 1",
    "TABLE branch",
    "not SQL at all (",
    "",
]
REFUSED = {
    "UPDATE branch SET amuont = 1 WHERE id = 1": "branch has no column amuont (did you mean amount?)",
    "UPDATE branch SET amount = CASE WHEN (amuont IS NULL OR tss NOT IN (1)) THEN 1 END": "no column tss",
    "SELECT * FROM main WHERE dt = 'a' AND tss > 1": "main has no column tss (did you mean ts?)",
    "UPDATE branch SET amount = 1 WHERE datee = 'a'": "branch has no column datee",
    "UPDATE branch b SET amount = b.nope WHERE id IN (SELECT id FROM main)": "branch has no column nope",
    "DELETE FROM branch WHERE NOT amuont > 5": "no column amuont",
    "DELETE FROM branch WHERE round(amuont) > 5 AND `ide` = 1": "no column ide (did you mean id?)",
    "SELECT b.dt, r.rat FROM branch b JOIN rates r ON r.currency = b.note": "rates has no column rat",
    "MERGE INTO branch b USING rates r ON b.noet = r.currency WHEN MATCHED THEN DELETE": "branch has no column noet",
}


@pytest.mark.parametrize("sql", [*RUNS, *LEFT_TO_SPARK])
def test_what_runs_or_cant_be_told_passes(sql: str) -> None:
    check_columns(sql, VIEWS)


@pytest.mark.parametrize("sql", REFUSED)
def test_what_no_table_has_is_named(sql: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_columns(sql, VIEWS, {"branch": "d.t"})
    assert REFUSED[sql] in caught.value.message
    assert "d.t has dt, id, amount" in caught.value.message or "branch" not in caught.value.message


def test_a_table_of_which_nothing_is_known_is_left_out() -> None:
    for sql in REFUSED:
        check_columns(sql, {})


SOUND = [
    "UPDATE branch SET amount = amount / 100 WHERE dt = 'a'",
    "UPDATE branch AS b SET b.amount = 1, note = concat('a', ',', b.note) WHERE b.id IN (SELECT id FROM main);",
    "UPDATE branch SET Amount = (SELECT max(amount) FROM main WHERE true), `note` = NULL WHERE EXISTS (SELECT 1)",
    "WITH a AS (SELECT 1 AS id) DELETE FROM branch WHERE id IN (SELECT id FROM a)",
    "MERGE INTO branch USING main ON branch.id = main.id WHEN MATCHED THEN UPDATE SET nope = 1",
    "INSERT INTO branch SELECT * FROM main",
    "UPDATE branch SET note.field = 1 WHERE id = 1 -- ; a field, or a mistake: Spark knows",
]
UNSOUND = {
    "UPDATE branch SET amount = 1": "has no WHERE, so it takes every row of d.t",
    "DELETE FROM branch": "has no WHERE",
    "DELETE FROM branch /* WHERE id = 1 */": "has no WHERE",
    "UPDATE branch SET amount = (SELECT 1 WHERE true)": "has no WHERE",
}


@pytest.mark.parametrize("sql", [*SOUND, *UNSOUND])
def test_what_is_wrong_with_a_statement_is_said_before_anything_is_made(sql: str) -> None:
    kind = statement_kind(sql)
    assert kind is not None
    if sql in SOUND:
        check_all_rows(sql, kind, "d.t")
        return
    with pytest.raises(InvalidInputError) as caught:
        check_all_rows(sql, kind, "d.t")
    assert UNSOUND[sql] in caught.value.message
