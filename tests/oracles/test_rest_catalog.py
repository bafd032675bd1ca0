"""Tables of a REST catalog, on Paimon's own server: beside Paimon's Java engine, through lost answers and races."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon import create_table, open_table
from airflow_paimon.core.catalogs import open_catalog, rest_data_tokens
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    UnsafeOperationError,
    UnsupportedCatalogError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.table.table import Table, find_tables
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.execution import perform, run_operation
from airflow_paimon.runbooks.table_maintenance import why_kept_by_server
from tests.core.catalogs.databases import check_databases
from tests.environment import REPO_ROOT
from tests.oracles.drivers import JavaOracle
from tests.rest_server import TOKEN, RestProxy, RestServer, rest_proxy, rest_server
from tests.stores import Crash, FaultStore

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

COLUMNS = [{"name": "k", "type": "BIGINT NOT NULL"}, {"name": "v", "type": "STRING"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    with rest_server(tmp_path_factory.mktemp("rest")) as running:
        yield running


@pytest.fixture
def proxy(server: RestServer) -> Iterator[RestProxy]:
    with rest_proxy(server) as running:
        yield running


class Java:
    """Paimon's Java engine on the same catalog."""

    def __init__(self, oracle: JavaOracle, server: RestServer) -> None:
        self._ask = lambda what, table, **more: oracle.request(
            what, warehouse=server.warehouse, table=table, catalog_options=server.options, **more
        )

    def create(self, table: str, **options: str) -> None:
        options = {"bucket": "1", **{k.replace("__", "-"): v for k, v in options.items()}}
        self._ask("create_table", table, columns=COLUMNS, partition_keys=[], primary_keys=["k"], options=options)

    def write(self, table: str, *rows: tuple[int, str]) -> int:
        answer = self._ask(
            "write", table, columns=["k", "v"], rows=[list(row) for row in rows], mode="append", partition={}
        )
        number: int = answer["snapshot"]["id"]
        return number

    def read(self, table: str, **more: str) -> list[list[Any]]:
        rows: list[list[Any]] = sorted(self._ask("read", table, **more)["rows"])
        return rows


@pytest.fixture
def java(java_oracle: JavaOracle, server: RestServer) -> Java:
    return Java(java_oracle, server)


def opened(server: RestServer, name: str, **options: str) -> Table:
    return open_table(server.warehouse, name, storage_options={**server.options, **options})


def made(server: RestServer, name: str, **options: str) -> Table:
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING")]
    return create_table(
        server.warehouse, name, columns, primary_keys=["k"], options={"bucket": "1", **options},
        storage_options=server.options,
    )  # fmt: skip


def append(table: Table, *rows: tuple[int, str]) -> dict[str, Any]:
    return write_arrow(table, pa.table({"k": pa.array([k for k, _ in rows], pa.int64()), "v": [v for _, v in rows]}))


def rows_of(table: Table) -> list[list[Any]]:
    return sorted([row["k"], row["v"]] for row in read_arrow(table).to_pylist())


def run(server: RestServer, operation: str, table: str, **arguments: Any) -> OperationResult:
    given = {"warehouse": server.warehouse, "table": table, "storage_options": server.options, **arguments}
    return run_operation(build_request(operation, given))


@pytest.fixture(scope="module", autouse=True)
def database(server: RestServer, java_oracle: JavaOracle) -> None:
    Java(java_oracle, server).create("d.first")


def test_each_engine_goes_on_where_the_other_has_committed(server: RestServer, java: Java) -> None:
    java.create("d.t")
    assert java.write("d.t", (1, "java"), (2, "java")) == 1
    table = pickle.loads(pickle.dumps(opened(server, "d.t")))
    assert rows_of(table) == [[1, "java"], [2, "java"]]
    assert append(table, (2, "ours"), (3, "ours"))["snapshot_after"] == 2
    assert java.read("d.t") == [[1, "java"], [2, "ours"], [3, "ours"]]
    assert java.write("d.t", (3, "java")) == 3
    assert rows_of(table) == [[1, "java"], [2, "ours"], [3, "java"]]
    assert run(server, "compact_manifest", "d.t").snapshot_after == 4
    assert java.write("d.t", (4, "java")) == 5
    assert rows_of(table) == java.read("d.t") == [[1, "java"], [2, "ours"], [3, "java"], [4, "java"]]


