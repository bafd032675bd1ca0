"""Objects by key in a bucket, with puts that are refused where the object exists: what S3, Google and Azure share."""

from __future__ import annotations

import json
import os
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, BinaryIO, ClassVar, TypeVar

from airflow_paimon.core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PaimonError,
    StorageError,
)
from airflow_paimon.core.store.base import (
    FEW,
    FileInfo,
    Store,
    folder_name,
    inner_folder_name,
    join,
    object_name,
)
from airflow_paimon.core.store.object_client import (
    EXISTS,
    IN_CONFLICT,
    NO_BUCKET,
    Listing,
    ObjectClient,
    RequestError,
    environment_of,
    is_enough,
    pause,
)
from airflow_paimon.core.store.ranges import RangeInput
from airflow_paimon.core.store.secrets import without_secrets

T = TypeVar("T")

_CREATE_TRIES = 4
_CHANGE_TRIES = 4
_NOT_EMPTY = 409
PROBE = "_airflow_paimon/probe-"
"""What the names of objects begin with that are written to find out what a storage does."""
_Change = Callable[[ObjectClient, str, str, str], None]
"""Changes a version of an object of a bucket."""


class ObjectStore(Store):
    """Objects below ``scheme://bucket/prefix``. A folder is what keys have in common up to a ``/``.

    Calls block: a coroutine makes them in a thread. The options travel when a store is pickled, and show nowhere else.
    """

    __slots__ = ("_authority", "_options", "_prefix", "_scheme")

    remote = True
    bucket_word: ClassVar[str] = "bucket"
    login_options: ClassVar[str]
    """The options that say who asks, for whoever is refused."""
    environment: ClassVar[str]
    """What the variables of the environment begin with that say who asks."""

    def __init__(self, scheme: str, authority: str, prefix: str = "", options: Mapping[str, Any] | None = None) -> None:
        if not authority:
            raise InvalidInputError(
                f"{scheme}:// needs the {self.bucket_word}'s name: {scheme}://{self.bucket_word}/path"
            )
        self._scheme = scheme
        self._authority = authority
        self._prefix = prefix
        self._options = self._checked(options or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._scheme, self._authority, self._prefix, json.loads(self._options))

    @abstractmethod
    def _checked(self, options: Mapping[str, Any]) -> str:
        """Check options, and that the packages are there; give the options as JSON in the words of the client."""

    @classmethod
    @abstractmethod
    def new_client(cls, options: Mapping[str, Any], host: str) -> ObjectClient:
        """Make a client. ``host``: that of the URI, where it names one."""

    @property
    def _client(self) -> ObjectClient:
        """The client of this process for the options, and for the credentials in the environment."""
        return _client_of(os.getpid(), type(self), self._options, self._host, environment_of(self.environment))

    @property
    def _host(self) -> str:
        return ""

    @property
    def _bucket(self) -> str:
        return self._authority

    @property
    def uri(self) -> str:
        return f"{self._scheme}://{join(self._authority, self._prefix)}"

    def child(self, path: str) -> Store:
        _, (scheme, authority, prefix, options) = self.__reduce__()
        return type(self)(scheme, authority, join(prefix, folder_name(path)), options)

    def read(self, path: str) -> bytes:
        key = self._key(path)
        return self._run("reading", path, lambda client: client.get(self._bucket, key))[0]

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        keys = [self._key(path) for path in paths]
        if not keys:
            return []
        where = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        return self._run("reading", where, lambda client: client.get_many(self._bucket, keys))

    def exists(self, path: str) -> bool:
        key = self._key(path)
        try:
            self._run("looking at", path, lambda client: client.head(self._bucket, key))
        except NotFoundError:
            return False
        return True

    def names(self, path: str) -> list[str]:
        return [info.name for info in self._entries(path, "/")[0]]

    def names_if_few(self, path: str) -> list[str] | None:
        objects, _ = self._listed(path, "/", FEW - 1)
        if is_enough(objects, FEW - 1):  # there may be further pages, also if some of these objects mark folders
            return None
        return [info.name for info in _below(self._folder_prefix(folder_name(path)), objects)]

    def files(self, path: str) -> Sequence[FileInfo]:
        above = f"{path.removesuffix('/')}/" if path else ""
        found = (replace(info, name=above + info.name) for info in self._entries(path, "")[0])
        return sorted(found, key=lambda info: info.name)

    def list(self, path: str) -> list[FileInfo]:
        objects, folders = self._entries(path, "/")
        found = [*objects, *(FileInfo(name.removesuffix("/"), True, 0) for name in folders)]
        return sorted(found, key=lambda info: info.name)

    def create(self, path: str, data: bytes) -> None:
        """Put if absent. After any doubt the object is looked at, and only one that isn't there is put again.

        Each try carries the same token, so whichever of them lands is this call's. Even a refusal ("it exists already")
        is looked at: clients and proxies repeat a put whose answer was lost, and are refused because of the first one.
        """
        key = self._key(path)
        token = uuid.uuid4().hex
        doubt: RequestError | None = None
        for tried in range(1, _CREATE_TRIES + 1):
            try:
                self._client.put(self._bucket, key, data, token)
                return
            except RequestError as error:
                if error.status != EXISTS and not error.applied and not doubt:
                    raise self._failed(error, "creating", path) from error
                doubt = error
            if doubt.status != EXISTS:
                pause(tried)
            if self._is_ours(path, key, token, data, doubt):
                return
        raise OutcomeUnknownError(
            f"Creating {join(self.uri, path)} failed ({self._reason(doubt)}), but it may still appear. Check whether "
            "it exists before you run this again"
        ) from doubt

    def replace(self, path: str, data: bytes) -> None:
        key = self._key(path)
        self._run("writing", path, lambda client: client.put(self._bucket, key, data), mutating=True)

    def delete(self, path: str) -> None:
        key = self._key(path)
        self._run("deleting", path, lambda client: client.delete(self._bucket, key), mutating=True)

    def delete_same(self, path: str, data: bytes) -> bool | None:
        """Delete the version of the object that was read.

        An object that is gone after a request whose answer was lost was deleted by this call.
        """
        if not self._takes_versions(_delete_version):
            return super().delete_same(path, data)
        return self._change_version(path, data, _delete_version, "deleting")

    def replace_same(self, path: str, data: bytes, expected: bytes) -> bool | None:
        """Replace the version of the object that was read.

        An object that has the new content after a request whose answer was lost has it by this call.
        """
        if not self._takes_versions(_put_version):
            return super().replace_same(path, data, expected)
        return self._change_version(path, expected, partial(_put_version, data=data), "writing", data)

    def _change_version(
        self, path: str, expected: bytes, change: _Change, doing: str, result: bytes | None = None
    ) -> bool | None:
        """Change an object if its content is the expected one. ``result``: its content then; None: it is gone."""
        key, doubt = self._key(path), False
        for tried in range(1, _CHANGE_TRIES + 1):
            try:
                found, version = self._client.get_version(self._bucket, key)
            except RequestError as error:
                if error.status == 404:
                    return True if doubt and result is None else None
                raise self._failed(error, "reading", path) from error
            if found != expected:
                return doubt and found == result
            try:
                change(self._client, self._bucket, key, version)
                return True
            except RequestError as error:
                doubt = doubt or error.applied
                again = error.status in (EXISTS, 404) or error.code == IN_CONFLICT or error.applied
                if not again or tried == _CHANGE_TRIES:
                    raise self._failed(error, doing, path, mutating=True) from error
            pause(tried)
        raise AssertionError("unreachable")

    def _takes_versions(self, change: _Change) -> bool:
        """Try once per process and bucket whether a change under a condition is refused where that doesn't hold.

        Some S3-compatible servers ignore the condition, and OSS has none.
        """
        tried, question = self._client.tried, (self._bucket, change)
        if question not in tried:
            key = join(self._prefix, f"{PROBE}{uuid.uuid4().hex}")
            tried[question] = self._run(
                "writing a probe to", "", lambda client: _refuses_other(client, self._bucket, key, change)
            )
        return tried[question]

    def delete_empty(self, path: str) -> None:
        """Delete the empty objects with which some engines mark folders."""
        prefix = self._folder_prefix(inner_folder_name(path))
        objects, _ = self._run("deleting", path, lambda client: client.list_all(self._bucket, prefix, ""))
        files = [info.name for info in objects if not _marks_a_folder(info)]
        marks = sorted((info.name for info in objects if _marks_a_folder(info)), reverse=True)
        for mark in marks:
            if not any(name.startswith(f"{mark.rstrip('/')}/") for name in files):
                self._run("deleting", path, partial(delete_mark, bucket=self._bucket, key=mark), mutating=True)

    def open_input(self, path: str) -> Any:
        """Open for random reads: its size and tail now, then one request per range that is not cached."""
        return RangeInput(self, path)

    def open_output(self, path: str) -> BinaryIO:
        key = self._key(path)
        return self._client.upload(self._bucket, key, partial(self._failed, doing="writing", path=path))

    def read_tail(self, path: str, size: int) -> tuple[bytes, int]:
        key = self._key(path)
        return self._within(path, lambda client: client.tail(self._bucket, key, size))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        key, span = self._key(path), f"bytes={start}-{end - 1}"
        return self._within(path, lambda client: client.get(self._bucket, key, span))[0]

    def _within(self, path: str, request: Callable[[ObjectClient], tuple[bytes, int]]) -> tuple[bytes, int]:
        """Read a range; nothing where the object ends before it, as one that is empty or has become shorter."""
        try:
            return request(self._client)
        except RequestError as error:
            if error.status == 416:
                return b"", 0
            raise self._failed(error, "reading", path) from error

    def _key(self, path: str) -> str:
        return join(self._prefix, object_name(path))

    def _folder_prefix(self, folder: str) -> str:
        key = join(self._prefix, folder)
        return f"{key}/" if key else ""

    def _entries(self, path: str, delimiter: str) -> Listing:
        """List a folder by names below it, without the empty objects with which some engines mark folders."""
        objects, folders = self._listed(path, delimiter)
        prefix = self._folder_prefix(folder_name(path))
        return _below(prefix, objects), [name[len(prefix) :] for name in folders]

    def _listed(self, path: str, delimiter: str, limit: int | None = None) -> Listing:
        prefix = self._folder_prefix(folder_name(path))
        return self._run("listing", path, lambda client: client.list_all(self._bucket, prefix, delimiter, limit))

    def _is_ours(self, path: str, key: str, token: str, data: bytes, error: RequestError) -> bool:
        """Look whose object this is after a put that failed: True if this call's, False if there is none.

        Raises:
            AlreadyExistsError: it is another writer's.
            OutcomeUnknownError: it can't be looked at.
        """
        where = join(self.uri, path)
        try:
            if self._client.is_from(self._bucket, key, token, data):
                return True
        except RequestError as doubt:
            if doubt.status == 404:
                return False
            raise OutcomeUnknownError(
                f"Creating {where} failed ({self._reason(error)}), and so did reading it back ({self._reason(doubt)}): "
                "it may still appear. Check whether it exists before you run this again"
            ) from error
        raise AlreadyExistsError(f"{where} exists already") from error

    def _run(self, doing: str, path: str, request: Callable[[ObjectClient], T], mutating: bool = False) -> T:
        try:
            return request(self._client)
        except RequestError as error:
            raise self._failed(error, doing, path, mutating) from error

    def _reason(self, error: Exception | None) -> str:
        return without_secrets(str(error), self._options)

    def _failed(self, error: RequestError, doing: str, path: str, mutating: bool = False) -> PaimonError:
        where = join(self.uri, path)
        if error.code == NO_BUCKET:
            return NotFoundError(f"The {self.bucket_word} {self._bucket!r} of {where} does not exist")
        if error.status == 404:
            return NotFoundError(f"{where} does not exist")
        if mutating and error.applied:
            return OutcomeUnknownError(
                f"{doing.capitalize()} {where} failed, but may have taken effect ({self._reason(error)}); "
                "read it before trying again"
            )
        if error.status in (401, 403):
            return StorageError(
                f"Access denied for {doing} {where} ({self._reason(error)}); give this user the right, or "
                f"check the storage options {self.login_options} or the environment's credentials"
            )
        return StorageError(f"{doing.capitalize()} {where} failed: {self._reason(error)}")


