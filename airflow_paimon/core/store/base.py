"""The protocol between this package and a storage, and which paths below a store's root are valid.

Names are literal: ``dt=12%3A00`` is the name of the folder as stored.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, Protocol, TypeVar, runtime_checkable

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, OutcomeUnknownError, UnsupportedError
from airflow_paimon.core.store.threads import AT_ONCE, map_parallel

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of a listing. ``name`` is the last path part; ``modified_ms`` is None if the storage has none."""

    name: str
    is_dir: bool
    size: int
    modified_ms: int | None = None


@runtime_checkable
class Store(Protocol):
    """Bytes under one root (a table folder or a warehouse). Every ``path`` is relative to it, with ``/``.

    Errors: ``NotFoundError`` for a missing object, ``StorageError`` for any other failure of the storage, and
    ``OutcomeUnknownError`` if a mutating call failed but may have taken effect.
    A store can be pickled: executors open the same root with the same options.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @property
    def uri(self) -> str:
        """The root as an absolute URI (``file:///…``, ``s3://bucket/…``, ``memory://…``), without secrets."""
        ...

    @property
    def keeper(self) -> str | None:
        """What else writes the metadata of the table in this folder, so that only it can delete any; None = nothing."""
        return None

    @property
    def remote(self) -> bool:
        """Whether each call waits for a server, so that calls that don't depend on each other go side by side."""
        return False

    def before_create(self) -> None:
        """Do what a process does once before its first ``create``, so that no lock is held over it; most do nothing."""
        return

    @property
    def commits_refused(self) -> UnsupportedError | None:
        """Why this folder is for reading only; None: it isn't, and ``create`` is an atomic put-if-absent."""
        return None

    def child(self, path: str) -> Store:
        """Return the store rooted at ``path`` below this root."""
        ...

    def read(self, path: str) -> bytes: ...

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        """Read several small objects, concurrently if faster, in the order of ``paths``; a missing one raises."""
        return [self.read(path) for path in paths]

    def exists(self, path: str) -> bool:
        """Whether an *object* (not a folder) exists."""
        ...

    def names(self, path: str) -> list[str]:
        """Name the objects (not folders) directly in a folder, unordered; a missing folder has none. Needs no stat."""
        return [info.name for info in self.list(path) if not info.is_dir]

    def names_if_few(self, path: str) -> list[str] | None:
        """Name the objects in a folder as ``names`` does; None where there are many: finding that out costs as little
        as a look at the first page.
        """
        found = self.names(path)
        return None if len(found) > FEW else found

    def walk(self, path: str) -> list[str]:
        """List all objects below a folder, recursively, as paths relative to the root, sorted."""
        return [info.name for info in self.files(path)]

    def files(self, path: str) -> Sequence[FileInfo]:
        """List all objects below a folder as ``walk`` does, with sizes and times; ``name`` is the path."""
        ...

    def files_in_parts(self, path: str) -> Iterator[Sequence[FileInfo]]:
        """List all objects below a folder as ``files`` does, in parts, so that they need not be in memory at once."""
        yield self.files(path)

    def divided(self, path: str) -> tuple[Sequence[str], Sequence[FileInfo]]:
        """Divide what ``files`` lists below a folder: paths of the folders directly in it that ``files`` goes into, and
        the objects directly in it.
        """
        found = [replace(i, name=f"{path}/{i.name}" if path else i.name) for i in self.list(path)]
        return [i.name for i in found if i.is_dir], [i for i in found if not i.is_dir]

    def list(self, path: str) -> list[FileInfo]:
        """List the direct entries of a folder, sorted by name; a missing folder is empty."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Put if absent: whole content or nothing, exactly one winner. ``AlreadyExistsError`` for the losers."""
        ...

    def create_many(self, files: Mapping[str, bytes]) -> None:
        """Put new files under names that nobody else uses (uuids), before anything refers to them, at once if faster.

        All are durable when it returns. On an error some of them are there, perhaps cut short where it was killed.
        """
        if files:
            self.before_create()
            run_parallel(self, [partial(self.create, path, data) for path, data in files.items()])

    def hint(self, path: str, data: bytes) -> None:
        """Write a hint, as ``replace`` does; but after a power failure it may be an older one, empty or gone."""
        self.replace(path, data)

    def replace(self, path: str, data: bytes) -> None:
        """Write, replacing what is there; a reader sees the old or the new content, never half of one."""
        ...

    def delete(self, path: str) -> None:
        """Delete an object; a missing one is not an error."""
        ...

    def delete_same(self, path: str, data: bytes) -> bool | None:
        """Delete an object if its content is ``data``. False: it has another one, and stays; None: there is none.

        Nobody can put another content there between the look and the deletion without that being seen: this one, for
        storages whose deletions take no condition, measures the time that somebody would have had.

        Raises:
            OutcomeUnknownError: another content may have been deleted. StorageError: the storage failed.
        """
        return self._if_same(path, data, partial(self.delete, path), "deleted")

    def replace_same(self, path: str, data: bytes, expected: bytes) -> bool | None:
        """Replace an object whose content is ``expected``. False: it has another one, and stays; None: there is none.

        This one, for storages whose puts take no condition but that nothing is there, measures the time that somebody
        would have had to put another content there.

        Raises:
            OutcomeUnknownError: another content may have been replaced, or see ``replace``.
        """
        return self._if_same(path, expected, partial(self.replace, path, data), "replaced")

    def _if_same(self, path: str, expected: bytes, act: Callable[[], None], what: str) -> bool | None:
        began = time.monotonic()
        found = read_if_exists(self, path)
        if found is None:
            return None
        if found != expected:
            return False
        act()
        if (took := time.monotonic() - began) > LOOK_S:
            raise OutcomeUnknownError(
                f"{join(self.uri, path)} was {what} {took:.0f} s after it was read, and this storage has no "
                "conditional delete: if another process replaced it in that time, that content is lost. Check the "
                "object before you run this again",
                code="unconditional-delete",
            )
        return True

    def check_reach(self, paths: Iterable[str]) -> None:
        """Raise what a deletion of one of these objects would raise because of where it lies, before anything goes."""
        return

    def delete_empty(self, path: str) -> None:
        """Delete a folder with the folders below it, as far as no object is in them, where a storage has folders."""
        ...

    def open_input(self, path: str) -> Any:
        """Open for random reads: something that ``pyarrow.parquet.ParquetFile`` and ``pyarrow.orc`` accept.

        Close it, or use it in a ``with``. A missing object is ``NotFoundError`` here, not at the first read.
        """
        ...

    def open_output(self, path: str) -> BinaryIO:
        """Open a new data file for streaming writes. Once closed, it is durable and visible.

        Its name must be unique (a uuid): ``AlreadyExistsError`` for an existing one only where that check is free.
        Leaving a ``with`` block by an exception discards the file, as does never closing it.
        """
        ...


_NO_NAME = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)|\0")
"""An empty, ``.`` or ``..`` part of a path, also before a first or after a last ``/``."""
LOOK_S = 2.0
"""The longest time from a look at an object to the answer to its change, where that takes no condition."""
FEW = 1000
"""How many names ``names_if_few`` gives at most, about: what storages of objects give in one answer."""


