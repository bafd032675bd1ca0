"""The storage options of a table's files: what the user gave, what the server adds, and its tokens for the data.

A token is asked for when the files are first used, and again before it ends: long operations go on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_paimon.core.catalogs.options import catalog_options
from airflow_paimon.core.catalogs.rest_client import RestClient
from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.store import Store, open_store
from airflow_paimon.core.store.base import folder_name, join
from airflow_paimon.core.store.opening import java_options, merged_options
from airflow_paimon.core.store.wrapper import StoreWrapper

_SAFE_MS = 3_600_000
"""A token is renewed when it has less left than this, or than half of the time that it was given for."""


def storage_options(uri: str, given: Mapping[str, Any], token_options: Mapping[str, Any]) -> dict[str, Any]:
    """Merge what a server tells about a storage, without what is unknown, over what the user gave.

    ``given``: all options of the catalog.
    """
    told = {k: v for k, v in token_options.items() if given.get(k) != v}
    return merged_options(uri, catalog_options(given).storage, java_options(uri, told))


@dataclass(frozen=True, slots=True)
class _Token:
    options: Mapping[str, Any] = field(repr=False)
    renew_ms: int


_known: dict[tuple[RestClient, tuple[str, str]], _Token] = {}


def _token(client: RestClient, table: tuple[str, str]) -> _Token:
    now = int(time.time() * 1000)
    known = _known.get((client, table))
    if known is not None and now < known.renew_ms:
        return known
    raw = client.get(["databases", table[0], "tables", table[1], "token"])
    options, ends = raw.get("token"), raw.get("expiresAtMillis")
    if not isinstance(options, dict) or not isinstance(ends, int):
        raise FormatError(f"{client.label}: its answer contains no token for the data of {'.'.join(table)}")
    fresh = _Token(options, ends - min(_SAFE_MS, max(ends - now, 0) // 2))
    _known[client, table] = fresh
    return fresh


class TokenStore(StoreWrapper):
    """A folder that is reached by the token that the server gives for a table."""

    __slots__ = ("_client", "_endpoint", "_options", "_path", "_table")

    def __init__(
        self, client: RestClient, table: tuple[str, str], path: str, options: Mapping[str, Any], endpoint: str | None
    ) -> None:
        self._client, self._table, self._path = client, table, path
        self._options, self._endpoint = dict(options), endpoint

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStore, (self._client, self._table, self._path, self._options, self._endpoint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenStore) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    @property
    def inner(self) -> Store:  # type: ignore[override]
        token_options = dict(_token(self._client, self._table).options)
        if self._endpoint:
            token_options["fs.oss.endpoint"] = self._endpoint
        token_options = java_options(self._path, token_options)
        return open_store(self._path, merged_options(self._path, self._options, token_options))

    def child(self, path: str) -> Store:
        below = join(self._path, folder_name(path))
        return TokenStore(self._client, self._table, below, self._options, self._endpoint)
