"""rescale: the same rows, in another number of buckets, by one commit that a rollback undoes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.commit.put import put_new
from airflow_paimon.core.commit.rewrites import commit_rewrite
from airflow_paimon.core.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.manifest import FileId
from airflow_paimon.core.format.snapshot import CommitKind, Operation
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.requests.requests import Rescale
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.bucket import bucket_of_rows
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.compaction_tasks import CompactionTask, TaskOutput, Workers, run_here
from airflow_paimon.data.copy_on_write import plan_copy_on_write
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.rescale import rescale
from airflow_paimon.data.rescale_plan import plan_shares
from airflow_paimon.data.write import plan_write, write_rows
from tests.core.tables import forget_results
from tests.core.tables import run as operate
from tests.data.chain.examples import mark_deleted
from tests.data.chain.tables import chain_table, set_options
from tests.data.test_changes import Follower
from tests.data.test_compact import run as compact
from tests.data.test_compact_keyed import assert_merged, keyed, rows, stored, upsert
from tests.data.test_compact_written import VECTORS, put, shown
from tests.data.test_compact_written import keyed as of_engine
from tests.randomness import chance, lives
from tests.stores import Crash, FaultStore


def asked(table: Table, **values: Any) -> Rescale:
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    request = build_request("rescale", {"warehouse": warehouse, "table": table.name, **values})
    assert isinstance(request, Rescale)
    return request


def run(table: Table, bucket_num: int | None = None, tasks: Any = run_here, **values: Any) -> OperationResult:
    request = asked(table, bucket_num=bucket_num, **values)
    return rescale(open_context(request), request, Workers(tasks))


def counts(table: Table) -> dict[str, set[int]]:
    """The numbers of buckets that the files of each partition name."""
    found: dict[str, set[int]] = {}
    for split in plan_scan(table).splits:
        found.setdefault("/".join(map(str, split.values)), set()).add(split.total_buckets)
    return found


def identifiers(table: Table) -> dict[FileId, int]:
    return {i: e.total_buckets for i, e in live_entries(table, table.latest_snapshot()).items()}


def assert_in_their_buckets(table: Table) -> None:
    schema = table.schema()
    fields = [schema.field(name) for name in schema.bucket_keys]
    read, splits = plan_read(plan_scan(table))
    for split in splits:
        for batch in read_split(read, split):
            columns = [batch.column(f.name) for f in fields]
            found = bucket_of_rows(columns, [f.type for f in fields], split.bucket.total_buckets)
            assert set(found.tolist()) <= {split.bucket.bucket}


def option(table: Table) -> str:
    return table.schema().options["bucket"]


@pytest.mark.parametrize(("old", "new"), [(1, 1), (4, 8), (8, 4), (4, 6), (6, 9), (5, 3), (2, 64), (64, 3), (7, 7)])
@pytest.mark.parametrize("hashed_alike", [True, False])
def test_every_row_is_in_the_class_of_its_old_bucket(old: int, new: int, hashed_alike: bool) -> None:
    """Paimon's remainder keeps the sign of the hash, and the bucket is its absolute value."""
    shares = plan_shares([BucketSplit(b"", (), n, old, ()) for n in range(old)], new, hashed_alike=hashed_alike)
    assert sorted(b for s in shares for b in s.new) == list(range(new))
    assert max(len(s.new) for s in shares) <= 8
    random = chance("hashes")
    for value in (random.randint(-(2**31), 2**31 - 1) for _ in range(300)):
        was, will = (abs(int(np.fmod(value, n))) for n in (old, new))
        (share,) = [s for s in shares if will in s.new]
        assert was in [b.bucket for b in share.old]


