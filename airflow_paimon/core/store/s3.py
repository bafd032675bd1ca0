"""Amazon S3 and S3-compatible storages, with conditional puts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from airflow_paimon.core.store import s3_client
from airflow_paimon.core.store.base import inner_folder_name, join
from airflow_paimon.core.store.object_store import delete_mark
from airflow_paimon.core.store.put_probe import ProbedStore


class S3Store(ProbedStore):
    """Objects below ``s3://bucket/prefix``. ``create`` is one put with ``If-None-Match: *``.

    Whether this storage keeps S3's promise of a conditional put is tested before the first ``create`` (several puts at
    once, unless it is AWS itself): ``UnsupportedStorageError`` when it does not, and
    nothing is written.

    Options: ``key``, ``secret``, ``token``, ``profile``, ``anon``, ``endpoint_url``, ``region``, ``use_ssl``,
    ``requester_pays``, ``client_kwargs``, ``config_kwargs`` (botocore's Config), ``s3_additional_kwargs`` (of single
    requests, as for encryption); and what Paimon's Java engine calls them (``s3.access-key``, ...). Without
    credentials the environment's. An object is at most 5 GiB for ``create`` and ``replace``, one put's limit.
    """

    __slots__ = ()

    login_options = "key, secret and token"
    environment = "AWS_"
    way_out = "use a storage with conditional writes (AWS S3, a current MinIO, Ceph or SeaweedFS)"

    def _checked(self, options: Mapping[str, Any]) -> str:
        s3_client.import_s3fs()
        return s3_client.checked_options(options)

    @classmethod
    def new_client(cls, options: Mapping[str, Any], host: str) -> s3_client.S3Client:
        return s3_client.new_client(dict(options))

    def delete_empty(self, path: str) -> None:
        """Delete the folders as well that a server goes on listing empty, as SeaweedFS does for minutes."""
        super().delete_empty(path)
        folder = f"{join(self._prefix, inner_folder_name(path))}/"
        if folder not in self._folders(path, folder.removesuffix("/")):
            return
        files = [join(self._prefix, name) for name in self.walk(path)]
        levels = [[folder]]
        while below := [name for above in levels[-1] for name in self._folders(path, above)]:
            levels.append(below)
        for name in (name for level in reversed(levels) for name in level):  # a folder after those in it
            if not any(file.startswith(name) for file in files):
                self._run("deleting", path, partial(delete_mark, bucket=self._bucket, key=name), mutating=True)

    def _folders(self, path: str, prefix: str) -> list[str]:
        return self._run("listing", path, lambda client: client.list_all(self._bucket, prefix, "/"))[1]
