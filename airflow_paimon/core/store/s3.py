"""Amazon S3 and S3-compatible storages, with conditional puts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.errors import UnsupportedStorageError
from airflow_paimon.core.store import s3_client, s3_probe
from airflow_paimon.core.store.object_store import ObjectStore

_honest: set[tuple[str, str]] = set()
"""(options, bucket) for which this process knows that one conditional put wins."""


class S3Store(ObjectStore):
    """Objects below ``s3://bucket/prefix``. ``create`` is one put with ``If-None-Match: *``.

    ``can_commit`` says what S3 promises. Whether this storage keeps that promise is tested before the
    first ``create`` (several puts at once, unless it is AWS itself): ``UnsupportedStorageError`` when it does not, and
    nothing is written.

    Options: ``key``, ``secret``, ``token``, ``profile``, ``anon``, ``endpoint_url``, ``region``, ``use_ssl``,
    ``requester_pays``, ``client_kwargs``, ``config_kwargs`` (botocore's Config), ``s3_additional_kwargs`` (of single
    requests, as for encryption); without credentials the environment's. An object is at most 5 GiB for ``create`` and
    ``replace``, one put's limit.
    """

    __slots__ = ()

    login_options = "key, secret and token"

    def _checked(self, options: Mapping[str, Any]) -> str:
        s3_client.import_s3fs()
        return s3_client.checked_options(options)

    @property
    def _client(self) -> s3_client.Client:
        return s3_client.Client(s3_client.file_system(self._options))

    def create(self, path: str, data: bytes) -> None:
        self._key(path)  # checked before anything is sent
        self._require_conditional_put()
        super().create(path, data)

    def _require_conditional_put(self) -> None:
        """Check once per process and bucket that the storage lets one conditional put win: else commits get lost."""
        known = (self._options, self._bucket)
        if known in _honest:
            return
        client = self._client
        if fault := self._run("probing", "", lambda _: s3_probe.fault_of(client, self._bucket, self._prefix)):
            raise UnsupportedStorageError(
                f"The storage of {self.uri} {fault}, so a commit there could be lost; "
                "use a storage with conditional writes (AWS S3, a current MinIO, Ceph or SeaweedFS)"
            )
        _honest.add(known)
