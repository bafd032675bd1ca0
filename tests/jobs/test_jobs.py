"""Jobs as programs, run by `python` and by `spark-submit`: their last line, their exit codes, their result file."""

import json
import os
import pty
import signal
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.bundled import job_names, job_path, package_archive
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.local_execution import NONE
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.core.chain.tables import add, make_chain
from tests.core.tables import append, make_table, run
from tests.environment import REPO_ROOT

MODULES_OF_SPARK = ("pyspark", "py4j")


@dataclass(frozen=True)
class Ended:
    """A job that ended: exit code, last line of stdout as JSON, all of stdout, stderr."""

    code: int
    result: dict[str, Any]
    stdout: str
    stderr: str


def run_job(
    name: str, *arguments: str, env: Mapping[str, str] | None = None, command: list[str] | None = None
) -> Ended:
    done = subprocess.run(
        [*(command or [sys.executable]), str(job_path(name)), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **(env or {})},
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    return Ended(done.returncode, json.loads(lines[-1]), done.stdout, done.stderr)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    folder = tmp_path / "wh"
    append(make_table(folder), "1")
    return folder


def on(warehouse: Path, *more: str) -> list[str]:
    return [f"--warehouse={warehouse}", "--table=d.t", *more]


@pytest.fixture
def without_spark(tmp_path: Path) -> dict[str, str]:
    """An environment in which importing Spark or Airflow fails and no Java is to be found."""
    poisoned = tmp_path / "poisoned"
    for module in (*MODULES_OF_SPARK, "airflow"):
        (poisoned / module).mkdir(parents=True)
        (poisoned / module / "__init__.py").write_text("raise AssertionError('imported ' + __name__)")
    return {"PYTHONPATH": str(poisoned), "PATH": str(poisoned), "JAVA_HOME": ""}


def test_there_is_a_job_for_every_operation() -> None:
    scripts = job_path("compact").parent.glob("[a-z]*.py")
    assert job_names() == sorted(OPERATIONS) == sorted(one.stem for one in scripts)
    for name in job_names():
        assert len(job_path(name).read_text().splitlines()) <= 15


def test_a_metadata_job_starts_no_jvm_and_imports_no_spark(warehouse: Path, without_spark: dict[str, str]) -> None:
    created = run_job("create_branch", *on(warehouse, "--branch=fix", "--snapshot=1"), env=without_spark)
    assert created.code == 0, created.stderr
    assert created.result["changed"] is True
    assert created.result["duration_s"] > 0
    assert created.stdout.count("\n") == 1
    assert run_job("merge_branch", *on(warehouse, "--branch=fix"), env=without_spark).code == 0


@pytest.mark.every(2)
@pytest.mark.parametrize(("table", "kind"), [("d.none", "not-found"), ("d.t$branch_fix", "invalid-input")])
def test_a_table_that_is_not_there_is_reported_before_spark_starts(
    warehouse: Path, without_spark: dict[str, str], table: str, kind: str
) -> None:
    asked = [f"--warehouse={warehouse}", f"--table={table}", "--pending", "--max-chain-length=2"]
    ended = run_job("compact_chain_table", *asked, env=without_spark)
    assert (ended.code, ended.result["error"]["kind"]) == (2, kind)
    assert len(ended.stderr.splitlines()) == 1


def test_a_wrong_correction_is_refused_before_spark_starts(
    warehouse: Path, tmp_path: Path, without_spark: dict[str, str]
) -> None:
    """As a program; tests/jobs/test_refusals.py has all of them in one process."""
    (tmp_path / "good.sql").write_text("SELECT * FROM branch")
    run(main_of(warehouse), "create_branch", branch="fix", snapshot=1)
    asked = on(warehouse, "--branch=fix", "--partitions=dt=1", f"--sql={tmp_path / 'good.sql'}", "--view=p=d.none")
    ended = run_job("correct_branch", *asked, env=without_spark)
    assert (ended.code, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert "d.none" in ended.result["error"]["message"]


@pytest.mark.parametrize(
    "text", ["UPDATE branch SET v = 'x' WHERE dt = '1'", "-- why\nDELETE FROM branch", "WITH a AS (..."]
)
def test_a_statement_names_no_partitions(warehouse: Path, tmp_path: Path, text: str) -> None:
    """Only Spark says whether a text is a statement; one that surely isn't is refused before it starts."""
    run(main_of(warehouse), "create_branch", branch="fix", snapshot=1)
    file = tmp_path / "fix.sql"
    values = {"warehouse": str(warehouse), "table": "d.t", "branch": "fix", "sql": str(file)}
    file.write_text(text)
    assert run_before_spark(build_request("correct_branch", values), NONE) is None
    file.write_text("\n select * FROM branch")
    with pytest.raises(InvalidInputError, match="name the partitions to overwrite"):
        run_before_spark(build_request("correct_branch", values))
    file.write_text("UPDATE branch SET v = 'x' WHERE dt = '1'; UPDATE branch SET nope = 'x' WHERE dt = '1'")
    with pytest.raises(InvalidInputError, match=r"statement 2 of 2: .*branch has no column nope"):
        run_before_spark(build_request("correct_branch", values))


def test_a_job_in_spark_says_how_to_get_it(warehouse: Path, tmp_path: Path) -> None:
    run(main_of(warehouse), "create_branch", branch="fix", snapshot=1)
    (tmp_path / "fix.sql").write_text("UPDATE branch SET v = 'x' WHERE dt = '1'")
    (tmp_path / "none" / "pyspark").mkdir(parents=True)
    missing = "raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')"
    (tmp_path / "none" / "pyspark" / "__init__.py").write_text(missing)
    asked = on(warehouse, "--branch=fix", f"--sql={tmp_path / 'fix.sql'}")
    ended = run_job("correct_branch", *asked, env={"PYTHONPATH": f"{tmp_path / 'none'}:{REPO_ROOT}"})
    assert (ended.code, ended.result["error"]["kind"]) == (2, "unsupported")
    message = ended.result["error"]["message"]
    assert "correct_branch runs in Spark (pip install pyspark), or submit" in message
    assert message.endswith("need no Spark: local_execution (--local-execution) all")


@pytest.mark.parametrize("view", ["d.t@1", "d.t@good", "d.t$branch_fix@1", "d.t@fix.1"])
def test_a_view_of_a_version_passes_the_checks_before_spark(warehouse: Path, tmp_path: Path, view: str) -> None:
    run(main_of(warehouse), "create_tag", tag="good", snapshot=1)
    run(main_of(warehouse), "create_branch", branch="fix", snapshot=1)
    (tmp_path / "fix.sql").write_text("UPDATE branch SET v = upper('x') WHERE dt = '1'")
    values = {"warehouse": str(warehouse), "table": "d.t", "branch": "fix", "sql": str(tmp_path / "fix.sql")}
    assert run_before_spark(build_request("correct_branch", values | {"view": [f"old={view}"]})) is None


def test_a_small_diff_needs_no_spark_and_no_pandas(
    warehouse: Path, without_spark: dict[str, str], tmp_path: Path
) -> None:
    run(main_of(warehouse), "create_branch", branch="fix", snapshot=1)
    (tmp_path / "poisoned" / "pandas.py").write_text("import sys\nprint('imported pandas', file=sys.stderr)\n")
    same = run_job("diff_branches", *on(warehouse, "--branch=fix"), env=without_spark)
    assert (same.code, same.result["details"]["different"]) == (0, False)
    assert "imported pandas" not in same.stderr


def test_a_dry_run_of_a_compaction_needs_no_spark(tmp_path: Path, without_spark: dict[str, str]) -> None:
    table = make_chain(tmp_path / "wh")
    add(table.branch("snapshot"), "20260101")
    add(table.branch("delta"), "20260102")
    asked = on(tmp_path / "wh", "--partition=dt=20260102", "--dry-run")
    ended = run_job("compact_chain_table", *asked, env=without_spark)
    assert (ended.code, ended.result["changed"], ended.result["dry_run"]) == (0, True, True), ended.stderr
    assert ended.result["plan_id"] and "20260102" in json.dumps(ended.result["details"]["plan"])
    assert table.branch("snapshot").latest_snapshot_id() == 1


def test_what_writes_rows_says_how_it_does_without_the_java_that_is_missing(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh", bucket="2")
    append(table, "1")
    nowhere = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    asked = on(tmp_path / "wh", "--bucket-num=3")
    ended = run_job("rescale", *asked, env=nowhere)
    assert (ended.code, ended.result["error"]["kind"]) == (2, "unsupported"), ended.stderr
    assert "it needs Java" in ended.result["error"]["message"]


def test_a_small_rescale_needs_no_spark(tmp_path: Path, without_spark: dict[str, str]) -> None:
    table = make_table(tmp_path / "wh", bucket="2")
    ended = run_job("rescale", *on(tmp_path / "wh", "--bucket-num=3"), env=without_spark)
    assert (ended.code, ended.result["changed"]) == (0, True), ended.stderr
    assert table.schema().options["bucket"] == "3"


def test_a_wrong_compaction_is_reported_without_spark(tmp_path: Path, without_spark: dict[str, str]) -> None:
    make_chain(tmp_path / "wh", options={})
    ended = run_job("compact_chain_table", *on(tmp_path / "wh", "--partition=dt=20260102"), env=without_spark)
    assert (ended.code, ended.result["error"]["kind"]) == (2, "invalid-input"), ended.stderr
    assert "is not a chain table" in ended.result["error"]["message"]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["--branch=fix", "--snapshot=77"], 2, "not-found"),
        (["--branch=77"], 2, "invalid-input"),
        (["--branch=fix", "--table=d.other"], 2, "invalid-input"),
        (["--branch=fix", "--snapsho=1"], 2, "invalid-input"),
        ([], 2, "invalid-input"),
    ],
)
def test_failures_end_with_a_result_too(warehouse: Path, arguments: list[str], code: int, kind: str) -> None:
    target = warehouse / "results" / "r.json"
    ended = run_job("create_branch", *on(warehouse, *arguments), f"--result-uri={target}")
    assert (ended.code, ended.result["error"]["kind"]) == (code, kind)
    assert ended.result["operation"] == "create_branch"
    assert ended.result["table"] == "d.t"
    assert json.loads(target.read_bytes()) == ended.result
    assert main_of(warehouse).branch_names() == []


