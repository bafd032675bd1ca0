"""A publish among writers that never pause: what they leave alone is not planned again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import pytest

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, OperationResult, open_context
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.properties import OLDER_FILES_PROPERTY
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import alter_table, append, files, make_table, message, rewrite, run
from tests.randomness import lives
from tests.stores import CountingStore, RivalledStore

T = TypeVar("T")
_RIVALS = lives(10, 30)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = make_table(tmp_path / "wh")
    for dt in "abc":
        append(table, dt, rows=2, seq=0)
    run(table, "create_tag", tag="base")
    run(table, "create_branch", branch="fix", tag="base")
    rewrite(table.branch("fix"), "a")
    return table


def publish(
    table: Table, rival: Callable[[int], object], times: int, **values: Any
) -> tuple[OperationResult, list[int]]:
    return beside(table, rival, times, "merge_branch", branch="fix", **values)


def beside(
    table: Table, rival: Callable[[int], object], times: int, operation: str, **values: Any
) -> tuple[OperationResult, list[int]]:
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    context = open_context(build_request(operation, {"warehouse": warehouse, "table": table.name, **values}))
    store = RivalledStore(table.store, rival, times)
    result = perform(
        Context(context.request, Table(store, table.name), context.now_ms, context.started), context.request
    )
    return result, store.requests


def test_a_merge_gets_through_beside_a_writer_that_wins_many_races(table: Table) -> None:
    want = files(table.branch("fix"))
    result, requests = publish(table, lambda n: append(table, "b", seq=10 * n), _RIVALS)
    assert result.details["attempts"] == _RIVALS + 1
    head = table.require().latest_snapshot()
    assert head is not None
    assert head.properties["airflow-paimon.operation"] == "merge_branch"
    now = files(table)
    assert {key: held for key, held in now.items() if b"b" not in key[0]} == {
        key: held for key, held in want.items() if b"b" not in key[0]
    }
    assert sum(len(held) for key, held in now.items() if b"b" in key[0]) == 1 + _RIVALS
    assert result.details["main_snapshot"] == head.id - 1
    assert table.tag(result.details["undo_tag"]).snapshot.id == head.id - 1, "undo goes back to the last commit before"
    costs = [after - before for before, after in pairwise(requests)]
    assert median(costs[-5:]) == median(costs[:5]), "an attempt costs the same, however many commits came in"


def test_a_rival_in_the_branchs_bucket_is_found_on_the_way(table: Table) -> None:
    head = table.latest_snapshot_id()
    with pytest.raises(ConflictError, match="dt=a"):
        publish(table, lambda n: append(table, "a" if n == 3 else "b", seq=10 * n), 5)
    new = table.snapshots(list(range((head or 0) + 1, (table.latest_snapshot_id() or 0) + 1)))
    assert [s.properties.keys() for s in new] == [{OLDER_FILES_PROPERTY}] * 3, "the rivals' only"


def test_a_publish_of_one_partition_gets_through_beside_a_writer_of_another_that_the_branch_changed(
    table: Table,
) -> None:
    fix = table.branch("fix")
    rewrite(fix, "b")
    result, requests = publish(table, lambda n: append(table, "b", seq=10 * n), 12, partitions=["dt=a"])
    assert result.details["attempts"] == 13
    now = files(table)
    assert {k: v for k, v in now.items() if b"a" in k[0][-8:]} == {
        k: v for k, v in files(fix).items() if b"a" in k[0][-8:]
    }
    assert sum(len(held) for key, held in now.items() if b"b" in key[0][-8:]) == 1 + 12
    costs = [after - before for before, after in pairwise(requests)]
    assert median(costs[-5:]) == median(costs[:5]), "it is not planned again"
    with pytest.raises(ConflictError, match="dt=b"):
        run(table, "merge_branch", branch="fix")


@pytest.mark.parametrize("primary", [True, False])
def test_what_is_undone_meanwhile_comes_again_with_the_publish(tmp_path: Path, primary: bool) -> None:
    table = make_table(tmp_path / "two", primary=primary)
    for dt in "ab":
        append(table, dt)
    run(table, "create_branch", branch="fix", snapshot=2)
    fix = table.branch("fix")
    rewrite(fix, "a")
    undo = run(table, "merge_branch", branch="fix").details["undo_tag"]
    rewrite(fix, "b")
    publish(table, lambda _: run(table, "rollback_to", tag=undo, keep_later=True), 1)
    assert files(table) == files(fix)


@pytest.mark.parametrize("primary", [True, False])
def test_two_publishes_of_the_same_branch_meet_and_each_brings_its_partition(tmp_path: Path, primary: bool) -> None:
    table = make_table(tmp_path / "two", primary=primary)
    for dt in "ab":
        append(table, dt)
    run(table, "create_branch", branch="fix", snapshot=2)
    fix = table.branch("fix")
    for dt in "ab":
        rewrite(fix, dt)
    result, _ = publish(table, lambda _: run(table, "merge_branch", branch="fix", partitions=["dt=b"]), 1,
                        partitions=["dt=a"])  # fmt: skip
    assert result.changed
    assert files(table) == files(fix)
    assert not run(table, "merge_branch", branch="fix").changed
    assert run(table, "check_table").details["errors"] == 0


def test_an_altered_main_is_planned_anew(table: Table) -> None:
    def rival(number: int) -> None:
        if number == 2:
            alter_table(table, [AddColumn(name="extra", type="INT")])
        append(table, "b", seq=10 * number)

    result, _ = publish(table, rival, 4)
    assert result.changed
    assert table.latest_snapshot().schema_id == table.schema().id == 1  # type: ignore[union-attr]


def test_an_expected_head_is_not_followed(table: Table) -> None:
    with pytest.raises(ConflictError, match="as expected"):
        publish(table, lambda n: append(table, "b", seq=10 * n), 1, expected_main_snapshot=table.latest_snapshot_id())


def test_an_undo_gets_through_beside_a_writer_that_wins_many_races(table: Table) -> None:
    before = files(table)
    tag = run(table, "merge_branch", branch="fix").details["undo_tag"]
    undo = {"tag": tag, "keep_later": True}
    result, requests = beside(table, lambda n: append(table, "b", seq=10 * n), _RIVALS, "rollback_to", **undo)
    assert result.details["attempts"] == _RIVALS + 1
    now, head = files(table), table.latest_snapshot_id() or 0
    assert {key: held for key, held in now.items() if b"b" not in key[0]} == {
        key: held for key, held in before.items() if b"b" not in key[0]
    }
    assert sum(len(held) for key, held in now.items() if b"b" in key[0]) == 1 + _RIVALS
    assert result.details["head_snapshot"] == head - 1
    assert table.tag(result.details["undo_tag"]).snapshot.id == head - 1
    costs = [after - before for before, after in pairwise(requests)]
    assert max(after - before for before, after in pairwise(costs)) <= 1, "one more manifest each, no new plan"


def test_a_rival_in_what_an_undo_takes_back_is_found_on_the_way(table: Table) -> None:
    undo = {"tag": run(table, "merge_branch", branch="fix").details["undo_tag"], "keep_later": True}
    with pytest.raises(ConflictError, match="changed again after the publish"):
        beside(table, lambda n: append(table, "a" if n == 3 else "b", seq=10 * n), 5, "rollback_to", **undo)


class _Overtaken(CountingStore):
    """Lets the other try run whole as soon as the operation has its record."""

    def __init__(self, inner: Any, other: Callable[[], object]) -> None:
        super().__init__(inner)
        self._other: Callable[[], object] | None = other

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        done = super()._call(method, path, action)
        other = self._other
        if other is not None and method == "create" and path.startswith("_airflow_paimon/operations/"):
            self._other = None
            other()
        return done


@pytest.mark.parametrize(
    ("operation", "values"), [("merge_branch", {"branch": "fix"}), ("rollback_to", {"snapshot": 1})]
)
def test_a_try_that_another_overtakes_gives_its_result(table: Table, operation: str, values: dict[str, Any]) -> None:
    values = {**values, "operation_id": "op"}
    done: list[OperationResult] = []
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    context = open_context(build_request(operation, {"warehouse": warehouse, "table": table.name, **values}))
    slow = Table(_Overtaken(table.store, lambda: done.append(run(table, operation, **values))), table.name)
    late = perform(Context(context.request, slow, context.now_ms, context.started), context.request)
    (first,) = done
    assert late.snapshot_after == first.snapshot_after == table.latest_snapshot_id()
    assert late.details["replayed"]


@pytest.mark.parametrize("row_tracking", ["false", "true"])
def test_a_merge_of_the_same_branch_that_was_faster_is_not_followed(tmp_path: Path, row_tracking: str) -> None:
    """In a table without keys both bring the same rows: the slower one finds them there."""
    table = make_table(tmp_path / "wh", primary=False, row_tracking__enabled=row_tracking)
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    append(table.branch("fix"), "a", rows=3)
    result, _ = publish(table, lambda n: run(table, "merge_branch", branch="fix"), 1)
    assert not result.changed
    head = table.latest_snapshot()
    assert head is not None and (head.id, head.total_record_count) == (2, 4)
    assert sum(e.file.row_count for e in live_entries(table, head).values()) == 4


def test_an_undo_of_the_same_publish_that_was_faster_is_not_followed(tmp_path: Path) -> None:
    """Both would bring back the file that the publish had removed."""
    table = make_table(tmp_path / "wh", primary=False)
    append(table, "a")
    before = files(table)
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    (live,) = live_entries(fix, fix.latest_snapshot()).values()
    gone = replace(message(fix, "a"), new_files=(), replaced=(live.file,))
    commit_buckets(fix, [gone])
    undo = {"tag": run(table, "merge_branch", branch="fix").details["undo_tag"], "keep_later": True}
    result, _ = beside(table, lambda n: run(table, "rollback_to", **undo), 1, "rollback_to", **undo)
    assert not result.changed
    assert files(table) == before


def test_a_tag_of_the_head_stays_in_the_branch_when_main_was_faster(table: Table) -> None:
    """Main then has more than the branch: the tag would be on a state that is not its own."""
    run(table, "create_tag", tag="done", branch="fix")
    result, _ = publish(table, lambda n: append(table, "c", seq=4), 1, tags=True, writers_stopped=True)
    assert result.changed and result.snapshot_after == 5
    assert (result.details["tags"], result.details["tags_kept"]) == ([], ["done"])
    assert "done" not in table.tag_names()


def test_a_tag_that_the_head_gets_meanwhile_stays_in_the_branch_when_main_was_faster(table: Table) -> None:
    run(table, "create_tag", tag="early", branch="fix", snapshot=table.branch("fix").snapshot_ids()[0])

    def rival(number: int) -> None:
        append(table, "c", seq=4)
        run(table, "create_tag", tag="done", branch="fix")

    result, _ = publish(table, rival, 1, tags=True, writers_stopped=True)
    assert result.snapshot_after == 5 and result.details["tags"] == ["early"]
    assert "early" in table.tag_names() and "done" not in table.tag_names()


def test_an_update_of_columns_by_a_rival_is_found_although_it_removes_no_file(tmp_path: Path) -> None:
    """With data evolution; one of another column gets in between, and both stand."""
    options = {"row-tracking.enabled": "true", "data-evolution.enabled": "true"}
    table = make_table(tmp_path, primary=False, **options)
    append(table, "a", rows=3)
    run(table, "create_branch", branch="fix", snapshot=1)
    update(table.branch("fix"), "v")
    update(table, "k")
    with pytest.raises(ConflictError, match="v of row ids 0 to 2 in dt=a"):
        publish(table, lambda n: update(table, "v" if n == 1 else "k"), 2)
    assert all("merge_branch" not in s.properties.values() for s in table.snapshots(table.snapshot_ids()))
    run(table, "rollback_to", snapshot=2)
    result, _ = publish(table, lambda n: update(table, "k"), 2)
    assert result.details["attempts"] == 3
    head = table.latest_snapshot()
    assert head is not None
    written = {(f.write_cols, f.max_sequence_number) for f in (e.file for e in live_entries(table, head).values())}
    assert {cols for cols, _ in written} == {None, ("k",), ("v",)} and (("v",), head.id) in written


def update(view: Table, *columns: str) -> None:
    """A file of some columns of the first three rows, as an UPDATE by Paimon adds it."""
    file = message(view, "a", rows=3)
    new = file.new_files[0]._replace(first_row_id=0, write_cols=columns, min_sequence_number=0, max_sequence_number=0)
    entries = replace(file, new_files=(new,)).entries()
    commit(view, lambda head: Draft(kind=CommitKind.APPEND, entries=entries, schema=view.schema()))
