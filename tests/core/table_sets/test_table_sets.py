"""Versions of table sets: all tables or none, whatever dies, races or expires in between."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.catalogs import Catalog, open_catalog
from airflow_paimon.core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    PaimonError,
    UnsafeOperationError,
    UnsupportedCatalogError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.plan import Delete
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.store.memory import MemoryStore
from airflow_paimon.core.table.table import open_table, resolve_version
from airflow_paimon.core.table.table_set import SetMember, TableSet, parse_set_version
from airflow_paimon.core.table.table_sets import find_set, same_versions, set_folder, set_names
from airflow_paimon.core.table_sets import publish
from airflow_paimon.core.table_sets.publish import begin, complete, expired_versions, give_up_own, open_sets, pin_of
from airflow_paimon.execution import run_operation
from tests.clock import next_millisecond
from tests.core.tables import append, make_table, rewrite, run
from tests.randomness import moments
from tests.stores import Crash

NAMES = ("d.a", "e.b")
NOW = 1_000_000_000_000
DAY = 86_400_000


@pytest.fixture
def warehouse() -> str:
    """Two tables of two databases, with a snapshot each."""
    uri = f"memory://{uuid.uuid4()}/wh"
    for name in NAMES:
        append(make_table(uri, name, primary=False), "1")
    return uri


def catalog(warehouse: str) -> Catalog:
    return open_catalog(warehouse)


def load(warehouse: str) -> None:
    """Every table gets its next snapshot, one after the other, later than what there is."""
    next_millisecond()
    for name in NAMES:
        append(open_table(warehouse, name), "1")


def make(warehouse: str, name: str = "nightly", **values: Any) -> OperationResult:
    asked = {"warehouse": warehouse, "table": NAMES[0], "member": [NAMES[1]], "table_set": name, **values}
    return run_operation(build_request("create_table_set", asked))


def seen(warehouse: str, version: str = "set:nightly") -> list[int]:
    """The snapshots of one version, as a job reads them."""
    with same_versions():
        found = [resolve_version(open_table(warehouse, name), version)[1] for name in NAMES]
    return [snapshot.id for snapshot in found if snapshot is not None]


def set_tags(warehouse: str) -> set[str]:
    return {tag for name in NAMES for tag in open_table(warehouse, name).tag_names() if tag.startswith("set-")}


def test_a_version_has_a_snapshot_of_each_table_and_a_tag_on_it(warehouse: str) -> None:
    made = make(warehouse)
    assert made.details["version"] == "set:nightly@1"
    load(warehouse)
    assert seen(warehouse) == [1, 1], "what came after the version is in none"
    assert make(warehouse, member=["e.b@1"]).details["tables"] == {"d.a": 2, "e.b": 1}
    assert (seen(warehouse), seen(warehouse, "set:nightly@1")) == ([2, 1], [1, 1])
    assert [open_table(warehouse, name).tag("set-nightly-2").snapshot.id for name in NAMES] == [2, 1]
    assert set_names(catalog(warehouse)) == ["nightly"]
    assert catalog(warehouse).databases() == ["d", "e"]


def test_a_dry_run_makes_nothing(warehouse: str) -> None:
    planned = make(warehouse, dry_run=True)
    assert planned.details["version"] == "set:nightly@1"
    assert [action["action"] for action in planned.details["plan"]["actions"]] == ["PutNew"] * 4
    assert not set_names(catalog(warehouse))
    assert not set_tags(warehouse)


def test_a_job_reads_one_version_though_another_is_made_meanwhile(warehouse: str) -> None:
    make(warehouse)
    with same_versions():
        assert resolve_version(open_table(warehouse, NAMES[0]), "set:nightly")[1].id == 1  # type: ignore[union-attr]
        load(warehouse)
        make(warehouse)
        assert seen(warehouse) == [1, 1]
    assert seen(warehouse) == [2, 2]


def test_a_tag_of_that_very_name_wins(warehouse: str) -> None:
    make(warehouse)
    load(warehouse)
    run(open_table(warehouse, NAMES[0]), "create_tag", tag="set:nightly")
    assert seen(warehouse) == [2, 1]


def test_a_retry_gives_the_version_of_the_first_try(warehouse: str) -> None:
    first = make(warehouse, operation_id="op").details["number"]
    load(warehouse)
    make(warehouse)
    again = make(warehouse, operation_id="op").details
    assert (again["number"], again["replayed"]) == (first, True)
    assert seen(warehouse) == [2, 2]


@pytest.mark.parametrize(
    ("version", "error", "says"),
    [
        ("set:weekly", NotFoundError, "no table set 'weekly'"),
        ("set:nightly@7", NotFoundError, "has no version 7: it has 1 to 1"),
        ("set:nightly@x", InvalidInputError, "not of the form"),
        ("set:", InvalidInputError, "a name has letters"),
    ],
)
def test_a_version_that_is_not_there_is_named(
    warehouse: str, version: str, error: type[PaimonError], says: str
) -> None:
    make(warehouse)
    with pytest.raises(error, match=says):
        seen(warehouse, version)


def test_what_can_not_be_in_a_set_is_refused_before_anything_is_made(warehouse: str) -> None:
    make_table(warehouse, "d.empty")
    run(open_table(warehouse, "d.a"), "create_branch", branch="fix", snapshot=1)
    chain = {"warehouse": warehouse, "table": "d.chain", "column": ["k INT NOT NULL", "v STRING", "dt STRING NOT NULL"],
             "primary_key": ["dt", "k"], "partition_key": ["dt"], "option": ["bucket=1"], "timestamp_pattern": "$dt",
             "timestamp_formatter": "yyyyMMdd", "sequence_field": ["v"]}  # fmt: skip
    run_operation(build_request("create_chain_table", chain))
    cases: list[tuple[str, type[PaimonError], str]] = [
        ("d.none", NotFoundError, "no table d.none"),
        ("d.empty", NotFoundError, "no snapshot yet"),
        ("e.b@gone", NotFoundError, "no tag 'gone'"),
        ("d.a$branch_fix", InvalidInputError, "name no branch"),
        ("d.chain", UnsupportedFeatureError, "several branches"),
        ("e.b@set:nightly", InvalidInputError, "not a version of a table set"),
    ]
    for member, error, says in cases:
        with pytest.raises(error, match=says):
            make(warehouse, member=[member])
    with pytest.raises(InvalidInputError, match="named twice"):
        make(warehouse, member=["e.b", "e.b@1"])
    with pytest.raises(InvalidInputError, match="has letters"):
        make(warehouse, "a/b")
    assert not set_names(catalog(warehouse))
    with pytest.raises(InvalidInputError, match="opened by its path"):
        resolve_version(open_table(path=f"{warehouse}/d.db/a"), "set:nightly")
    with pytest.raises(InvalidInputError, match="snapshots of main"):
        resolve_version(open_table(warehouse, "d.a", "fix"), "set:nightly")


def test_a_server_that_keeps_the_warehouse_is_named() -> None:
    rest = open_catalog(
        "wh", {"metastore": "rest", "uri": "http://127.0.0.1:9", "token.provider": "bear", "token": "x"}
    )
    with pytest.raises(UnsupportedCatalogError, match="no"):
        set_folder(rest, "nightly")


def test_a_version_whose_tags_and_snapshots_are_gone_is_named(warehouse: str) -> None:
    make(warehouse)
    table = open_table(warehouse, NAMES[0])
    load(warehouse)
    run(table, "delete_tag", tag="set-nightly-1")
    assert seen(warehouse) == [1, 1], "the snapshot is there"
    table.store.delete(table.paths.snapshot(1))
    with pytest.raises(NotFoundError, match="has expired, or the tag was deleted"):
        seen(warehouse)


def test_the_tag_of_a_version_keeps_its_name_and_is_missed_when_it_is_gone(warehouse: str) -> None:
    make(warehouse)
    table = open_table(warehouse, NAMES[0])
    with pytest.raises(UnsafeOperationError, match="is of version 1 of table set 'nightly'"):
        run(table, "rename_tag", tag="set-nightly-1", to_tag="mine")
    assert run(table, "check_table").details["ok"]
    tag = table.tag("set-nightly-1")
    append(table, "1")
    run(table, "delete_tag", tag=tag.name)
    (found,) = run(table, "check_table").details["findings"]
    assert (found["id"], "is gone" in found["message"]) == ("table-set-tag:nightly@1", True)
    run(table, "repair_table")
    assert table.tag("set-nightly-1").snapshot == tag.snapshot
    table.store.replace("tag/tag-set-nightly-1", table.store.read(table.paths.snapshot(2)))
    (found,) = run(table, "check_table").details["findings"]
    assert "is on snapshot 2 now" in found["message"] and found["repair"] is None


def test_a_snapshot_that_expires_before_it_is_tagged_costs_a_number(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, original = open_table(warehouse, NAMES[1]), publish.put_new

    def put(*arguments: Any) -> None:
        original(*arguments)
        monkeypatch.setattr(publish, "put_new", original)
        append(table, "1")
        table.store.delete(table.paths.snapshot(1))

    monkeypatch.setattr(publish, "put_new", put)
    made = make(warehouse)
    assert made.details["version"] == "set:nightly@2"
    assert seen(warehouse) == [1, 2]
    assert set_tags(warehouse) == {"set-nightly-2"}, "the tag of the number that was given up is gone"
    with pytest.raises(NotFoundError, match="no version 1"):
        seen(warehouse, "set:nightly@1")


def test_who_comes_late_takes_no_tag_from_a_version_that_is_visible(warehouse: str) -> None:
    """It saw the claim, and went on when the version was made and its snapshots had expired."""
    made = make(warehouse)
    sets = open_sets(warehouse, "nightly", None)
    claim = publish.Claim(number=1, operation_id="late", since_ms=NOW, tables=set_folder(catalog(warehouse), "nightly")
                          .versions()[0].tables)  # fmt: skip
    load(warehouse)
    for name in NAMES:
        table = open_table(warehouse, name)
        table.store.delete(table.paths.snapshot(1))
    assert publish.finish(sets, claim, NOW).number == made.details["number"]
    assert seen(warehouse) == [1, 1]
    assert set_tags(warehouse) == {"set-nightly-1"}


def test_a_tag_of_a_user_is_left_alone(warehouse: str) -> None:
    table = open_table(warehouse, NAMES[0])
    run(table, "create_tag", tag="set-nightly-1")
    append(table, "1")
    assert make(warehouse).details["version"] == "set:nightly@2"
    assert table.tag("set-nightly-1").snapshot.id == 1


# -- what dies in between ----------------------------------------------------------------------------------------------


def dying(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], step: int, *, after: bool) -> bool:
    """Act until the n-th change of any storage; False = it has fewer."""
    changes = 0

    def wrapped(name: str) -> Callable[..., None]:
        original: Callable[..., None] = getattr(MemoryStore, name)

        def change(store: MemoryStore, *arguments: Any) -> None:
            nonlocal changes
            changes += 1
            if changes == step and not after:
                raise Crash
            original(store, *arguments)
            if changes == step:
                raise Crash

        return change

    with monkeypatch.context() as patched:
        for name in ("create", "delete", "replace"):
            patched.setattr(MemoryStore, name, wrapped(name))
        try:
            act()
        except Crash:
            return True
    return False


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("same_operation", [False, True])
def test_whatever_dies_readers_see_all_tables_or_none(
    warehouse: str, monkeypatch: pytest.MonkeyPatch, after: bool, same_operation: bool
) -> None:
    """The retry, or whoever comes next, finishes; old versions expire beside it."""
    asked = {"keep": 2, "retention": "0 s"}
    make(warehouse)
    for step in moments(100, 3):
        load(warehouse)
        new, before = pinned(warehouse), seen(warehouse)
        died = dying(monkeypatch, lambda at=step: make(warehouse, operation_id=f"op-{at}", **asked), step, after=after)
        assert seen(warehouse) in (before, new)
        if same_operation:
            numbers = [make(warehouse, operation_id=f"op-{step}", **asked).details["number"] for _ in range(2)]
            assert numbers[0] == numbers[1]
        else:
            make(warehouse, operation_id=f"next-{step}", **asked)
        assert seen(warehouse) == new
        if not died:
            assert step > 8, "it put claim, tags and version, and deleted those of an old one"
            break
    next_millisecond()  # a version that was replaced in this very millisecond stays
    make(warehouse, **asked)
    folder = set_folder(catalog(warehouse), "nightly")
    claims, ended = folder.numbers()
    assert claims == ended, "nothing is left half there"
    kept = [one.tag for one in folder.versions() if one.abandoned is None]
    assert len(kept) == 2
    assert set_tags(warehouse) == set(kept)


def pinned(warehouse: str) -> list[int]:
    heads = [open_table(warehouse, name).latest_snapshot_id() for name in NAMES]
    return [head for head in heads if head is not None]


def test_a_publish_that_dies_is_finished_by_its_retry_or_given_up(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begin, publish one table after the other, complete: dead at each change, and again after Clear."""
    sets = open_sets(warehouse, "nightly", None)
    make(warehouse, member=[NAMES[1]])

    def publish_all(operation: str, earlier: tuple[str, ...] = ()) -> TableSet:
        claim = begin(sets, operation, earlier, NOW)
        pins = {}
        for name in NAMES:
            table = open_table(warehouse, name)
            committed = [s for s in table.snapshots() if s.commit_user == operation]
            if not committed:
                rewrite(table, "1", user=operation)
            pins[name] = pin_of(table, next(s.id for s in table.snapshots() if s.commit_user == operation))
        return complete(sets, claim, pins, NOW)

    for step in moments(200, 3):
        before = seen(warehouse)
        died = dying(monkeypatch, lambda at=step: publish_all(f"op-{at}"), step, after=step % 2 == 0)
        now = seen(warehouse)
        assert now == before or now == pinned(warehouse)
        if step % 3:
            publish_all(f"op-{step}")
        else:
            publish_all(f"cleared-{step}", (f"op-{step}",))
        assert seen(warehouse) == pinned(warehouse)
        if not died:
            assert step > 10
            break
    claims, ended = sets.folder.numbers()
    assert claims == ended


