"""The errors that this package raises on purpose, as one tree.

PaimonError                       exit  kind              what a caller does
├── InvalidInputError             2     invalid-input     fix the request; never retry
├── NotFoundError                 2     not-found         fix the request; never retry
├── AlreadyExistsError            2     already-exists    fail, or use if_exists="skip"
├── UnsupportedError              2     unsupported       feature, storage or catalog; see the message
│   ├── UnsupportedFeatureError
│   ├── UnsupportedStorageError
│   └── UnsupportedCatalogError
│       └── NotPaimonError                            a table of another format in a Hive metastore
├── ConflictError                 3     conflict          another writer was faster: see the code
├── UnsafeOperationError          4     unsafe            refused by a safety rule; a person decides
├── OutcomeUnknownError           5     outcome-unknown   retry with the same operation id, which looks first
├── FormatError                   1     corrupt           the table's files contradict themselves
│   └── LostMetadataError                             a manifest, or a list of them, is missing
└── StorageError                  1     storage           the storage failed; retry
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, ClassVar

__all__ = [
    "AlreadyExistsError",
    "ConflictError",
    "FormatError",
    "InvalidInputError",
    "LostMetadataError",
    "NotFoundError",
    "NotPaimonError",
    "OutcomeUnknownError",
    "PaimonError",
    "StorageError",
    "UnsafeOperationError",
    "UnsupportedCatalogError",
    "UnsupportedError",
    "UnsupportedFeatureError",
    "UnsupportedStorageError",
    "error_to_json",
    "naming_table",
]


class PaimonError(Exception):
    """Root of the tree.

    ``code`` names one error, such as ``branch-conflict``: a heading of docs/troubleshooting.md. None where the kind is
    all there is to know. ``details`` holds plain JSON values that a caller may act on.
    """

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retryable: bool = True

    def __init__(self, message: str, *, code: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.details: dict[str, Any] = dict(details or {})

    def set_message(self, message: str) -> None:
        """Change the message of an error that is raised again: its code and details stay."""
        self.message, self.args = message, (message,)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.code, self.details)


@contextmanager
def naming_table(table: str) -> Iterator[None]:
    """Put the table's name before errors that don't name it: a caller may work on many tables."""
    try:
        yield
    except PaimonError as error:
        if table not in error.message:
            error.set_message(f"{table}: {error.message}")
        raise


def _rebuild(cls: type[PaimonError], message: str, code: str | None, details: dict[str, Any]) -> PaimonError:
    return cls(message, code=code, details=details)


class InvalidInputError(PaimonError, ValueError):
    """The request itself is wrong: a bad name, an unknown option, rows outside the partition."""

    kind = "invalid-input"
    exit_code = 2
    retryable = False


class NotFoundError(PaimonError, LookupError):
    """A table, branch, tag, snapshot or schema (or, at the store, an object) does not exist."""

    kind = "not-found"
    exit_code = 2
    retryable = False


class AlreadyExistsError(PaimonError):
    """The object to create exists already; in a store: put-if-absent found the path taken."""

    kind = "already-exists"
    exit_code = 2
    retryable = False


class UnsupportedError(PaimonError):
    """This can't be done correctly, so it is refused."""

    kind = "unsupported"
    exit_code = 2
    retryable = False


class UnsupportedFeatureError(UnsupportedError):
    """A table feature that the built-in engine does not read or write."""


class UnsupportedStorageError(UnsupportedError):
    """A storage that offers no put-if-absent, so a commit could be lost."""


class UnsupportedCatalogError(UnsupportedError):
    """A catalog whose commit protocol is not implemented."""


class NotPaimonError(UnsupportedCatalogError):
    """The catalog knows a table of that name, and it is of another format."""


class ConflictError(PaimonError):
    """A precondition no longer holds and nothing was published by the step that raised.

    A code other than ``commit-lost`` is of a conflict that a retry would meet again: a person decides.
    """

    kind = "conflict"
    exit_code = 3

    def __init__(self, message: str, *, code: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, code=code, details=details)
        self.retryable = code in (None, "commit-lost")


class UnsafeOperationError(PaimonError):
    """Continuing could lose a commit, delete a referenced file or return a wrong row."""

    kind = "unsafe"
    exit_code = 4
    retryable = False


class OutcomeUnknownError(PaimonError):
    """The commit may have been committed. Nothing was cleaned up; retry with the same operation id."""

    kind = "outcome-unknown"
    exit_code = 5


class FormatError(PaimonError):
    """A file of the table is truncated, corrupt or contradicts another one."""

    kind = "corrupt"


class LostMetadataError(FormatError):
    """A manifest, or a list of them, that a snapshot names is missing: it is being expired, or the table is damaged."""


class StorageError(PaimonError):
    """The storage failed in a way that may be temporary: I/O error, disk full, permission denied."""

    kind = "storage"


def error_to_json(error: BaseException) -> dict[str, Any]:
    """Return the ``error`` object of a failed operation's result (docs/contributing/design.md, One result)."""
    if isinstance(error, PaimonError):
        code = {"code": error.code} if error.code else {}
        return {"kind": error.kind, "class": type(error).__name__, **code, "message": error.message, **error.details}
    return {"kind": "error", "class": type(error).__name__, "message": str(error) or type(error).__name__}


def first_few(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """List texts in a message, the first ones if there are more than ``most``."""
    left = len(texts) - most
    more = f"{between.strip(', ')} and {left} more" if left > 0 else ""
    return between.join(texts[:most]) + more


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Name in brackets, after an unknown name, the known one that is most like it; an empty text if none is."""
    near = get_close_matches(name, list(known), 1)
    return f" (did you mean {near[0]}?)" if near else ""
