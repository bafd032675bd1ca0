"""The store of Azure's blobs, on a server: signatures, lost answers, folders of other engines, options, secrets."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, StorageError, UnsupportedStorageError
from airflow_paimon.core.store import Store, azure_client, object_client, open_store
from airflow_paimon.core.store.azure import AzureStore
from airflow_paimon.core.store.secrets import secret_values
from tests.azure_server import ACCOUNT, HOST, KEY, azure_server, make_container, storage_options
from tests.core.store.contract import SharedStoreContract
from tests.core.store.faults import FaultsContract
from tests.core.store.lives import assert_commits_race, assert_correction_lives
from tests.s3_proxy import Proxy, Request, s3_proxy
from tests.stores import delete_tree


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with azure_server() as address:
        yield address


@pytest.fixture(scope="module")
def shared_proxy(endpoint: str) -> Iterator[Proxy]:
    with s3_proxy(endpoint.removesuffix(f"/{ACCOUNT}")) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Proxy:
    shared_proxy.reset()
    shared_proxy.concerns = is_create
    return shared_proxy


@pytest.fixture
def container(endpoint: str) -> str:
    return make_container(endpoint)


@pytest.fixture
def direct(endpoint: str, container: str) -> Store:
    """The same objects without the proxy."""
    return open_store(f"{container}/t", storage_options(endpoint))


@pytest.fixture
def store(proxy: Proxy, container: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store behind the proxy that tries twice and waits little between."""
    monkeypatch.setattr(object_client, "_PAUSE", 0.01)
    return open_store(f"{container}/t", {**storage_options(f"{proxy.endpoint}/{ACCOUNT}"), "tries": 2})


def is_create(request: Request) -> bool:
    return request.is_create


