"""Reading through fsspec, on its zip and HTTP file systems: storages that no store of ours serves."""

import functools
import http.server
import pickle
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, StorageError, UnsupportedStorageError
from airflow_paimon.core.store import Store, open_store
from airflow_paimon.core.store.fsspec_store import FsspecStore

TABLE = pa.table({"k": range(1000)})

# What lies there under the names of metadata is none.
pytestmark = pytest.mark.damages_metadata


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("snapshot/snapshot-1", "snapshot/LATEST", "dt=12%3A00/bucket-0/x", "top"):
        path = tmp_path / "t" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    pq.write_table(TABLE, tmp_path / "t/data.parquet")
    return tmp_path / "t"


@pytest.fixture
def store(folder: Path) -> Store:
    """Read a zip archive: fsspec's ``zip://`` takes the archive as an option."""
    archive = folder.parent / "t.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, f"t/{path.relative_to(folder)}")
    return open_store("zip://t", {"fo": str(archive)})


def test_reads(store: Store) -> None:
    assert isinstance(store, FsspecStore)
    assert store.uri == "zip://t"
    assert store.read("snapshot/LATEST") == b"snapshot/LATEST"
    assert store.read_many(["top", "dt=12%3A00/bucket-0/x"]) == [b"top", b"dt=12%3A00/bucket-0/x"]
    assert store.exists("top")
    assert not store.exists("snapshot")
    assert not store.exists("nothing")
    assert [(i.name, i.is_dir, i.size) for i in store.list("snapshot")] == [
        ("LATEST", False, 15),
        ("snapshot-1", False, 19),
    ]
    assert [i.name for i in store.list("") if i.is_dir] == ["dt=12%3A00", "snapshot"]
    assert sorted(store.names("snapshot")) == ["LATEST", "snapshot-1"]
    assert store.list("nothing") == store.names("nothing") == store.walk("nothing") == []
    everything = ["data.parquet", "dt=12%3A00/bucket-0/x", "snapshot/LATEST", "snapshot/snapshot-1", "top"]
    assert store.walk("") == everything
    assert store.child("snapshot").read("LATEST") == b"snapshot/LATEST"
    with pytest.raises(NotFoundError, match="zip://t/nothing"):
        store.read("nothing")
    with pytest.raises(NotFoundError, match="zip://t/nothing"):
        store.open_input("nothing")


def test_parquet(store: Store) -> None:
    with store.open_input("data.parquet") as source:
        assert pq.read_table(source) == TABLE


def test_pickle(store: Store) -> None:
    copy = pickle.loads(pickle.dumps(store))
    assert copy.walk("") == store.walk("")
    assert repr(copy) == repr(store) == "FsspecStore('zip://t')"


def test_every_mutation_is_refused_by_name(store: Store) -> None:
    assert isinstance(store.commits_refused, UnsupportedStorageError)
    calls: list[Callable[[], Any]] = [
        lambda: store.create("x", b""),
        lambda: store.replace("x", b""),
        lambda: store.delete("top"),
        lambda: store.delete_empty("snapshot"),
        lambda: store.open_output("x"),
    ]
    for call in calls:
        with pytest.raises(UnsupportedStorageError, match=r"zip://t/.*conditional put.*s3://"):
            call()
    assert store.exists("top")


def test_no_way_out_of_the_root(store: Store) -> None:
    for call in (store.read, store.exists, store.open_input, store.list, store.walk, store.child):
        with pytest.raises(InvalidInputError):
            call("../x")


@pytest.fixture
def web_root(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_over_http(web_root: str) -> None:
    store = open_store(web_root)
    assert store.read("snapshot/LATEST") == b"snapshot/LATEST"
    assert not store.exists("nothing")
    with pytest.raises(NotFoundError):
        store.read("nothing")


def test_storage_that_is_not_there() -> None:
    with pytest.raises(StorageError, match=r"http://127\.0\.0\.1:1/x"):
        open_store("http://127.0.0.1:1").read("x")


def test_scheme_whose_package_is_missing() -> None:
    with pytest.raises(UnsupportedStorageError, match=r"oci:// can only be read.*ocifs.*s3://"):
        open_store("oci://bucket/t").read("x")


@pytest.mark.parametrize("options", [{"mode": "no such mode"}, {"fo": object()}])
def test_options_that_fsspec_refuses_are_not_shown(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="zip://") as caught:
        open_store("zip://t", {"password": "very-secret", **options}).read("x")
    assert "very-secret" not in str(caught.value)


def test_storage_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Opening zip:// failed: FileNotFoundError"):
        open_store("zip://t", {"fo": str(tmp_path / "nothing.zip")}).exists("x")
