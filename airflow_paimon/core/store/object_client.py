"""What a storage of objects is asked for, whatever its protocol, and the one error that this raises."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Protocol, TypeVar

from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.core.store.base import FileInfo
from airflow_paimon.core.store.threads import map_parallel

K = TypeVar("K")
T = TypeVar("T")
Listing = tuple[list[FileInfo], list[str]]
"""Objects by their whole keys, and the folders, each of which ends with ``/``. A key that ends so marks a folder."""
Fail = Callable[[Any], PaimonError]
"""Makes a failed request an error of this package."""

TOKEN = "airflow-paimon-create"
"""Metadata of every created object: which call made it. It identifies the writer when the response to a put is lost."""
PART = 16 * 2**20
"""Bytes of a part of an upload; Google takes multiples of 256 KiB."""
AT_ONCE = 16
"""Requests that run at the same time; as many connections are kept open."""
NO_BUCKET = "NoSuchBucket"
EXISTS = 412
IN_CONFLICT = "ConditionalRequestConflict"
_PAUSE = 0.25
"""Seconds before the second try; each further pause is twice as long. Google allows one write a second to one name."""


class RequestError(Exception):
    """A request that failed.

    ``status`` is HTTP's, 0 if there was no answer, ``EXISTS`` from any storage that has the object already; ``code`` is
    the storage's own word, ``NO_BUCKET`` from any that has no such bucket; ``applied``: it may have taken effect.
    """

    def __init__(self, status: int, reason: str, *, applied: bool = False, code: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.applied = applied


def environment_of(prefix: str) -> tuple[tuple[str, str], ...]:
    """Return the variables with a prefix. Only their values are read, as this is asked for each request; another thread
    may remove one meanwhile.
    """
    found = ((name, os.environ.get(name)) for name in sorted(n for n in os.environ if n.startswith(prefix)))
    return tuple((name, value) for name, value in found if value is not None)


OurWords = Callable[[str, Any], tuple[str | None, Any]]
"""Gives our name and value of a storage option: "" for one on which nothing depends, None for an unknown one."""


def in_our_words(storage: str, options: Mapping[str, Any], our_words: OurWords, known: Iterable[str]) -> dict[str, Any]:
    """Return storage options by our names, without those that are None. ``known``: the names that there are.

    Raises:
        InvalidInputError: one is unknown (a typo must not fall back to other credentials), or has another value by
            another of its names.
    """
    found: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    unknown = []
    for name, given in options.items():
        ours, value = our_words(name, given)
        if ours is None:
            unknown.append(name)
        elif ours and value is not None:
            if found.setdefault(ours, value) != value:
                raise InvalidInputError(
                    f"The storage options {given_as[ours]} and {name} of {storage} are two names of one option, with "
                    "different values; give one of them"
                )
            given_as[ours] = name
    if unknown:
        raise InvalidInputError(
            f"Unknown storage option for {storage}: {', '.join(sorted(unknown))}; known are {', '.join(known)}"
        )
    return found


def as_json(scheme: str, options: Mapping[str, Any]) -> str:
    """Check what all storages take, and give checked options as canonical JSON, the form that a store keeps.

    Raises:
        InvalidInputError: an option is not what it must be.
    """
    endpoint = options.get("endpoint_url")
    if endpoint and ("@" in endpoint or "://" not in endpoint):
        raise InvalidInputError("The storage option endpoint_url must look like http://host:port, without credentials")
    if not isinstance(options.get("tries", 1), int) or not 1 <= options.get("tries", 1) <= 10:
        raise InvalidInputError("The storage option 'tries' must be a whole number from 1 to 10")
    try:
        return json.dumps(options, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"Storage options for {scheme}:// must be plain JSON values") from error


class ObjectClient(Protocol):
    """Requests about the objects of a bucket (a container). Raises only ``RequestError``."""

    tried: dict[tuple[str, object], bool]
    """What this process has found out of buckets, by bucket and question."""

    def get(self, bucket: str, key: str, byte_range: str = "") -> tuple[bytes, int]:
        """Read an object, or a range of it (an HTTP ``Range`` value); give it with the whole object's size."""
        ...

    def get_many(self, bucket: str, keys: Sequence[str]) -> list[bytes]:
        return map_parallel(lambda key: self.get(bucket, key)[0], keys, AT_ONCE)

    def tail(self, bucket: str, key: str, size: int) -> tuple[bytes, int]:
        """Read the last bytes of an object, as ``get`` does."""
        return self.get(bucket, key, f"bytes=-{size}")

    def head(self, bucket: str, key: str) -> str | None:
        """Look whether an object is there; give the token of the call that created it."""
        ...

    def is_from(self, bucket: str, key: str, token: str, data: bytes) -> bool:
        """Whether the object that is there was written by the put of ``data`` with this token."""
        return self.head(bucket, key) == token

    def put(self, bucket: str, key: str, data: bytes, token: str = "") -> None:
        """Write an object with one request; with a token only if there is none, which ``EXISTS`` says."""
        ...

    def upload(self, bucket: str, key: str, fail: Fail) -> BinaryIO:
        """Open a new object, which is uploaded in parts of ``PART`` bytes and visible once closed."""
        ...

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object; a missing one is not an error."""
        ...

    def get_version(self, bucket: str, key: str) -> tuple[bytes, str]:
        """Read an object, with what ``delete_version`` and ``put_version`` take; "" where they take no condition."""
        return self.get(bucket, key)[0], ""

    def put_version(self, bucket: str, key: str, data: bytes, version: str) -> None:
        """Replace an object if it is still this one; else ``EXISTS``, or 404 where there is none."""
        raise RequestError(501, "puts take no condition here but that there is no object")

    def delete_version(self, bucket: str, key: str, version: str) -> None:
        """Delete an object if it is still this one; else ``EXISTS``, or 404 where there is none."""
        raise RequestError(501, "deletions take no condition here")

    def list_all(self, bucket: str, prefix: str, delimiter: str, limit: int | None = None) -> Listing:
        """List the objects that start with ``prefix``, and, with a ``delimiter``, the folders.

        ``limit``: ask for no further page once there are more objects.
        """
        ...


def is_enough(objects: Sequence[FileInfo], limit: int | None) -> bool:
    """Whether a listing has found more objects than ``limit`` (None: all are wanted)."""
    return limit is not None and len(objects) > limit


def pause(tried: int) -> None:
    """Wait before the next try; a random share, so that writers that collided don't meet again."""
    time.sleep(_PAUSE * 2 ** (tried - 1) * random.uniform(0.5, 1.0))