@pytest.mark.every(4)
class TestAzureStore(SharedStoreContract):
    @pytest.fixture
    def store(self, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setattr(azure_client, "_PAGE", 4)  # so that listings have several pages
        return open_store(f"{make_container(endpoint)}/ware house%3A", storage_options(endpoint))


class TestFaults(FaultsContract):
    put, look = "PUT", "HEAD"
    listing, page = "comp=list", (azure_client, "_PAGE")


@pytest.mark.thorough
def test_processes_commit_at_the_same_time(direct: Store) -> None:
    assert_commits_race(direct)


def test_a_correction_from_branch_to_expiry(direct: Store) -> None:
    assert_correction_lives(direct)


# Data files


def test_large_files_go_in_blocks_and_are_visible_at_the_end(store: Store, direct: Store, proxy: Proxy) -> None:
    part = bytes(range(256)) * (object_client.PART // 256)
    with store.open_output("data") as stream:
        stream.write(part)
        assert not proxy.requests
        stream.write(part + b"end")
        assert not direct.exists("data")
    assert direct.list("")[0].size == 2 * len(part) + 3
    with store.open_input("data") as source:
        source.seek(len(part) - 1)
        assert source.read(2) == b"\xff\x00"
        source.seek(-4, 2)
        assert source.read() == b"\xffend"


def test_a_list_of_blocks_whose_answer_got_lost_is_sent_again(store: Store, direct: Store, proxy: Proxy) -> None:
    proxy.concerns, proxy.plan = (lambda request: "comp=block" in request.path), ["apply-500", "", "", "apply-reset"]
    with store.open_output("data") as stream:
        stream.write(bytes(object_client.PART) + b"end")
    assert direct.read("data") == bytes(object_client.PART) + b"end"


def test_parquet_is_read_by_ranges(store: Store, direct: Store, proxy: Proxy) -> None:
    table = pa.table({f"c{i}": pa.array(range(i, 300_000 + i)) for i in range(6)})
    with direct.open_output("data.parquet") as stream:
        pq.write_table(table, stream, compression="none", use_dictionary=False)
    with store.open_input("data.parquet") as source:
        assert pq.read_table(source, columns=["c1"])["c1"].to_pylist()[:2] == [1, 2]
    assert len(proxy.requests) == 3  # the size, the footer and one column chunk
    assert all(request.headers["range"].startswith("bytes=") for request in proxy.requests)


def test_no_call_costs_more_requests_than_it_needs(store: Store, proxy: Proxy) -> None:
    expected: list[tuple[Callable[[], Any], list[str]]] = [
        (lambda: store.create("m/1", b"1"), ["PUT"]),
        (lambda: store.read("m/1"), ["GET"]),
        (lambda: store.open_input("m/1").read(), ["GET"]),
        (lambda: store.exists("m/2"), ["HEAD"]),
        (lambda: store.list("m"), ["GET"]),
        (lambda: store.walk("m"), ["GET"]),
        (lambda: store.replace("LATEST", b"1"), ["PUT"]),
        (lambda: store.delete("m/2"), ["DELETE"]),
        (lambda: store.delete_empty("m"), ["GET", "GET"]),
    ]
    for call, methods in expected:
        proxy.requests.clear()
        call()
        assert [r.method for r in proxy.requests] == methods


def test_folders_that_are_blobs(endpoint: str, direct: Store) -> None:
    """As Hadoop's driver makes them, and an account with a hierarchical namespace."""
    bucket, client = direct.uri.split("/")[2].partition("@")[0], direct._client  # type: ignore[attr-defined]
    for key in ("t", "t/db", "t/db/empty", "t/db/full"):
        headers = {"x-ms-blob-type": "BlockBlob", "x-ms-meta-hdi_isfolder": "true"}
        client.send("PUT", client.object(bucket, key), {}, headers)
    direct.create("db/full/x", b"1")
    assert [(i.name, i.is_dir) for i in direct.list("")] == [("db", True)]
    assert [(i.name, i.is_dir) for i in direct.list("db")] == [("empty", True), ("full", True)]
    assert direct.names("db") == []
    assert not direct.exists("db/empty")
    assert direct.walk("") == ["db/full/x"]
    delete_tree(direct, "db")
    assert direct.list("") == []
    objects, _ = client.list_all(bucket, "", "")
    assert [info.name for info in objects] == ["t"]
    direct.create("file", b"1")
    delete_tree(direct, "file")  # no folder of that name
    assert direct.names("") == ["file"]


# Who asks


def shared_access(bucket: str, ends_in: int, rights: str = "rcwdl") -> str:
    """Sign what a container's owner gives others, of version 2020-12-06, as Azure describes it."""
    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + ends_in))
    version = "2020-12-06"
    fields = [rights, "", ends, f"/blob/{ACCOUNT}/{bucket}", "", "", "", version, "c", "", "", "", "", "", "", ""]
    digest = hmac.new(base64.b64decode(KEY), "\n".join(fields).encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest).decode(), safe="")
    return f"?sv={version}&sr=c&sp={rights}&se={quote(ends)}&sig={signature}"


def test_shared_access_signatures(endpoint: str, container: str) -> None:
    bucket = container.removeprefix("abfss://").partition("@")[0]
    given = shared_access(bucket, 600)
    store = open_store(f"{container}/t", {"endpoint_url": endpoint, "sas_token": given})
    store.create("x", b"1")
    assert store.read("x") == b"1"
    assert [info.name for info in store.list("")] == ["x"]
    store.delete_empty("none")
    ended = {"endpoint_url": endpoint, "sas_token": shared_access(bucket, -60)}
    only_read = {"endpoint_url": endpoint, "sas_token": shared_access(bucket, 600, "r")}
    for options in (ended, only_read):
        refused = open_store(f"{container}/t", options)
        calls: list[Callable[[Store], Any]] = [
            lambda refused: refused.create("y", b""),
            lambda refused: refused.list(""),
            lambda refused: refused.replace("x", b""),
        ]
        for call in calls:
            with pytest.raises(StorageError, match=r"Access denied for .*abfss://.*\(403 .*sas_token") as caught:
                call(refused)
            assert "sig=" not in str(caught.value)
            assert secret_values(options)[1] == options["sas_token"].rpartition("=")[2]
            assert options["sas_token"][-20:] not in str(caught.value)
    assert store.walk("") == ["x"]


