"""A standalone Spark cluster on loopback: a master and two workers as plain processes.

Their Python has no airflow_paimon: everything of ours that they run came as ``--py-files``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_paimon.bundled import package_archive
from tests.environment import QUICK_JVM
from tests.loopback import end

# What the README says a cluster needs, and PySpark itself.
NEEDED = ("pyspark", "py4j", "pyarrow", "numpy", "fsspec", "fastavro", "backports")
_START_S = 600
_URL = re.compile(r"Starting Spark master at (spark://\S+)")


@dataclass(frozen=True, slots=True)
class Cluster:
    """``python`` is what driver and executors run with."""

    master: str
    python: Path
    archive: Path
    spark_home: Path
    environment: dict[str, str]

    def submit(self, script: Path, *arguments: str, timeout_s: int = 240) -> subprocess.CompletedProcess[str]:
        settings = {
            "spark.ui.enabled": "false",
            "spark.log.level": "WARN",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
        }
        command = [str(self.spark_home / "bin" / "spark-submit"), "--master", self.master]
        command += ["--py-files", str(self.archive)]
        command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command += [str(script), *arguments]
        return subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=self.archive.parent,
        )


@contextmanager
def start_cluster(folder: Path, java_home: Path) -> Iterator[Cluster]:
    spark_home = _package("pyspark")
    python = bare_python(folder / "python")
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PYTHON", "PYSPARK", "SPARK")) or k.startswith("PYTEST")
    } | {
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": QUICK_JVM,
        "SPARK_LAUNCHER_OPTS": QUICK_JVM,
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
    }
    found = subprocess.run([python, "-c", "import airflow_paimon"], env=environment, capture_output=True, cwd="/")
    assert found.returncode != 0, "the executors' Python has the package: this would prove nothing"
    with ExitStack() as stack:
        log = folder / "master.log"
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        stack.enter_context(_daemon("master.Master", address, environment, log))
        master = _wait_for(log, _URL)[1]
        workers = [folder / f"worker-{i}.log" for i in range(2)]
        for worker_log in workers:
            arguments = [*address, "--cores", "1", "--memory", "600m", master]
            stack.enter_context(_daemon("worker.Worker", arguments, environment, worker_log))
        for worker_log in workers:
            _wait_for(worker_log, re.compile("Successfully registered with master"))
        yield Cluster(master, python, package_archive(folder), spark_home, environment)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def bare_python(folder: Path, *more: str) -> Path:
    """Make an environment that has what a cluster needs, and nothing else of ours but the packages named."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    for name in (*NEEDED, *more):
        if (spec := importlib.util.find_spec(name)) is not None:
            place = _package(name) if spec.submodule_search_locations else Path(str(spec.origin))
            (site / place.name).symlink_to(place.resolve())  # a pod has no /tmp of this machine, where the link may lie
    assert Path(sys.prefix) != folder
    return folder / "bin" / "python"


@contextmanager
def _daemon(name: str, arguments: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    command = [str(_package("pyspark") / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        end(process)


def _wait_for(log: Path, pattern: re.Pattern[str]) -> re.Match[str]:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        found = pattern.search(log.read_text(errors="replace"))
        if found is not None:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{log.name} never said {pattern.pattern!r}:\n{log.read_text(errors='replace')[-3000:]}")
