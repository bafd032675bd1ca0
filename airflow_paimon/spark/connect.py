"""A session on a Spark Connect server, which has the data and the executors; the job itself is a client of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.requests.requests import CorrectBranch, Request

SESSION_FILE = "AIRFLOW_PAIMON_CONNECT"
"""Names a JSON file: ``files``, which the server's Python workers need, and ``conf``, settings of the session."""


def uses_connect() -> bool:
    """Say whether the environment names a Connect server."""
    return "SPARK_REMOTE" in os.environ


def connect_session(request: Request, name: str) -> Any:
    """Open a session on the server that ``SPARK_REMOTE`` names; its ``stop`` ends what it runs there.

    Raises ``UnsupportedFeatureError`` for the connector engine, which needs the JVM of a driver of its own.
    """
    from pyspark.sql import SparkSession

    if isinstance(request, CorrectBranch) and request.engine == "connector":
        raise UnsupportedFeatureError(
            f"{request.operation} with engine=connector can't run through Spark Connect: it needs the driver's JVM. "
            f"Use a connection of type spark, or engine=embedded"
        )
    spark: Any = SparkSession.builder.appName(name).getOrCreate()
    settings = json.loads(Path(os.environ[SESSION_FILE]).read_text()) if SESSION_FILE in os.environ else {}
    for key, value in settings.get("conf", {}).items():
        spark.conf.set(key, str(value))
    if files := settings.get("files"):
        spark.addArtifacts(*files, pyfile=True)
    return spark
