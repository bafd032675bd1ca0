"""Publishes of a table without keys beside a process that appends to the same partition and never pauses."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import ConflictError, InvalidInputError, NotFoundError
from airflow_paimon.core.publish.hold import put_hold
from airflow_paimon.core.publish.undoable_publishes import last_publish, publishes_still_on_main, verify_publish
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import Compact, DiffBranches
from airflow_paimon.core.table.paths import manifest_path, publish_tag
from airflow_paimon.core.table.record_kinds import AUDIT
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.compact import compact
from airflow_paimon.execution import perform
from airflow_paimon.shown.diff_markdown import render_markdown
from airflow_paimon.shown.markdown import escape
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.clock import next_millisecond
from tests.core.tables import run
from tests.data.appender import FIRST, appender
from tests.data.row_statements import Row, statement, with_ids
from tests.data.tables import make_table
from tests.stateful.paimon_expiry import expire_snapshots
from tests.stores import RivalledStore

COLUMNS = {"k": "INT", "v": "STRING", "dt": "STRING"}
KINDS = {
    "plain": {"bucket": "-1"},
    "row tracking": {"bucket": "-1", "row_tracking__enabled": "true"},
    "unordered buckets": {"bucket": "2", "bucket_key": "k", "bucket_append_ordered": "false"},
}


def rows(*values: tuple[int, str]) -> pa.Table:
    columns = [pa.array([k for k, _ in values], pa.int32()), [v for _, v in values], ["a"] * len(values)]
    return pa.table(columns, names=list(COLUMNS))


def shown(table: Table, **read: Any) -> dict[int, str]:
    found = read_arrow(table, **read).to_pylist()
    assert len({r["k"] for r in found}) == len(found), "a row occurs twice"
    return {r["k"]: r["v"] for r in found}


def renamed(word: str) -> Any:
    def one(row: Row) -> Row:
        return {**row, "v": word} if row["k"] % 2 and row["k"] < 100 else row

    return one


def diff(table: Table, against: str = "base") -> dict[str, Any]:
    warehouse = table.store.uri.rsplit("/", 2)[0]
    asked = {"warehouse": warehouse, "table": table.name, "branch": "fix", "against": against}
    request = build_request("diff_branches", asked)
    assert isinstance(request, DiffBranches)
    result = run_before_spark(request)
    assert result is not None
    return dict(result.details)


def compact_branch(table: Table, branch: str = "fix") -> None:
    asked = {"warehouse": table.store.uri.rsplit("/", 2)[0], "table": "d.t", "branch": branch, "min_files": 2}
    request = build_request("compact", asked)
    assert isinstance(request, Compact)
    compact(open_context(request), request)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.every(2)
def test_every_publish_and_undo_gets_through(tmp_path: Path, kind: str) -> None:
    """UPDATE, DELETE, late rows and a compaction on the branch, in the partition to which main appends all the time."""
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], **KINDS[kind])
    for k in range(0, 20, 5):
        write_arrow(table, rows(*((k + i, "old") for i in range(5))))
    run(table, "create_branch", branch="fix", snapshot=4)
    fix = table.branch("fix")
    wanted = shown(table)
    with appender(tmp_path, tmp_path) as committed:
        for number in range(5):
            word = f"fixed {number}"
            if number == 3:
                compact_branch(table)
            if kind == "unordered buckets":
                write_arrow(fix, rows((100 + number, "late")))
            else:
                statement(fix, renamed(word), [{"k": 100 + number, "v": "late", "dt": "a"}], "MERGE")
                wanted |= {k: word for k in wanted if k % 2 and k < 100}
            wanted[100 + number] = "late"
            before = committed()
            result = run(table, "merge_branch", branch="fix")
            assert result.changed and result.details["buckets"] > 0
            verify_publish(
                table, snapshot_id=result.snapshot_after, branch="fix", branch_snapshot=fix.latest_snapshot_id() or 0
            )
            now = shown(table)
            assert {k: v for k, v in now.items() if k < 1000} == wanted
            assert now.keys() >= set(range(FIRST, FIRST + before)), "rows that main had got before are gone"
        undo = result.details["undo_tag"]
        run(table, "rollback_to", tag=undo, keep_later=True)
    appended = dict.fromkeys(range(FIRST, FIRST + committed()), "appended")
    del wanted[104]
    if kind != "unordered buckets":
        wanted |= {k: "fixed 3" for k in wanted if k % 2 and k < 100}
    assert shown(table) == wanted | appended
    if kind == "row tracking":
        ids = [r[-2] for r in with_ids(table)]
        assert len(set(ids)) == len(ids)


def test_files_of_a_compaction_that_is_taken_back_keep_the_columns_they_were_written_with(tmp_path: Path) -> None:
    """The branch and main give the schema id 1 to columns of their own."""
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], bucket="-1")
    write_arrow(table, rows((1, "old"), (2, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    run(table, "alter_table", change=["add column x INT"])
    write_arrow(table, rows((3, "late")).append_column("x", pa.array([7], pa.int32())))
    assert table.schema().id in fix.schema_ids()
    compact_branch(table, "main")
    statement(fix, lambda row: {**row, "v": "fixed"} if row["k"] == 1 else row, [], "UPDATE")
    assert run(table, "merge_branch", branch="fix", revert_compaction=True).details["compactions_reverted"] == 1
    found = {r["k"]: (r["v"], r["x"]) for r in read_arrow(table).to_pylist()}
    assert found == {1: ("fixed", None), 2: ("old", None), 3: ("late", 7)}


def test_an_undo_names_the_compactions_to_revert_first(tmp_path: Path) -> None:
    """They have merged files of the publish with rows that stay; the advice is followed by its words."""
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], bucket="-1")
    write_arrow(table, rows((1, "old"), (2, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    statement(table.branch("fix"), lambda row: {**row, "v": "wrong"} if row["k"] == 1 else row, [], "UPDATE")
    undo = {"tag": run(table, "merge_branch", branch="fix").details["undo_tag"], "keep_later": True}
    for k in (3, 4, 5):
        write_arrow(table, rows((k, "late")))
        if k != 5:
            compact_branch(table, "main")
    now = shown(table)
    with pytest.raises(ConflictError, match="was compacted after the publish") as refused:
        run(table, "rollback_to", **undo)
    assert refused.value.code == "compaction-conflict"
    for number in re.findall(r"--snapshot (\d+)", refused.value.message):
        run(table, "rollback_to", snapshot=int(number), keep_later=True)
        assert shown(table) == now
    run(table, "rollback_to", **undo)
    assert shown(table) == {1: "old", 2: "old", 3: "late", 4: "late", 5: "late"}


@pytest.mark.parametrize("keys", [[], ["dt", "k"]])
def test_an_undo_outlives_the_expiry_of_the_publish_by_another_engine(tmp_path: Path, keys: list[str]) -> None:
    """Paimon knows no undo tags, but it keeps what a tag is on: the publish itself has one, for as long."""
    columns = {"k": "INT NOT NULL", "v": "STRING", "dt": "STRING NOT NULL"}
    table = make_table(tmp_path, columns, partition_keys=["dt"], primary_keys=keys, bucket="1" if keys else "-1")
    write_arrow(table, rows((1, "old"), (2, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    if keys:
        write_arrow(table.branch("fix"), rows((1, "wrong")))
    else:
        statement(table.branch("fix"), lambda row: {**row, "v": "wrong"} if row["k"] == 1 else row, [], "UPDATE")
    done = run(table, "merge_branch", branch="fix", operation_id="one", writers_stopped=True)
    undo = {"tag": done.details["undo_tag"], "keep_later": True, "writers_stopped": True}
    run(table, "delete_branch", branch="fix")
    for k in (3, 4, 5):
        write_arrow(table, rows((k, "late")))
        if k == 3:
            expire_snapshots(table, 1)
    with pytest.raises(NotFoundError):
        table.snapshot(done.snapshot_after or 0)
    if keys:  # else it has to be reverted first, and takes the late rows with it
        compact_branch(table, "main")
    assert [p.undo_tag for p in publishes_still_on_main(table)] == [done.details["undo_tag"]]
    undone = run(table, "rollback_to", operation_id="two", **undo)
    late = dict.fromkeys((3, 4, 5), "late")
    assert shown(table) == {1: "old", 2: "old", **late}
    write_arrow(table, rows((6, "late")))
    expire_snapshots(table, 1)
    assert publishes_still_on_main(table) == [] and run(table, "check_table").details["ok"]
    run(table, "rollback_to", **{**undo, "tag": undone.details["undo_tag"]})
    assert shown(table) == {1: "wrong", 2: "old", **late, 6: "late"}
    run(table, "delete_tag", tag=done.details["undo_tag"])
    assert not [name for name in table.tag_names() if name.endswith("-one")]


def test_the_tag_of_a_publish_is_no_undo_tag_and_goes_for_good(tmp_path: Path) -> None:
    """Nobody takes back the commit after the publish by mistake, and a tag that is gone, as by an erasure, stays away;
    that of an undo tag goes with it, unless another engine's branch starts from it.
    """
    table = make_table(tmp_path, {"k": "INT NOT NULL", "v": "STRING"}, primary_keys=["k"], bucket="1")
    write_arrow(table, pa.table({"k": pa.array([0], pa.int32()), "v": ["old"]}))
    tags = {}
    write_arrow(table, pa.table({"k": pa.array([0], pa.int32()), "v": ["old"]}))
    tags = {}
    for number, name in enumerate(("one", "two"), start=1):
        run(table, "create_branch", branch=name, snapshot=number)
        write_arrow(table.branch(name), pa.table({"k": pa.array([number], pa.int32()), "v": [name]}))
        undo = run(table, "merge_branch", branch=name, operation_id=name).details["undo_tag"]
        tags[name] = {"undo": undo, "publish": publish_tag(undo)}
        run(table, "delete_branch", branch=name)
    with pytest.raises(InvalidInputError, match=tags["one"]["undo"]):
        run(table, "rollback_to", tag=tags["one"]["publish"], keep_later=True)
    run(table, "delete_tag", tag=tags["one"]["publish"])
    assert run(table, "check_table").details["findings"] == [] and not run(table, "repair_table").changed
    assert tags["one"]["publish"] not in table.tag_names()
    undone = run(table, "rollback_to", tag=tags["two"]["undo"], keep_later=True)
    run(table, "delete_tag", tag=undone.details["undo_tag"])
    write_arrow(table, pa.table({"k": pa.array([3], pa.int32()), "v": ["late"]}))
    expire_snapshots(table, 1)
    assert [p.branch for p in publishes_still_on_main(table)] == ["one"], "a record tells what has expired"
    with pytest.raises(InvalidInputError, match="undone already, by snapshot 5"):
        last_publish(table)
    [copy] = [path for path in table.store.walk(AUDIT.folder) if "/5-" in path]
    readable = table.store.read(copy)
    table.store.replace(copy, readable[:90])
    assert [p.branch for p in publishes_still_on_main(table)] == ["one"], "a tag tells as well"
    for tag in table.tags():
        if tag.snapshot.id == 5:
            table.store.delete(table.paths.tag(tag.name))
    found = publishes_still_on_main(table)
    assert [p.branch for p in found] == ["one", "two"] and all(copy in (p.perhaps_undone or "") for p in found)
    assert last_publish(table).branch == "two"
    table.store.replace(copy, readable)
    theirs, published = table.branch("theirs"), table.tag(tags["two"]["publish"]).snapshot
    theirs.store.create(theirs.paths.schema(0), table.schema(0).to_bytes())
    theirs.store.create(theirs.paths.snapshot(published.id), published.to_bytes())
    for tag in tags.values():
        run(table, "delete_tag", tag=tag["undo"])
    assert [n for n in table.tag_names() if n.endswith(("-one", "-two"))] == [tags["two"]["publish"]]


@pytest.mark.parametrize("keep", [False, True])
def test_a_replaced_partition_and_the_rows_that_main_appended(tmp_path: Path, keep: bool) -> None:
    """They are a conflict, or stay beside the branch's; the plan says so."""
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], bucket="-1")
    write_arrow(table, rows((1, "old"), (2, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), rows((1, "new")), mode="dynamic_overwrite")
    assert not {"appended_on_main", "notes"} & {k for k, v in diff(table).items() if v}
    write_arrow(table, rows((3, "appended")))
    for against, shown_as in (
        ("base", "doesn't show them"),
        ("main", "shows them as deleted"),
        ("main@1", "replaces."),
    ):
        found = diff(table, against)
        assert found["appended_on_main"] == {"buckets": ["dt=a/bucket-0"], "files": 1, "rows": 1}
        [note] = found["notes"]
        assert note.startswith("main got 1 row in dt=a/bucket-0 after the branch was made") and shown_as in note
        assert escape(note) in render_markdown(found)
    if not keep:
        with pytest.raises(ConflictError, match="--keep-appended") as refused:
            run(table, "merge_branch", branch="fix")
        assert refused.value.details["cause"] == "appended" and table.latest_snapshot_id() == 2
        return
    plan = run(table, "merge_branch", branch="fix", keep_appended=True, dry_run=True).details
    assert plan["appended_on_main"] == {"buckets": ["dt=a/bucket-0"], "files": 1, "rows": 1}
    run(table, "merge_branch", branch="fix", keep_appended=True)
    assert shown(table) == {1: "new", 3: "appended"}
    assert "appended_on_main" not in diff(table), "what was published with them was decided on them"


def test_a_diff_names_no_appended_rows_that_a_publish_leaves_alone(tmp_path: Path) -> None:
    """A MERGE and late rows concern only the rows that they saw; a table with keys has no rows beside others."""
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], bucket="-1")
    keyed = make_table(tmp_path, COLUMNS, name="d.keyed", partition_keys=["dt"], primary_keys=["dt", "k"], bucket="1")
    for one in (table, keyed):
        write_arrow(one, rows((1, "old"), (2, "old")))
        run(one, "create_branch", branch="fix", snapshot=1)
    statement(table.branch("fix"), renamed("new"), [{"k": 3, "v": "late", "dt": "a"}], "MERGE")
    write_arrow(keyed.branch("fix"), rows((1, "new")), mode="dynamic_overwrite")
    for one in (table, keyed):
        write_arrow(one, rows((4, "appended")))
        assert diff(one)["different"] and "appended_on_main" not in diff(one)


