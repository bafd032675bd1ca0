"""The engine ``connector`` on Paimon's own Spark connector 0.9.0 (Spark 3.5.9): the same rows and results as ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.bundled import job_path, package_archive
from airflow_paimon.core.commit.staging import open_staging
from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.schema.schema_plan import AddColumn, RenameColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import write_arrow
from airflow_paimon.data.files.arrow_types import arrow_schema
from airflow_paimon.spark.jobs import run_spark_operation
from tests.class_archive import BARE_JVM
from tests.core.tables import alter_table
from tests.oracles import layout
from tests.oracles.drivers import SparkConnectorOracle
from tests.randomness import some
from tests.spark.jobs.operations import correct, diff, make_branch, rows_of, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What the rows of a statement must be, the tests of the embedded engine say in each run.
pytestmark = [pytest.mark.oracle, pytest.mark.part(every=4, together=True)]

Run = Callable[..., dict[str, Any]]
OWN = {"branch", "bytes", "plan_id", "duration_s"}
"""What two branches, or two writers of files, can't have the same."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package_archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def connector(connector_oracle: SparkConnectorOracle, archive: Path, tmp_path: Path) -> Run:
    """Runs an operation on rows with the engine ``connector``; a query is given as text."""

    def run_it(operation: str, sql: str | None = None, **values: Any) -> dict[str, Any]:
        if sql is not None:
            file = tmp_path / "connector.sql"
            file.write_text(sql)
            values["sql"] = str(file)
        base = {"warehouse": str(tmp_path), "table": "d.t", "engine": "connector", "branch": "fix"}
        return connector_oracle.operation(archive, operation, **(base | values))

    return run_it


def shared(result: dict[str, Any]) -> dict[str, Any]:
    details = {k: v for k, v in result["details"].items() if k not in OWN}
    return {k: v for k, v in result.items() if k not in OWN} | {"details": details}


def sorted_samples(details: dict[str, Any]) -> dict[str, Any]:
    """Which rows are shown first differs where a partition has several buckets, or no keys."""
    out = json.loads(json.dumps(details))
    for partition in out["partitions"]:
        partition["samples"] = {k: sorted(v, key=json.dumps) for k, v in partition["samples"].items()}
    return {k: v for k, v in out.items() if k not in OWN}


@pytest.mark.parametrize("primary", some([True, False], 1), ids=lambda primary: "primary-key" if primary else "append")
def test_an_overwrite_and_its_diff_are_those_of_the_embedded_engine(
    primary: bool, spark: SparkSession, connector: Run, tmp_path: Path
) -> None:
    main, ours = make_branch(tmp_path, primary=primary)
    run(tmp_path, "create_branch", branch="theirs", tag="base")
    sql = "SELECT k, concat(v, '!') v, dt FROM branch WHERE dt = 'a' AND k < 7 UNION ALL SELECT 99L, 'new', 'a'"
    chosen = {"partitions": ("dt=a", "dt=b")}
    embedded = correct(spark, tmp_path, sql, **chosen).to_json()
    other = connector("correct_branch", sql, branch="theirs", **chosen)
    assert rows_of(main.branch("theirs")) == rows_of(ours) != rows_of(main)
    for key in ("files_added", "files_deleted", "buckets"):  # how rows are spread over files is each writer's own
        assert other["details"].pop(key) >= 0 <= embedded["details"].pop(key)
    sources = embedded["details"].pop("column_sources")
    assert other["details"].pop("column_sources", sources) == sources  # not every Spark's plan tells them
    assert shared(other) == shared(embedded)
    answers = [diff(spark, tmp_path, branch=b, sample=20) for b in ("fix", "theirs")]
    answers += [connector("diff_branches", branch=b, sample=20)["details"] for b in ("fix", "theirs")]
    first, *others = map(sorted_samples, answers)
    assert others == [first] * 3
    assert first["total"] == (
        {"added": 1, "changed": 7, "deleted": 13, "unchanged": 10, "unchanged_exact": True}
        if primary
        else {"added": 8, "changed": 0, "deleted": 20, "unchanged": 10, "unchanged_exact": True}
    )
    run(tmp_path, "merge_branch", branch="theirs")
    assert rows_of(main) == rows_of(ours)
    assert run(tmp_path, "check_table").details["ok"]