def run_parallel(store: Store, calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make calls of a store that don't depend on each other: at once where each waits for a server, else in order.

    Errors are as those of ``map_parallel``.
    """
    return map_parallel(lambda call: call(), calls, AT_ONCE if store.remote else 1)


def batches(values: Sequence[T], size: int = AT_ONCE) -> Iterator[Sequence[T]]:
    """Divide values into batches, each of which is read, written or deleted at once."""
    return (values[start : start + size] for start in range(0, len(values), size))


def read_existing(store: Store, paths: Sequence[str]) -> dict[str, bytes]:
    """Read files by path; leave out those that are gone."""
    found: dict[str, bytes] = {}
    for some in batches(paths):
        try:
            found |= zip(some, store.read_many(some), strict=True)
        except NotFoundError:
            for path in some:
                try:
                    found[path] = store.read(path)
                except NotFoundError:
                    continue
    return found


def read_if_exists(store: Store, path: str) -> bytes | None:
    """Read a file; None if there is none."""
    try:
        return store.read(path)
    except NotFoundError:
        return None


def temporary_path(file: str) -> str:
    """Name a temporary file in the folder of another one."""
    folder, _, name = file.rpartition("/")
    stem = name if len(os.fsencode(name)) <= 200 else name[:50]  # a file name has at most 255 bytes
    return f"{folder}/.{stem}.{uuid.uuid4().hex}.tmp"


AWAY = re.compile(r"\.(.+)\.([0-9a-f]{32})[0-9a-f]{8}\.away")
"""A file that was renamed to be deleted: the name that it had, and the ``content_digest`` that it is to have for that.

Where it has another one, another process had replaced it just before, and it gets its name back. Who renames may be
killed in between: whoever lists the folder next does this in its stead (``put_back`` of the stores).
"""


_LONGEST_AWAY = 200
"""Bytes of a file's name that leave room for the rest, of 255."""


def content_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def set_aside_path(file: str, data: bytes) -> str | None:
    """Name the place to which a file goes that is to be deleted if its content is ``data``; see ``AWAY``.

    None: the file's own name is so long that there is no such name.
    """
    folder, _, name = file.rpartition("/")
    if len(os.fsencode(name)) > _LONGEST_AWAY:
        return None
    return f"{folder}/.{name}.{content_digest(data)}{uuid.uuid4().hex[:8]}.away"


def object_name(path: str) -> str:
    """Check the relative path of an object and give it back.

    Raises:
        InvalidInputError: it is empty, absolute, ends with ``/`` or has an empty, ``.`` or ``..`` part.
    """
    if not path:
        raise InvalidInputError("An object needs a path below the store's root, not ''")
    if _NO_NAME.search(path):
        raise InvalidInputError(
            f"The path {path!r} must be relative to the store's root, without empty, '.' or '..' parts"
        )
    return path


def folder_name(path: str) -> str:
    """Check the relative path of a folder and give it back without a trailing ``/``; ``""`` is the root itself."""
    return object_name(path.removesuffix("/")) if path else ""


def inner_folder_name(path: str) -> str:
    """Check the relative path of a folder that must not be the root itself: what is deleted as a whole."""
    if not path:
        raise InvalidInputError("A store does not delete its own root; delete the folder through the store above it")
    return folder_name(path)


def join(root: str, path: str) -> str:
    """Put a checked relative path below ``root``; either may be empty."""
    return f"{root.rstrip('/')}/{path}" if root and path else root or path
