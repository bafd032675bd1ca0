"""Alibaba Cloud OSS, with puts that are refused where the object exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.store import oss_client
from airflow_paimon.core.store.http_client import require_packages
from airflow_paimon.core.store.put_probe import ProbedStore


class OssStore(ProbedStore):
    """Objects below ``oss://bucket/prefix``. ``create`` is one PutObject with ``x-oss-forbid-overwrite``, which
    a bucket that keeps versions ignores.

    Options: ``endpoint_url`` (``oss-cn-hangzhou.aliyuncs.com``) or ``region``, both where the endpoint doesn't say its
    region; ``key``, ``secret``, ``token`` or ``anon``, without which the environment's ``OSS_ACCESS_KEY_ID``,
    ``OSS_ACCESS_KEY_SECRET`` and ``OSS_SESSION_TOKEN`` are used; ``tries`` (of a request, 5); and what Paimon's Java
    engine calls them (``fs.oss.…``).
    """

    __slots__ = ()

    login_options = "key, secret and token"
    environment = "OSS_"
    way_out = "keep the table in a bucket without versioning"

    def _checked(self, options: Mapping[str, Any]) -> str:
        require_packages("oss", "oss", "alibabacloud_oss_v2", "requests")
        return oss_client.checked_options(options)

    @classmethod
    def new_client(cls, options: Mapping[str, Any], host: str) -> oss_client.OssClient:
        return oss_client.OssClient(options)
