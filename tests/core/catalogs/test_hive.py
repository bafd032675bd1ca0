"""Paimon's Hive catalog on a real metastore: names, locks, what is copied there, and what goes wrong."""

from __future__ import annotations

import dataclasses
import os
import pickle
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon import create_database, create_table, open_table
from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.catalogs.hive import HiveCatalog, HiveGuard
from airflow_paimon.core.catalogs.hive_tables import columns, hive_type, location, parameters
from airflow_paimon.core.catalogs.table_store import CatalogTableStore
from airflow_paimon.core.catalogs.thrift import Struct, Value, structure, structures, text, text_map
from airflow_paimon.core.errors import (
    InvalidInputError,
    NotFoundError,
    NotPaimonError,
    OutcomeUnknownError,
    StorageError,
    UnsafeOperationError,
    UnsupportedCatalogError,
)
from airflow_paimon.core.format.types import parse_type_text
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.schema.schema_plan import AddColumn, RemoveOption, SetOption
from airflow_paimon.core.store.wrapper import StoreWrapper
from airflow_paimon.core.table.table import Table, find_tables
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.catalogs.databases import check_databases
from tests.core.catalogs.lockers import assert_processes_lose_nothing, die_with_the_lock
from tests.core.tables import COLUMNS, alter_table, append, run
from tests.hive_server import Gate, Metastore, hive_server
from tests.soundness import assert_sound

PAIMON_FORMAT = "org.apache.paimon.hive.mapred.PaimonInputFormat"


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    with hive_server(tmp_path_factory.mktemp("hive")) as server:
        yield server


@pytest.fixture
def database(metastore: Metastore, tmp_path: Path) -> str:
    """A database of the metastore, whose tables lie elsewhere than the warehouse says."""
    name = f"d{uuid.uuid4().hex[:10]}"
    folder = tmp_path / "elsewhere" / f"{name}.db"
    folder.mkdir(parents=True)
    made = metastore.call(
        "create_database", structure({1: text(name), 3: text(f"file:{folder}"), 4: text_map({})})
    )  # fmt: skip
    assert made == {}
    return name


@pytest.fixture
def options(metastore: Metastore) -> dict[str, Any]:
    return {"metastore": "hive", "uri": metastore.uri, "lock.enabled": "true", "lock-check-max-sleep": "100 ms"}


@pytest.fixture
def gate(metastore: Metastore) -> Iterator[Gate]:
    gate = Gate(metastore)
    yield gate
    gate.close()


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    return str(tmp_path / "warehouse")


@pytest.fixture
def table(warehouse: str, database: str, options: dict[str, Any]) -> Table:
    return new_table(warehouse, database, options)


def new_table(warehouse: str, database: str, catalog: dict[str, Any], **more: Any) -> Table:
    return create_table(
        warehouse, f"{database}.t", COLUMNS, partition_keys=["dt"], primary_keys=["dt", "k"], storage_options=catalog,
        **({"options": {"bucket": "2"}} | more),
    )  # fmt: skip


def catalog_of(table: Table) -> HiveCatalog:
    assert isinstance(table.catalog, HiveCatalog)
    return table.catalog


def guard_of(table: Table) -> HiveGuard:
    assert isinstance(table.store, CatalogTableStore)
    assert isinstance(table.store.guard, HiveGuard)
    return table.store.guard


def held_by(metastore: Metastore, name: str) -> Struct:
    """The table as the metastore shows it to anybody."""
    database, _, short = name.partition(".")
    answer = metastore.call("get_table", text(database), text(short))
    found: Struct = answer[0].value
    return found


def alter(metastore: Metastore, name: str, changed: Struct) -> None:
    database, _, short = name.partition(".")
    assert metastore.call("alter_table", text(database), text(short), structure(changed)) == {}


def with_parameters(table: Struct, **more: str) -> Struct:
    return {**table, 9: text_map({**parameters(table), **more})}


def of_storage(table: Struct, number: int) -> Any:
    return table[7].value[number].value


def do(table: Table, operation: str, **values: Any) -> OperationResult:
    """Run an operation as a job would: by the table's name in its catalog."""
    options = {"metastore": "hive", "lock.enabled": "true", "uri": catalog_of(table).server.label}
    return run(table, operation, warehouse="/nowhere", storage_options=options, **values)