@pytest.mark.damages_metadata
def test_exit_codes_are_those_of_the_error_tree(warehouse: Path) -> None:
    append(main_of(warehouse), "1", seq=1)
    ended = run_job("rollback_to", *on(warehouse, "--snapshot=1", "--expected-main-snapshot=9"))
    assert (ended.code, ended.result["error"]["kind"]) == (3, "conflict")
    run(main_of(warehouse), "create_branch", branch="fix", snapshot=1)
    ended = run_job("delete_tag", *on(warehouse, "--tag=airflow-paimon-branch-fix"))
    assert (ended.code, ended.result["error"]["kind"]) == (4, "unsafe")
    main_of(warehouse).store.replace("snapshot/snapshot-2", b"{")
    ended = run_job("check_table", *on(warehouse))
    assert (ended.code, ended.result["details"]["ok"]) == (0, False)
    ended = run_job("merge_branch", *on(warehouse, "--branch=fix"))
    assert (ended.code, ended.result["error"]["kind"]) == (1, "corrupt")


def main_of(warehouse: Path) -> Table:
    return open_table(str(warehouse), "d.t")


def test_a_result_is_indented_in_a_terminal_alone(warehouse: Path) -> None:
    reads, writes = pty.openpty()
    command = [sys.executable, str(job_path("check_table")), *on(warehouse)]
    subprocess.run(command, stdout=writes, stdin=subprocess.DEVNULL, timeout=600, check=True)
    shown = os.read(reads, 100_000).decode().splitlines()
    assert (shown[0], shown[1], shown[-1]) == ("{", '  "details": {', "}")
    assert json.loads("".join(shown))["details"]["ok"] is True


