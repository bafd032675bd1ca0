"""Publishes of buckets that both sides changed: merged by key, beside writers of main that never pause."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from threading import Event, Thread
from time import monotonic, sleep, time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.hash_index import INDEX_TYPE, read_hash_index
from airflow_paimon.core.publish.bucket_merge_plan import highest_sequence
from airflow_paimon.core.publish.key_merge import KeyMergeRequest, KeyMergeResult
from airflow_paimon.core.publish.publish_branch import publish_branch
from airflow_paimon.core.publish.undoable_publishes import verify_publish, verify_rollback
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import MergeBranch
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.manifest_entries import read_entries, read_index_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.merge_by_key import merge_by_key
from airflow_paimon.execution import row_functions
from tests.core.tables import alter_table
from tests.data.tables import arrow_schema_of
from tests.data.test_compact import run as compact
from tests.data.test_compact_keyed import upsert
from tests.data.test_publish_changelog import told, with_branch
from tests.randomness import choose_seed, every, lives
from tests.spark.jobs.operations import make_branch, put, rows_of, run, values

ONE = {"bucket": "1"}


def files_of(main: Table) -> set[str]:
    return {f.file_name for s in plan_scan(main).splits for f in s.files}


def stored_files(main: Table, warehouse: Path) -> set[str]:
    return {p.name for p in warehouse.rglob("data-*.parquet")}


def k_and_v(main: Table) -> dict[int, str]:
    return {k: v for k, v, dt in rows_of(main) if dt == "a"}


def named_files(main: Table) -> set[str]:
    """The data files that the snapshots of main and of its branch fix name."""
    views = (main, main.branch("fix"))
    return {e.file.file_name for view in views for s in view.snapshots(view.snapshot_ids())
            for m in read_entries(view, all_manifests(view, s)) for e in m}  # fmt: skip


def test_other_keys_of_one_bucket_are_merged(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path, **ONE)
    put(fix, [(1, "fixed", "a"), (20, "new on fix", "a"), (5, "a5", "a")])
    put(fix, [(2, None, "a", "-D")])
    put(main, [(3, "newer", "a"), (30, "new on main", "a")])
    put(main, [(4, None, "a", "-D")])
    plan = run(tmp_path, "merge_branch", branch="fix", dry_run=True).details["merged_by_key"]
    assert (plan["buckets"], plan["bucket_count"]) == (["dt=a/bucket-0"], 1) and plan["read_bytes"] > 1000
    assert "leave out these buckets" in plan["note"]
    before = {r for r in rows_of(main) if r[2] == "a"}
    done = run(tmp_path, "merge_branch", branch="fix")
    gone = {(1, "a1", "a"), (2, "a2", "a")}
    assert {r for r in rows_of(main) if r[2] == "a"} == (before - gone) | {(1, "fixed", "a"), (20, "new on fix", "a")}
    assert done.snapshot_after is not None
    found = verify_publish(main, snapshot_id=done.snapshot_after, branch="fix", branch_snapshot=fix.snapshot_ids()[-1])
    assert found["buckets"] == 1
    said = done.details["merged_by_key"]
    assert (said["changed_keys"], said["overlapping_keys"], said["read_bytes"]) == (3, 0, plan["read_bytes"])
    assert "note" not in said
    put(main, [(1, "later", "a"), (20, "later", "a")])
    assert {(1, "later", "a"), (20, "later", "a")} <= set(rows_of(main)), "a later writer wins"


def test_keys_that_both_changed_are_listed_and_can_be_decided(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path, **ONE)
    put(fix, [(k, "fixed", "a") for k in range(8)])
    put(fix, [(9, None, "a", "-D")])
    put(main, [(0, "fixed", "a"), *((k, "newer", "a") for k in range(1, 7)), (9, "newer", "a"), (50, "other", "a")])
    head, files = main.latest_snapshot_id(), stored_files(main, tmp_path)
    with pytest.raises(
        ConflictError, match=r"7 keys, \(dt=a, k=1\), .* and 2 more, .*on_overlap.* drops main's newer"
    ) as refused:
        run(tmp_path, "merge_branch", branch="fix")
    assert refused.value.details["key_count"] == 7 and len(refused.value.details["keys"]) == 5
    assert main.latest_snapshot_id() == head and stored_files(main, tmp_path) == files
    newer = {r for r in rows_of(main) if r[2] == "a"}
    run(tmp_path, "create_tag", tag="before")
    run(tmp_path, "merge_branch", branch="fix", on_overlap="main")
    assert {r for r in rows_of(main) if r[2] == "a"} == newer - {(7, "a7", "a")} | {(7, "fixed", "a")}
    seen = run(tmp_path, "rollback_to", tag="before").snapshot_after
    put(main, [(60, "unseen", "a")])
    with pytest.raises(ConflictError, match="which was approved"):
        run(tmp_path, "merge_branch", branch="fix", on_overlap="branch", approved_main_snapshot=seen)
    put(main, [(60, None, "a", "-D")])
    run(tmp_path, "merge_branch", branch="fix", on_overlap="branch")
    fixed: set[Any] = {(k, "fixed", "a") for k in range(8)}
    assert {r for r in rows_of(main) if r[2] == "a"} == fixed | {(8, "a8", "a"), (50, "other", "a")}


def test_a_rivals_rows_of_other_keys_need_no_second_merge_and_of_the_same_are_found(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path, **ONE)
    put(fix, [(1, "fixed", "a")])
    put(main, [(3, "newer", "a")])
    calls = []

    def rivalled(wanted: KeyMergeRequest) -> KeyMergeResult:
        """Merge, and let a rival commit before the publish does."""
        found = merge_by_key(wanted)
        for rival in rivals[len(calls)]:
            if isinstance(rival, str):
                compact(main, max_sorted_runs=1)
            else:
                put(main, [rival])
        calls.append(wanted)
        return found

    def publish(**asked: Any) -> None:
        context = open_context(build_request("merge_branch", values(tmp_path, branch="fix", **asked)))
        assert isinstance(context.request, MergeBranch)
        publish_branch(context, context.request, replace(row_functions(), merge_by_key=rivalled))

    other, compacts, deletes = (4, "rival", "a"), "compact", (6, None, "a", "-D")
    rivals: list[list[Any]] = [[other], [other, compacts, deletes], [deletes, compacts, compacts, other, compacts]]
    for number, each in enumerate(list(rivals)):
        rivals = [each]
        calls.clear()
        before, files = dict(k_and_v(main)), stored_files(main, tmp_path)
        put(fix, [(1, f"fixed {number}", "a")])
        put(main, [(3, f"newer {number}", "a")])
        publish()
        assert len(calls) == 1
        gone = {6: None} if deletes in each else {}
        expected = {**before, 1: f"fixed {number}", 3: f"newer {number}", 4: "rival", **gone}
        assert k_and_v(main) == {k: v for k, v in expected.items() if v is not None}
        new = stored_files(main, tmp_path) - files
        assert run(tmp_path, "check_table").details["ok"]
        assert not {f for f in new if f not in named_files(main)}, "no file is left that no snapshot names"
    put(fix, [(2, "fixed", "a")])
    calls, rivals = [], [[(2, "rival", "a"), compacts], [(2, "rival again", "a")]]
    files = stored_files(main, tmp_path)
    with pytest.raises(ConflictError, match=r"1 keys, \(dt=a, k=2\)"):
        publish()
    assert len(calls) == 2 and (2, "rival again", "a") in rows_of(main)
    assert len(stored_files(main, tmp_path) - files) == 3, "the rival's files alone"
    put(fix, [(7, "fixed", "a"), (8, "fixed", "a")])
    calls, rivals = [], [[(8, "rival", "a"), compacts], []]
    publish(on_overlap="main")
    assert len(calls) == 2, "else streaming readers get the branch's value of key 8 after the rival's"
    assert [k_and_v(main)[k] for k in (2, 7, 8)] == ["rival again", "fixed", "rival"]


def test_columns_that_each_side_added_come_together(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path, **ONE)
    alter_table(fix, [AddColumn(name="theirs", type="STRING")])
    alter_table(main, [AddColumn(name="ours", type="STRING")])
    row = {"k": [1], "v": ["fixed"], "dt": ["a"]}
    write_arrow(fix, pa.table({**row, "theirs": ["t"]}))
    write_arrow(main, pa.table({**row, "k": [2], "v": ["newer"], "ours": ["o"]}))
    run(tmp_path, "merge_branch", branch="fix")
    found = {r["k"]: (r["v"], r["ours"], r["theirs"]) for r in read_arrow(main).to_pylist() if r["dt"] == "a"}
    assert (found[1], found[2], found[3]) == (("fixed", None, "t"), ("newer", "o", None), ("a3", None, None))


def test_a_row_of_the_branch_keeps_what_main_has_in_columns_that_the_branch_does_not_know(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path, **ONE)
    alter_table(main, [AddColumn(name="ours", type="STRING")])
    write_arrow(fix, pa.table({"k": [1, 2, 40, 4], "v": ["fixed", "same", "new", "fixed"], "dt": ["a"] * 4}))
    rows = {"k": [1, 2, 3, 4], "v": ["newer", "same", "a3", "a4"], "dt": ["a"] * 4, "ours": ["o", "p", "q", "r"]}
    write_arrow(main, pa.table(rows))  # of key 4 the new column alone
    with pytest.raises(ConflictError, match=r"1 keys, \(dt=a, k=1\)"):  # both gave key 2 the same values
        run(tmp_path, "merge_branch", branch="fix")
    run(tmp_path, "merge_branch", branch="fix", on_overlap="branch")
    found = {r["k"]: (r["v"], r["ours"]) for r in read_arrow(main).to_pylist() if r["dt"] == "a"}
    assert [found[k] for k in (1, 2, 3, 40)] == [("fixed", "o"), ("same", "p"), ("a3", "q"), ("new", None)]
    assert found[4] == ("fixed", "r")


def test_a_row_that_the_branch_deleted_is_a_conflict_where_main_filled_its_new_column(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path, **ONE)
    alter_table(main, [AddColumn(name="ours", type="STRING")])
    put(fix, [(1, None, "a", "-D")])
    write_arrow(main, pa.table({"k": [1], "v": ["a1"], "dt": ["a"], "ours": ["o"]}))
    with pytest.raises(ConflictError, match=r"1 keys, \(dt=a, k=1\)"):
        run(tmp_path, "merge_branch", branch="fix")


def test_an_undo_counts_where_main_has_put_its_rows_right_already(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path, **ONE)
    put(fix, [(1, "x", "a")])
    undo = run(tmp_path, "merge_branch", branch="fix").details["undo_tag"]
    put(main, [(1, "a1", "a")])
    assert not run(tmp_path, "merge_branch", branch="fix").changed
    asked = {"tag": undo, "keep_later": True}
    assert run(tmp_path, "rollback_to", **asked).changed and (1, "a1", "a") in rows_of(main)
    assert not run(tmp_path, "rollback_to", **asked).changed, "it is undone"
    assert run(tmp_path, "merge_branch", branch="fix").changed and (1, "x", "a") in rows_of(main)


@pytest.mark.parametrize("adds", ["fix", "main before the branch"])
@pytest.mark.parametrize("back", ["undo", "second publish"])
def test_the_values_of_a_column_are_taken_back(tmp_path: Path, adds: str, back: str) -> None:
    """Of the rows before it no file knows the column."""
    main, fix = make_branch(tmp_path, **ONE)
    row = {"k": [1], "v": ["a1"], "dt": ["a"], "c": ["filled"]}
    if adds == "fix":
        put(fix, [(1, "other", "b")])
        alter_table(fix, [AddColumn(name="c", type="STRING")])
    else:
        alter_table(main, [AddColumn(name="c", type="STRING")])
        write_arrow(main, pa.table({**row, "dt": ["b"]}))
        run(tmp_path, "create_branch", branch="fix2", snapshot=main.latest_snapshot_id())
        fix = main.branch("fix2")
    before = fix.latest_snapshot_id()
    write_arrow(fix, pa.table(row))
    done = run(tmp_path, "merge_branch", branch=fix.branch_name, writers_stopped=True)
    write_arrow(main, pa.table({**row, "k": [30]}))
    if back == "undo":
        run(tmp_path, "rollback_to", tag=done.details["undo_tag"], keep_later=True)
    else:
        run(tmp_path, "rollback_to", branch=fix.branch_name, snapshot=before)
        run(tmp_path, "merge_branch", branch=fix.branch_name, writers_stopped=True)
    found = {r["k"]: r["c"] for r in read_arrow(main).to_pylist() if r["dt"] == "a"}
    assert (found[1], found[30]) == (None, "filled")


def test_a_second_publish_gives_no_number_above_the_branch_points(tmp_path: Path) -> None:
    """A writer of main that is open since then counts on from there."""
    main, fix = make_branch(tmp_path, **ONE)
    (limit,) = (highest_sequence(s.files) for s in plan_scan(main).splits if s.values == ("a",))
    for number in range(5):
        put(fix, [(1, f"fixed {number}", "a")])
    put(main, [(3, "newer", "a")])
    run(tmp_path, "merge_branch", branch="fix")
    for number in range(9):
        put(main, [(4, f"newer {number}", "a")])
    put(fix, [(2, "fixed", "a")])
    run(tmp_path, "merge_branch", branch="fix")
    (files,) = (s.files for s in plan_scan(main).splits if s.values == ("a",))
    rows = [r for f in files for r in pq.read_table(next(tmp_path.rglob(f.file_name))).to_pylist()]
    numbers = {r["k"]: r["_SEQUENCE_NUMBER"] for r in rows}
    assert numbers[1] <= limit and numbers[2] <= limit < numbers[4]


def test_a_key_stays_in_a_dynamic_bucket_that_has_lost_its_rows(tmp_path: Path) -> None:
    options = {"bucket": "-1", "dynamic-bucket.target-row-num": "1"}
    main = create_table(str(tmp_path), "d.t", COLUMNS[:2], primary_keys=["k"], options=options)
    rows = [pa.table({"k": [k], "a": [k]}) for k in range(4)]
    write_arrow(main, rows[1])
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    for k in (2, 3):
        write_arrow(main, rows[k])
    write_arrow(main, rows[3].append_column("_row_kind", pa.array(["-D"])))
    compact(main, max_sorted_runs=1)
    write_arrow(main.branch("fix"), rows[3])
    assert len(plan_scan(main).splits) == 2 and list(hashes_of(main)) == [0, 1, 2]
    before = hashes_of(main)
    run(tmp_path, "merge_branch", branch="fix", writers_stopped=True)
    assert hashes_of(main) == before
    assert [s.bucket for s in plan_scan(main).splits] == [0, 1, 2]


def hashes_of(table: Table) -> dict[int, list[int]]:
    index = [i for i in read_index_entries(table, table.latest_snapshot()) if i.index_type == INDEX_TYPE]
    read = [(i, table.store.read(f"{INDEX_DIR}/{i.file_name}")) for i in index]
    return {i.bucket: read_hash_index(data, i.row_count, name=i.file_name).tolist() for i, data in sorted(read)}


@pytest.mark.parametrize("second", ["child", "grandchild", "rebase", "parent"])
def test_a_relative_does_not_bring_back_what_main_has_put_right(tmp_path: Path, second: str) -> None:
    """Main got the row of both branches by the publish of one of them."""
    main, fix = make_branch(tmp_path, **ONE)
    put(fix, [(1, "fixed", "a")])
    if second == "rebase":
        run(tmp_path, "rebase_branch", branch="fix", to_branch="next")
    else:
        made_of = fix
        if second == "grandchild":
            run(tmp_path, "create_branch", branch="child", from_branch="fix", snapshot=fix.latest_snapshot_id())
            made_of = main.branch("child")
            put(made_of, [(4, "child", "a")])
        newest = made_of.latest_snapshot_id()
        run(tmp_path, "create_branch", branch="next", from_branch=made_of.branch_name, snapshot=newest)
    first, last = ("next", "fix") if second == "parent" else ("fix", "next")
    put(main.branch(first), [(2, "first", "a")])
    run(tmp_path, "merge_branch", branch=first)
    put(main, [(1, "right", "a"), (7, "other", "a")])
    put(main.branch(last), [(3, "last", "a")])
    run(tmp_path, "merge_branch", branch=last)
    found = {r[0]: r[1] for r in rows_of(main) if r[2] == "a"}
    assert [found[k] for k in (1, 2, 3, 7)] == ["right", "first", "last", "other"]
    assert found[4] == ("child" if second == "grandchild" else "a4")


@pytest.mark.parametrize("order", [["roll fix back", "fix", "next"], ["roll fix back", "next", "fix"]])
@pytest.mark.parametrize("how", ["child", "rebase"])
def test_main_gets_a_row_that_only_one_relative_has_rolled_back(tmp_path: Path, how: str, order: list[str]) -> None:
    """``fix`` and ``next``: a change of the branch, and its publish."""
    main, fix = make_branch(tmp_path, **ONE)
    put(fix, [(2, "ok", "a")])
    put(fix, [(1, "x", "a")])
    if how == "rebase":
        run(tmp_path, "rebase_branch", branch="fix", to_branch="next")
    else:
        run(tmp_path, "create_branch", branch="next", from_branch="fix", snapshot=fix.latest_snapshot_id())
    _play(tmp_path, main, order)
    found = {r[0]: r[1] for r in rows_of(main) if r[2] == "a"}
    assert [found[k] for k in (1, 2, 3, 4)] == ["x", "ok", "fix", "next"]


def test_main_gets_a_row_that_a_rebase_has_rolled_back(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path, **ONE)
    put(fix, [(1, "x", "a")])
    run(tmp_path, "rebase_branch", branch="fix", to_branch="next")
    run(tmp_path, "create_branch", branch="child", from_branch="fix", snapshot=fix.latest_snapshot_id())
    _play(tmp_path, main, ["roll next back", "next", "fix"])
    found = {r[0]: r[1] for r in rows_of(main) if r[2] == "a"}
    assert [found[k] for k in (1, 3, 4)] == ["x", "fix", "next"]


def test_what_main_has_put_back_is_a_change_where_the_base_is_the_branch_point(tmp_path: Path) -> None:
    """``fix`` has taken back what ``next`` has brought since, and wrote it again."""
    main, fix = make_branch(tmp_path, **ONE)
    put(fix, [(1, "x", "a")])
    run(tmp_path, "rebase_branch", branch="fix", to_branch="next")
    _play(tmp_path, main, ["roll fix back", "next"])
    put(fix, [(1, "x", "a")])
    put(main, [(1, "a1", "a")])
    with pytest.raises(ConflictError, match="cannot determine what main still has"):
        run(tmp_path, "merge_branch", branch="fix")
    assert (1, "a1", "a") in rows_of(main)


def test_a_row_that_main_has_put_back_after_its_publish_is_a_change_of_it(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path, **ONE)
    put(fix, [(1, "x", "a"), (60, "new", "z")])
    run(tmp_path, "merge_branch", branch="fix", writers_stopped=True)
    write_arrow(
        main, pa.table({"k": [0], "v": ["v"], "dt": ["z"]}).slice(0, 0), mode="overwrite", partition={"dt": "z"}
    )
    put(main, [(1, "a1", "a")])
    put(fix, [(2, "y", "a")])
    run(tmp_path, "merge_branch", branch="fix", writers_stopped=True)
    assert {(1, "a1", "a"), (2, "y", "a")} <= set(rows_of(main))
    put(fix, [(61, "more", "z")])
    run(tmp_path, "merge_branch", branch="fix", writers_stopped=True)
    assert {r for r in rows_of(main) if r[2] == "z"} == {(61, "more", "z")}, "what main has dropped stays gone"


def _play(warehouse: Path, main: Table, order: list[str]) -> None:
    for step in order:
        what, *names = step.split()
        if what == "roll":
            run(warehouse, "rollback_to", branch=names[0], snapshot=main.branch(names[0]).snapshot_ids()[-2])
        else:
            put(main.branch(what), [(3 if what == "fix" else 4, what, "a")])
            run(warehouse, "merge_branch", branch=what)


@pytest.mark.parametrize("producer", ["input", "full-compaction", "lookup"])
def test_streaming_readers_are_told_the_branchs_keys_alone(tmp_path: Path, producer: str) -> None:
    main, fix = with_branch(tmp_path, producer)
    upsert(fix, ("a", 1, "fixed"))
    upsert(main, ("a", 2, "newer"))
    done = run(tmp_path, "merge_branch", branch="fix", writers_stopped=True)
    waiting = [] if producer == "input" else ["-U a2 v2", "+U a2 newer"]  # main's rows that no compaction has told
    assert told(main, done) == ["-U a1 v1", "+U a1 fixed", *waiting]


COLUMNS = [("k", "BIGINT NOT NULL"), ("a", "BIGINT"), ("b", "BIGINT"), ("s", "BIGINT"), ("dt", "STRING NOT NULL")]
KINDS: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "several buckets": {"bucket": "3"},
    "sequence field": {"sequence.field": "s"},
    "deletion vectors": {"deletion-vectors.enabled": "true"},
    "dynamic buckets": {"bucket": "-1", "dynamic-bucket.target-row-num": "7"},
    "partial update": {"merge-engine": "partial-update"},
    "sequence group": {"merge-engine": "partial-update", "fields.s.sequence-group": "a"},
    "aggregation": {"merge-engine": "aggregation", "fields.a.aggregate-function": "sum"},
    "first row": {"merge-engine": "first-row"},
    "input": {"changelog-producer": "input"},
    "lookup": {"changelog-producer": "lookup"},
    "full compaction": {"merge-engine": "aggregation", "changelog-producer": "full-compaction"},
    "ignored deletes": {"ignore-delete": "true"},
}
State = dict[tuple[str, int], tuple[Any, ...]]


def keyed_table(warehouse: Path, options: dict[str, str]) -> Table:
    keys = ["dt", "k"]
    return create_table(
        str(warehouse),
        "d.t",
        COLUMNS,
        partition_keys=["dt"],
        primary_keys=keys,
        options={"bucket": "1", "num-sorted-run.compaction-trigger": "100", **options},
    )


def state(table: Table) -> State:
    rows = read_arrow(table).to_pylist()
    found = {(r["dt"], r["k"]): tuple(r.values()) for r in rows}
    assert len(found) == len(rows), "a key occurs twice"
    return found


def change(table: Table, chance: Random, kind: str, serial: int) -> None:
    """Write a few rows, or delete some."""
    rows = []
    for k in chance.sample(range(40), chance.randint(1, 4)):
        a, b = (chance.choice([None, chance.randrange(100)]) for _ in "ab")
        dt = chance.choice("pq")
        rows.append({"k": k, "a": a, "b": b, "s": serial + chance.randrange(-3, 3), "dt": dt})
    data = pa.Table.from_pylist(rows, schema=arrow_schema_of(dict(COLUMNS)))
    if chance.random() < 0.3 and "merge-engine" not in KINDS[kind]:
        data = data.append_column("_row_kind", pa.array(["-D"] * len(rows)))
    write_arrow(table, data)
    if chance.random() < 0.2:
        compact(table, branch=table.branch_name)


def merged(
    base: State, theirs: State, ours: State, on_overlap: str, *, sums: bool = False
) -> tuple[State, set[tuple[str, int]]]:
    """What main has after the merge, and the keys that both changed. ``sums``: two equal changes are two of them."""
    mine = {k for k in base.keys() | theirs.keys() if base.get(k) != theirs.get(k)}
    both = {k for k in mine if base.get(k) != ours.get(k) and (sums or ours.get(k) != theirs.get(k))}
    taken = mine if on_overlap == "branch" else mine - both
    found = {k: v for k, v in ours.items() if k not in taken} | {k: theirs[k] for k in taken if k in theirs}
    return found, both


class Upserter(Thread):
    """Writes keys from 100 on into the bucket of partition p, again and again, and compacts it after each second commit
    if it ``compacts``. Rests as long as a commit took: both are threads of one Python, and a publish would have to wait
    for a chance otherwise.
    """

    def __init__(self, table: Table, *, compacts: bool) -> None:
        super().__init__()
        self.table, self.written, self.stopped, self.compacts = table, dict[int, int](), Event(), compacts
        self.newest = 0

    def run(self) -> None:
        for number in count():
            if self.stopped.is_set():
                return
            key, began = 100 + number % 50, monotonic()
            data = pa.Table.from_pylist([{"k": key, "a": number, "dt": "p"}], schema=arrow_schema_of(dict(COLUMNS)))
            write_arrow(self.table, data)
            self.written[key] = self.newest = number
            if self.compacts and number % 2:
                compact(self.table, max_sorted_runs=1 + number % 3)
            sleep(monotonic() - began)

    def __enter__(self) -> Upserter:
        self.start()
        while len(self.written) < 3:
            sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.join()

    def wait_for_another(self) -> None:
        """Wait until a write has begun and ended, so that main has rows in the bucket since; a compaction has none."""
        newest = self.newest + 2
        while self.is_alive() and self.newest < newest:
            sleep(0.01)


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("kind", ["deduplicate", "input", "aggregation"])
def test_a_publish_and_its_undo_land_beside_a_writer_that_never_pauses(
    tmp_path: Path, kind: str, compacts: bool
) -> None:
    main = keyed_table(tmp_path, KINDS[kind])
    rows = [{"k": k, "a": k, "dt": "p"} for k in range(20)]
    write_arrow(main, pa.Table.from_pylist(rows, schema=arrow_schema_of(dict(COLUMNS))))
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    fix = main.branch("fix")
    with Upserter(main, compacts=compacts) as writer:
        for number in range(3):
            write_arrow(fix, pa.Table.from_pylist([{"k": number, "a": 1000, "dt": "p"}],
                                                  schema=arrow_schema_of(dict(COLUMNS))))  # fmt: skip
            writer.wait_for_another()
            done = run(tmp_path, "merge_branch", branch="fix")
            assert done.details["attempts"] < 50
        writer.wait_for_another()
        undone = run(tmp_path, "rollback_to", tag=done.details["undo_tag"], keep_later=True)
    assert undone.details["merged_by_key"]["changed_keys"] == 1 and undone.snapshot_after is not None
    tag = main.tag(done.details["undo_tag"]).snapshot
    assert verify_rollback(main, snapshot_id=undone.snapshot_after, target=tag, keep_later=True)["buckets"] == 1
    sums = kind == "aggregation"
    found = {k: row[1] for (_, k), row in state(main).items()}
    assert {k: v for k, v in found.items() if k < 100} == {k: k for k in range(20)} | {
        k: 1000 + sums * k for k in range(2)
    }
    assert found.keys() >= writer.written.keys()
    if not sums:
        assert {k: v for k, v in found.items() if k >= 100} == writer.written


def test_records_that_a_compaction_beside_a_publish_has_dropped_do_not_come_back(tmp_path: Path) -> None:
    main = keyed_table(tmp_path, {"record-level.expire-time": "1 h", "record-level.time-field": "s"})
    now = int(time())

    def write(table: Table, *rows: tuple[int, int, int]) -> None:
        data = [{"k": k, "a": a, "s": s, "dt": "p"} for k, a, s in rows]
        write_arrow(table, pa.Table.from_pylist(data, schema=arrow_schema_of(dict(COLUMNS))))

    write(main, (1, 1, now), (2, 2, now - 7200), (3, 3, now))
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    write(main.branch("fix"), (1, 1000, now))
    write(main, (3, 33, now))
    calls = []

    def rivalled(wanted: KeyMergeRequest) -> KeyMergeResult:
        found = merge_by_key(wanted)
        if not calls:
            compact(main, max_sorted_runs=1)
        calls.append(wanted)
        return found

    context = open_context(build_request("merge_branch", values(tmp_path, branch="fix")))
    assert isinstance(context.request, MergeBranch)
    publish_branch(context, context.request, replace(row_functions(), merge_by_key=rivalled))
    assert len(calls) == 2 and {k: row[1] for (_, k), row in state(main).items()} == {1: 1000, 3: 33}


@dataclass
class Life:
    """A table, its branch, and what the rows must be. ``base``: the branch's rows that main has all of; ``published``:
    of each publish that stands, main before and after it, and the branch's rows of the one before.
    """

    warehouse: Path
    kind: str
    chance: Random
    main: Table
    fix: Table
    base: State
    published: list[tuple[str, State, State, State]] = field(default_factory=list)
    serial: int = 10

    @property
    def sums(self) -> bool:
        return KINDS[self.kind].get("merge-engine") == "aggregation"

    def change(self) -> None:
        self.serial += 1
        change(self.chance.choice([self.main, self.main, self.fix]), self.chance, self.kind, self.serial)

    def publish(self) -> None:
        theirs, ours, on_overlap = state(self.fix), state(self.main), self.chance.choice(["branch", "main"])
        expected, both = merged(self.base, theirs, ours, on_overlap, sums=self.sums)
        asked = {"branch": self.fix.branch_name, "writers_stopped": True}
        if both:
            with pytest.raises(ConflictError, match="both changed") as refused:
                run(self.warehouse, "merge_branch", **asked)
            assert refused.value.details["key_count"] == len(both)
            assert state(self.main) == ours
        done = run(self.warehouse, "merge_branch", **asked, on_overlap=on_overlap)
        assert state(self.main) == expected
        if done.changed:
            self.published.append((done.details["undo_tag"], ours, expected, self.base))
            self.base = theirs

    def undo(self) -> None:
        if not self.published:
            return
        tag, before, after, base = self.published[-1]
        ours = state(self.main)
        expected, both = merged(after, before, ours, "main")
        asked = {"tag": tag, "keep_later": True, "writers_stopped": True}
        if both:
            with pytest.raises(ConflictError, match="changed again"):
                run(self.warehouse, "rollback_to", **asked)
            assert state(self.main) == ours
            return
        assert run(self.warehouse, "rollback_to", **asked).changed
        assert state(self.main) == expected
        self.base = base
        self.published.pop()

    def rebase(self) -> None:
        self.serial += 1
        theirs, ours, name = state(self.fix), state(self.main), f"fix{self.serial}"
        expected, both = merged(self.base, theirs, ours, "main", sums=self.sums)
        asked = {"branch": self.fix.branch_name, "to_branch": name}
        if both:
            with pytest.raises(ConflictError, match="both changed"):
                run(self.warehouse, "rebase_branch", **asked)
            assert not self.main.branch(name).exists()
        if run(self.warehouse, "rebase_branch", **asked, on_overlap="main").changed:
            self.fix, self.base, self.published = self.main.branch(name), ours, []
            assert (state(self.main), state(self.fix)) == (ours, expected)

    def go_on_as_child(self) -> None:
        """What its parent has published, main has of the child as well."""
        self.serial += 1
        name, parent = f"fix{self.serial}", self.fix
        asked = {"from_branch": parent.branch_name, "snapshot": parent.latest_snapshot_id()}
        run(self.warehouse, "create_branch", branch=name, **asked)
        self.fix = self.main.branch(name)

    def compact(self) -> None:
        compact(self.main)


@pytest.mark.random
@pytest.mark.parametrize("kind", every(3, KINDS))
@pytest.mark.parametrize("life", range(lives(1, 5)))
def test_any_table_is_merged_undone_and_rebased_as_a_model_says(tmp_path: Path, kind: str, life: int) -> None:
    chance = Random(f"{choose_seed()} {kind} {life}")
    main = keyed_table(tmp_path, KINDS[kind])
    for serial in range(4):
        change(main, chance, kind, serial)
    run(tmp_path, "create_branch", branch="fix", snapshot=main.latest_snapshot_id())
    own = Life(tmp_path, kind, chance, main, main.branch("fix"), state(main))
    steps = [own.change] * 6 + [own.publish] * 3 + [own.undo, own.rebase, own.compact, own.go_on_as_child]
    for step in chance.choices(steps, k=lives(14, 40)):
        step()
    own.publish()
    assert run(tmp_path, "check_table").details["ok"]
    before = state(main)
    compact(main)
    assert state(main) == before
