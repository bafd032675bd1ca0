"""Branches of row-tracking tables that are published: no id is on two rows, and versions are those of the publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import publish_row_ids, write_arrow
from tests.core.tables import run
from tests.data.chain.examples import mark_deleted
from tests.data.row_statements import statement, with_ids
from tests.data.test_compact import run as run_compact


@pytest.fixture
def tracked(tmp_path: Path) -> Table:
    """Partition a holds the rows 0 and 1 (ids 0 and 1); branch ``fix`` begins there."""
    columns = [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    table = create_table(str(tmp_path / "wh"), "d.t", columns, partition_keys=["dt"], options=options)
    insert(table, "a", 0, 1)
    run(table, "create_branch", branch="fix", snapshot=1)
    return table


def insert(view: Table, dt: str, *keys: int) -> None:
    n = len(keys)
    write_arrow(view, pa.table({"k": pa.array(keys, pa.int32()), "v": ["new"] * n, "dt": [dt] * n}))


def update(view: Table, *keys: int, v: str = "changed") -> None:
    statement(view, lambda row: {**row, "v": v} if row["k"] in keys else row)


def ids(table: Table) -> dict[int, tuple[int, int]]:
    """Row id and version of each key; no id is on two rows, and all are below the next one."""
    found = with_ids(table)
    by_id = [row[-2] for row in found]
    head = table.latest_snapshot()
    assert head is not None
    assert len(set(by_id)) == len(by_id) and max(by_id) < (head.next_row_id or 0)
    assert max(row[-1] for row in found) <= head.id
    return {row[0]: row[-2:] for row in found}


def publish(table: Table, operation: str = "merge_branch", **values: Any) -> dict[str, Any]:
    return dict(run(table, operation, branch="fix", **values).details)


def test_a_stored_file_with_ids_that_main_gave_out_is_written_again(tracked: Table) -> None:
    """The row 20 of the branch and the row 10 of main have the same id 2 before the publish."""
    fix = tracked.branch("fix")
    insert(fix, "b", 20)
    update(fix, 20)
    insert(tracked, "c", 10)
    planned = publish(tracked, dry_run=True)
    assert (planned["renumbered_files"], planned["rewritten_files"]) == (0, 1)
    result = publish(tracked)
    assert (result["renumbered_files"], result["rewritten_files"]) == (0, 1)
    head = tracked.latest_snapshot()
    assert head is not None and (head.id, head.next_row_id) == (3, 4)
    assert ids(tracked) == {0: (0, 1), 1: (1, 1), 10: (2, 2), 20: (3, 3)}
    assert [row[1] for row in with_ids(tracked) if row[0] == 20] == ["changed"]
    insert(tracked, "d", 30)
    assert ids(tracked)[30] == (4, 4)


def test_plain_files_are_renumbered_in_the_manifest_and_old_rows_keep_their_ids(tracked: Table) -> None:
    fix = tracked.branch("fix")
    update(fix, 1)
    insert(fix, "b", 20, 21)
    insert(tracked, "c", 10, 11, 12)
    result = publish(tracked)
    assert (result["renumbered_files"], result["rewritten_files"]) == (1, 0)
    assert ids(tracked) == {0: (0, 1), 1: (1, 3), 10: (2, 2), 11: (3, 2), 12: (4, 2), 20: (5, 3), 21: (6, 3)}


def test_onto_a_main_that_gave_out_no_ids_all_stay_and_versions_are_the_publishs(tracked: Table) -> None:
    fix = tracked.branch("fix")
    for key in (20, 21):
        insert(fix, "b", key)
    update(fix, 0)
    result = publish(tracked)
    assert (result["renumbered_files"], result["rewritten_files"]) == (0, 0)
    assert ids(tracked) == {0: (0, 2), 1: (1, 1), 20: (2, 2), 21: (3, 2)}


def test_versions_of_two_statements_on_the_branch_become_the_publishs(tracked: Table) -> None:
    """A version that a branch's file stores is of a snapshot that main does not have, or that means another commit."""
    fix = tracked.branch("fix")
    update(fix, 0)
    update(fix, 1)
    assert {v for _, v in ids(fix).values()} == {2, 3}
    result = publish(tracked)
    assert (result["renumbered_files"], result["rewritten_files"]) == (0, 1)
    assert ids(tracked) == {0: (0, 2), 1: (1, 2)}