def test_while_tables_are_published_nobody_else_makes_a_version(warehouse: str) -> None:
    make(warehouse)
    sets = open_sets(warehouse, "nightly", None)
    claim = begin(sets, "publish", (), NOW)
    assert begin(sets, "publish", (), NOW) == claim, "its retry"
    append(open_table(warehouse, NAMES[0]), "1")
    with pytest.raises(ConflictError, match=r"operation publish is publishing .*--abandon"):
        make(warehouse, now="2001-09-09T01:46:41+00:00")
    with pytest.raises(ConflictError, match="is publishing"):
        begin(sets, "another", (), NOW)
    assert seen(warehouse) == [1, 1]
    append(open_table(warehouse, NAMES[1]), "1")
    made = complete(sets, claim, {n: pin_of(open_table(warehouse, n)) for n in NAMES}, NOW)
    assert (made.number, seen(warehouse)) == (claim.number, [2, 2])
    make(warehouse)


@pytest.mark.parametrize("way", ["abandon", "a day later", "Clear", "it says so"])
def test_a_publish_that_will_not_end_blocks_nobody_for_ever(warehouse: str, way: str) -> None:
    make(warehouse)
    sets = open_sets(warehouse, "nightly", None)
    claim = begin(sets, "killed", (), NOW)
    load(warehouse)
    match way:
        case "abandon":
            made = make(warehouse, abandon=True, now="2001-09-09T01:46:41+00:00").details["number"]
        case "a day later":
            made = make(warehouse, now="2001-09-10T02:00:00+00:00").details["number"]
        case "Clear":
            made = begin(sets, "cleared", ("killed",), NOW).number
        case _:
            give_up_own(sets, ("killed",), "the publish failed", NOW)
            made = make(warehouse, now="2001-09-09T01:46:41+00:00").details["number"]
    assert made == claim.number + 1


