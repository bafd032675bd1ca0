"""Amazon S3 and S3-compatible storages, with conditional puts."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.errors import PaimonError, UnsupportedStorageError
from airflow_paimon.core.store import s3_client
from airflow_paimon.core.store.object_client import EXISTS, RequestError
from airflow_paimon.core.store.object_store import ObjectStore

_PROBE_FOLDER = "_airflow_paimon"
_NOT_IMPLEMENTED = 501

_refuses_second_put: set[tuple[str, str]] = set()
"""(options, bucket) for which this process has verified that a second conditional put is refused."""


class S3Store(ObjectStore):
    """Objects below ``s3://bucket/prefix``. ``create`` is one put with ``If-None-Match: *``.

    ``can_commit`` says what S3 promises. Whether this storage keeps that promise is tested before the
    first ``create`` (the same put twice, unless it is AWS itself): ``UnsupportedStorageError`` when it does not, and
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
        """Check once per process and bucket that the storage refuses a second conditional put.

        Storages without support for ``If-None-Match`` ignore it and overwrite: commits would be lost silently.
        """
        known = (self._options, self._bucket)
        if known in _refuses_second_put:
            return
        client = self._client
        if not self._run("probing", "", lambda _: client.is_trusted_endpoint()) and not self._refuses_second_put():
            raise UnsupportedStorageError(
                f"The storage of {self.uri} ignores If-None-Match on a put, so a commit there could be lost; "
                "use a storage with conditional writes (AWS S3, a current MinIO or Ceph)"
            )
        _refuses_second_put.add(known)

    def _refuses_second_put(self) -> bool:
        path = f"{_PROBE_FOLDER}/probe-{uuid.uuid4().hex}"
        try:
            for _ in range(2):
                self._client.put(self._bucket, self._key(path), b"", "probe")
        except RequestError as error:
            if error.status in (EXISTS, _NOT_IMPLEMENTED):
                return error.status == EXISTS
            raise self._failed(error, "probing", path) from error
        finally:
            with contextlib.suppress(PaimonError):  # an empty object in our own folder does no harm
                self.delete(path)
        return False
