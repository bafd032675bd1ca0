"""The store of Alibaba Cloud OSS, on a stub of it: signatures, lost answers, versioning, options, secrets."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_paimon.core.errors import (
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    UnsupportedStorageError,
)
from airflow_paimon.core.store import Store, object_client, object_store, open_store, oss_client
from airflow_paimon.core.store.oss import OssStore
from tests.core.store.contract import SharedStoreContract
from tests.core.store.faults import FaultsContract
from tests.core.store.lives import assert_commits_race, assert_correction_lives
from tests.oss_server import KEY, REGION, SECRET, OssServer, oss_server
from tests.s3_proxy import Proxy, Request, s3_proxy

HANGZHOU = {"endpoint_url": "oss-cn-hangzhou.aliyuncs.com"}


@pytest.fixture(scope="module")
def server() -> Iterator[OssServer]:
    with oss_server(page=4) as server:  # so that listings have several pages
        yield server


@pytest.fixture(scope="module")
def shared_proxy(server: OssServer) -> Iterator[Proxy]:
    with s3_proxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Proxy:
    shared_proxy.reset()
    shared_proxy.concerns = is_create
    return shared_proxy


@pytest.fixture
def bucket(server: OssServer) -> str:
    return server.make_bucket()


@pytest.fixture
def direct(server: OssServer, bucket: str) -> Store:
    """The same objects without the proxy."""
    return open_store(f"{bucket}/t", server.options())


@pytest.fixture
def store(server: OssServer, proxy: Proxy, bucket: str, direct: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store behind the proxy that tries twice, waits little between, and has probed the server already."""
    monkeypatch.setattr(object_client, "_PAUSE", 0.01)
    store = open_store(f"{bucket}/t", {**server.options(proxy.endpoint), "tries": 2})
    store.create("warm", b"")
    direct.delete("warm")
    proxy.requests.clear()
    return store


def is_create(request: Request) -> bool:
    return "x-oss-forbid-overwrite" in request.headers


def client(**options: Any) -> oss_client.OssClient:
    found = OssStore("oss", "lake", "", options)._client
    assert isinstance(found, oss_client.OssClient)
    return found


@pytest.mark.every(4)
class TestOssStore(SharedStoreContract):
    @pytest.fixture
    def store(self, server: OssServer) -> Store:
        return open_store(f"{server.make_bucket()}/ware house%3A", server.options())


class TestFaults(FaultsContract):
    put, look = "PUT", "HEAD"
    listing, page = "list-type=2", (oss_client, "_PAGE")
    conditions = replaces_versions = False


@pytest.mark.thorough
def test_processes_commit_at_the_same_time(direct: Store) -> None:
    assert_commits_race(direct)


def test_a_correction_from_branch_to_expiry(direct: Store) -> None:
    assert_correction_lives(direct)


# The condition of a put


def test_a_bucket_that_keeps_versions_is_refused(server: OssServer) -> None:
    """OSS ignores the condition there, so that a commit could replace another one."""
    bucket = server.make_bucket(versioned=True)
    store = open_store(f"{bucket}/t", server.options())
    with pytest.raises(UnsupportedStorageError, match=r"x-oss-forbid-overwrite succeed.*without version"):
        store.create("snapshot-1", b"ours")
    assert store.walk("") == []


def test_each_process_asks_anew(store: Store, direct: Store, server: OssServer, bucket: str, proxy: Proxy) -> None:
    """Versioning may be switched on at any time, so no answer is kept in the bucket."""
    store.create("a", b"1")
    pickle.loads(pickle.dumps(store)).create("b", b"2")
    assert [r.method for r in proxy.requests] == ["PUT", "PUT"]
    assert direct.walk("") == ["a", "b"]
    server.versioned.add(bucket.removeprefix("oss://"))
    object_store._client_of.cache_clear()
    with pytest.raises(UnsupportedStorageError, match="versioning"):
        store.create("c", b"3")


# Data files


