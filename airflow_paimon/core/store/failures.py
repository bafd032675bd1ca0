"""Maps failing system calls to errors of this package, the same way in every store."""

from __future__ import annotations

import errno
import io
import logging
from collections.abc import Callable
from typing import Any, BinaryIO

from airflow_paimon.core.errors import NotFoundError, OutcomeUnknownError, PaimonError, StorageError

log = logging.getLogger(__name__)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def from_os_error(error: OSError, doing: str, where: str, *, applied: bool = False) -> PaimonError:
    """Build the error to raise for ``error`` while ``doing`` (a gerund such as "writing") something to ``where``.

    Args:
        applied: The call may have taken effect although it failed: the outcome is unknown then.
    """
    reason = error.strerror or str(error) or type(error).__name__
    if applied:
        return OutcomeUnknownError(
            f"{doing.capitalize()} {where} failed, but may have taken effect ({reason}); read it before trying again"
        )
    if isinstance(error, FileNotFoundError | NotADirectoryError) and doing == "writing":
        return StorageError(f"Writing {where} failed: its folder can't be made ({reason}); check the path")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFoundError(f"{where} does not exist")
    if isinstance(error, IsADirectoryError):
        return NotFoundError(f"{where} is a folder, not an object")
    if error.errno in _FULL:
        return StorageError(
            f"No space left for {doing} {where} ({reason}); nothing was published, free space and retry"
        )
    if error.errno in _DENIED:
        return StorageError(f"Permission denied for {doing} {where} ({reason}); give this user the right and retry")
    return StorageError(f"{doing.capitalize()} {where} failed: {reason}")


class Output(io.RawIOBase):
    """A data file being written; failures are raised as errors of this package.

    A file that is left by an exception, or never closed, is discarded.
    """

    def __init__(
        self,
        inner: BinaryIO,
        *,
        fail: Callable[[Exception], PaimonError],
        finish: Callable[[], None],
        discard: Callable[[], None],
        errors: tuple[type[Exception], ...] = (OSError,),
    ) -> None:
        super().__init__()
        self._inner = inner
        self._fail = fail
        self._finish = finish
        self._discard = discard
        self._errors = errors
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        """Write all of ``data``: no short writes, so that no caller has to loop."""
        view = memoryview(data).cast("B")
        try:
            done = 0
            while done < len(view):
                done += self._inner.write(view[done:])
        except self._errors as error:
            raise self._fail(error) from error
        self._size += len(view)
        return len(view)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        try:
            self._finish()
        except self._errors as error:
            raise self._fail(error) from error

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None or self.closed:
            self.close()
            return
        self._abandon()

    def __del__(self) -> None:
        if not self.closed:
            self._abandon()

    def _abandon(self) -> None:
        """Discard the file. If that fails an orphan stays, but the original error is the one that is raised."""
        super().close()
        failures: tuple[type[Exception], ...] = (*self._errors, OSError, PaimonError)
        try:
            self._discard()
        except failures as error:
            log.info("left an unfinished file behind (%s)", error)


class RandomReads(io.RawIOBase):
    """What every file open for random reads does alike."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer)) or b""
        buffer[: len(data)] = data
        return len(data)


class Input(RandomReads):
    """Random reads from a remote object; its failures are this package's errors."""

    def __init__(
        self, inner: BinaryIO, *, fail: Callable[[Exception], PaimonError], errors: tuple[type[Exception], ...]
    ) -> None:
        super().__init__()
        self._inner = inner
        self._fail = fail
        self._errors = errors

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def read(self, size: int | None = -1) -> bytes:
        try:
            return self._inner.read(-1 if size is None else size)
        except self._errors as error:
            raise self._fail(error) from error

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._inner.close()
