"""Paimon's Java engine (O3) and this package on the tables of one JDBC catalog, in turns and at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon import create_table, open_table
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from tests.conftest import require
from tests.core.tables import alter_table
from tests.database_servers import PASSWORD, USER, postgres_programs, postgres_server
from tests.environment import REPO_ROOT
from tests.oracles import layout
from tests.oracles.drivers import JavaOracle
from tests.together import set_off, wait_until_ready

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

COLUMNS = {"p": "STRING NOT NULL", "k": "INT NOT NULL", "v": "STRING"}
COMMITS = 6

_WRITER = """
import json, sys
import pyarrow as pa
from airflow_paimon import open_table
from airflow_paimon.data import write_arrow
warehouse, options, part, commits = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
table = open_table(warehouse, "d.t", storage_options=options)
print("ready", flush=True)
sys.stdin.readline()
for at in range(commits):
    write_arrow(table, pa.table({"p": [part], "k": pa.array([at], pa.int32()), "v": ["ours"]}))
"""


class JdbcOracle:
    """Java's JDBC catalog of a warehouse."""

    def __init__(self, java: JavaOracle, warehouse: Path, options: dict[str, str]) -> None:
        self._java, self._named = java, {"warehouse": str(warehouse), "catalog_options": options}

    def ask(self, what: str, **more: Any) -> Any:
        return self._java.request(what, **self._named, table="d.t", **more)

    def write(self, k: int) -> None:
        self.ask("write", columns=["p", "k", "v"], rows=[["j", k, "java"]], mode="append", partition={})


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    require(postgres_programs() is not None, "PostgreSQL is not installed (Debian: apt-get install postgresql)")
    require(layout.POSTGRES_DRIVER_JAR.is_file(), "Java's driver for PostgreSQL is missing: run `make oracles`")
    with postgres_server() as uri:
        yield uri


@pytest.fixture
def options(postgres: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Options of both engines; the key of the catalog is the test's name."""
    return {
        "metastore": "jdbc", "uri": postgres, "jdbc.user": USER, "jdbc.password": PASSWORD, "lock.enabled": "true",
        "lock-check-max-sleep": "50 ms",
        "catalog-key": request.node.name,
    }  # fmt: skip


@pytest.fixture
def java(java_oracle: JavaOracle, tmp_path: Path, options: dict[str, str]) -> JdbcOracle:
    """Java's catalog, with its database ``d`` and the table ``d.t``, made by Java."""
    opened = JdbcOracle(java_oracle, tmp_path, options)
    columns = [{"name": name, "type": type_} for name, type_ in COLUMNS.items()]
    opened.ask("create_table", columns=columns, partition_keys=["p"], primary_keys=[], options={"bucket": "-1"})
    return opened


def ours(tmp_path: Path, options: dict[str, str], name: str = "d.t") -> Table:
    return open_table(str(tmp_path), name, storage_options=options).require()


def test_each_finds_what_the_other_made(java: JdbcOracle, tmp_path: Path, options: dict[str, str]) -> None:
    java.write(1)
    table = ours(tmp_path, options)
    assert read_arrow(table).to_pylist() == [{"p": "j", "k": 1, "v": "java"}]
    assert table.store.guard.stored_properties() == {"bucket": "-1", "partition": "p"}  # type: ignore[attr-defined]
    alter_table(table, [SetOption(key="snapshot.num-retained.min", value="7")])
    java.write(2)
    made = create_table(str(tmp_path), "d.made", [("k", "INT")], storage_options=options)
    schema = java._java.request("schema", **java._named, table="d.made")["schema"]
    assert schema["fields"] == [{"id": 0, "name": "k", "type": "INT"}]
    assert made.catalog is not None
    assert made.catalog.tables("d") == ["made", "t"]


def test_nothing_is_lost_beside_java_under_the_same_lock(
    java: JdbcOracle, tmp_path: Path, options: dict[str, str]
) -> None:
    """Without the lock Java's rename lands on commits of ours on a local disk (test_races)."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _WRITER, str(tmp_path), json.dumps(options)]
    writers = [
        subprocess.Popen([*command, part, str(COMMITS)], stdin=pipe, stdout=pipe, text=True, cwd=REPO_ROOT)
        for part in "ab"
    ]
    written = 0
    try:
        wait_until_ready(writers)
        set_off(writers)
        while any(writer.poll() is None for writer in writers) and written < 1000:
            java.write(written)
            written += 1
            time.sleep(0.05)  # or Java takes the lock again before anybody looks
        for writer in writers:
            writer.communicate(timeout=500)
            assert writer.returncode == 0
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert written > 0
    rows = sorted((row["p"], row["k"]) for row in read_arrow(ours(tmp_path, options)).to_pylist())
    assert rows == sorted([(p, k) for p in "ab" for k in range(COMMITS)] + [("j", k) for k in range(written)])
    assert ours(tmp_path, options).snapshot_ids()[-1] == 2 * COMMITS + written
