"""Storage behind one small protocol; the only package that knows fsspec. See :class:`~airflow_paimon.core.store.base.Store`."""

from airflow_paimon.core.store.base import FileInfo, Store
from airflow_paimon.core.store.opening import StoreSpec, open_store

__all__ = ["FileInfo", "Store", "StoreSpec", "open_store"]
