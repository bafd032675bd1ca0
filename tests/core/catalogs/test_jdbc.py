"""Paimon's JDBC catalog, on SQLite and a real PostgreSQL: names, locks, properties, and what goes wrong."""

from __future__ import annotations

import dataclasses
import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon import create_table, open_table
from airflow_paimon.core.catalogs import open_catalog, storage_only
from airflow_paimon.core.catalogs.jdbc import JdbcCatalog, JdbcGuard
from airflow_paimon.core.catalogs.options import CatalogOptions
from airflow_paimon.core.catalogs.table_store import CatalogTableStore, locking_at
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    UnsafeOperationError,
)
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.store.wrapper import StoreWrapper
from airflow_paimon.core.table.table import Table, resolve_version
from airflow_paimon.data import read_arrow, write_arrow
from tests.conftest import require
from tests.core.catalogs.databases import check_databases
from tests.core.catalogs.lockers import assert_processes_lose_nothing, die_with_the_lock
from tests.core.tables import COLUMNS, alter_table, append, run
from tests.database_servers import PASSWORD, USER, mariadb_program, mariadb_server, postgres_programs, postgres_server

LOCK = "jdbc.d.t"
SAME_EVERYWHERE = pytest.mark.every(2)
"""No part of it depends on the database: the gates have it on SQLite alone."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    require(postgres_programs() is not None, "PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with postgres_server() as uri:
        yield uri


@pytest.fixture(scope="module")
def mysql() -> Iterator[str]:
    require(mariadb_program() is not None, "MariaDB is not installed (Debian: apt-get install mariadb-server)")
    with mariadb_server() as uri:
        yield uri


# `make reach` tests with MariaDB, too.
@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.landing),
        *(["mysql"] if os.environ.get("AIRFLOW_PAIMON_REACH") == "1" else []),
    ]
)
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Options of a catalog of its own, which locks on a local disk too."""
    found: dict[str, Any] = {"metastore": "jdbc", "lock.enabled": "true", "catalog-key": "jdbc"}
    if request.param == "sqlite":
        return {**found, "uri": f"jdbc:sqlite:{tmp_path}/catalog.db"}
    uri = request.getfixturevalue({"postgresql": "postgres"}.get(request.param, request.param))
    found |= {"uri": uri, "jdbc.user": USER, "jdbc.password": PASSWORD}
    empty(found, tmp_path)
    return found


def catalog_of(options: dict[str, Any], warehouse: Path) -> JdbcCatalog:
    opened = open_catalog(str(warehouse), options)
    assert isinstance(opened, JdbcCatalog)
    return opened


def empty(options: dict[str, Any], warehouse: Path) -> None:
    with catalog_of(options, warehouse).database.transaction() as run_sql:
        for name in ("tables", "table_properties", "database_properties", "distributed_locks"):
            run_sql.run(f"DROP TABLE IF EXISTS paimon_{name}")


def create_database(options: dict[str, Any], warehouse: Path, name: str = "d") -> None:
    """Do what CREATE DATABASE of Java's JdbcCatalog does."""
    with catalog_of(options, warehouse).database.transaction() as run_sql:
        run_sql.run(
            "CREATE TABLE IF NOT EXISTS paimon_tables (catalog_key VARCHAR(255) NOT NULL, database_name VARCHAR(255) "
            "NOT NULL, table_name VARCHAR(255) NOT NULL, PRIMARY KEY (catalog_key, database_name, table_name))"
        )
        run_sql.run(
            "CREATE TABLE IF NOT EXISTS paimon_database_properties (catalog_key VARCHAR(255) NOT NULL, database_name "
            "VARCHAR(255) NOT NULL, property_key VARCHAR(255), property_value VARCHAR(1000), "
            "PRIMARY KEY (catalog_key, database_name, property_key))"
        )
        run_sql.run("INSERT INTO paimon_database_properties VALUES (?, ?, 'exists', 'true')", "jdbc", name)


