"""Expiry on S3 that loses answers, refuses and breaks off: no root loses a file, and a re-run ends it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.store import Store, open_store
from airflow_paimon.core.table.table import Table
from tests.core.store.lives import copied, do
from tests.core.tables import make_table, overwrite, run
from tests.s3_proxy import OldListings, Proxy, Request
from tests.s3_server import storage_options
from tests.soundness import assert_sound, files_on_disk, states


def expire(store: Store, **more: Any) -> OperationResult:
    values = {
        "older_than": "0 s",
        "retain_min": 1,
        "grace": "0 s",
        "writers_stopped": True,
        "all_branches": True,
        **more,
    }
    return do(store, "expire_snapshots", **values)


@pytest.fixture
def table(direct: Store) -> Table:
    """Written in memory and copied: the requests of its commits are of no interest here."""
    made = make_table(f"memory://{uuid.uuid4()}/wh")
    for number in range(5):
        overwrite(made, "a")
        if number == 1:
            run(made, "create_tag", tag="t")
            run(made, "create_branch", branch="fix", tag="t")
            overwrite(made.branch("fix"), "a")
    for path in made.store.walk(""):
        direct.create(path, made.store.read(path))
    return Table(direct, "d.t")


def is_change(request: Request) -> bool:
    return request.method in ("PUT", "DELETE", "POST")


@pytest.mark.parametrize(
    ("fault", "at"), [("apply-reset", 3), ("apply-reset", 10), ("500", 10), ("down", 4), ("down", 12)]
)
@pytest.mark.every(5, first=3)
def test_a_fault_at_a_change(table: Table, store: Store, proxy: Proxy, fault: str, at: int) -> None:
    before = states(copied(table.store))
    proxy.concerns = is_change
    proxy.plan = [*([""] * at), fault]
    try:
        expire(store)
    except PaimonError:
        assert fault == "down" or at == 3, "a deletion that fails once is tried again"
    assert not proxy.plan
    half = copied(table.store)
    assert_sound(half, leaks=True)
    after = states(half)
    assert after == {path: before[path] for path in after}
    proxy.reset()
    expire(store)
    done = copied(table.store)
    assert_sound(done)
    assert done.snapshot_ids() == [5]
    assert len([p for p in files_on_disk(done) if p.endswith(".parquet")]) == 3


def test_what_can_not_be_read_stops_it(table: Table, store: Store, proxy: Proxy) -> None:
    """A listing or a list of manifests: nothing is deleted."""
    proxy.concerns = lambda request: request.method == "GET"
    for at in (0, 15, 30):
        proxy.plan = [*([""] * at), *["403"] * 20]
        with pytest.raises(PaimonError):
            expire(store)
        assert not [r for r in proxy.requests if is_change(r)]


@pytest.fixture
def changed_since(table: Table, store: Store, proxy: Proxy) -> dict[str, set[str]]:
    """Remember what listings say; then a tag, a branch and a commit come. Returns the table's states after that."""
    proxy.remembers = True
    expire(store, dry_run=True)
    proxy.remembers = False
    do(table.store, "create_tag", tag="late", snapshot=1)
    do(table.store, "create_branch", branch="late", snapshot=3)
    overwrite(table.branch("late"), "a")
    overwrite(table, "a")
    return states(copied(table.store))


def test_listings_that_lag_behind(table: Table, store: Store, proxy: Proxy, changed_since: dict[str, set[str]]) -> None:
    """Each listing is old three times: before the first change, and twice before the deletions."""
    proxy.always, proxy.concerns = "stale", OldListings(lambda asked: asked <= 3)
    expire(store)
    assert len(proxy.concerns.given & proxy.listings.keys()) >= 6
    after = copied(table.store)
    assert_sound(after, leaks=True)
    assert after.snapshot_ids()[0] == 5 and {"t", "late"} <= set(after.tag_names())
    left = states(after)
    assert left == {path: changed_since[path] for path in left}
    proxy.reset()
    expire(store)
    assert_sound(copied(table.store))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.every(2)
def test_listings_that_go_back_and_forth_lose_nothing(
    table: Table, store: Store, proxy: Proxy, changed_since: dict[str, set[str]], first: int
) -> None:
    proxy.always, proxy.concerns = "stale", OldListings(lambda asked: asked % 2 == first)
    expire(store)
    assert proxy.concerns.given & proxy.listings.keys()
    after = copied(table.store)
    assert_sound(after, leaks=True)
    left = states(after)
    assert left == {path: changed_since[path] for path in left}
    assert {"t", "late"} <= set(after.tag_names())


def test_a_storage_that_throttles(table: Table, proxy: Proxy, bucket: str, s3_endpoint: str) -> None:
    """Reads and changes are refused with 503 now and then; the client tries again, or the run ends and is repeated."""
    before = states(copied(table.store))
    retries = {"retries": {"total_max_attempts": 2, "mode": "standard"}}
    store = open_store(f"s3://{bucket}/t", {**storage_options(proxy.endpoint), "config_kwargs": retries})
    proxy.concerns = lambda request: "_airflow_paimon/probes" not in request.path
    proxy.plan = [*[*[""] * 9, "503"] * 6, *["503"] * 2]
    for tries in range(5):
        try:
            expire(store)
            break
        except PaimonError:
            assert tries < 4
            half = copied(table.store)
            assert_sound(half, leaks=True)
            after = states(half)
            assert after == {path: before[path] for path in after}
    assert proxy.plan == []
    done = copied(table.store)
    assert_sound(done)
    assert done.snapshot_ids() == [5]
