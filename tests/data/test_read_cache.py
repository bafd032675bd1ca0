"""No operation reads a manifest, a manifest list or an index manifest twice."""

from __future__ import annotations

import random
import re
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.errors import NotFoundError, StorageError
from airflow_paimon.core.requests import context
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.requests.operations import operation_of
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.store import open_store
from airflow_paimon.core.store.base import run_parallel
from airflow_paimon.core.table.read_cache import FileCache, cached_reads, read_files
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.execution import run_here
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.core.tables import copied
from tests.data.chain.tables import DAYS, chain_table
from tests.stores import CountingStore

COLUMNS = [("k", "BIGINT"), ("v", "STRING"), ("dt", "STRING")]


def rows(day: str, *keys: int) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "v": ["x"] * len(keys), "dt": [day] * len(keys)})


def asked(table: Table, operation: str, **values: Any) -> OperationResult:
    """Run an operation on a table, wherever that is said to lie."""
    warehouse = table.store.uri.rsplit("/", 2)[0]
    request = build_request(operation, {"warehouse": warehouse, "table": table.name, **values})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "open_table", lambda *_, **__: table)
        if operation_of(operation).in_python or not operation_of(operation).needs_spark:
            return run_here(request)
        found = run_before_spark(request)
    assert found is not None, f"{operation} needs Spark"
    return found


def used(*, keyed: bool, **options: str) -> Table:
    """A table of three partitions, and a branch ``fix``; both were changed since, the branch in partition ``a``."""
    columns = [(n, t + (" NOT NULL" if keyed and n != "v" else "")) for n, t in COLUMNS]
    options = {"bucket": "2" if keyed else "-1", **options}
    table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", columns, partition_keys=["dt"],
                         primary_keys=["dt", "k"] if keyed else [], options=options)  # fmt: skip
    for turn in range(6):
        write_arrow(table, rows("abc"[turn % 3], *random.Random(turn).sample(range(20), 5)))
    asked(table, "create_tag", tag="base")
    for branch in ("fix", "same"):
        asked(table, "create_branch", branch=branch, tag="base")
    write_arrow(table.branch("fix"), rows("a", 1, 2, 30))
    write_arrow(table.branch("fix"), rows("a", 2))
    write_arrow(table, rows("c", 1, 40))
    return table


def op(operation: str, **values: Any) -> Callable[[Table], object]:
    return lambda table: asked(table, operation, **values)


def by_sql(text: str, operation: str = "correct_branch") -> Callable[[Table], object]:
    def run(table: Table) -> OperationResult:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "statement.sql"
            path.write_text(text)
            return asked(table, operation, branch="fix", sql=str(path))

    return run


OPERATIONS: dict[str, tuple[int, Callable[[Table], object]]] = {
    "read": (2, read_arrow),
    "read of a partition": (2, lambda t: read_arrow(t, where=pc.field("dt") == "a")),
    "write": (4, lambda t: write_arrow(t, rows("a", 1, 2, 3))),
    "overwrite": (4, lambda t: write_arrow(t, rows("b", 1), mode="dynamic_overwrite")),
    "create_branch": (2, op("create_branch", branch="more", tag="base")),
    "merge_branch": (14, op("merge_branch", branch="fix")),
    "dry run of merge_branch": (10, op("merge_branch", branch="fix", dry_run=True)),
    "rollback_to": (12, op("rollback_to", snapshot=3)),
    "replace_main": (15, op("replace_main", branch="fix", discard_main=True)),
    "rebase_branch": (13, op("rebase_branch", branch="fix", to_branch="again")),
    "diff_branches": (6, op("diff_branches", branch="fix")),
    "diff_branches of equal branches": (6, op("diff_branches", branch="same")),
    "plan_correction": (9, by_sql("UPDATE branch SET v = 'y' WHERE dt = 'a' AND k = 1", "plan_correction")),
    "compact": (4, op("compact")),
    "compact_manifest": (3, op("compact_manifest")),
    "expire_partitions": (7, op("expire_partitions", expiration_time="1 d", timestamp_formatter="yyyy-MM-dd")),
    "expire_snapshots": (5, op("expire_snapshots", older_than="0 s", retain_min=1, grace="0 s", writers_stopped=True)),
    "check_table": (12, op("check_table")),
    "remove_orphan_files": (2, op("remove_orphan_files", dry_run=True)),
    "storage_usage": (2, op("storage_usage")),
}
"""With how often it reads one snapshot or schema at most.

These are read again because they can change under their names: another engine rolls a branch back, or deletes it and
makes it anew. A publish looks at both branches before and after it holds them, a commit reads back what it has put and
what that is based on, and several statements are as many commits that nobody else sees.
"""

