"""What samples of rules show of tables with masked columns, whatever name a rule gives a value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.data.arrow_write import write_arrow
from tests.core.tables import alter_table
from tests.spark.jobs.checks import check
from tests.spark.jobs.operations import make_branch, put

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HIDDEN = "***"


def masked(warehouse: Path, column: str = "v") -> None:
    main, branch = make_branch(warehouse)
    alter_table(main, [SetOption(key="airflow-paimon.masked-columns", value=column)])
    put(branch, [(3, "secret", "a")])


QUERIES: list[tuple[str, dict[str, Any]]] = [
    ("SELECT * FROM diff", {"k": 3, "v": HIDDEN, "dt": "a", "_change": "changed",
                            "_before": {"k": 3, "v": HIDDEN, "dt": "a"}}),
    ("SELECT k, dt, _before.v AS was FROM diff", {"k": 3, "dt": "a", "was": HIDDEN}),
    ("SELECT v AS k, dt FROM diff", {"k": HIDDEN, "dt": "a"}),
    ("SELECT k, upper(v) AS dt FROM diff", {"k": 3, "dt": HIDDEN}),
    ("SELECT k AS v FROM diff", {"v": HIDDEN}),
    ("SELECT dt, max(v) AS m, count(*) AS n FROM branch WHERE v = 'secret' GROUP BY dt",
     {"dt": "a", "m": HIDDEN, "n": HIDDEN}),
    ("SELECT dt FROM branch WHERE k = 3 AND dt = 'a' UNION ALL SELECT v FROM branch WHERE v = 'secret'",
     {"dt": HIDDEN}),
    ("SELECT x.dt FROM (SELECT dt FROM branch WHERE k < 0 UNION ALL SELECT v FROM diff) x", {"dt": HIDDEN}),
    ("SELECT d.k, b.v AS other FROM diff d JOIN base b ON d.k = b.k AND d.dt = b.dt", {"k": 3, "other": HIDDEN}),
    ("WITH x AS (SELECT v AS k FROM diff) SELECT k FROM x", {"k": HIDDEN}),
    ("SELECT k FROM (SELECT v AS k FROM diff)", {"k": HIDDEN}),
    ("SELECT k FROM (SELECT v, dt FROM diff) PIVOT (max(v) FOR dt IN ('a' AS k))", {"k": HIDDEN}),
    ("SELECT k, v FROM diff ORDER BY v LIMIT 1", {"k": 3, "v": HIDDEN}),
    ("SELECT name, k FROM d.names JOIN diff ON true", {"name": HIDDEN, "k": 3}),
    ("SELECT (SELECT max(v) FROM diff) AS k", {"k": HIDDEN}),
    ("SELECT explode(array(v)) AS dt FROM diff", {"dt": HIDDEN}),
    ("SELECT k FROM VALUES ('secret') AS t(k)", {"k": HIDDEN}),
]  # fmt: skip


def test_a_masked_value_is_hidden_under_every_name(spark: SparkSession, tmp_path: Path) -> None:
    masked(tmp_path)
    write_arrow(create_table(str(tmp_path), "d.names", [("name", "STRING")]), pa.table({"name": ["x"]}))
    for query, row in QUERIES:
        [found] = check(spark, tmp_path, {"name": "this", "sql": query})
        assert found["rows"][0] == row, query
        assert "secret" not in str(found), query


def failing(spark: SparkSession, views: dict[str, DataFrame]) -> list[dict[str, Any]]:
    return [{"k": int(row["v"])} for row in views["diff"].collect()]


ERRORS = [
    ({"sql": "SELECT CAST(v AS INT) AS k FROM diff"}, "CAST_INVALID_INPUT"),
    ({"sql": "SELECT k FROM diff WHERE raise_error(v) IS NULL"}, "USER_RAISED_EXCEPTION|SparkRuntimeException"),
    ({"sql": "SELECT k, assert_true(v = '', v) FROM diff"}, "USER_RAISED_EXCEPTION|SparkRuntimeException"),
    ({"sql": "SELECT to_date(v, 'yyyy') AS k FROM diff"}, "CANNOT_PARSE_TIMESTAMP"),
    ({"sql": "SELECT parse_json(v) IS NULL AS k FROM diff"}, "MALFORMED_RECORD_IN_PARSING|Py4JJavaError"),
    ({"sql": "SELECT CAST(name AS INT) AS k FROM d.people"}, "CAST_INVALID_INPUT"),
    ({"function": f"{__name__}:failing"}, "ValueError"),
]


def test_an_error_quotes_no_masked_value(spark: SparkSession, tmp_path: Path) -> None:
    masked(tmp_path)
    people = create_table(str(tmp_path), "d.people", [("name", "STRING")])
    write_arrow(people, pa.table({"name": ["secret"]}))
    for rule, condition in ERRORS:
        rule = {"name": "this", **rule} if "sql" in rule else rule
        with pytest.raises(PaimonError, match=f"it fails with ({condition})") as caught:
            check(spark, tmp_path, rule, mask=["d.people:name"])
        assert "secret" not in str(caught.value), rule


def renamed(spark: SparkSession, views: dict[str, DataFrame]) -> DataFrame:
    return views["diff"].withColumn("dt", views["diff"]["v"]).select("k", "dt", "_change")


def united(spark: SparkSession, views: dict[str, DataFrame]) -> DataFrame:
    diff = views["diff"]
    return diff.select("dt").where("k < 0").union(diff.select("v"))


def plain(spark: SparkSession, views: dict[str, DataFrame]) -> DataFrame:
    return views["diff"].where("k = 3")


def listed(spark: SparkSession, views: dict[str, DataFrame]) -> list[dict[str, Any]]:
    return [{"k": row["v"]} for row in views["diff"].collect()]


FUNCTIONS = [(renamed, {"k": 3, "dt": HIDDEN, "_change": "changed"}), (united, {"dt": HIDDEN}),
             (plain, QUERIES[0][1]), (listed, {"k": HIDDEN})]  # fmt: skip


@pytest.mark.parametrize(("function", "row"), FUNCTIONS, ids=[f.__name__ for f, _ in FUNCTIONS])
def test_rows_of_functions_hide_it_as_well(
    spark: SparkSession, tmp_path: Path, function: Any, row: dict[str, Any]
) -> None:
    masked(tmp_path)
    [found] = check(spark, tmp_path, {"function": f"{__name__}:{function.__name__}"})
    assert found["rows"] == [row]


def test_masks_of_other_tables_hold(spark: SparkSession, tmp_path: Path) -> None:
    _, branch = make_branch(tmp_path)
    people = create_table(str(tmp_path), "d.people", [("id", "BIGINT"), ("name", "STRING")],
                          options={"airflow-paimon.masked-columns": "name"})  # fmt: skip
    write_arrow(people, pa.table({"id": [3], "name": ["secret"]}))
    put(branch, [(3, "new", "a")])
    seen = "SELECT diff.k, diff.v, p.* FROM diff JOIN p ON k = id"
    [found] = check(spark, tmp_path, {"name": "seen", "sql": seen}, view=["p=d.people"])
    assert found["rows"] == [{"k": 3, "v": "new", "id": 3, "name": HIDDEN}]
    by_name = "SELECT diff.k, p.name AS v FROM diff JOIN d.people p ON k = id"
    [found] = check(spark, tmp_path, {"name": "by name", "sql": by_name})
    assert found["rows"] == [{"k": 3, "v": HIDDEN}]
    to = {"columns": "v", "to": "d.people", "fields": "name"}
    [found] = check(spark, tmp_path, {"relationships": to})
    assert (found["rows"][0]["k"], found["rows"][0]["v"], found["rows"][0]["_before"]["v"]) == (3, HIDDEN, HIDDEN)
    without = "SELECT k, v AS seen, 1 AS one FROM diff"
    [found] = check(spark, tmp_path, {"name": "without", "sql": without})
    assert found["rows"] == [{"k": 3, "seen": "new", "one": 1}]  # no table here has masks


def test_masks_of_a_connection_hold_for_the_tables_that_were_bound(spark: SparkSession, tmp_path: Path) -> None:
    _, branch = make_branch(tmp_path)
    for name in ("hr.people", "hr.old-people", "hr.Staff"):
        made = create_table(str(tmp_path), name, [("id", "BIGINT"), ("name", "STRING")])
        write_arrow(made, pa.table({"id": [3], "name": ["secret"]}))
    put(branch, [(3, "new", "a")])
    masks = ["HR.*:NAME", "hr.other:v"]
    for table in ("hr/**/.people", "hr -- x\n . people", "`hr`.`old-people`", "hr.`people$branch_main`", "hr.Staff"):
        sql = f"SELECT k, name AS dt, diff.v FROM diff JOIN {table} p ON k = id"
        [found] = check(spark, tmp_path, {"name": "named", "sql": sql}, mask=masks)
        assert "secret" not in str(found), table
    seen = "SELECT k, v, p.* FROM diff JOIN p ON k = id"
    [found] = check(spark, tmp_path, {"name": "seen", "sql": seen}, view=["p=hr.old-people"], mask=masks)
    assert found["rows"] == [{"k": 3, "v": "new", "id": 3, "name": HIDDEN}]
    to = {"columns": "v", "to": "hr.Staff", "fields": "name"}
    [found] = check(spark, tmp_path, {"relationships": to}, mask=masks)
    assert found["rows"][0]["v"] == HIDDEN


def test_a_drift_of_a_masked_column_shows_no_measure(spark: SparkSession, tmp_path: Path) -> None:
    masked(tmp_path, "k")
    put(make(tmp_path), [(50, "new", "a")])
    [found] = check(spark, tmp_path, {"drift": {"measure": "sum", "column": "k", "most": 0}})
    assert found["rows"] == [{"partition": "dt=a"}]


def make(warehouse: Path) -> Any:
    from airflow_paimon.core.table.table import open_table

    return open_table(str(warehouse), "d.t", branch="fix")