@pytest.mark.parametrize("partitioned", [True, False])
def test_a_bucket_that_keeps_its_order_stays_a_conflict(tmp_path: Path, partitioned: bool) -> None:
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"] if partitioned else [], bucket="1", bucket_key="k")
    write_arrow(table, rows((1, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    for view in (table, table.branch("fix")):
        write_arrow(view, rows((2 + (view is table), "new")))
    with pytest.raises(ConflictError, match=r"both changed .* stop a job that writes there") as refused:
        run(table, "merge_branch", branch="fix")
    assert ("publish the other partitions alone" in refused.value.message) == partitioned
    assert refused.value.code == "not-mergeable"


@pytest.mark.parametrize("expired", [False, True])
def test_an_undone_publish_is_published_again_also_when_the_undo_has_expired(tmp_path: Path, expired: bool) -> None:
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], bucket="-1")
    write_arrow(table, rows((1, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    statement(table.branch("fix"), renamed("new"), [{"k": 3, "v": "late", "dt": "a"}])
    undo = run(table, "merge_branch", branch="fix").details["undo_tag"]
    run(table, "rollback_to", tag=undo, keep_later=True)
    write_arrow(table, rows((4, "appended")))
    if expired:
        for number in (1, 2, 3):
            table.store.delete(table.paths.snapshot(number))
    assert run(table, "merge_branch", branch="fix").changed
    assert shown(table) == {1: "new", 3: "late", 4: "appended"}


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_no_row_is_published_twice_when_main_has_merged_it_and_the_first_publish_has_expired(
    tmp_path: Path, kind: str, tags: bool
) -> None:
    """Main and the branch have both merged the published file into others; nothing but the history tells."""
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], **KINDS[kind])
    write_arrow(table, rows((1, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), rows((2, "late")))
    run(table, "merge_branch", branch="fix")
    write_arrow(table, rows((3, "appended")))
    compact_branch(table, "main")
    compact_branch(table)
    for number in table.snapshot_ids()[:-1]:
        table.store.delete(table.paths.snapshot(number))
    for tag in [] if tags else table.tag_names():
        if tag != "airflow-paimon-branch-fix":
            table.store.delete(table.paths.tag(tag))
    with pytest.raises(ConflictError):
        run(table, "merge_branch", branch="fix")
    assert shown(table) == {1: "old", 2: "late", 3: "appended"}


@pytest.mark.parametrize("how", ["renamed", "child", "late child"])
@pytest.mark.parametrize("compacted", [False, True])
def test_what_was_published_under_another_name_is_not_doubled(tmp_path: Path, how: str, compacted: bool) -> None:
    """The branch has another name since, or is a branch of the published one, made before or after the publish."""
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], bucket="-1")
    write_arrow(table, rows((1, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), rows((3, "late")))
    if how == "late child":
        run(table, "create_branch", branch="next", from_branch="fix", snapshot=2)
        write_arrow(table.branch("fix"), rows((5, "later")))
    run(table, "merge_branch", branch="fix")
    if how == "renamed":
        run(table, "rename_branch", branch="fix", to_branch="next")
    elif how == "child":
        run(table, "create_branch", branch="next", from_branch="fix", snapshot=2)
    if compacted:
        write_arrow(table, rows((4, "appended")))
        compact_branch(table, "main")
    statement(table.branch("next"), renamed("new"))
    wanted = shown(table)
    try:
        run(table, "merge_branch", branch="next")
    except ConflictError:
        assert compacted
    else:
        wanted |= {1: "new", 3: "new"}
    assert shown(table) == wanted


def test_an_earlier_branch_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    """It was published with more snapshots than this one has, undone and deleted; this one is of the same tag."""
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], bucket="-1")
    write_arrow(table, rows((1, "old")))
    run(table, "create_tag", tag="base")
    run(table, "create_branch", branch="fix", tag="base")
    for k in (3, 4, 5):
        write_arrow(table.branch("fix"), rows((k, "wrong")))
    undo = run(table, "merge_branch", branch="fix").details["undo_tag"]
    run(table, "rollback_to", tag=undo, keep_later=True)
    run(table, "delete_branch", branch="fix")
    next_millisecond()
    run(table, "create_branch", branch="fix", tag="base")
    write_arrow(table.branch("fix"), rows((6, "right")))
    assert run(table, "merge_branch", branch="fix").changed
    assert shown(table) == {1: "old", 6: "right"}


