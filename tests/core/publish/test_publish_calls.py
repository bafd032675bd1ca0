"""What a publish asks the storage between its look at main's head and its snapshot: the window in which it may lose."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.commit.files import commit_append, commit_buckets
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import append, make_table, message, run
from tests.stores import CountingStore, FaultStore


def filled(folder: Path, buckets: int, commits: int) -> Table:
    """Two partitions of ``buckets`` buckets, rewritten on branch ``fix``; main goes on with ``commits`` commits."""
    table = make_table(folder, bucket=str(buckets))
    first = [message(table, dt, b) for dt in "ab" for b in range(buckets)]
    commit_append(table, first, planned_on=None)
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    rewrite_all(fix)
    for number in range(commits):
        append(table, "z", seq=number)
    return table


def rewrite_all(view: Table) -> None:
    live = live_entries(view, view.latest_snapshot()).values()
    new = []
    for e in live:
        dt = "a" if b"a" in e.partition[-8:] else "b"
        files = message(view, dt, e.bucket, level=5).new_files
        new.append(CommitMessage(partition=e.partition, bucket=e.bucket, total_buckets=e.total_buckets,
                                 new_files=files, replaced=(e.file,)))  # fmt: skip
    commit_buckets(view, new)


def window(table: Table, store: Any, tally: Any, operation: str, **values: Any) -> Counter[str]:
    """The calls, by kind, from the look at the head to the put of the snapshot that follows it."""
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    context = open_context(build_request(operation, {"warehouse": warehouse, "table": table.name, **values}))
    context = type(context)(context.request, Table(store, table.name), context.now_ms, context.started)
    head = table.latest_snapshot_id() or 0
    tally.reset()
    perform(context, context.request)
    end = next(i for i, (m, uri) in enumerate(tally.log) if m == "create" and uri.endswith(f"snapshot-{head + 1}"))
    return Counter(m for m, _ in tally.log[:end])


@pytest.mark.parametrize("operation", ["merge_branch", "rollback_to"])
def test_listings_and_reads_do_not_grow_with_buckets_or_commits(tmp_path: Path, operation: str) -> None:
    counts = []
    for buckets, commits in ((3, 3), (24, 20)):
        table = filled(tmp_path / f"{buckets}", buckets, commits)
        store = CountingStore(table.store)
        values: dict[str, Any] = {"branch": "fix"}
        if operation == "rollback_to":
            run(table, "merge_branch", branch="fix")
            values = {"snapshot": 1}
        counts.append(window(table, store, store.tally, operation, **values))
    few, many = counts
    assert many["names"] == few["names"]
    assert many["walk"] == few["walk"] <= 2
    assert many["read"] - few["read"] <= 2
    assert many["read_many"] == few["read_many"]


def test_files_are_looked_for_once_however_often_the_race_is_lost(tmp_path: Path) -> None:
    table = filled(tmp_path, 6, 0)
    lost = {"left": 3}

    def compete(method: str, path: str) -> None:
        if lost["left"] and path.startswith("snapshot/snapshot-"):
            lost["left"] -= 1
            append(table, "a", bucket=40 + lost["left"])

    counting = CountingStore(FaultStore(table.store, on_mutation=compete))
    window(table, counting, counting.tally, "merge_branch", branch="fix")
    assert not lost["left"]
    assert counting.tally.calls["walk"] == 2


def test_a_merge_reads_each_tag_once(tmp_path: Path) -> None:
    table = filled(tmp_path, 3, 3)
    names = [f"user-{n}" for n in range(3)]
    for name in names:
        run(table, "create_tag", tag=name, snapshot=2)
    store = CountingStore(table.store)
    context = open_context(build_request("merge_branch", {"warehouse": str(tmp_path), "table": "d.t", "branch": "fix"}))
    context = type(context)(context.request, Table(store, table.name), context.now_ms, context.started)
    assert perform(context, context.request).changed
    for name in names:
        assert sum(f"tag/tag-{name}" in uri for method, uri in store.tally.log if method.startswith("read")) == 1


def test_reads_of_mains_tags_do_not_grow_with_the_branchs_tags(tmp_path: Path) -> None:
    reads = []
    for count in (1, 6):
        table = filled(tmp_path / f"{count}", 1, 1)
        run(table, "create_tag", tag="main", snapshot=2)
        for number in range(count):
            rewrite_all(table.branch("fix"))
            run(table, "create_tag", tag=f"t{number}", branch="fix")
        store = CountingStore(table.store)
        window(table, store, store.tally, "replace_main", branch="fix", discard_main=True)
        reads.append(sum("tag/tag-main" in uri for method, uri in store.tally.log if method.startswith("read")))
    assert reads[0] == reads[1] > 0


def test_a_tag_that_is_another_since_is_read_again(tmp_path: Path) -> None:
    table = filled(tmp_path, 1, 3)
    run(table, "create_tag", tag="t", snapshot=1)
    run(table, "create_tag", tag="gone", snapshot=1)
    view = table.with_cached_tags()
    assert [(t.name, t.snapshot.id) for t in view.cached_tags() if "-" not in t.name] == [("gone", 1), ("t", 1)]
    run(table, "delete_tag", tag="gone")
    run(table, "delete_tag", tag="t")
    run(table, "create_tag", tag="t", snapshot=3, time_retained="7 d")
    assert [(t.name, t.snapshot.id) for t in view.cached_tags() if "-" not in t.name] == [("t", 3)]
    assert view.branch("fix").cached_tags() == view.branch("fix").tags()
    assert view.cached_tags() == table.cached_tags()
