"""Publishes of some partitions of a branch, with rows: ids and versions, changelogs, indexes of dynamic buckets."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.audit.rows import row_of
from airflow_paimon.core.audit.text import render
from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import run
from tests.data.hash_indexes import check_indexes
from tests.data.row_statements import statement, with_ids
from tests.data.test_compact import run as run_compact
from tests.data.test_publish_changelog import correct, told, with_branch

COLUMNS = [("k", "INT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL"), ("h", "INT NOT NULL")]


def put(view: Table, v: str, *keys: int) -> None:
    rows = [{"k": k, "v": v, "dt": dt, "h": h} for k in keys or (1,) for dt in "ab" for h in (1, 2)]
    types = pa.schema([("k", pa.int32()), ("v", pa.string()), ("dt", pa.string()), ("h", pa.int32())])
    write_arrow(view, pa.Table.from_pylist(rows, schema=types))


def shown(table: Table, k: int = 1) -> dict[tuple[str, int], str]:
    return {(r["dt"], r["h"]): r["v"] for r in read_arrow(table).to_pylist() if r["k"] == k}


@pytest.fixture(params=["1", "-1"], ids=["fixed", "dynamic"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    options = {"bucket": request.param}
    keys = {"partition_keys": ["dt", "h"], "primary_keys": ["dt", "h", "k"]}
    made = create_table(str(tmp_path / "wh"), "d.t", COLUMNS, options=options, **keys)
    put(made, "old")
    run(made, "create_branch", branch="fix", snapshot=1)
    return made


def test_partitions_of_two_columns_are_named_by_one_or_both(table: Table) -> None:
    put(table.branch("fix"), "new")
    asked = {"branch": "fix", "writers_stopped": True}
    run(table, "merge_branch", partitions=["dt=a"], **asked)
    result = run(table, "merge_branch", partitions=["h=2,dt=b"], **asked)
    assert result.details["only_partitions"] == ["dt=b/h=2"]
    assert result.details["left_partitions"] == ["dt=b/h=1"]
    assert shown(table) == {("a", 1): "new", ("a", 2): "new", ("b", 1): "old", ("b", 2): "new"}
    put(table, "newer")
    rest = run(table, "merge_branch", dry_run=True, partitions=["dt=a"], **asked)
    assert not rest.changed
    put(table.branch("fix"), "again")
    undo = run(table, "rollback_to", snapshot=3, writers_stopped=True)
    assert undo.changed
    assert run(table, "merge_branch", **asked).details["partitions"] == 4
    assert set(shown(table).values()) == {"again"}


def test_the_audit_says_which_partitions_in_every_format(table: Table) -> None:
    put(table.branch("fix"), "new")
    run(table, "merge_branch", branch="fix", partitions=["dt=b/h=2"], writers_stopped=True)
    run(table, "rollback_to", snapshot=1, writers_stopped=True)
    publish, undo = (one for one in read_audit(table) if one.branch == "main")
    lines = list(csv.DictReader(io.StringIO(render([publish, undo], "csv"))))
    assert [line["only_partitions"] for line in lines] == ['["dt=b/h=2"]', ""]
    assert [one["only_partitions"] for one in json.loads(render([publish, undo], "json"))] == [["dt=b/h=2"], []]
    assert [row_of(one)["only_partitions"] for one in (publish, undo)] == ['["dt=b/h=2"]', None]


def test_indexes_of_dynamic_buckets_come_with_their_partitions(tmp_path: Path) -> None:
    keys = {"partition_keys": ["dt", "h"], "primary_keys": ["dt", "h", "k"]}
    table = create_table(str(tmp_path / "wh"), "d.t", COLUMNS, options={"bucket": "-1"}, **keys)
    put(table, "old")
    run(table, "create_branch", branch="fix", snapshot=1)
    put(table.branch("fix"), "new", 1, 2, 3)
    with pytest.raises(UnsafeOperationError, match=r"dt=a/h=1/bucket-0 .*have other keys"):
        run(table, "merge_branch", branch="fix", partitions=["dt=a/h=1"])
    run(table, "merge_branch", branch="fix", partitions=["dt=a/h=1"], writers_stopped=True)
    found = {partition: len(keys) for (partition, _), keys in check_indexes(table).items()}
    assert sorted(found.values()) == [1, 1, 1, 3]
    put(table, "more", 4)
    assert sorted(len(keys) for keys in check_indexes(table).values()) == [2, 2, 2, 4]
    assert shown(table, 2) == {("a", 1): "new"}


def test_the_changelog_is_of_the_published_partitions_only(tmp_path: Path) -> None:
    main, fix = with_branch(tmp_path, "lookup")
    correct(fix, [("a", 1, "new")])
    correct(fix, [("b", 1, "new")], partition="b")
    part = run(main, "merge_branch", branch="fix", partitions=["p=b"])
    assert told(main, part) == ["-U b1 v1", "+U b1 new"]
    assert told(main, run(main, "merge_branch", branch="fix")) == ["-U a1 v1", "+U a1 new"]


# -- row tracking ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tracked(tmp_path: Path) -> Table:
    """Partitions a and b hold the rows 0, 1 and 10, 11."""
    columns = [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    table = create_table(str(tmp_path / "wh"), "d.t", columns, partition_keys=["dt"], options=options)
    insert(table, "a", 0, 1)
    insert(table, "b", 10, 11)
    run(table, "create_branch", branch="fix", snapshot=2)
    return table


def insert(view: Table, dt: str, *keys: int) -> None:
    n = len(keys)
    write_arrow(view, pa.table({"k": pa.array(keys, pa.int32()), "v": ["new"] * n, "dt": [dt] * n}))


def update(view: Table, *keys: int) -> None:
    statement(view, lambda row: {**row, "v": row["v"] + "!"} if row["k"] in keys else row)


def ids(table: Table) -> dict[int, tuple[int, int]]:
    """Row id and version of each key; no id is on two rows, and all are below the next one."""
    found, head = with_ids(table), table.latest_snapshot()
    by_id = [row[-2] for row in found]
    assert head is not None
    assert len(set(by_id)) == len(by_id) and max(by_id) < (head.next_row_id or 0)
    return {row[0]: row[-2:] for row in found}


def test_row_ids_and_versions_are_those_of_each_partition_s_own_publish(tracked: Table) -> None:
    fix = tracked.branch("fix")
    insert(fix, "a", 2)
    insert(fix, "b", 12)
    insert(tracked, "m", 90, 91)
    first = run(tracked, "merge_branch", branch="fix", partitions=["dt=a"]).snapshot_after
    insert(tracked, "m", 92)
    now = ids(tracked)
    assert now[2] == (6, first) and now.keys() == {0, 1, 2, 10, 11, 90, 91, 92}
    second = run(tracked, "merge_branch", branch="fix", partitions=["dt=b"]).snapshot_after
    assert ids(tracked) == now | {12: (7, second)}
    update(fix, 0, 10)
    for dt in "ab":
        run_compact(fix, min_files=2, branch="fix", partitions=[f"dt={dt}"])
    third = run(tracked, "merge_branch", branch="fix").snapshot_after
    assert third is not None
    assert ids(tracked) == now | {12: (7, second), 0: (0, third), 10: (2, third)}
    update(fix, 2, 12)
    for dt in "ab":
        run_compact(fix, min_files=2, branch="fix", partitions=[f"dt={dt}"])
    fourth = run(tracked, "merge_branch", branch="fix", partitions=["dt=b"]).snapshot_after
    assert ids(tracked) == now | {12: (7, fourth), 0: (0, third), 10: (2, third)}
    assert run(tracked, "check_table").details["errors"] == 0


def test_a_publish_of_a_partition_that_comes_again_after_its_undo_has_its_version(tracked: Table) -> None:
    fix = tracked.branch("fix")
    insert(fix, "a", 2)
    insert(fix, "b", 12)
    undo = run(tracked, "merge_branch", branch="fix", partitions=["dt=a"]).details["undo_tag"]
    run(tracked, "merge_branch", branch="fix", partitions=["dt=b"])
    run(tracked, "rollback_to", tag=undo, keep_later=True)
    assert ids(tracked).keys() == {0, 1, 10, 11, 12}
    update(fix, 0, 2)
    again = run(tracked, "merge_branch", branch="fix").snapshot_after
    assert {k: v for k, (_, v) in ids(tracked).items() if k in (0, 2, 12)} == {0: again, 2: again, 12: 4}


@pytest.mark.parametrize("second", [["dt=a"], []], ids=["of a partition", "of all"])
def test_rows_that_an_undo_below_a_later_publish_gave_back_are_not_lost_by_the_next_one(
    tracked: Table, second: list[str]
) -> None:
    """Where the later one counts, the file of the new rows stays gone, so that of the old ones has to stay."""
    fix = tracked.branch("fix")
    update(fix, 10)
    undo = run(tracked, "merge_branch", branch="fix").details["undo_tag"]
    update(fix, 0)
    later = run(tracked, "merge_branch", branch="fix", partitions=second)
    run(tracked, "rollback_to", tag=undo, keep_later=True)
    before = with_ids(tracked)
    assert {row[0]: row[1] for row in before} == {0: "new!", 1: "new", 10: "new", 11: "new"}
    again = run(tracked, "merge_branch", branch="fix")
    if second:
        assert with_ids(tracked) == [(10, "new!", "b", 2, again.snapshot_after) if r[0] == 10 else r for r in before]
    else:
        assert not again.changed and with_ids(tracked) == before
        run(tracked, "rollback_to", tag=later.details["undo_tag"], keep_later=True)
        run(tracked, "merge_branch", branch="fix")
    assert sorted(r[:3] for r in with_ids(tracked)) == sorted(r[:3] for r in with_ids(fix))
    assert run(tracked, "check_table").details["errors"] == 0


def test_rows_that_the_branch_moved_between_partitions_are_published_together(tracked: Table) -> None:
    """One _ROW_ID would be on two rows; a correction in place, of which the bounds of ids overlap, is none of these."""
    fix = tracked.branch("fix")
    insert(tracked, "a", 3)
    insert(tracked, "b", 13)
    insert(tracked, "a", 4)
    run(tracked, "delete_branch", branch="fix")
    run(tracked, "create_branch", branch="fix", snapshot=5)
    update(fix, 0, 4, 10, 13)
    before = with_ids(tracked)
    assert run(tracked, "merge_branch", branch="fix", partitions=["dt=a"]).changed
    assert [r for r in with_ids(tracked) if r[2] == "b"] == [r for r in before if r[2] == "b"]
    statement(fix, lambda row: {**row, "dt": "c"} if row["k"] == 13 else row)
    now = with_ids(tracked)
    with pytest.raises(UnsafeOperationError, match=r"moved rows from dt=b .* _ROW_ID 5.*Publish those partitions tog"):
        run(tracked, "merge_branch", branch="fix", partitions=["dt=c"])
    assert with_ids(tracked) == now
    run(tracked, "merge_branch", branch="fix", partitions=["dt=b", "dt=c"])
    assert sorted(r[:4] for r in with_ids(tracked)) == sorted(r[:4] for r in with_ids(fix))
    assert len(ids(tracked)) == 7