@pytest.mark.parametrize("new", [1, 3, 4, 13])
def test_rows_and_their_numbers_stay(tmp_path: Path, new: int) -> None:
    table = keyed(tmp_path, bucket="2")
    upsert(table, *(("a", k, f"old{k}") for k in range(40)), *(("b", k, "x") for k in range(9)))
    upsert(table, ("a", 3, "new"), ("a", 50, "later"))
    upsert(table, ("a", 4, "gone"), ("b", 7, "gone"), kind="-D")
    before, versions, head = rows(table), stored(table), table.latest_snapshot()
    assert head is not None
    planned = run(table, new, dry_run=True)
    assert planned.changed and planned.details["partition_names"] == ["p=a", "p=b"]
    assert (planned.details["files_before"], table.latest_snapshot_id()) == (7, head.id)
    result = run(table, new)
    assert (rows(table), stored(table)) == (before, versions)
    assert counts(table) == {"a": {new}, "b": {new}}
    assert_in_their_buckets(table)
    assert_merged(table)
    committed = table.latest_snapshot()
    assert committed is not None and committed.id == head.id + 1
    assert (committed.commit_kind, committed.operation) == (CommitKind.OVERWRITE, Operation.OVERWRITE)
    assert committed.total_record_count == len(before) == result.details["rows"]
    assert (result.snapshot_before, result.snapshot_after) == (head.id, committed.id)
    assert (option(table), result.details["option_before"], result.details["option"]) == (str(new), 2, new)
    assert committed.schema_id == head.schema_id, "the option follows the rows"
    assert not run(table, new).changed
    upsert(table, ("a", 3, "newer"), ("c", 1, "first"))
    assert ("a", 3, None, "newer") in rows(table)
    assert counts(table) == {"a": {new}, "b": {new}, "c": {new}}


def test_only_the_chosen_partitions_and_then_the_others_by_the_option(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="2")
    upsert(table, *((p, k, "v") for p in "abc" for k in range(20)))
    before, untouched = rows(table), {i for i in identifiers(table) if b"c" in i.partition}
    result = run(table, 5, partitions=["p=a", "p=b"])
    assert (option(table), result.details["option"]) == ("2", 2)
    assert "stop Paimon's own writers of partitions that have 5 buckets" in result.details["warnings"][0]
    assert counts(table) == {"a": {5}, "b": {5}, "c": {2}}
    assert untouched <= identifiers(table).keys()
    set_options(table, {"bucket": "3"})
    result = run(table)
    assert (result.details["bucket_num"], result.details["bucket_num_before"]) == (3, [2, 5])
    assert "warnings" not in result.details
    nothing = run(table, 4, partitions=["p=nope"])
    assert (nothing.changed, nothing.details["partitions"], "warnings" in nothing.details) == (False, 0, False)
    assert counts(table) == {"a": {3}, "b": {3}, "c": {3}}
    assert rows(table) == before


@pytest.mark.random
def test_random_lives(tmp_path: Path) -> None:
    random = chance("rescale")
    for life in range(lives(2, 20)):
        engine = random.choice(["deduplicate", "partial-update", "aggregation"])
        options = random.choice([{}, {"sequence__field": "a"}, VECTORS, {"changelog_producer": "lookup"}])
        if engine == "aggregation":
            options = {k: v for k, v in options.items() if k != "sequence__field"}
        # two tables get the same rows; one of them is rescaled now and then
        one, twin = (of_engine(tmp_path / f"{life}{n}", engine, bucket="3", **options) for n in "ab")
        for _ in range(8):
            if random.random() < 0.4:
                head = one.latest_snapshot_id() or 0
                result = run(one, random.randint(1, 9), partitions=random.choice([[], ["p=x"]]))
                assert (one.latest_snapshot_id() or 0) - head <= result.changed
                if result.details["partitions"]:  # what a full compaction drops counts no more in later merges
                    compact(twin, partitions=result.details["partition_names"])
            else:
                some = [(random.choice("xy"), random.randint(1, 30), random.randint(0, 9), f"{random.random()}")
                        for _ in range(random.randint(1, 15))]  # fmt: skip
                kind = random.choice(["+I", "+I", "-D"])
                for table in (one, twin):
                    put(table, *((*row, kind) for row in some))
            assert shown(one) == shown(twin), (life, engine, options)
        assert_in_their_buckets(one)


