"""An S3 server for all of these tests, and a store on it behind a proxy that can fail."""

import os
from collections.abc import Iterator

import pytest

from airflow_paimon.core.store import Store, object_client, open_store
from tests.s3_proxy import Proxy, s3_proxy
from tests.s3_server import make_bucket, s3_server, storage_options

# What `make reach` runs besides.
collect_ignore = [] if os.environ.get("AIRFLOW_PAIMON_REACH") == "1" else ["test_many_files.py"]
ONE_ATTEMPT = {"retries": {"total_max_attempts": 1}}


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server(page_size=4) as endpoint:  # so that every listing has several pages
        yield endpoint


@pytest.fixture
def bucket(s3_endpoint: str) -> str:
    return make_bucket(s3_endpoint)


@pytest.fixture(scope="module")
def shared_proxy(s3_endpoint: str) -> Iterator[Proxy]:
    with s3_proxy(s3_endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Proxy:
    shared_proxy.reset()
    return shared_proxy


@pytest.fixture
def direct(s3_endpoint: str, bucket: str) -> Store:
    """The same objects without the proxy."""
    return open_store(f"s3://{bucket}/t", storage_options(s3_endpoint))


@pytest.fixture
def store(proxy: Proxy, bucket: str, direct: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store behind the proxy that tries everything once, waits little, and has probed the server already."""
    monkeypatch.setattr(object_client, "_PAUSE", 0.01)
    store = open_store(f"s3://{bucket}/t", {**storage_options(proxy.endpoint), "config_kwargs": ONE_ATTEMPT})
    store.create("warm", b"")
    direct.delete("warm")
    proxy.requests.clear()
    return store