ON_CHAINS: dict[str, tuple[int, Callable[[Table], object]]] = {
    "read": (7, read_arrow),
    "compact_chain_table": (20, op("compact_chain_table", partition="dt=20250811")),
    "check_table": (20, op("check_table")),
}


def check(table: Table, name: str, most: int, operation: Callable[[Table], object]) -> None:
    own = copied(table)
    store = CountingStore(own.store)
    operation(replace(own, store=store))
    read: Counter[str] = Counter()
    for method, uris in store.tally.log:
        if method in ("read", "read_many"):
            read.update(uri.removeprefix(own.store.uri + "/") for uri in uris.split(", "))
    manifests = {path: count for path, count in read.items() if path.startswith("manifest/")}
    assert bool(manifests) == (name != "create_branch"), name
    assert max(manifests.values(), default=1) == 1, (name, manifests)
    heads = {p: count for p, count in read.items() if re.search(r"(schema/schema|snapshot/snapshot)-\d+$", p)}
    assert max(heads.values()) <= most, (name, heads)


@pytest.mark.parametrize("keyed", [True, False])
def test_no_manifest_is_read_twice(keyed: bool) -> None:
    table = used(keyed=True) if keyed else used(keyed=False, **{"deletion-vectors.enabled": "true"})
    for name, (most, operation) in OPERATIONS.items():
        check(table, name, most, operation)


def test_no_manifest_of_a_chain_is_read_twice() -> None:
    table = chain_table(f"memory://{uuid.uuid4()}/wh", DAYS)
    for name, (most, operation) in ON_CHAINS.items():
        check(table, name, most, operation)


# -- what is kept ------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> CountingStore:
    found = CountingStore(open_store(f"memory://{uuid.uuid4()}/t"))
    for name in "abc":
        found.create(f"manifest/{name}", name.encode() * 10)
    found.tally.reset()
    return found


def test_only_what_was_not_read_is_asked_for(store: CountingStore) -> None:
    with cached_reads():
        assert read_files(store, ["manifest/a", "manifest/b", "manifest/a"]) == [b"a" * 10, b"b" * 10, b"a" * 10]
        with cached_reads():
            assert read_files(store, ["manifest/c", "manifest/b"]) == [b"c" * 10, b"b" * 10]
        with pytest.raises(NotFoundError):
            read_files(store, ["manifest/a", "manifest/none"])
        assert read_files(store, []) == []
    assert store.tally.requests == 3 + 1
    read_files(store, ["manifest/a"])
    read_files(store, ["manifest/a"])
    assert store.tally.requests == 4 + 2


def test_no_more_is_kept_than_allowed(store: CountingStore) -> None:
    kept = FileCache(25)
    for name in "abab":
        kept.read("here", [f"manifest/{name}"], store.read_many)
    assert store.tally.requests == 2
    for name in "acb":  # of a, b and c the one that was not asked for the longest goes
        kept.read("here", [f"manifest/{name}"], store.read_many)
    assert store.tally.requests == 4
    assert kept.bytes == 20
    kept = FileCache(19)
    assert [kept.read("here", ["manifest/a"], store.read_many) for _ in range(2)] == [[b"a" * 10]] * 2
    assert store.tally.requests == 6
    assert kept.bytes == 0


def test_threads_that_need_the_same_file_read_it_once(store: CountingStore) -> None:
    begun, go = threading.Event(), threading.Event()

    class Slow(CountingStore):
        remote = True

        def read_many(self, paths: Sequence[str]) -> list[bytes]:
            begun.set()
            assert go.wait(500)
            return super().read_many(paths)

    slow = Slow(store.inner)

    def second() -> list[bytes]:
        assert begun.wait(500)
        threading.Timer(0.05, go.set).start()
        return read_files(slow, ["manifest/b", "manifest/a"])

    with cached_reads():
        found = run_parallel(slow, [lambda: read_files(slow, ["manifest/a"]), second])
    assert found == [[b"a" * 10], [b"b" * 10, b"a" * 10]]
    assert slow.tally.requests == 2


def test_a_read_that_fails_is_tried_again_by_who_waits_for_it(store: CountingStore) -> None:
    begun, go = threading.Event(), threading.Event()

    class Failing(CountingStore):
        remote = True

        def read_many(self, paths: Sequence[str]) -> list[bytes]:
            if not begun.is_set():
                begun.set()
                assert go.wait(500)
                raise StorageError("no answer")
            return super().read_many(paths)

    failing = Failing(store.inner)

    def first() -> None:
        with pytest.raises(StorageError):
            read_files(failing, ["manifest/a"])

    def second() -> list[bytes]:
        assert begun.wait(500)
        threading.Timer(0.05, go.set).start()
        return read_files(failing, ["manifest/a"])

    with cached_reads():
        assert run_parallel(failing, [first, second]) == [None, [b"a" * 10]]  # type: ignore[list-item]