def snapshots_of_anybody(table: Table) -> list[str]:
    return [path for path in table.store.walk("") if "snapshot-" in path or "manifest" in path]


# -- names, reading and writing ----------------------------------------------------------------------------------------


def test_a_table_is_made_found_written_corrected_undone_and_read(
    warehouse: str, database: str, options: dict[str, Any], table: Table, tmp_path: Path
) -> None:
    catalog = open_catalog(warehouse, options)
    assert database in catalog.databases()
    assert catalog.tables(database) == ["t"]
    assert [found.name for found in find_tables(catalog, database)] == [f"{database}.t"]
    assert table.store.uri == f"file://{tmp_path}/elsewhere/{database}.db/t"
    rows = [{"k": 1, "v": "a", "dt": "x"}, {"k": 2, "v": "b", "dt": "x"}]
    shape = read_arrow(table).schema
    write_arrow(table, pa.Table.from_pylist(rows, schema=shape))
    again = open_table(warehouse, f"{database}.t", storage_options=options)
    do(again, "create_branch", branch="fix", snapshot=1)
    fix = open_table(warehouse, f"{database}.t$branch_fix", storage_options=options)
    write_arrow(fix, pa.Table.from_pylist([{**rows[0], "v": "right"}], schema=shape))
    published = do(again, "merge_branch", branch="fix", force=True)
    assert read_arrow(again)["v"].to_pylist() == ["right", "b"]
    do(again, "rollback_to", tag=published.details["undo_tag"])
    assert read_arrow(again)["v"].to_pylist() == ["a", "b"]
    assert pickle.loads(pickle.dumps(again)).latest_snapshot_id() == again.latest_snapshot_id()
    assert_sound(again)


def test_the_metastore_shows_a_new_table_as_paimons_java_catalog_makes_it(
    warehouse: str, metastore: Metastore, database: str, options: dict[str, Any], tmp_path: Path
) -> None:
    new_table(warehouse, database, options, comment="orders of shops")
    found = held_by(metastore, f"{database}.t")
    assert columns(found) == [("k", "bigint", ""), ("v", "string", ""), ("dt", "string", "")]
    wanted = {
        "table_type": "PAIMON", "storage_handler": "org.apache.paimon.hive.PaimonStorageHandler", "bucket": "2",
        "bucket-key": "k", "primary-key": "dt,k", "partition": "dt", "comment": "orders of shops",
    }  # fmt: skip
    assert wanted.items() <= parameters(found).items()
    assert location(found) == of_storage(found, 2) == f"file:{tmp_path}/elsewhere/{database}.db/t"
    assert (of_storage(found, 3), of_storage(found, 4)) == (
        PAIMON_FORMAT, "org.apache.paimon.hive.mapred.PaimonOutputFormat",
    )  # fmt: skip
    assert of_storage(found, 7)[2].value == "org.apache.paimon.hive.PaimonSerDe"
    assert found[12].value == "MANAGED_TABLE"
    assert found[8].value.values == (), "partition columns are ordinary ones"


def test_external_tables_and_locations_in_parameters(
    warehouse: str, metastore: Metastore, database: str, options: dict[str, Any], tmp_path: Path
) -> None:
    more = {"table.type": "external", "location-in-properties": "true", "sync-all-properties": "false"}
    made = new_table(
        warehouse, database, options | more, options={"bucket": "2", "hive.owner.team": "sales"}
    )  # fmt: skip
    found = held_by(metastore, f"{database}.t")
    assert found[12].value == "EXTERNAL_TABLE"
    held = parameters(found)
    assert held["EXTERNAL"] == "TRUE"
    assert held["paimon_location"] == f"file:{tmp_path}/elsewhere/{database}.db/t"
    assert held["owner.team"] == "sales"
    assert "bucket" not in held
    opened = open_table(warehouse, f"{database}.t", storage_options=options)
    assert opened.require().store.uri == made.store.uri