def test_late_rows_lose_or_win_as_before(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="3", sequence__field="s")
    upsert(table, *(("a", k, 10, "first") for k in range(12)))
    upsert(table, ("a", 1, 20, "second"))
    run(table, 4)
    upsert(table, ("a", 1, 15, "late"), ("a", 2, 11, "wins"), ("a", 3, 10, "same"))
    found = {row[1]: row[3] for row in rows(table)}
    assert (found[1], found[2], found[3], found[4]) == ("second", "wins", "same", "first")


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("first-row", {}),
        ("deduplicate", VECTORS),
        ("partial-update", {"sequence__field": "a"}),
        ("aggregation", {"changelog_producer": "full-compaction"}),
        ("deduplicate", {"changelog_producer": "lookup"}),
    ],
)
def test_rows_that_wait_for_a_compaction_are_told_once(tmp_path: Path, engine: str, options: dict[str, str]) -> None:
    """A rescale merges them, as a compaction does; readers of the changelog get just these."""
    table = of_engine(tmp_path, engine, bucket="2", **options)
    follower = None
    if "changelog_producer" in options:
        follower = Follower(table, row_kind=True, **{"scan.mode": "from-snapshot", "scan.snapshot-id": "1"})
    put(table, *(("x", k, 1, "told") for k in range(20)))
    told = follower.all() if follower else []
    set_options(table, {"write-only": "true"})
    put(table, *(("x", k, 5, "waits") for k in range(10, 30)))
    expected = {("x", k, 1, "told") for k in range(10)} | {("x", k, 5, "waits") for k in range(20, 30)}
    merged = {"first-row": (1, "told"), "aggregation": (6, "waits")}.get(engine, (5, "waits"))
    expected |= {("x", k, *merged) for k in range(10, 20)}
    run(table, 3)
    assert set(shown(table)) == expected
    assert_in_their_buckets(table)
    assert not read_index_entries(table, table.latest_snapshot())
    if follower:
        new = follower.all()
        assert sorted(r[1] for r in new if r[-1] == "+I") == list(range(20, 30))
        assert sorted(r[1] for r in new if r[-1] == "+U") == list(range(10, 20))
        state = {r[:4] for r in (*told, *new) if r[-1] in ("+I", "+U")} - {r[:4] for r in new if r[-1] == "-U"}
        assert state == expected
        run(table, 5)
        assert follower.all() == [], "now there is nothing to tell"


@pytest.mark.parametrize(
    "options",
    [{}, {"changelog_producer": "input"}, {"changelog_producer": "lookup"}, {"streaming_read_overwrite": "true"}],
)
def test_streaming_readers_are_told_nothing(tmp_path: Path, options: dict[str, str]) -> None:
    table = of_engine(tmp_path, bucket="2", **options)
    follower = Follower(table, row_kind=True, **{"scan.mode": "from-snapshot", "scan.snapshot-id": "1"})
    put(table, *(("x", k, 1, "a") for k in range(9)))
    put(table, ("y", 1, 1, "a"), ("y", 1, 1, "a", "-D"))
    assert len(follower.all()) >= 9
    run(table, 4)
    assert follower.all() == []
    put(table, ("x", 1, 1, "b"))
    assert [r[3] for r in follower.all() if r[4] in ("+I", "+U")] == ["b"]


# -- tables without keys -----------------------------------------------------------------------------------------------


def appended(folder: Path, **options: str) -> Table:
    columns = [("dt", "STRING"), ("u", "INT"), ("n", "INT")]
    table = create_table(str(folder), "d.a", columns, partition_keys=["dt"],
                         options={"bucket": "3", "bucket-key": "u", **options})  # fmt: skip
    for start in range(0, 40, 8):
        append(table, *(("x", n % 5, n) for n in range(start, start + 8)))
    return table


def append(table: Table, *given: tuple[str, int, int]) -> None:
    write_arrow(table, arrow(given))


def arrow(given: Sequence[tuple[str, int, int]]) -> pa.Table:
    columns = list(zip(*given, strict=True))
    numbers = [pa.array(c, pa.int32()) for c in columns[1:]]
    return pa.table({"dt": list(columns[0]), "u": numbers[0], "n": numbers[1]})


