"""A stub of Alibaba Cloud OSS on a free port of the loopback: no server of OSS's kind can be had.

It keeps objects in memory and knows the requests that the store makes, as OSS's reference describes them. It checks
signatures with Alibaba's own package, and ignores the condition of a put where a bucket keeps versions.

with oss_server() as server:
    store = open_store(f"{server.make_bucket()}/warehouse", server.options())
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from alibabacloud_oss_v2.signer import SignerV4
from alibabacloud_oss_v2.types import Credentials, HttpRequest, SigningContext

KEY, SECRET, REGION = "the-key", "the-very-secret-secret", "cn-test"


@dataclass
class _Object:
    data: bytes
    headers: dict[str, str]
    modified: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass
class Reply:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Refused(Exception):
    """An error of OSS's."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.reply = Reply(status, f"<Error><Code>{code}</Code><Message>{code} as OSS says</Message></Error>".encode())


@dataclass
class OssServer:
    """The buckets, and how many entries a page of a listing has at most."""

    page: int = 1000
    endpoint: str = ""
    buckets: dict[str, dict[str, _Object]] = field(default_factory=dict)
    versioned: set[str] = field(default_factory=set)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def options(self, endpoint: str = "") -> dict[str, Any]:
        """Give the options with which a store reaches the server."""
        return {"endpoint_url": endpoint or self.endpoint, "region": REGION, "key": KEY, "secret": SECRET}

    def make_bucket(self, *, versioned: bool = False) -> str:
        """Make a bucket and give its URI."""
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        self.buckets[bucket] = {}
        if versioned:
            self.versioned.add(bucket)
        return f"oss://{bucket}"

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        at = urlsplit(target)
        bucket, _, key = unquote(at.path).removeprefix("/").partition("/")
        query = dict(parse_qsl(at.query, keep_blank_values=True))
        try:
            _check_signature(method, target, headers, bucket, key)
            with self.lock:
                if bucket not in self.buckets:
                    raise Refused(404, "NoSuchBucket")
                return self._object(method, bucket, key, query, headers, body) if key else self._list(bucket, query)
        except Refused as refused:
            return refused.reply

    def _object(
        self, method: str, bucket: str, key: str, query: dict[str, str], headers: Mapping[str, str], body: bytes
    ) -> Reply:
        objects = self.buckets[bucket]
        if "uploads" in query or "uploadId" in query:
            return self._upload(method, objects, key, query, headers, body)
        if method == "PUT":
            forbids = headers.get("x-oss-forbid-overwrite") == "true" and bucket not in self.versioned
            if forbids and key in objects:
                raise Refused(409, "FileAlreadyExists")
            meta = {name: value for name, value in headers.items() if name.startswith("x-oss-meta-")}
            objects[key] = _Object(body, meta)
            return Reply(200)
        if method == "DELETE":
            objects.pop(key, None)
            return Reply(204)
        if key not in objects:
            raise Refused(404, "NoSuchKey")
        return _content(objects[key], headers)

    def _upload(
        self, method: str, objects: dict[str, _Object], key: str, query: dict[str, str], headers: Mapping[str, str],
        body: bytes,
    ) -> Reply:  # fmt: skip
        number = query.get("uploadId", "")
        if "uploads" in query:
            number = f"{uuid.uuid4().hex}+/="
            self.uploads[number] = {}
            found = f"<UploadId>{number}</UploadId>"
            return Reply(200, f"<InitiateMultipartUploadResult>{found}</InitiateMultipartUploadResult>".encode())
        if number not in self.uploads:
            raise Refused(404, "NoSuchUpload")
        if method == "PUT":
            self.uploads[number][int(query["partNumber"])] = body
        elif method == "DELETE":
            del self.uploads[number]
        elif body or headers.get("x-oss-complete-all") != "yes":
            raise Refused(400, "MalformedXML")
        else:
            parts = self.uploads.pop(number)
            objects[key] = _Object(b"".join(parts[part] for part in sorted(parts)), {})
        return Reply(204 if method == "DELETE" else 200)

    def _list(self, bucket: str, query: dict[str, str]) -> Reply:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        start, limit = query.get("continuation-token", ""), min(int(query.get("max-keys", "100")), self.page)
        entries: dict[str, _Object | None] = {}
        keys = sorted(self.buckets[bucket])
        for key in keys[bisect_left(keys, max(prefix, start)) :]:
            if not key.startswith(prefix) or len(entries) > limit:
                break
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if end < 0 else key[: end + 1]
            if name > start:
                entries[name] = self.buckets[bucket][key] if end < 0 else None
        names = sorted(entries)
        page = names[:limit]
        xml = "".join(map(_listed, page, (entries[name] for name in page)))
        if len(names) > limit:
            token = quote(page[-1], safe="")
            xml += f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
        return Reply(200, f"<ListBucketResult>{xml}</ListBucketResult>".encode())


def _listed(name: str, found: _Object | None) -> str:
    spelled = escape(quote(name, safe=""))
    if found is None:
        return f"<CommonPrefixes><Prefix>{spelled}</Prefix></CommonPrefixes>"
    modified = found.modified.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    size = len(found.data)
    return f"<Contents><Key>{spelled}</Key><LastModified>{modified}</LastModified><Size>{size}</Size></Contents>"


def _content(found: _Object, headers: Mapping[str, str]) -> Reply:
    asked, size = headers.get("range", ""), len(found.data)
    if not asked:
        return Reply(200, found.data, dict(found.headers))
    first, _, last = asked.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    if start >= size:
        if headers.get("x-oss-range-behavior") != "standard":
            return Reply(200, found.data, dict(found.headers))
        raise Refused(416, "InvalidRange")
    return Reply(206, found.data[start:end], {**found.headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"})


def _check_signature(method: str, target: str, headers: Mapping[str, str], bucket: str, key: str) -> None:
    """Sign the request again at the time that it names, and compare."""
    if "x-oss-date" not in headers:
        raise Refused(403, "AccessDenied")
    signed = {k: v for k, v in headers.items() if k.startswith("x-oss-") or k in ("content-type", "content-md5")}
    request = HttpRequest(method, f"http://oss{target}", headers=signed)
    moment = datetime.strptime(headers["x-oss-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    context = SigningContext("oss", REGION, bucket, key, request, Credentials(KEY, SECRET), signing_time=moment)
    SignerV4().sign(context)
    if request.headers["Authorization"] != headers.get("authorization"):
        raise Refused(403, "SignatureDoesNotMatch")


def _handler(server: OssServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or the body waits 40 ms behind the headers

        def answer_request(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(size)
            if len(body) < size:  # who sends it has died: nothing is stored
                self.close_connection = True
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = server.answer(self.command, self.path, headers, body)
            self.send_response_only(reply.status)
            for name, value in {"Server": "a stub of OSS", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer_request

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing."""

    return Handler


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # several processes probe at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients are killed in the middle of a request."""


@contextmanager
def oss_server(page: int = 1000) -> Iterator[OssServer]:
    """Run the stub, and give it."""
    server = OssServer(page)
    http = _Http(("127.0.0.1", 0), _handler(server))
    server.endpoint = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
