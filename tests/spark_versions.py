"""Run tests on other versions of Spark than the locked one: ``python -m tests.spark_versions [3.5 4.0 ...]``.

Arguments that are no version of the list go to pytest. Each version has an environment of its own in ``.cache/``, of
1 GB, with what a cluster needs and no Airflow; ``uv`` makes it. What a version lacks is left out (``without``), and
``tests/spark/test_source_api.py`` says that it is refused.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.versions import ROOT

TESTS = (
    "spark/test_source_api.py",
    "spark/test_jvm.py",
    "spark/test_read_table.py",
    "spark/test_write_table.py",
    "spark/test_sql.py",
    "spark/test_restricted_sql.py",
    "spark/jobs/test_correct_branch.py",
    "spark/jobs/test_diff_branches.py",
    "spark/jobs/test_replay_branch.py",
    "spark/jobs/test_compact.py",
    "spark/test_chain_statements.py",
)
STREAMING = ("spark/test_datasource.py", "spark/test_streams.py")
PACKAGES = ("pyarrow", "numpy", "fsspec", "fastavro", "backports.zstd", "s3fs")
"""What a cluster needs."""
_PYTHON = "3.11"
"""The oldest of this package, with which each of these versions runs."""
TOOLS = ("pandas", "pytest", "pytest-xdist", "hypothesis", "jsonschema", "moto[server]")


@dataclass(frozen=True, slots=True)
class Spark:
    """A version of Spark. ``without``: tests of what it doesn't have, as ``file::name``."""

    pyspark: str
    tests: tuple[str, ...] = (*TESTS, *STREAMING)
    without: tuple[str, ...] = ()


VERSIONS = {
    "3.5": Spark(
        "3.5.9",
        tests=TESTS,
        without=(
            "spark/jobs/test_compact.py::test_partitions_in_parallel_in_one_commit",  # the data source
            "spark/jobs/test_replay_branch.py::test_streams_go_on_from_their_checkpoint",
            "spark/test_sql.py::test_what_is_wrong_is_named_with_its_position_and_changes_nothing",  # ANSI mode
            "spark/test_write_table.py::test_readers_that_wait_for_a_compaction_get_rows_from_every_writer",
            "spark/test_write_table.py::test_rows_that_are_merged_may_lack_columns",
        ),
    ),
    "4.0": Spark("4.0.5"),
    "4.2": Spark("4.2.1"),
    "4.3": Spark("4.3.0"),
}


def main(version: str, arguments: list[str]) -> int:
    """Make the environment unless it is there, and run the tests in it; returns pytest's exit code."""
    spark, folder = VERSIONS[version], ROOT / ".cache" / f"spark-{version}"
    if not (folder / ".complete").exists():
        _install(spark, folder)
        (folder / ".complete").touch()
    print(f"spark-versions: Spark {spark.pyspark}", flush=True)
    # Warnings of other versions say nothing about this package.
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default"]
    command += [f"--deselect=tests/{test}" for test in spark.without]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    tests = [f"tests/{test}" for test in spark.tests]
    return subprocess.run([*command, *arguments, *tests], cwd=ROOT, env=environment, check=False).returncode


def _install(spark: Spark, folder: Path) -> None:
    uv = shutil.which("uv") or sys.exit("spark-versions: uv is not there; make venv installs it")
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", _PYTHON, str(folder)], check=True)
    locked = folder / "locked.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    locked.write_text("".join(line for line in lines if not line.startswith(("pyspark", "py4j"))))
    install = [uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), "-c", str(locked)]
    subprocess.run([*install, f"pyspark=={spark.pyspark}", *PACKAGES, *TOOLS], check=True)


if __name__ == "__main__":
    chosen = [name for name in sys.argv[1:] if name in VERSIONS] or list(VERSIONS)
    more = [argument for argument in sys.argv[1:] if argument not in VERSIONS]
    sys.exit(max([main(version, more) for version in chosen]))
