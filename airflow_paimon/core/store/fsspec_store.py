"""Any other storage that fsspec supports, read-only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NoReturn

import fsspec
from fsspec.registry import known_implementations

from airflow_paimon.core.errors import InvalidInputError, PaimonError, StorageError, UnsupportedStorageError
from airflow_paimon.core.store.base import FileInfo, Store, folder_name, join, object_name
from airflow_paimon.core.store.failures import Input, from_os_error
from airflow_paimon.core.store.secrets import without_secrets
from airflow_paimon.core.store.threads import map_parallel

_THREADS = 8
_WRITABLE = "Reads and writes work on a path, file://, s3://, gs://, abfs:// and hdfs://"


def is_known(scheme: str) -> bool:
    """Whether fsspec has, or can install, a file system for this scheme."""
    return scheme in fsspec.available_protocols()


@lru_cache(maxsize=16)
def _file_system(pid: int, scheme: str, options: str) -> Any:
    """Open a file system once per process: connections opened before a fork can't be used after it."""
    try:
        return fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False, **json.loads(options))
    except ImportError as error:
        hint = known_implementations.get(scheme, {}).get("err", str(error))
        raise UnsupportedStorageError(
            f"Tables on {scheme}:// can only be read here, and reading needs a package that is missing ({hint}). "
            f"{_WRITABLE}"
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"fsspec refuses the storage options for {scheme}:// ({type(error).__name__})"
        ) from None
    except OSError as error:
        raise StorageError(f"Opening {scheme}:// failed: {type(error).__name__}") from error


class FsspecStore(Store):
    """Objects below one root, read through fsspec. Mutating calls are refused: fsspec has no atomic put-if-absent."""

    __slots__ = ("_options", "_root", "_scheme")

    def __init__(self, scheme: str, root: str, options: Mapping[str, Any] | None = None) -> None:
        self._scheme = scheme
        self._root = root
        try:
            self._options = json.dumps(dict(options or {}), sort_keys=True)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"Storage options for {scheme}:// must be plain JSON values") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return FsspecStore, (self._scheme, self._root, json.loads(self._options))

    @property
    def uri(self) -> str:
        return f"{self._scheme}://{self._root}"

    def child(self, path: str) -> FsspecStore:
        return FsspecStore(self._scheme, join(self._root, folder_name(path)), json.loads(self._options))

    def read(self, path: str) -> bytes:
        key = self._key(object_name(path))
        try:
            data: bytes = self._fs.cat_file(key)
        except (OSError, KeyError) as error:  # fsspec's archives raise KeyError for a missing object
            raise self._failed(error, "reading", path) from error
        return data

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return map_parallel(self.read, paths, _THREADS)

    def exists(self, path: str) -> bool:
        key = self._key(object_name(path))
        try:
            self._fs.invalidate_cache()
            return bool(self._fs.isfile(key))
        except OSError as error:
            raise self._failed(error, "looking at", path) from error

    def files(self, path: str) -> Sequence[FileInfo]:
        found: list[FileInfo] = []
        folders = [folder_name(path)]
        while folders:  # each folder is listed once, so this ends
            folder = folders.pop()
            for info in self.list(folder):
                inner = join(folder, info.name)
                if info.is_dir:
                    folders.append(inner)
                else:
                    found.append(replace(info, name=inner))
        return sorted(found, key=lambda info: info.name)

    def list(self, path: str) -> list[FileInfo]:
        key = self._key(folder_name(path))
        try:
            self._fs.invalidate_cache()
            entries = self._fs.ls(key, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._failed(error, "listing", path) from error
        found = [_info(entry) for entry in entries if entry["name"].rstrip("/") != key.rstrip("/")]
        return sorted(found, key=lambda info: info.name)

    @property
    def commits_refused(self) -> UnsupportedStorageError:
        return UnsupportedStorageError(
            f"tables on {self._scheme}:// can only be read here, as no conditional put is implemented for that storage "
            f"and a commit could be lost. {_WRITABLE}"
        )

    def _refuse(self, path: str, data: bytes = b"") -> NoReturn:
        raise UnsupportedStorageError(f"{join(self.uri, path)} can't be written: {self.commits_refused.message}")

    create = replace = delete = delete_same = delete_empty = open_output = _refuse

    def open_input(self, path: str) -> Any:
        key = self._key(object_name(path))
        try:
            inner = self._fs.open(key, "rb")
        except (OSError, KeyError) as error:
            raise self._failed(error, "reading", path) from error
        return Input(inner, fail=lambda e: self._failed(e, "reading", path), errors=(OSError,))

    @property
    def _fs(self) -> Any:
        return _file_system(os.getpid(), self._scheme, self._options)

    def _key(self, path: str) -> str:
        key: str = self._fs._strip_protocol(join(self.uri, path))
        return key

    def _failed(self, error: Exception, doing: str, path: str) -> PaimonError:
        message = without_secrets(str(error) or type(error).__name__, self._options)
        reason = OSError(getattr(error, "errno", None) or 0, message)
        if isinstance(error, FileNotFoundError | KeyError):
            reason = FileNotFoundError()
        return from_os_error(reason, doing, join(self.uri, path))


def _info(entry: Mapping[str, Any]) -> FileInfo:
    is_dir = entry["type"] == "directory"
    modified = entry.get("mtime", entry.get("LastModified", entry.get("last_modified")))
    seconds = modified.timestamp() if hasattr(modified, "timestamp") else modified
    return FileInfo(
        entry["name"].rstrip("/").rpartition("/")[2],
        is_dir,
        0 if is_dir else int(entry.get("size") or 0),
        int(seconds * 1000) if isinstance(seconds, int | float) else None,
    )