@pytest.mark.parametrize("new", [1, 2, 7, 9])
def test_append_tables_keep_the_order_of_a_key(tmp_path: Path, new: int) -> None:
    table = appended(tmp_path)
    result = run(table, new)
    assert (counts(table), result.details["rows"]) == ({"x": {new}}, 40)
    assert_in_their_buckets(table)
    append(table, *(("x", n % 5, n) for n in range(40, 45)))
    read, splits = plan_read(plan_scan(table))
    assert sum(len(s.files) for s in splits) > len(splits)
    for split in splits:
        ordered = sorted(split.files, key=lambda f: f.min_sequence_number)
        assert all(a.max_sequence_number < b.min_sequence_number for a, b in pairwise(ordered))
        in_order = replace(split, sections=tuple(s for f in ordered for s in split.sections if s.files == (f,)))
        order: dict[int, list[int]] = {}
        for row in (r for b in read_split(read, in_order) for r in b.to_pylist()):
            order.setdefault(row["u"], []).append(row["n"])
        assert all(own == sorted(own) for own in order.values())
    assert sorted(r["n"] for r in read_arrow(table).to_pylist()) == list(range(45))


def test_deleted_rows_of_append_tables_go(tmp_path: Path) -> None:
    table = appended(tmp_path, **{"bucket": "1", "deletion-vectors.enabled": "true"})
    append(table, *(("gone", n, n) for n in range(9)))
    mark_deleted(table, ("gone",), [0, 2])
    left = sorted(r["n"] for r in read_arrow(table).to_pylist())
    assert len(left) == 40 + 7
    run(table, 2)
    assert sorted(r["n"] for r in read_arrow(table).to_pylist()) == left
    assert not read_index_entries(table, table.latest_snapshot()) and counts(table) == {"x": {2}, "gone": {2}}


def test_a_bucket_key_whose_type_has_changed(tmp_path: Path) -> None:
    """Negative numbers have another hash as BIGINT: the old files' rows lie elsewhere than today's."""
    table = appended(tmp_path)
    append(table, *(("x", -n, -n) for n in range(1, 30)))
    schema = table.schema()
    fields = tuple(replace(f, type=parse_type("BIGINT")) if f.name == "u" else f for f in schema.fields)
    put_new(table, table.paths.schema(1), replace(schema, id=1, fields=fields).to_bytes())  # refused here
    new = range(100, 110)
    write_arrow(table, pa.table({"dt": ["x"] * 10, "u": [-n for n in new], "n": pa.array(new, pa.int32())}))
    before = sorted(r["n"] for r in read_arrow(table).to_pylist())
    run(table, 6)
    assert sorted(r["n"] for r in read_arrow(table).to_pylist()) == before
    assert_in_their_buckets(table)


def test_an_insert_beside_a_rescale_of_an_append_table_is_written_again(tmp_path: Path) -> None:
    """By a statement, whose commit replaces no file, too."""
    table = appended(tmp_path)
    plan, by_append = plan_copy_on_write(table), plan_write(table)
    data = [conform_rows(arrow([("x", 1, 99)]), table.schema(), table.label)]
    messages = write_rows(plan.write, data)
    run(table, 4, partitions=["dt=x"])
    with pytest.raises(ConflictError, match="meanwhile rescaled to 4 buckets"):
        commit_rewrite(table, messages, read=plan.scan, operation=Operation.MERGE)
    with pytest.raises(ConflictError, match="meanwhile rescaled to 4 buckets"):
        commit_append(table, write_rows(by_append, data), planned_on=by_append.planned_on)


# -- its undo ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_later", [False, True])
@pytest.mark.parametrize("options", [{}, VECTORS])
def test_a_rollback_gives_the_old_files_back(tmp_path: Path, options: dict[str, str], keep_later: bool) -> None:
    table = of_engine(tmp_path, bucket="4", **options)
    put(table, *(("x", k, 1, "a") for k in range(20)))
    put(table, *(("x", k, 2, "b") for k in range(5)))
    before, files, index = shown(table), identifiers(table), read_index_entries(table, table.latest_snapshot())
    result = run(table, 2)
    back = operate(table, "rollback_to", snapshot=result.snapshot_before, keep_later=keep_later)
    assert (shown(table), identifiers(table)) == (before, files)
    assert {i.file_name for i in read_index_entries(table, table.latest_snapshot())} == {i.file_name for i in index}
    assert (option(table), back.details["option"], "warnings" in back.details) == ("4", 4, False)
    put(table, ("x", 1, 3, "after"))
    assert ("x", 1, 3, "after") in shown(table) and counts(table) == {"x": {4}}
    assert run(table, 2).changed and counts(table) == {"x": {2}}
    assert operate(table, "check_table").details["ok"]


