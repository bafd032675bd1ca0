"""A store whose new metadata nobody else sees."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator

import pytest

from airflow_paimon.core.errors import AlreadyExistsError, NotFoundError
from airflow_paimon.core.store.memory import MemoryStore
from airflow_paimon.core.store.unpublished import Unpublished


@pytest.fixture
def inner() -> Iterator[MemoryStore]:
    store = MemoryStore(f"test-{uuid.uuid4().hex}/t")
    store.create("snapshot/snapshot-1", b"one")
    store.create("snapshot/LATEST", b"1")
    store.create("dt=a/bucket-0/data-1.parquet", b"rows")
    yield store
    store.clear()


@pytest.fixture
def store(inner: MemoryStore) -> Unpublished:
    return Unpublished(inner, ("snapshot", "branch"))


def test_new_metadata_is_seen_here_only(inner: MemoryStore, store: Unpublished) -> None:
    published = {path: inner.read(path) for path in inner.walk("")}
    store.create("snapshot/snapshot-2", b"two")
    store.replace("snapshot/LATEST", b"2")
    store.create("branch/branch-b/snapshot/snapshot-3", b"three")
    assert store.read_many(["snapshot/snapshot-2", "snapshot/snapshot-1"]) == [b"two", b"one"]
    assert (store.read("snapshot/LATEST"), store.open_input("snapshot/LATEST").read()) == (b"2", b"2")
    assert sorted(store.names("snapshot")) == ["LATEST", "snapshot-1", "snapshot-2"]
    assert [(i.name, i.is_dir, i.size) for i in store.list("branch/branch-b")] == [("snapshot", True, 0)]
    assert [i.name for i in store.list("snapshot/")] == ["LATEST", "snapshot-1", "snapshot-2"]
    assert store.held("snapshot") == ["snapshot-2", "LATEST"]
    assert store.walk("branch") == ["branch/branch-b/snapshot/snapshot-3"]
    assert set(store.walk("")) == {*published, "snapshot/snapshot-2", "branch/branch-b/snapshot/snapshot-3"}
    assert store.exists("snapshot/snapshot-2") and not store.exists("snapshot/snapshot-4")
    store.delete("snapshot/snapshot-2")
    store.delete("snapshot/snapshot-1")
    assert store.names("snapshot") == ["LATEST", "snapshot-1"]
    assert {path: inner.read(path) for path in inner.walk("")} == published


def test_one_name_has_one_winner(store: Unpublished) -> None:
    for path in ("snapshot/snapshot-1", "snapshot/snapshot-2"):
        if path.endswith("2"):
            store.create(path, b"mine")
        with pytest.raises(AlreadyExistsError):
            store.create(path, b"again")
    with pytest.raises(NotFoundError):
        store.read("snapshot/snapshot-3")


def test_data_files_are_written_where_they_stay(inner: MemoryStore, store: Unpublished) -> None:
    with store.open_output("dt=a/bucket-0/data-2.parquet") as out:
        out.write(b"more")
    store.create("index/index-1", b"i")
    assert (inner.read("dt=a/bucket-0/data-2.parquet"), inner.read("index/index-1")) == (b"more", b"i")
    store.delete("dt=a/bucket-0/data-2.parquet")
    assert not inner.exists("dt=a/bucket-0/data-2.parquet")
    with pytest.raises(NotFoundError):
        store.open_output("snapshot/snapshot-9")


def test_tasks_get_the_store_itself(inner: MemoryStore, store: Unpublished) -> None:
    store.create("snapshot/snapshot-2", b"two")
    there = pickle.loads(pickle.dumps(store))
    assert (type(there), there.uri, there.names("snapshot")) == (MemoryStore, inner.uri, inner.names("snapshot"))
    assert store != Unpublished(inner, ("snapshot", "branch")), "what one holds the other lacks"
