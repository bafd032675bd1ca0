"""Requests to S3-compatible storages, over the client that s3fs sets up."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, BinaryIO, ClassVar, TypeVar
from urllib.parse import urlsplit

from airflow_paimon.core.errors import UnsupportedStorageError
from airflow_paimon.core.store.base import FileInfo
from airflow_paimon.core.store.failures import Output
from airflow_paimon.core.store.object_client import (
    IN_CONFLICT,
    PART,
    TOKEN,
    Fail,
    Listing,
    ObjectClient,
    RequestError,
    as_json,
    in_our_words,
    is_enough,
)

T = TypeVar("T")

_OPTIONS = frozenset({
    "anon", "client_kwargs", "config_kwargs", "endpoint_url", "key", "profile", "region", "requester_pays",
    "s3_additional_kwargs", "secret", "token", "use_ssl",
})  # fmt: skip
_OF_JAVA = {
    "access.key": "key",
    "access-key": "key",
    "secret.key": "secret",
    "secret-key": "secret",
    "session.token": "token",
    "endpoint": "endpoint_url",
    "endpoint.region": "region",
    "path.style.access": "path_style",
    "path-style-access": "path_style",
}
_JAVA_OPTIONS = {f"{prefix}{name}": ours for prefix in ("s3.", "s3a.", "fs.s3a.") for name, ours in _OF_JAVA.items()}
"""What Paimon's Java engine calls them."""
_KNOWN = [
    *sorted(_OPTIONS), "Paimon's s3.access-key", "s3.secret-key", "s3.session.token", "s3.endpoint",
    "s3.endpoint.region", "s3.path.style.access",
]  # fmt: skip
_CONFIG = {
    "connect_timeout": 5,
    "read_timeout": 30,
    "max_pool_connections": 32,
    "retries": {"mode": "standard", "total_max_attempts": 4},
}
_BODY_TRIES = 3
_UNKNOWN = 401
_MISSING = 404
_DENIED = 403
_REFUSED = (400, 401, 403)
_LONGEST_MESSAGE = 300


def our_words(name: str, value: Any) -> tuple[str | None, Any]:
    """Translate a storage option: see ``OurWords``."""
    ours = name if name in _OPTIONS else _JAVA_OPTIONS.get(name)
    if ours == "path_style":
        return ours, str(value).lower()
    is_host = ours == "endpoint_url" != name and value and "://" not in str(value)
    return ours, f"https://{value}" if is_host else value


def checked_options(options: Mapping[str, Any] | None) -> str:
    """Check storage options and return them as canonical JSON, the form that a store keeps. Java's names become ours.

    Raises:
        InvalidInputError: see ``in_our_words``, or one is not a JSON value.
    """
    given = in_our_words("s3://", options or {}, our_words, _KNOWN)
    if given.pop("path_style", "") == "true":
        config = given.get("config_kwargs") or {}
        given["config_kwargs"] = {**config, "s3": {"addressing_style": "path", **config.get("s3", {})}}
    return as_json("s3", given)


def import_s3fs() -> Any:
    """Import s3fs on first use: that takes most of a second."""
    try:
        import s3fs
    except ImportError as error:
        raise UnsupportedStorageError("s3:// needs the package s3fs: pip install 'airflow-paimon[s3]'") from error
    return s3fs


def new_client(given: dict[str, Any]) -> S3Client:
    """Make a client for checked options."""
    client = given.pop("client_kwargs", {})
    if region := given.pop("region", None):
        client = {"region_name": region, **client}
    config = {**_CONFIG, **given.pop("config_kwargs", {})}
    fs = import_s3fs().S3FileSystem(
        skip_instance_cache=True, use_listings_cache=False, client_kwargs=client, config_kwargs=config, **given
    )
    return S3Client(fs)


