"""Restricted SQL, as for SQL from a form: it reaches tables, and neither files, Java, scripts nor the environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark.jobs import run_spark_operation
from airflow_paimon.spark.jvm import sequence_items
from airflow_paimon.spark.statements.analysed import check_analysed
from airflow_paimon.spark.statements.sql_functions import (
    ALLOWED,
    ALLOWED_FOR_TABLES,
    OPTION_ARGUMENTS,
    REFUSED,
    TYPE_ARGUMENTS,
)
from tests.randomness import every
from tests.spark.jobs.operations import correct, make_branch, put, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "the machine's own"
UDT = (
    '{"type":"struct","fields":[{"name":"a","type":{"type":"udt","pyClass":"tests.spark.no_such_module.Type",'
    '"serializedClass":"","sqlType":"string"},"nullable":true,"metadata":{}}]}'
)
DEFAULT = (
    '{"type":"struct","fields":[{"name":"a","type":"string","nullable":true,"metadata":'
    '{"EXISTS_DEFAULT":"input_file_name()","CURRENT_DEFAULT":"input_file_name()"}}]}'
)
XML = '<!DOCTYPE a SYSTEM "file://{file}"><a/>'
ROW = "SELECT 1 AS k, {} AS v, 'a' AS dt"
QUERIES = [
    "SELECT k, value AS v, dt FROM branch, text.`{file}`",
    "SELECT k, v, dt FROM branch WHERE v IN (SELECT value FROM TEXT.`{file}`)",
    "SELECT k, (SELECT max(_c0) FROM csv.`file://{file}`) AS v, dt FROM branch",
    "WITH t AS (SELECT value FROM text.`{file}`) SELECT k, value AS v, dt FROM branch, t",
    "WITH t AS (WITH u AS (SELECT * FROM json.`{file}`) SELECT * FROM u) SELECT k, v, dt FROM branch",
    "SELECT k, v, dt FROM branch LEFT JOIN LATERAL (SELECT * FROM binaryFile.`{file}`)",
    "SELECT k, v, dt FROM branch JOIN parquet.`{file}` USING (k)",
    "SELECT k, v, dt FROM branch UNION SELECT 1, value, 'a' FROM text.`{file}`",
    "TABLE text.`{file}`",
    "FROM text.`{file}` SELECT 1 AS k, value AS v, 'a' AS dt",
    "SELECT k, value AS v, dt FROM branch, IDENTIFIER('text.`{file}`')",
    "SELECT k, v, dt FROM spark_catalog.default.other",
    "SELECT k, v, dt FROM elsewhere",
    # The name of a WITH is Spark's table of that name in the query itself, before it and outside of it.
    "WITH elsewhere AS (SELECT * FROM elsewhere) SELECT k, v, dt FROM elsewhere",
    "WITH t AS (SELECT * FROM elsewhere), elsewhere AS (SELECT 1) SELECT k, v, dt FROM t",
    "SELECT k, v, dt FROM elsewhere WHERE k IN (WITH elsewhere AS (SELECT 9 AS k) SELECT k FROM elsewhere)",
    "SELECT k, v, dt FROM (WITH elsewhere AS (SELECT 1) SELECT 1 AS one FROM elsewhere) x, elsewhere",
    "WITH RECURSIVE t AS (SELECT * FROM elsewhere UNION ALL SELECT k + 1, v, dt FROM t WHERE k < 2) SELECT * FROM t",
    "SELECT k, v, dt FROM global_temp.everywhere",
    *(f"SELECT * FROM {source}.`{{file}}`" for source in (
        "orc", "avro", "xml", "delta", "jdbc", "paimon", "`BinaryFile`",
        "`org.apache.spark.sql.execution.datasources.text.TextFileFormat`", "text/**/", "text -- x\n")),
    "SELECT value AS v FROM branch WITH (path '{file}')",
    "SELECT * FROM text.`{file}` TABLESAMPLE (10 ROWS)",
    "SELECT * FROM text.`{file}` UNPIVOT (a FOR b IN (value))",
    "SELECT k, v, dt FROM branch TIMESTAMP AS OF (SELECT max(value) FROM text.`{file}`)",
    "SELECT * FROM explode(TABLE(text.`{file}`))",
    "SELECT * FROM range(start => 1, end => (SELECT count(*) FROM text.`{file}`))",
    "SELECT /*+ REPARTITION((SELECT max(value) FROM text.`{file}`)) */ k, v, dt FROM branch",
    "SELECT * FROM branch PIVOT (max(reflect('java.lang.System', 'getenv', 'HOME')) FOR dt IN ('a'))",
    "FROM text.`{file}` |> SELECT 1 AS k, value AS v, 'a' AS dt",
    "SELECT k, v, dt FROM `d.t/../../x`.t",
    "SELECT TRANSFORM(k) USING 'cat {file}' AS (k INT, v STRING, dt STRING) FROM branch",
    "SELECT k, v, dt FROM (SELECT TRANSFORM(k) USING 'id' AS (v STRING) FROM branch)",
    "SELECT k, v, dt FROM read_files('{file}')",
    "SELECT k, v, dt FROM python_udtf(1)",
    *(ROW.format(text) for text in (
        "reflect('java.lang.System', 'getenv', 'HOME')", "JAVA_METHOD('java.lang.System', 'getProperty', 'user.home')",
        "`reflect`('java.lang.System', 'getenv', 'HOME')", "try_reflect('java.lang.System', 'getenv', 'HOME')",
        "upper(concat(reflect('java.lang.System', 'getenv', 'HOME'), ''))", "IDENTIFIER('reflect')('a', 'b')",
        "transform(array(1), x -> reflect('java.lang.System', 'getenv', 'HOME'))[0]",
        "CASE WHEN true THEN reflect('java.lang.System', 'getenv', 'HOME') END",
        "max(reflect('java.lang.System', 'getenv', 'HOME')) OVER ()",
        "'${{env:HOME}}'", "'${{system:user.home}}'", "'${{spark.app.id}}'", "${{env:HOME}}",
        "default.my_udf(1)", "my_udf(1)", "input_file_name()",
        "from_protobuf(binary('a'), 'M', '{file}')",
        "schema_of_xml('<a/>', map('rowValidationXSDPath', '{file}'))",
        "system.builtin.reflect('java.lang.System', 'getenv', 'HOME')", "session.upper('a')",
        "max('a') FILTER (WHERE reflect('java.lang.System', 'getenv', 'HOME') = 'x')",
        "aggregate(array('a'), '', (a, x) -> reflect('java.lang.System', 'getenv', 'HOME'))",
        "named_struct('a', reflect('java.lang.System', 'getenv', 'HOME')).a",
        # arguments that are a language: only types written out, and no JSON, which names classes
        *(f"CAST({function} AS STRING)" for schema in (UDT, f" {UDT}", DEFAULT, '"string"')
          for function in (f"from_json('1', '{schema}')", f"from_csv('1', '{schema}')",
                           f"variant_get(parse_json('1'), '$', '{schema}')",
                           f"try_variant_get(parse_json('1'), '$', '{schema}')")),
        "to_json(from_json('{{}}', 'a ' || 'STRING'))", "to_json(from_json('1', schema_of_json('[1]')))",
        "to_json(from_json('1', lower('A INT')))", "to_json(from_json(*))",
        "to_json(from_json('1', schema => 'a INT'))", f"to_json(`from_json`('1', concat('{UDT}')))",
        "from_csv('1', 'a STRING', map('compression', 'java.lang.Thread')).a",
        "from_csv('1', 'a STRING', map(concat('com', 'pression'), 'x')).a", "to_json(struct(1), map(v, 'x'))",
        "to_csv(struct(1), from_json('a', 'MAP<STRING, STRING>'))", "schema_of_csv('1', map('compression', 'x.Y'))",
        f"xpath_string('{XML}', 'a')", f"xpath('{XML}', 'a')[0]", f"to_json(from_xml('{XML}', 'a STRING'))",
        "to_xml(struct(1))", "approx_top_k_estimate(approx_top_k_accumulate(1))[0].item",
        "hll_sketch_estimate(X'0102')", "kll_sketch_to_string_float(X'0102')", "not_known_yet(1)")),
    f"SELECT k, v, dt FROM branch LATERAL VIEW from_json('1', '{UDT}') x AS y",
    f"SELECT k, v, dt FROM branch, LATERAL from_csv('1', '{UDT}')",
    "SELECT k, v, dt FROM collations()", "SELECT k, v, dt FROM python_worker_logs()",
    # the database `text` has a table `t`: what is checked has to be what is bound
    "SELECT 1 AS k, value AS v, 'a' AS dt FROM text.`t@``/../../../../../../../..{file}`",
    "SELECT 1 AS k, value AS v, 'a' AS dt FROM text.`t@ `", "SELECT 1 AS k, value AS v, 'a' AS dt FROM text.` t`",
    "SELECT 1 AS k, value AS v, 'a' AS dt FROM text.`{file}`", "SELECT * FROM spark_catalog.text.t",
    "SELECT k, v, dt FROM d.t TIMESTAMP AS OF (SELECT max(value) FROM text.`{file}`)",
    "SELECT k, v, dt FROM d.t VERSION AS OF 1, text.`t@``/../../../../../../../..{file}`",
    "SELECT k, input_file_name() AS v, dt FROM branch",
    "SELECT k, v, dt FROM branch WHERE reflect('java.lang.Runtime', 'getRuntime') IS NOT NULL",
    "SELECT k, v, dt FROM branch ORDER BY reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT k, v, dt FROM branch LIMIT length(reflect('java.lang.System', 'getenv', 'HOME'))",
    "SELECT k, v, dt FROM VALUES (1, reflect('java.lang.System', 'getenv', 'HOME'), 'a') AS t(k, v, dt)",
    "SELECT k, v, dt FROM branch LATERAL VIEW explode(array(input_file_name())) x AS y",
    "SELECT k, v, dt FROM (SELECT *, row_number() OVER w AS n FROM branch "
    "WINDOW w AS (ORDER BY java_method('java.lang.System', 'getenv', 'HOME')))",
    "SELECT k, v, dt FROM (SELECT *, sum(1) OVER w AS n FROM branch "
    "WINDOW w AS (PARTITION BY (SELECT max(value) FROM text.`{file}`)))",
    "INSERT OVERWRITE DIRECTORY '{file}.d' USING csv SELECT * FROM branch",
    "CREATE TEMPORARY FUNCTION f AS 'x.Y' USING JAR '{file}'",
    "ADD JAR '{file}'",
    "SET spark.sql.variable.substitute=true",
    "CREATE TEMPORARY VIEW x USING csv OPTIONS (path '{file}')",
    "CACHE TABLE x AS SELECT 1",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "BEGIN SELECT 1; END",
    "CALL sys.compact(table => 'd.t')",
]  # fmt: skip
STATEMENTS = [
    "UPDATE branch SET v = (SELECT max(value) FROM text.`{file}`) WHERE dt = 'a'",
    "UPDATE branch SET v = reflect('java.lang.System', 'getenv', 'HOME') WHERE dt = 'a'",
    "UPDATE branch SET v = 'x' WHERE v = java_method('java.lang.System', 'getenv', 'HOME')",
    "DELETE FROM branch WHERE v IN (SELECT value FROM text.`{file}`)",
    "MERGE INTO branch USING text.`{file}` AS s ON v = s.value WHEN MATCHED THEN DELETE",
    "MERGE INTO branch USING main AS s ON branch.k = s.k WHEN MATCHED THEN UPDATE SET v = input_file_name()",
    "MERGE INTO branch USING main AS s ON branch.k = s.k WHEN MATCHED AND reflect('a', 'b') = '1' THEN DELETE",
    "INSERT INTO branch SELECT 1, value, 'a' FROM text.`{file}`",
    "INSERT INTO branch VALUES (1, reflect('java.lang.System', 'getenv', 'HOME'), 'a')",
    "INSERT INTO branch SELECT TRANSFORM(k) USING 'id' AS (k, v, dt) FROM branch",
    "WITH s AS (SELECT value FROM text.`{file}`) INSERT INTO branch SELECT 1, value, 'a' FROM s",
    "WITH elsewhere AS (SELECT * FROM elsewhere) DELETE FROM branch WHERE k IN (SELECT k FROM elsewhere)",
    "INSERT INTO branch TABLE text.`{file}`",
    "INSERT INTO branch WITH ('path' = '{file}') SELECT 1, 'v', 'a'",
    "INSERT INTO branch REPLACE WHERE dt = 'a' SELECT k, v, dt FROM branch",
]


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Table, Table]:
    return make_branch(tmp_path)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    return file


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """Tables of Spark's own catalogs."""
    rows = spark.sql(f"SELECT 9 AS k, '{SECRET}' AS v, 'a' AS dt".replace("machine's", "machine''s"))
    rows.createOrReplaceTempView("elsewhere")
    rows.createOrReplaceGlobalTempView("everywhere")
    yield
    spark.catalog.dropTempView("elsewhere")
    spark.catalog.dropGlobalTempView("everywhere")


