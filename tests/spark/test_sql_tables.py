"""``sql`` with CREATE, ALTER, DESCRIBE and SHOW: the tables are those of the Python functions, and readable by Java."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    PaimonError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.spark import sql
from tests.core.tables import run
from tests.spark.jobs.operations import correct
from tests.strict_metadata import findings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL_TYPES = """CREATE TABLE IF NOT EXISTS d.typed (
    id BIGINT NOT NULL COMMENT 'it''s the id',
    `odd name` STRING COMMENT 'back\\\\slash',
    b BOOLEAN, ti TINYINT, si SMALLINT, i INT, f FLOAT, do DOUBLE, de DECIMAL(12, 3), c CHAR(3), vc VARCHAR(5),
    bi BINARY, da DATE, ts TIMESTAMP, tn TIMESTAMP_NTZ,
    a ARRAY<INT>, m MAP<STRING, BIGINT>, s STRUCT<x: INT NOT NULL COMMENT 'in', `y z`: ARRAY<STRING>>,
    dt STRING
) USING paimon PARTITIONED BY (dt) COMMENT 'all of "them"'
TBLPROPERTIES ('primary-key' = 'dt, id', 'bucket' = '2', 'file.format' = 'orc')"""


def shape(schema: TableSchema) -> Any:
    fields = [(f.id, f.name, str(f.type), f.description) for f in schema.fields]
    return fields, schema.partition_keys, schema.primary_keys, dict(schema.options), schema.comment


def values(frame: Any) -> list[Any]:
    return [row[0] if len(row) == 1 else tuple(row) for row in frame.collect()]


def test_create_table_makes_the_schema_that_python_makes(spark: SparkSession, tmp_path: Path) -> None:
    warehouse, other = str(tmp_path / "one"), str(tmp_path / "two")
    made = sql(spark, warehouse, ALL_TYPES)
    assert (made["operation"], made["changed"], made["snapshot_after"]) == ("sql", True, None)
    assert made["details"]["statement"] == "CREATE TABLE"
    schema = open_table(warehouse, "d.typed").schema()
    assert [str(f.type) for f in schema.fields] == [
        "BIGINT NOT NULL", "STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "FLOAT", "DOUBLE", "DECIMAL(12, 3)",
        "CHAR(3)", "VARCHAR(5)", "BYTES", "DATE", "TIMESTAMP(6) WITH LOCAL TIME ZONE", "TIMESTAMP(6)", "ARRAY<INT>",
        "MAP<STRING NOT NULL, BIGINT>", "ROW<x INT NOT NULL, `y z` ARRAY<STRING>>", "STRING NOT NULL",
    ]  # fmt: skip
    assert (schema.primary_keys, schema.partition_keys) == (("dt", "id"), ("dt",))
    assert dict(schema.options) == {"bucket": "2", "file.format": "orc"}
    assert (schema.comment, schema.field("id").description) == ('all of "them"', "it's the id")
    assert schema.field("odd name").description == "back\\slash"
    again = sql(spark, warehouse, ALL_TYPES)
    assert (again["changed"], again["details"]["notes"]) == (
        False, ["d.typed exists; IF NOT EXISTS left it as it is"])  # fmt: skip
    with pytest.raises(AlreadyExistsError, match=r"d\.typed exists; CREATE TABLE IF NOT EXISTS leaves"):
        sql(spark, warehouse, ALL_TYPES.replace("IF NOT EXISTS", ""))
    assert sql(spark, warehouse, "CREATE TABLE IF NOT EXISTS d.typed (x INT)")["changed"] is False
    odd = sql(spark, warehouse, "CREATE TABLE d.odd (a INT) TBLPROPERTIES ('bukcet' = '1')")
    assert "did you mean bucket" in odd["details"]["warnings"][0]
    # what SHOW CREATE TABLE says makes the same table
    (statement,) = values(sql(spark, warehouse, "SHOW CREATE TABLE d.typed"))
    sql(spark, other, statement)
    assert shape(open_table(other, "d.typed").schema()) == shape(schema)
    sql(spark, warehouse, "INSERT INTO d.typed (id, dt, `odd name`, s) SELECT 1, 'x', 'y', struct(1, NULL)")
    assert values(sql(spark, warehouse, "SELECT id, `odd name`, dt FROM d.typed")) == [(1, "y", "x")]
    assert list(findings(tmp_path)) == []


def test_create_table_as_select(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    text = """CREATE TABLE d.t PARTITIONED BY (dt) TBLPROPERTIES ('primary-key' = 'dt,k', 'bucket' = '1') AS
        SELECT CAST(id AS INT) AS k, concat('v', id) AS v, CASE WHEN id < 2 THEN 'a' ELSE 'b' END AS dt FROM range(4)"""
    made = sql(spark, warehouse, text, operation_id="one")
    details = made["details"]
    assert (details["statement"], details["rows_inserted"], made["snapshot_after"]) == (
        "CREATE TABLE AS SELECT", 4, 1)  # fmt: skip
    table = open_table(warehouse, "d.t")
    assert [(f.name, str(f.type)) for f in table.schema().fields] == [
        ("k", "INT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")]  # fmt: skip
    again = sql(spark, warehouse, text, operation_id="one")
    assert (again["details"]["replayed"], again["details"]["rows_inserted"], table.latest_snapshot_id()) == (True, 4, 1)
    with pytest.raises(AlreadyExistsError, match="INSERT OVERWRITE writes into it"):
        sql(spark, warehouse, text)
    left = sql(spark, warehouse, text.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
    assert (left["changed"], table.latest_snapshot_id()) == (False, 1)
    # the same columns: one commit, and the history stays
    replace = text.replace("CREATE TABLE", "CREATE OR REPLACE TABLE").replace("range(4)", "range(2)")
    with pytest.raises(InvalidInputError, match="all_rows=True"):
        sql(spark, warehouse, replace)
    replaced = sql(spark, warehouse, replace, all_rows=True)
    assert (replaced["snapshot_after"], read_arrow(table).num_rows, read_arrow(table, 1).num_rows) == (2, 2, 4)
    with pytest.raises(UnsupportedFeatureError, match=r"INSERT OVERWRITE d\.t SELECT \.\.\., which checks for that"):
        sql(spark, warehouse, "REPLACE TABLE d.t AS SELECT v.* FROM v", {"v": "d.t"}, all_rows=True)
    with pytest.raises(UnsupportedFeatureError, match=r"ALTER TABLE, then write INSERT OVERWRITE d\.t"):
        sql(spark, warehouse, "REPLACE TABLE d.t AS SELECT 1 AS k", all_rows=True)
    with pytest.raises(NotFoundError, match="CREATE OR REPLACE TABLE makes it"):
        sql(spark, warehouse, "REPLACE TABLE d.u AS SELECT 1 AS k")
    assert (
        sql(spark, warehouse, "CREATE OR REPLACE TABLE d.u AS SELECT * FROM d.t VERSION AS OF 1")["snapshot_after"] == 1
    )
    assert read_arrow(open_table(warehouse, "d.u")).num_rows == 4
    with pytest.raises(InvalidInputError, match=r"DIVIDE_BY_ZERO.*d\.w was created and has no rows of"):
        sql(spark, warehouse, "CREATE TABLE d.w AS SELECT 1 / (id - 1) AS x FROM range(2)")
    assert list(findings(tmp_path)) == []


def altered(spark: SparkSession, warehouse: str, text: str) -> Table:
    result = sql(spark, warehouse, text)
    assert (result["operation"], result["details"]["statement"]) == ("sql", "ALTER TABLE")
    return open_table(warehouse, "d.t")


def test_alter_table_on_main_and_on_a_branch(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    sql(spark, warehouse, "CREATE TABLE d.t (k INT, v STRING, n INT, dt STRING) PARTITIONED BY (dt)")
    table = open_table(warehouse, "d.t")
    for dt in "ab":
        write_arrow(table, pa.table({"k": [1], "v": ["x"], "n": [2], "dt": [dt]}).cast(read_arrow(table).schema))
    run(table, "create_tag", tag="one")
    run(table, "create_branch", branch="b", tag="one")
    for text, columns in (
        ("ADD COLUMNS (a BIGINT COMMENT 'new' FIRST, z DECIMAL(9,2) AFTER V)", "a k v z n dt"),
        ("RENAME COLUMN N TO m", "a k v z m dt"),
        ("ALTER COLUMN m TYPE BIGINT", "a k v z m dt"),
        ("ALTER COLUMN m COMMENT 'wide', z FIRST", "z a k v m dt"),
        ("DROP COLUMNS (a, z)", "k v m dt"),
        ("DROP COLUMN IF EXISTS nope", "k v m dt"),
        ("SET TBLPROPERTIES ('write-buffer-size' = '256 MB', 'comment' = 'said')", "k v m dt"),
        ("UNSET TBLPROPERTIES ('write-buffer-size')", "k v m dt"),
    ):
        assert list(altered(spark, warehouse, f"ALTER TABLE d.t {text}").schema().field_names) == columns.split()
    schema = table.schema()
    assert (schema.id, str(schema.field("m").type), schema.field("m").description) == (7, "BIGINT", "wide")
    assert (schema.comment, dict(schema.options), schema.field("m").id) == ("said", {}, 2)
    sql(spark, warehouse, "COMMENT ON TABLE d.t IS 'it''s'")
    assert table.schema().comment == "it's"
    branch = sql(spark, warehouse, "ALTER TABLE d.`t$branch_b` ADD COLUMN extra STRING")
    assert (branch["branch"], table.branch("b").schema().field_names[-1]) == ("b", "extra")
    assert values(sql(spark, warehouse, "SELECT m FROM d.t WHERE dt = 'a'")) == [2]
    gone = sql(spark, warehouse, "ALTER TABLE d.t DROP PARTITION (dt = 'a')")
    assert (gone["changed"], values(sql(spark, warehouse, "SHOW PARTITIONS d.t"))) == (True, ["dt=b"])
    before = table.schema().id
    for text, error, said in (
        ("ADD COLUMN v STRING", InvalidInputError, "'v' is empty or taken"),
        ("ADD COLUMN x INT NOT NULL", InvalidInputError, "must be nullable"),
        ("ADD COLUMN v.x INT", UnsupportedFeatureError, r"v\.x is a field inside"),
        ("ADD COLUMN x INT DEFAULT 3", UnsupportedFeatureError, "DEFAULT of column 'x'"),
        ("ADD COLUMN x INTERVAL", PaimonError, "interval|can't parse"),
        ("ALTER COLUMN m TYPE INT", InvalidInputError, "can't represent every value"),
        ("ALTER COLUMN m DROP NOT NULL", UnsupportedFeatureError, "NOT NULL of column 'm'"),
        ("DROP COLUMN dt", InvalidInputError, "key column"),
        ("DROP COLUMN nope", InvalidInputError, "no column 'nope'"),
        ("SET TBLPROPERTIES ('primary-key' = 'k')", InvalidInputError, "'primary-key' describes the table"),
        ("SET TBLPROPERTIES ('merge-engine' = 'first-row')", InvalidInputError, "how existing files are read"),
        ("SET TBLPROPERTIES ('snapshot.expire.limit' = 'ten')", InvalidInputError, "'ten' is not a whole number"),
        ("RENAME TO d.u", UnsupportedFeatureError, "AS SELECT"),
        ("DROP PARTITION (dt = 'zz')", NotFoundError, "no partition dt=zz"),
        ("REPLACE COLUMNS (x INT)", InvalidInputError, "sql doesn't run"),
        ("SET TBLPROPERTIES ('a' = 'b'); DROP TABLE d.t", InvalidInputError, "Syntax error"),
    ):
        with pytest.raises(error, match=said):
            sql(spark, warehouse, f"ALTER TABLE d.t {text}")
    assert table.schema().id == before
    with pytest.raises(NotFoundError, match="no branch 'nope'"):
        sql(spark, warehouse, "ALTER TABLE d.`t$branch_nope` ADD COLUMN x INT")
    assert list(findings(tmp_path)) == []


def test_the_partitions_that_are_shown_can_be_dropped(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    table = create_table(warehouse, "d.t", [("k", "INT"), ("dt", "STRING")], partition_keys=["dt"])
    odd = [None, "", " ", "a", " a", "a/b", "a%2Fb", ",", "%2C", "it's", "None"]
    rows = pa.table({"k": pa.array(range(len(odd)), pa.int32()), "dt": odd})
    write_arrow(table, rows)
    run(table, "create_branch", branch="b", snapshot=1)
    shown = values(sql(spark, warehouse, "SHOW PARTITIONS d.t"))
    assert len(shown) == len(odd)
    assert values(sql(spark, warehouse, "SHOW PARTITIONS d.t PARTITION (dt = '')")) == ["dt=''"]
    left = {*odd}
    for value in ("", None, "a%2Fb", "it's"):
        literal = "NULL" if value is None else "'" + value.replace("'", "\\'") + "'"
        sql(spark, warehouse, f"ALTER TABLE d.t DROP PARTITION (dt = {literal})")
        left.remove(value)
        assert set(read_arrow(table).column("dt").to_pylist()) == left
    with pytest.raises(NotFoundError, match="no partition dt=__DEFAULT_PARTITION__;"):
        sql(spark, warehouse, "ALTER TABLE d.t DROP PARTITION (dt = NULL)")
    for literal, value in (("NULL", None), ("'a%2Fb'", "a%2Fb"), ("','", ",")):
        text = f"INSERT OVERWRITE branch PARTITION (dt = {literal}) SELECT 99 AS k"
        correct(spark, tmp_path, branch="b", sql=text)
        found = {r["dt"]: r["k"] for r in read_arrow(table.branch("b")).to_pylist()}
        assert [v for v in odd if found[v] == 99] == [value]
        write_arrow(table.branch("b"), rows, mode="overwrite")


def test_describe_and_show(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    columns = (("k", "INT NOT NULL"), ("v", "VARCHAR(9)"), ("s", "ROW<A INT>"), ("t", "TIME(3)"), ("dt", "STRING"))
    options = {"bucket": "1", "bucket-key": "k"}
    table = create_table(warehouse, "d.t", columns, partition_keys=["dt"], options=options, comments={"k": "the key"})
    create_table(warehouse, "d.tab", [("x", "INT")])
    create_table(warehouse, "e.other", [("x", "INT")])
    rows = [{"k": n, "v": "x", "s": None, "t": None, "dt": dt} for n, dt in enumerate(("a", "b/c", None))]
    write_arrow(table, pa.Table.from_pylist(rows, read_arrow(table).schema))
    run(table, "create_tag", tag="one")
    run(table, "create_branch", branch="b", tag="one")
    assert values(sql(spark, warehouse, "SHOW DATABASES")) == ["d", "e"]
    assert values(sql(spark, warehouse, "SHOW SCHEMAS LIKE 'E|x*'")) == ["e"]
    tables = sql(spark, warehouse, "SHOW TABLES")
    assert (tables.columns, values(tables)) == (
        ["namespace", "tableName", "isTemporary"],
        [("d", "t", False), ("d", "tab", False), ("e", "other", False)],
    )
    assert values(sql(spark, warehouse, "SHOW TABLES IN d LIKE 'TA*'")) == [("d", "tab", False)]
    assert values(sql(spark, warehouse, "SHOW BRANCHES IN d.t")) == ["b"]
    assert values(sql(spark, warehouse, "SHOW TAGS d.t")) == ["airflow-paimon-branch-b", "one"]
    assert values(sql(spark, warehouse, "SHOW TAGS IN d.`t$branch_b`")) == ["one"]
    assert values(sql(spark, warehouse, "SHOW COLUMNS IN d.t")) == ["k", "v", "s", "t", "dt"]
    assert values(sql(spark, warehouse, "SHOW PARTITIONS d.t")) == ["dt=__DEFAULT_PARTITION__", "dt=a", "dt=b/c"]
    assert values(sql(spark, warehouse, "SHOW PARTITIONS d.t PARTITION (DT = 'b/c')")) == ["dt=b/c"]
    assert values(sql(spark, warehouse, "SHOW TBLPROPERTIES d.t")) == [
        ("bucket", "1"), ("bucket-key", "k"), ("provider", "paimon")]  # fmt: skip
    assert values(sql(spark, warehouse, "SHOW TBLPROPERTIES d.t ('nope')")) == [
        ("nope", "Table d.t does not have property: nope")]  # fmt: skip
    described = sql(spark, warehouse, "DESC TABLE EXTENDED d.t")
    assert described.columns == ["col_name", "data_type", "comment"]
    shown = values(described)
    assert shown[:8] == [
        ("k", "int", "the key"), ("v", "varchar(9)", None), ("s", "STRUCT<`A`: INT>", None), ("t", "int", None),
        ("dt", "string", None), ("# Partition Information", "", ""), ("# col_name", "data_type", "comment"),
        ("dt", "string", None),
    ]  # fmt: skip
    assert ("Latest Snapshot", "1", "") in shown
    assert values(sql(spark, warehouse, "DESCRIBE d.t K")) == [
        ("col_name", "k"), ("data_type", "int"), ("comment", "the key")]  # fmt: skip
    assert "`t` INT /* TIME(3) */" in values(sql(spark, warehouse, "SHOW CREATE TABLE d.t"))[0]
    for text, error, said in (
        ("SHOW TABLES IN nope", NotFoundError, r"no database 'nope' \(it has d, e\)"),
        ("SHOW TABLES IN `../x`", NotFoundError, "no database '../x'"),
        ("SHOW PARTITIONS d.tab", InvalidInputError, "is not partitioned"),
        ("SHOW PARTITIONS d.t PARTITION (x = 1)", InvalidInputError, "'x' is not a partition column"),
        ("DESCRIBE d.nope", NotFoundError, r"no table d\.nope"),
        ("DESCRIBE t", InvalidInputError, r"name it as db\.t"),
        ("DESCRIBE d.t nope", InvalidInputError, "no column 'nope'"),
        ("DESCRIBE `..`.`t`", InvalidInputError, "not of the form"),
        ("SHOW TAGS `d`.`t```", InvalidInputError, "can't be the name"),
        ("SHOW BRANCHES", InvalidInputError, "names no table"),
    ):
        with pytest.raises(error, match=said):
            sql(spark, warehouse, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CREATE TABLE t (a INT)", "name it as db.t"),
        ("CREATE TABLE c.d.t (a INT)", "name it as db.t"),
        ("CREATE TABLE d.`t$branch_b` (a INT)", "made by create_branch"),
        ("CREATE TABLE d.`../../t` (a INT)", "not of the form"),
        ("CREATE TABLE d.`t``` (a INT)", "can't be the name"),
        ("CREATE TABLE d.t (a INT) USING parquet", "USING parquet"),
        ("CREATE TABLE d.t (a INT) LOCATION '/tmp/x'", "LOCATION"),
        ("CREATE EXTERNAL TABLE d.t (a INT) LOCATION '/tmp/x'", "LOCATION or EXTERNAL"),
        ("CREATE TABLE d.t (a INT) TBLPROPERTIES ('path' = '/tmp/x')", "catalog chooses"),
        ("CREATE TABLE d.t (a INT) STORED AS parquet", "STORED AS"),
        ("CREATE TABLE d.t (a INT) OPTIONS ('x' = 'y')", "write TBLPROPERTIES"),
        ("CREATE TABLE d.t (a INT, PRIMARY KEY (a))", "'primary-key' = 'a,b'"),
        ("CREATE TABLE d.t (a INT) CLUSTERED BY (a) INTO 3 BUCKETS", "set buckets with"),
        ("CREATE TABLE d.t (a INT) PARTITIONED BY (years(a))", "partition by columns"),
        ("CREATE TABLE d.t (a INT DEFAULT 3)", "DEFAULT of column 'a'"),
        ("CREATE TABLE d.t (a INTERVAL DAY)", "interval day"),
        ("CREATE TABLE d.t (a STRING COLLATE UTF8_LCASE)", "bytes"),
        ("CREATE TABLE d.t (a STRUCT<b: STRING COLLATE UTF8_LCASE>)", "bytes"),
        ("CREATE TABLE d.t (a INT, A INT)", "case|already exists"),
        ("CREATE TABLE d.t (a INT) TBLPROPERTIES ('primary-key' = 'nope')", "nope"),
        ("CREATE TABLE d.t (a INT) TBLPROPERTIES ('bucket' = 'many')", "bucket"),
        ("CREATE TABLE d.t (a INT, b INT) PARTITIONED BY (b) TBLPROPERTIES ('partition' = 'a')", "given twice"),
        (
            "CREATE TABLE d.t (k INT, a INT, b INT) TBLPROPERTIES ('primary-key' = 'k', "
            "'merge-engine' = 'partial-update', 'fields.a.sequence-group' = ' b')",
            "write b without blanks",
        ),
        ("CREATE TABLE d.t AS SELECT a FROM d.nope", "cannot be found"),
        ("CREATE TABLE d.t AS SELECT 1 AS a, 2 AS a", "twice|another name"),
        ("CREATE TABLE d.t AS SELECT NULL AS a", "void"),
        ("CREATE TABLE d.t TBLPROPERTIES ('merge-engine' = 'x', 'primary-key' = 'a') AS SELECT 1 AS a", "merge-engine"),
        ("CREATE TABLE d.t LIKE d.s", "sql doesn't run"),
        ("REPLACE TABLE d.t (a INT)", "CREATE OR REPLACE TABLE makes it"),
        ("CREATE TABLE d.t (a INT); CREATE TABLE d.u (a INT)", "Syntax error"),
    ],
)
def test_what_create_table_refuses_makes_nothing(spark: SparkSession, tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(PaimonError, match=said):
        sql(spark, str(tmp_path), text)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_drop_table(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    sql(spark, warehouse, "CREATE TABLE d.t AS SELECT 1 AS k")
    table = open_table(warehouse, "d.t")
    with pytest.raises(InvalidInputError, match=r"confirm with all_rows=True"):
        sql(spark, warehouse, "DROP TABLE d.t")
    with pytest.raises(InvalidInputError, match=r"all_rows confirms .* True or False, not 'false'"):
        sql(spark, warehouse, "DROP TABLE d.t", all_rows="false")  # type: ignore[arg-type]
    run(table, "create_tag", tag="one")
    with pytest.raises(UnsafeOperationError, match="tags one"):
        sql(spark, warehouse, "DROP TABLE d.t", all_rows=True)
    run(table, "delete_tag", tag="one")
    for text, said in (
        ("DROP TABLE d.`t$branch_b`", "deleted by delete_branch"),
        ("DROP TABLE d.`t$snapshots`", "deleted by delete_branch"),
        ("DROP TABLE d.`../d.db/t`", "not of the form"),
        ("DROP TABLE d", r"name it as db\.t"),
        ("DROP TABLE d.t; DROP TABLE d.u", "Syntax error"),
        ("DROP VIEW d.t", "sql doesn't run"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            sql(spark, warehouse, text, all_rows=True)
    assert read_arrow(table).num_rows == 1
    dropped = sql(spark, warehouse, "DROP TABLE d.t", all_rows=True)
    assert (dropped["changed"], dropped["snapshot_before"], dropped["details"]) == (
        True, 1, {"statement": "DROP TABLE"})  # fmt: skip
    assert not (tmp_path / "d.db/t").exists()
    with pytest.raises(NotFoundError, match=r"no table d\.t"):
        sql(spark, warehouse, "DROP TABLE d.t", all_rows=True)
    assert sql(spark, warehouse, "DROP TABLE IF EXISTS d.t PURGE", all_rows=True)["changed"] is False