@pytest.fixture
def table(options: dict[str, Any], tmp_path: Path) -> Table:
    create_database(options, tmp_path)
    return new_table(options, tmp_path)


def new_table(options: dict[str, Any], warehouse: Path, **more: Any) -> Table:
    return create_table(
        str(warehouse), "d.t", COLUMNS, partition_keys=["dt"], primary_keys=["dt", "k"], storage_options=options,
        **({"options": {"bucket": "2"}} | more),
    )  # fmt: skip


def guard_of(table: Table) -> JdbcGuard:
    assert isinstance(table.store, CatalogTableStore)
    assert isinstance(table.store.guard, JdbcGuard)
    return table.store.guard


def locks(table: Table) -> list[Any]:
    with guard_of(table).database.transaction() as run_sql:
        return [row[0] for row in run_sql.rows("SELECT lock_id FROM paimon_distributed_locks")]


def test_databases_are_made_and_dropped(options: dict[str, Any], tmp_path: Path) -> None:
    if options["uri"].startswith("jdbc:sqlite"):  # with the tables that Java makes for its first user
        create_database(options, tmp_path)
    check_databases(str(tmp_path), options)


@SAME_EVERYWHERE
def test_a_table_set_lies_in_the_warehouse(options: dict[str, Any], table: Table, tmp_path: Path) -> None:
    append(table, "1")
    run(table, "create_table_set", table_set="s", storage_options=options)
    append(table, "1")
    found = resolve_version(open_table(str(tmp_path), "d.t", storage_options=options), "set:s")[1]
    assert found is not None
    assert found.id == 1


def test_a_table_is_made_found_written_corrected_and_read(
    options: dict[str, Any], tmp_path: Path, table: Table
) -> None:
    catalog = catalog_of(options, tmp_path)
    assert catalog.databases() == ["d"]
    assert catalog.tables("d") == ["t"]
    rows = [{"k": 1, "v": "a", "dt": "x"}, {"k": 2, "v": "b", "dt": "x"}]
    import pyarrow as pa

    write_arrow(table, pa.Table.from_pylist(rows, schema=read_arrow(table).schema))
    again = open_table(str(tmp_path), "d.t", storage_options=options)
    run(again, "create_branch", branch="fix", snapshot=again.latest_snapshot_id())
    write_arrow(again.branch("fix"), pa.Table.from_pylist([{**rows[0], "v": "right"}], schema=read_arrow(table).schema))
    run(again, "merge_branch", branch="fix", force=True)
    assert sorted(read_arrow(again)["v"].to_pylist()) == ["b", "right"]
    assert locks(table) == [], "every lock is given back"
    assert pickle.loads(pickle.dumps(again)).latest_snapshot_id() == again.latest_snapshot_id()


def test_options_and_keys_are_copied_to_the_catalog(table: Table) -> None:
    expected = {"bucket": "2", "primary-key": "dt,k", "partition": "dt", "bucket-key": "k"}
    assert guard_of(table).stored_properties() == expected
    alter_table(table, [SetOption(key="snapshot.time-retained", value="2 h")])
    assert guard_of(table).stored_properties() == {**expected, "snapshot.time-retained": "2 h"}


def test_properties_that_are_behind_are_found_and_repaired(
    options: dict[str, Any], tmp_path: Path, table: Table
) -> None:
    before = guard_of(table).stored_properties()
    with guard_of(table).database.transaction() as run_sql:
        run_sql.run("UPDATE paimon_table_properties SET property_value = '7' WHERE property_key = 'bucket'")
    where = {"warehouse": str(tmp_path), "storage_options": options}
    (found,) = run(table, "check_table", **where).details["findings"]
    assert (found["id"], found["message"]) == (
        "metastore", "The catalog shows the table otherwise than schema 0: option bucket",
    )  # fmt: skip
    assert run(table, "repair_table", finding=["metastore"], **where).changed
    assert guard_of(table).stored_properties() == before
    assert run(table, "check_table", **where).details["findings"] == []
    with guard_of(table).database.transaction() as run_sql:
        run_sql.run("DROP TABLE paimon_table_properties")
    assert run(table, "repair_table", **where).changed
    assert guard_of(table).stored_properties() == before