@pytest.mark.usefixtures("elsewhere")
def test_what_reaches_beyond_the_tables_is_refused(
    spark: SparkSession, tmp_path: Path, tables: tuple[Table, Table], secret: Path
) -> None:
    _, fix = tables
    create_table(str(tmp_path), "text.t", [("value", "STRING")])
    before = rows_of(fix)
    passed = []
    for text in [*QUERIES, *STATEMENTS]:
        sql = text.replace("{file}", str(secret)).replace("{{", "{").replace("}}", "}")
        how = {} if text in STATEMENTS else {"partitions": ["dt=a"]}
        try:
            correct(spark, tmp_path, sql, restricted_sql=True, **how)
        except UnsafeOperationError as error:
            assert "restricted-sql" in error.message
        except InvalidInputError as error:  # a command or a script, refused before
            assert "SQL starts with" in error.message
        else:
            passed.append(sql)
    assert passed == []
    assert rows_of(fix) == before


def test_pipe_syntax_is_named_as_what_is_refused(
    spark: SparkSession, tmp_path: Path, tables: tuple[Table, Table]
) -> None:
    if spark.version.startswith("3."):
        pytest.skip("Spark 3 has no pipe syntax")
    with pytest.raises(UnsafeOperationError, match=r"it has pipe syntax \(\|>\); write it as a SELECT"):
        correct(spark, tmp_path, "FROM branch |> WHERE dt = 'a'", partitions=["dt=a"], restricted_sql=True)


