"""What ``spark-submit`` finds on this machine: Java, Python, its own settings and itself."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from airflow_paimon.core.errors import NotFoundError


def driver_environment(is_cluster: bool, master: str) -> dict[str, str]:
    """Return the variables that a submission needs beside those of this process."""
    env: dict[str, str] = {}
    if not is_cluster and not _is_set("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        env["PYSPARK_DRIVER_PYTHON"] = sys.executable
        if master.startswith("local"):
            env["PYSPARK_PYTHON"] = sys.executable
    if not _is_set("JAVA_HOME") and shutil.which("java") is None:
        from airflow_paimon.spark.java import find_java

        if (home := find_java(Path.cwd() / ".java")) is None:
            raise NotFoundError(
                "spark-submit needs Java 17 or newer, and there is neither JAVA_HOME nor java on the PATH of this "
                "worker; install one, or run metadata-only operations with run_on='worker'"
            )
        env["JAVA_HOME"] = str(home)
    return env


def spark_defaults() -> Path | None:
    """Return where Spark's default settings would be."""
    if conf_dir := os.environ.get("SPARK_CONF_DIR"):
        return Path(conf_dir) / "spark-defaults.conf"
    home = os.environ.get("SPARK_HOME")
    return Path(home) / "conf" / "spark-defaults.conf" if home else None


def spark_submit_of_this_environment() -> str | None:
    """Return the ``spark-submit`` that PySpark brought along."""
    spec = importlib.util.find_spec("pyspark")  # finds it without importing it
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "bin" / "spark-submit"
    return str(path) if path.is_file() else None


def _is_set(*names: str) -> bool:
    return any(os.environ.get(name) for name in names)