@SAME_EVERYWHERE
def test_only_what_is_registered_is_a_table(options: dict[str, Any], tmp_path: Path) -> None:
    create_database(options, tmp_path)
    create_table(str(tmp_path), "d.t", COLUMNS)  # by the filesystem catalog
    with pytest.raises(NotFoundError, match=r"There is no table d\.t"):
        open_table(str(tmp_path), "d.t", storage_options=options).require()
    with pytest.raises(AlreadyExistsError, match="if_exists='skip' uses it"):
        create_table(str(tmp_path), "d.t", COLUMNS, storage_options=options)
    create_table(str(tmp_path), "d.t", COLUMNS, storage_options=options, if_exists="skip")
    assert open_table(str(tmp_path), "d.t", storage_options=options).require().name == "d.t"
    with pytest.raises(NotFoundError, match=r"has no database 'e' \(it has d\)"):
        create_table(str(tmp_path), "e.t", COLUMNS, storage_options=options)


@SAME_EVERYWHERE
def test_a_table_whose_files_are_gone(options: dict[str, Any], tmp_path: Path, table: Table) -> None:
    """Another warehouse than the tables were made in, or a folder that is not mounted."""
    elsewhere = str(tmp_path / "elsewhere")
    with pytest.raises(NotFoundError, match=r"no table d\.t at file://.*/elsewhere/d\.db/t, where .*or the warehouse"):
        open_table(elsewhere, "d.t", storage_options=options).require()
    with pytest.raises(UnsafeOperationError, match=r"elsewhere/d\.db/t.*drop it in the catalog. Nothing was created"):
        create_table(elsewhere, "d.t", COLUMNS, storage_options=options)
    assert not (tmp_path / "elsewhere").exists()


def test_a_commit_waits_for_the_lock_of_another(table: Table) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with guard_of(table).hold("t"):
            held.set()
            time.sleep(1)
            done.set()

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(500)
    append(table.branch("main"), "x")
    assert done.is_set(), "the commit landed while another held the lock"
    other.join()
    assert table.latest_snapshot_id() == 1
    assert locks(table) == []


@SAME_EVERYWHERE
def test_branches_have_locks_of_their_own(table: Table) -> None:
    append(table, "x")
    run(table, "create_branch", branch="fix", snapshot=1)
    with guard_of(table).hold("t"):
        append(table.branch("fix"), "x")
        assert locks(table) == [LOCK]
    with guard_of(table).hold("t$branch_fix"):
        append(table, "x")


@SAME_EVERYWHERE
def test_a_lock_that_is_never_free_ends_in_an_error_that_wrote_nothing(
    options: dict[str, Any], tmp_path: Path, table: Table
) -> None:
    hurried = open_table(str(tmp_path), "d.t", storage_options={**options, "lock-acquire-timeout": "1 s"})
    with guard_of(table).hold("t"), pytest.raises(StorageError, match=r"was not free for 1 s.*nothing was written"):
        append(hurried, "x")
    assert [path for path in table.store.walk("") if "manifest" in path or "snapshot" in path] == []
    append(hurried, "x")


def test_an_expired_lock_is_taken_and_its_first_holder_is_told(
    options: dict[str, Any], tmp_path: Path, table: Table
) -> None:
    """The first holder hangs in its put; its lock expires, a second writer takes it, commits and gives it back."""
    brief = open_table(str(tmp_path), "d.t", storage_options={**options, "lock-acquire-timeout": "1 s"})
    patient = guard_of(table)
    with pytest.raises(OutcomeUnknownError, match="expired while it was held"), guard_of(brief).hold("t"):
        with patient.hold("t"):
            assert locks(table) == [LOCK]
        assert locks(table) == [], "and its own lock was left to the second holder"