def test_names_are_listed_and_tables_are_created(server: RestServer, java: Java) -> None:
    catalog = open_catalog(server.warehouse, server.options)
    table = made(server, "d.new")
    append(table, (1, "a"))
    assert java.read("d.new") == [[1, "a"]]
    assert "d" in catalog.databases()
    assert {"first", "new"} <= set(catalog.tables("d"))
    assert {"d.first", "d.new"} <= {found.name for found in find_tables(catalog, "d")}
    with pytest.raises(AlreadyExistsError):
        made(server, "d.new")
    assert create_table(
        server.warehouse, "d.new", [("k", "BIGINT NOT NULL"), ("v", "STRING")], primary_keys=["k"],
        if_exists="skip", storage_options=server.options,
    ).schema().id == 0  # fmt: skip
    with pytest.raises(NotFoundError, match="has no database 'none'"):
        made(server, "none.t")
    check_databases(server.warehouse, server.options)


def test_long_lists_come_in_pages(server: RestServer) -> None:
    names = {f"paged_{number:03}" for number in range(101)}
    catalog = open_catalog(server.warehouse, server.options)
    client = catalog._client  # type: ignore[attr-defined]
    schema = {"fields": [{"id": 0, "name": "k", "type": "INT"}], "partitionKeys": [], "primaryKeys": [], "options": {}}
    client.post(["databases"], {"name": "many", "options": {}})
    for name in names:
        identifier = {"database": "many", "object": name}
        client.post(["databases", "many", "tables"], {"identifier": identifier, "schema": schema})
    assert set(catalog.tables("many")) == names


def test_who_is_refused_is_told_what_was_asked(server: RestServer) -> None:
    made(server, "d.denied")
    wrong = "not-the-token-of-the-server"
    with pytest.raises(UnsafeOperationError, match=r"refuses the bearer token \(option token\) for GET config \(401"):
        opened(server, "d.denied", token=wrong)
    server.tell("deny d.denied")
    with pytest.raises(UnsafeOperationError, match=r"GET databases/d/tables/denied \(403") as refused:
        opened(server, "d.denied").schema()
    assert TOKEN not in str(refused.value)
    assert TOKEN not in repr(open_catalog(server.warehouse, server.options))


def test_a_missing_table_and_a_server_that_is_gone(server: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match=r"There is no table d\.none at catalog http"):
        opened(server, "d.none").require()
    with pytest.raises(NotFoundError, match="has no database 'nowhere'"):
        opened(server, "nowhere.t").require()
    monkeypatch.setattr("airflow_paimon.core.catalogs.rest_client._FIRST_WAIT_S", 0.01)
    with pytest.raises(StorageError, match="GET config failed"):
        opened(server, "d.first", uri="http://127.0.0.1:9")


def test_an_external_table_is_its_folder(
    server: RestServer, java: Java, java_oracle: JavaOracle, tmp_path: Path
) -> None:
    types = {column["name"]: column["type"] for column in COLUMNS}
    java_oracle.create_table(tmp_path, "x.t", types, primary_keys=["k"], options={"bucket": "1"})
    java.create("d.external", path=f"file://{tmp_path}/x.db/t")
    table = opened(server, "d.external")
    append(table, (1, "ours"))
    assert table.store.keeper is None
    assert (tmp_path / "x.db/t/snapshot/LATEST").exists()
    assert java.read("d.external") == [[1, "ours"]]
    assert java.write("d.external", (2, "java")) == 2
    assert rows_of(table) == [[1, "ours"], [2, "java"]]
    run(server, "expire_snapshots", "d.external", retain_max=1)
    assert table.snapshot_ids() == [2]


def test_a_table_with_row_filters_is_listed_and_never_read(server: RestServer, java: Java) -> None:
    java.create("d.filtered", **{"query-auth.enabled": "true"})
    table = opened(server, "d.filtered")
    assert table.exists()
    for use in (rows_of, lambda it: append(it, (1, "a"))):
        with pytest.raises(UnsupportedFeatureError, match="row filters or column masks"):
            use(table)
    assert "d.filtered" in {found.name for found in find_tables(open_catalog("lake", server.options), "d")}


