"""Storage behind one small protocol, ``base.Store``; the only package that knows fsspec."""

from airflow_paimon.core.store.base import FileInfo, Store
from airflow_paimon.core.store.opening import StoreSpec, open_store

__all__ = ["FileInfo", "Store", "StoreSpec", "open_store"]
