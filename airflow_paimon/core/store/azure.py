"""Azure Blob Storage and Data Lake Storage, with puts that are refused where the blob exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.store import azure_client
from airflow_paimon.core.store.base import folder_name, join
from airflow_paimon.core.store.http_client import require_packages
from airflow_paimon.core.store.object_store import ObjectStore


class AzureStore(ObjectStore):
    """Blobs below ``abfss://container@account.dfs.core.windows.net/prefix``. ``create`` is one Put Blob with
    ``If-None-Match: *``.

    Options: ``account_key``, ``sas_token``, ``client_id``, ``tenant_id`` and ``client_secret`` or ``token_file``, or
    ``anon``; without them the environment's credentials. ``account_name`` (where the URI has none), ``endpoint_url``,
    ``tries`` (of a request, 5); and what Paimon's Java engine calls them (``fs.azure.…``).
    """

    __slots__ = ()

    bucket_word = "container"
    login_options = "account_key, sas_token and client_secret"
    environment = "AZURE_"

    def _checked(self, options: Mapping[str, Any]) -> str:
        require_packages(self._scheme, "azure", "azure.identity", "requests")
        if not self._bucket:
            raise InvalidInputError(f"{self._scheme}:// needs a container: {self._scheme}://container@account/path")
        return azure_client.checked_options(options, self._bucket, self._host)

    @property
    def _bucket(self) -> str:
        return self._authority.partition("@")[0]

    @property
    def _host(self) -> str:
        return self._authority.partition("@")[2]

    @classmethod
    def new_client(cls, options: Mapping[str, Any], host: str) -> azure_client.AzureClient:
        return azure_client.AzureClient(options, host)

    def delete_empty(self, path: str) -> None:
        super().delete_empty(path)
        if not self._listed(path, "")[0]:
            client, key = cast(azure_client.AzureClient, self._client), join(self._prefix, folder_name(path))
            self._run("deleting", path, lambda _: client.delete_folder(self._bucket, key), mutating=True)
