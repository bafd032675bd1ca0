"""How the S3 store finds its storage: options, credentials, failures that name it, and secrets that show nowhere."""

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import (
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
)
from airflow_paimon.core.store import Store, open_store
from airflow_paimon.core.store.object_client import ObjectClient
from airflow_paimon.core.store.object_store import ObjectStore
from tests.core.store.conftest import ONE_ATTEMPT
from tests.s3_proxy import Proxy
from tests.s3_server import KEY, SECRET, storage_options


def test_bucket_that_does_not_exist(s3_endpoint: str) -> None:
    store = open_store("s3://no-such-bucket/t", storage_options(s3_endpoint))
    for call in (lambda: store.read("x"), lambda: store.list(""), lambda: store.create("x", b"")):
        with pytest.raises(NotFoundError, match="bucket 'no-such-bucket'"):
            call()


def test_storage_that_is_not_there(proxy: Proxy, bucket: str) -> None:
    options = {**storage_options("http://127.0.0.1:1"), "config_kwargs": ONE_ATTEMPT}
    store = open_store(f"s3://{bucket}/t", options)
    with pytest.raises(StorageError, match=r"Reading s3://.*/t/x failed.*127\.0\.0\.1:1"):
        store.read("x")
    with pytest.raises(StorageError):
        store.create("x", b"")
    with pytest.raises(StorageError), store.open_output("x") as stream:
        stream.write(b"1")


def test_without_an_access_key_nothing_is_sent(proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    store = open_store(f"s3://{bucket}/t", {"endpoint_url": proxy.endpoint})
    sent = len(proxy.requests)
    for call in (lambda: store.read("x"), lambda: store.list(""), lambda: store.create("x", b"")):
        with pytest.raises(StorageError, match=r"no access key.*options key, secret.*environment's credentials"):
            call()
    assert len(proxy.requests) == sent


def signed_by(proxy: Proxy) -> str:
    return proxy.requests[-1].headers["authorization"].partition("Credential=")[2].partition("/")[0]


def test_credentials_come_from_the_environment_unless_given(
    proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    store = open_store(f"s3://{bucket}/t", {"endpoint_url": proxy.endpoint})
    store.list("")
    assert signed_by(proxy) == "from-environment"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "rotated")
    store.list("")
    assert signed_by(proxy) == "rotated"
    open_store(f"s3://{bucket}/t", storage_options(proxy.endpoint)).list("")
    assert signed_by(proxy) == KEY


def test_region_and_client_options_reach_the_client(proxy: Proxy, bucket: str) -> None:
    options = storage_options(proxy.endpoint)
    open_store(f"s3://{bucket}/t", {**options, "region": "eu-west-1"}).list("")
    assert "/eu-west-1/s3/" in proxy.requests[-1].headers["authorization"]
    del options["region"]
    open_store(f"s3://{bucket}/t", {**options, "client_kwargs": {"region_name": "eu-west-2"}}).list("")
    assert "/eu-west-2/s3/" in proxy.requests[-1].headers["authorization"]
    java = {"s3.access-key": KEY, "fs.s3a.secret.key": SECRET, "s3.endpoint": proxy.endpoint}
    java |= {"s3a.endpoint.region": "eu-west-3", "s3.path.style.access": "true"}
    open_store(f"s3://{bucket}/t", java).list("")
    assert "/eu-west-3/s3/" in proxy.requests[-1].headers["authorization"]
    assert proxy.requests[-1].path.startswith(f"/{bucket}")
    extra = {"s3_additional_kwargs": {"ServerSideEncryption": "AES256"}}
    store = open_store(f"s3://{bucket}/t", {**storage_options(proxy.endpoint), **extra})
    store.create("x", b"1")
    assert proxy.requests[-1].headers["x-amz-server-side-encryption"] == "AES256"
    assert store.read("x") == b"1"


def test_secrets_show_nowhere(store: Store, proxy: Proxy, bucket: str) -> None:
    shown = [repr(store), str(store), store.uri, repr(store.child("x")), repr(pickle.loads(pickle.dumps(store)))]
    for fault in ("403", "500", "reset"):
        proxy.always = fault
        proxy.concerns = lambda request: True
        for call in (lambda: store.read("x"), lambda: store.create("x", b"1"), lambda: store.open_input("x")):
            with pytest.raises((StorageError, OutcomeUnknownError)) as caught:
                call()
            shown += [str(caught.value), repr(caught.value), repr(caught.value.details)]
    for options in ({"key": KEY, "secert": SECRET}, {"secret": {SECRET}}):
        with pytest.raises(InvalidInputError) as refused:
            open_store(f"s3://{bucket}/t", options)
        shown += [str(refused.value), repr(refused.value)]
    assert not [text for text in shown if SECRET in text or KEY in text]


def test_a_secret_in_the_storages_own_message_is_blotted_out(s3_endpoint: str, bucket: str) -> None:
    options = {**storage_options("http://127.0.0.1:1"), "secret": "127.0.0.1", "config_kwargs": ONE_ATTEMPT}
    with pytest.raises(StorageError) as caught:
        open_store(f"s3://{bucket}/t", options).read("x")
    assert "127.0.0.1" not in str(caught.value)
    assert "***" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"secert": "x"}, "Unknown storage option for s3://: secert; known are .*secret"),
        ({"use_listings_cache": True}, "use_listings_cache"),
        ({"endpoint_url": "http://user:password@host"}, "without credentials"),
        ({"endpoint_url": "host:9000"}, "endpoint_url must look like"),
        ({"client_kwargs": object()}, "plain JSON"),
    ],
)
def test_options_are_checked_when_opening(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        open_store("s3://bucket/t", options)


def test_missing_s3fs_is_named() -> None:
    code = """
import sys
sys.modules["s3fs"] = None
from airflow_paimon.core.store import open_store
from airflow_paimon.core.errors import UnsupportedStorageError
open_store("/tmp"); open_store("memory://x")
try:
    open_store("s3://bucket/t")
except UnsupportedStorageError as error:
    print(error)
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=600
    )
    assert "pip install 'airflow-paimon[s3]'" in done.stdout


def client_of(store: Store) -> ObjectClient:
    assert isinstance(store, ObjectStore)
    return store._client


def test_another_server_has_another_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of a bucket is known of the one on that server."""
    store, other = open_store("s3://bucket/t", {"endpoint_url": "http://a"}), open_store("s3://bucket/t")
    assert client_of(store) is client_of(store.child("x")) is not client_of(other)
    before = client_of(other)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://c")
    assert client_of(other) is not before


def test_a_variable_that_a_thread_removes_while_another_one_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of temporary credentials, which are set and taken away again around each use."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a")
    store, done = open_store("s3://bucket/t", {}), threading.Event()

    def flicker() -> None:
        while not done.is_set():
            os.environ["AWS_SESSION_TOKEN"] = "t"
            del os.environ["AWS_SESSION_TOKEN"]

    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    often, thread = sys.getswitchinterval(), threading.Thread(target=flicker)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        assert len({id(client_of(store)) for _ in range(20_000)}) <= 2
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(often)