def test_another_key_is_refused(endpoint: str, direct: Store) -> None:
    wrong = base64.b64encode(b"another").decode()
    store = open_store(direct.uri, {"endpoint_url": endpoint, "account_key": wrong})
    calls: list[Callable[[], Any]] = [
        lambda: store.read("x"),
        lambda: store.create("x", b""),
        lambda: store.exists("x"),
    ]
    for call in calls:
        with pytest.raises(StorageError, match=r"Access denied.*403.*account_key") as caught:
            call()
        assert wrong not in str(caught.value)
    with pytest.raises(StorageError, match="Access denied for writing"), store.open_output("x") as stream:
        stream.write(b"1")


def test_tokens_are_fetched_once_and_again_before_they_expire(
    proxy: Proxy, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator takes no tokens over HTTP, so this looks at what it was sent."""
    from azure.core.credentials import AccessToken

    lifetimes = [3600, 200, 3600]

    class Credential:
        def get_token(self, scope: str) -> AccessToken:
            assert scope == "https://storage.azure.com/.default"
            return AccessToken(f"token {len(lifetimes)}", int(time.time()) + lifetimes.pop())

    monkeypatch.setattr(azure_client, "_credential", lambda options: Credential())
    options = {"endpoint_url": f"{proxy.endpoint}/{ACCOUNT}", "client_id": "app", "tries": 1}
    store = open_store(container, options)
    for _ in range(2):
        with pytest.raises(StorageError, match="Access denied"):
            store.read("x")
    assert [r.headers["authorization"] for r in proxy.requests] == ["Bearer token 3"] * 2
    store._client._credentials = None  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(StorageError):
            store.read("x")
    assert [r.headers["authorization"] for r in proxy.requests[2:]] == ["Bearer token 2", "Bearer token 1"]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"client_id": "a", "client_secret": "very-secret", "tenant_id": "t"}, "ClientSecretCredential"),
        ({"client_id": "a", "token_file": "/token", "tenant_id": "t"}, "WorkloadIdentityCredential"),
        ({"client_id": "a"}, "DefaultAzureCredential"),
        ({}, "DefaultAzureCredential"),
    ],
)
def test_who_gives_tokens(options: dict[str, Any], kind: str) -> None:
    assert type(azure_client._credential(options)).__name__ == kind


def test_no_token_to_be_had(endpoint: str, container: str) -> None:
    options = {"endpoint_url": endpoint, "client_id": "a", "tenant_id": "t", "token_file": "/nowhere", "tries": 1}
    with pytest.raises(StorageError, match=r"Access denied for reading .*no access token.*No such file"):
        open_store(f"{container}/t", options).read("x")


# Options, failures and secrets


def test_container_that_does_not_exist(endpoint: str) -> None:
    store = open_store(f"abfss://no-such@{HOST}/t", storage_options(endpoint))
    for call in (lambda: store.list(""), lambda: store.create("x", b""), lambda: store.read("x")):
        with pytest.raises(NotFoundError, match="container 'no-such'"):
            call()


def test_a_server_that_is_not_there_is_named_without_the_request(container: str) -> None:
    options = {"sas_token": "?sv=1&sig=very-secret", "endpoint_url": "http://127.0.0.1:9", "tries": 1}
    store = open_store(container, options)
    for call in (lambda: store.names(""), lambda: store.create("x", b""), lambda: store.replace("x", b"")):
        with pytest.raises(StorageError, match=r"failed: .*127\.0\.0\.1.*Connection refused") as caught:
            call()
        assert "maxresults" not in str(caught.value) and "very-secret" not in str(caught.value)


def test_what_answers_is_something_else(proxy: Proxy, container: str) -> None:
    store = open_store(container, {**storage_options(f"{proxy.endpoint}/{ACCOUNT}?comp=list&x="), "tries": 1})
    with pytest.raises(StorageError):
        store.list("")


@pytest.mark.parametrize("uri", ["abfs", "abfss", "az", "wasb", "wasbs"])
def test_addresses(uri: str) -> None:
    domain = "blob" if uri.startswith("wasb") else "dfs"
    store = open_store(f"{uri}://c@lake.{domain}.core.windows.net/w/%3A/", {"account_key": KEY})
    assert store.uri == f"{uri}://c@lake.{domain}.core.windows.net/w/%3A"
    assert isinstance(store, AzureStore)
    assert store._client.object("c", "w/%3A") == "https://lake.blob.core.windows.net/c/w/%253A"
    bare = open_store(f"{uri}://c/w", {"account_key": KEY, "account_name": "lake"})
    assert isinstance(bare, AzureStore)
    assert bare._client.object("c", "w") == "https://lake.blob.core.windows.net/c/w"
    assert pickle.loads(pickle.dumps(bare)).child("x").uri == f"{uri}://c/w/x"


@pytest.mark.parametrize(
    "options",
    [{"acount_key": "x"}, {"fs.azure.write.request.size": "1"}, {"fs.azure.account.auth.type": "Custom"}, {"fs.x": 1}],
)
def test_unknown_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=rf"Unknown storage option for Azure: {next(iter(options))}; known are"):
        open_store(f"abfss://c@{HOST}/t", options)


@pytest.mark.parametrize(
    ("uri", "options", "message"),
    [
        (f"c@{HOST}", {"endpoint_url": "localhost:1"}, "must look like"),
        (f"c@{HOST}", {"endpoint_url": "http://a:very-secret@host"}, "must look like"),
        (f"c@{HOST}", {"tries": 0}, "from 1 to 10"),
        (f"c@{HOST}", {"account_key": "not base 64: very-secret"}, "Base64"),
        (
            f"c@{HOST}",
            {"account_key": KEY, "sas_token": "sv=1&sig=very-secret"},
            "account_key, sas_token can identify the user",
        ),
        (f"c@{HOST}", {"client_secret": "very-secret"}, "needs client_id and tenant_id"),
        (f"c@{HOST}", {"client_secret": {"x": b"very-secret"}, "client_id": "a", "tenant_id": "t"}, "plain JSON"),
        (f"c@{HOST}", {"fs.azure.account.key.other.dfs.core.windows.net": KEY}, "not for the account lake"),
        ("c", {"account_key": KEY}, "The storage account is missing"),
        (f"@{HOST}", {"account_key": KEY}, "needs a container"),
        ("", {"account_key": KEY}, "needs the container"),
        (f"c:very-secret@{HOST}", {}, "must not contain credentials"),
    ],
)
def test_options_that_are_wrong(uri: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        open_store(f"abfss://{uri}/t", options)
    assert "very-secret" not in str(caught.value)


def test_options_of_javas_engine_are_understood(endpoint: str, direct: Store) -> None:
    options = {
        "fs.azure.account.auth.type.lake.dfs.core.windows.net": "SharedKey",
        "fs.azure.account.key.lake.dfs.core.windows.net": KEY,
        "fs.azure.account.key.other.dfs.core.windows.net": "of another account",
        "endpoint_url": endpoint,
        "tenant_id": None,
    }
    open_store(direct.uri, options).create("x", b"1")
    assert direct.read("x") == b"1"
    provider = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
    by_secret = {
        "azure.account.auth.type": "OAuth",
        "fs.azure.account.oauth.provider.type.lake.dfs.core.windows.net": provider,
        "fs.azure.account.oauth2.client.id": "app",
        "fs.azure.account.oauth2.client.secret": "very-secret",
        "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token",
    }
    assert json.loads(azure_client.checked_options(by_secret, "c", HOST)) == {
        "account_name": "lake", "client_id": "app", "client_secret": "very-secret", "tenant_id": "tenant",
    }  # fmt: skip
    for name in ("fs.azure.sas.fixed.token", "fs.azure.sas.c.lake.blob.core.windows.net"):
        others = {"fs.azure.sas.other.lake.blob.core.windows.net": "of another container"}
        assert json.loads(azure_client.checked_options({name: "sv=1", **others}, "c", HOST))["sas_token"] == "sv=1"


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.core.store.http_client.find_spec", lambda name: None)
    with pytest.raises(UnsupportedStorageError, match=r"pip install 'airflow-paimon\[azure\]'"):
        open_store(f"abfss://c@{HOST}/t")


def test_secrets_travel_only_in_the_pickle() -> None:
    for options in ({"account_key": KEY}, {"sas_token": KEY}):
        store = open_store(f"abfss://c@{HOST}/t", options)
        assert KEY.encode() in pickle.dumps(store)
        assert KEY not in repr(store) + store.uri + repr(store.child("x"))
