"""The store of HDFS over HTTP, on a real cluster: renames whose answer got lost, rights, servers like HttpFS."""

from __future__ import annotations

import pickle
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from airflow_paimon.core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    UnsupportedStorageError,
)
from airflow_paimon.core.store import Store, open_store, webhdfs_client
from tests.core.store.contract import SharedStoreContract
from tests.core.store.faults import assert_ages_count_by_the_servers_clock
from tests.core.store.lives import assert_commits_race, assert_correction_lives
from tests.hdfs_server import hdfs_addresses
from tests.s3_proxy import Answer, Proxy, Request, s3_proxy


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with hdfs_addresses(tmp_path_factory.mktemp("hdfs")) as both:
        yield both


@pytest.fixture(scope="module")
def cluster(addresses: tuple[str, str]) -> str:
    return addresses[1]


@pytest.fixture(scope="module")
def shared_proxy(cluster: str) -> Iterator[Proxy]:
    with s3_proxy(cluster.replace("webhdfs:", "http:")) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Proxy:
    shared_proxy.reset()
    shared_proxy.concerns = is_rename
    return shared_proxy


@pytest.fixture
def root() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def direct(cluster: str, root: str) -> Store:
    """The same files without the proxy."""
    return open_store(f"{cluster}/{root}")


@pytest.fixture
def store(proxy: Proxy, root: str) -> Store:
    return open_store(f"{proxy.endpoint.replace('http:', 'webhdfs:')}/{root}")


def is_rename(request: Request) -> bool:
    return "op=RENAME" in request.path


class TestWebHdfsStore(SharedStoreContract):
    keys = 10

    @pytest.fixture
    def store(self, cluster: str, root: str) -> Store:
        return open_store(f"{cluster}/{root}/ware house%3A")


def test_processes_commit_at_the_same_time(direct: Store) -> None:
    assert_commits_race(direct, commits=2)


def test_a_correction_from_branch_to_expiry(direct: Store) -> None:
    assert_correction_lives(direct)


def test_both_protocols_are_the_same_files(addresses: tuple[str, str], root: str, direct: Store) -> None:
    other = open_store(f"{addresses[0]}/{root}")
    direct.create("snapshot/snapshot-1", b"1")
    with pytest.raises(AlreadyExistsError):
        other.create("snapshot/snapshot-1", b"2")
    other.create("snapshot/snapshot-2", b"2")
    with pytest.raises(AlreadyExistsError):
        direct.create("snapshot/snapshot-2", b"3")
    assert direct.files("") == other.files("")


# What becomes of a rename whose answer gets lost


@pytest.mark.parametrize("fault", ["apply-500", "apply-reset", "reset", "503"])
@pytest.mark.parametrize("put", ["create", "replace"])
def test_a_put_whose_answer_was_lost_is_found(store: Store, direct: Store, proxy: Proxy, fault: str, put: str) -> None:
    proxy.plan = [fault]
    getattr(store, put)("snapshot-1", b"ours")
    assert direct.read("snapshot-1") == b"ours"
    assert not proxy.plan
    assert direct.walk("") == ["snapshot-1"]


def test_equal_bytes_of_another_call_are_not_ours(store: Store, direct: Store, proxy: Proxy) -> None:
    direct.create("schema-1", b"{}")
    proxy.plan = ["apply-reset"]
    with pytest.raises(AlreadyExistsError, match="schema-1"):
        store.create("schema-1", b"{}")
    assert direct.walk("") == ["schema-1"]


@pytest.mark.parametrize(("fault", "landed"), [("apply-down", True), ("down", False)])
@pytest.mark.parametrize("put", ["create", "replace"])
def test_a_server_that_goes_away_during_a_put(
    store: Store, direct: Store, proxy: Proxy, fault: str, landed: bool, put: str
) -> None:
    proxy.plan = [fault]
    with pytest.raises(OutcomeUnknownError, match="snapshot-1"):
        getattr(store, put)("snapshot-1", b"ours")
    assert direct.exists("snapshot-1") is landed


def test_reads_are_tried_again(store: Store, direct: Store, proxy: Proxy) -> None:
    direct.create("m/1", b"manifest")
    proxy.concerns = lambda request: request.method == "GET"
    calls: list[Callable[[], Any]] = [
        lambda: store.read("m/1"), lambda: store.list("m"), lambda: store.exists("m/1"),
    ]  # fmt: skip
    for call in calls:
        for fault in ("503", "reset"):
            proxy.plan = [fault]
            assert call()
            assert not proxy.plan


def test_ages_count_by_the_servers_clock(store: Store, proxy: Proxy) -> None:
    assert_ages_count_by_the_servers_clock(store, proxy)