def test_samples_and_comparison_of_every_type_are_the_same(spark: SparkSession, connector: Run, tmp_path: Path) -> None:
    columns = {
        "k": "BIGINT NOT NULL", "b": "BOOLEAN", "i": "INT", "f": "FLOAT", "d": "DOUBLE", "m": "DECIMAL(20, 4)",
        "s": "STRING", "y": "BYTES", "day": "DATE", "ts": "TIMESTAMP(3)", "tz": "TIMESTAMP(6) WITH LOCAL TIME ZONE",
        "l": parse_type({"type": "ARRAY", "element": "INT"}),
        "p": parse_type({"type": "MAP", "key": "STRING NOT NULL", "value": "DOUBLE"}),
        "r": parse_type({"type": "ROW", "fields": [{"id": 90, "name": "x", "type": "INT"},
                                                   {"id": 91, "name": "y", "type": "STRING"}]}),
    }  # fmt: skip
    main = create_table(
        str(tmp_path),
        "d.t",
        list(columns.items()),
        primary_keys=["k"],
        options={"bucket": "1", "file.format": "parquet"},
    )
    row = {
        "k": 1, "b": True, "i": 1, "f": 1.5, "d": -0.0, "m": Decimal("12.5000"), "s": "ä", "y": b"\x00\xff",
        "day": date(2025, 1, 2), "ts": datetime(2025, 1, 2, 3, 4, 5, 6000),
        "tz": datetime(2025, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "l": [1, None], "p": {"a": 1.0, "b": None},
        "r": {"x": 1, "y": None},
    }  # fmt: skip
    changes = {
        "b": None, "f": float("nan"), "d": 0.0, "m": Decimal("-1"), "s": "b", "y": b"", "day": date(1969, 1, 1),
        "ts": datetime(1969, 12, 31, 23, 59, 59, 999000), "tz": None, "l": [], "p": {"b": None, "a": 2.0},
        "r": {"x": 1, "y": "z"},
    }  # fmt: skip
    put(main, [row | {"k": n} for n in range(len(changes) + 1)])
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    changed = [row | {"k": n, name: value} for n, (name, value) in enumerate(changes.items())]
    put(main.branch("fix"), [*changed, row | {"k": len(changes), "p": {"b": None, "a": 1.0}}])
    embedded = diff(spark, tmp_path, sample=20)
    assert (embedded["total"]["changed"], embedded["total"]["unchanged"]) == (len(changes), 1)
    assert connector("diff_branches", sample=20)["details"] == embedded


def put(table: Table, rows: list[dict[str, Any]]) -> None:
    types = arrow_schema(table.schema().fields)
    columns = {name: [r[name] for r in rows] for name in types.names}
    columns["p"] = [list(pairs.items()) for pairs in columns["p"]]
    write_arrow(table, pa.table([pa.array(columns[f.name], f.type) for f in types], schema=types))


def test_an_upsert_is_folded_by_the_publish(connector: Run, tmp_path: Path) -> None:
    main, _ = make_branch(tmp_path)
    done = connector("correct_branch", "SELECT 3L k, 'fixed' v, 'a' dt", mode="upsert")
    assert (done["changed"], done["details"]["rows"], done["details"]["partitions"]) == (True, 1, {"dt=a": 1})
    assert len(run(tmp_path, "merge_branch", branch="fix", dry_run=True).details["folds"]) == 1
    run(tmp_path, "merge_branch", branch="fix")
    assert (3, "fixed", "a") in rows_of(main) and len(rows_of(main)) == 30


STATEMENTS = (
    """UPDATE branch SET v = concat(branch.v, '!') WHERE dt = 'a'
        AND k < (SELECT min(k) + 3 FROM d.t VERSION AS OF 'base') AND k IN (SELECT k FROM branch)""",
    "WITH x AS (SELECT k FROM main WHERE k = 8) DELETE FROM branch AS b WHERE b.dt <> 'c' AND b.k IN (SELECT k FROM x)",
    """MERGE INTO branch USING (SELECT k + 8 AS k, v, dt FROM d.`t$branch_fix` WHERE dt = 'b' AND k < 3) s
        ON branch.k = s.k AND branch.dt = s.dt WHEN MATCHED THEN UPDATE SET v = upper(s.v)
        WHEN NOT MATCHED THEN INSERT (k, v, dt) VALUES (s.k, s.v, s.dt)""",
    "INSERT INTO branch SELECT 90, concat('new', count(*)), 'b' FROM d.t",
    "INSERT OVERWRITE branch PARTITION (dt = 'c') SELECT k, 'c' FROM branch WHERE k = 1 AND dt = 'c'",
)


@pytest.mark.parametrize("primary", some([True, False], 1), ids=lambda primary: "primary-key" if primary else "append")
def test_statements_do_what_they_do_with_the_embedded_engine(
    primary: bool, spark: SparkSession, connector: Run, tmp_path: Path
) -> None:
    main, ours = make_branch(tmp_path, primary=primary)
    run(tmp_path, "create_branch", branch="theirs", tag="base")
    theirs = main.branch("theirs")
    for number, text in enumerate(STATEMENTS):
        done = connector("correct_branch", text, branch="theirs", operation_id=f"op-{number}")
        correct(spark, tmp_path, text)
        assert done.get("changed"), (text, done)
        assert rows_of(theirs) == rows_of(ours), text
        assert (
            done["details"]["changed_partitions"] == [["dt=a"], ["dt=a", "dt=b"], ["dt=b"], ["dt=b"], ["dt=c"]][number]
        )
    head = theirs.latest_snapshot_id()
    assert connector("correct_branch", text, branch="theirs", operation_id="op-4")["details"]["replayed"]
    nothing = connector("correct_branch", "DELETE FROM branch WHERE k = -1", branch="theirs")
    assert (nothing["changed"], len(nothing["details"]["notes"])) == (False, 1)
    wrong: dict[str, dict[str, Any]] = {
        "UPDATE branch SET v = nope WHERE k = 1": {},
        "DELETE FROM branch": {},
        "DELETE FROM main WHERE k = 1": {},
        "UPDATE branch SET v = 'x' WHERE k = 1": {"dry_run": True},
    }
    said = [connector("correct_branch", t, branch="theirs", **more)["error"]["message"] for t, more in wrong.items()]
    for message, expected in zip(
        said, [r"nope.*position 23", "--all-rows", "name it branch", "--dry-run"], strict=True
    ):
        assert re.search(expected, message), message
    assert theirs.latest_snapshot_id() == head
    assert main.branch_names() == ["fix", "theirs"], "no staging branch is left"
    run(tmp_path, "merge_branch", branch="theirs", writers_stopped=True)
    assert rows_of(main) == rows_of(ours)
    assert run(tmp_path, "check_table").details["ok"]


FEATURES = {
    "aggregation": ({"bucket": "2", "merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}, "a1=35 a2=7"),
    "deletion-vectors": ({"bucket": "2", "deletion-vectors.enabled": "true"}, "a1=30 a2=7"),
    "dynamic-bucket": ({"bucket": "-1"}, "a1=30 a2=7"),
    "partial-update": ({"bucket": "2", "merge-engine": "partial-update"}, "a1=30 a2=7"),
    "first-row": ({"bucket": "2", "merge-engine": "first-row"}, "a1=5 a2=7"),
}


@pytest.mark.parametrize("feature", some(FEATURES, 1))
def test_a_table_that_the_embedded_engine_refuses_is_corrected_and_published(
    feature: str, connector: Run, connector_oracle: SparkConnectorOracle, tmp_path: Path
) -> None:
    options, upserted = FEATURES[feature]
    properties = ", ".join(f"'{k}'='{v}'" for k, v in {"primary-key": "dt,k", **options}.items())

    def shown(table: str) -> str:
        rows = connector_oracle.sql(tmp_path, f"SELECT dt, k, v FROM d.`{table}` ORDER BY dt, k").to_pylist()
        return " ".join(f"{r['dt']}{r['k']}={r['v']}" for r in rows)

    connector_oracle.sql(
        tmp_path,
        f"CREATE TABLE t (k BIGINT, v BIGINT, dt STRING) PARTITIONED BY (dt) TBLPROPERTIES ({properties})",
        "INSERT INTO t VALUES (1L, 10L, 'a'), (2L, 20L, 'a'), (3L, 30L, 'b')",
        "INSERT INTO t VALUES (4L, 40L, 'b')",
        database="d",
    )
    assert shown("t") == "a1=10 a2=20 b3=30 b4=40"
    for branch in ("fix", "more"):
        run(tmp_path, "create_branch", branch=branch, snapshot=open_table(str(tmp_path), "d.t").latest_snapshot_id())
    done = connector("correct_branch", "SELECT k, v + 1 v, dt FROM branch WHERE k <> 4", partitions=("dt=a", "dt=b"))
    assert (done["changed"], done["details"]["partitions"]) == (True, {"dt=a": 2, "dt=b": 1}), done
    assert shown("t$branch_fix") == "a1=11 a2=21 b3=31"
    found = connector("diff_branches")["details"]
    assert found["total"] == {"added": 0, "changed": 3, "deleted": 1, "unchanged": 0, "unchanged_exact": True}
    assert shown("t") == "a1=10 a2=20 b3=30 b4=40"
    # the connector has written a partition's index of dynamic buckets anew
    run(tmp_path, "merge_branch", branch="fix", writers_stopped=feature == "dynamic-bucket")
    assert shown("t") == "a1=11 a2=21 b3=31"
    connector_oracle.sql(tmp_path, "INSERT INTO t VALUES (5L, 50L, 'b')", database="d")  # main's writers go on
    assert shown("t") == "a1=11 a2=21 b3=31 b5=50"
    # a partition written anew, then an upsert into it
    again = connector("correct_branch", "SELECT 1L k, 5L v, 'a' dt", branch="more", partitions=("dt=a",))
    assert again["changed"], again
    rows = "SELECT 1L k, 30L v, 'a' dt UNION ALL SELECT 2L, 7L, 'a'"
    assert connector("correct_branch", rows, branch="more", mode="upsert")["changed"]
    assert shown("t$branch_more") == f"{upserted} b3=30 b4=40"
    assert run(tmp_path, "check_table").details["ok"]


HIDES = {"deletion-vectors": {"deletion-vectors.enabled": "true"}, "first-row": {"merge-engine": "first-row"}}


@pytest.mark.parametrize("feature", some(HIDES, 1))
def test_rows_that_wait_for_a_compaction_are_never_overwritten_unseen(
    feature: str, connector: Run, connector_oracle: SparkConnectorOracle, tmp_path: Path
) -> None:
    options = {"primary-key": "dt,k", "bucket": "1", "write-only": "true", **HIDES[feature]}
    properties = ", ".join(f"'{k}'='{v}'" for k, v in options.items())
    connector_oracle.sql(
        tmp_path,
        f"CREATE TABLE t (k BIGINT, v BIGINT, dt STRING) PARTITIONED BY (dt) TBLPROPERTIES ({properties})",
        "INSERT INTO t SELECT id, 1L, 'b' FROM range(2)",
        "CALL sys.compact(table => 'd.t')",
        "INSERT INTO t SELECT id, 1L, 'a' FROM range(32)",
        database="d",
    )
    head = open_table(str(tmp_path), "d.t").latest_snapshot_id()
    run(tmp_path, "create_branch", branch="fix", snapshot=head)
    asked = {"sql": "SELECT * FROM branch WHERE dt = 'a'", "partitions": ("dt=a",)}
    for more in ({}, {"dry_run": True}, {"sql": "SELECT 40L k, 1L v, 'a' dt", "mode": "upsert"}):
        error = connector("correct_branch", **(asked | more))["error"]
        assert (error["kind"], error["files"], error["rows"], error["partitions"]) == ("unsafe", 1, 32, ["dt=a"]), error
        assert (
            "partition dt=a holds" in error["message"]
            and "CALL sys.compact(table => 'd.`t$branch_fix`')" in error["message"]
        )
    # what waits elsewhere is in nobody's way
    assert connector("correct_branch", "SELECT k, 2L v, dt FROM branch WHERE dt = 'b'", partitions=("dt=b",))["changed"]
    found = connector("diff_branches")["details"]
    assert (found["total"]["changed"], found["files_not_visible"]) == (2, {"branch": 0, "against": 0})
    # another engine drops the rows that it can't see: the diff says that it doesn't show everything
    connector_oracle.sql(tmp_path, "INSERT OVERWRITE `t$branch_fix` PARTITION (dt = 'a') SELECT 99L, 9L", database="d")
    found = connector("diff_branches")["details"]
    assert found["different"] and found["files_not_visible"]["against"] == 1
    assert any("1 files with 32 rows in dt=a, which base has and fix lacks" in note for note in found["notes"])
    # the way out that the refusal names
    run(tmp_path, "create_branch", branch="again", snapshot=head)
    connector_oracle.sql(tmp_path, "CALL sys.compact(table => 'd.`t$branch_again`')")
    sql = "SELECT k, 3L v, dt FROM branch WHERE dt = 'a'"
    done = connector("correct_branch", sql, branch="again", partitions=("dt=a",))
    assert done["details"]["rows"] == 32


def test_an_expired_base_is_read_by_its_tag(spark: SparkSession, connector: Run, tmp_path: Path) -> None:
    _, branch = make_branch(tmp_path)
    assert connector("correct_branch", "SELECT k, 'x' v, dt FROM branch WHERE dt = 'a'", partitions=("dt=a",))[
        "changed"
    ]
    branch.store.delete(branch.paths.snapshot(3))
    found = connector("diff_branches", sample=20)["details"]
    assert found["total"]["changed"] == 10
    assert sorted_samples(found) == sorted_samples(diff(spark, tmp_path, sample=20))


def test_the_base_is_read_with_the_branch_s_columns(spark: SparkSession, connector: Run, tmp_path: Path) -> None:
    _, branch = make_branch(tmp_path)
    alter_table(branch, [RenameColumn(name="v", to_name="w"), AddColumn(name="x", type="INT")])
    done = connector("correct_branch", "SELECT k, w, dt, 1 x FROM branch WHERE dt = 'a'", partitions=("dt=a",))
    assert done["changed"], done
    embedded = diff(spark, tmp_path, sample=20)
    assert embedded["total"]["changed"] == 10
    assert sorted_samples(connector("diff_branches", sample=20)["details"]) == sorted_samples(embedded)


@pytest.mark.parametrize("primary", some([True, False], 1), ids=lambda primary: "primary-key" if primary else "append")
def test_names_with_dots_and_backticks(primary: bool, spark: SparkSession, connector: Run, tmp_path: Path) -> None:
    # the connector itself doesn't find columns with dots by which partitions and buckets are distributed
    day = "dt" if primary else "d.t"
    columns = [
        *(("id", "BIGINT NOT NULL"), ("k.k", "BIGINT NOT NULL"), ("v`v", "STRING")),
        *(("a.`b`.c", "DOUBLE"), (day, "STRING NOT NULL")),
    ]
    keys = [day, "k.k", "id"] if primary else []
    options = {"bucket": "2", "bucket-key": "id"} if primary else {"bucket": "-1"}
    main = create_table(str(tmp_path), "d.t", columns, partition_keys=[day], primary_keys=keys, options=options)
    rows = [(k, k, f"{name}{k}", k / 2, name) for name in "ab" for k in range(5)]
    names = [name for name, _ in columns]
    write_arrow(main, pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))))
    run(tmp_path, "create_tag", tag="base")
    for name in ("fix", "theirs"):
        run(tmp_path, "create_branch", branch=name, tag="base")
        change = [RenameColumn(name="a.`b`.c", to_name="e.`"), AddColumn(name="new.`x`", type="INT")]
        alter_table(main.branch(name), change)
    sql = f"""SELECT id, `k.k`, concat(`v``v`, '!') AS `v``v`, `e.``` + 1 AS `e.```, `{day}`, 7 AS `new.``x```
        FROM branch WHERE `{day}` = 'a' AND `k.k` < 4"""
    ours, chosen = main.branch("fix"), {"partitions": (f"{day}=a",)}
    assert correct(spark, tmp_path, sql, **chosen).changed
    done = connector("correct_branch", sql, branch="theirs", **chosen)
    assert done.get("changed"), done
    assert rows_of(main.branch("theirs")) == rows_of(ours)
    answers = [diff(spark, tmp_path, branch=b, sample=20) for b in ("fix", "theirs")]
    answers += [connector("diff_branches", branch=b, sample=20)["details"] for b in ("fix", "theirs")]
    first, *others = map(sorted_samples, answers)
    assert others == [first] * 3
    assert first["total"]["deleted"] == (1 if primary else 5)
    if primary:
        said = connector("correct_branch", f"{sql} UNION ALL {sql}", branch="theirs", **chosen)["error"]["message"]
        assert "the rows hold 4 primary keys more than once, such as dt = 'a', k.k = " in said