@lru_cache(maxsize=64)
def _client_of(
    pid: int, kind: type[ObjectStore], options: str, host: str, environment: tuple[tuple[str, str], ...]
) -> ObjectClient:
    return kind.new_client(json.loads(options), host)


def _delete_version(client: ObjectClient, bucket: str, key: str, version: str) -> None:
    client.delete_version(bucket, key, version)


def _put_version(client: ObjectClient, bucket: str, key: str, version: str, data: bytes = b"") -> None:
    client.put_version(bucket, key, data, version)


def _refuses_other(client: ObjectClient, bucket: str, key: str, change: _Change) -> bool:
    """Whether a change of another version of an object than the one that is there is refused."""
    client.put(bucket, key, b"one")
    _, one = client.get_version(bucket, key)
    client.put(bucket, key, b"other")
    _, other = client.get_version(bucket, key)
    refused = False
    try:
        if one and other not in ("", one):
            change(client, bucket, key, one)
    except RequestError as error:
        refused = error.status == EXISTS
    with suppress(RequestError):  # an object in our own folder does no harm
        client.delete(bucket, key)
    return refused


def delete_mark(client: ObjectClient, bucket: str, key: str) -> None:
    try:
        client.delete(bucket, key)
    except RequestError as error:
        if error.status != _NOT_EMPTY:
            raise


def _below(prefix: str, objects: Sequence[FileInfo]) -> list[FileInfo]:
    """Return objects by their names below a folder, without those that mark folders."""
    return [replace(info, name=info.name[len(prefix) :]) for info in objects if not _marks_a_folder(info)]


def _marks_a_folder(info: FileInfo) -> bool:
    return info.is_dir or info.name.endswith("/")