@pytest.mark.parametrize(
    ("paimon", "hive"),
    [
        ("DECIMAL(10, 2) NOT NULL", "decimal(10,2)"), ("CHAR(300)", "string"), ("CHAR(3)", "char(3)"),
        ("VARCHAR(70000)", "string"), ("VARCHAR(20)", "varchar(20)"), ("BYTES", "binary"), ("TIME(3)", "string"),
        ("TIMESTAMP(3)", "timestamp"), ("TIMESTAMP(3) WITH LOCAL TIME ZONE", "timestamp"), ("TINYINT", "tinyint"),
        ("MAP<STRING, ARRAY<INT>>", "map<string,array<int>>"), ("MULTISET<STRING>", "map<string,int>"),
        ("ROW<a INT, b ROW<c DATE>>", "struct<a:int,b:struct<c:date>>"), ("DOUBLE", "double"), ("FLOAT", "float"),
        ("VARIANT", "struct<value:binary,metadata:binary>"),
    ],
)  # fmt: skip
def test_types(paimon: str, hive: str) -> None:
    assert hive_type(parse_type_text(paimon, "c")) == hive


def test_what_is_not_a_paimon_table_is_named(
    warehouse: str, metastore: Metastore, database: str, options: dict[str, Any], table: Table
) -> None:
    storage: dict[int, Value] = {
        1: structures([{1: text("k"), 2: text("int")}]), 3: text("org.apache.hadoop.mapred.TextInputFormat"),
        7: structure({2: text("org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe")}),
    }  # fmt: skip
    plain = {1: text("plain"), 2: text(database), 7: structure(storage), 9: text_map({}), 12: text("MANAGED_TABLE")}
    assert metastore.call("create_table", structure(plain)) == {}
    assert open_catalog(warehouse, options).tables(database) == ["t"]
    with pytest.raises(NotPaimonError, match=r"plain in .* is not a Paimon table: .*TextInputFormat"):
        open_table(warehouse, f"{database}.plain", storage_options=options)
    with pytest.raises(UnsupportedCatalogError, match="is not a Paimon table"):
        create_table(warehouse, f"{database}.plain", COLUMNS, storage_options=options)
    with pytest.raises(NotFoundError, match=rf"There is no table {database}\.nope"):
        open_table(warehouse, f"{database}.nope", storage_options=options).require()
    with pytest.raises(NotFoundError, match="has no database 'nope'"):
        open_table(warehouse, "nope.t", storage_options=options).require()
    with pytest.raises(NotFoundError, match=r"has no database 'nope'.*CREATE DATABASE"):
        create_table(warehouse, "nope.t", COLUMNS, storage_options=options)


def test_databases_are_made_and_dropped(warehouse: str, options: dict[str, Any]) -> None:
    check_databases(warehouse, options)
    with pytest.raises(InvalidInputError, match="Hive metastore"):
        create_database(warehouse, "Upper", storage_options=options)


def test_names_that_hive_cant_hold_are_refused(warehouse: str, database: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="'Orders' can't be a name in a Hive metastore"):
        create_table(warehouse, f"{database}.Orders", COLUMNS, storage_options=options)
    assert open_catalog(warehouse, options).tables(database) == []


