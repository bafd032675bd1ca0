"""A branch and its rebase, or one made from it, are both published: no row comes twice, whatever happens meanwhile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import ConflictError, PaimonError
from airflow_paimon.core.publish.undoable_publishes import publishes_still_on_main
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from tests.core.tables import run
from tests.data.row_statements import with_ids
from tests.data.test_compact import run as run_compact
from tests.data.test_rebase import insert, update
from tests.randomness import chance, lives
from tests.stores import delete_tree

COLUMNS = [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]


def make(folder: Path, **options: str) -> Table:
    """Main has rows 0 and 1, branch ``fix`` has row 10 besides."""
    settings = {"bucket": "-1", **options}
    table = create_table(str(folder / "wh"), "d.t", COLUMNS, partition_keys=["dt"], options=settings)
    insert(table, "a", 0, 1)
    run(table, "create_branch", branch="fix", snapshot=1)
    insert(table.branch("fix"), "a", 10)
    return table


def head(view: Table) -> int:
    found = view.latest_snapshot()
    assert found is not None
    return found.id


def relate(table: Table, how: str, branch: str = "fix", to: str = "next") -> None:
    if how == "rebase":
        run(table, "rebase_branch", branch=branch, to_branch=to)
    else:
        run(table, "create_branch", from_branch=branch, branch=to, snapshot=head(table.branch(branch)))


def act(table: Table, step: str) -> Any:
    """Do one step, such as ``update next 10``."""
    what, where, *keys = step.split()
    view = table.branch(where)
    if what == "insert":
        return insert(view, "a", *map(int, keys))
    if what == "update":
        return update(view, *map(int, keys))
    if what == "compact":
        return run_compact(view, min_files=2, branch=where)
    if what == "undo":
        return run(table, "rollback_to", snapshot=head(table) - 1)
    if what == "delete":
        return run(table, "delete_branch", branch=where)
    return run(table, "merge_branch", branch=where)


def rows(table: Table) -> dict[int, str]:
    found = read_arrow(table).to_pylist()
    twice = [k for k, n in Counter(row["k"] for row in found).items() if n > 1]
    assert not twice, f"rows {twice} came twice"
    return {row["k"]: row["v"] for row in found}


@pytest.mark.parametrize("how", ["rebase", "branch of a branch"])
@pytest.mark.parametrize(
    ("steps", "last"),
    [
        (["publish fix", "compact main"], "publish next"),
        (["publish fix", "update main 10"], "publish next"),
        (["update next 10", "publish next"], "publish fix"),
        (["insert next 11", "compact next", "publish next"], "publish fix"),
        (["insert fix 11", "compact fix", "publish fix", "delete fix"], "publish next"),
        (["update fix 10", "publish fix", "delete fix"], "publish next"),
    ],
)
def test_the_second_publish_doubles_nothing(tmp_path: Path, how: str, steps: list[str], last: str) -> None:
    table = make(tmp_path)
    relate(table, how)
    for step in steps if how == "rebase" else [s for s in steps if s != "delete fix"]:
        act(table, step)
    before = rows(table)
    try:
        changed = act(table, last).changed
    except ConflictError as error:
        assert "cannot determine what main still has" in error.message
        changed = False
    assert not changed, "main has all of it, or something newer"
    assert rows(table) == before


@pytest.mark.parametrize("how", ["rebase", "branch of a branch"])
def test_both_are_published_while_nobody_changed_what_they_share(tmp_path: Path, how: str) -> None:
    table = make(tmp_path)
    relate(table, how)
    act(table, "insert next 11")
    assert act(table, "publish next").changed
    assert not act(table, "publish fix").changed
    assert set(rows(table)) == {0, 1, 10, 11}


@pytest.mark.parametrize(("first", "second"), [("fix", "next"), ("next", "fix")])
@pytest.mark.parametrize("how", ["rebase", "branch of a branch"])
def test_what_was_undone_is_published_by_the_other(tmp_path: Path, how: str, first: str, second: str) -> None:
    table = make(tmp_path)
    relate(table, how)
    act(table, f"publish {first}")
    act(table, "undo main")
    assert set(rows(table)) == {0, 1}
    assert act(table, f"publish {second}").changed
    assert set(rows(table)) == {0, 1, 10}


@pytest.mark.parametrize(("first", "second"), [("one", "two"), ("two", "one")])
def test_two_branches_of_a_branch_bring_what_they_share_once(tmp_path: Path, first: str, second: str) -> None:
    """One of them began later, so that it has more of it."""
    table = make(tmp_path)
    relate(table, "branch of a branch", to="one")
    act(table, "insert fix 11")
    relate(table, "branch of a branch", to="two")
    act(table, "insert one 20")
    act(table, "insert two 30")
    act(table, f"publish {first}")
    act(table, "update main 10")
    assert act(table, f"publish {second}").changed
    assert set(rows(table)) == {0, 1, 10, 11, 20, 30}
    assert not act(table, "publish fix").changed


@pytest.mark.parametrize("lost", ["branches/fix.json", "branches/next.json", ""])
@pytest.mark.parametrize(("first", "second"), [("fix", "next"), ("next", "fix")])
@pytest.mark.parametrize("how", ["rebase", "branch of a branch"])
def test_rows_come_once_without_a_record_that_says_who_is_related(
    tmp_path: Path, how: str, first: str, second: str, lost: str
) -> None:
    if how != "rebase" and first == "next" and lost != "branches/fix.json":
        return  # it shares nothing with main but by its record
    table = make(tmp_path)
    relate(table, how)
    if how != "rebase":
        act(table, "insert fix 12")
    delete_tree(table.store, f"_airflow_paimon/{lost}") if not lost else table.store.delete(f"_airflow_paimon/{lost}")
    for step in (f"publish {first}", "insert main 6", "compact main"):
        act(table, step)
    before = rows(table)
    for number in table.snapshot_ids()[1:-1]:  # a tag holds the publish
        table.store.delete(table.paths.snapshot(number))
    try:
        act(table, f"publish {second}")
    except PaimonError:
        assert rows(table) == before
    assert {0, 1, 10, 6} <= rows(table).keys()


@pytest.mark.parametrize("keys", [[], ["dt", "k"]])
@pytest.mark.parametrize("operation", ["fast_forward", "replace_main"])
def test_what_another_branch_s_whole_state_took_back_is_published_again(
    tmp_path: Path, operation: str, keys: list[str]
) -> None:
    """Of a publish of some partitions as well; and not while that other publish is undone."""
    settings = {"bucket": "1" if keys else "-1"}
    columns = [("k", "INT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")]
    table = create_table(
        str(tmp_path / "wh"), "d.t", columns, partition_keys=["dt"], primary_keys=keys, options=settings
    )
    insert(table, "a", 0, 1)
    for branch, row in (("fix", 10), ("other", 12)):
        run(table, "create_branch", branch=branch, snapshot=1)
        insert(table.branch(branch), "a", row)
    insert(table.branch("fix"), "b", 20)

    def publish() -> bool:
        return bool(run(table, "merge_branch", branch="fix", partitions=("dt=a",)).changed)

    assert publish()
    stopped = {"readers_stopped": True} if operation == "replace_main" else {}
    run(table, operation, branch="other", discard_main=True, **stopped)
    assert set(rows(table)) == {0, 1, 12}
    assert [p.branch for p in publishes_still_on_main(table)] == ["other"]
    run(table, "rollback_to", snapshot=head(table) - 1, keep_later=True)
    assert set(rows(table)) == {0, 1, 10}
    assert not publish()
    run(table, "rollback_to", snapshot=head(table) - 1, keep_later=True)
    assert set(rows(table)) == {0, 1, 12}
    assert publish()
    assert set(rows(table)) == {0, 1, 10, 12}
    assert not publish()


@pytest.mark.parametrize("how", ["rebase", "branch of a branch"])
def test_a_publish_is_known_when_its_branch_and_main_s_snapshots_are_gone(tmp_path: Path, how: str) -> None:
    table = make(tmp_path)
    relate(table, how)
    for step in ("insert next 11", "publish next", "compact main", "delete next"):
        act(table, step)
    for tag in table.tag_names():
        if "undo" in tag:
            run(table, "delete_tag", tag=tag)
    now = {"grace": "0 s", "writers_stopped": True, "retry_window": "0 s", "keep_undo": False}
    run(table, "expire_snapshots", retain_max=1, retain_min=1, older_than="0 s", **now)
    assert len(table.snapshot_ids()) == 1
    with pytest.raises(ConflictError, match="cannot determine what main still has"):
        act(table, "publish fix")
    assert set(rows(table)) == {0, 1, 10, 11}


def test_what_a_publish_took_is_unknown_when_the_branch_has_lost_it(tmp_path: Path) -> None:
    table = make(tmp_path)
    for step in ("publish fix", "insert fix 11"):
        act(table, step)
    fix = table.branch("fix")
    fix.store.delete(fix.paths.snapshot(head(fix) - 1))  # as another engine that rolls the branch back
    with pytest.raises(ConflictError, match="cannot determine what main still has"):
        act(table, "publish fix")
    assert set(rows(table)) == {0, 1, 10}


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        (["publish fix", "insert main 6"], "insert next 12"),
        (["publish fix", "insert main 6", "compact main"], "insert next 12"),
        (["publish fix", "insert main 6"], "update next 10"),
        (["publish next", "insert main 6"], "update fix 10"),
        (["publish fix", "insert main 6", "insert next 12"], "compact next"),
    ],
)
def test_no_row_gets_another_row_id_by_the_second_publish(tmp_path: Path, steps: list[str], last: str) -> None:
    """Row 10 has one id on each branch, and a third one on main."""
    table = make(tmp_path, **{"row-tracking.enabled": "true"})
    act(table, "insert main 5")
    relate(table, "rebase")
    for step in [*steps, last]:
        act(table, step)
    before = {row[0]: row[-2] for row in with_ids(table)}
    what, branch = last.split()[:2]
    if what == "insert":
        assert act(table, f"publish {branch}").changed and 12 in rows(table)
    else:
        with pytest.raises(ConflictError, match="other row ids there than on this one"):
            act(table, f"publish {branch}")
    after = {row[0]: row[-2] for row in with_ids(table)}
    assert {k: after[k] for k in before} == before and len(set(after.values())) == len(after)


@pytest.mark.random
@pytest.mark.parametrize("case", range(lives(4, 60)))
def test_a_life(tmp_path: Path, case: int) -> None:
    draw = chance(f"relatives {case}")
    tracked = draw.choice([{}, {"row-tracking.enabled": "true"}])
    table, names, key = make(tmp_path, **tracked), ["fix"], 20
    for _ in range(draw.randint(6, 14)):
        where, what = draw.choice([*names, "main"]), draw.choice(["insert", "update", "compact", "publish", "relate"])
        try:
            if what == "relate" and where != "main" and len(names) < 4:
                relate(table, draw.choice(["rebase", "child"]), where, f"b{len(names)}")
                names = ["fix", *(n for n in table.branch_names() if n != "fix")]
            elif what == "publish" and where != "main":
                act(table, f"publish {where}")
            elif what == "insert":
                key += 1
                act(table, f"insert {where} {key}")
            elif what == "update":
                act(table, f"update {where} {draw.choice([0, 10, key])}")
            elif what == "compact":
                act(table, f"compact {where}")
            elif what == "publish" and draw.random() < 0.3 and head(table) > 2:
                act(table, "undo main")
        except PaimonError:
            pass
        rows(table)
    assert run(table, "check_table").details["errors"] == 0