def test_done_but_unable_to_say_so_is_outcome_unknown_and_a_rerun_tells(warehouse: Path) -> None:
    (warehouse / "file").write_text("no folder")
    arguments = on(warehouse, "--snapshot=1", "--operation-id=op-1")
    append(main_of(warehouse), "1", seq=1)
    ended = run_job("rollback_to", *arguments, f"--result-uri={warehouse}/file/r.json")
    assert (ended.code, ended.result["error"]["kind"]) == (5, "outcome-unknown")
    assert main_of(warehouse).latest_snapshot_id() == 3
    again = run_job("rollback_to", *arguments, f"--result-uri={warehouse}/r.json")
    assert again.code == 0
    assert again.result["snapshot_after"] == 3
    assert main_of(warehouse).latest_snapshot_id() == 3


def test_sigterm_is_reported(warehouse: Path, tmp_path: Path) -> None:
    # A named pipe holds the job where it reads the table's schema.
    folder = tmp_path / "stuck.db" / "t" / "schema"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "schema-0")
    job = subprocess.Popen(
        [sys.executable, str(job_path("check_table")), f"--warehouse={tmp_path}", "--table=stuck.t"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with open(folder / "schema-0", "wb"):  # opens once the job has the other end
        job.send_signal(signal.SIGTERM)
        stdout, _ = job.communicate(timeout=500)
    assert job.returncode == 5
    assert json.loads(stdout)["error"]["kind"] == "outcome-unknown"


def test_a_signal_after_the_operation_does_not_lose_its_result(tmp_path: Path) -> None:
    """Here it comes while the failure is being logged."""
    code = """
import logging, os, signal, sys
class Signal(logging.Handler):
    def emit(self, record):
        os.kill(os.getpid(), signal.SIGTERM)
logging.getLogger("airflow_paimon").addHandler(Signal())
from airflow_paimon.spark.launch import main
main("check_table", sys.argv[1:])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, f"--warehouse={tmp_path}", "--table=d.t"], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert json.loads(done.stdout)["error"]["kind"] == "not-found"


def test_unreadable_storage_options_are_reported_once(warehouse: Path, tmp_path: Path) -> None:
    ended = run_job("check_table", *on(warehouse, f"--storage-options={tmp_path / 'missing.json'}"))
    assert ended.code == 2
    assert ended.stderr.count("missing.json") == 1


def test_secrets_of_the_storage_options_are_blotted_out(tmp_path: Path) -> None:
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"key": "AKIAEXAMPLE", "client_kwargs": {"secret": "quoted-secret"}}))
    ended = run_job("check_table", "--warehouse=memory://quoted-secret", "--table=d.t", f"--storage-options={options}")
    assert (ended.code, ended.result["error"]["kind"]) == (2, "not-found")
    assert "memory://***" in ended.stdout and "memory://***" in ended.stderr
    assert "quoted-secret" not in ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_jvm_that_died_after_the_work_takes_no_result_with_it(java_home: Path) -> None:
    code = """
from pyspark.sql import SparkSession
from airflow_paimon.spark import launch
def work():
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    try:
        return "the result"
    finally:
        jvm = spark.sparkContext._gateway.proc
        jvm.kill()
        jvm.wait()
        launch._stop(spark)
print(work())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines()[-1:] == ["the result"], done.stderr


@pytest.mark.slow
@pytest.mark.landing
def test_spark_submit_with_the_archive_alone(warehouse: Path, tmp_path: Path, java_home: Path) -> None:
    """The package is not installed for this Python: all that the job imports of it comes from the archive."""
    bare = tmp_path / "venv"
    venv.create(bare, symlinks=True)
    site = next(bare.glob("lib/python*/site-packages"))
    # Further .pth files in there are not followed, so the editable install isn't either.
    installed = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "dependencies.pth").write_text(installed)
    python = str(bare / "bin" / "python")
    probe = subprocess.run([python, "-c", "import airflow_paimon.core"], capture_output=True, text=True, cwd=tmp_path)
    assert "ModuleNotFoundError" in probe.stderr

    archive = package_archive(tmp_path)
    submit = ["spark-submit", "--master", "local[1]", "--py-files", str(archive)]
    env = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    target = tmp_path / "r.json"
    made = run_job(
        "create_branch", *on(warehouse, "--branch=fix", "--snapshot=1"), f"--result-uri={target}",
        command=submit, env=env,
    )  # fmt: skip
    assert made.code == 0, made.stderr
    assert made.result["changed"] is True
    assert json.loads(target.read_bytes()) == made.result
