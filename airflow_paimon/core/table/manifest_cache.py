"""Decoded manifests that a long-lived process keeps between requests. A manifest never changes under its name."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from airflow_paimon.core.format.manifest import ManifestFile

T = TypeVar("T")

ENTRIES: Final = "entries"
COLUMNS: Final = "columns"
ROW_IDS: Final = "row ids"
_WEIGHTS: Final[Mapping[str, tuple[int, int]]] = {ENTRIES: (1100, 8), COLUMNS: (400, 0), ROW_IDS: (30, 0)}
"""Bytes in memory for each entry, and for each byte of the file, which holds statistics; measured on 100,000 files."""


class ManifestCache:
    """Keeps decoded manifests up to about ``most_bytes``; those not asked for the longest go first. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        """About how much memory is taken."""
        return self._bytes

    def of(self, scope: Hashable) -> ScopedManifests:
        """Return the part of one scope: a connection with its present credentials, and the place of a table.

        Nothing is shared across scopes: another connection may name the same bucket on another server, or may not be
        allowed to read it.
        """
        return ScopedManifests(self, scope)

    def find(self, keys: Sequence[Hashable]) -> dict[Hashable, Any]:
        """Return what is kept of these."""
        with self._lock:
            found = {key: self._kept[key][0] for key in keys if key in self._kept}
            for key in found:
                self._kept.move_to_end(key)
        return found

    def keep(self, key: Hashable, value: Any, weight: int) -> None:
        """Keep a value of about ``weight`` bytes; one that would drive out most of the others isn't kept."""
        if weight * 2 > self._most_bytes:
            return
        with self._lock:
            _, replaced = self._kept.pop(key, (None, 0))
            self._kept[key] = (value, weight)
            self._bytes += weight - replaced
            while self._bytes > self._most_bytes:
                _, (_, oldest) = self._kept.popitem(last=False)
                self._bytes -= oldest


@dataclass(frozen=True, slots=True)
class ScopedManifests:
    """The manifests of one scope in a cache."""

    cache: ManifestCache
    scope: Hashable

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a table that is sent to another process reads storage there

    def read(
        self,
        form: str,
        manifests: Sequence[ManifestFile],
        decode: Callable[[Sequence[ManifestFile]], list[T]],
        *,
        is_whole: bool = True,
    ) -> list[T]:
        """Return decoded manifests, in order; ``decode`` reads those that aren't kept. Change none of what it returns.

        ``form``: ``ENTRIES``, ``COLUMNS`` or ``ROW_IDS``. ``is_whole``: what ``decode`` gives is all of a manifest, and
        is kept.
        """
        keys = [(self.scope, form, m.file_name, m.file_size) for m in manifests]
        found: dict[Hashable, T] = self.cache.find(keys)
        missing = [(key, m) for key, m in zip(keys, manifests, strict=True) if key not in found]
        for (key, manifest), value in zip(missing, decode([m for _, m in missing]), strict=True):
            found[key] = value
            if is_whole:
                self.cache.keep(key, value, _weight(form, manifest))
        return [found[key] for key in keys]


def _weight(form: str, manifest: ManifestFile) -> int:
    of_entry, of_byte = _WEIGHTS[form]
    entries = manifest.num_added_files + manifest.num_deleted_files
    return 1000 + of_entry * entries + of_byte * manifest.file_size