def test_an_undo_leaves_an_option_that_somebody_has_set(tmp_path: Path) -> None:
    table = of_engine(tmp_path, bucket="4")
    put(table, *(("x", k, 1, "a") for k in range(20)))
    set_options(table, {"bucket": "2"})
    back = operate(table, "rollback_to", snapshot=run(table).snapshot_before)
    (warning,) = back.details["warnings"]
    assert "have 4 buckets now, and the option bucket is 2" in warning and "set bucket=4" in warning
    assert (option(table), counts(table)) == ("2", {"x": {4}})
    run(table, 3)
    set_options(table, {"bucket": "5"})
    assert "warnings" in operate(table, "rollback_to", snapshot=back.snapshot_after).details
    assert option(table) == "5"


def test_an_undo_of_several_rescales(tmp_path: Path) -> None:
    table = of_engine(tmp_path, bucket="4")
    put(table, *(("x", k, 1, "a") for k in range(20)))
    first = run(table, 2)
    put(table, ("x", 1, 2, "b"))
    run(table, 7, partitions=["p=x"])
    run(table, 3)
    operate(table, "rollback_to", snapshot=first.snapshot_before, operation_id="op")
    set_options(table, {"bucket": "3"})  # as a try that was killed before it would have left it
    forget_results(table)
    again = operate(table, "rollback_to", snapshot=first.snapshot_before, operation_id="op")
    assert (option(table), again.details["option"], counts(table)) == ("4", 4, {"x": {4}})
    assert {row[3] for row in shown(table)} == {"a"}


def test_an_undo_that_would_drop_later_rows_is_refused(tmp_path: Path) -> None:
    table = of_engine(tmp_path, bucket="4")
    put(table, *(("x", k, 1, "a") for k in range(20)), ("y", 1, 1, "a"))
    result = run(table, 2)
    put(table, ("y", 2, 2, "later"))
    with pytest.raises(ConflictError, match="changed again"):
        operate(table, "rollback_to", snapshot=result.snapshot_before, keep_later=True)


# -- beside others -----------------------------------------------------------------------------------------------------


def beside(write: Callable[[int], object]) -> tuple[Callable[[Sequence[CompactionTask]], list[TaskOutput]], list[int]]:
    """Tasks after which somebody else writes; and how many there were in each round."""
    rounds: list[int] = []

    def tasks(works: Sequence[CompactionTask]) -> list[TaskOutput]:
        outputs = list(run_here(works))
        rounds.append(len(works))
        write(len(rounds))
        return outputs

    return tasks, rounds


def data_files(folder: Path) -> int:
    return len(list(folder.rglob("data-*")))


def test_writers_of_other_partitions_go_on(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="2")
    upsert(table, *((p, k, "v") for p in "ab" for k in range(20)))
    tasks, rounds = beside(lambda n: upsert(table, ("b", n, "beside")))
    run(table, 4, tasks, partitions=["p=a"])
    assert rounds == [2]
    assert ("b", 1, None, "beside") in rows(table) and len(rows(table)) == 40


def test_what_a_writer_has_changed_is_written_again_and_nothing_else(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="2")
    upsert(table, *((p, k, "v") for p in "abc" for k in range(20)))

    def write(n: int) -> None:
        if n == 1:
            upsert(table, ("b", 1, "beside"), ("d", 1, "new partition"))

    tasks, rounds = beside(write)
    on_disk = data_files(tmp_path)
    result = run(table, 4, tasks)
    assert rounds == [6, 3], "p=b again, and p=d, which has come"
    assert counts(table) == {p: {4} for p in "abcd"}
    assert {("b", 1, None, "beside"), ("d", 1, None, "new partition")} <= set(rows(table)) and len(rows(table)) == 61
    assert data_files(tmp_path) == on_disk + 2 + result.details["files_after"], "what is not used was deleted"


def test_a_writer_that_never_pauses(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="2")
    upsert(table, *(("a", k, "v") for k in range(20)))
    tasks, rounds = beside(lambda n: upsert(table, ("a", n, f"{n}")))
    before = data_files(tmp_path)
    with pytest.raises(ConflictError, match="in each of 5 attempts to rescale them; nothing was changed"):
        run(table, 4, tasks)
    assert len(rounds) == 5 and counts(table) == {"a": {2}} and option(table) == "2"
    assert data_files(tmp_path) == before + 5
    assert [r[3] for r in rows(table)[1:6]] == ["1", "2", "3", "4", "5"]


