"""Decoded manifests that this process keeps, for the API server and the triggerer, which read them repeatedly."""

from __future__ import annotations

from collections.abc import Hashable

from airflow_paimon.core.table.manifest_cache import ManifestCache
from airflow_paimon.core.table.table import Table
from airflow_paimon.settings import MANIFEST_CACHE_MB

_KEPT = ManifestCache(MANIFEST_CACHE_MB << 20)


def keeping_manifests(view: Table, scope: Hashable) -> Table:
    """Return a view that keeps what it decodes, for views of the same scope only: ``PaimonHook.scope``."""
    return view.keeping_manifests(_KEPT, scope)