def test_a_compaction_of_old_and_new_rows_is_published_with_the_old_ids(tracked: Table) -> None:
    fix = tracked.branch("fix")
    insert(fix, "a", 20)
    update(fix, 20)
    statement(fix, lambda row: {**row, "v": "all"})
    insert(tracked, "c", 10, 11)
    assert publish(tracked)["rewritten_files"] > 0
    assert ids(tracked) == {0: (0, 3), 1: (1, 3), 10: (2, 2), 11: (3, 2), 20: (4, 3)}


def test_a_second_publish_shifts_what_is_new_and_knows_what_it_published(tracked: Table) -> None:
    fix = tracked.branch("fix")
    insert(fix, "b", 20)
    update(fix, 20)
    insert(fix, "c", 21)
    insert(tracked, "m", 10)
    publish(tracked)
    first = ids(tracked)
    assert first[20][0] == 3 and first[21][0] == 4
    assert not run(tracked, "merge_branch", branch="fix").changed
    insert(tracked, "m", 11)  # gets 5
    insert(fix, "d", 22)
    update(fix, 21)
    result = publish(tracked)
    assert result["renumbered_files"] == 1 and result["rewritten_files"] == 1
    second = ids(tracked)
    head = tracked.latest_snapshot_id()
    assert {k: second[k] for k in (0, 1, 10, 20)} == {k: first[k] for k in (0, 1, 10, 20)}
    assert (second[11][0], second[21], second[22]) == (5, (4, head), (6, head))
    update(fix, 22, v="again")
    publish(tracked)
    assert ids(tracked)[22][0] == 6 and ids(tracked)[20] == first[20]


def fold(view: Table) -> None:
    """Compact the branch: its rows' versions are stored now, as numbers of its snapshots."""
    run_compact(view, min_files=2, branch=view.branch_name)


def test_unchanged_rows_keep_their_versions_when_a_compacted_branch_is_published_again(tracked: Table) -> None:
    fix = tracked.branch("fix")
    insert(tracked, "m", 10, 11)
    update(fix, 0)
    insert(fix, "a", 20)
    publish(tracked)
    first = ids(tracked)
    assert (first[0], first[20]) == ((0, 3), (4, 3))
    update(fix, 1)
    publish(tracked)
    second = ids(tracked)
    assert second == first | {1: (1, 4)}
    insert(fix, "a", 21)
    fold(fix)
    assert publish(tracked)["rewritten_files"] == 1
    third = ids(tracked)
    assert third == second | {21: (5, 5)}
    update(fix, 20)
    fold(fix)
    publish(tracked)
    assert ids(tracked) == third | {20: (4, 6)}


def test_main_s_compaction_of_what_was_published_changes_no_version(tracked: Table) -> None:
    fix = tracked.branch("fix")
    update(fix, 0)
    insert(fix, "a", 20)
    publish(tracked)
    run_compact(tracked, min_files=2)
    first = ids(tracked)
    insert(fix, "a", 21)
    publish(tracked)
    assert ids(tracked) == first | {21: (3, 4)}


def test_rows_that_a_publish_brings_back_are_changed_by_it(tracked: Table) -> None:
    """Not by the one that was undone, or that had other values: a reader of newer versions would miss them."""
    fix = tracked.branch("fix")
    update(fix, 0)
    done = publish(tracked)
    run(tracked, "rollback_to", tag=done["undo_tag"], keep_later=True)
    assert ids(tracked)[0] == (0, 1)
    insert(fix, "a", 20)
    fold(fix)
    publish(tracked)
    assert ids(tracked)[0] == (0, 4)
    update(fix, 0, v="again")
    publish(tracked)
    assert ids(tracked)[0] == (0, 5)
    run(tracked, "rollback_to", branch="fix", snapshot=4)  # compacted, with the first value
    publish(tracked)
    assert [row[1:] for row in with_ids(tracked) if row[0] == 0] == [("changed", "a", 0, 6)]