def test_a_writer_that_has_written_before_the_rescale_is_refused(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="2")
    upsert(table, *(("a", k, "v") for k in range(20)))
    write = plan_write(table)
    data = pa.table({"p": ["a"], "k": pa.array([1], pa.int32()), "s": pa.nulls(1, pa.int32()), "v": ["late"]})
    messages = write_rows(write, [conform_rows(data, table.schema(), table.label)])
    run(table, 4)
    with pytest.raises(ConflictError, match="rescaled to 4 buckets"):
        commit_append(table, messages, planned_on=write.planned_on)
    assert counts(table) == {"a": {4}}


def test_deletion_vectors_and_columns_that_change_meanwhile(tmp_path: Path) -> None:
    for name, change in {
        "vectors": lambda t: put(t, ("x", 1, 9, "new"), ("x", 2, 9, None, "-D")),
        "columns": lambda t: operate(t, "alter_table", change=["add column more INT"]),
    }.items():
        table = of_engine(tmp_path / name, bucket="2", **VECTORS)
        put(table, *(("x", k, 1, "a") for k in range(20)))
        tasks, rounds = beside(lambda n, t=table, c=change: c(t) if n == 1 else None)
        run(table, 3, tasks)
        assert len(rounds) == 2 and counts(table) == {"x": {3}}
        assert len(shown(table)) == (19 if name == "vectors" else 20)


# -- branches ----------------------------------------------------------------------------------------------------------