def test_a_server_that_knows_no_options_of_renames(
    store: Store, direct: Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As HttpFS: its renames never overwrite, and say so by a truth value."""
    forward = Proxy.forward

    def without_options(self: Proxy, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        return forward(self, method, re.sub("&renameoptions=[A-Z]+", "", path), headers, body)

    monkeypatch.setattr(Proxy, "forward", without_options)
    store.create("snapshot-1", b"1")
    with pytest.raises(AlreadyExistsError):
        store.create("snapshot-1", b"2")
    with pytest.raises(StorageError, match="HttpFS"):
        store.replace("snapshot-1", b"3")
    assert direct.read("snapshot-1") == b"1"
    assert direct.walk("") == ["snapshot-1"]


# Rights, failures


def test_without_the_right_nothing_is_changed(direct: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    direct.create("a/x", b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "a-stranger")

    def write() -> None:
        with direct.open_output("a/y") as stream:
            stream.write(b"1")

    calls: list[Callable[[], Any]] = [
        lambda: direct.create("a/y", b"2"),
        lambda: direct.replace("a/x", b"2"),
        lambda: direct.delete("a/x"),
        lambda: direct.delete_tree("a"),
        write,
    ]
    for call in calls:
        with pytest.raises(StorageError, match=r"Permission denied for \w+ webhdfs://.*/a.*a-stranger"):
            call()
    assert direct.read("a/x") == b"1"
    assert direct.walk("") == ["a/x"]


def test_a_server_that_is_not_there() -> None:
    store = open_store("webhdfs://127.0.0.1:1/t")
    for call in (lambda: store.read("x"), lambda: store.list(""), lambda: store.create("x", b"")):
        with pytest.raises(StorageError, match=r"webhdfs://127\.0\.0\.1:1/t.*Connection refused"):
            call()


def test_a_folder_is_no_object(direct: Store) -> None:
    direct.create("a/x", b"1")
    for call in (lambda: direct.create("a", b"1"), lambda: direct.replace("a", b"1")):
        with pytest.raises(StorageError, match="/a failed"):
            call()
    assert direct.walk("") == ["a/x"]


def test_existing_and_unfinished_data_files(direct: Store) -> None:
    direct.open_output("data").close()
    with pytest.raises(AlreadyExistsError, match="data"):
        direct.open_output("data")
    with pytest.raises(ZeroDivisionError), direct.open_output("other") as stream:
        stream.write(b"x" * 100)
        1 / 0  # noqa: B018
    assert direct.walk("") == ["data"]
    with pytest.raises(NotFoundError, match="nothing/at does not exist"):
        direct.read("nothing/at")


# Addresses and options


def test_secrets_and_users_travel_and_show_nowhere(cluster: str, root: str, direct: Store) -> None:
    store = open_store(f"{cluster}/{root}", {"user": direct_user(direct), "path": "/webhdfs/v1"})
    store.create("x", b"1")
    assert pickle.loads(pickle.dumps(store)).child("").read("x") == b"1"
    wrong = open_store("webhdfs://127.0.0.1:1/t", {"delegation_token": "the-secret-token"})
    with pytest.raises(StorageError) as caught:
        wrong.read("x")
    assert "the-secret-token" not in f"{caught.value}{wrong!r}"


def test_only_the_server_that_was_named_gets_the_login() -> None:
    """It names the data node, which must not learn the password."""
    seen: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append((self.path.partition("?")[0], self.headers.get("Authorization")))
            is_first = self.path.startswith("/webhdfs")
            self.send_response(307 if is_first else 201)
            if is_first:
                self.send_header("Location", f"http://localhost:{server.server_port}/data")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        webhdfs_client.WebHdfsClient(address, "/webhdfs/v1", {}, ("user", "password")).put("/x", b"1")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [(path, login is not None) for path, login in seen] == [("/webhdfs/v1/x", True), ("/data", False)]


def direct_user(direct: Store) -> str:
    direct.create("mine", b"")
    found: str = direct._client._identity["user.name"]  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("uri", "options", "message"),
    [
        ("webhdfs:///t", {}, "needs a host"),
        ("webhdfs://h:1/t", {"usr": "x"}, "Unknown storage option for webhdfs://: usr; known are delegation_token"),
        ("webhdfs://h:1/t", {"user": 1}, "must be strings: user"),
        ("webhdfs://h:1/t", {"user": "u", "password": "p"}, "swebhdfs:// only"),
        ("swebhdfs://h:1/t", {"password": "p"}, "needs user"),
    ],
)
def test_options_that_are_wrong(uri: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        open_store(uri, options)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.core.store.http_client.find_spec", lambda name: None)
    with pytest.raises(UnsupportedStorageError, match=r"pip install 'airflow-paimon\[hdfs\]'"):
        open_store("webhdfs://h:1/t")