def test_a_retry_gives_the_first_try_s_result(connector: Run, tmp_path: Path) -> None:
    _, branch = make_branch(tmp_path)
    asked = {"sql": "SELECT k, 'x' v, dt FROM branch WHERE dt = 'a'", "partitions": ("dt=a",), "operation_id": "op-1"}
    head = branch.latest_snapshot()
    assert head is not None
    open_staging(
        branch, head, branch.schema(), "op-1", "2026-11-21T00:00:00+00:00", shares=False
    )  # what a killed try leaves
    (left,) = [n for n in branch.branch_names() if n != "fix"]
    findings = run(tmp_path, "check_table").details["findings"]
    assert [f["id"] for f in findings] == [f"staging-branch:{left}"]
    first = connector("correct_branch", **asked)
    first["details"].pop("column_sources", None)  # of the plan, which a replay doesn't make
    assert branch.branch_names() == ["fix"]
    second = connector("correct_branch", **asked)
    assert second["details"] == first["details"] | {"replayed": True}
    assert (second["snapshot_after"], branch.latest_snapshot_id()) == (4, 4)
    other = connector("correct_branch", **(asked | {"partitions": ("dt=b",)}))
    assert other["error"]["kind"] == InvalidInputError.kind


REFUSED = {
    "SELECT k, v, 'c' dt FROM branch WHERE dt = 'a'": "partition dt=c, which is not among those",
    "SELECT 1L k, v, dt FROM branch WHERE dt = 'a'": "1 primary keys more than once",
    "SELECT cast(null AS BIGINT) k, v, dt FROM branch WHERE dt = 'a' AND k = 1": "a null in column 'k'",
    "SELECT k, v FROM branch": "missing columns dt",
    "SELECT k, v, dt, '-D' _row_kind FROM branch WHERE dt = 'a'": "can't delete rows by _row_kind",
    "SELECT k, nope v, dt FROM branch": "Spark refuses the query",
}


