"""Writes into dynamic buckets: what their commits keep, what a damaged index does, and writers that meet."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_paimon.core.check.check import rebuild_hash_indexes
from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions, Draft
from airflow_paimon.core.commit.files import commit_append, commit_buckets
from airflow_paimon.core.commit.restore import restore_partitions
from airflow_paimon.core.errors import ConflictError, FormatError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.hash_index import Hashes, extended_hash_index
from airflow_paimon.core.format.manifest import IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.table.dynamic_buckets_plan import ByBucket
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import dynamic_buckets, read_arrow, write_arrow
from airflow_paimon.data.arrow_write import commit_write
from airflow_paimon.data.check_rows import key_hashes
from airflow_paimon.data.drop import drop_partitions
from airflow_paimon.data.dynamic_buckets import Assigners, DynamicBuckets, with_hash_indexes
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.moving_keys import complete_messages
from airflow_paimon.data.rewrite import fold_buckets
from airflow_paimon.data.task_messages import merged_messages
from airflow_paimon.data.write import (
    TableWrite,
    WriteMode,
    bucket_groups,
    discard_files,
    plan_write,
    write_placed_rows,
    write_rows,
)
from tests.core.tables import run
from tests.data.hash_indexes import DYNAMIC, check_indexes, indexed
from tests.data.tables import make_table, rows_of
from tests.randomness import chance
from tests.stores import FaultStore

COLUMNS = {"k": "BIGINT NOT NULL", "v": "STRING", "p": "STRING NOT NULL"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    options = {k.replace(".", "__").replace("-", "_"): v for k, v in DYNAMIC.items()}
    return make_table(tmp_path, COLUMNS, primary_keys=["p", "k"], partition_keys=["p"], **options)


def rows(keys: Sequence[int], v: str, p: str = "x") -> pa.Table:
    return rows_of(COLUMNS, [{"p": p, "k": k, "v": v} for k in keys])


def shown(table: Table) -> dict[tuple[str, int], str]:
    found = read_arrow(table).to_pylist()
    out = {(r["p"], r["k"]): r["v"] for r in found}
    assert len(out) == len(found), "a key was read twice"
    return out


def files_of_tasks(write: TableWrite, *tasks: pa.Table) -> list[list[CommitMessage]]:
    return [write_rows(write, [conform_rows(t, write.schema, write.label)]) for t in tasks]


def index_files(table: Table) -> set[str]:
    return set(table.store.names("index"))


def test_the_first_commit_of_a_table_has_the_index_of_its_buckets(table: Table) -> None:
    """As of a statement, which replaces whole buckets. No commit here has a changelog, not even an empty one."""
    write = plan_write(table, by_buckets=True)
    (files,) = files_of_tasks(write, rows([1, 2], "a"))
    commit_buckets(table, with_hash_indexes(write.dynamic, files), assigned=(None,))
    check_indexes(table)
    write_arrow(table, rows([2, 3], "b"))
    assert shown(table) == {("x", 1): "a", ("x", 2): "b", ("x", 3): "b"}
    assert [s.changelog_manifest_list for s in table.snapshots()] == [None, None]


def test_known_keys_leave_the_index_as_it_is(table: Table) -> None:
    write_arrow(table, rows(range(6), "a"))
    before = index_files(table)
    first = indexed(table)
    write_arrow(table, rows(range(3, 6), "b"))
    assert index_files(table) == before and indexed(table) == first
    write_arrow(table, rows([5, 6], "c"))
    assert len(index_files(table) - before) == 1, "only the bucket with a new key gets another index"
    assert check_indexes(table).keys() == {(("x",), 0), (("x",), 1)}


def test_dropped_partitions_take_their_indexes_along(table: Table) -> None:
    write_arrow(table, rows(range(6), "a"))
    write_arrow(table, rows(range(3), "a", "y"))
    drop_partitions(table, [{"p": "x"}])
    assert {p for p, _ in check_indexes(table)} == {("y",)}
    write_arrow(table, rows(range(9), "b"))
    assert len(shown(table)) == 12


@pytest.mark.parametrize("meeting", ["append", "overwrite", "drop", "delete"])
def test_a_write_planned_before_another_commit_is_planned_again(table: Table, meeting: str) -> None:
    """Both give key 7 a bucket; whoever commits second has to see the other's choice."""
    write_arrow(table, rows(range(4), "a"))

    def other(method: str, path: str) -> None:
        if method == "create" and path.startswith("snapshot/") and not done:
            done.append(path)
            if meeting == "append":
                write_arrow(table, rows([8, 9, 10, 7], "other"))
            elif meeting == "overwrite":
                write_arrow(table, rows([7, 20, 21, 22, 23, 0], "other"), mode="overwrite", partition={"p": "x"})
            elif meeting == "drop":
                drop_partitions(table, [{"p": "x"}])
            else:
                gone = rows([0], "a").append_column("_row_kind", pa.array(["-D"]))
                write_arrow(table, gone)

    done: list[str] = []
    write_arrow(Table(FaultStore(table.store, on_mutation=other), table.name), rows([7, 0, 11, 12], "ours"))
    assert done
    assert {k: v for (_, k), v in shown(table).items() if k in (7, 0, 11)} == dict.fromkeys((7, 0, 11), "ours")
    check_indexes(table)
    write_arrow(table, rows(range(25), "last"))
    assert set(shown(table).values()) == {"last"}
    assert index_files(table) >= {e.file_name for e in read_index_entries(table, table.latest_snapshot())}


