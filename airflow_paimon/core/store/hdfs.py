"""HDFS, by its own protocol: no Java, no libhdfs. A commit is a rename that is refused where the name exists."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
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
from airflow_paimon.core.store.base import (
    AWAY,
    FileInfo,
    Store,
    content_digest,
    folder_name,
    inner_folder_name,
    join,
    object_name,
    read_if_exists,
    set_aside_path,
    temporary_path,
)
from airflow_paimon.core.store.failures import Output
from airflow_paimon.core.store.object_client import AT_ONCE
from airflow_paimon.core.store.ranges import RangeInput
from airflow_paimon.core.store.secrets import without_secrets
from airflow_paimon.core.store.threads import map_parallel

T = TypeVar("T")

_FAILURES = (OSError, RuntimeError)
"""What the client raises: ``OSError`` for what Python has a class for, ``RuntimeError`` for all else."""

_OPTIONS = frozenset({"config_dir", "kerberos_cache", "kerberos_keytab", "kerberos_principal"})
_HADOOP = ("dfs.", "fs.defaultFS", "fs.viewfs.", "hadoop.")
_PUBLISH_TRIES = 3
_ANSWERS = (FileExistsError, FileNotFoundError, PermissionError)
"""Answers of the name node, which the same call would get again."""
_KEPT_SECONDS = 3.5
"""The client keeps a connection to a data node for 3 seconds, for all of a process: a forked child that took one up
would get its parent's answers, and the parent its."""
_opened_by: set[int] = set()
"""The processes, this one and those that it was forked from, that have connected."""
_NO_FOLDER = ("ParentNotDirectoryException", "(is not a directory)", "Path is not a file")
_RPC_ERROR = re.compile(r'RPCError\("[\w.$]*?(\w+)", "(.*)', re.DOTALL)


