"""What operations cost on each kind of storage when every request takes 5 ms or 50 ms longer, beside the local disk.

A table of 100,000 files; create_branch, a poke, a commit, and a publish of 1,000 files. Real servers on the loopback
behind a proxy that delays. *Trips* is how many times an operation waits, one after the other: what 45 ms more a request
add to it, divided by 45 ms.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.store import Store, open_store
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from benchmarks._delay import Delay
from benchmarks.metadata import FILES, change_files, make_large_table
from tests import azure_server, gcs_server, s3_server
from tests.core.tables import append
from tests.hdfs_server import hdfs_server
from tests.oss_server import oss_server
from tests.seaweed_server import seaweed_server
from tests.stores import CountingStore

DELAYS_MS = (0, 5, 50)
CHANGED = 1000


class Place(NamedTuple):
    """A storage: the URI of a folder and the options by the address that leads to it, and that address."""

    uri: Callable[[str], str]
    options: Callable[[str], Mapping[str, Any]]
    address: str

    def store(self, at: str, name: str) -> Store:
        return open_store(f"{self.uri(at)}/{name}", dict(self.options(at)))


def places(folder: Path, stack: ExitStack) -> Iterator[tuple[str, Place]]:
    """Start one server after the other."""

    def made(name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    seaweed = stack.enter_context(seaweed_server(made("seaweed")))
    bucket = s3_server.make_bucket(seaweed)
    yield "S3 (SeaweedFS)", _over_http(seaweed, lambda _: f"s3://{bucket}", s3_server.storage_options)
    gcs = stack.enter_context(gcs_server.gcs_server())
    in_gcs = gcs_server.make_bucket(gcs)
    yield "GCS (emulator)", _over_http(gcs, lambda _: f"gs://{in_gcs}", gcs_server.storage_options)
    azure = stack.enter_context(azure_server.azure_server())
    container = azure_server.make_container(azure)
    yield (
        "Azure (Azurite)",
        _over_http(
            azure.rpartition("/")[0],
            lambda _: container,
            lambda at: azure_server.storage_options(f"{at}/{azure_server.ACCOUNT}"),
        ),
    )
    oss = stack.enter_context(oss_server())
    in_oss = oss.make_bucket()
    yield "OSS (stub)", _over_http(oss.endpoint, lambda _: in_oss, oss.options)
    native = stack.enter_context(hdfs_server(made("hdfs")))
    yield "HDFS", Place(lambda at: f"hdfs://{at}/native", lambda _: {}, urlsplit(native).netloc)


def _over_http(endpoint: str, uri: Callable[[str], str], options: Callable[[str], Mapping[str, Any]]) -> Place:
    return Place(uri, lambda at: options(f"http://{at}"), urlsplit(endpoint).netloc)


def timed(table: Table, work: Callable[[Table], object]) -> tuple[float, int]:
    """Return milliseconds and calls of the store."""
    store = CountingStore(table.store)
    started = time.perf_counter()
    work(Table(store, table.name))
    return (time.perf_counter() - started) * 1000, store.tally.requests


def operation(name: str, **values: object) -> Callable[[Table], object]:
    def work(table: Table) -> object:
        request = build_request(name, {"warehouse": "w", "table": table.name, **values})
        return perform(Context(request, table, int(time.time() * 1000), time.monotonic()), request)

    return work


WORK: dict[str, Callable[[Table], object]] = {
    "poke": lambda table: table.hinted_snapshot(),
    "create_branch": operation("create_branch", branch="other", tag="base"),
    "commit": lambda table: append(table, "day-new"),
    f"publish of {CHANGED:,} files": operation("merge_branch", branch="fix"),
}


def copy(source: Store, target: Store) -> None:
    paths = source.walk("")
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: target.replace(path, source.read(path)), paths))


@contextmanager
def delayed(place: Place, delay_ms: int) -> Iterator[str]:
    if not delay_ms:
        yield place.address
        return
    proxy = Delay(place.address, delay_ms)
    try:
        yield proxy.address
    finally:
        proxy.close()


def measure(place: Place, source: Store) -> dict[int, dict[str, tuple[float, int]]]:
    """Do the work with each delay, on a copy of the table of its own."""
    found = {}
    for delay_ms in DELAYS_MS:
        copy(source, place.store(place.address, f"t{delay_ms}"))
        with delayed(place, delay_ms) as at:
            store = place.store(at, f"t{delay_ms}")
            store.create("warm", b"")  # connected, and an S3 server asked whether one conditional put wins
            store.delete("warm")
            table = Table(store, "d.big")
            found[delay_ms] = {name: timed(table, work) for name, work in WORK.items()}
    return found


def report(name: str, found: dict[int, dict[str, tuple[float, int]]], local: dict[str, tuple[float, int]]) -> None:
    print(f"{name}")
    for work, (own, _) in local.items():
        times = {delay: found[delay][work][0] for delay in DELAYS_MS}
        trips = (times[50] - times[5]) / 45
        shown = ", ".join(f"+{delay} ms: {took:8.1f} ms" for delay, took in times.items())
        print(f"  {work:>24}: {shown}, {trips:5.1f} trips of {found[0][work][1]:>5} calls; local disk {own:.1f} ms")
    sys.stdout.flush()


def main(names: list[str]) -> int:
    """Print the figures of all storages, or of those whose names contain a word."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        big = make_large_table(folder / "wh", FILES, 10)
        operation("create_tag", tag="base")(big)
        operation("create_branch", branch="fix", tag="base")(big)
        change_files(big.branch("fix"), CHANGED)
        twin = open_store(str(folder / "twin"))
        copy(big.store, twin)
        local = {work: timed(Table(twin, "d.big"), do) for work, do in WORK.items()}
        for kind, place in places(folder, stack):
            if not names or any(word.lower() in kind.lower() for word in names):
                report(kind, measure(place, big.store), local)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
