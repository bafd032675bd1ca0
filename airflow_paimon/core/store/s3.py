"""Amazon S3 and S3-compatible storages, with conditional puts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.core.store import s3_client
from airflow_paimon.core.store.base import inner_folder_name, join
from airflow_paimon.core.store.put_probe import ProbedStore


class S3Store(ProbedStore):
    """Objects below ``s3://bucket/prefix``. ``create`` is one put with ``If-None-Match: *``.

    ``can_commit`` says what S3 promises. Whether this storage keeps that promise is tested before the
    first ``create`` (several puts at once, unless it is AWS itself): ``UnsupportedStorageError`` when it does not, and
    nothing is written.

    Options: ``key``, ``secret``, ``token``, ``profile``, ``anon``, ``endpoint_url``, ``region``, ``use_ssl``,
    ``requester_pays``, ``client_kwargs``, ``config_kwargs`` (botocore's Config), ``s3_additional_kwargs`` (of single
    requests, as for encryption); and what Paimon's Java engine calls them (``s3.access-key``, ...). Without
    credentials the environment's. An object is at most 5 GiB for ``create`` and ``replace``, one put's limit.
    """

    __slots__ = ()

    login_options = "key, secret and token"
    way_out = "use a storage with conditional writes (AWS S3, a current MinIO, Ceph or SeaweedFS)"

    def _checked(self, options: Mapping[str, Any]) -> str:
        s3_client.import_s3fs()
        return s3_client.checked_options(options)

    @property
    def _client(self) -> s3_client.S3Client:
        return s3_client.client_of(self._options)

    @property
    def _server(self) -> str:
        return s3_client.server_of(self._options)

    def delete_empty(self, path: str) -> None:
        super().delete_empty(path)
        self._delete_folders(path, [join(self._prefix, name) for name in self.walk(path)])

    def delete_tree(self, path: str) -> None:
        super().delete_tree(path)
        self._delete_folders(path)

    def _delete_folders(self, path: str, files: Sequence[str] = ()) -> None:
        """Delete a folder and those below, but for those of ``files``, where a server goes on listing them empty, as
        SeaweedFS does for minutes.
        """
        folder = f"{join(self._prefix, inner_folder_name(path))}/"
        if folder not in self._folders(path, folder.removesuffix("/")):
            return
        levels = [[folder]]
        while below := [name for above in levels[-1] for name in self._folders(path, above)]:
            levels.append(below)
        for level in reversed(levels):  # the server keeps a folder that is not empty
            self._delete_many(path, [name for name in level if not any(file.startswith(name) for file in files)])

    def _folders(self, path: str, prefix: str) -> list[str]:
        return self._run("listing", path, lambda client: client.list_all(self._bucket, prefix, "/"))[1]
