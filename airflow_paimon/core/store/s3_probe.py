"""Finds out whether an S3-compatible storage lets one of several conditional puts win, also when they come at once.

That can show that it doesn't, not that it always does. An answer without a fault is kept in the bucket for 30 days.
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

from airflow_paimon.core.store.base import join
from airflow_paimon.core.store.object_client import EXISTS, RequestError
from airflow_paimon.core.store.s3_client import IN_CONFLICT, Client

_FOLDER = "_airflow_paimon"
_WRITERS = 8
_ROUNDS = 5
_KEPT_SECONDS = 30 * 24 * 3600
_REFUSED = (403, 404)


def fault_of(client: Client, bucket: str, prefix: str) -> str:
    """Say what the storage of a bucket does wrong, as a predicate; nothing if nothing was found.

    Writes below ``prefix``. The answer lies at the bucket's root or, where that is refused, below ``prefix``.
    """
    endpoint = client.endpoint()
    if client.is_trusted_endpoint():
        return ""
    name = f"{_FOLDER}/probe-{hashlib.sha256(endpoint.encode()).hexdigest()[:16]}.json"
    places = list(dict.fromkeys((name, join(prefix, name))))
    if any(_is_kept(client, bucket, key, endpoint) for key in places):
        return ""
    for _ in range(_ROUNDS):
        key = join(prefix, f"{_FOLDER}/probe-{uuid.uuid4().hex}")
        try:
            fault = _race(client, bucket, key) or _look(client, bucket, key)
        finally:
            with contextlib.suppress(RequestError):  # an object in our own folder does no harm
                client.delete(bucket, key)
        if fault:
            return fault
    _keep(client, bucket, places, endpoint)
    return ""


def _race(client: Client, bucket: str, key: str) -> str:
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
        return "doesn't know If-None-Match on a put"
    found, _ = client.get(bucket, key)
    winners = [content for content, answer in zip(contents, answers, strict=True) if answer == "won"]
    # None won if the answer to the winner got lost, and the put was sent again.
    return "" if winners in ([found], []) else "lets several puts with If-None-Match win at once"


def _look(client: Client, bucket: str, key: str) -> str:
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
        return "refuses a put with If-None-Match where the object was deleted"
    return ""


def _is_kept(client: Client, bucket: str, key: str, endpoint: str) -> bool:
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


def _keep(client: Client, bucket: str, places: Sequence[str], endpoint: str) -> None:
    """Keep the answer where that is allowed. It holds the server's name, which an answer to a request has."""
    for key in places:
        with contextlib.suppress(RequestError):
            client.put(bucket, key, b"{}")
            _, server = client.get_from(bucket, key)
            kept = {"endpoint": endpoint, "server": server, "checked": int(time.time())}
            client.put(bucket, key, json.dumps(kept).encode())
            return
