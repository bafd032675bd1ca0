"""Manifests that this process keeps, for the API server and the triggerer, which read them repeatedly."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from airflow_paimon.core.store.none import NoStore
from airflow_paimon.core.table.read_cache import CachingStore, FileCache
from airflow_paimon.core.table.table import Table
from airflow_paimon.settings import MANIFEST_CACHE_MB

_KEPT = FileCache(MANIFEST_CACHE_MB << 20)


def keeping_manifests(view: Table, scope: Hashable) -> Table:
    """Return a view that keeps the manifests that it reads, for views of the same scope only: ``PaimonHook.scope``.

    It may show files that are deleted by now: what checks or changes a table reads storage. A view of a table that its
    catalog doesn't know is returned as it is.
    """
    if isinstance(view.store, NoStore):
        return view
    return replace(view, store=CachingStore(view.store, _KEPT, scope))