def test_large_files_go_in_parts_and_are_visible_at_the_end(store: Store, direct: Store, proxy: Proxy) -> None:
    part = bytes(range(256)) * (object_client.PART // 256)
    with store.open_output("data") as stream:
        stream.write(part)
        assert not proxy.requests
        stream.write(part + b"end")
        assert not direct.exists("data")
    assert direct.read("data") == 2 * part + b"end"


@pytest.mark.parametrize("fault", ["apply-500", "apply-reset"])
def test_parts_whose_answer_got_lost_are_sent_again(store: Store, direct: Store, proxy: Proxy, fault: str) -> None:
    """The upload is complete, and gone, when the last request comes again."""
    proxy.concerns, proxy.plan = (lambda request: "uploadId" in request.path), [fault, "", "", fault]
    with store.open_output("data") as stream:
        stream.write(bytes(object_client.PART) + b"end")
    assert direct.read("data") == bytes(object_client.PART) + b"end"


def test_an_upload_that_fails_is_given_up(store: Store, server: OssServer) -> None:
    with pytest.raises(ZeroDivisionError), store.open_output("data") as stream:
        stream.write(bytes(object_client.PART) + b"end")
        assert server.uploads
        1 / 0  # noqa: B018
    assert not server.uploads
    assert not store.exists("data")


def test_deletes_whose_answer_got_lost_may_have_taken_effect(store: Store, proxy: Proxy) -> None:
    proxy.concerns, proxy.always = (lambda request: request.method == "DELETE"), "apply-500"
    with pytest.raises(OutcomeUnknownError, match="may have taken effect"):
        store.delete("a")


# Places and keys


def test_a_bucket_is_a_part_of_the_hosts_name() -> None:
    hangzhou = client(**HANGZHOU, key=KEY, secret=SECRET)
    assert hangzhou.object("lake", "a b/ä+%3A") == ("https://lake.oss-cn-hangzhou.aliyuncs.com/a%20b/%C3%A4%2B%253A")
    assert hangzhou._named(hangzhou.object("lake", "a b/ä+%3A")) == ("lake", "a b/ä+%3A")


@pytest.mark.parametrize(
    ("options", "endpoint", "region"),
    [
        (HANGZHOU, "https://oss-cn-hangzhou.aliyuncs.com", "cn-hangzhou"),
        ({"endpoint_url": "http://oss-us-west-1-internal.aliyuncs.com"}, "http://oss-us-west-1-internal.aliyuncs.com",
         "us-west-1"),
        ({"region": "cn-beijing"}, "https://oss-cn-beijing.aliyuncs.com", "cn-beijing"),
        ({"region": "oss-cn-beijing", "endpoint_url": "oss.example"}, "https://oss.example", "cn-beijing"),
        ({"fs.oss.endpoint": "oss-cn-hangzhou.aliyuncs.com"}, "https://oss-cn-hangzhou.aliyuncs.com", "cn-hangzhou"),
    ],
)  # fmt: skip
def test_endpoint_and_region_follow_from_each_other(options: dict[str, str], endpoint: str, region: str) -> None:
    found = client(**options, key=KEY, secret=SECRET)
    assert (found.endpoint(), found._options["region"]) == (endpoint, region)


def test_javas_names_are_ours(server: OssServer, bucket: str) -> None:
    """Java matches the names of keys regardless of case, as some catalogs tell them in lower case."""
    java = {"fs.oss.endpoint": server.endpoint, "fs.oss.region": REGION, "fs.oss.accessKeyId": KEY,
            "fs.oss.accesskeysecret": SECRET}  # fmt: skip
    open_store(f"{bucket}/t", java).create("a", b"1")
    assert open_store(f"{bucket}/t", server.options()).read("a") == b"1"


def test_the_environments_keys_are_used(server: OssServer, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"endpoint_url": server.endpoint, "region": REGION}
    for name in ("ACCESS_KEY_ID", "ACCESS_KEY_SECRET", "SESSION_TOKEN"):
        monkeypatch.delenv(f"OSS_{name}", raising=False)
    with pytest.raises(StorageError, match=r"Access denied.*key, secret and token"):
        open_store(f"{bucket}/t", options).read("a")
    monkeypatch.setenv("OSS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("OSS_ACCESS_KEY_SECRET", SECRET)
    open_store(f"{bucket}/t", options).create("a", b"1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "The bucket's place is missing"),
        ({"endpoint_url": "http://127.0.0.1:1"}, "doesn't contain its region"),
        ({**HANGZHOU, "key": "k"}, "key and secret of oss:// go together"),
        ({**HANGZHOU, "acess_key": "k"}, "Unknown storage option for oss://: acess_key; known are"),
        ({"endpoint_url": "https://k:s@oss-cn-hangzhou.aliyuncs.com"}, "endpoint_url must look like"),
        ({**HANGZHOU, "tries": 0}, "tries"),
    ],
)
def test_options_that_can_not_be_right(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        open_store("oss://lake/t", options)


def test_wrong_keys_and_places_are_told(server: OssServer, bucket: str) -> None:
    wrong = {**server.options(), "secret": "another-very-secret"}
    with pytest.raises(StorageError, match=r"Access denied.*SignatureDoesNotMatch") as refused:
        open_store(f"{bucket}/t", wrong).read("a")
    assert "another-very-secret" not in str(refused.value)
    with pytest.raises(StorageError, match="Access denied"):
        open_store(f"{bucket}/t", {**server.options(), "secret": None, "key": None, "anon": True}).read("a")
    with pytest.raises(NotFoundError, match="The bucket 'no-such' of oss://no-such/t"):
        open_store("oss://no-such/t", server.options()).list("")
    with pytest.raises(InvalidInputError, match="must not contain credentials"):
        open_store("oss://k:s@lake/t", server.options())