def test_a_publish_that_comes_back_late_takes_no_table_back(warehouse: str) -> None:
    make(warehouse)
    sets = open_sets(warehouse, "nightly", None)
    claim = begin(sets, "slow", (), NOW)
    load(warehouse)
    published = {name: pin_of(open_table(warehouse, name)) for name in NAMES}
    append(open_table(warehouse, NAMES[0]), "1")
    make(warehouse, abandon=True)
    assert seen(warehouse) == [3, 2]
    made = complete(sets, claim, published, NOW)
    assert made.number == 4
    assert seen(warehouse) == [3, 2], "snapshot 3 holds what was published as 2"


def test_a_set_that_lost_a_snapshot_is_named_before_anything_is_published(warehouse: str) -> None:
    make(warehouse)
    table = open_table(warehouse, NAMES[1])
    append(table, "1")
    run(table, "delete_tag", tag="set-nightly-1")
    table.store.delete(table.paths.snapshot(1))
    with pytest.raises(NotFoundError, match=r"e\.b.* Nothing was published"):
        begin(open_sets(warehouse, "nightly", None), "op", (), NOW)


# -- races -------------------------------------------------------------------------------------------------------------


def test_publishers_race_and_versions_stay_in_order(warehouse: str) -> None:
    """Each version has snapshots that are not older than those of the version before, and every publisher gets one."""

    def publisher(number: int) -> list[int]:
        made = []
        for _ in range(8):
            append(open_table(warehouse, NAMES[number % 2]), "1")
            made.append(make(warehouse, operation_id=str(uuid.uuid4()), keep=1000).details["number"])
        return made

    with ThreadPoolExecutor(3) as pool:
        made = [number for some in pool.map(publisher, range(3)) for number in some]
    assert len(set(made)) == len(made) == 24
    versions = [one for one in set_folder(catalog(warehouse), "nightly").versions() if one.abandoned is None]
    assert {one.number for one in versions} >= set(made)
    rows = [[one.tables[name].snapshot_id for name in NAMES] for one in versions]
    assert all(a <= b for old, new in pairwise(rows) for a, b in zip(old, new, strict=True)), rows
    for one in versions:
        assert [open_table(warehouse, name).tag(one.tag).snapshot.id for name in NAMES] == [
            one.tables[name].snapshot_id for name in NAMES
        ]