@pytest.mark.usefixtures("elsewhere")
def test_names_of_a_with_are_compared_as_the_session_compares_them(
    spark: SparkSession, tmp_path: Path, tables: tuple[Table, Table]
) -> None:
    sql = "WITH Elsewhere AS (SELECT * FROM branch) SELECT k, v, dt FROM elsewhere WHERE dt = 'a'"
    correct(spark, tmp_path, sql, partitions=["dt=a"], restricted_sql=True, dry_run=True)
    spark.conf.set("spark.sql.caseSensitive", True)
    try:
        with pytest.raises(UnsafeOperationError, match="'elsewhere', which is neither"):
            correct(spark, tmp_path, sql, partitions=["dt=a"], restricted_sql=True, dry_run=True)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_the_same_reads_a_file_where_sql_is_not_restricted(
    spark: SparkSession, tmp_path: Path, tables: tuple[Table, Table], secret: Path
) -> None:
    _, fix = tables
    sql = ROW.format(f"(SELECT value FROM text.`{secret}`)")
    correct(spark, tmp_path, sql, partitions=["dt=a"])
    assert (1, SECRET, "a") in rows_of(fix)


def test_each_function_of_spark_was_looked_at(spark: SparkSession) -> None:
    analysis: Any = spark._jvm.org.apache.spark.sql.catalyst.analysis  # type: ignore[union-attr]

    def names(registry: Any) -> set[str]:
        return {str(f.funcName()) for f in sequence_items(registry.builtin().listFunction())}

    scalar, table = names(analysis.FunctionRegistry), names(analysis.TableFunctionRegistry)
    assert scalar - ALLOWED - {*REFUSED} == set()  # put what is new into one of the lists, when it was looked at
    assert table - ALLOWED_FOR_TABLES - {*REFUSED} == set()
    assert {*REFUSED} & (ALLOWED | ALLOWED_FOR_TABLES) == set()
    assert {*TYPE_ARGUMENTS, *OPTION_ARGUMENTS} <= ALLOWED


