"""Requests to S3-compatible storages, over the client that s3fs sets up."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from airflow_paimon.core.errors import InvalidInputError, UnsupportedStorageError

T = TypeVar("T")
Listing = tuple[list[dict[str, Any]], list[str]]
"""Objects as ListObjectsV2 returns them, and the common prefixes."""

_OPTIONS = frozenset({
    "anon", "client_kwargs", "config_kwargs", "endpoint_url", "key", "profile", "region", "requester_pays",
    "s3_additional_kwargs", "secret", "token", "use_ssl",
})  # fmt: skip
_CONFIG = {
    "connect_timeout": 5,
    "read_timeout": 30,
    "max_pool_connections": 32,
    "retries": {"mode": "standard", "total_max_attempts": 4},
}
_CONCURRENT = 16
_BODY_TRIES = 3


def checked_options(options: Mapping[str, Any] | None) -> str:
    """Check storage options and return them as canonical JSON, the form that a store keeps.

    Raises:
        InvalidInputError: an option is unknown (a typo must not fall back to other credentials) or not a JSON value.
    """
    given = dict(options or {})
    if unknown := sorted(set(given) - _OPTIONS):
        raise InvalidInputError(
            f"Unknown storage option for s3://: {', '.join(unknown)}; known are {', '.join(sorted(_OPTIONS))}"
        )
    endpoint = given.get("endpoint_url")
    if endpoint and ("@" in endpoint or "://" not in endpoint):
        raise InvalidInputError("The storage option endpoint_url must look like http://host:port, without credentials")
    try:
        return json.dumps({name: value for name, value in given.items() if value is not None}, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("Storage options for s3:// must be plain JSON values") from error


def import_s3fs() -> Any:
    """Import s3fs on first use: that takes most of a second."""
    try:
        import s3fs
    except ImportError as error:
        raise UnsupportedStorageError("s3:// needs the package s3fs: pip install 'airflow-paimon[s3]'") from error
    return s3fs


def file_system(options: str) -> Any:
    """Return this process's s3fs file system for ``options`` and the credentials in the environment."""
    environment = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith("AWS_")))
    return _file_system(os.getpid(), options, environment)


@lru_cache(maxsize=16)
def _file_system(pid: int, options: str, environment: tuple[tuple[str, str], ...]) -> Any:
    given = json.loads(options)
    client = given.pop("client_kwargs", {})
    if region := given.pop("region", None):
        client = {"region_name": region, **client}
    config = {**_CONFIG, **given.pop("config_kwargs", {})}
    return import_s3fs().S3FileSystem(
        skip_instance_cache=True, use_listings_cache=False, client_kwargs=client, config_kwargs=config, **given
    )


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


def is_refusal(error: BaseException) -> bool:
    """Whether the storage certainly did nothing: its first response was 4xx, other than a timeout."""
    repeated = response_of(error).get("ResponseMetadata", {}).get("RetryAttempts", 0)
    return 400 <= status_of(error) < 500 and status_of(error) != 408 and repeated == 0


def is_missing(error: BaseException) -> bool:
    return status_of(error) == 404 or (isinstance(error, FileNotFoundError) and not response_of(error))


def run(fs: Any, request: Callable[[Any], Awaitable[T]]) -> T:
    """Run ``request(client)`` on s3fs's own event loop, from any thread, and wait for it."""
    from fsspec.asyn import sync

    async def connected() -> T:
        return await request(await fs.set_session())

    result: T = sync(fs.loop, connected)
    return result


def is_trusted_endpoint(client: Any) -> bool:
    """Return whether this is AWS itself, which is known to honour ``If-None-Match`` on a put."""
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


async def call(fs: Any, client: Any, operation: str, **arguments: Any) -> dict[str, Any]:
    """Send one request, with the extra arguments from the options (encryption, requester pays) that it supports."""
    from botocore import xform_name

    known = client.meta.service_model.operation_model(operation).input_shape.members
    extra = {k: v for k, v in {**fs.s3_additional_kwargs, **fs.req_kw}.items() if k in known}
    response: dict[str, Any] = await getattr(client, xform_name(operation))(**{**extra, **arguments})
    return response


async def get(fs: Any, client: Any, **arguments: Any) -> tuple[bytes, dict[str, Any]]:
    """Read an object or a range of it. The client retries a failed request, but not a truncated body."""
    for left in reversed(range(_BODY_TRIES)):
        response = await call(fs, client, "GetObject", **arguments)
        try:
            async with response["Body"] as body:
                return await body.read(), response
        except failures():
            if not left:
                raise
    raise AssertionError("unreachable")


async def get_many(fs: Any, client: Any, bucket: str, keys: Sequence[str]) -> list[bytes]:
    """Read several small objects, at most ``_CONCURRENT`` at a time."""
    gate = asyncio.Semaphore(_CONCURRENT)

    async def one(key: str) -> bytes:
        async with gate:
            return (await get(fs, client, Bucket=bucket, Key=key))[0]

    return await asyncio.gather(*map(one, keys))


async def list_all(fs: Any, client: Any, bucket: str, prefix: str, delimiter: str) -> Listing:
    """List the objects that start with ``prefix``, and, with a ``delimiter``, the folders. Nothing is cached."""
    objects: list[dict[str, Any]] = []
    folders: list[str] = []
    more: dict[str, str] = {"Delimiter": delimiter} if delimiter else {}
    while True:  # each page starts after the one before it
        page = await call(fs, client, "ListObjectsV2", Bucket=bucket, Prefix=prefix, **more)
        objects += page.get("Contents", [])
        folders += (entry["Prefix"] for entry in page.get("CommonPrefixes", []))
        if not page.get("IsTruncated"):
            return objects, folders
        more["ContinuationToken"] = page["NextContinuationToken"]