def test_bad_rows_are_refused_and_nothing_is_left(connector: Run, tmp_path: Path) -> None:
    _, branch = make_branch(tmp_path)
    before = sorted(p for p in tmp_path.rglob("*") if "_airflow_paimon" not in p.parts and p.suffix != ".sql")
    for sql, message in REFUSED.items():
        answer = connector("correct_branch", sql, partitions=("dt=a",), operation_id="op-1")
        assert answer["error"]["kind"] == InvalidInputError.kind and message in answer["error"]["message"], answer
    planned = connector("correct_branch", "SELECT * FROM branch WHERE dt = 'a'", partitions=("dt=a",), dry_run=True)
    assert (planned["changed"], planned["details"]["rows"], branch.latest_snapshot_id()) == (True, 10, 3)
    after = sorted(p for p in tmp_path.rglob("*") if "_airflow_paimon" not in p.parts and p.suffix != ".sql")
    assert after == before


def test_without_the_jar_the_refusal_names_it(spark: SparkSession, tmp_path: Path) -> None:
    make_branch(tmp_path)
    values = {"warehouse": str(tmp_path), "table": "d.t", "branch": "fix", "engine": "connector"}
    with pytest.raises(UnsupportedFeatureError, match=r"org\.apache\.paimon:paimon-spark-4\.\d_2\.13"):
        run_spark_operation(spark, build_request("diff_branches", values))