RESOLVED = [
    (f"SELECT from_json('1', '{UDT}') AS a", "kind udt"),
    (f"SELECT from_json('1', '{DEFAULT}') AS a", "metadata"),
    ("SELECT k FROM elsewhere", "not bound"),
    ("SELECT k FROM (SELECT 1 AS k) WHERE k IN (SELECT k FROM elsewhere)", "not bound"),
    ("SELECT (SELECT max(value) FROM text.`{file}`) AS a", "not bound"),
    ("SELECT xpath_string('<a>1</a>', 'a') AS a", "XPathString"),
    ("SELECT reflect('java.util.UUID', 'randomUUID') AS a", "CallMethodViaReflection"),
    ("SELECT a_function(1) AS a", "PythonUDF"),
]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("sql", "why"), RESOLVED)
def test_what_spark_resolves_is_looked_at_once_more(spark: SparkSession, secret: Path, sql: str, why: str) -> None:
    spark.udf.register("a_function", lambda x: x)
    try:
        frame = spark.sql(sql.replace("{file}", str(secret)))
        with pytest.raises(UnsafeOperationError, match=why):
            check_analysed(frame)
    finally:
        spark.sql("DROP TEMPORARY FUNCTION a_function")


def test_a_subquery_as_a_time_is_refused_to_everybody(
    spark: SparkSession, tmp_path: Path, tables: tuple[Table, Table], secret: Path
) -> None:
    sql = f"SELECT k, v, dt FROM d.t TIMESTAMP AS OF (SELECT max(value) FROM text.`{secret}`) WHERE dt = 'a'"
    with pytest.raises(InvalidInputError, match="takes a time, and no subquery"):
        correct(spark, tmp_path, sql, partitions=["dt=a"])