@lru_cache(maxsize=1)
def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of a request whose storage, network or credentials fail. No other is caught."""
    import_s3fs()
    from aiohttp import ClientError as ConnectionClientError
    from botocore.exceptions import BotoCoreError, ClientError

    return (OSError, BotoCoreError, ClientError, ConnectionClientError)


def response_of(error: BaseException | None) -> dict[str, Any]:
    """Return the storage's response behind an error, even if s3fs has translated it; empty if there was none."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return response
        error = error.__cause__
    return {}


def code_of(error: BaseException) -> str:
    """Return the error code of the storage's response (``NoSuchKey``, ``PreconditionFailed``), or ``""``."""
    return str(response_of(error).get("Error", {}).get("Code", ""))


def status_of(error: BaseException) -> int:
    """Return the HTTP status of the storage's response, or 0 if there was none."""
    return int(response_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def as_request_error(error: Exception) -> RequestError:
    """Say what a failure means: the storage certainly did nothing if its first answer was 4xx, other than a timeout."""
    if lacking := _lacking_key(error):
        return RequestError(_UNKNOWN, f"no access key: {lacking}")
    response, code = response_of(error), code_of(error)
    status = status_of(error)
    repeated = response.get("ResponseMetadata", {}).get("RetryAttempts", 0)
    refused = 400 <= status < 500 and status != 408 and not repeated
    if not response and isinstance(error, FileNotFoundError | PermissionError):  # s3fs's own word for an answer
        status = _MISSING if isinstance(error, FileNotFoundError) else _DENIED
    reason = code or str(error) or type(error).__name__
    said = str(response.get("Error", {}).get("Message", "")).strip()
    if said and status in _REFUSED:  # who asked for what, or what has expired
        reason = f"{reason}: {said[:_LONGEST_MESSAGE]}"
    return RequestError(status, reason, applied=not refused, code=code)


def _lacking_key(error: BaseException | None) -> BaseException | None:
    """Return the error behind one that says that there is no access key, or half of one: nothing was sent then."""
    from botocore.exceptions import NoCredentialsError, PartialCredentialsError

    while error is not None and not isinstance(error, NoCredentialsError | PartialCredentialsError):
        error = error.__cause__
    return error


def run(fs: Any, request: Callable[[Any], Awaitable[T]]) -> T:
    """Run ``request(client)`` on s3fs's own event loop, from any thread, and wait for it."""
    from fsspec.asyn import sync

    async def connected() -> T:
        return await request(await fs.set_session())

    result: T = sync(fs.loop, connected)
    return result


class S3Client(ObjectClient):
    """Objects by the S3 protocol, from any thread, over s3fs's own event loop."""

    condition: ClassVar[str] = "If-None-Match"
    keeps_answer: ClassVar[bool] = True

    def __init__(self, fs: Any) -> None:
        self._fs = fs
        self.tried = {}

    def run(self, request: Callable[[Any], Awaitable[T]]) -> T:
        try:
            return run(self._fs, request)
        except failures() as error:
            raise as_request_error(error) from error

    def endpoint(self) -> str:
        async def address(client: Any) -> str:
            return str(client.meta.endpoint_url)

        return self.run(address)

    def is_trusted_endpoint(self) -> bool:
        """Return whether this is AWS itself, which is known to honour ``If-None-Match`` on a put."""
        return (urlsplit(self.endpoint()).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def get_from(self, bucket: str, key: str) -> tuple[bytes, str]:
        """Read an object, and what the server calls itself."""
        data, response = self.run(lambda client: self._get(client, bucket, key))
        return data, str(response["ResponseMetadata"].get("HTTPHeaders", {}).get("server", ""))

    def get(self, bucket: str, key: str, byte_range: str = "") -> tuple[bytes, int]:
        data, response = self.run(lambda client: self._get(client, bucket, key, byte_range))
        return data, int(response.get("ContentRange", f"/{len(data)}").rpartition("/")[2])

    def head(self, bucket: str, key: str) -> str | None:
        return _token(self._call("HeadObject", Bucket=bucket, Key=key))

    def is_from(self, bucket: str, key: str, token: str, data: bytes) -> bool:
        """Whether this put wrote it. A storage may drop metadata; then the content says so: it holds a uuid if it
        matters."""
        found, response = self.run(lambda client: self._get(client, bucket, key))
        owner = _token(response)
        return owner == token or (owner is None and found == data)

    def put(self, bucket: str, key: str, data: bytes, token: str = "") -> None:
        condition = {"IfNoneMatch": "*", "Metadata": {TOKEN: token}} if token else {}
        try:
            self._call("PutObject", Bucket=bucket, Key=key, Body=data, **condition)
        except RequestError as error:
            # Another put of the same key is under way: this one did nothing, and a look shows which one won.
            error.applied = error.applied or error.code == IN_CONFLICT
            raise

    def upload(self, bucket: str, key: str, fail: Fail) -> BinaryIO:
        inner = self._fs.open(f"{bucket}/{key}", "wb", block_size=PART)

        def discard() -> None:
            inner.closed = True  # else s3fs uploads what it holds when the file is collected
            # RuntimeError: collected on s3fs's own thread, which can't wait for itself.
            with contextlib.suppress(RuntimeError, *failures()):
                inner.discard()

        return Output(  # type: ignore[return-value]
            inner,
            fail=lambda error: fail(as_request_error(error)),
            finish=inner.close,
            discard=discard,
            errors=failures(),
        )

    def delete(self, bucket: str, key: str) -> None:
        self._call("DeleteObject", Bucket=bucket, Key=key)

    def get_version(self, bucket: str, key: str) -> tuple[bytes, str]:
        data, response = self.run(lambda client: self._get(client, bucket, key))
        return data, str(response.get("ETag", ""))

    def put_version(self, bucket: str, key: str, data: bytes, version: str) -> None:
        self._call("PutObject", Bucket=bucket, Key=key, Body=data, IfMatch=version)

    def delete_version(self, bucket: str, key: str, version: str) -> None:
        self._call("DeleteObject", Bucket=bucket, Key=key, IfMatch=version)

    def list_all(self, bucket: str, prefix: str, delimiter: str, limit: int | None = None) -> Listing:
        objects: list[FileInfo] = []
        folders: list[str] = []
        more: dict[str, str] = {"Delimiter": delimiter} if delimiter else {}
        while True:  # each page starts after the one before it
            page = self._call("ListObjectsV2", Bucket=bucket, Prefix=prefix, **more)
            objects += map(_info, page.get("Contents", []))
            folders += (entry["Prefix"] for entry in page.get("CommonPrefixes", []))
            if not page.get("IsTruncated") or is_enough(objects, limit):
                return objects, folders
            more["ContinuationToken"] = page["NextContinuationToken"]

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self.run(lambda client: self._request(client, operation, **arguments))

    async def _request(self, client: Any, operation: str, **arguments: Any) -> dict[str, Any]:
        """Send one request, with the extra arguments from the options (encryption, requester pays) that it supports."""
        from botocore import xform_name

        known = client.meta.service_model.operation_model(operation).input_shape.members
        extra = {k: v for k, v in {**self._fs.s3_additional_kwargs, **self._fs.req_kw}.items() if k in known}
        response: dict[str, Any] = await getattr(client, xform_name(operation))(**{**extra, **arguments})
        return response

    async def _get(self, client: Any, bucket: str, key: str, byte_range: str = "") -> tuple[bytes, dict[str, Any]]:
        """Read an object or a range of it. The client retries a failed request, but not a truncated body."""
        part = {"Range": byte_range} if byte_range else {}
        for left in reversed(range(_BODY_TRIES)):
            response = await self._request(client, "GetObject", Bucket=bucket, Key=key, **part)
            try:
                async with response["Body"] as body:
                    return await body.read(), response
            except failures():
                if not left:
                    raise
        raise AssertionError("unreachable")


def _token(response: Mapping[str, Any]) -> str | None:
    owner: str | None = response.get("Metadata", {}).get(TOKEN)
    return owner


def _info(entry: Mapping[str, Any]) -> FileInfo:
    return FileInfo(entry["Key"], False, entry["Size"], int(entry["LastModified"].timestamp() * 1000))
