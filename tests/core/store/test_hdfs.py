"""The store of HDFS, on a real cluster: renames whose answer got lost, rights, view file systems, options."""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable, Iterator
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
from airflow_paimon.core.store import Store, open_store
from airflow_paimon.core.store.base import set_aside_path
from airflow_paimon.core.store.hdfs import HdfsStore
from tests.core.store.contract import SharedStoreContract, check_files_that_are_away
from tests.core.store.lives import assert_commits_race, assert_correction_lives
from tests.hdfs_server import NameNodeProxy, hdfs_server

QUICK = {"dfs.client.failover.max.attempts": "2"}
"""The client's own patience with a name node that is gone is two minutes."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs_server(tmp_path_factory.mktemp("hdfs")) as uri:
        yield uri


@pytest.fixture
def root() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def direct(cluster: str, root: str) -> Store:
    """The same files without the proxy."""
    return open_store(f"{cluster}/{root}")


@pytest.fixture
def proxy(cluster: str) -> Iterator[NameNodeProxy]:
    proxy = NameNodeProxy(cluster)
    yield proxy
    proxy.close()


@pytest.fixture
def store(proxy: NameNodeProxy, root: str) -> Store:
    return open_store(f"{proxy.uri}/{root}", QUICK)


@pytest.mark.every(6)
class TestHdfsStore(SharedStoreContract):
    keys = 10  # to close a file takes the client half a second where the data node's report comes after its question

    @pytest.fixture
    def store(self, cluster: str, root: str) -> Store:
        return open_store(f"{cluster}/{root}/ware house%3A")


def test_processes_commit_at_the_same_time(direct: Store) -> None:
    assert_commits_race(direct, commits=2)


def test_a_correction_from_branch_to_expiry(direct: Store) -> None:
    assert_correction_lives(direct)


def test_the_folders_of_a_level_are_listed_side_by_side(direct: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each listing waits until that of every other folder has begun."""
    paths = [f"t/dt={day}/bucket-0/data" for day in range(8)]
    for path in paths:
        direct.create(path, b"")
    listed, together = HdfsStore._listed, threading.Barrier(len(paths))

    def wait_for_the_others(self: HdfsStore, path: str, key: str) -> Any:
        if "dt=" in key:
            together.wait(500)
        return listed(self, path, key)

    monkeypatch.setattr(HdfsStore, "_listed", wait_for_the_others)
    assert direct.walk("t") == paths


# What becomes of a rename whose answer gets lost


@pytest.mark.parametrize("fault", ["lost", "reset"])
@pytest.mark.parametrize("put", ["create", "replace"])
@pytest.mark.every(2)
def test_a_put_whose_answer_was_lost_is_found(
    store: Store, direct: Store, proxy: NameNodeProxy, fault: str, put: str
) -> None:
    proxy.plan = [fault]
    getattr(store, put)("snapshot-1", b"ours")
    assert direct.read("snapshot-1") == b"ours"
    assert not proxy.plan
    assert direct.walk("") == ["snapshot-1"]


def test_equal_bytes_of_another_call_are_not_ours(store: Store, direct: Store, proxy: NameNodeProxy) -> None:
    direct.create("schema-1", b"{}")
    proxy.plan = ["lost"]
    with pytest.raises(AlreadyExistsError, match="schema-1"):
        store.create("schema-1", b"{}")
    assert direct.walk("") == ["schema-1"]


