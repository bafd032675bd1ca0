"""The local file system (and what is mounted there), by plain system calls."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, BinaryIO

from airflow_paimon.core.errors import (
    AlreadyExistsError,
    OutcomeUnknownError,
    PaimonError,
    StorageError,
    UnsafeOperationError,
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
from airflow_paimon.core.store.failures import Output, from_os_error

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK})
# Errors of link(2) after which the name certainly does not exist; after others (EIO, ESTALE, ...) it may exist on NFS.
_NOT_LINKED = frozenset({errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENAMETOOLONG})
# Errors of file systems that can't sync a folder; they are ignored.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP})
_TRIES = 5
_FEW = 250
"""Above so many names, of folders too, a folder is not listed for ``names_if_few``."""
_PART = 10_000
"""Files of a part of a listing, at least."""


class LocalStore(Store):
    """Files below one folder. ``create`` is ``link(2)``: atomic, exclusive, and complete even after a power failure.

    Another engine's ``rename`` (Paimon's Java client commits that way) can still replace a created file.
    Below the folder no symbolic link is followed: whatever would lead through one is refused; a listing names a link,
    and a deletion takes away the link itself. The folder itself, and those above it, may be links.
    Leftovers of a killed writer are hidden files ``.<name>.<uuid>.tmp``; listings show them.
    """

    __slots__ = ("_prefix", "_root")

    def __init__(self, root: str) -> None:
        path = os.path.abspath(root)
        self._root = "/" + path.lstrip("/")
        self._prefix = self._root.rstrip("/") + "/"

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalStore, (self._root,)

    @property
    def uri(self) -> str:
        return f"file://{self._root}"

    def child(self, path: str) -> LocalStore:
        name = folder_name(path)
        return LocalStore(self._prefix + name if name else self._root)

    def read(self, path: str) -> bytes:
        try:
            with open(self._object(path), "rb", buffering=0, opener=_no_link) as stream:
                return stream.readall()
        except OSError as error:
            raise self._failed(error, "reading", path) from error

    def exists(self, path: str) -> bool:
        file = self._object(path)
        try:
            mode = os.lstat(file).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._failed(error, "looking at", path) from error
        if stat.S_ISLNK(mode):
            raise _linked(file)
        return not stat.S_ISDIR(mode)

    def names(self, path: str) -> list[str]:
        folder = self._folder(path)
        try:
            with os.scandir(folder) as entries:
                found = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
            return _without_away(folder, found)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._failed(error, "listing", path) from error

    def names_if_few(self, path: str) -> list[str] | None:
        folder = self._folder(path)
        try:
            with os.scandir(folder) as entries:
                some = list(islice(entries, _FEW + 1))
                if len(some) > _FEW:
                    return None
                return _without_away(folder, [e.name for e in some if not e.is_dir(follow_symlinks=False)])
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._failed(error, "listing", path) from error

    def walk(self, path: str) -> list[str]:
        return sorted(name for names in self._walk(path) for name in names)

    def _walk(self, path: str) -> Iterator[list[str]]:
        """List the files of one folder after the other."""

        def unreadable(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise self._failed(error, "listing", path) from error

        for parent, _, found in os.walk(self._folder(path), onerror=unreadable):
            above, files = os.path.relpath(parent, self._root), _without_away(parent, found)
            yield files if above == "." else [f"{above}/{name}" for name in files]

    def files(self, path: str) -> Sequence[FileInfo]:
        return self._infos(path, self.walk(path))

    def files_in_parts(self, path: str) -> Iterator[Sequence[FileInfo]]:
        some: list[str] = []
        for names in self._walk(path):
            some += names
            if len(some) >= _PART:
                yield self._infos(path, some)
                some = []
        yield self._infos(path, some)

    def _infos(self, path: str, names: Iterable[str]) -> list[FileInfo]:
        found = []
        for name in names:
            try:
                status = _status(os.path.join(self._root, name))
            except (FileNotFoundError, NotADirectoryError):  # deleted by another process meanwhile
                continue
            except OSError as error:
                raise self._failed(error, "listing", path) from error
            found.append(FileInfo(name, False, status.st_size, status.st_mtime_ns // 1_000_000))
        return found

    def divided(self, path: str) -> tuple[Sequence[str], Sequence[FileInfo]]:
        folders, objects = super().divided(path)
        # ``files`` follows no link to a folder
        return [f for f in folders if not os.path.islink(os.path.join(self._root, f))], objects

    def list(self, path: str) -> list[FileInfo]:
        folder = self._folder(path)
        found = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # deleted by another process meanwhile
                        status = _status(entry.path) if entry.is_symlink() else entry.stat()
                        is_dir = entry.is_dir()  # a link to a folder is one, so that who goes into it is refused
                        size = 0 if is_dir else status.st_size
                        found.append(FileInfo(entry.name, is_dir, size, status.st_mtime_ns // 1_000_000))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._failed(error, "listing", path) from error
        known = {info.name: info for info in found}
        names = _without_away(folder, [*known])
        back = self._infos(path, [join(path.rstrip("/"), name) for name in names if name not in known])
        found = [known[name] for name in names if name in known]
        found += [replace(info, name=info.name.rpartition("/")[2]) for info in back]
        return sorted(found, key=lambda info: info.name)

    def create(self, path: str, data: bytes) -> None:
        target = self._object(path)
        temp = self._write_temp(target, path, data)
        try:
            self._link(temp, target, path)
        finally:
            _unlink_quietly(temp)
        self._sync_folder(os.path.dirname(target), path)

    def create_many(self, files: Mapping[str, bytes]) -> None:
        targets = {self._object(path): path for path in files}
        for target, path in targets.items():
            try:
                _write_new(target, files[path])
            except FileExistsError as error:
                raise AlreadyExistsError(f"{join(self.uri, path)} exists already") from error
            except OSError as error:
                _unlink_quietly(target)
                raise self._failed(error, "writing", path) from error
            except BaseException:
                _unlink_quietly(target)
                raise
        for folder, path in {os.path.dirname(target): path for target, path in targets.items()}.items():
            self._sync_folder(folder, path)

    def hint(self, path: str, data: bytes) -> None:
        self._replace(path, data, durable=False)

    def replace(self, path: str, data: bytes) -> None:
        self._replace(path, data, durable=True)

    def _replace(self, path: str, data: bytes, *, durable: bool) -> None:
        target = self._object(path)
        temp = self._write_temp(target, path, data, durable=durable)
        try:
            os.replace(temp, target)
        except OSError as error:
            _unlink_quietly(temp)
            if isinstance(error, IsADirectoryError):
                raise StorageError(f"{join(self.uri, path)} is a folder and can't be replaced by a file") from error
            raise self._failed(error, "replacing", path) from error
        except BaseException:
            _unlink_quietly(temp)
            raise
        if durable:
            self._sync_folder(os.path.dirname(target), path)

    def delete(self, path: str) -> None:
        file = self._object(path)
        try:
            os.unlink(file)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        except OSError as error:
            raise self._failed(error, "deleting", path) from error

    def delete_same(self, path: str, data: bytes) -> bool | None:
        """Rename the file away if it is the one, and look again at what was renamed: another one gets its name back."""
        found = read_if_exists(self, path)
        if found is None:
            return None
        if found != data:
            return False
        file = self._object(path)
        away = set_aside_path(file, data)
        if away is None:
            return super().delete_same(path, data)
        try:
            os.rename(file, away)
        except FileNotFoundError:
            if not os.path.lexists(away):  # it is there if NFS has repeated a request whose response was lost
                return None  # another process has deleted it
        except OSError as error:
            raise self._failed(error, "deleting", path) from error
        try:
            return _put_back(away)
        except OSError as error:
            raise OutcomeUnknownError(
                f"{join(self.uri, path)} was renamed to be deleted, and may have been replaced by another process "
                f"before ({error.strerror}). If {away} exists, the next listing of its folder deletes or restores it"
            ) from error

    def check_reach(self, paths: Iterable[str]) -> None:
        for folder in {path.rpartition("/")[0] for path in paths}:
            self._refuse_links(folder)

    def delete_empty(self, path: str) -> None:
        folder = self._folder(inner_folder_name(path))
        for parent, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):  # something is in it
                os.rmdir(parent)

    def open_input(self, path: str) -> Any:
        """Open for random reads (``pread``, no lock, no copy through Python)."""
        from pyarrow import OSFile  # imported here because it takes 0.4 s, and commits and sensors don't need it

        file = self._object(path)
        if os.path.islink(file):
            raise _linked(file)
        try:
            return OSFile(file, "rb")
        except OSError as error:
            is_dir = os.path.isdir(file)  # pyarrow reports this only in its message
            raise self._failed(IsADirectoryError() if is_dir else error, "reading", path) from error

    def open_output(self, path: str) -> BinaryIO:
        """Open a new file; closing it makes it durable. ``AlreadyExistsError`` if it exists."""
        target = self._object(path)
        try:
            stream = os.fdopen(_open_new(target), "wb", buffering=0)
        except FileExistsError as error:
            raise AlreadyExistsError(f"{join(self.uri, path)} exists already") from error
        except OSError as error:
            raise self._failed(error, "writing", path) from error

        def finish() -> None:
            with stream:
                os.fsync(stream.fileno())
            _fsync_folder(os.path.dirname(target))

        def discard() -> None:
            stream.close()
            _unlink_quietly(target)

        return Output(stream, fail=lambda e: self._failed(e, "writing", path), finish=finish, discard=discard)  # type: ignore[return-value]

    def _object(self, path: str) -> str:
        name = object_name(path)
        self._refuse_links(name.rpartition("/")[0])
        return self._prefix + name

    def _folder(self, path: str) -> str:
        name = folder_name(path)
        self._refuse_links(name)
        return self._prefix + name if name else self._root

    def _refuse_links(self, folder: str) -> None:
        """Refuse a folder that is reached through a link.

        Raises:
            UnsafeOperationError: names the link.
        """
        at = self._prefix
        for part in folder.split("/") if folder else ():
            at += part
            if os.path.islink(at):
                raise _linked(at)
            at += "/"

    def _failed(self, error: Exception, doing: str, path: str) -> PaimonError:
        assert isinstance(error, OSError)
        if error.errno == errno.ELOOP and os.path.islink(file := self._prefix + path):
            return _linked(file)
        return from_os_error(error, doing, join(self.uri, path))

    def _write_temp(self, target: str, path: str, data: bytes, *, durable: bool = True) -> str:
        """Write ``data`` to a temporary file beside ``target``; return its name. A failure leaves no file."""
        temp = temporary_path(target)
        try:
            _write_new(temp, data, durable=durable)
        except OSError as error:
            _unlink_quietly(temp)
            raise self._failed(error, "writing", path) from error
        except BaseException:
            _unlink_quietly(temp)
            raise
        return temp

    def _link(self, temp: str, target: str, path: str) -> None:
        where = join(self.uri, path)
        try:
            os.link(temp, target)
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise UnsupportedStorageError(
                    f"The file system of {where} has no hard links, so a commit there could be lost; "
                    "use a POSIX file system or an s3:// warehouse"
                ) from error
            if error.errno in _NOT_LINKED:
                raise self._failed(error, "creating", path) from error
            # NFS may repeat a request whose response was lost, and report the second result; two links mean success.
            try:
                linked = os.stat(temp).st_nlink > 1
            except OSError as doubt:
                raise from_os_error(doubt, "creating", where, applied=True) from error
            if linked:
                return
            if isinstance(error, FileExistsError):
                raise AlreadyExistsError(f"{where} exists already") from error
            raise self._failed(error, "creating", path) from error

    def _sync_folder(self, folder: str, path: str) -> None:
        try:
            _fsync_folder(folder)
        except FileNotFoundError as error:
            raise OutcomeUnknownError(
                f"The folder of {join(self.uri, path)} was deleted while it was written"
            ) from error
        except OSError as error:
            raise from_os_error(error, "writing", join(self.uri, path), applied=True) from error


def _without_away(folder: str, names: list[str]) -> list[str]:
    """Return the names in a folder once each file that is ``AWAY`` is deleted or has its name back, if that can be."""
    if not any(name.endswith(".away") for name in names):
        return names
    found = {}
    for name in names:
        away = AWAY.fullmatch(name)
        if away is None:
            found[name] = True
            continue
        with contextlib.suppress(OSError):  # it stays, as where nothing can be written
            found[away[1]] = not _put_back(f"{folder}/{name}") or away[1] in found
    return [name for name, there in found.items() if there]


def _put_back(away: str) -> bool:
    """Delete a file that is ``AWAY`` if it is the one that was to be deleted. False: it is not, and has its name back.

    Several processes may do so at once.

    Raises:
        OSError: it failed, or another file has got the name since; nothing was deleted.
    """
    folder, _, name = away.rpartition("/")
    found = AWAY.fullmatch(name)
    assert found is not None
    file = f"{folder}/{found[1]}"
    with contextlib.suppress(FileNotFoundError):  # another process has just done it
        with open(away, "rb", buffering=0, opener=_no_link) as stream:
            same = content_digest(stream.readall()) == found[2]
        if not same:
            try:
                os.link(away, file, follow_symlinks=False)
            except FileExistsError:
                if not os.path.samefile(away, file):
                    raise
        os.unlink(away)
        return same
    return not os.path.lexists(file)


def _no_link(file: str, flags: int) -> int:
    return os.open(file, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _status(file: str) -> os.stat_result:
    """Look at a file, at a link itself; a link to nothing is not there."""
    status = os.lstat(file)
    if stat.S_ISLNK(status.st_mode):
        os.stat(file)
    return status


def _linked(file: str) -> UnsafeOperationError:
    return UnsafeOperationError(
        f"{file} is a symbolic link; links below a table's folder are not followed, as they may lead anywhere. "
        "Replace it by its target, or by a bind mount; the table's folder itself may be a link",
        code="symbolic-link",
    )


def _open_new(file: str) -> int:
    """Open a file that must not exist, creating its folders; retried, as others may delete a folder meanwhile."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return os.open(file, flags, 0o666)
        _make_folders(os.path.dirname(file))
    return os.open(file, flags, 0o666)


def _write_new(file: str, data: bytes, *, durable: bool = True) -> None:
    descriptor = _open_new(file)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folders(folder: str) -> None:
    """Create a folder and its parents, and sync the parent of each new one."""
    parent = os.path.dirname(folder)
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    except FileNotFoundError:
        if parent == folder:
            raise
        _make_folders(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
    _fsync_folder(parent)


def _fsync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def _unlink_quietly(file: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(file)