HARMLESS = [
    "SELECT k, v, dt FROM (SELECT *, rank() OVER w AS n FROM branch WINDOW w AS (PARTITION BY dt ORDER BY k)) "
    "WHERE n = 1 AND dt = 'a'",
    "SELECT k, CASE WHEN k > 1.5 THEN v ELSE DATE '2026-01-01' || X'00' END AS v, dt FROM branch WHERE dt = 'a' "
    "AND v NOT LIKE ANY ('%x', 'y%') GROUP BY ALL HAVING max(INTERVAL '1' DAY) > INTERVAL '0' DAY",
    "SELECT k, upper(v) AS v, dt FROM branch WHERE dt = 'a' AND k IN (SELECT k FROM main)",
    "SELECT k, from_json(v, 'a STRING, b ARRAY<STRUCT<c: INT COMMENT ''x''>>', map('mode', 'PERMISSIVE')).a AS v, dt "
    "FROM branch WHERE dt = 'a'",
    "SELECT k, from_csv(v, 'a STRING', map('sep', ';')).a || to_json(struct(k)) || get_json_object(v, '$.a') AS v, dt "
    "FROM d.t TIMESTAMP AS OF (current_timestamp()) WHERE dt = 'a'",
    "SELECT k, v, dt FROM d.t VERSION AS OF 'base' WHERE dt = 'a' UNION ALL SELECT k + 100, v, dt FROM `d`.`t@base` "
    "WHERE dt = 'a'",
    "SELECT k, v, dt FROM (SELECT * FROM branch) PIVOT (max(v) AS v FOR dt IN ('a' AS a)) JOIN other USING (k)",
    "SELECT k, string(listagg(v, ',') WITHIN GROUP (ORDER BY v)) AS v, dt FROM branch WHERE dt = 'a' GROUP BY k, dt",
    "WITH one AS (SELECT * FROM branch), two AS (SELECT * FROM one) SELECT k, v, dt FROM Two WHERE dt = 'a' AND k IN "
    "(SELECT k FROM one)",
    "WITH big AS (SELECT * FROM branch WHERE k > 1) SELECT k, v, dt FROM big WHERE dt = 'a' ORDER BY k LIMIT 3",
    "SELECT k, max(v) AS v, dt FROM d.t WHERE dt = 'a' GROUP BY k, dt HAVING count(*) = 1",
    "SELECT k, first_value(v) OVER w AS v, dt FROM branch WHERE dt = 'a' WINDOW w AS (PARTITION BY k ORDER BY v)",
    "SELECT b.k, x.v, b.dt FROM branch b JOIN other x ON b.k = x.k WHERE b.dt = 'a'",
    "SELECT k, concat(v, y) AS v, dt FROM branch LATERAL VIEW explode(array('1')) x AS y WHERE dt = 'a'",
    "SELECT CAST(id AS INT) AS k, 'x' AS v, 'a' AS dt FROM range(3)",
    "SELECT k, v, dt FROM VALUES (1, 'x', 'a') AS t(k, v, dt)",
    "SELECT k, transform(array(v), x -> upper(x))[0] AS v, dt FROM branch WHERE dt = 'a'",
    "SELECT k, CASE WHEN k = 1 THEN (SELECT min(v) FROM main) ELSE v END AS v, dt FROM branch WHERE dt = 'a'",
    "UPDATE branch SET v = concat(v, uuid()) WHERE dt = 'a' AND EXISTS (SELECT 1 FROM d.t AS m WHERE m.k = branch.k)",
    "DELETE FROM branch WHERE k = 1",
    "MERGE INTO branch USING (SELECT 2 AS k, 'a' AS dt) AS s ON branch.k = s.k AND branch.dt = s.dt "
    "WHEN MATCHED THEN UPDATE SET v = 'm' WHEN NOT MATCHED THEN INSERT (k, v, dt) VALUES (s.k, 'n', s.dt)",
    "INSERT INTO branch SELECT 99, 'n', 'a'",
]