@pytest.mark.thorough
def test_the_job_runs_on_spark_3_5_with_the_package_as_an_archive(
    connector_oracle: SparkConnectorOracle, archive: Path, java_home: Path, tmp_path: Path
) -> None:
    make_branch(tmp_path)
    write_arrow(open_table(str(tmp_path), "d.t", "fix"), pa.table({"k": [3], "v": ["x"], "dt": ["a"]}))
    python = layout.venv_python("o4")
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    submit = [str(site / "pyspark" / "bin" / "spark-submit"), "--master", "local[2]"]
    submit += ["--jars", str(layout.CONNECTOR_JAR), "--py-files", str(archive), "--conf", "spark.ui.enabled=false"]
    submit += ["--conf", "spark.sql.shuffle.partitions=2", "--driver-memory", "1g", str(job_path("diff_branches"))]
    submit += ["--warehouse", str(tmp_path), "--table", "d.t", "--branch", "fix", "--engine", "connector"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SPARK", "PYSPARK"))}
    env = clean | {"JAVA_HOME": str(java_home), "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"SPARK_SUBMIT_OPTS": BARE_JVM, "SPARK_LAUNCHER_OPTS": BARE_JVM}
    done = subprocess.run(submit, env=env, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["details"]["total"]["changed"] == 1