def test_a_branch_and_a_rescaled_main_are_a_conflict(tmp_path: Path) -> None:
    table = of_engine(tmp_path, bucket="2")
    put(table, *((p, k, 1, "a") for p in "xy" for k in range(9)))
    operate(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
    put(table.branch("fix"), ("x", 1, 2, "fixed"))
    run(table, 4, partitions=["p=x"])
    with pytest.raises(ConflictError, match="p=x"):
        operate(table, "merge_branch", branch="fix", writers_stopped=True)
    assert counts(table) == {"x": {4}, "y": {2}}


def test_a_branch_from_the_snapshot_of_a_rescale_has_its_number_of_buckets(tmp_path: Path) -> None:
    """That snapshot has the schema of before the option followed."""
    table = of_engine(tmp_path, bucket="2")
    put(table, *((p, k, 1, "a") for p in "xy" for k in range(9)))
    number = run(table, 4).snapshot_after
    assert (table.snapshot(number or 0).schema_id, table.schema().id) == (0, 1)
    operate(table, "create_branch", branch="fix", snapshot=number)
    fix = table.branch("fix")
    assert (option(table), option(fix)) == ("4", "4")
    put(fix, ("x", 1, 2, "fixed"))
    put(fix, ("z", 1, 2, "new"))
    assert counts(fix) == {"x": {4}, "y": {4}, "z": {4}}
    operate(table, "merge_branch", branch="fix", writers_stopped=True)
    assert (option(table), shown(table)) == ("4", shown(fix))
    operate(table, "create_branch", branch="before", snapshot=1)
    assert option(table.branch("before")) == "2"


def test_a_branch_brings_its_number_of_buckets(tmp_path: Path) -> None:
    table = of_engine(tmp_path, bucket="2")
    put(table, *((p, k, 1, "a") for p in "xy" for k in range(9)))
    operate(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
    fix = table.branch("fix")
    run(fix, 4, branch="fix")
    assert (option(table), option(fix)) == ("2", "4")
    put(table, ("y", 1, 2, "main"))
    with pytest.raises(ConflictError, match="p=y"):
        operate(table, "merge_branch", branch="fix", writers_stopped=True)
    done = operate(table, "merge_branch", branch="fix", writers_stopped=True, partitions=["p=x"])
    assert "have 4 buckets now, and the option bucket is 2" in done.details["warnings"][0]
    assert (option(table), counts(table)) == ("2", {"x": {4}, "y": {2}})
    put(table, ("x", 1, 5, "after"))
    assert ("x", 1, 5, "after") in shown(table) and len(shown(table)) == 18


def test_appends_on_both_sides_of_a_rescale_are_a_conflict(tmp_path: Path) -> None:
    """Files of such a table are merged one by one, and those of one bucket from both sides."""
    table = appended(tmp_path, **{"bucket": "2", "bucket-append-ordered": "false"})
    append(table, ("z", 1, 1))
    operate(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
    append(table.branch("fix"), ("z", 1, 2))
    run(table, 1, partitions=["dt=z"])
    with pytest.raises(ConflictError, match="number of buckets"):
        operate(table, "merge_branch", branch="fix")


# -- tries -------------------------------------------------------------------------------------------------------------


def dies(table: Table, step: int, after: bool, **values: Any) -> bool:
    """False: it has fewer steps."""
    request = asked(table, **values)
    context = open_context(request)
    faulty = Table(FaultStore(table.store, step, after=after), table.name)
    try:
        rescale(replace(context, table=faulty), request)
    except Crash:
        return True
    return False


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_rescale_that_is_killed_at_any_step_is_done_once(tmp_path: Path, after: bool) -> None:
    step = 0
    while True:
        step += 1
        table = keyed(tmp_path / str(step), bucket="1")
        upsert(table, *(("a", k, "v") for k in range(6)))
        expected = rows(table)
        died = dies(table, step, after, bucket_num=2, operation_id="op")
        assert rows(table) == expected and counts(table) in ({"a": {1}}, {"a": {2}})
        if table.latest_snapshot_id() == 1:
            assert option(table) == "1", "the option follows the rows"
        upsert(table, ("b", 1, "meanwhile"))
        result = run(table, 2, operation_id="op")
        assert result.changed and (result.details["partitions"], result.details["option"]) == (
            1 + (result.snapshot_after == 3),
            2,
        )
        assert (option(table), table.latest_snapshot_id()) == ("2", 3)
        assert len(rows(table)) == 7 and counts(table)["a"] == {2}
        again = run(table, 2, operation_id="op")
        assert again.changed and again.details == result.details and table.latest_snapshot_id() == 3
        if not died:
            break
    assert step > 8


def test_the_same_id_for_another_number_is_refused(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1")
    upsert(table, ("a", 1, "v"))
    run(table, 2, operation_id="op")
    with pytest.raises(InvalidInputError, match="another request"):
        run(table, 3, operation_id="op")


def test_a_storage_that_fails_leaves_nothing(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1")
    upsert(table, *(("a", k, "v") for k in range(6)))
    request, before = asked(table, bucket_num=3), data_files(tmp_path)
    faulty = Table(FaultStore(table.store, 3, error=OSError("no space")), table.name)
    with pytest.raises(StorageError):
        rescale(replace(open_context(request), table=faulty), request)
    assert (data_files(tmp_path), table.latest_snapshot_id(), option(table)) == (before, 1, "1")


def test_an_empty_table_and_one_of_that_number(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="2")
    assert not run(table, 2).changed
    result = run(table, 4)
    assert (result.changed, result.snapshot_after, option(table)) == (True, None, "4")
    upsert(table, ("a", 1, "v"))
    assert not run(table).changed
    assert run(table, 2, partitions=["p=none"]).changed is False


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "options", "what"),
    [
        (["k"], {"bucket": "-1"}, r"dynamic buckets \(bucket=-1\), which get more as they grow; use compact"),
        ([], {"bucket": "-1"}, r"append tables without buckets \(bucket=-1\); use compact"),
        (["k"], {"bucket": "-2"}, r"postponed buckets \(bucket=-2\); use Paimon's own procedure sys.rescale"),
        (["k"], {"bucket": "2", "deletion-vectors.merge-on-read": "true"}, "deletion-vectors.merge-on-read"),
        ([], {"bucket": "2", "bucket-key": "k", "clustering.columns": "v"}, "clustering.columns=v; use Paimon's own"),
        (["k"], {"bucket": "2", "data-file.external-paths": "file:///x"}, "external-paths"),
    ],
)
def test_what_is_refused(tmp_path: Path, keys: list[str], options: dict[str, str], what: str) -> None:
    columns = [("k", "INT NOT NULL"), ("v", "STRING")]
    table = create_table(str(tmp_path), "d.t", columns, primary_keys=keys, options=options)
    for dry_run in (True, False):
        with pytest.raises(UnsupportedFeatureError, match=what):
            run(table, 4, dry_run=dry_run)
    assert table.schema().id == 0 and table.latest_snapshot_id() is None


def test_chain_tables_are_refused(tmp_path: Path) -> None:
    table = chain_table(tmp_path, [("delta", "20260101", [(1, 1, "a")])])
    for branch in table.branch_names():
        with pytest.raises(UnsupportedFeatureError, match="chain tables"):
            run(table, 4, branch=branch)


def test_bad_input(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="2")
    upsert(table, ("a", 1, "v"))
    for wrong in ({"bucket_num": 0}, {"bucket_num": -1}, {"bucket_num": 4, "partitions": ["q=1"]}):
        with pytest.raises(InvalidInputError, match=r"at least 1|'q'"):
            run(table, **wrong)
    for dry_run in (True, False):
        with pytest.raises(InvalidInputError, match="at most 100000"):
            run(table, 10**9, dry_run=dry_run)
    with pytest.raises(NotFoundError):
        run(table, 4, branch="none")
    assert (table.latest_snapshot_id(), option(table)) == (1, "2")


def test_rows_that_lie_in_a_wrong_bucket(tmp_path: Path) -> None:
    """As an engine with another hash would leave them."""
    table = keyed(tmp_path, bucket="2")
    write = plan_write(table)
    data = pa.table({"p": ["a"] * 9, "k": pa.array(range(9), pa.int32()), "s": pa.nulls(9, pa.int32()), "v": ["x"] * 9})
    messages = write_rows(replace(write, total_buckets={}), [conform_rows(data, table.schema(), table.label)])
    (one, *_) = messages
    folder = next(tmp_path.rglob(f"bucket-{one.bucket}"))
    other = folder.with_name(f"bucket-{1 - one.bucket}")
    other.mkdir(exist_ok=True)
    for file in one.new_files:
        (folder / file.file_name).rename(other / file.file_name)
    commit_append(table, [replace(one, bucket=1 - one.bucket)], planned_on=write.planned_on)
    before = data_files(tmp_path)
    with pytest.raises(FormatError, match="has rows whose key belongs into another bucket"):
        run(table, 4)
    assert (data_files(tmp_path), counts(table)) == (before, {"a": {2}})


def test_a_partition_with_files_for_two_numbers(tmp_path: Path) -> None:
    """As a writer of another engine leaves it that stays open over a rescale."""
    table = keyed(tmp_path, bucket="2")
    upsert(table, *(("a", k, "v") for k in range(9)))
    write = plan_write(table)
    data = pa.table({"p": ["a"], "k": pa.array([1], pa.int32()), "s": pa.nulls(1, pa.int32()), "v": ["late"]})
    messages = write_rows(replace(write, total_buckets={}), [conform_rows(data, table.schema(), table.label)])
    commit_append(table, [replace(m, total_buckets=3) for m in messages], planned_on=write.planned_on)
    with pytest.raises(FormatError, match="different numbers of buckets, so a key may be in two of them"):
        run(table, 4)
    assert operate(table, "check_table", verify_files=False).details["ok"]
    found = operate(table, "check_table").details["findings"]
    (finding,) = [f for f in found if f["id"].startswith("bucket-counts:")]
    assert finding["severity"] == "error" and "p=a has files for 2 and for 3 buckets" in finding["message"]


def test_buckets_that_a_job_may_have_open_are_refused(tmp_path: Path) -> None:
    table = keyed(tmp_path, **VECTORS, write_only="false")
    upsert(table, ("a", 1, "x"), ("b", 2, "y"))
    (path,) = tmp_path.rglob("snapshot-2")  # with its compaction
    by_a_job = {"commitUser": "flink", "commitIdentifier": 7, "writerVersion": "1.4.2"}
    path.write_text(json.dumps(json.loads(path.read_text()) | by_a_job))
    with pytest.raises(UnsafeOperationError, match="a running job may have"):
        run(table, 3)
    assert counts(table) == {"a": {2}, "b": {2}}
    run(table, 3, writers_stopped=True)
    assert counts(table) == {"a": {3}, "b": {3}}