def test_queries_and_statements_over_tables_are_taken(
    spark: SparkSession, tmp_path: Path, tables: tuple[Table, Table]
) -> None:
    for sql in every(2, HARMLESS):
        how = {"partitions": ["dt=a"]} if sql.startswith(("SELECT", "WITH")) else {}
        correct(spark, tmp_path, sql, restricted_sql=True, view=["other=d.t@1"], dry_run=True, **how)


def test_a_replay_hands_it_on(spark: SparkSession, tmp_path: Path, tables: tuple[Table, Table], secret: Path) -> None:
    main, fix = tables
    before, file = rows_of(fix), tmp_path / "replay.sql"
    put(main, [(1, "x", "b")])
    file.write_text(f"INSERT INTO branch SELECT 7, value, 'a' FROM src, text.`{secret}`")
    values = {"warehouse": str(tmp_path), "table": "d.t", "branch": "fix", "sql": str(file), "source": ["src=d.t"],
              "snapshot": ["1"], "restricted_sql": True}  # fmt: skip
    with pytest.raises(UnsafeOperationError, match="neither a table of the warehouse nor a view"):
        run_spark_operation(spark, build_request("replay_branch", values))
    assert rows_of(fix) == before


def test_sql_that_is_nested_too_deeply_is_named(
    spark: SparkSession, tmp_path: Path, tables: tuple[Table, Table]
) -> None:
    deep = "(" * 5000 + "k" + ")" * 5000
    for sql in (f"SELECT {deep} AS k, v, dt FROM branch WHERE dt = 'a'", f"DELETE FROM branch WHERE {deep} = 1"):
        how = {"partitions": ["dt=a"]} if sql.startswith("SELECT") else {}
        with pytest.raises(InvalidInputError, match="nested more than 100 deep"):
            correct(spark, tmp_path, sql, **how)