class HdfsStore(Store):
    """Files below ``hdfs://name-node/folder`` or ``viewfs://cluster/folder``; without a host Hadoop's default cluster.

    ``create`` writes a hidden file ``.<name>.<uuid>.tmp`` and renames it, which the name node refuses where the name
    exists. Such files that a killed writer left are hidden; listings show them.

    Options: Hadoop's own (``dfs.…``, ``hadoop.…``, ``fs.defaultFS``, ``fs.viewfs.…``), which win over those in the
    files of ``config_dir``, or of ``HADOOP_CONF_DIR`` in the environment; ``kerberos_principal``, ``kerberos_keytab``
    and ``kerberos_cache``, without which the process's own ticket is used. They travel when a store is pickled, and
    show nowhere else.
    """

    __slots__ = ("_authority", "_options", "_root", "_scheme")

    remote = True

    def __init__(self, scheme: str, authority: str, root: str = "", options: Mapping[str, Any] | None = None) -> None:
        self._scheme = scheme
        self._authority = authority
        self._root = root
        if find_spec("hdfs_native") is None:
            raise UnsupportedStorageError(
                f"{scheme}:// needs the package hdfs-native: pip install 'airflow-paimon[hdfs]'"
            )
        self._options = _checked_options(scheme, options)

    def __reduce__(self) -> tuple[Any, ...]:
        return HdfsStore, (self._scheme, self._authority, self._root, json.loads(self._options))

    @property
    def uri(self) -> str:
        return f"{self._scheme}://{self._authority}{self._key('').rstrip('/')}"

    def child(self, path: str) -> HdfsStore:
        root = join(self._root, folder_name(path))
        return HdfsStore(self._scheme, self._authority, root, json.loads(self._options))

    def read(self, path: str) -> bytes:
        key = self._key(object_name(path))
        return self._run("reading", path, lambda client: _content(client, key))

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return map_parallel(self.read, paths, AT_ONCE)

    def exists(self, path: str) -> bool:
        found = self._status(path, self._key(object_name(path)))
        return found is not None and not found.isdir

    def files(self, path: str) -> Sequence[FileInfo]:
        start = len(self._key("").rstrip("/")) + 1
        entries = self._entries(path, recursive=True)
        found = [_info(entry, entry.path[start:]) for entry in entries if not entry.isdir]
        return sorted(found, key=lambda info: info.name)

    def list(self, path: str) -> list[FileInfo]:
        entries = self._entries(path, recursive=False)
        found = [_info(entry, entry.path.rstrip("/").rpartition("/")[2]) for entry in entries]
        return sorted(found, key=lambda info: info.name)

    def create(self, path: str, data: bytes) -> None:
        self._publish(path, data, overwrite=False)

    def replace(self, path: str, data: bytes) -> None:
        self._publish(path, data, overwrite=True)

    def delete(self, path: str) -> None:
        key = self._key(object_name(path))
        found = self._status(path, key)
        if found is not None and not found.isdir:
            self._run("deleting", path, lambda client: client.delete(key, recursive=False), mutating=True)

    def delete_same(self, path: str, data: bytes) -> bool | None:
        """Rename the file away if it is the one, and look again at what was renamed: another one gets its name back."""
        found = read_if_exists(self, path)
        if found is None:
            return None
        if found != data:
            return False
        key = self._key(object_name(path))
        away = set_aside_path(key, data)
        if away is None:
            return super().delete_same(path, data)
        try:
            self._client.rename(key, away, overwrite=False)
        except _FAILURES as error:
            if self._status(path, away) is None:
                if self._status(path, key) is None:  # another process has deleted it
                    return None
                raise self.failed(error, "deleting", path, mutating=True) from error
        try:
            return _put_back(self._client, away)
        except _FAILURES as error:
            raise OutcomeUnknownError(
                f"{join(self.uri, path)} was renamed to be deleted, and may have been replaced by another process "
                f"before ({self._reason(error)}). If {away} exists, the next listing of its folder deletes or restores "
                "it"
            ) from error

    def delete_empty(self, path: str) -> None:
        key = self._key(inner_folder_name(path))
        found = self._status(path, key)
        if found is None or not found.isdir:
            return
        folders = [entry.path for entry in self._entries(path, recursive=True) if entry.isdir]
        for folder in sorted((*folders, key), reverse=True):
            with contextlib.suppress(*_FAILURES):  # something is in it
                if not self._listed(path, folder):
                    self._client.delete(folder, recursive=False)

    def open_input(self, path: str) -> Any:
        """Open for random reads. The file's blocks are looked up once, here."""
        key = self._key(object_name(path))
        return RangeInput(self._run("reading", path, lambda client: _OpenFile(self, client.read(key))), path)

    def open_output(self, path: str) -> BinaryIO:
        """Open a new file, of which a listing shows the name at once. ``AlreadyExistsError`` if it exists."""
        key = self._key(object_name(path))
        try:
            writer = self._new_file(key)
        except FileExistsError as error:
            raise AlreadyExistsError(f"{join(self.uri, path)} exists already") from error
        except _FAILURES as error:
            raise self.failed(error, "writing", path) from error

        def discard() -> None:
            self._client.delete(key, recursive=False)
            with contextlib.suppress(FileNotFoundError):  # gone, as it was just deleted
                writer.close()

        return Output(  # type: ignore[return-value]
            writer,
            fail=lambda error: self.failed(error, "writing", path),
            finish=writer.close,
            discard=discard,
            errors=_FAILURES,
        )

    @property
    def _client(self) -> Any:
        address = f"{self._scheme}://{self._authority}" if self._authority else None
        return _client(os.getpid(), address, self._options, os.environ.get("HADOOP_CONF_DIR", ""), _user())

    def _key(self, path: str) -> str:
        return "/" + join(self._root, path)

    def _new_file(self, key: str) -> Any:
        from hdfs_native import WriteOptions

        return self._client.create(key, WriteOptions(overwrite=False, create_parent=True))

    def _publish(self, path: str, data: bytes, *, overwrite: bool) -> None:
        """Write a hidden file beside the name, and rename it to the name; again if that certainly did nothing."""
        key = self._key(object_name(path))
        for left in reversed(range(_PUBLISH_TRIES)):
            temp = self._hidden_file(path, key, data)
            try:
                self._client.rename(temp, key, overwrite=overwrite)
                return
            except _FAILURES as error:
                if self._committed(path, temp, data, error, overwrite=overwrite):
                    return
                if not left or not isinstance(error, OSError) or isinstance(error, _ANSWERS):
                    raise self.failed(error, "replacing" if overwrite else "creating", path) from error

    def _hidden_file(self, path: str, key: str, data: bytes) -> str:
        temp = temporary_path(key)
        try:
            writer = self._new_file(temp)
            writer.write(data)
            writer.close()
        except BaseException as error:
            with contextlib.suppress(*_FAILURES):
                self._client.delete(temp, recursive=False)
            if isinstance(error, _FAILURES):
                raise self.failed(error, "writing", path) from error
            raise
        return temp

    def _committed(self, path: str, temp: str, data: bytes, error: Exception, *, overwrite: bool) -> bool:
        """Find out whether a rename that failed took effect: True if it did, False if it did not and never will.

        The client repeats a call whose answer got lost, so that "it exists" and "there is no such file" may be what a
        rename of ours has caused. The hidden file tells: it is gone if it was renamed, and once it is deleted it can
        no longer be, not even by a call that is still on its way.

        Raises:
            AlreadyExistsError: another writer's file is there. OutcomeUnknownError: nobody knows.
        """
        where, doing = join(self.uri, path), "replacing" if overwrite else "creating"
        try:
            fenced = self._client.delete(temp, recursive=False) if self._status(path, temp) is not None else False
            found = None if fenced else _content(self._client, self._key(path))
        except FileNotFoundError:
            found = None
        except (*_FAILURES, PaimonError) as doubt:
            raise OutcomeUnknownError(
                f"{doing.capitalize()} {where} failed ({self._reason(error)}), and so did reading it back "
                f"({self._reason(doubt)}): it may still appear. Check whether it exists before you run this again"
            ) from error
        if not fenced and (found == data or (overwrite and found is not None)):
            return True  # other content is another writer's, who has replaced ours since
        if found is not None or (fenced and isinstance(error, FileExistsError)):
            raise AlreadyExistsError(f"{where} exists already") from error
        if fenced:
            return False
        raise OutcomeUnknownError(
            f"{doing.capitalize()} {where} failed ({self._reason(error)}), but may have taken effect; "
            "read it before trying again"
        ) from error

    def _status(self, path: str, key: str) -> Any:
        """Look at a file or folder; None if there is none."""
        try:
            return self._run("looking at", path, lambda client: client.get_file_info(key))
        except NotFoundError:
            return None

    def _entries(self, path: str, *, recursive: bool) -> Sequence[Any]:
        """List a folder or all below it; what is no folder, or is deleted meanwhile, has no entries.

        The client would list the folders below one after the other: here those of a level go side by side.
        """
        found: list[Any] = []
        level = [self._key(folder_name(path))]
        while level:  # ends at the deepest folder
            each = map_parallel(lambda key: self._listed(path, key), level, AT_ONCE)
            listed = [entry for entries in each for entry in entries]
            found += listed
            level = [entry.path for entry in listed if entry.isdir and recursive]
        return found

    def _listed(self, path: str, key: str) -> Sequence[Any]:
        try:
            found = self._run("listing", path, lambda client: list(client.list_status(key)))
        except NotFoundError:
            return []
        away = [entry for entry in found if not entry.isdir and AWAY.fullmatch(entry.path.rpartition("/")[2])]
        if away:
            for entry in away:
                with contextlib.suppress(*_FAILURES):  # it stays, as where nothing can be written
                    _put_back(self._client, entry.path)
            found = self._run("listing", path, lambda client: list(client.list_status(key)))
        # A file's listing is the file itself.
        files = (entry for entry in found if entry.path.rstrip("/") != key.rstrip("/"))
        return [entry for entry in files if entry.isdir or not AWAY.fullmatch(entry.path.rpartition("/")[2])]

    def _run(self, doing: str, path: str, request: Callable[[Any], T], mutating: bool = False) -> T:
        try:
            return request(self._client)
        except _FAILURES as error:
            raise self.failed(error, doing, path, mutating=mutating) from error

    def _reason(self, error: Exception) -> str:
        return without_secrets(_told(error), self._options)

    def failed(self, error: Exception, doing: str, path: str, *, mutating: bool = False) -> PaimonError:
        """Build the error to raise for one of the client's. An answer of the name node means that it did nothing."""
        where = join(self.uri, path)
        reason = self._reason(error)
        message = f"{error}"
        if doing != "writing" and (isinstance(error, FileNotFoundError) or any(text in message for text in _NO_FOLDER)):
            return NotFoundError(f"{where} does not exist")
        if isinstance(error, PermissionError) or "AccessControlException" in message:
            return StorageError(f"Permission denied for {doing} {where} ({reason}); give this user the right and retry")
        if "InvalidArgument(" in message:
            return InvalidInputError(
                f"The cluster of {where} is not known ({reason}); set HADOOP_CONF_DIR, or Hadoop's dfs.… settings as "
                "storage options"
            )
        if mutating and not isinstance(error, FileNotFoundError) and "RPCError(" not in message:
            return OutcomeUnknownError(
                f"{doing.capitalize()} {where} failed, but may have taken effect ({reason}); "
                "read it before trying again"
            )
        return StorageError(f"{doing.capitalize()} {where} failed: {reason}")


