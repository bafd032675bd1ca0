"""Google Cloud Storage, with uploads that are refused where the object exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.store import gcs_client
from airflow_paimon.core.store.http_client import require_packages
from airflow_paimon.core.store.object_store import ObjectStore


class GcsStore(ObjectStore):
    """Objects below ``gs://bucket/prefix``. ``create`` is one upload with ``ifGenerationMatch=0``.

    Google takes one write a second to one name; more are refused, tried again and in the end ``StorageError`` or
    ``OutcomeUnknownError``.

    Options: ``token`` (the path of a key file, its content, or ``anon``; without it the environment's credentials),
    ``endpoint_url``, ``requester_pays`` (the project that pays), ``project`` (taken for the sake of other tools, not
    needed), ``tries`` (of a request, 5); and what Paimon's Java engine calls them (``fs.gs.…``).
    """

    __slots__ = ()

    login_options = "token"
    environment = "GOOGLE_"

    def _checked(self, options: Mapping[str, Any]) -> str:
        require_packages("gs", "gcs", "google.auth", "requests")
        return gcs_client.checked_options(options)

    @classmethod
    def new_client(cls, options: Mapping[str, Any], host: str) -> gcs_client.GcsClient:
        return gcs_client.GcsClient(options)