def test_a_commit_to_another_partition_does_not_disturb(table: Table) -> None:
    write_arrow(table, rows(range(4), "a"))
    write = plan_write(table)
    [messages] = files_of_tasks(write, rows([3, 4], "b"))
    write_arrow(table, rows(range(4), "other", "y"))
    commit_append(table, with_hash_indexes(write.dynamic, messages), planned_on=write.planned_on)
    assert len(shown(table)) == 9
    check_indexes(table)


def test_files_of_a_refused_write_are_deleted_with_its_index(table: Table) -> None:
    write_arrow(table, rows(range(4), "a"))
    write = plan_write(table)
    messages = with_hash_indexes(write.dynamic, files_of_tasks(write, rows([4], "b"))[0])
    before = index_files(table)
    write_arrow(table, rows([5], "other"))
    with pytest.raises(ConflictError, match="partition p=x after the dynamic buckets"):
        commit_write(table, write, messages, WriteMode(), CommitOptions())
    discard_files(write, messages)
    live = {e.file_name for e in read_index_entries(table, table.latest_snapshot())}
    assert index_files(table) & before - live != before - live


def test_a_process_does_not_read_the_index_that_it_has_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another writer has extended it meanwhile, or it is small."""
    options = {"bucket": "-1", "dynamic_bucket__target_row_num": "50"}
    table = make_table(tmp_path, COLUMNS, primary_keys=["p", "k"], partition_keys=["p"], **options)
    random, model, read = chance("kept indexes"), dict[int, str](), list[int]()
    plain, other = dynamic_buckets.DynamicBuckets._read, dynamic_buckets._ReadIndexes()

    def counted(self: DynamicBuckets, partition: bytes, entries: Sequence[IndexEntry]) -> list[Hashes]:
        read.append(len(entries))
        return plain(self, partition, entries)

    def reads_of(label: str) -> bool:
        keys = random.sample(range(400), 30)
        write_arrow(table, rows(keys, label))
        model.update(dict.fromkeys(keys, label))
        found = bool(read)
        read.clear()
        return found

    monkeypatch.setattr(dynamic_buckets.DynamicBuckets, "_read", counted)
    assert not reads_of("first")
    assert [reads_of(f"small {n}") for n in range(3)] == [True] * 3
    monkeypatch.setattr(dynamic_buckets, "_LEAST_KEPT", 1)
    assert [reads_of(f"large {n}") for n in range(5)] == [True, *[False] * 4]
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(dynamic_buckets, "_seen", other)
        assert reads_of("another process")
    assert [reads_of(f"after it {n}") for n in range(3)] == [True, False, False]
    assert {k: v for (_, k), v in shown(table).items()} == model
    assert len(check_indexes(table)) > 3


def test_a_process_keeps_the_last_index_of_each_partition(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before are of no use, and took the memory of every process that had seen many commits."""
    monkeypatch.setattr(dynamic_buckets, "_seen", seen := dynamic_buckets._ReadIndexes())
    written: dict[str, set[int]] = {"p0": set(), "p1": set()}
    for n in range(6):
        partition, keys = f"p{n % 2}", list(range(n * 10, n * 10 + 20))
        write_arrow(table, rows(keys, "a", partition))
        written[partition].update(keys)
    write_arrow(table, pa.concat_tables([rows([0], "b", "p0"), rows([10], "b", "p1")]))
    assert sum(known.nbytes for _, known in seen._known.values()) == seen._bytes
    assert seen._bytes == 4 * sum(len(keys) for keys in written.values())


