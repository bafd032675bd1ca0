"""Small requests to S3 without the layers of botocore: they cost a third of the CPU.

The first request of a kind to a bucket is made by the client of s3fs. What it sends is kept: the address, the headers,
and who signs. The next ones differ in key, body and signature only. So it is botocore that decides how the storage is
reached; and whatever is not answered plainly (with success, "no such key", or "it exists already") is asked again by
that client, which knows about retries, redirects and clocks. Where it signs in another way, goes through a
proxy, or may try only once, it makes all requests.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import socket
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from airflow_paimon.core.store.http_client import Answer
from airflow_paimon.core.store.object_client import EXISTS
from airflow_paimon.core.store.threads import AT_ONCE

NO_ANSWER = 0
_METHODS = {"GetObject": "GET", "HeadObject": "HEAD", "ListObjectsV2": "GET", "PutObject": "PUT"}
_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/,]+)/\d+/([^/,]+)/s3/aws4_request,.*")
_OF_ONE_REQUEST = re.compile(
    r"authorization|host|expect|range|if-none-match|content-(length|md5|encoding)|transfer-encoding|amz-sdk-.*"
    r"|x-amz-(date|content-sha256|security-token|decoded-content-length|trailer|meta-.*|checksum-(?!mode).*)"
)
_CRC = "x-amz-checksum-crc32"
_CHECKSUMS: Mapping[str, Callable[[bytes], bytes]] = {
    _CRC: lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "x-amz-checksum-sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "x-amz-checksum-sha256": lambda data: hashlib.sha256(data).digest(),
}
_PLAIN = (404, EXISTS, 416)
"""Answers that refuse nothing; the last one is for a range beyond the end, as of any in an empty object."""
_SIGNER_S = 30.0
"""How long who signs is kept: credentials that expire are refreshed minutes before."""
_MOST_REFUSALS = 3
"""After so many refusals in a row all requests are made by the client of s3fs."""

_watched: ContextVar[_Sent | None] = ContextVar("watched", default=None)


@dataclass(slots=True)
class _Sent:
    """What the client of s3fs sends for a request: its signer, and the request as it is sent."""

    signer: Any = None
    request: Any = None


@dataclass(frozen=True, slots=True)
class _Kind:
    """What requests of an operation on a bucket have in common. ``address``: what a key, or a query, is added to."""

    address: str
    headers: Mapping[str, str]
    with_crc: bool
    region: str
    signer: Any


class Direct:
    """Requests of one process, from any thread, beside a file system of s3fs.

    ``run`` runs a coroutine on its event loop.
    """

    def __init__(self, fs: Any, run: Callable[[Callable[[Any], Awaitable[Any]]], Any]) -> None:
        self._fs = fs
        self._run = run
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._auths: dict[str, tuple[float, Any]] = {}
        self._lock = threading.Lock()
        self._session: Any = None
        self._watching: Any = None
        self._refusals = 0

    @contextmanager
    def watch(self, client: Any, operation: str, bucket: str, key: str) -> Iterator[None]:
        """Learn from the request that s3fs's client makes in the block how others of its kind are made."""
        if operation not in _METHODS or (operation, bucket) in self._kinds or self._refusals >= _MOST_REFUSALS:
            yield
            return
        self._register(client)
        sent = _Sent()
        token = _watched.set(sent)
        try:
            yield
        finally:
            _watched.reset(token)
        with suppress(AttributeError, ImportError, KeyError, TypeError):  # another botocore: all goes over its client
            kind = self._learnt(client, operation, key, sent)
            if kind is not None:
                self._kinds[operation, bucket] = kind

    def send(
        self,
        operation: str,
        bucket: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer | None:
        """Send a request once; None: nothing was sent.

        An answer with a status other than 2xx, ``404`` for a key that isn't there, and ``EXISTS`` means that s3fs's
        client is to be asked; ``NO_ANSWER`` that it is not known what has become of the request.
        """
        kind = self._kinds.get((operation, bucket))
        if kind is None:
            return None
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        method = _METHODS[operation]
        own = {**kind.headers, **(headers or {})}
        if kind.with_crc and method == "PUT":
            own[_CRC] = base64.b64encode(_CHECKSUMS[_CRC](body)).decode()
        request = AWSRequest(method=method, url=kind.address + _path_and_query(key, query), headers=own, data=body)
        try:
            auth = self._auth(kind)
            if auth is None:
                return None
            auth.add_auth(request)
        except (BotoCoreError, OSError):  # s3fs's client says what is wrong with the credentials
            return None
        answer = self._answer(request.prepare())
        self._note(answer.status, bucket)
        return answer

    def _answer(self, prepared: Any) -> Answer:
        from botocore.exceptions import BotoCoreError

        try:
            response = self._session.send(prepared)
            answer = Answer(response.status_code, response.headers, response.content)
        except (BotoCoreError, OSError):
            return Answer(NO_ANSWER, {}, b"")
        return answer if prepared.method != "GET" or _is_whole(answer) else Answer(NO_ANSWER, {}, b"")

    def _note(self, status: int, bucket: str) -> None:
        if status < 300 or status in _PLAIN:
            self._refusals = 0
        elif status < 500:  # another address, region or login than the last time
            self._refusals += 1
            for kind in [k for k in list(self._kinds) if k[1] == bucket]:  # other threads add some meanwhile
                self._kinds.pop(kind, None)
            self._auths.clear()

    def _auth(self, kind: _Kind) -> Any:
        """Return what signs with the credentials of now; None: it is not S3's usual signature."""
        known = self._auths.get(kind.region)
        if known is not None and time.monotonic() - known[0] < _SIGNER_S:
            return known[1]
        from botocore.auth import S3SigV4Auth

        async def current(_: Any) -> Any:
            return await kind.signer.get_auth_instance("s3", kind.region, "s3v4")

        auth = self._run(current)
        auth = auth if type(auth) is S3SigV4Auth else None
        self._auths[kind.region] = time.monotonic(), auth
        return auth

    def _register(self, client: Any) -> None:
        with self._lock:
            if self._watching is client:
                return
            self._watching = client
        for event, note in (("before-sign.s3", _note_signer), ("before-send.s3", _note_request)):
            client.meta.events.register(event, note, unique_id=f"airflow-paimon-{event}")

    def _learnt(self, client: Any, operation: str, key: str, sent: _Sent) -> _Kind | None:
        request, signer = sent.request, sent.signer
        if request is None or not hasattr(signer, "get_auth_instance") or request.method != _METHODS[operation]:
            return None
        headers = {name.lower(): _text(value) for name, value in request.headers.items()}
        signed = _SIGNED.fullmatch(headers.get("authorization", ""))
        address, _, query = request.url.partition("?")
        ending = _path_and_query(key, None)
        usual = self._makes_the_same(operation, headers)
        usual &= bool(query) if operation == "ListObjectsV2" else not query and address.endswith(ending)
        encoding = headers.get("content-encoding", "aws-chunked")
        if not (signed and usual and encoding == "aws-chunked" and "x-amz-s3session-token" not in headers):
            return None
        if not self._connected(client, address):
            return None
        return _Kind(
            address=address if operation == "ListObjectsV2" else address.removesuffix(ending),
            headers={n: v for n, v in headers.items() if not _OF_ONE_REQUEST.fullmatch(n)},
            with_crc=_CRC in headers or headers.get("x-amz-trailer") == _CRC,
            region=signed[2],
            signer=signer,
        )

    def _makes_the_same(self, operation: str, headers: Mapping[str, str]) -> bool:
        """Whether headers that depend on the content are only those that are made here, too."""
        kept = operation != "PutObject" or "Metadata" not in self._fs.s3_additional_kwargs
        return kept and headers.get("x-amz-sdk-checksum-algorithm", "CRC32") == "CRC32"

    def _connected(self, client: Any, address: str) -> bool:
        """Get connections ready, as the client has them; False: there is something special about them."""
        from botocore.httpsession import URLLib3Session
        from botocore.utils import get_environ_proxies

        config = client.meta.config
        proxied = config.proxies or get_environ_proxies(address)
        if proxied or config.client_cert or (config.retries or {}).get("total_max_attempts") == 1:
            return False
        with self._lock:
            if self._session is None:
                self._session = URLLib3Session(
                    verify=self._verified_by(),
                    timeout=(config.connect_timeout, config.read_timeout),
                    max_pool_connections=max(config.max_pool_connections, AT_ONCE),
                    socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
                )
        return True

    def _verified_by(self) -> Any:
        """Return what the certificates of servers are checked with, as botocore chooses it."""
        given = self._fs.client_kwargs.get("verify")
        known = self._fs.session.get_config_variable("ca_bundle") if given is None else given
        return os.environ.get("REQUESTS_CA_BUNDLE", True) if known is None else known


def _note_signer(request_signer: Any, **_: Any) -> None:
    sent = _watched.get()
    if sent is not None:
        sent.signer = request_signer


def _note_request(request: Any, **_: Any) -> None:
    sent = _watched.get()
    if sent is not None:
        sent.request = request


def _path_and_query(key: str, query: Mapping[str, str] | None) -> str:
    if query is None:
        return f"/{quote(key, safe='-._~/')}"
    return "?" + "&".join(f"{name}={quote(query[name], safe='-._~')}" for name in sorted(query))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_whole(answer: Answer) -> bool:
    """Whether the body has the size that was announced and, where it is a whole object, its checksums."""
    length = answer.headers.get("Content-Length")
    if length is not None and length != str(len(answer.body)):
        return False
    if answer.status != 200:
        return True
    sums = [(answer.headers.get(name, "-"), checksum) for name, checksum in _CHECKSUMS.items()]
    return all("-" in expected or expected == base64.b64encode(made(answer.body)).decode() for expected, made in sums)
