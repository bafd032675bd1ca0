"""Finds out whether a storage lets one of several conditional puts win, also when they come at once.

That can show that it doesn't, not that it always does. S3-compatible servers differ in it, and OSS's buckets.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Protocol, cast

from airflow_paimon.core.errors import UnsupportedStorageError
from airflow_paimon.core.store.base import join
from airflow_paimon.core.store.object_client import EXISTS, IN_CONFLICT, ObjectClient, RequestError
from airflow_paimon.core.store.object_store import PROBE, ObjectStore

_WRITERS = 8
_ROUNDS = 5
_KEPT_SECONDS = 30 * 24 * 3600
_REFUSED = (403, 404)


class ProbedClient(ObjectClient, Protocol):
    """A client of servers of which not all let one conditional put win."""

    condition: ClassVar[str]
    """The header of a conditional put."""
    keeps_answer: ClassVar[bool]
    """Whether an answer without a fault is kept in the bucket, for 30 days; else each process asks."""

    def endpoint(self) -> str:
        """Give the server's address."""
        ...

    def is_trusted_endpoint(self) -> bool:
        """Whether this server is known to keep its promise."""
        ...

    def get_from(self, bucket: str, key: str) -> tuple[bytes, str]:
        """Read an object, and what the server calls itself."""
        ...


class ProbedStore(ObjectStore):
    """Objects on a server that is tested before the first ``create``: ``UnsupportedStorageError`` where several puts
    win, and nothing is written.
    """

    __slots__ = ()

    way_out: ClassVar[str]
    """What a user can do whose storage is refused."""

    def create(self, path: str, data: bytes) -> None:
        self._key(path)  # checked before anything is sent
        self.before_create()
        super().create(path, data)

    def before_create(self) -> None:
        """Check once per process and bucket that the storage lets one conditional put win: else commits get lost."""
        client, question = cast(ProbedClient, self._client), (self._bucket, ProbedStore)
        if client.tried.get(question):
            return
        if fault := self._run("writing a probe to", "", lambda _: fault_of(client, self._bucket, self._prefix)):
            raise UnsupportedStorageError(
                f"The storage of {self.uri} {fault}, so a commit there could be lost; {self.way_out}"
            )
        client.tried[question] = True


def fault_of(client: ProbedClient, bucket: str, prefix: str) -> str:
    """Say what the storage of a bucket does wrong, as a predicate; nothing if nothing was found.

    Writes below ``prefix``. An answer that is kept lies at the bucket's root or, where that is refused, below
    ``prefix``.
    """
    if client.is_trusted_endpoint():
        return ""
    if not client.keeps_answer:
        return _try_once(client, bucket, prefix)
    endpoint = client.endpoint()
    name = f"{PROBE}{hashlib.sha256(endpoint.encode()).hexdigest()[:16]}.json"
    places = list(dict.fromkeys((name, join(prefix, name))))
    if any(_is_kept(client, bucket, key, endpoint) for key in places):
        return ""
    for _ in range(_ROUNDS):
        if fault := _try_once(client, bucket, prefix):
            return fault
    _keep(client, bucket, places, endpoint)
    return ""


def _try_once(client: ProbedClient, bucket: str, prefix: str) -> str:
    key = join(prefix, f"{PROBE}{uuid.uuid4().hex}")
    try:
        return _race(client, bucket, key) or _look(client, bucket, key)
    finally:
        with contextlib.suppress(RequestError):  # an object in our own folder does no harm
            client.delete(bucket, key)


def _race(client: ProbedClient, bucket: str, key: str) -> str:
    """Put different contents under one key at the same time: who was told yes must be the one who is there."""
    contents = [uuid.uuid4().hex.encode() for _ in range(_WRITERS)]
    start = threading.Barrier(_WRITERS)

    def put(content: bytes) -> str:
        start.wait()
        try:
            client.put(bucket, key, content, "probe")
        except RequestError as error:
            if error.status == EXISTS or error.code == IN_CONFLICT:
                return "lost"
            if error.status == 501:
                return "unknown"
            raise
        return "won"

    with ThreadPoolExecutor(_WRITERS) as pool:
        answers = list(pool.map(put, contents))
    if "unknown" in answers:
        return f"doesn't know {client.condition} on a put"
    found, _ = client.get(bucket, key)
    winners = [content for content, answer in zip(contents, answers, strict=True) if answer == "won"]
    # None won if the answer to the winner got lost, and the put was sent again.
    return "" if winners in ([found], []) else f"lets several puts with {client.condition} succeed at the same time"


def _look(client: ProbedClient, bucket: str, key: str) -> str:
    """Look whether what was written is listed at once, and whether its name is free again once it is deleted."""
    listed, _ = client.list_all(bucket, key, "")
    if [info.name for info in listed] != [key]:
        return "doesn't list an object right after it was written"
    try:
        client.delete(bucket, key)
    except RequestError as error:
        if error.status in _REFUSED:  # who may only add files deletes none, so names don't become free
            return ""
        raise
    try:
        client.put(bucket, key, b"", "probe")
    except RequestError as error:
        if error.status != EXISTS:
            raise
        return f"refuses a put with {client.condition} where the object was deleted"
    return ""


def _is_kept(client: ProbedClient, bucket: str, key: str, endpoint: str) -> bool:
    try:
        data, server = client.get_from(bucket, key)
    except RequestError as error:
        if error.status not in _REFUSED:
            raise
        return False
    with contextlib.suppress(ValueError, KeyError, TypeError):
        kept = json.loads(data)
        is_new = time.time() - kept["checked"] < _KEPT_SECONDS
        return bool(is_new and kept["endpoint"] == endpoint and kept["server"] == server)
    return False


def _keep(client: ProbedClient, bucket: str, places: Sequence[str], endpoint: str) -> None:
    """Keep the answer where that is allowed. It holds the server's name, which an answer to a request has."""
    for key in places:
        with contextlib.suppress(RequestError):
            client.put(bucket, key, b"{}")
            _, server = client.get_from(bucket, key)
            kept = {"endpoint": endpoint, "server": server, "checked": int(time.time())}
            client.put(bucket, key, json.dumps(kept).encode())
            return