def test_a_process_holds_no_more_memory_for_an_index_than_it_counts(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read together is one piece of memory, and one bucket's part would keep it for that of the others."""
    write_arrow(table, rows(range(5), "a"))
    monkeypatch.setattr(dynamic_buckets, "_seen", seen := dynamic_buckets._ReadIndexes())
    monkeypatch.setattr(dynamic_buckets, "_LEAST_KEPT", 1)
    dynamic = plan_write(table).dynamic
    assert dynamic is not None
    (partition,) = dynamic.indexes
    dynamic.assigner(partition)
    first = dynamic.hashes(partition, 0)
    dynamic.keep_extended(partition, {0: ("index-new", extended_hash_index(first, np.array([9], np.int32)))})
    [(_, known)] = seen._known.values()
    assert isinstance(known, ByBucket)
    assert sorted(len(hashes) for _, hashes in known.parts) == [1, 5]
    held = {id(h if h.base is None else h.base): (h if h.base is None else h.base).nbytes for _, h in known.parts}
    assert sum(held.values()) == seen._bytes == 6 * 4


def test_the_work_for_an_index_does_not_grow_with_the_number_of_indexes(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    class Counted(bytes):
        def __len__(self) -> int:
            looked.append(1)
            return super().__len__()

    def nbytes(known: ByBucket) -> int:
        looked.append(1)
        return sum(hashes.nbytes for _, hashes in known.parts)

    made = dynamic_buckets._extended
    monkeypatch.setattr(dynamic_buckets, "_extended", lambda *given: Counted(made(*given)))
    monkeypatch.setattr(ByBucket, "nbytes", property(nbytes))
    for key in (1, 2):
        write_arrow(table, pa.concat_tables([rows([key], "a", f"p{n}") for n in range(60)]))
        assert 60 <= len(looked) <= 60 * 10
        looked.clear()
    assert len(check_indexes(table)) == 60


@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize("keys", [["p", "k"], ["k"]])
def test_tasks_that_get_known_buckets_with_their_rows_write_the_same(
    tmp_path: Path, keys: list[str], case: int
) -> None:
    """As Spark's tasks do: one looks the keys up, another one writes, and is sent neither hashes nor keys."""
    random = chance(f"placed {keys} {case}")
    options = {"bucket": "-1", "dynamic_bucket__target_row_num": "5"}
    table = make_table(tmp_path, COLUMNS, primary_keys=keys, partition_keys=["p"], **options)
    homes = {k: random.choice("xy") for k in range(60)}

    def some(v: str) -> pa.Table:
        chosen = random.choices(list(homes), k=25)
        return pa.concat_tables([rows([k], v, homes[k]) for k in chosen])

    write_arrow(table, some("old"))
    write_arrow(table, some("more"))
    write = plan_write(table, tasks=3)
    given = conform_rows(some("new"), write.schema, write.label)
    groups, known = bucket_groups(write, given, Assigners(write.dynamic))
    assert known is not None and 0 < (known >= 0).sum() < len(known)
    told = pickle.loads(pickle.dumps(write.after_look_up()))
    assert told.dynamic.places is None and not told.dynamic.indexes
    looked_up, placed = [], []
    for group in sorted(set(groups.tolist())):
        at = np.flatnonzero(groups == group)
        mine = given.take(pa.array(at))
        looked_up += write_rows(write, [mine])
        placed += write_placed_rows(told, [(mine, known[at])])

    def what(messages: list[CommitMessage]) -> list[Any]:
        return [
            (m.partition, m.bucket, m.hashes, [(f.row_count, f.min_key, f.max_key) for f in m.new_files])
            for m in messages
        ]

    assert what(placed) == what(looked_up)
    messages = complete_messages(table, write, placed, WriteMode())
    commit_write(table, write, messages, WriteMode(), CommitOptions())
    assert {k for (_, k), v in shown(table).items() if v == "new"} == set(given.column("k").to_pylist())
    if keys == ["p", "k"]:
        check_indexes(table)


def test_a_task_without_an_index_refuses_rows_without_their_known_buckets(table: Table) -> None:
    write_arrow(table, rows([1, 2], "old"))
    placed = plan_write(table).after_look_up()
    with pytest.raises(AssertionError, match="rows came without their buckets"):
        write_rows(placed, [conform_rows(rows([1], "new"), placed.schema, placed.label)])
    assert read_arrow(table).num_rows == 2


@pytest.mark.parametrize("case", range(3))
@pytest.mark.parametrize("overwrite", [False, True])
def test_tasks_that_get_rows_as_they_come_agree(table: Table, case: int, overwrite: bool) -> None:
    """As the data source writes: the rows of a key are in any task, several times."""
    random = chance(f"tasks {case}")
    write_arrow(table, rows(range(random.randint(1, 12)), "old"))
    write = plan_write(table, overwrite=overwrite, tasks_share_buckets=True)
    given = [rows([random.randrange(40) for _ in range(15)], f"task {i}", random.choice("xy")) for i in range(4)]
    messages = merged_messages(write, files_of_tasks(write, *given))
    messages = with_hash_indexes(write.dynamic, messages)
    commit_write(table, write, messages, WriteMode("overwrite" if overwrite else "append"), CommitOptions())
    wanted = {(r["p"], r["k"]) for t in given for r in t.to_pylist()}
    assert {k for k, v in shown(table).items() if v != "old"} == wanted
    check_indexes(table)
    write_arrow(table, pa.concat_tables([rows(range(50), "last"), rows(range(50), "last", "y")]))
    assert set(shown(table).values()) == {"last"}


def _remove(table: Table) -> None:
    name = read_index_entries(table, table.latest_snapshot())[0].file_name
    table.store.delete(f"index/{name}")


def _cut(table: Table) -> None:
    name = read_index_entries(table, table.latest_snapshot())[0].file_name
    table.store.replace(f"index/{name}", table.store.read(f"index/{name}")[:-4])


def _copy(table: Table) -> None:
    """The hashes of bucket 0 in bucket 1 as well: what two writers leave who don't see each other."""
    first, second = sorted(read_index_entries(table, table.latest_snapshot()), key=lambda e: e.bucket)[:2]
    table.store.replace(f"index/{second.file_name}", table.store.read(f"index/{first.file_name}"))


def _forget(table: Table) -> None:
    """A snapshot without its index manifest."""
    head = table.latest_snapshot()
    assert head is not None
    path = table.paths.snapshot(head.id)
    found = json.loads(table.store.read(path))
    del found["indexManifest"]
    table.store.replace(path, json.dumps(found).encode())


DAMAGES: dict[str, tuple[Callable[[Table], None], str, str]] = {
    "missing": (_remove, "a hash index is missing", "missing-files"),
    "cut": (_cut, "the hash index has 12 bytes", "hash-index"),
    "twice": (_copy, "key hashes are in the index of two buckets, the first of them in 0 and 1", "hash-index"),
    "forgotten": (_forget, "bucket 0 has data files but no hash index", "hash-index"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_stops_writes_until_the_partition_is_written_anew(table: Table, damage: str) -> None:
    write_arrow(table, rows(range(8), "a"))
    act, said, finding = DAMAGES[damage]
    act(table)
    head = table.latest_snapshot_id()
    with pytest.raises(FormatError, match=f"{said}.*mode=overwrite"):
        write_arrow(table, rows([1, 9], "b"))
    assert finding in {f["id"].partition(":")[0] for f in run(table, "check_table").details["findings"]}
    assert table.latest_snapshot_id() == head
    write_arrow(table, rows([1], "other partition", "y"))
    write_arrow(table, rows(range(8), "c"), mode="overwrite", partition={"p": "x"})
    write_arrow(table, rows([1, 9], "d"))
    assert shown(table)["x", 1] == "d" and len(shown(table)) == 10
    check_indexes(table)
    assert run(table, "check_table").details["ok"]


def _lose(table: Table) -> None:
    """An index without some keys of its bucket: what another writer's commit leaves of ours."""
    head = table.latest_snapshot()
    index = read_index_entries(table, head)
    name = f"index-{uuid.uuid4()}-0"
    table.store.create(f"index/{name}", table.store.read(f"index/{index[0].file_name}")[8:])
    fewer = index[0]._replace(file_name=name, row_count=index[0].row_count - 2, file_size=index[0].file_size - 8)
    commit(table, lambda _: Draft(kind=CommitKind.APPEND, entries=(), index_entries=[fewer, *index[1:]],
                                  schema=table.schema()))  # fmt: skip


def findings(table: Table, **asked: Any) -> dict[str, dict[str, Any]]:
    return {f["id"]: f for f in run(table, "check_table", **asked).details["findings"]}


@pytest.mark.parametrize("damage", [*DAMAGES, "lost"])
def test_an_index_is_built_anew_from_the_keys_of_the_files(table: Table, damage: str) -> None:
    """Also those of deleted rows, whose records are in the bucket. Only when it is asked for, as writers must stop."""
    write_arrow(table, rows(range(8), "a"))
    write_arrow(table, rows([1], "y", "y"))
    gone = rows([2], "gone")
    write_arrow(table, gone.append_column("_row_kind", pa.array(["-D"])))
    (DAMAGES[damage][0] if damage in DAMAGES else _lose)(table)
    head, before = table.latest_snapshot(), shown(table)
    assert head is not None
    name = "hash-index:main"
    assert (name in findings(table)) == (damage != "lost")
    found = findings(table, verify_keys=True)[name]
    assert "stop the table's writers" in found["repair"] and found["by_name_only"]
    assert ("lacks 2 of its 4 key hashes" in found["message"]) == (damage == "lost")
    assert not run(table, "repair_table").changed
    planned = run(table, "repair_table", finding=(name,), dry_run=True).details["plan"]["actions"]
    assert [a["path"] for a in planned] == ["main: p=x", "main: p=y"] if damage == "forgotten" else ["main: p=x"]
    assert table.latest_snapshot() == head
    repaired = run(table, "repair_table", finding=(name,))
    assert (repaired.snapshot_before, repaired.snapshot_after) == (head.id, head.id + 1)
    assert run(table, "check_table", verify_keys=True).details["ok"]
    check_indexes(table)
    assert shown(table) == before
    write_arrow(table, rows(range(12), "b"))
    assert set(shown(table).values()) == {"b", "y"} and len(shown(table)) == 13
    check_indexes(table)
    with pytest.raises(InvalidInputError, match="no finding"):
        run(table, "repair_table", finding=(name,))


def test_keys_in_two_buckets_are_found_and_no_index_hides_them(table: Table) -> None:
    write_arrow(table, rows(range(8), "a"))
    (message,) = files_of_tasks(plan_write(table), rows([1], "b"))[0]
    folder, other = Path(table.store.uri.removeprefix("file://")) / "p=x", 1 - message.bucket
    for file in message.new_files:
        (folder / f"bucket-{message.bucket}" / file.file_name).rename(folder / f"bucket-{other}" / file.file_name)
    commit_append(table, [replace(message, bucket=other)], planned_on=table.latest_snapshot())
    found = findings(table, verify_keys=True)
    assert "1 key hashes are in files of two buckets" in found["keys-in-two-buckets:main"]["message"]
    assert found["keys-in-two-buckets:main"]["repair"] is None
    before = index_files(table)
    with pytest.raises(UnsafeOperationError, match=r"p=x are in the wrong buckets.*mode=overwrite"):
        rebuild_hash_indexes(table, {s.partition for s in plan_scan(table).splits}, key_hashes)
    assert index_files(table) == before
    write_arrow(table, rows(range(8), "c"), mode="overwrite", partition={"p": "x"})
    assert run(table, "check_table", verify_keys=True).details["ok"]


def test_a_commit_meanwhile_stops_the_repair(table: Table) -> None:
    write_arrow(table, rows(range(8), "a"))
    _forget(table)
    before = index_files(table)

    def slowly(view: Table, head: Snapshot, partitions: Any) -> Any:
        write_arrow(view, rows([1], "other", "y"))
        return key_hashes(view, head, partitions)

    with pytest.raises(ConflictError, match="stop the writers"):
        rebuild_hash_indexes(table, {s.partition for s in plan_scan(table).splits}, slowly)
    assert len(index_files(table) - before) == 1  # that of the other partition
    assert "hash-index:main" in findings(table)


def test_a_publish_of_new_keys_asks_whether_writers_are_stopped(table: Table) -> None:
    """A writer that stays open on main would give the same key another bucket."""
    write_arrow(table, rows(range(4), "a"))
    run(table, "create_branch", branch="known", snapshot=1)
    run(table, "create_branch", branch="new", snapshot=1)
    write_arrow(table.branch("known"), rows([2], "b"))
    write_arrow(table.branch("new"), rows([9], "b"))
    with pytest.raises(UnsafeOperationError, match=r"p=x/bucket-1 of the branch have other keys.*--writers-stopped"):
        run(table, "merge_branch", branch="new")
    plan = plan_scan(table.branch("known"))
    fold_buckets(table.branch("known"), {BucketKey(s.partition, s.bucket): 3 for s in plan.splits})
    run(table, "merge_branch", branch="known")
    check_indexes(table)
    assert shown(table)["x", 2] == "b"
    run(table, "create_branch", branch="same", snapshot=table.latest_snapshot_id())
    write_arrow(table.branch("same"), rows(range(4), "c"), mode="overwrite")
    undo = run(table, "merge_branch", branch="same").details["undo_tag"]
    check_indexes(table)
    assert shown(table) == {("x", k): "c" for k in range(4)}
    run(table, "rollback_to", tag=undo)
    assert shown(table)["x", 2] == "b"


def test_a_fold_keeps_the_index(table: Table) -> None:
    write_arrow(table, rows(range(8), "a"))
    before: dict[Any, set[int]] = indexed(table)
    plan = plan_scan(table)
    fold_buckets(table, {BucketKey(s.partition, s.bucket): 0 for s in plan.splits})
    assert indexed(table) == before == check_indexes(table)


@pytest.mark.parametrize("keep_later", [True, False])
def test_a_rollback_that_takes_keys_away_asks_whether_writers_are_stopped(table: Table, keep_later: bool) -> None:
    """A writer that stays open takes such a key for a known one and writes no index entry: it gets a second bucket."""
    write_arrow(table, rows(range(4), "a"))
    run(table, "create_branch", branch="new", snapshot=1)
    write_arrow(table.branch("new"), rows([9], "b"))
    tag = run(table, "merge_branch", branch="new", writers_stopped=True).details["undo_tag"]
    for branch, target in (("main", {"tag": tag}), ("new", {"snapshot": 1})):
        back = {"branch": branch, "keep_later": keep_later, **target}
        head = table.branch(branch).latest_snapshot_id()
        for dry_run in (True, False):
            with pytest.raises(
                UnsafeOperationError, match=r"bucket-1 of snapshot 1 have other keys.*--writers-stopped"
            ):
                run(table, "rollback_to", dry_run=dry_run, **back)
        assert table.branch(branch).latest_snapshot_id() == head
        assert run(table, "rollback_to", writers_stopped=True, **back).changed
    assert shown(table) == {("x", k): "a" for k in range(4)}
    check_indexes(table)
    write_arrow(table, rows([9], "again"))
    assert shown(table)["x", 9] == "again"
    check_indexes(table)


def test_an_undo_of_known_keys_asks_for_no_stopped_writers(table: Table) -> None:
    write_arrow(table, rows(range(4), "a"))
    run(table, "create_branch", branch="known", snapshot=1)
    write_arrow(table.branch("known"), rows([2], "b"))
    plan = plan_scan(table.branch("known"))
    fold_buckets(table.branch("known"), {BucketKey(s.partition, s.bucket): 3 for s in plan.splits})
    tag = run(table, "merge_branch", branch="known").details["undo_tag"]
    write_arrow(table, rows([1], "other partition", "y"))
    assert run(table, "rollback_to", tag=tag, keep_later=True).changed
    assert shown(table)["x", 2] == "a" and shown(table)["y", 1] == "other partition"
    check_indexes(table)


def test_a_dropped_partition_is_not_put_back_beside_new_keys(table: Table) -> None:
    """Its keys and the new ones would be in two indexes of one bucket."""
    write_arrow(table, rows(range(4), "a"))
    write_arrow(table, rows([1], "other partition", "y"))
    before, chosen = table.latest_snapshot(), StoredPartitions(table.schema()).selection([{"p": "x"}])
    drop_partitions(table, [{"p": "x"}])
    dropped = table.latest_snapshot()
    assert dropped is not None
    write_arrow(table, rows([3, 7], "b"))
    with pytest.raises(ConflictError, match=r"1 of the partitions to restore got a new index \(HASH\)"):
        restore_partitions(table, before, dropped, chosen, beside_appends=True)
    check_indexes(table)
    assert shown(table) == {("x", 3): "b", ("x", 7): "b", ("y", 1): "other partition"}


def test_a_dropped_partition_comes_back_with_its_index(table: Table) -> None:
    write_arrow(table, rows(range(8), "a"))
    before, chosen = table.latest_snapshot(), StoredPartitions(table.schema()).selection([{"p": "x"}])
    hashes = indexed(table)
    drop_partitions(table, [{"p": "x"}])
    dropped = table.latest_snapshot()
    assert dropped is not None
    write_arrow(table, rows([1], "other partition", "y"))
    assert restore_partitions(table, before, dropped, chosen, beside_appends=True).changed
    assert len(shown(table)) == 9
    assert hashes.items() <= check_indexes(table).items()