def test_snapshots_expire_beside_and_every_version_that_is_kept_can_be_read(warehouse: str) -> None:
    for _ in range(6):
        load(warehouse)
        make(warehouse, keep=3, retention="0 s")
        for name in NAMES:
            run(open_table(warehouse, name), "expire_snapshots", retain_max=1, older_than="0 s", grace="0 s",
                writers_stopped=True, retry_window="0 s")  # fmt: skip
    assert open_table(warehouse, NAMES[0]).snapshot_ids() == [7]
    assert [seen(warehouse, f"set:nightly@{n}") for n in (4, 5, 6)] == [[5, 5], [6, 6], [7, 7]]
    assert set_tags(warehouse) == {f"set-nightly-{n}" for n in (4, 5, 6)}
    with pytest.raises(NotFoundError, match="it has 4 to 6"):
        seen(warehouse, "set:nightly@3")


# -- expiry ------------------------------------------------------------------------------------------------------------


def ended(*days: int, abandoned: tuple[int, ...] = ()) -> list[TableSet]:
    return [TableSet(name="s", number=n, created_ms=day * DAY, abandoned="x" if n in abandoned else None)
            for n, day in enumerate(days, 1)]  # fmt: skip


@pytest.mark.parametrize(
    ("versions", "keep", "days", "now", "over"),
    [
        (ended(0, 1, 2, 3), 1, 0, 10, [1, 2, 3]),
        (ended(0, 1, 2, 3), 3, 0, 10, [1]),
        (ended(0, 100), 1, 7, 106, []),  # it was the newest for a hundred days, and is read for seven more
        (ended(0, 100), 1, 7, 108, [1]),
        (ended(0, 1, 2, abandoned=(3,)), 1, 0, 10, [1]),  # the greatest number stays, and the newest version
        (ended(0, 1, 2, 3, abandoned=(2,)), 2, 7, 8, []),
        (ended(0, 1, 2, 3, abandoned=(2,)), 2, 7, 9, [2]),
        (ended(0, 1, 2, 3, abandoned=(2,)), 2, 7, 10, [1, 2]),
        ([], 1, 0, 10, []),
    ],
)
def test_versions_expire_by_when_they_were_replaced(
    versions: list[TableSet], keep: int, days: int, now: int, over: list[int]
) -> None:
    found = expired_versions(versions, keep=keep, retained_ms=days * DAY, now_ms=now * DAY)
    assert [one.number for one in found] == over