def test_data_tokens_are_asked_for_again_before_they_end(
    server: RestServer, proxy: RestProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(server, "d.tokens")
    began = time.time()
    soon, late = (int((began + wait) * 1000) for wait in (3000, 14_400))
    server.tell(f"data-token d.tokens {soon} key one")
    table = open_table("lake", "d.tokens", storage_options={**proxy.options(server), "data-token.enabled": "true"})
    append(table, (1, "a"))
    asked = sum(path.endswith("/token") for _, path in proxy.seen)
    server.tell(f"data-token d.tokens {late} key two")
    passed = SimpleNamespace(time=lambda: began + 1600)  # half of its time
    monkeypatch.setattr(rest_data_tokens, "time", passed)
    append(table, (2, "b"))
    assert asked == 1
    assert sum(path.endswith("/token") for _, path in proxy.seen) == 2
    assert rows_of(table) == [[1, "a"], [2, "b"]]


def test_requests_have_the_servers_headers_and_name_the_type_of_a_body_only(
    server: RestServer, proxy: RestProxy
) -> None:
    made(server, "d.headers")
    append(open_table("lake", "d.headers", storage_options=proxy.options(server)), (1, "a"))
    sent = [(method, headers) for (method, _), headers in zip(proxy.seen, proxy.headers, strict=True)]
    assert {method for method, _ in sent} == {"GET", "POST"}
    assert all(("content-type" in headers) == (method == "POST") for method, headers in sent)
    asked = [headers for (_, path), headers in zip(proxy.seen, proxy.headers, strict=True) if "/config" not in path]
    assert asked and all(headers["x-tried"] == "yes" for headers in asked)


@pytest.mark.parametrize(
    "plan", [["lost"], ["503-done"], ["503"], ["reset"], ["reset", "503", "lost"]], ids=lambda plan: "-".join(plan)
)
@pytest.mark.every(3)
def test_a_commit_lands_once_whatever_becomes_of_its_answer(
    server: RestServer, proxy: RestProxy, plan: list[str]
) -> None:
    name = f"d.lost_{'_'.join(plan).replace('-', '_')}"
    made(server, name)
    table = open_table("lake", name, storage_options=proxy.options(server))
    proxy.plan += plan
    append(table, (1, "a"))
    append(table, (2, "b"))
    assert proxy.plan == []
    assert table.snapshot_ids() == [1, 2]
    assert rows_of(opened(server, name)) == [[1, "a"], [2, "b"]]


def test_a_commit_that_never_gets_an_answer_is_unknown(
    server: RestServer, proxy: RestProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(server, "d.unknown")
    table = open_table("lake", "d.unknown", storage_options=proxy.options(server))
    proxy.plan += ["503"] * 4
    monkeypatch.setattr("airflow_paimon.core.catalogs.rest_store._COMMIT_WAIT_S", 0.01)
    with pytest.raises(OutcomeUnknownError, match="it is missing when it is read back"):
        append(table, (1, "a"))
    assert opened(server, "d.unknown").snapshot_ids() == []


def test_a_commit_without_an_answer_stays_unknown_when_the_server_is_down_then(
    server: RestServer, proxy: RestProxy
) -> None:
    made(server, "d.down")
    table = open_table("lake", "d.down", storage_options=proxy.options(server))
    proxy.plan += ["lost-down"]
    with pytest.raises(OutcomeUnknownError, match="cannot determine whether snapshot 1 "):
        append(table, (1, "a"))
    assert rows_of(opened(server, "d.down")) == [[1, "a"]]


def test_reads_go_on_when_the_server_is_busy_for_a_moment(server: RestServer, proxy: RestProxy) -> None:
    made(server, "d.busy")
    proxy.concerns, proxy.plan = "/snapshot", ["503", "lost"]
    assert open_table("lake", "d.busy", storage_options=proxy.options(server)).latest_snapshot() is None
    assert proxy.plan == []


_RACER = """
import json, sys
import pyarrow as pa
from airflow_paimon import open_table
from airflow_paimon.data import write_arrow
options, at, commits = json.loads(sys.stdin.readline()), int(sys.argv[1]), int(sys.argv[2])
table = open_table("lake", "d.race", storage_options=options)
print("ready", flush=True)
sys.stdin.readline()
for number in range(commits):
    write_arrow(table, pa.table({"k": pa.array([at * 100 + number], pa.int64()), "v": ["x"]}))
"""


def test_processes_that_commit_at_once_lose_nothing(server: RestServer, java: Java) -> None:
    create_table(
        server.warehouse, "d.race", [("k", "BIGINT"), ("v", "STRING")], options={"bucket": "-1"},
        storage_options=server.options,
    )  # fmt: skip
    pipe = subprocess.PIPE
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, str(at), "8"], stdin=pipe, stdout=pipe, text=True, cwd=REPO_ROOT
        )
        for at in range(2)
    ]
    for racer in racers:
        assert racer.stdin and racer.stdout
        racer.stdin.write(json.dumps(server.options) + "\n")
        racer.stdin.flush()
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.communicate("go\n", timeout=500)
    assert [racer.returncode for racer in racers] == [0, 0]
    table = opened(server, "d.race")
    assert table.snapshot_ids() == list(range(1, 17))
    assert len(rows_of(table)) == 16
    assert rows_of(table) == java.read("d.race")


