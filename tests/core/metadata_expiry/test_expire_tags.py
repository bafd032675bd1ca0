"""expire_tags: which tags go, which stay and why, and what becomes free."""

from __future__ import annotations

import time
import uuid
from datetime import datetime, timedelta

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.metadata_expiry.metadata_expiry_plan import TagRule, expired_tags
from airflow_paimon.core.metadata_expiry.root_values import TAG, Root
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import append, cut_off, make_table, names, rewrite, run
from tests.soundness import assert_sound, files_on_disk
from tests.stores import CountingStore

NOON = datetime(2026, 11, 22, 12)


@pytest.fixture
def table() -> Table:
    """Main's only file was replaced twice; tag ``t`` (7 d) alone still has the first one."""
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    append(table, "a")
    run(table, "create_tag", tag="t", time_retained="7 d")
    rewrite(table, "a")
    rewrite(table, "a")
    return table


def in_days(days: int) -> str:
    return str(int(time.time() * 1000) + days * 86_400_000)


def data_files(table: Table) -> set[str]:
    return {p.rpartition("/")[2] for p in files_on_disk(table) if p.endswith(".parquet")}


def test_a_tag_goes_when_its_retention_is_over_and_its_files_with_it(table: Table) -> None:
    run(table, "expire_snapshots", older_than="0 s", retain_min=1, grace="0 s", writers_stopped=True, now=in_days(1))
    assert len(data_files(table)) == 2
    assert not run(table, "expire_tags", grace="0 s", writers_stopped=True, now=in_days(6)).changed
    result = run(table, "expire_tags", grace="0 s", writers_stopped=True, now=in_days(8))
    assert result.details["expired"] == {"main": ["t"]}
    assert result.details["deleted"]["data_files"] == 1
    assert data_files(table) == names(table)
    assert_sound(table)


def test_an_operation_id_is_for_one_request(table: Table) -> None:
    assert not run(table, "expire_tags", operation_id="op").changed
    with pytest.raises(InvalidInputError, match="'op' was used for another request"):
        run(table, "expire_tags", operation_id="op", older_than="0 s", include_unlimited=True)
    assert table.tag_names() == ["t"]


def test_a_tag_whose_snapshot_lives_frees_nothing(table: Table) -> None:
    before = data_files(table)
    result = run(table, "expire_tags", grace="0 s", writers_stopped=True, now=in_days(8))
    assert (result.details["expired"], data_files(table)) == ({"main": ["t"]}, before)
    assert result.details["kept"] == [{"all_of": "tag 't'", "by": ["snapshot 1"]}]
    assert_sound(table)


def test_each_branch_has_its_own_tags(table: Table) -> None:
    run(table, "create_branch", branch="fix", tag="t")
    run(table, "create_tag", tag="t", branch="fix", time_retained="1 d", if_exists="replace")
    run(table, "expire_tags", branch="fix", grace="0 s", writers_stopped=True, now=in_days(3))
    assert (table.tag_names(), table.branch("fix").tag_names()) == (["airflow-paimon-branch-fix", "t"], [])
    everywhere = run(table, "expire_tags", all_branches=True, grace="0 s", writers_stopped=True, now=in_days(8))
    assert everywhere.details["expired"] == {"main": ["t"]}
    assert_sound(table)


def test_killed_at_every_change_and_run_again(table: Table) -> None:
    run(table, "expire_snapshots", older_than="0 s", retain_min=1, grace="0 s", writers_stopped=True, now=in_days(1))
    at_first = {p: table.store.read(p) for p in table.store.walk("")}
    asked = {"grace": "0 s", "writers_stopped": True, "now": in_days(8)}
    died, step = True, 0
    while died:
        step += 1
        for path in table.store.walk(""):
            table.store.delete(path)
        for path, data in at_first.items():
            table.store.create(path, data)
        died = cut_off(table, step, "expire_tags", **asked)
        assert_sound(table, leaks=True)
        run(table, "expire_tags", **asked)
        assert_sound(table)
        assert (data_files(table), table.tag_names()) == (names(table), [])
    assert step > 5


def test_a_keep_tag_goes_when_it_has_done_its_work(table: Table) -> None:
    """What an undo brought back: its keep tags hold the files while any snapshot or tag is as old."""
    run(table, "rollback_to", snapshot=1, undo_retention="1 s")
    rewrite(table, "a")
    kept = [name for name in table.tag_names() if "-keep-" in name]
    assert kept and not {*kept} & {*run(table, "expire_tags").details["expired"].get("main", [])}
    asked = {"older_than": "0 s", "retain_min": 1, "grace": "0 s", "writers_stopped": True, "keep_undo": False}
    run(table, "expire_snapshots", **asked, retry_window="0 s", now=in_days(1))
    run(table, "expire_tags", grace="0 s", writers_stopped=True, now=in_days(8))
    gone = run(table, "expire_tags", grace="0 s", writers_stopped=True, now=in_days(8))
    assert gone.details["expired"] == {"main": kept}
    assert (table.tag_names(), data_files(table)) == ([], names(table))
    assert_sound(table)


def _root(name: str, table: Table, age: int | None = None, retained: int | None = None) -> Root:
    snapshot = table.snapshot(1)
    created = None if age is None else NOON - timedelta(days=age)
    tag = Tag(
        name=name,
        snapshot=snapshot,
        create_time=created,
        time_retained=None if retained is None else timedelta(days=retained),
    )
    return Root(kind=TAG, branch="main", name=name, path=name, data=b"", snapshot=snapshot, tag=tag)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (TagRule(at=NOON), {"over", "airflow-paimon-undo-1"}),
        (TagRule(at=NOON, older_than=NOON - timedelta(days=2)), {"over", "airflow-paimon-undo-1", "old"}),
        (TagRule(at=NOON, prefix="o"), {"over"}),
        (
            TagRule(at=NOON, older_than=NOON - timedelta(days=2), include_unlimited=True),
            {"over", "airflow-paimon-undo-1", "old", "forever"},
        ),
    ],
)
def test_which_tags_expire(table: Table, rule: TagRule, expected: set[str]) -> None:
    tags = [
        _root("over", table, age=3, retained=1),
        _root("old", table, age=3, retained=9),
        _root("young", table, age=1, retained=9),
        _root("forever", table),
        _root("forever-young", table),
        _root("unknown", table),
        _root("airflow-paimon-branch-x", table),
        _root("airflow-paimon-undo-1", table, age=8, retained=7),
        _root("airflow-paimon-undo-2", table, age=5, retained=7),
    ]
    files = {
        "forever": NOON - timedelta(days=5),
        "forever-young": NOON,
        "airflow-paimon-branch-x": datetime(2020, 1, 1),
    }
    assert {r.name for r in expired_tags(tags, rule, files)} == expected


def test_unlimited_needs_an_age(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="needs older_than"):
        run(table, "expire_tags", include_unlimited=True)


def test_the_cost_of_a_tag_does_not_grow_with_their_number(table: Table) -> None:
    """Each is compared with all others, which were read again for each."""
    requests = []
    for number in (5, 20):
        for n in range(number):
            run(table, "create_tag", tag=f"x{n}", time_retained="1 s")
        store = CountingStore(table.store)
        request = build_request("expire_tags", {"warehouse": "w", "table": table.name})
        now_ms = int(time.time() * 1000) + 60_000
        done = perform(Context(request, Table(store, table.name), now_ms, time.monotonic()), request)
        assert len(done.details["expired"]["main"]) == number
        requests.append(store.tally.requests / number)
    assert requests[1] <= requests[0]