class _OpenFile:
    """A file that is open for reading, of which any range can be read."""

    def __init__(self, store: HdfsStore, reader: Any) -> None:
        self._store = store
        self._reader = reader
        self._size: int = len(reader)

    @property
    def uri(self) -> str:
        return self._store.uri

    def read_tail(self, path: str, size: int) -> tuple[bytes, int]:
        return self.read_range(path, max(self._size - size, 0), self._size), self._size

    def read_range(self, path: str, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        try:
            data: bytes = self._reader.read_range(start, end - start)
        except _FAILURES as error:
            raise self._store.failed(error, "reading", path) from error
        return data


@lru_cache(maxsize=16)
def _client(pid: int, address: str | None, options: str, config_dir: str, user: str) -> Any:
    """Connect once per process: connections and threads of before a fork are of no use after it."""
    from hdfs_native import Client

    if _opened_by and pid not in _opened_by:
        time.sleep(_KEPT_SECONDS)
    _opened_by.add(pid)
    given = json.loads(options)
    own = {name: given.pop(name) for name in _OPTIONS & given.keys()}
    if re.search(r":\d+$", address or ""):  # of a pair the other one may take a minute to become active
        given.setdefault("dfs.client.failover.max.attempts", "5")
    return Client(address, given, own.pop("config_dir", None), **own)


def _user() -> str:
    return os.environ.get("HADOOP_USER_NAME", "")


def _checked_options(scheme: str, options: Mapping[str, Any] | None) -> str:
    """Check storage options and return them as canonical JSON, the form that a store keeps."""
    given = {name: value for name, value in (options or {}).items() if value is not None}
    if unknown := sorted(name for name in given if name not in _OPTIONS and not name.startswith(_HADOOP)):
        raise InvalidInputError(
            f"Unknown storage option for {scheme}://: {', '.join(unknown)}; known are {', '.join(sorted(_OPTIONS))} "
            f"and Hadoop's own, which begin with {', '.join(_HADOOP)}"
        )
    if wrong := sorted(name for name, value in given.items() if not isinstance(value, str)):
        raise InvalidInputError(f"Storage options for {scheme}:// must be strings: {', '.join(wrong)}")
    return json.dumps(given, sort_keys=True)


def _put_back(client: Any, away: str) -> bool:
    """Delete a file that is ``AWAY`` if it is the one that was to be deleted. False: it is not, and has its name back.

    Several processes may do so at once. Raises one of ``_FAILURES`` where another file has got the name since.
    """
    folder, _, name = away.rpartition("/")
    found = AWAY.fullmatch(name)
    assert found is not None
    file = f"{folder}/{found[1]}"
    try:
        if content_digest(_content(client, away)) == found[2]:
            client.delete(away, recursive=False)
            return True
        client.rename(away, file, overwrite=False)
    except FileNotFoundError:  # another process has just done it
        try:
            client.get_file_info(file)
        except FileNotFoundError:
            return True
    return False


def _content(client: Any, key: str) -> bytes:
    data: bytes = client.read(key).read()
    return data


def _told(error: Exception) -> str:
    """Return what the client says, without the name node's Java stack, in at most 300 characters."""
    text = str(error)
    if found := _RPC_ERROR.match(text):
        text = f"{found[1]}: {found[2]}"
    return re.split(r"\\n|\n", text)[0][:300] or type(error).__name__


def _info(entry: Any, name: str) -> FileInfo:
    return FileInfo(name, entry.isdir, 0 if entry.isdir else entry.length, entry.modification_time)
