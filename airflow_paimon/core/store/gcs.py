"""Google Cloud Storage, with uploads that are refused where the object exists."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, BinaryIO, TypeVar

from airflow_paimon.core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PaimonError,
    StorageError,
)
from airflow_paimon.core.store import gcs_client
from airflow_paimon.core.store.base import FileInfo, Store, folder_name, inner_folder_name, join, object_name
from airflow_paimon.core.store.failures import Output
from airflow_paimon.core.store.gcs_client import Client, Listing, RequestError
from airflow_paimon.core.store.ranges import RangeInput
from airflow_paimon.core.store.secrets import secret_values

T = TypeVar("T")

_TOKEN = "airflow-paimon-create"
"""Metadata of every created object: which call made it. It identifies the writer when the response to a put is lost."""
_PART = 16 * 2**20
"""Bytes of a part of an upload; Google takes multiples of 256 KiB."""
_CREATE_TRIES = 4
_SCHEMAS = "schema/"


class GcsStore(Store):
    """Objects below ``gs://bucket/prefix``. ``create`` is one upload with ``ifGenerationMatch=0``.

    Google takes one write a second to one name; more are refused, tried again and in the end ``StorageError`` or
    ``OutcomeUnknownError``.

    Options: ``token`` (the path of a key file, its content, or ``anon``; without it the environment's credentials),
    ``endpoint_url``, ``requester_pays`` (the project that pays), ``project`` (taken for the sake of other tools, not
    needed), ``tries`` (of a request, 5); and what Paimon's Java engine calls them (``fs.gs.…``). They travel when a
    store is pickled, and show nowhere else.
    """

    __slots__ = ("_bucket", "_options", "_prefix")

    can_commit = True

    def __init__(self, bucket: str, prefix: str = "", options: Mapping[str, Any] | None = None) -> None:
        if not bucket:
            raise InvalidInputError("A gs:// URI needs a bucket: gs://bucket/path")
        gcs_client.import_google_auth()
        self._bucket = bucket
        self._prefix = prefix
        self._options = gcs_client.checked_options(options)

    def __reduce__(self) -> tuple[Any, ...]:
        return GcsStore, (self._bucket, self._prefix, json.loads(self._options))

    @property
    def uri(self) -> str:
        return f"gs://{join(self._bucket, self._prefix)}"

    def child(self, path: str) -> GcsStore:
        return GcsStore(self._bucket, join(self._prefix, folder_name(path)), json.loads(self._options))

    def read(self, path: str) -> bytes:
        key = self._key(object_name(path))
        return self._run("reading", path, lambda client: client.get(self._bucket, key)).body

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return _side_by_side(self.read, paths)

    def exists(self, path: str) -> bool:
        key = self._key(object_name(path))
        try:
            self._run("looking at", path, lambda client: client.metadata(self._bucket, key))
        except NotFoundError:
            return False
        return True

    def names(self, path: str) -> list[str]:
        prefix = self._folder_prefix(folder_name(path))
        objects, _ = self._entries("listing", path, prefix, "/")
        return [entry["name"][len(prefix) :] for entry in objects if entry["name"] != prefix]

    def files(self, path: str) -> Sequence[FileInfo]:
        start = len(self._folder_prefix(""))
        objects, _ = self._entries("listing", path, self._folder_prefix(folder_name(path)), "")
        found = (_info(entry, start) for entry in objects if not entry["name"].endswith("/"))
        return sorted(found, key=lambda info: info.name)

    def list(self, path: str) -> list[FileInfo]:
        prefix = self._folder_prefix(folder_name(path))
        objects, folders = self._entries("listing", path, prefix, "/")
        found = [FileInfo(name.removesuffix("/")[len(prefix) :], True, 0) for name in folders]
        # A name that ends with the prefix is the empty object with which some engines mark a folder.
        found += (_info(entry, len(prefix)) for entry in objects if entry["name"] != prefix)
        return sorted(found, key=lambda info: info.name)

    def create(self, path: str, data: bytes) -> None:
        """Put if absent. After any doubt the object is looked at, and only one that isn't there is put again.

        Each try carries the same token, so whichever of them lands is this call's.
        """
        key = self._key(object_name(path))
        token = uuid.uuid4().hex
        doubts: list[RequestError] = []
        for tried in range(1, _CREATE_TRIES + 1):
            try:
                self._client.put(self._bucket, key, data, {_TOKEN: token}, if_absent=True)
                return
            except RequestError as error:
                if error.status != 412 and not error.applied and not doubts:
                    raise self._failed(error, "creating", path, mutating=False) from error
                doubts.append(error)
            if doubts[-1].status != 412:
                gcs_client.pause(tried)
            if self._is_ours(path, key, token, doubts[-1]):
                return
        raise OutcomeUnknownError(
            f"Creating {join(self.uri, path)} failed ({self._reason(doubts[-1])}), but it may still appear. "
            "Look for it before trying again"
        ) from doubts[-1]

    def replace(self, path: str, data: bytes) -> None:
        key = self._key(object_name(path))
        self._run("writing", path, lambda client: client.put(self._bucket, key, data, {}), mutating=True)

    def delete(self, path: str) -> None:
        key = self._key(object_name(path))
        with contextlib.suppress(NotFoundError):
            self._run(
                "deleting", path, lambda client: client.send("DELETE", client.object(self._bucket, key), {}), True
            )

    def delete_tree(self, path: str) -> None:
        """Delete all objects below a folder, its schemas last: without them what is left of a branch is no branch."""
        prefix = self._folder_prefix(inner_folder_name(path))
        objects, _ = self._entries("deleting", path, prefix, "")
        start = len(self._folder_prefix(""))
        names = [entry["name"] for entry in objects]
        schemas = [name for name in names if name.startswith(prefix + _SCHEMAS)]
        others = [name for name in names if not name.startswith(prefix + _SCHEMAS)]
        for some in (others, schemas):
            _side_by_side(self._delete_key, [name[start:] for name in some])

    def open_input(self, path: str) -> Any:
        """Open for random reads: one request now (size and tail), then one per range that is not cached."""
        return RangeInput(self, path)

    def open_output(self, path: str) -> BinaryIO:
        """Open a new object, uploaded in parts of 16 MiB and visible once closed."""
        inner = _Upload(self._client, self._bucket, self._key(object_name(path)))
        return Output(  # type: ignore[return-value]
            inner,  # type: ignore[arg-type]
            fail=lambda error: self._failed(error, "writing", path, mutating=False),
            finish=inner.finish,
            discard=inner.discard,
            errors=(RequestError,),
        )

    def read_tail(self, path: str, size: int) -> tuple[bytes, int]:
        key = self._key(object_name(path))
        try:
            answer = self._client.get(self._bucket, key, f"bytes=-{size}")
        except RequestError as error:
            if error.status == 416:
                return b"", 0  # an empty object has no valid range
            raise self._failed(error, "reading", path, mutating=False) from error
        return answer.body, int(answer.headers.get("Content-Range", f"/{len(answer.body)}").rpartition("/")[2])

    def read_range(self, path: str, start: int, end: int) -> bytes:
        key = self._key(object_name(path))
        try:
            return self._client.get(self._bucket, key, f"bytes={start}-{end - 1}").body
        except RequestError as error:
            if error.status == 416:
                return b""  # it has become shorter
            raise self._failed(error, "reading", path, mutating=False) from error

    @property
    def _client(self) -> Client:
        return gcs_client.client(self._options)

    def _key(self, path: str) -> str:
        return join(self._prefix, path)

    def _folder_prefix(self, folder: str) -> str:
        key = self._key(folder)
        return f"{key}/" if key else ""

    def _delete_key(self, below: str) -> None:
        """Delete the object of this name below the root, also one that marks a folder."""
        address = self._client.object(self._bucket, self._folder_prefix("") + below)
        with contextlib.suppress(NotFoundError):
            self._run("deleting", below, lambda client: client.send("DELETE", address, {}), True)

    def _is_ours(self, path: str, key: str, token: str, error: RequestError) -> bool:
        """Look whose object this is after a put that failed: True if this call's, False if there is none.

        Raises:
            AlreadyExistsError: it is another writer's.
            OutcomeUnknownError: it can't be looked at.
        """
        where = join(self.uri, path)
        try:
            owner = self._client.metadata(self._bucket, key).get(_TOKEN)
        except RequestError as doubt:
            if doubt.status == 404:
                return False
            raise OutcomeUnknownError(
                f"Creating {where} failed ({self._reason(error)}), and so did looking at it "
                f"({self._reason(doubt)}): it may still appear. Look for it before trying again"
            ) from error
        if owner != token:
            raise AlreadyExistsError(f"{where} exists already") from error
        return True

    def _entries(self, doing: str, path: str, prefix: str, delimiter: str) -> Listing:
        try:
            return self._client.list_all(self._bucket, prefix, delimiter)
        except RequestError as error:
            if error.status == 404:
                raise self._without_bucket(path) from error
            raise self._failed(error, doing, path, mutating=False) from error

    def _run(self, doing: str, path: str, request: Callable[[Client], T], mutating: bool = False) -> T:
        try:
            return request(self._client)
        except RequestError as error:
            raise self._failed(error, doing, path, mutating) from error

    def _reason(self, error: Exception) -> str:
        reason = str(error) or type(error).__name__
        for secret in secret_values(json.loads(self._options)):
            reason = reason.replace(secret, "***")
        return reason

    def _without_bucket(self, path: str) -> NotFoundError:
        return NotFoundError(f"The bucket {self._bucket!r} of {join(self.uri, path)} does not exist")

    def _failed(self, error: Exception, doing: str, path: str, mutating: bool) -> PaimonError:
        assert isinstance(error, RequestError)
        where = join(self.uri, path)
        if error.status == 404 and (doing in ("creating", "writing") or "bucket" in str(error)):
            return self._without_bucket(path)
        if error.status == 404:
            return NotFoundError(f"{where} does not exist")
        if mutating and error.applied:
            return OutcomeUnknownError(
                f"{doing.capitalize()} {where} failed, but may have taken effect ({self._reason(error)}); "
                "read it before trying again"
            )
        if error.status in (401, 403):
            return StorageError(
                f"Access denied for {doing} {where} ({self._reason(error)}); "
                "check the storage option token or the environment's credentials"
            )
        return StorageError(f"{doing.capitalize()} {where} failed: {self._reason(error)}")


class _Upload:
    """An object being written: kept until it is longer than a part, then sent part by part."""

    def __init__(self, client: Client, bucket: str, key: str) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        self._held = bytearray()
        self._sent = 0
        self._address = ""

    def write(self, data: memoryview) -> int:
        self._held += data
        while len(self._held) > _PART:  # something is left for the last part, which can't be empty
            self._address = self._address or self._client.begin_upload(self._bucket, self._key)
            self._client.put_part(self._address, self._sent, bytes(self._held[:_PART]), last=False)
            del self._held[:_PART]
            self._sent += _PART
        return len(data)

    def finish(self) -> None:
        if self._address:
            self._client.put_part(self._address, self._sent, bytes(self._held), last=True)
        else:
            self._client.put(self._bucket, self._key, bytes(self._held), {})

    def discard(self) -> None:
        self._held.clear()
        if self._address:
            self._client.drop_upload(self._address)


def _side_by_side(call: Callable[[str], T], paths: Sequence[str]) -> list[T]:
    """Make a call for each path, some at the same time; the first error is raised when all calls begun have ended."""
    if len(paths) < 2:
        return [call(path) for path in paths]
    with ThreadPoolExecutor(min(gcs_client.AT_ONCE, len(paths))) as pool:
        return list(pool.map(call, paths))


def _info(entry: Mapping[str, Any], start: int) -> FileInfo:
    modified = datetime.fromisoformat(entry["updated"])
    return FileInfo(entry["name"][start:], False, int(entry["size"]), int(modified.timestamp() * 1000))