def test_a_replacement_that_another_writer_replaced_before_it_was_looked_at_was_made(
    store: Store, direct: Store, proxy: NameNodeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = HdfsStore._status

    def after_another_writer(self: HdfsStore, path: str, key: str) -> Any:
        direct.replace("LATEST", b"2")
        return status(self, path, key)

    proxy.plan = ["lost"]
    with monkeypatch.context() as patched:
        patched.setattr(HdfsStore, "_status", after_another_writer)
        store.replace("LATEST", b"1")
    assert not proxy.plan
    assert direct.read("LATEST") == b"2"


@pytest.mark.parametrize(("fault", "landed"), [("lost-down", True), ("down", False)])
@pytest.mark.parametrize("put", ["create", "replace"])
@pytest.mark.every(2)
def test_a_name_node_that_goes_away_during_a_put(
    store: Store, direct: Store, proxy: NameNodeProxy, fault: str, landed: bool, put: str
) -> None:
    proxy.plan = [fault]
    with pytest.raises(OutcomeUnknownError, match="snapshot-1"):
        getattr(store, put)("snapshot-1", b"ours")
    assert direct.exists("snapshot-1") is landed


def test_who_is_killed_while_deleting_takes_nothing_of_others(direct: Store) -> None:
    check_files_that_are_away(direct)


def test_a_folder_is_never_away(direct: Store) -> None:
    """Whatever its name: it is listed, and nothing of it is read, renamed or deleted."""
    folder = set_aside_path("f/x", b"old")
    direct.create(f"{folder}/file", b"old")
    assert direct.walk("f") == [f"{folder}/file"]
    assert direct.read(f"{folder}/file") == b"old"
    assert not direct.exists("f/x")


# Rights, failures


def test_without_the_right_nothing_is_changed(direct: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    direct.create("a/x", b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "a-stranger")
    calls: list[Callable[[], Any]] = [
        lambda: direct.create("a/y", b"2"),
        lambda: direct.replace("a/x", b"2"),
        lambda: direct.delete("a/x"),
        lambda: direct.open_output("a/y"),
    ]
    for call in calls:
        with pytest.raises(StorageError, match=r"Permission denied for \w+ hdfs://.*/a.*a-stranger") as caught:
            call()
        assert "\tat " not in str(caught.value), "no stack of the name node's"
    assert direct.read("a/x") == b"1"
    assert direct.walk("") == ["a/x"]


def test_a_name_node_that_is_not_there() -> None:
    store = open_store("hdfs://127.0.0.1:1/t", {"dfs.client.failover.max.attempts": "1"})
    for call in (lambda: store.read("x"), lambda: store.list(""), lambda: store.create("x", b"")):
        with pytest.raises(StorageError, match=r"hdfs://127\.0\.0\.1:1/t.*Connection refused"):
            call()


def test_a_folder_is_no_object(direct: Store) -> None:
    direct.create("a/x", b"1")
    for call in (lambda: direct.create("a", b"1"), lambda: direct.replace("a", b"1")):
        with pytest.raises(StorageError, match="/a failed"):
            call()
    direct.delete_empty("a/x")  # no folder
    assert direct.walk("") == ["a/x"]


def test_an_existing_data_file_is_refused(direct: Store) -> None:
    direct.open_output("data").close()
    with pytest.raises(AlreadyExistsError, match="data"):
        direct.open_output("data")


# Addresses and options


def test_view_file_systems(cluster: str, root: str, direct: Store) -> None:
    links = {
        "fs.viewfs.mounttable.lake.link./data": f"{cluster}/{root}/data",
        "fs.viewfs.mounttable.lake.linkFallback": f"{cluster}/{root}/else",
    }
    store = open_store("viewfs://lake/data/t", links)
    assert store.uri == "viewfs://lake/data/t"
    store.create("a/x", b"1")
    with pytest.raises(AlreadyExistsError):
        store.create("a/x", b"2")
    assert store.walk("") == ["a/x"]
    assert [i.name for i in store.list("")] == ["a"]
    assert direct.read("data/t/a/x") == b"1"
    assert pickle.loads(pickle.dumps(store)).child("a").read("x") == b"1"


def test_hadoops_default_cluster(cluster: str, root: str, direct: Store) -> None:
    store = open_store(f"hdfs:///{root}", {"fs.defaultFS": cluster})
    assert store.uri == f"hdfs:///{root}"
    store.create("x", b"1")
    assert direct.read("x") == b"1"


@pytest.mark.parametrize("uri", ["hdfs:///t", "hdfs://name-service/t", "viewfs://lake/t"])
def test_a_cluster_that_is_not_known(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(InvalidInputError, match=r"is not known.*HADOOP_CONF_DIR"):
        open_store(uri).list("")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"user": "x"}, "Unknown storage option for hdfs://: user; known are config_dir"),
        ({"fs.gs.x": "y"}, "Unknown storage option for hdfs://: fs.gs.x"),
        ({"dfs.replication": 1}, "must be strings: dfs.replication"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        open_store("hdfs://h:1/t", options)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.core.store.hdfs.find_spec", lambda name: None)
    with pytest.raises(UnsupportedStorageError, match=r"pip install 'airflow-paimon\[hdfs\]'"):
        open_store("hdfs://h:1/t")


def test_files_that_are_gone(direct: Store) -> None:
    with pytest.raises(NotFoundError, match="nothing/at does not exist"):
        direct.read("nothing/at")