def test_a_tag_under_a_legal_hold_stays_with_its_version(warehouse: str) -> None:
    make(warehouse)
    table = open_table(warehouse, NAMES[0])
    run(table, "create_tag", tag="set-nightly-1", snapshot=1, if_exists="skip", hold="case 7")
    for _ in range(3):
        load(warehouse)
        made = make(warehouse, keep=1, retention="0 s")
    assert 1 not in made.details["expired"]
    assert seen(warehouse, "set:nightly@1") == [1, 1]


def test_tags_of_a_version_expire_with_it_and_not_by_their_age(warehouse: str) -> None:
    make(warehouse)
    table = open_table(warehouse, NAMES[0])
    for tag in ("mine", "set-weekly-1"):
        run(table, "create_tag", tag=tag)
    found = run(table, "expire_tags", include_unlimited=True, older_than="0 s", grace="0 s", writers_stopped=True)
    assert table.tag_names() == ["set-nightly-1"]
    assert "version 1 of table set 'nightly'" in found.details["needed"]["main"]["set-nightly-1"]


def test_the_tag_of_a_version_keeps_its_snapshot(warehouse: str) -> None:
    """Readers of the version would get other rows, without an error."""
    make(warehouse)
    load(warehouse)
    table = open_table(warehouse, NAMES[0])
    for operation, more in (("replace_tag", {}), ("create_tag", {"if_exists": "replace"})):
        with pytest.raises(UnsafeOperationError, match="is of version 1 of table set 'nightly'"):
            run(table, operation, tag="set-nightly-1", **more)
    assert table.tag("set-nightly-1").snapshot.id == 1


