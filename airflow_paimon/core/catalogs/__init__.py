"""Where the tables of a name lie and how their catalog wants them written: one small protocol, ``base.Catalog``."""

from airflow_paimon.core.catalogs.base import Catalog
from airflow_paimon.core.catalogs.opening import open_catalog, storage_only

__all__ = ["Catalog", "open_catalog", "storage_only"]