def test_a_branch_is_corrected_published_and_rolled_back(server: RestServer, java: Java) -> None:
    java.create("d.life")
    java.write("d.life", (1, "right"), (2, "wrong"))
    run(server, "create_tag", "d.life", tag="before")
    run(server, "alter_table", "d.life", change=["add column x INT", "set file.format=orc"])
    run(server, "create_branch", "d.life", branch="fix", tag="before")
    main = opened(server, "d.life")
    fix = main.branch("fix")
    assert fix.schema().options["snapshot.num-retained.min"] == "2147483647"
    assert fix.schema().id == 2, "above all ids of main, so that no engine mistakes one for the other"
    append(fix, (2, "right"))
    assert rows_of(main) == [[1, "right"], [2, "wrong"]]
    assert java.read("d.life", branch="fix") == [[1, "right"], [2, "right"]]
    run(server, "merge_branch", "d.life", branch="fix")
    assert java.read("d.life") == [[1, "right", None], [2, "right", None]]
    run(server, "rollback_to", "d.life", tag="before")
    assert rows_of(main) == [[1, "right"], [2, "wrong"]]
    assert java.write("d.life", (3, "java")) == 4
    run(server, "delete_branch", "d.life", branch="fix")
    assert main.branch_names() == []
    assert run(server, "check_table", "d.life").details["errors"] == 0
    assert java.read("d.life") == [[1, "right", None], [2, "wrong", None], [3, "java", None]]


def test_a_deletion_that_died_is_finished_by_a_retry(server: RestServer, java: Java) -> None:
    java.create("d.dying")
    java.write("d.dying", (1, "a"))
    main, step, died = opened(server, "d.dying"), 0, True
    while died and step < 40:
        step += 1
        run(server, "create_branch", "d.dying", branch="fix", snapshot=1)
        given = {"branch": "fix", "operation_id": f"delete-{step}"}
        died = dies(server, "delete_branch", "d.dying", step, **given)
        run(server, "delete_branch", "d.dying", **given)
        assert main.branch_names() == main.tag_names() == [], f"died at change {step}"
    assert step > 10
    assert java.write("d.dying", (2, "b")) == 2


def dies(server: RestServer, operation: str, table: str, step: int, **arguments: Any) -> bool:
    """Run an operation that dies at its n-th change of the storage; False = it has fewer."""
    given = {"warehouse": server.warehouse, "table": table, "storage_options": server.options, **arguments}
    context = open_context(build_request(operation, given))
    faulty = replace(context.table, store=FaultStore(context.table.store, fail_at=step))
    try:
        perform(replace(context, table=faulty), context.request)
    except Crash:
        return True
    return False


def test_tags_are_the_servers(server: RestServer, java: Java) -> None:
    table = made(server, "d.tags")
    append(table, (1, "a"))
    run(server, "create_tag", "d.tags", tag="kept", time_retained="7 d")
    with pytest.raises(AlreadyExistsError):
        run(server, "create_tag", "d.tags", tag="kept")
    append(table, (2, "b"))
    assert java.read("d.tags", tag="kept") == [[1, "a"]]
    run(server, "create_tag", "d.tags", tag="kept", if_exists="replace")
    assert java.read("d.tags", tag="kept") == [[1, "a"], [2, "b"]]
    assert table.tag("kept").time_retained is None
    run(server, "delete_tag", "d.tags", tag="kept")
    assert table.tag_names() == []


@pytest.mark.parametrize(
    "operation", ["expire_snapshots", "expire_tags", "expire_changelogs", "remove_orphan_files", "repair_table"]
)
def test_what_needs_the_metadata_files_is_refused_by_name(server: RestServer, operation: str) -> None:
    with pytest.raises(UnsupportedCatalogError, match=f"^{operation} needs the table's own metadata files"):
        run(server, operation, "d.first")


def test_a_night_leaves_to_the_server_what_needs_its_metadata(
    server: RestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"warehouse": server.warehouse, "storage_options": server.options}
    monkeypatch.setenv("AIRFLOW_CONN_REST", json.dumps({"conn_type": "paimon", "extra": extra}))
    reason = why_kept_by_server({"paimon_conn_id": "rest"}, "d.first")
    assert reason is not None
    assert reason.endswith("keeps the metadata of this table")


def test_nothing_of_the_metadata_is_written_beside_the_server(server: RestServer) -> None:
    store = opened(server, "d.first").store
    for put in (store.create, store.replace):
        put("snapshot/LATEST", b"7")
    assert not store.exists("snapshot/LATEST")
    for refused in ("snapshot/snapshot-1", "schema/schema-0", "consumer/consumer-a", "branch/branch-b/tag/tag-a"):
        with pytest.raises(UnsupportedCatalogError, match="manages the table's metadata"):
            store.delete(refused)
