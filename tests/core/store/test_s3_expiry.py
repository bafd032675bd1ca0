"""Expiry on S3 that loses answers, refuses and breaks off: no root loses a file, and a re-run ends it."""

from __future__ import annotations

import time
import uuid

import pytest

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.requests.build import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.operations import perform
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.store import Store, open_store
from airflow_paimon.core.table.table import Table
from tests.core.tables import make_table, overwrite, run
from tests.s3_proxy import Proxy, Request
from tests.soundness import assert_sound, files_on_disk, states


def expire(store: Store) -> OperationResult:
    values = {"older_than": "0 s", "retain_min": 1, "grace": "0 s", "all_branches": True}
    request = build_request("expire_snapshots", {"warehouse": "w", "table": "d.t", **values})
    return perform(Context(request, Table(store, "d.t"), int(time.time() * 1000) + 1000, 0.0), request, None)


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


def copied(direct: Store) -> Table:
    """The table as it is now, in memory, where looking at it takes no requests."""
    store = open_store(f"memory://{uuid.uuid4()}/t")
    paths = direct.walk("")
    for path, data in zip(paths, direct.read_many(paths), strict=True):
        store.create(path, data)
    return Table(store, "d.t")


@pytest.mark.parametrize(
    ("fault", "at"), [("apply-reset", 3), ("apply-reset", 10), ("500", 10), ("down", 4), ("down", 12)]
)
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
    for at in (0, 40, 80):
        proxy.plan = [*([""] * at), *["403"] * 20]
        with pytest.raises(PaimonError):
            expire(store)
        assert not [r for r in proxy.requests if is_change(r)]