def test_the_successor_keeps_its_lock(options: dict[str, Any], tmp_path: Path, table: Table) -> None:
    """Java releases by name, so a holder that was late would delete its successor's lock."""
    brief = guard_of(open_table(str(tmp_path), "d.t", storage_options={**options, "lock-acquire-timeout": "1 s"}))
    first = brief.hold("t")
    first.__enter__()
    with guard_of(table).hold("t"):
        with pytest.raises(OutcomeUnknownError):
            first.__exit__(None, None, None)
        assert locks(table) == [LOCK]


@SAME_EVERYWHERE
def test_a_commit_whose_lock_was_lost_is_looked_for(table: Table) -> None:
    """The snapshot is there and ours: a success, although the lock was taken away during the put."""
    guard, lost = guard_of(table), []

    class LosesLock(StoreWrapper):
        def create(self, path: str, data: bytes) -> None:
            super().create(path, data)
            if path == "snapshot/snapshot-1":
                with guard.database.transaction() as run_sql:
                    lost.append(run_sql.run("DELETE FROM paimon_distributed_locks"))

    assert isinstance(table.store, CatalogTableStore)
    view = dataclasses.replace(table, store=CatalogTableStore(LosesLock(table.store.inner), "t", guard))
    receipt = append(view, "x")
    assert lost == [1]
    assert receipt.snapshot is not None
    assert table.latest_snapshot_id() == 1


def test_processes_that_commit_at_once_lose_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    create_database(options, tmp_path)
    assert_processes_lose_nothing(str(tmp_path), "d.t", options)


def test_a_holder_that_is_killed_delays_the_next_until_its_lock_expires(
    options: dict[str, Any], tmp_path: Path, table: Table
) -> None:
    die_with_the_lock(str(tmp_path), "d.t", {**options, "lock-acquire-timeout": "1 s"})
    assert locks(table) == [LOCK]
    append(table, "x")
    assert table.latest_snapshot_id() == 1


