"""Amazon S3 and S3-compatible storages, with conditional puts."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from airflow_paimon.core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PaimonError,
    StorageError,
    UnsupportedStorageError,
)
from airflow_paimon.core.store import s3_client
from airflow_paimon.core.store.base import FileInfo, Store, folder_name, inner_folder_name, join, object_name
from airflow_paimon.core.store.failures import Output
from airflow_paimon.core.store.ranges import RangeInput
from airflow_paimon.core.store.secrets import secret_values

T = TypeVar("T")

_TOKEN = "airflow-paimon-create"
"""Metadata of every created object: which call made it. It identifies the writer when the response to a put is lost."""
_PROBE_FOLDER = "_airflow_paimon"
_PART = 16 * 2**20
_DELETE_BATCH = 1000
_CONFLICT_TRIES = 6

_refuses_second_put: set[tuple[str, str]] = set()
"""(options, bucket) for which this process has verified that a second conditional put is refused."""


class S3Store(Store):
    """Objects below ``s3://bucket/prefix``. ``create`` is one put with ``If-None-Match: *``.

    ``can_commit`` says what S3 promises. Whether this storage keeps that promise is tested before the
    first ``create`` (the same put twice, unless it is AWS itself): ``UnsupportedStorageError`` when it does not, and
    nothing is written.
    Calls block: a coroutine makes them in a thread.

    Options: ``key``, ``secret``, ``token``, ``profile``, ``anon``, ``endpoint_url``, ``region``, ``use_ssl``,
    ``requester_pays``, ``client_kwargs``, ``config_kwargs`` (botocore's Config), ``s3_additional_kwargs`` (of single
    requests, as for encryption); without credentials the environment's. They travel when a store is pickled, and
    show nowhere else. An object is at most 5 GiB for ``create`` and ``replace``, one put's limit.
    """

    __slots__ = ("_bucket", "_held", "_options", "_prefix")

    can_commit = True

    def __init__(self, bucket: str, prefix: str = "", options: Mapping[str, Any] | None = None) -> None:
        if not bucket:
            raise InvalidInputError("An s3:// URI needs a bucket: s3://bucket/path")
        s3_client.import_s3fs()
        self._bucket = bucket
        self._prefix = prefix
        self._options = s3_client.checked_options(options)

    def __reduce__(self) -> tuple[Any, ...]:
        return S3Store, (self._bucket, self._prefix, json.loads(self._options))

    @property
    def uri(self) -> str:
        return f"s3://{join(self._bucket, self._prefix)}"

    def child(self, path: str) -> S3Store:
        return S3Store(self._bucket, join(self._prefix, folder_name(path)), json.loads(self._options))

    def read(self, path: str) -> bytes:
        key = self._key(object_name(path))
        data, _ = self._run(
            "reading", path, lambda client: s3_client.get(self._fs, client, Bucket=self._bucket, Key=key)
        )
        return data

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        keys = [self._key(object_name(path)) for path in paths]
        if not keys:
            return []
        where = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        return self._run("reading", where, lambda client: s3_client.get_many(self._fs, client, self._bucket, keys))

    def exists(self, path: str) -> bool:
        try:
            self._call("HeadObject", "looking at", path, Key=self._key(object_name(path)))
        except NotFoundError:
            return False
        return True

    def names(self, path: str) -> list[str]:
        prefix = self._folder_prefix(folder_name(path))
        objects, _ = self._entries("listing", path, prefix, "/")
        return [entry["Key"][len(prefix) :] for entry in objects if entry["Key"] != prefix]

    def files(self, path: str) -> Sequence[FileInfo]:
        start = len(self._folder_prefix(""))
        objects, _ = self._entries("listing", path, self._folder_prefix(folder_name(path)), "")
        found = (_info(entry, start) for entry in objects if not entry["Key"].endswith("/"))
        return sorted(found, key=lambda info: info.name)

    def list(self, path: str) -> list[FileInfo]:
        prefix = self._folder_prefix(folder_name(path))
        objects, folders = self._entries("listing", path, prefix, "/")
        found = [FileInfo(name.removesuffix("/")[len(prefix) :], True, 0) for name in folders]
        # A key that ends with the prefix is the empty object with which some engines mark a folder.
        found += (_info(entry, len(prefix)) for entry in objects if entry["Key"] != prefix)
        return sorted(found, key=lambda info: info.name)

    def create(self, path: str, data: bytes) -> None:
        key = self._key(object_name(path))
        self._require_conditional_put()
        token = uuid.uuid4().hex
        for left in reversed(range(_CONFLICT_TRIES)):
            try:
                self._put_if_absent(key, data, token)
                return
            except s3_client.failures() as error:
                # Another put of the same key is in progress: this one did nothing, and a retry shows which one won.
                if s3_client.code_of(error) != "ConditionalRequestConflict" or not left:
                    self._resolve_outcome(path, key, data, token, error)
                    return
            time.sleep(0.05 * 2 ** (_CONFLICT_TRIES - left))

    def replace(self, path: str, data: bytes) -> None:
        self._call("PutObject", "writing", path, mutating=True, Key=self._key(object_name(path)), Body=data)

    def delete(self, path: str) -> None:
        self._call("DeleteObject", "deleting", path, mutating=True, Key=self._key(object_name(path)))

    def delete_tree(self, path: str) -> None:
        objects, _ = self._entries("deleting", path, self._folder_prefix(inner_folder_name(path)), "")
        keys = [entry["Key"] for entry in objects]
        for start in range(0, len(keys), _DELETE_BATCH):
            batch = [{"Key": key} for key in keys[start : start + _DELETE_BATCH]]
            answer = self._call(
                "DeleteObjects", "deleting", path, mutating=True, Delete={"Objects": batch, "Quiet": True}
            )
            if errors := answer.get("Errors"):
                first = f"{errors[0].get('Key')}: {errors[0].get('Code')}"
                raise StorageError(
                    f"Deleting {join(self.uri, path)} left {len(errors)} objects behind ({first}); retry"
                )

    def open_input(self, path: str) -> Any:
        """Open for random reads: one request now (size and tail), then one per range that is not cached."""
        return RangeInput(self, path)

    def open_output(self, path: str) -> BinaryIO:
        """Open a new object, uploaded in parts of 16 MiB and visible once closed."""
        key = self._key(object_name(path))
        inner = self._fs.open(f"{self._bucket}/{key}", "wb", block_size=_PART)

        def discard() -> None:
            inner.closed = True  # else s3fs uploads what it holds when the file is collected
            # RuntimeError: collected on s3fs's own thread, which can't wait for itself.
            with contextlib.suppress(RuntimeError, *s3_client.failures()):
                inner.discard()

        return Output(  # type: ignore[return-value]
            inner,
            fail=lambda error: self._failed(error, "writing", path, mutating=False),
            finish=inner.close,
            discard=discard,
            errors=s3_client.failures(),
        )

    def read_tail(self, path: str, size: int) -> tuple[bytes, int]:
        try:
            data, response = self._read_range(path, f"bytes=-{size}")
        except s3_client.failures() as error:
            if s3_client.status_of(error) == 416:
                return b"", 0  # an empty object has no valid range
            raise self._failed(error, "reading", path, mutating=False) from error
        return data, int(response.get("ContentRange", f"/{len(data)}").rpartition("/")[2])

    def read_range(self, path: str, start: int, end: int) -> bytes:
        try:
            return self._read_range(path, f"bytes={start}-{end - 1}")[0]
        except s3_client.failures() as error:
            if s3_client.status_of(error) == 416:
                return b""  # it has become shorter
            raise self._failed(error, "reading", path, mutating=False) from error

    def _read_range(self, path: str, header: str) -> tuple[bytes, dict[str, Any]]:
        key = self._key(object_name(path))
        return s3_client.run(
            self._fs, lambda client: s3_client.get(self._fs, client, Bucket=self._bucket, Key=key, Range=header)
        )

    @property
    def _fs(self) -> Any:
        return s3_client.file_system(self._options)

    def _key(self, path: str) -> str:
        return join(self._prefix, path)

    def _folder_prefix(self, folder: str) -> str:
        key = self._key(folder)
        return f"{key}/" if key else ""

    def _put_if_absent(self, key: str, data: bytes, token: str) -> None:
        s3_client.run(
            self._fs,
            lambda client: s3_client.call(
                self._fs, client, "PutObject",
                Bucket=self._bucket, Key=key, Body=data, IfNoneMatch="*", Metadata={_TOKEN: token},
            ),
        )  # fmt: skip

    def _resolve_outcome(self, path: str, key: str, data: bytes, token: str, error: Exception) -> None:
        """Resolve the outcome of a failed conditional put by reading the object back; return if this call created it.

        Even a refusal ("it exists already") is checked: aiohttp, botocore and proxies repeat a put whose response was
        lost (aiohttp silently), and the repetition is then refused because of the first one.
        """
        where = join(self.uri, path)
        try:
            found, response = s3_client.run(
                self._fs, lambda client: s3_client.get(self._fs, client, Bucket=self._bucket, Key=key)
            )
        except s3_client.failures() as doubt:
            if s3_client.is_refusal(error) and s3_client.status_of(error) not in (409, 412):
                raise self._failed(error, "creating", path, mutating=False) from error
            raise OutcomeUnknownError(
                f"Creating {where} failed ({self._reason(error)}), and so did reading it back "
                f"({self._reason(doubt)}): it may still appear. Look for it before trying again"
            ) from error
        owner = response.get("Metadata", {}).get(_TOKEN)
        # A storage may drop metadata; then the content identifies the writer: it holds a uuid where that matters.
        if owner != token and (owner is not None or found != data):
            raise AlreadyExistsError(f"{where} exists already") from error

    def _require_conditional_put(self) -> None:
        """Check once per process and bucket that the storage refuses a second conditional put.

        Storages without support for ``If-None-Match`` ignore it and overwrite: commits would be lost silently.
        """
        known = (self._options, self._bucket)
        if known in _refuses_second_put:
            return
        if not self._run("probing", "", self._trusted) and not self._refuses_second_put():
            raise UnsupportedStorageError(
                f"The storage of {self.uri} ignores If-None-Match on a put, so a commit there could be lost; "
                "use a storage with conditional writes (AWS S3, a current MinIO or Ceph)"
            )
        _refuses_second_put.add(known)

    @staticmethod
    async def _trusted(client: Any) -> bool:
        return s3_client.is_trusted_endpoint(client)

    def _refuses_second_put(self) -> bool:
        path = f"{_PROBE_FOLDER}/probe-{uuid.uuid4().hex}"
        try:
            for _ in range(2):
                self._put_if_absent(self._key(path), b"", "probe")
        except s3_client.failures() as error:
            if s3_client.status_of(error) in (412, 501):
                return s3_client.status_of(error) == 412
            raise self._failed(error, "probing", path, mutating=False) from error
        finally:
            with contextlib.suppress(PaimonError):  # an empty object in our own folder does no harm
                self.delete(path)
        return False

    def _entries(self, doing: str, path: str, prefix: str, delimiter: str) -> s3_client.Listing:
        return self._run(
            doing, path, lambda client: s3_client.list_all(self._fs, client, self._bucket, prefix, delimiter)
        )

    def _call(self, operation: str, doing: str, path: str, mutating: bool = False, **arguments: Any) -> dict[str, Any]:
        return self._run(
            doing, path,
            lambda client: s3_client.call(self._fs, client, operation, Bucket=self._bucket, **arguments),
            mutating,
        )  # fmt: skip

    def _run(self, doing: str, path: str, request: Callable[[Any], Awaitable[T]], mutating: bool = False) -> T:
        try:
            return s3_client.run(self._fs, request)
        except s3_client.failures() as error:
            raise self._failed(error, doing, path, mutating) from error

    def _reason(self, error: Exception) -> str:
        reason = s3_client.code_of(error) or str(error) or type(error).__name__
        for secret in secret_values(json.loads(self._options)):
            reason = reason.replace(secret, "***")
        return reason

    def _failed(self, error: Exception, doing: str, path: str, mutating: bool) -> PaimonError:
        where = join(self.uri, path)
        if s3_client.code_of(error) == "NoSuchBucket":
            return NotFoundError(f"The bucket {self._bucket!r} of {where} does not exist")
        if s3_client.is_missing(error):
            return NotFoundError(f"{where} does not exist")
        if mutating and not s3_client.is_refusal(error):
            return OutcomeUnknownError(
                f"{doing.capitalize()} {where} failed, but may have taken effect ({self._reason(error)}); "
                "read it before trying again"
            )
        if s3_client.status_of(error) in (401, 403) or isinstance(error, PermissionError):
            return StorageError(
                f"Access denied for {doing} {where} ({self._reason(error)}); "
                "check the storage options key, secret and token or the environment's credentials"
            )
        return StorageError(f"{doing.capitalize()} {where} failed: {self._reason(error)}")


def _info(entry: Mapping[str, Any], start: int) -> FileInfo:
    return FileInfo(entry["Key"][start:], False, entry["Size"], int(entry["LastModified"].timestamp() * 1000))