def test_a_location_that_is_gone_or_elsewhere(
    warehouse: str, metastore: Metastore, database: str, options: dict[str, Any], table: Table, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere" / f"{database}.db" / "t"
    moved = folder.rename(tmp_path / "moved")
    with pytest.raises(
        NotFoundError, match=rf"There is no table {database}\.t at file://{folder}, where .* registers it"
    ):
        open_table(warehouse, f"{database}.t", storage_options=options).require()
    with pytest.raises(UnsafeOperationError, match=rf"{folder}.*correct its location.*Nothing was created"):
        create_table(warehouse, f"{database}.t", COLUMNS, if_exists="skip", storage_options=options)
    assert not folder.exists()
    found = held_by(metastore, f"{database}.t")
    storage = structure({**found[7].value, 2: text(f"file:{moved}")})
    alter(metastore, f"{database}.t", {**found, 7: storage})
    opened = open_table(warehouse, f"{database}.t", storage_options=options)
    append(opened.require(), "x")
    assert opened.store.uri == f"file://{moved}"


def test_partitions_in_the_metastore_are_read_and_not_written(
    warehouse: str, metastore: Metastore, database: str, options: dict[str, Any], table: Table
) -> None:
    write_arrow(table, pa.Table.from_pylist([{"k": 1, "v": "a", "dt": "x"}], schema=read_arrow(table).schema))
    found = held_by(metastore, f"{database}.t")
    listed = of_storage(found, 1)
    storage = structure({**found[7].value, 1: structures(listed.values[:2])})
    plain = {**found, 1: text("parts"), 7: storage, 8: structures(listed.values[2:])}
    assert metastore.call("create_table", structure(plain)) == {}
    opened = open_table(warehouse, f"{database}.parts", storage_options=options)
    assert read_arrow(opened).num_rows == 1
    with pytest.raises(UnsupportedCatalogError, match=r"metastore\.partitioned-table"):
        write_arrow(opened, read_arrow(opened))
    with pytest.raises(UnsupportedCatalogError, match=r"metastore\.partitioned-table"):
        do(opened, "create_branch", branch="fix", snapshot=1)
    with pytest.raises(UnsupportedCatalogError, match=r"metastore\.partitioned-table"):
        alter_table(table, [SetOption(key="metastore.partitioned-table", value="true")])
    assert table.schema_ids() == [0]


# -- what is copied into the metastore ---------------------------------------------------------------------------------


def test_columns_and_options_follow_main(metastore: Metastore, table: Table) -> None:
    found = held_by(metastore, table.name)
    alter(metastore, table.name, with_parameters(found, team="sales"))
    alter_table(table, [SetOption(key="snapshot.time-retained", value="2 h")])
    alter_table(table, [AddColumn(name="price", type="DECIMAL(10, 2)", comment="in euro,\nnet"),
                        RemoveOption(key="snapshot.time-retained")])  # fmt: skip
    now = held_by(metastore, table.name)
    assert columns(now) == [
        ("k", "bigint", ""), ("v", "string", ""), ("dt", "string", ""), ("price", "decimal(10,2)", "in euro, net"),
    ]  # fmt: skip
    assert parameters(now)["team"] == "sales", "what others have put there stays"
    assert "snapshot.time-retained" not in parameters(now)
    assert do(table, "check_table").details["findings"] == []
    assert {n: v for n, v in now.items() if n not in (7, 9)} == {n: v for n, v in found.items() if n not in (7, 9)}


def test_only_main_is_copied_and_a_publish_brings_its_columns(metastore: Metastore, table: Table) -> None:
    append(table, "x")
    do(table, "create_branch", branch="fix", snapshot=1)
    before = held_by(metastore, table.name)
    alter_table(table.branch("fix"), [AddColumn(name="note", type="STRING")])
    assert held_by(metastore, table.name) == before
    append(table.branch("fix"), "x")
    do(table, "merge_branch", branch="fix", force=True)
    assert [name for name, _, _ in columns(held_by(metastore, table.name))] == ["k", "v", "dt", "note"]


def test_a_metastore_that_could_not_be_told_is_told_later(
    warehouse: str, metastore: Metastore, database: str, options: dict[str, Any], table: Table, gate: Gate,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    far = open_table(warehouse, f"{database}.t", storage_options={**options, "uri": gate.server.uri})
    gate.shuts = lambda data: b"alter_table" in data
    alter_table(far, [AddColumn(name="price", type="INT"), SetOption(key="bucket-key", value="k")])
    assert far.schema_ids() == [0, 1], "the schema file is what counts"
    assert "the catalog still shows the columns and options before schema 1" in caplog.text
    assert len(columns(held_by(metastore, table.name))) == 3
    found = do(table, "check_table").details["findings"]
    assert [(f["id"], f["severity"]) for f in found] == [("metastore", "warning")]
    assert "otherwise than schema 1: columns k, v, dt" in found[0]["message"]
    assert do(table, "repair_table", finding=["metastore"], dry_run=True).changed
    assert len(columns(held_by(metastore, table.name))) == 3
    repaired = do(table, "repair_table", finding=["metastore"])
    assert [f["id"] for f in repaired.details["repaired"]] == ["metastore"]
    assert columns(held_by(metastore, table.name))[3:] == [("price", "int", "")]
    assert do(table, "check_table").details["findings"] == []


# -- locks -------------------------------------------------------------------------------------------------------------


def lock(metastore: Metastore, name: str) -> tuple[int, int]:
    """Ask for the lock that Java's HiveCatalogLock takes: (id, state), 1 = acquired, 2 = waiting."""
    database, _, short = name.partition(".")
    part = {1: Value(8, 3), 2: Value(8, 2), 3: text(database), 4: text(short)}
    request = {1: structures([part]), 3: text("flink"), 4: text("elsewhere"), 5: text("Unknown")}
    answer = metastore.call("lock", structure(request))[0].value
    return answer[1].value, answer[2].value


def unlock(metastore: Metastore, lock_id: int) -> None:
    metastore.call("unlock", structure({1: Value(10, lock_id)}))


def free(metastore: Metastore, name: str) -> None:
    """Take the lock from its holder, as an administrator or the metastore does."""
    waiting, _ = lock(metastore, name)
    unlock(metastore, waiting - 1)
    unlock(metastore, waiting)


def is_free(metastore: Metastore, name: str) -> bool:
    lock_id, state = lock(metastore, name)
    unlock(metastore, lock_id)
    return state == 1


def test_a_commit_waits_for_the_lock_of_another(metastore: Metastore, table: Table) -> None:
    lock_id, state = lock(metastore, table.name)
    assert state == 1
    done: list[float] = []
    writer = threading.Thread(target=lambda: (append(table, "x"), done.append(time.monotonic())))
    writer.start()
    time.sleep(1)
    assert table.snapshot_ids() == []
    freed = time.monotonic()
    unlock(metastore, lock_id)
    writer.join(500)
    assert done
    assert done[0] > freed
    assert table.snapshot_ids() == [1]
    assert is_free(metastore, table.name), "the lock is given back"


def test_branches_have_locks_of_their_own(metastore: Metastore, table: Table) -> None:
    append(table, "x")
    do(table, "create_branch", branch="fix", snapshot=1)
    lock_id, _ = lock(metastore, table.name)
    append(table.branch("fix"), "x")
    unlock(metastore, lock_id)
    lock_id, _ = lock(metastore, f"{table.name}$branch_fix")
    append(table, "x")
    assert not is_free(metastore, f"{table.name}$branch_fix")
    unlock(metastore, lock_id)


def test_a_lock_that_is_never_free_ends_in_an_error_that_wrote_nothing(
    warehouse: str, metastore: Metastore, database: str, options: dict[str, Any], table: Table
) -> None:
    hurried = open_table(warehouse, f"{database}.t", storage_options={**options, "lock-acquire-timeout": "1 s"})
    lock_id, _ = lock(metastore, table.name)
    with pytest.raises(StorageError, match=r"did not give the lock on .*\.t: another .*; nothing was written"):
        append(hurried, "x")
    assert snapshots_of_anybody(table) == []
    unlock(metastore, lock_id)
    assert is_free(metastore, table.name), "who gave up waits no more"
    append(hurried, "x")


def test_no_lock_is_taken_where_java_cant_replace_anything(
    warehouse: str, metastore: Metastore, database: str, options: dict[str, Any], table: Table
) -> None:
    unlocked = {key: value for key, value in options.items() if not key.startswith("lock")}
    lock_id, _ = lock(metastore, table.name)
    append(open_table(warehouse, f"{database}.t", storage_options=unlocked), "x")
    assert not is_free(metastore, table.name)
    unlock(metastore, lock_id)


def test_a_lock_that_the_metastore_forgot_is_no_success(metastore: Metastore, table: Table) -> None:
    with (
        pytest.raises(OutcomeUnknownError, match=r"forgot the lock on .*\.t \(.*\) while it was held"),
        guard_of(table).hold("t"),
    ):
        free(metastore, table.name)  # as the metastore does when a holder is silent for too long
        assert is_free(metastore, table.name), "another could take it"


def test_a_commit_whose_lock_was_lost_is_looked_for(metastore: Metastore, table: Table) -> None:
    """The snapshot is there and ours: a success, although the lock was taken away during the put."""
    taken = []

    class LosesLock(StoreWrapper):
        def create(self, path: str, data: bytes) -> None:
            super().create(path, data)
            if path == "snapshot/snapshot-1":
                free(metastore, table.name)
                taken.append(is_free(metastore, table.name))

    held = table.store
    assert isinstance(held, CatalogTableStore)
    view = dataclasses.replace(table, store=CatalogTableStore(LosesLock(held.inner), held.table, held.guard))
    receipt = append(view, "x")
    assert taken
    assert receipt.snapshot is not None
    assert table.snapshot_ids() == [1]


def test_processes_that_commit_at_once_lose_nothing(warehouse: str, database: str, options: dict[str, Any]) -> None:
    assert_processes_lose_nothing(warehouse, f"{database}.t", options)


def test_a_holder_that_is_killed_delays_the_next_until_its_lock_is_forgotten(
    warehouse: str, metastore: Metastore, database: str, options: dict[str, Any], table: Table
) -> None:
    die_with_the_lock(warehouse, f"{database}.t", options)
    assert not is_free(metastore, table.name)
    append(table, "x")
    assert table.snapshot_ids() == [1]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_metastore_that_is_gone_before_the_commit(
    warehouse: str, database: str, options: dict[str, Any], table: Table, gate: Gate
) -> None:
    append(table, "x")
    far = {**options, "uri": gate.server.uri}
    opened = open_table(warehouse, f"{database}.t", storage_options=far)
    gate.shut()
    assert opened.latest_snapshot_id() == 1, "reading a table that is open needs no metastore"
    with pytest.raises(StorageError, match=rf"The Hive metastore {gate.server.uri}"):
        append(opened, "x")
    with pytest.raises(StorageError, match=rf"The Hive metastore {gate.server.uri}"):
        open_table(warehouse, f"{database}.t", storage_options=far)
    assert table.snapshot_ids() == [1]
    gate.open()
    append(opened, "x")
    two = {**options, "uri": f"thrift://127.0.0.1:9,{gate.server.uri}"}
    assert open_table(warehouse, f"{database}.t", storage_options=two).snapshot_ids() == [1, 2]
    none = {**options, "uri": "thrift://127.0.0.1:9"}
    with pytest.raises(StorageError, match=r"thrift://127\.0\.0\.1:9 can't be reached \(.*Connection refused"):
        open_table(warehouse, f"{database}.t", storage_options=none)


@pytest.mark.parametrize(
    ("call", "after", "committed"), [(b"lock", False, False), (b"lock", True, False), (b"unlock", False, True)]
)
@pytest.mark.every(3, first=2)
def test_a_metastore_that_goes_away_during_the_commit(
    warehouse: str, metastore: Metastore, database: str, options: dict[str, Any], table: Table, gate: Gate, call: bytes,
    after: bool, committed: bool,
) -> None:  # fmt: skip
    opened = open_table(warehouse, f"{database}.t", storage_options={**options, "uri": gate.server.uri})
    gate.after = after
    gate.shuts = lambda data: b"\0\0\0" + bytes([len(call)]) + call in data
    if committed:
        assert append(opened, "x").snapshot is not None
    else:
        with pytest.raises(StorageError, match=r"to lock .*\.t"):
            append(opened, "x")
    assert table.snapshot_ids() == [1] * committed
    gate.open()
    if committed:
        free(metastore, table.name)  # it would be forgotten, as that of a holder that is killed
    append(opened, "x")
    assert table.snapshot_ids() == [1, 2][: 1 + committed]


def test_a_user_who_may_not_see_the_table(
    warehouse: str, database: str, options: dict[str, Any], table: Table, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    os.chmod(tmp_path / "elsewhere" / f"{database}.db" / "t", 0o700)
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    with pytest.raises(UnsafeOperationError, match=rf"asked by 'stranger' to get_table {database}\.t, said: "):
        open_table(warehouse, f"{database}.t", storage_options=options)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"uri": ""}, InvalidInputError, "needs the option uri, such as thrift://host:9083"),
        ({"uri": "http://h:1"}, InvalidInputError, "is such as thrift://host:9083"),
        ({"uri": "thrift://h:port"}, InvalidInputError, "is such as thrift://host:9083"),
        ({"table.type": "view"}, InvalidInputError, "must be managed or external"),
        ({"hive.metastore.sasl.enabled": "true"}, UnsupportedCatalogError, "behind Kerberos can't be asked"),
        ({"hive.metastore.use.SSL": "TRUE"}, UnsupportedCatalogError, "behind TLS can't be asked"),
    ],
)
def test_wrong_options(given: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        open_catalog("/wh", {"metastore": "hive", "uri": "thrift://h", **given})


def test_something_else_than_a_metastore(warehouse: str, options: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        uri = f"thrift://127.0.0.1:{listener.getsockname()[1]}"
        hurried = {**options, "uri": uri, "hive.metastore.client.socket.timeout": "1"}
        with pytest.raises(StorageError, match=rf"{uri}, asked by .* to set_ugi, got no answer in 1 s"):
            open_catalog(warehouse, hurried).databases()
        listener.accept()[0].close()
        threading.Thread(target=lambda: listener.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")).start()
        with pytest.raises(UnsupportedCatalogError, match=rf"{uri}.* is not of Thrift's binary protocol"):
            open_catalog(warehouse, hurried).databases()
