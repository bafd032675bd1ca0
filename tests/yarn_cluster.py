"""A YARN of one resource manager and one node manager on the loopback, and the HDFS that it keeps its files in.

with yarn_cluster(folder) as cluster:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.conf))
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import require
from tests.hdfs_server import hdfs_server
from tests.loopback import server_process
from tests.oracles import layout


@dataclass(frozen=True)
class YarnCluster:
    """``files`` is the URI of its HDFS, ``pages`` the address of the resource manager's pages and REST interface."""

    files: str
    pages: str
    conf: Path
    logs: Path

    def applications(self) -> dict[str, dict[str, Any]]:
        """Every application that it was given, by id."""
        found = self._get("apps")["apps"] or {}
        return {each["id"]: each for each in found.get("app", [])}

    def attempts(self, application: str) -> int:
        """How often YARN has started an application's driver."""
        return len(self._get(f"apps/{application}/appattempts")["appAttempts"]["appAttempt"])

    def driver_log(self, application: str) -> str:
        """What the driver of an application in deploy mode cluster has printed."""
        return "".join(
            path.read_text(errors="replace")
            for path in sorted((self.logs / application).glob("container_*_000001/std*"))
        )

    def _get(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.pages}/ws/v1/cluster/{path}", headers={"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[YarnCluster]:
    """Run a cluster that keeps its files in a folder. It ends when this process does."""
    java, jars = layout.java_executable(), layout.YARN_JARS
    require(java and jars.is_dir(), "no YARN to start: run `python tests/oracles/prepare.py --only yarn`")
    assert java
    files = folder / "hdfs"
    files.mkdir()
    with (
        hdfs_server(files) as uri,
        _daemon(folder, java, "manager", uri) as pages,
        _daemon(folder, java, "node"),
    ):
        yield YarnCluster(uri, pages, folder / "conf", folder / "logs")


@contextmanager
def _daemon(folder: Path, java: Path, *arguments: str) -> Iterator[str]:
    """Run one of the two programs of MiniYarn.java and give what it says when it is ready."""
    log = folder / f"{arguments[0]}.log"
    command = [java, "--add-opens=java.base/java.lang=ALL-UNNAMED", "-Xmx400m", "-XX:TieredStopAtLevel=1"]
    command += ["-cp", f"{layout.YARN_JARS}/*", Path(__file__).with_name("MiniYarn.java")]
    command += [arguments[0], folder, *arguments[1:]]
    # What it hands to containers: nothing there may find this environment's packages.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    environment = inherited | {"JAVA_HOME": str(java.parent.parent)}
    with server_process(command, log, f"YARN's {arguments[0]}", environment) as (said, _):
        yield said[0]