@SAME_EVERYWHERE
def test_who_waits_as_long_as_a_dead_holders_lock_lives_outlives_it(
    options: dict[str, Any], tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first look at the lock takes its time: else each retry would give up just before."""
    brief = guard_of(open_table(str(tmp_path), "d.t", storage_options={**options, "lock-acquire-timeout": "1 s"}))
    dead = brief.hold("t")
    dead.__enter__()
    look, looks = JdbcGuard._try, []

    def slow(self: JdbcGuard, lock: str) -> Any:
        looks.append(lock)
        found = look(self, lock)
        time.sleep(0.5 if len(looks) == 1 else 0)
        return found

    monkeypatch.setattr(JdbcGuard, "_try", slow)
    with brief.hold("t"):
        assert locks(table) == [LOCK]
    with pytest.raises(OutcomeUnknownError):
        dead.__exit__(None, None, None)


@SAME_EVERYWHERE
def test_a_catalog_that_is_gone_stops_the_commit_and_not_the_reader(
    options: dict[str, Any], tmp_path: Path, table: Table
) -> None:
    append(table, "x")
    away = table.store.inner  # type: ignore[attr-defined]
    gone = {**options, "uri": "jdbc:postgresql://127.0.0.1:9/postgres", "jdbc.user": "u", "jdbc.password": "p"}
    lost = guard_of(table)
    unreachable = JdbcGuard(catalog_of(gone, tmp_path).database, lost.key, "d", "t", lost.locking, lost.sync)
    view = Table(CatalogTableStore(away, "t", unreachable), "d.t")
    assert view.latest_snapshot_id() == 1
    with pytest.raises(StorageError, match=r"jdbc:postgresql://127\.0\.0\.1:9/postgres"):
        append(view, "x")
    assert view.latest_snapshot_id() == 1
    with pytest.raises(StorageError, match=r"jdbc:postgresql://127\.0\.0\.1:9/postgres"):
        open_table(str(tmp_path), "d.t", storage_options=gone)


def test_who_may_make_no_tables_commits_and_alters(postgres: str, tmp_path: Path) -> None:
    """PostgreSQL asks for the right to make a table even where CREATE TABLE IF NOT EXISTS has nothing to do."""
    admin = {"metastore": "jdbc", "lock.enabled": "true", "uri": postgres, "jdbc.user": USER, "jdbc.password": PASSWORD}
    empty(admin, tmp_path)
    create_database(admin, tmp_path)
    append(new_table(admin, tmp_path), "x")
    with catalog_of(admin, tmp_path).database.transaction() as run_sql:
        run_sql.run(f"CREATE ROLE writer LOGIN PASSWORD '{PASSWORD}'")
        run_sql.run("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO writer")
    writer = open_table(str(tmp_path), "d.t", storage_options={**admin, "jdbc.user": "writer"})
    append(writer, "x")
    alter_table(writer, [SetOption(key="snapshot.time-retained", value="2 h")])
    assert guard_of(writer).stored_properties()["snapshot.time-retained"] == "2 h"


def test_a_wrong_password_is_told_without_the_password(postgres: str, tmp_path: Path) -> None:
    wrong = {"metastore": "jdbc", "uri": postgres, "jdbc.user": USER, "jdbc.password": "not-this-one"}
    with pytest.raises(UnsafeOperationError, match="refuses the user 'paimon'") as raised:
        catalog_of(wrong, tmp_path).databases()
    assert "not-this-one" not in str(raised.value)
    assert "not-this-one" not in repr(catalog_of(wrong, tmp_path))


def test_a_database_without_a_catalog(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not a Paimon catalog"):
        catalog_of(options, tmp_path).databases()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"metastore": "glue"}, "metastore must be one of filesystem, hive, jdbc, rest"),
        ({"metastore": "jdbc"}, "needs the option uri, such as jdbc:postgresql"),
        ({"metastore": "jdbc", "uri": "jdbc:oracle:thin"}, "is not one of jdbc:postgresql"),
        ({"metastore": "jdbc", "uri": "jdbc:sqlite:catalog.db"}, "needs the whole path"),
        ({"metastore": "jdbc", "uri": "jdbc:postgresql://u:p@h/d"}, "are the options jdbc.user and jdbc.password"),
        (
            {"metastore": "jdbc", "uri": "jdbc:sqlite:/c.db", "lock.enabled": "yes"},
            "lock.enabled must be true",
        ),
        ({"metastore": "jdbc", "uri": "jdbc:sqlite:/c.db", "lock-acquire-timeout": "soon"}, "is not a duration"),
    ],
)
def test_wrong_options(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        open_catalog(str(tmp_path), given)


def test_which_storages_take_the_lock() -> None:
    def takes(uri: str, **given: str) -> bool:
        return locking_at(uri, CatalogOptions("jdbc", {k.replace("_", "."): v for k, v in given.items()}, {})).enabled

    schemes = ("file", "hdfs", "s3", "s3a", "gs", "abfss", "oss", "wasbs")
    assert [s for s in schemes if takes(f"{s}://a/b")] == ["s3", "s3a", "gs", "wasbs"]
    assert takes("hdfs://a/b", lock_enabled="true")
    assert not takes("s3://a/b", lock_enabled="false")


def test_the_storage_gets_its_own_options_only() -> None:
    given = {"metastore": "jdbc", "uri": "jdbc:sqlite:/c.db", "jdbc.password": "p", "key": "k", "endpoint_url": "e"}
    assert storage_only(given) == {"key": "k", "endpoint_url": "e"}
    assert storage_only({"token": "anon"}) == {"token": "anon"}
    assert storage_only(None) is None


def test_reads_of_a_lost_database_file_are_no_success(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="folder of the file does not exist"):
        open_catalog(str(tmp_path), {"metastore": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/no/c.db"}).databases()
