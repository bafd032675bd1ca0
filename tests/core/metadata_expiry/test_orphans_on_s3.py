"""remove_orphan_files on S3, behind a proxy: ages by the server's clock, lost answers, and a storage that goes away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform, run_operation
from tests.core.metadata_expiry.test_remove_orphan_files import ORPHANS, Aged, plant
from tests.core.tables import COLUMNS, append, names, overwrite
from tests.s3_proxy import OldListings, Proxy, s3_proxy
from tests.s3_server import make_bucket, s3_server, storage_options
from tests.soundness import named_files


@pytest.fixture(scope="module")
def proxies() -> Iterator[tuple[str, Proxy]]:
    with s3_server(page_size=4) as endpoint, s3_proxy(endpoint) as proxy:
        yield endpoint, proxy


@pytest.fixture
def proxy(proxies: tuple[str, Proxy]) -> Proxy:
    proxies[1].reset()
    return proxies[1]


@pytest.fixture
def main(proxies: tuple[str, Proxy], proxy: Proxy) -> Table:
    options = {**storage_options(proxy.endpoint), "config_kwargs": {"retries": {"total_max_attempts": 1}}}
    table = create_table(
        f"s3://{make_bucket(proxies[0])}/wh",
        "d.t",
        COLUMNS,
        partition_keys=["dt"],
        primary_keys=["dt", "k"],
        options={"bucket": "2"},
        storage_options=options,
    )
    append(table, "a")
    overwrite(table, "a", 1, seq=5)
    plant(table)
    return table


def clean(main: Table, proxy: Proxy, store: Store) -> dict[str, Any]:
    values = {"warehouse": main.store.uri.rsplit("/", 2)[0], "table": "d.t"}
    values["storage_options"] = storage_options(proxy.endpoint)
    context = open_context(build_request("remove_orphan_files", values))
    result = perform(replace(context, table=replace(main, store=store)), context.request)
    return dict(result.details)


def test_ages_count_by_the_servers_clock_and_orphans_go(main: Table, proxy: Proxy) -> None:
    needed = names(main)
    kept = clean(main, proxy, main.store)
    assert (kept["files"], kept["young"]["files"]) == (0, len(ORPHANS))
    assert clean(main, proxy, Aged(main.store))["files"] == len(ORPHANS)
    left = set(main.store.walk(""))
    assert left.isdisjoint(ORPHANS) and names(main) == needed
    assert not [path for path in left if "/clock/" in path]


@pytest.mark.parametrize("fault", ["apply-reset", "apply-500", "500", "reset"])
@pytest.mark.every(4)
def test_deletions_whose_answers_are_lost_are_tried_again(main: Table, proxy: Proxy, fault: str) -> None:
    proxy.concerns = lambda request: request.method in ("DELETE", "POST") and "/data-" in request.path
    proxy.plan = [fault] * 2
    assert clean(main, proxy, Aged(main.store))["files"] == len(ORPHANS)
    assert proxy.plan == [] and set(main.store.walk("")).isdisjoint(ORPHANS)


@pytest.mark.parametrize("at", [1, 4, 9])
@pytest.mark.every(3, first=2)
def test_a_storage_that_goes_away_and_comes_back(main: Table, proxy: Proxy, at: int) -> None:
    needed, seen = names(main), []

    def is_nth_delete(request: Any) -> bool:
        seen.append(request.method)
        return request.method == "DELETE" and seen.count("DELETE") == at

    proxy.concerns, proxy.plan = is_nth_delete, ["apply-down"]
    with pytest.raises(PaimonError):
        clean(main, proxy, Aged(main.store))
    proxy.reset()
    clean(main, proxy, Aged(main.store))
    assert set(main.store.walk("")).isdisjoint(ORPHANS) and names(main) == needed


def test_nothing_is_deleted_when_a_listing_breaks_off(main: Table, proxy: Proxy) -> None:
    before = main.store.walk("")
    proxy.concerns = lambda request: request.method == "GET" and "list-type" in request.path
    for fault in ("500", "half", "403"):
        proxy.plan, proxy.always = [], fault
        with pytest.raises(PaimonError):
            clean(main, proxy, Aged(main.store))
    proxy.reset()
    left = [path for path in main.store.walk("") if "/clock/" not in path]
    assert left == before


@pytest.mark.parametrize("back_and_forth", [False, True])
@pytest.mark.every(2)
def test_listings_that_lag_behind(main: Table, proxy: Proxy, back_and_forth: bool) -> None:
    """Since they were true, a snapshot got a tag and expired: only the tag, which they lack, holds its old files.

    That of tags is old at the first look at the roots; or all of them are old every second time.
    """
    proxy.remembers = True
    clean(main, proxy, main.store)
    proxy.remembers = False
    values = {"warehouse": main.store.uri.rsplit("/", 2)[0], "table": "d.t"}
    values["storage_options"] = storage_options(proxy.endpoint)
    run_operation(build_request("create_tag", {**values, "tag": "late", "snapshot": 1}))
    later = {
        "older_than": "0 s",
        "retain_min": 1,
        "grace": "0 s",
        "writers_stopped": True,
        "now": str(int(time.time() * 1000) + 5000),
    }
    assert run_operation(build_request("expire_snapshots", {**values, **later})).details["expired"]
    named = named_files(main)
    held = named["tag/tag-late"]
    assert [p for p in held - named["snapshot/snapshot-2"] if p.endswith(".parquet")]
    if back_and_forth:
        pick = OldListings(lambda asked: asked % 2 == 0)
        proxy.always, proxy.concerns = "stale", lambda request: "clock" not in request.path and pick(request)
    else:
        pick = OldListings(lambda asked: asked <= 2)
        proxy.always, proxy.concerns = "stale", lambda request: "t%2Ftag%2F" in request.path and pick(request)
    clean(main, proxy, Aged(main.store))
    assert pick.given & proxy.listings.keys()
    proxy.reset()
    left = set(main.store.walk(""))
    assert held <= left
    assert left.isdisjoint(ORPHANS)
