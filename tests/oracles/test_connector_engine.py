"""Statements by ``engine=connector``, on Paimon's own Spark connector 0.9.0 (Spark 3.5.9): the same rows as ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon.bundled import job_path, package_archive
from airflow_paimon.core.commit.staging import open_staging
from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.spark.jobs import run_spark_operation
from tests.class_archive import BARE_JVM
from tests.oracles import layout
from tests.oracles.drivers import SparkConnectorOracle
from tests.randomness import every
from tests.spark.jobs.operations import correct, make_branch, rows_of, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What the rows of a statement must be, the tests of the built-in engine say in each run.
pytestmark = [pytest.mark.oracle, pytest.mark.every(4)]

Run = Callable[..., dict[str, Any]]


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


@pytest.mark.parametrize(
    "primary", every(2, [True, False], first=1), ids=lambda primary: "primary-key" if primary else "append"
)
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
    none = "DELETE FROM branch WHERE k = -1 AND k IN (SELECT k FROM main)"
    nothing = connector("correct_branch", none, branch="theirs", restricted_sql=True)
    assert (nothing["changed"], len(nothing["details"]["notes"])) == (False, 1)
    wrong: dict[str, dict[str, Any]] = {
        "UPDATE branch SET v = nope WHERE k = 1": {},
        "DELETE FROM branch": {},
        "DELETE FROM main WHERE k = 1": {},
        "UPDATE branch SET v = 'x' WHERE k = 1": {"dry_run": True},
        "UPDATE branch SET v = reflect('java.lang.System', 'getenv', 'HOME') WHERE k = 1": {"restricted_sql": True},
        "DELETE FROM branch WHERE k IN (SELECT k FROM parquet.`/etc`)": {"restricted_sql": True},
        "SELECT * FROM branch": {"partitions": ("dt=a",)},
    }
    said = [connector("correct_branch", t, branch="theirs", **more)["error"]["message"] for t, more in wrong.items()]
    why = ["nope.*position 23", "--all-rows", "name it branch", "--dry-run", "reflect", "parquet", "no SELECT"]
    for message, expected in zip(said, why, strict=True):
        assert re.search(expected, message), message
    assert theirs.latest_snapshot_id() == head
    assert main.branch_names() == ["fix", "theirs"], "no staging branch is left"
    run(tmp_path, "merge_branch", branch="theirs", writers_stopped=True)
    assert rows_of(main) == rows_of(ours)
    assert run(tmp_path, "check_table").details["ok"]


FEATURES = {
    "aggregation": ({"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}, "a1=40 a2=27"),
    "deletion-vectors": ({"deletion-vectors.enabled": "true"}, "a1=30 a2=7"),
    "dynamic-bucket": ({"bucket": "-1"}, "a1=30 a2=7"),
    "partial-update": ({"merge-engine": "partial-update"}, "a1=30 a2=7"),
    "first-row": ({"merge-engine": "first-row"}, "a1=10 a2=20"),
    "read by the connector alone": ({"query-auth.enabled": "true"}, "a1=30 a2=7"),
}


def made_there(oracle: SparkConnectorOracle, warehouse: Path, options: dict[str, str], *statements: str) -> Table:
    """Make a table by the connector, and return it."""
    properties = ", ".join(f"'{k}'='{v}'" for k, v in {"primary-key": "dt,k", "bucket": "1", **options}.items())
    create = f"CREATE TABLE t (k BIGINT, v BIGINT, dt STRING) PARTITIONED BY (dt) TBLPROPERTIES ({properties})"
    oracle.sql(warehouse, create, *statements, database="d")
    return open_table(str(warehouse), "d.t")


@pytest.mark.parametrize("feature", every(6, FEATURES))
def test_a_table_of_each_kind_is_corrected_and_published(
    feature: str, connector: Run, connector_oracle: SparkConnectorOracle, tmp_path: Path
) -> None:
    options, inserted = FEATURES[feature]
    table = made_there(
        connector_oracle,
        tmp_path,
        options,
        "INSERT INTO t VALUES (1L, 10L, 'a'), (2L, 20L, 'a'), (3L, 30L, 'b')",
        "INSERT INTO t VALUES (4L, 40L, 'b')",
    )

    def shown(name: str) -> str:
        rows = connector_oracle.sql(tmp_path, f"SELECT dt, k, v FROM d.`{name}` ORDER BY dt, k").to_pylist()
        return " ".join(f"{r['dt']}{r['k']}={r['v']}" for r in rows)

    assert shown("t") == "a1=10 a2=20 b3=30 b4=40"
    for branch in ("fix", "more"):
        run(tmp_path, "create_branch", branch=branch, snapshot=table.latest_snapshot_id())
    overwrite = "INSERT OVERWRITE branch PARTITION (dt = 'a') SELECT k, v + 1 FROM branch WHERE dt = 'a' AND k < 2"
    done = connector("correct_branch", overwrite)
    assert (done["changed"], done["details"]["changed_partitions"]) == (True, ["dt=a"]), done
    assert (shown("t$branch_fix"), shown("t")) == ("a1=11 b3=30 b4=40", "a1=10 a2=20 b3=30 b4=40")
    run(tmp_path, "merge_branch", branch="fix", writers_stopped=True)
    connector_oracle.sql(tmp_path, "INSERT INTO t VALUES (5L, 50L, 'b')", database="d")  # main's writers go on
    assert shown("t") == "a1=11 b3=30 b4=40 b5=50"
    assert connector("correct_branch", "INSERT INTO branch VALUES (1L, 30L, 'a'), (2L, 7L, 'a')", branch="more")[
        "changed"
    ]
    assert shown("t$branch_more") == f"{inserted} b3=30 b4=40"
    assert run(tmp_path, "check_table").details["ok"]


HIDES = {"deletion-vectors": {"deletion-vectors.enabled": "true"}, "first-row": {"merge-engine": "first-row"}}


@pytest.mark.parametrize("feature", every(2, HIDES))
def test_rows_that_wait_for_a_compaction_are_never_overwritten_unseen(
    feature: str, connector: Run, connector_oracle: SparkConnectorOracle, tmp_path: Path
) -> None:
    table = made_there(
        connector_oracle,
        tmp_path,
        {"write-only": "true", **HIDES[feature]},
        "INSERT INTO t SELECT id, 1L, 'b' FROM range(2)",
        "CALL sys.compact(table => 'd.t')",
        "INSERT INTO t SELECT id, 1L, 'a' FROM range(32)",
    )
    run(tmp_path, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
    sql = "INSERT OVERWRITE branch PARTITION (dt = 'a') SELECT k, 3L FROM branch WHERE dt = 'a'"
    error = connector("correct_branch", sql)["error"]
    assert (error["kind"], error["files"], error["rows"], error["partitions"]) == ("unsafe", 1, 32, ["dt=a"]), error
    for said in ("partition dt=a have 32 uncompacted rows", "CALL sys.compact(table => 'd.`t$branch_fix`')"):
        assert said in error["message"]
    # the way out that the refusal names
    connector_oracle.sql(tmp_path, "CALL sys.compact(table => 'd.`t$branch_fix`')")
    assert connector("correct_branch", sql)["changed"]
    assert {v for _, v, dt in rows_of(table.branch("fix")) if dt == "a"} == {3}


def test_a_retry_gives_the_first_try_s_result(connector: Run, tmp_path: Path) -> None:
    _, branch = make_branch(tmp_path)
    asked = {"sql": "UPDATE branch SET v = 'x' WHERE dt = 'a'", "operation_id": "op-1"}
    head = branch.latest_snapshot()
    assert head is not None
    open_staging(branch, head, branch.schema(), "op-1", "2026-11-21T00:00:00+00:00")  # what a killed try leaves
    (left,) = [n for n in branch.branch_names() if n != "fix"]
    findings = run(tmp_path, "check_table").details["findings"]
    assert [f["id"] for f in findings] == [f"staging-branch:{left}"]
    first = connector("correct_branch", **asked)
    assert branch.branch_names() == ["fix"]
    second = connector("correct_branch", **asked)
    assert second["details"] == first["details"] | {"replayed": True}
    assert (second["snapshot_after"], branch.latest_snapshot_id()) == (4, 4)
    other = connector("correct_branch", **(asked | {"sql": "UPDATE branch SET v = 'y' WHERE dt = 'a'"}))
    assert other["error"]["kind"] == InvalidInputError.kind


def test_without_the_jar_the_refusal_names_it(spark: SparkSession, tmp_path: Path) -> None:
    make_branch(tmp_path)
    values = {"warehouse": str(tmp_path), "table": "d.t", "branch": "fix", "engine": "connector"}
    values |= {"sql": "DELETE FROM branch WHERE k = 1"}
    with pytest.raises(UnsupportedFeatureError, match=r"org\.apache\.paimon:paimon-spark-4\.\d_2\.13"):
        run_spark_operation(spark, build_request("correct_branch", values))


@pytest.mark.thorough
def test_the_job_runs_on_spark_3_5_with_the_package_as_an_archive(
    connector_oracle: SparkConnectorOracle, archive: Path, java_home: Path, tmp_path: Path
) -> None:
    _, branch = make_branch(tmp_path)
    python = layout.venv_python("o4")
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    submit = [str(site / "pyspark" / "bin" / "spark-submit"), "--master", "local[2]"]
    submit += ["--jars", str(layout.CONNECTOR_JAR), "--py-files", str(archive), "--conf", "spark.ui.enabled=false"]
    submit += ["--conf", "spark.sql.shuffle.partitions=2", "--driver-memory", "1g", str(job_path("correct_branch"))]
    submit += ["--warehouse", str(tmp_path), "--table", "d.t", "--branch", "fix", "--engine", "connector"]
    submit += ["--sql", "UPDATE branch SET v = 'x' WHERE k = 3"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SPARK", "PYSPARK"))}
    env = clean | {"JAVA_HOME": str(java_home), "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"SPARK_SUBMIT_OPTS": BARE_JVM, "SPARK_LAUNCHER_OPTS": BARE_JVM}
    done = subprocess.run(submit, env=env, capture_output=True, text=True, timeout=500, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["changed"] and (3, "x", "a") in rows_of(branch)