def test_after_an_undo_the_same_rows_get_the_same_ids_again(tracked: Table) -> None:
    fix = tracked.branch("fix")
    insert(fix, "b", 20)
    update(fix, 20)
    insert(tracked, "c", 10)
    done = publish(tracked)
    published = ids(tracked)
    run(tracked, "rollback_to", tag=done["undo_tag"], keep_later=True)
    assert ids(tracked).keys() == {0, 1, 10}
    insert(tracked, "d", 11)
    assert ids(tracked)[11][0] == 4  # never given out again
    publish(tracked)
    assert ids(tracked)[20][0] == published[20][0] == 3


def test_a_publish_that_loses_a_race_renumbers_again_and_leaves_no_files(
    tracked: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix = tracked.branch("fix")
    insert(fix, "b", 20)
    update(fix, 20)
    insert(tracked, "c", 10)
    real, raced = publish_row_ids.rewrite_files, []

    def beside(*arguments: Any) -> list[ManifestEntry]:
        out = real(*arguments)
        if not raced:
            raced.append(insert(tracked, "c", 11, 12))
        return out

    monkeypatch.setattr(publish_row_ids, "rewrite_files", beside)
    publish(tracked)
    assert ids(tracked) == {0: (0, 1), 1: (1, 1), 10: (2, 2), 11: (3, 3), 12: (4, 3), 20: (5, 4)}
    live = {e.file.file_name for e in live_entries(tracked, tracked.latest_snapshot()).values()}
    assert {p.name for p in rewritten(tracked)} <= live
    assert len(rewritten(tracked)) == 1


def rewritten(table: Table) -> list[Path]:
    return list(Path(table.store.uri.removeprefix("file://")).rglob("*.ids-*"))


def test_a_refused_publish_leaves_no_files(tracked: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    fix = tracked.branch("fix")
    insert(fix, "b", 20)
    update(fix, 20)
    update(fix, 0)
    insert(tracked, "c", 10)
    real = publish_row_ids.rewrite_files

    def beside(*arguments: Any) -> list[ManifestEntry]:
        out = real(*arguments)
        update(tracked, 0)  # a row of a file that the branch changed
        return out

    monkeypatch.setattr(publish_row_ids, "rewrite_files", beside)
    with pytest.raises(ConflictError, match="main and the branch both changed"):
        publish(tracked)
    assert not rewritten(tracked)


def test_a_main_that_another_engine_rolled_back_has_no_numbering_in_common(tracked: Table) -> None:
    fix = tracked.branch("fix")
    insert(fix, "b", 20)
    publish(tracked)
    published = tracked.latest_snapshot_id()
    assert published is not None
    tracked.store.delete(tracked.paths.snapshot(published))  # the tag on it stays
    insert(tracked, "c", 10)  # gets the id 2 as well
    update(fix, 20)
    publish(tracked)
    assert ids(tracked) == {0: (0, 1), 1: (1, 1), 10: (2, 2), 20: (3, 3)}


def test_deletion_vectors_stay_with_files_that_are_written_again(tracked: Table) -> None:
    fix = tracked.branch("fix")
    insert(fix, "b", 20, 21, 22, 23)
    update(fix, 20)
    gone = sorted(row[0] for row in with_ids(fix) if row[2] == "b")[1]
    mark_deleted(fix, ("b",), [1])
    left = {row[0] for row in with_ids(fix)}
    assert gone not in left and len(left) == 5
    insert(tracked, "c", 10)
    publish(tracked)
    assert ids(tracked).keys() == left | {10}
    assert {k: i - 1 for k, (i, _) in ids(tracked).items() if k >= 20} == {
        r[0]: r[-2] for r in with_ids(fix) if r[0] >= 20
    }
    assert len(rewritten(tracked)) == 1
    assert not run(tracked, "merge_branch", branch="fix").changed


def test_deletion_vectors_of_partitions_that_were_not_published_yet_are_no_change_of_main(tracked: Table) -> None:
    insert(tracked, "b", 20, 21)
    mark_deleted(tracked, ("b",), [1])
    run(tracked, "create_branch", branch="other", snapshot=tracked.latest_snapshot_id())
    other = tracked.branch("other")
    update(other, 0, 20)
    run(tracked, "merge_branch", branch="other", partitions=["dt=a"])
    assert run(tracked, "merge_branch", branch="other").changed
    assert {row[0]: row[1] for row in with_ids(tracked)} == {0: "changed", 1: "new", 20: "changed"}