def test_texts_and_records_survive_the_way_there_and_back(tmp_path: Path) -> None:
    made = TableSet(name="n", number=3, tables={"d.a": SetMember(4, "m")}, created_ms=5, operation_id="op")
    assert TableSet.parse(made.to_bytes(), "") == made
    assert parse_set_version(made.version) == ("n", 3)
    assert parse_set_version("set:n") == ("n", None)
    assert parse_set_version("nightly") is None
    with pytest.raises(NotFoundError, match="its sets: none"):
        find_set(open_catalog(str(tmp_path)), "n")


def test_a_legal_hold_that_is_set_while_a_version_expires_stays(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look at the tag and its deletion."""
    for _ in range(2):
        make(warehouse)
        load(warehouse)
    table, known, told = open_table(warehouse, NAMES[0]), publish.execute, []

    def late(on: Any, actions: Any) -> None:
        if not told and any(isinstance(a, Delete) and a.path == "tag/tag-set-nightly-1" for a in actions):
            values = {"tag": "set-nightly-1", "snapshot": 1, "hold": "case 17", "held_by": "legal", "if_exists": "skip"}
            told.append(run(table, "create_tag", **values))
        known(on, actions)

    monkeypatch.setattr(publish, "execute", late)
    make(warehouse, keep=1, retention="0 s")
    assert told and table.tag("set-nightly-1").legal_hold == "case 17"
    assert seen(warehouse, "set:nightly@1") == [1, 1]
    run(table, "delete_tag", tag="set-nightly-1", release_hold=True)
    make(warehouse, keep=1, retention="0 s")
    assert "set-nightly-1" not in set_tags(warehouse)