def test_an_approval_covers_what_main_appends_after_it(tmp_path: Path) -> None:
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], bucket="-1")
    write_arrow(table, rows((1, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    statement(table.branch("fix"), renamed("new"))
    for k in (1000, 1001):
        write_arrow(table, rows((k, "appended")))
    run(table, "merge_branch", branch="fix", approved_main_snapshot=2)
    assert shown(table) == {1: "new", 1000: "appended", 1001: "appended"}


def test_ids_stay_unique_when_main_is_faster_at_each_attempt(tmp_path: Path) -> None:
    """The third attempt leaves main ids to give out, so that files written again with other ids can be used."""
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], **KINDS["row tracking"])
    write_arrow(table, rows((1, "old"), (2, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), rows((3, "late")))
    statement(table.branch("fix"), renamed("new"))
    write_arrow(table, rows((999, "appended")))
    values = {"warehouse": str(tmp_path), "table": "d.t", "branch": "fix"}
    context = open_context(build_request("merge_branch", values))
    store = RivalledStore(table.store, lambda n: write_arrow(table, rows((1000 + n, "appended"))), 8)
    result = perform(type(context)(context.request, Table(store, table.name), context.now_ms, context.started),
                     context.request)  # fmt: skip
    assert result.details["attempts"] == 9
    assert shown(table) == {1: "new", 2: "old", 3: "new"} | dict.fromkeys(range(999, 1000), "appended") | dict.fromkeys(
        range(1001, 1009), "appended"
    )
    write_arrow(table, rows((2000, "after")))
    ids = [r[-2] for r in with_ids(table)]
    assert len(set(ids)) == len(ids) and max(ids) < (table.latest_snapshot().next_row_id or 0)  # type: ignore[union-attr]


def test_a_killed_publish_may_have_landed_where_main_s_history_does_not_tell(tmp_path: Path) -> None:
    """It was killed before anything could be kept of it but its hold."""
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], bucket="-1")
    write_arrow(table, rows((1, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), rows((2, "late")))
    put_hold(table.branch("fix"), table.branch("fix").snapshot(2), "killed")
    write_arrow(table, rows((3, "appended")))
    assert run(table, "merge_branch", branch="fix", dry_run=True).changed, "the history tells that it has not"
    write_arrow(table, rows((4, "appended")))
    table.store.delete(table.paths.snapshot(2))
    with pytest.raises(ConflictError, match="cannot determine"):
        run(table, "merge_branch", branch="fix")
    with pytest.raises(ConflictError, match="cannot determine"):
        run(table, "rebase_branch", branch="fix", to_branch="rebased")
    assert table.branch_names() == ["fix"]


@pytest.mark.parametrize("operation_id", [None, "op"])
def test_a_publish_that_loses_races_does_not_take_its_own_hold_for_an_earlier_one(
    tmp_path: Path, operation_id: str | None
) -> None:
    """Main's history has expired, and what main adds makes each attempt plan anew; the first try was killed."""
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"], **KINDS["row tracking"])
    write_arrow(table, rows((1, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), rows((2, "late")))
    write_arrow(table, rows((1000, "appended")))
    write_arrow(table, rows((1001, "appended")))
    for number in (1, 2):
        table.store.delete(table.paths.snapshot(number))
    if operation_id is not None:
        put_hold(table.branch("fix"), table.branch("fix").snapshot(2), operation_id)
    values = {"warehouse": str(tmp_path), "table": "d.t", "branch": "fix", "operation_id": operation_id}
    context = open_context(build_request("merge_branch", values))
    store = RivalledStore(table.store, lambda n: write_arrow(table, rows((2000 + n, "appended"))), 3)
    beside = type(context)(context.request, Table(store, table.name), context.now_ms, context.started)
    assert perform(beside, context.request).details["attempts"] == 4
    appended = dict.fromkeys((1000, 1001, 2001, 2002, 2003), "appended")
    assert shown(table) == {1: "old", 2: "late"} | appended


@pytest.mark.parametrize("keys", [[], ["dt", "k"]])
@pytest.mark.parametrize("tags", [True, False])
def test_an_undo_that_another_engine_rolled_back_counts_no_more(tmp_path: Path, keys: list[str], tags: bool) -> None:
    """Its copy for audits outlives its number, but main has the publish: what main put right since stays so."""
    columns = {"k": "INT NOT NULL", "v": "STRING", "dt": "STRING NOT NULL"}
    table = make_table(tmp_path, columns, partition_keys=["dt"], primary_keys=keys, bucket="1" if keys else "-1")
    write_arrow(table, rows((1, "old"), (2, "old")))
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    write_arrow(fix, rows((3, "new")))
    change(fix, 1, "wrong")
    done = run(table, "merge_branch", branch="fix", operation_id="one", writers_stopped=True)
    undone = run(table, "rollback_to", tag=done.details["undo_tag"], keep_later=True, writers_stopped=True)
    roll_back_as_paimon(table)
    assert shown(table)[1] == "wrong"
    for value in ("late", "old"):
        change(table, 1, value)
    assert (table.latest_snapshot_id() or 0) > (undone.snapshot_after or 0)
    expire_snapshots(table, 1)
    if not tags:
        run(table, "delete_tag", tag=done.details["undo_tag"])
    else:
        assert [p.undo_tag for p in publishes_still_on_main(table)] == [done.details["undo_tag"]]
        assert last_publish(table).undo_tag == done.details["undo_tag"]
    now = shown(table)
    write_arrow(fix, rows((4, "more")))
    with pytest.raises(ConflictError) if keys else nullcontext():  # which rows the publish changed can't be told
        run(table, "merge_branch", branch="fix", operation_id="three", writers_stopped=True)
        now[4] = "more"
    assert shown(table) == now


def change(view: Table, key: int, value: str) -> None:
    if view.schema().primary_keys:
        write_arrow(view, rows((key, value)))
    else:
        statement(view, lambda row: {**row, "v": value} if row["k"] == key else row, [], "UPDATE")


def roll_back_as_paimon(table: Table) -> None:
    """Paimon's own ``rollback_to``: the newest snapshot, the tags on it, and what only it names are deleted at once."""
    gone = table.snapshot(table.latest_snapshot_id() or 0)
    for tag in table.tags():
        if tag.snapshot.id >= gone.id:
            table.store.delete(table.paths.tag(tag.name))
    table.store.replace(table.paths.latest_hint, str(gone.id - 1).encode())
    table.store.delete(table.paths.snapshot(gone.id))
    for name in (gone.base_manifest_list, gone.delta_manifest_list):
        table.store.delete(manifest_path(name))
