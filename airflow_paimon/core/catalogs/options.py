"""The options of a catalog among those of its storage: one mapping, as Paimon's own catalog options are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.options import parse_boolean, parse_duration

METASTORE = "metastore"
CATALOGS = ("filesystem", "hive", "jdbc", "rest")
_SHARED = frozenset({METASTORE, "uri", "lock.enabled", "lock-acquire-timeout", "lock-check-max-sleep"})
_OWN = {
    "hive": (
        "hive.", "location-in-properties", "metastore.", "client-pool-size", "client-pool-cache.",
        "sync-all-properties", "alter-table-cascade", "table.type",
    ),
    "jdbc": ("catalog-key", "jdbc.", "lock-key-max-length", "client-pool-size", "sync-all-properties"),
    "rest": ("token", "token.", "dlf.", "data-token.", "header.", "prefix"),
}  # fmt: skip
"""One that ends with a dot stands for all that begin so."""


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """``kind``: one of ``CATALOGS``. ``own``: the catalog's options; ``storage``: the rest. Both may hold secrets."""

    kind: str
    own: Mapping[str, str] = field(repr=False)
    storage: Mapping[str, Any] = field(repr=False)

    def required(self, key: str, example: str) -> str:
        """Return an option that the catalog can't do without."""
        value = self.own.get(key, "").strip()
        if not value:
            raise InvalidInputError(f"A {self.kind} catalog needs the option {key}, such as {example}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean option."""
        return parse_boolean(self.own.get(key, default), key)

    def seconds(self, key: str, default: float) -> float:
        """Return a duration in Hive's notation: a bare number is seconds."""
        text = self.own.get(key, "").strip()
        if not text:
            return default
        return float(text) if text.isdigit() else parse_duration(text, key).total_seconds()

    def millis(self, key: str, default_ms: int) -> int:
        """Return a duration with its unit."""
        text = self.own.get(key)
        return default_ms if text is None else int(parse_duration(text, key).total_seconds() * 1000)


def catalog_options(given: Mapping[str, Any] | None) -> CatalogOptions:
    """Divide options into the catalog's and the storage's.

    Raises:
        InvalidInputError: an unknown ``metastore``.
    """
    given = given or {}
    kind = str(given.get(METASTORE, CATALOGS[0])).strip().lower()
    if kind not in CATALOGS:
        raise InvalidInputError(f"metastore must be one of {', '.join(CATALOGS)}; it is {given[METASTORE]!r}")
    mine = {k: str(v) for k, v in given.items() if kind != CATALOGS[0] and _is_of(k, (*_SHARED, *_OWN[kind]))}
    storage = {k: v for k, v in given.items() if k not in mine and k != METASTORE}
    return CatalogOptions(kind, mine, storage)


def _is_of(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in names)
