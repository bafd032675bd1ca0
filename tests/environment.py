"""The environment of a test run: the same whoever starts it, and in memory where that saves time."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.class_archive import BARE_JVM
from tests.randomness import thorough

REPO_ROOT = Path(__file__).resolve().parent.parent
MEMORY = Path("/dev/shm")
# Made by `make classes`; where it isn't there, a JVM starts without it and says nothing.
_CLASS_ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
QUICK_JVM = f"{BARE_JVM} -XX:SharedArchiveFile={_CLASS_ARCHIVE} -Xlog:disable -Xlog:all=error:stderr"
"""For Spark that runs for seconds: compiling thoroughly, or loading every class anew, takes longer than its work."""
_INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
"""Spark writes and compiles a program for each query otherwise; `make thorough` lets it."""
_FOREIGN = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "AWS_", "SPARK_", "PYSPARK_")


def pin() -> str:
    """Set it before anything is imported that reads it at import; give the folder of Airflow."""
    # In memory where there is room: SQLite syncs each transaction.
    airflow_home = tempfile.mkdtemp(prefix="airflow-paimon-tests-", dir=MEMORY if _has_room(1) else None)
    for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
        del os.environ[name]
    os.environ |= {
        "TZ": "UTC",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "AIRFLOW_HOME": airflow_home,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPO_ROOT / "dags"),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        # To import a file takes a second, and far longer where much else runs.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "500",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "500",
        # A test names its credentials; one that forgets must not find somebody's real ones.
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{QUICK_JVM} -Dspark.sql.shuffle.partitions=2 {'' if thorough() else _INTERPRETED}",
        "SPARK_LAUNCHER_OPTS": QUICK_JVM,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # spark-submit and airflow, as in an activated environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    time.tzset()
    # Only a loss of power shows whether a file was synced, and each sync takes a disk milliseconds, thousands of times.
    # That stores call for it, and in which order, tests/core/store/test_local.py sees in a process of its own.
    os.fsync = lambda _: None  # type: ignore[assignment]
    return airflow_home


def tables_fit_into_memory() -> bool:
    """Whether the folders of all tests may lie in memory, where to write and rename a file takes a fifth of the time.

    A run leaves 300,000 small files of 1.5 GB. Without room for them beside what the workers hold, or where programs
    can't be started from there, they lie on the disk.
    """
    if not _has_room(6) or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return False
    with suppress(OSError):
        found = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        return found is not None and int(found[1]) > 14e6
    return False


def _has_room(gigabytes: int) -> bool:
    return os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > gigabytes * 2**30
