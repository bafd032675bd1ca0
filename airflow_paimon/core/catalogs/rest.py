"""Paimon's REST catalog: a server that knows the tables of a warehouse, and commits to those that it manages.

Requests and meaning follow ``RESTApi`` and ``RESTCatalog`` of release 2.0.0. What a server tells about itself is asked
anew every few minutes, and its tables by each call.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from airflow_paimon.core.catalogs.base import Catalog, no_database
from airflow_paimon.core.catalogs.options import METASTORE, CatalogOptions, catalog_options
from airflow_paimon.core.catalogs.rest_auth import auth_of
from airflow_paimon.core.catalogs.rest_client import RestClient, checked_uri
from airflow_paimon.core.catalogs.rest_data_tokens import TokenStore, storage_options
from airflow_paimon.core.catalogs.rest_store import NewRestTableStore, RefusedRestTableStore, RestTable, RestTableStore
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    FormatError,
    NotFoundError,
    UnsafeOperationError,
    UnsupportedCatalogError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.store import Store, open_store
from airflow_paimon.core.store.threads import map_parallel

_KNOWN_FOR_S = 300
_AT_ONCE = 8
_QUERY_AUTH = "query-auth.enabled"


@dataclass(frozen=True, slots=True)
class _Connected:
    client: RestClient
    options: CatalogOptions


@dataclass(frozen=True, slots=True)
class RestCatalog(Catalog):
    """``warehouse``: the name that the server knows it by."""

    warehouse: str
    uri: str
    given: str = field(repr=False)
    """All options, as JSON."""

    @property
    def label(self) -> str:
        return _label(self.uri, self.warehouse)

    def databases(self) -> list[str]:
        return sorted(self._client.pages(["databases"], "databases"))

    def create_database(self, name: str) -> None:
        try:
            self._client.post(["databases"], {"name": name, "options": {}})
        except AlreadyExistsError:
            raise AlreadyExistsError(f"{self.label} has a database {name!r} already") from None

    def drop_database(self, name: str) -> None:
        self._client.get(["databases", name])
        self._client.delete(["databases", name])

    def tables(self, database: str) -> list[str]:
        try:
            return sorted(self._client.pages(["databases", database, "tables"], "tables"))
        except NotFoundError:
            return []

    def locate(self, database: str, tables: Sequence[str]) -> list[Store | None]:
        return map_parallel(lambda table: self._locate(database, table), tables, _AT_ONCE)

    def place(self, database: str, table: str) -> Store:
        try:
            self._client.get(["databases", database])
        except NotFoundError:
            raise no_database(self, database) from None
        return NewRestTableStore(self, self._client, database, table)

    def warehouse_store(self) -> Store:
        raise UnsupportedCatalogError(
            f"{self.label}: its server manages the warehouse, so table sets are not supported; tag the tables one by "
            "one with create_tag"
        )

    def register(self, database: str, table: str, schema: TableSchema) -> None:
        """Nothing is left to do: the server made the table, and its first schema with it."""

    def mark_done(self, database: str, table: str, spec: Mapping[str, str]) -> None:
        with suppress(UnsupportedCatalogError):
            self._client.post([*_partitions(database, table), "mark"], {"specs": [dict(spec)]})

    def add_partition(self, database: str, table: str, spec: Mapping[str, str]) -> None:
        self._client.post(_partitions(database, table), {"partitionSpecs": [dict(spec)], "ignoreIfExists": True})

    @property
    def _client(self) -> RestClient:
        return self._connected.client

    @property
    def _connected(self) -> _Connected:
        return _connect(self.uri, self.warehouse, self.given, int(time.time() // _KNOWN_FOR_S))

    def _locate(self, database: str, table: str) -> Store | None:
        connected = self._connected
        name = f"{database}.{table}"
        try:
            found = connected.client.get(["databases", database, "tables", table])
        except NotFoundError:
            return None
        except UnsafeOperationError as error:  # a listing shows it all the same
            return RefusedRestTableStore(f"{self.label}: {name}", error)
        path, identity = found.get("path"), found.get("id")
        options = (found.get("schema") or {}).get("options") or {}
        refusal = _refusal(name, options)
        if refusal is not None:
            return RefusedRestTableStore(f"{self.label}: {name}", refusal)
        if not isinstance(path, str) or not path:
            raise FormatError(f"{self.label} names no path of the table {name}")
        files = self._files(connected, database, table, path)
        if found.get("isExternal"):
            return files
        return RestTableStore(files, RestTable(connected.client, database, table, str(identity)))

    def _files(self, connected: _Connected, database: str, table: str, path: str) -> Store:
        own = storage_options(path, json.loads(self.given), connected.options.storage)
        if connected.options.flag("data-token.enabled", False):
            endpoint = connected.options.own.get("dlf.oss-endpoint")
            return TokenStore(connected.client, (database, table), path, own, endpoint)
        return open_store(path, own)


def _partitions(database: str, table: str) -> list[str]:
    return ["databases", database, "tables", table, "partitions"]


def _refusal(name: str, options: Mapping[str, str]) -> UnsupportedFeatureError | None:
    if options.get(_QUERY_AUTH, "").strip().lower() == "true":
        return UnsupportedFeatureError(
            f"{name} has row filters or column masks ({_QUERY_AUTH}), which this package can't apply, so it is neither "
            f"read nor written here; use an engine that does, such as Flink or Spark"
        )
    kind = options.get("type", "").strip().lower()
    if kind not in ("table", ""):
        return UnsupportedFeatureError(f"{name} is a {kind}, which has no snapshots; use Flink or Spark for it")
    return None


def _label(uri: str, warehouse: str) -> str:
    return f"catalog {uri}, warehouse {warehouse!r}"


@lru_cache(maxsize=64)
def _connect(uri: str, warehouse: str, given: str, period: int) -> _Connected:
    """Ask the server for its part of the options: its defaults, then what the user gave, then what it overrides.

    ``period``: a number that changes when it is to be asked again.
    """
    known = json.loads(given)
    options = catalog_options(known)
    auth, label = auth_of(options), _label(uri, warehouse)
    client = RestClient(uri, auth, label, _headers(options.own))
    answer = client.get(("config",), {"warehouse": warehouse} if warehouse else {})
    merged = {**_texts(answer.get("defaults")), **known, **_texts(answer.get("overrides")), METASTORE: "rest"}
    merged.pop("warehouse", None)
    final = catalog_options(merged)
    return _Connected(RestClient(uri, auth, label, _headers(final.own), final.own.get("prefix", "")), final)


def _texts(given: Mapping[str, Any] | None) -> dict[str, str]:
    return {str(k): str(v) for k, v in (given or {}).items() if v is not None}


def _headers(own: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((k.removeprefix("header."), v) for k, v in sorted(own.items()) if k.startswith("header."))


def open_rest_catalog(warehouse: str, options: CatalogOptions) -> RestCatalog:
    """Open a REST catalog; it asks its server with the first call."""
    uri = checked_uri(options.required("uri", "https://host:8080"))
    auth_of(options)
    given = {**options.storage, **options.own, METASTORE: options.kind}
    return RestCatalog(warehouse, uri, json.dumps(given, sort_keys=True))
