"""Versions of table sets: all tables or none, whatever dies, races or expires in between."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.catalogs import Catalog, open_catalog
from airflow_paimon.core.errors import (
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
from airflow_paimon.core.table.table_sets import (
    SetFolder,
    SetMember,
    TableSet,
    find_set,
    parse_set_version,
    same_versions,
    set_folder,
    set_names,
)
from airflow_paimon.core.table_sets import versions
from airflow_paimon.core.table_sets.versions import (
    check_next_version,
    expired_versions,
    make_published_version,
    open_set,
    sets_made_by,
)
from airflow_paimon.execution import run_operation
from tests.clock import next_millisecond
from tests.core.tables import append, make_table, rewrite, run
from tests.randomness import chance, lives, moments
from tests.stores import Crash, delete_tree

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


def folder(warehouse: str) -> SetFolder:
    return set_folder(catalog(warehouse), "nightly")


def tag_of(warehouse: str, number: int) -> str:
    return find_set(catalog(warehouse), "nightly", number).tag


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
    assert [open_table(warehouse, name).tag(tag_of(warehouse, 2)).snapshot.id for name in NAMES] == [2, 1]
    assert set_names(catalog(warehouse)) == ["nightly"]
    assert catalog(warehouse).databases() == ["d", "e"]


def test_a_dry_run_makes_nothing(warehouse: str) -> None:
    planned = make(warehouse, dry_run=True)
    assert planned.details["version"] == "set:nightly@1"
    assert [action["action"] for action in planned.details["plan"]["actions"]] == ["PutNew"] * 3
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
    run(table, "delete_tag", tag=tag_of(warehouse, 1))
    assert seen(warehouse) == [1, 1], "the snapshot is there"
    table.store.delete(table.paths.snapshot(1))
    with pytest.raises(NotFoundError, match="has expired, or the tag was deleted"):
        seen(warehouse)


def test_the_tag_of_a_version_keeps_its_name_and_is_missed_when_it_is_gone(warehouse: str) -> None:
    make(warehouse)
    table = open_table(warehouse, NAMES[0])
    with pytest.raises(UnsafeOperationError, match="is of version 1 of table set 'nightly'"):
        run(table, "rename_tag", tag=tag_of(warehouse, 1), to_tag="mine")
    assert run(table, "check_table").details["ok"]
    tag = table.tag(tag_of(warehouse, 1))
    append(table, "1")
    run(table, "delete_tag", tag=tag.name)
    (found,) = run(table, "check_table").details["findings"]
    assert (found["id"], "is gone" in found["message"]) == ("table-set-tag:nightly@1", True)
    run(table, "repair_table")
    assert table.tag(tag.name).snapshot == tag.snapshot
    table.store.replace(f"tag/tag-{tag.name}", table.store.read(table.paths.snapshot(2)))
    (found,) = run(table, "check_table").details["findings"]
    assert "is on snapshot 2 now" in found["message"] and found["repair"] is None


def test_a_snapshot_that_expires_before_it_is_tagged_is_replaced_by_a_newer_one(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, results = open_table(warehouse, NAMES[1]), list[OperationResult]()

    def expire() -> None:
        append(table, "1")
        table.store.delete(table.paths.snapshot(1))

    assert at_change(monkeypatch, lambda: results.append(make(warehouse)), "tag/tag-set-", expire, after=True)
    (made,) = results
    assert made.details["version"] == "set:nightly@1"
    assert seen(warehouse) == [1, 2]
    assert set_tags(warehouse) == {made.details["tag"]}, "the tag of the first attempt is gone"


@pytest.mark.parametrize("operation", [None, "slow"])
def test_a_maker_that_sleeps_while_its_number_is_made_and_expires_makes_the_next_one(
    warehouse: str, monkeypatch: pytest.MonkeyPatch, operation: str | None
) -> None:
    results = list[OperationResult]()

    def be_faster() -> None:
        for _ in range(3):
            load(warehouse)
            make(warehouse, keep=1, retention="0 s")

    act = lambda: results.append(make(warehouse, operation_id=operation))  # noqa: E731
    assert at_change(monkeypatch, act, "version-1.json", be_faster, after=False)
    made = results[0].details
    assert (made["number"], made["tables"]) == (4, {"d.a": 4, "e.b": 4})
    assert set_tags(warehouse) == {one.tag for one in folder(warehouse).versions()}
    assert folder(warehouse).numbers()[-1] == 4 and 1 not in folder(warehouse).numbers()


def test_the_tags_of_an_expired_version_go_also_where_its_maker_named_the_warehouse_otherwise(tmp_path: Path) -> None:
    warehouse, link = tmp_path / "wh", tmp_path / "link"
    warehouse.mkdir()
    link.symlink_to(warehouse)
    for name in NAMES:
        append(make_table(warehouse, name, primary=False), "1")
    first = make(str(warehouse)).details["tag"]
    for _ in range(3):
        load(str(warehouse))
        made = make(str(link), keep=1, retention="0 s").details["tag"]
    assert first not in set_tags(str(warehouse)) and made in set_tags(str(warehouse))


def test_only_tags_of_this_set_go_that_belong_to_none_of_its_versions(warehouse: str) -> None:
    """Other tags may have such names: those of users, and of a set of this name in another warehouse."""
    known = make(warehouse).details["tag"]
    kept = ["set-nightly-1", "set-nightly-1-abcdefgh", f"{known[:-12]}{'0' * 12}", f"set-other-1{known[-13:]}"]
    running, left = f"set-nightly-9{known[-13:]}", f"{known[:-8]}00000000"
    table = open_table(warehouse, NAMES[0])
    for tag in (*kept, running, left):
        run(table, "create_tag", tag=tag)
    (found,) = run(table, "check_table").details["findings"]
    assert (found["id"], found["severity"]) == (f"table-set-left-over:{left}", "info")
    run(table, "repair_table")
    assert sorted(table.tag_names()) == sorted([known, *kept, running])
    run(table, "create_tag", tag=left)
    made = make(warehouse).details["tag"]
    assert sorted(table.tag_names()) == sorted([known, made, *kept, running])


# -- what dies in between ----------------------------------------------------------------------------------------------


def at_change(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], step: int | str, then: Callable[[], Any], *, after: bool
) -> bool:
    """Act, and do something else before or after the n-th change of any storage, or the first one of a path with this
    text; False = there is none.
    """
    changes, met = 0, False

    def wrapped(name: str) -> Callable[..., None]:
        original: Callable[..., None] = getattr(MemoryStore, name)

        def change(store: MemoryStore, path: str, *arguments: Any) -> None:
            nonlocal changes, met
            changes += 1
            now = not met and (step in path if isinstance(step, str) else changes == step)
            met = met or now
            if now and not after:
                then()
            original(store, path, *arguments)
            if now and after:
                then()

        return change

    with monkeypatch.context() as patched:
        for name in ("create", "delete", "replace"):
            patched.setattr(MemoryStore, name, wrapped(name))
        act()
    return met


def die() -> None:
    raise Crash


def dying(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], step: int, *, after: bool) -> bool:
    """Act until the n-th change of any storage; False = it has fewer."""
    try:
        at_change(monkeypatch, act, step, die, after=after)
    except Crash:
        return True
    return False


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("same_operation", [False, True])
def test_whatever_dies_readers_see_all_tables_or_none(
    warehouse: str, monkeypatch: pytest.MonkeyPatch, after: bool, same_operation: bool
) -> None:
    """The retry, or whoever comes next, makes the version; old versions expire beside it."""
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
            assert step > 6, "it put tags and version, and deleted those of an old one"
            break
    next_millisecond()  # a version that was replaced in this very millisecond stays
    make(warehouse, **asked)
    kept = [one.tag for one in folder(warehouse).versions()]
    assert len(kept) == 2
    assert set_tags(warehouse) == set(kept), "nothing is left half there"


@pytest.mark.random
@pytest.mark.parametrize("life", range(lives(4, 100)))
def test_in_random_lives_every_visible_version_can_be_read(
    warehouse: str, monkeypatch: pytest.MonkeyPatch, life: int
) -> None:
    """Operations die, or others make a version or expire snapshots, at any change of any storage."""
    draw, made = chance(life), dict[str, list[int]]()
    asked = {"keep": draw.choice([1, 2, 5]), "retention": "0 s"}

    def version(operation: str) -> None:
        if operation.startswith("publish"):
            make_published_version(
                open_set(warehouse, "nightly", None), publish_tables(warehouse, operation), operation
            )
        else:
            make(warehouse, operation_id=operation, **asked)

    def shrink() -> None:
        run(open_table(warehouse, draw.choice(NAMES)), "expire_snapshots", retain_max=1, older_than="0 s", grace="0 s",
            writers_stopped=True, retry_window="0 s")  # fmt: skip

    def check() -> None:
        found = folder(warehouse).versions()
        assert [one.number for one in found] == list(range(found[0].number, found[-1].number + 1))
        rows = [[one.tables[name].snapshot_id for name in NAMES] for one in found]
        assert all(a <= b for old, new in pairwise(rows) for a, b in zip(old, new, strict=True)), rows
        for one in found:
            for name in NAMES:
                assert open_table(warehouse, name).tag(one.tag).snapshot.identity == one.tables[name].identity
        for one in found:
            made.setdefault(str(one.operation_id), []).append(one.number)

    version("first")
    for number in range(12):
        append(open_table(warehouse, draw.choice(NAMES)), "1")
        operation, other = f"{draw.choice(['make', 'publish'])}-{number}", f"make-beside-{number}"
        act, after = lambda its=operation: version(its), draw.random() < 0.5
        then = draw.choice([die, shrink, lambda its=other: version(its)])
        with suppress(Crash):
            at_change(monkeypatch, act, draw.randint(1, 16), then, after=after)
        check()
        if draw.random() < 0.5:
            act()
            check()
    version("last")
    assert all(len(set(numbers)) == 1 for numbers in made.values()), "a retry finds the version of the first try"
    assert set_tags(warehouse) == {one.tag for one in folder(warehouse).versions()}


def pinned(warehouse: str) -> list[int]:
    heads = [open_table(warehouse, name).latest_snapshot_id() for name in NAMES]
    return [head for head in heads if head is not None]


def publish_tables(warehouse: str, operation: str) -> dict[str, int | None]:
    """Rewrite every table by an operation that a retry recognizes; the snapshots."""
    out: dict[str, int | None] = {}
    for name in NAMES:
        table = open_table(warehouse, name)
        if not any(s.commit_user == operation for s in table.snapshots()):
            rewrite(table, "1", user=operation)
        out[name] = next(s.id for s in table.snapshots() if s.commit_user == operation)
    return out


def test_a_publish_that_dies_is_finished_by_its_retry(warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish one table after the other, make the version: dead at each change."""
    table_set = open_set(warehouse, "nightly", None)
    make(warehouse)

    def publish_all(operation: str) -> None:
        check_next_version(table_set, NAMES)
        made = make_published_version(table_set, publish_tables(warehouse, operation), operation)
        assert list(made["tables"].values()) == pinned(warehouse)

    for step in moments(200, 3):
        before = seen(warehouse)
        died = dying(monkeypatch, lambda at=step: publish_all(f"op-{at}"), step, after=step % 2 == 0)
        assert seen(warehouse) in (before, pinned(warehouse))
        publish_all(f"op-{step}")
        assert seen(warehouse) == pinned(warehouse)
        if not died:
            assert step > 8
            break
    assert sets_made_by(catalog(warehouse), [f"op-{step}"]) == ["nightly"]


def test_a_publish_keeps_the_other_tables_and_takes_none_back(warehouse: str) -> None:
    """Others have made a version since, with a later snapshot of one of its tables."""
    make(warehouse)
    load(warehouse)
    append(open_table(warehouse, NAMES[0]), "1")
    make(warehouse)
    append(open_table(warehouse, NAMES[1]), "1")
    table_set = open_set(warehouse, "nightly", None)
    made = make_published_version(table_set, {NAMES[0]: 2}, "slow")
    assert (made["number"], seen(warehouse)) == (3, [3, 2]), "snapshot 3 holds what was published as 2"
    run(open_table(warehouse, NAMES[0]), "create_tag", tag="keep", snapshot=2)
    for name in NAMES:
        load(warehouse)
        run(open_table(warehouse, name), "expire_snapshots", retain_max=1, older_than="0 s", grace="0 s",
            writers_stopped=True, retry_window="0 s")  # fmt: skip
    assert make_published_version(table_set, {NAMES[0]: 2}, "late")["tables"][NAMES[0]] == 3, "its tag holds it"


def test_a_set_that_lost_a_snapshot_is_named_before_anything_is_published(warehouse: str) -> None:
    make(warehouse)
    table = open_table(warehouse, NAMES[1])
    append(table, "1")
    run(table, "delete_tag", tag=tag_of(warehouse, 1))
    table.store.delete(table.paths.snapshot(1))
    with pytest.raises(NotFoundError, match=r"e\.b.* Nothing was published"):
        check_next_version(open_set(warehouse, "nightly", None), NAMES[:1])
    check_next_version(open_set(warehouse, "nightly", None), NAMES)


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
    found = folder(warehouse).versions()
    assert [one.number for one in found] == sorted(made)
    rows = [[one.tables[name].snapshot_id for name in NAMES] for one in found]
    assert all(a <= b for old, new in pairwise(rows) for a, b in zip(old, new, strict=True)), rows
    for one in found:
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
    assert set_tags(warehouse) == {tag_of(warehouse, n) for n in (4, 5, 6)}
    with pytest.raises(NotFoundError, match="it has 4 to 6"):
        seen(warehouse, "set:nightly@3")


# -- expiry ------------------------------------------------------------------------------------------------------------


def made_on(*days: int) -> list[TableSet]:
    return [TableSet(name="s", number=n, tables={}, tag="", created_ms=day * DAY) for n, day in enumerate(days, 1)]


@pytest.mark.parametrize(
    ("found", "keep", "days", "now", "over"),
    [
        (made_on(0, 1, 2, 3), 1, 0, 10, [1, 2, 3]),
        (made_on(0, 1, 2, 3), 3, 0, 10, [1]),
        (made_on(0, 100), 1, 7, 106, []),  # it was the newest for a hundred days, and is read for seven more
        (made_on(0, 100), 1, 7, 108, [1]),
        (made_on(0, 1, 2, 3), 2, 7, 8, []),
        (made_on(0, 1, 2, 3), 2, 7, 9, [1]),
        (made_on(0), 1, 0, 10, []),
        ([], 1, 0, 10, []),
    ],
)
def test_versions_expire_by_when_they_were_replaced(
    found: list[TableSet], keep: int, days: int, now: int, over: list[int]
) -> None:
    gone = expired_versions(found, keep=keep, retained_ms=days * DAY, now_ms=now * DAY)
    assert [one.number for one in gone] == over


def test_a_tag_under_a_legal_hold_stays_with_its_version(warehouse: str) -> None:
    make(warehouse)
    table = open_table(warehouse, NAMES[0])
    run(table, "create_tag", tag=tag_of(warehouse, 1), snapshot=1, if_exists="skip", hold="case 7")
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
    known = tag_of(warehouse, 1)
    assert table.tag_names() == [known]
    assert "version 1 of table set 'nightly'" in found.details["needed"]["main"][known]


def test_the_tag_of_a_version_keeps_its_snapshot(warehouse: str) -> None:
    """Readers of the version would get other rows, without an error."""
    make(warehouse)
    load(warehouse)
    table = open_table(warehouse, NAMES[0])
    for operation, more in (("replace_tag", {}), ("create_tag", {"if_exists": "replace"})):
        with pytest.raises(UnsafeOperationError, match="is of version 1 of table set 'nightly'"):
            run(table, operation, tag=tag_of(warehouse, 1), **more)
    assert table.tag(tag_of(warehouse, 1)).snapshot.id == 1


def test_texts_and_records_survive_the_way_there_and_back(tmp_path: Path) -> None:
    made = TableSet(name="n", number=3, tables={"d.a": SetMember(4, "m")}, tag="t", created_ms=5, operation_id="op")
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
    table, known, told, tag = open_table(warehouse, NAMES[0]), versions.execute, [], tag_of(warehouse, 1)

    def late(on: Any, actions: Any) -> None:
        if not told and any(isinstance(a, Delete) and a.path == f"tag/tag-{tag}" for a in actions):
            values = {"tag": tag, "snapshot": 1, "hold": "case 17", "held_by": "legal", "if_exists": "skip"}
            told.append(run(table, "create_tag", **values))
        known(on, actions)

    monkeypatch.setattr(versions, "execute", late)
    make(warehouse, keep=1, retention="0 s")
    assert told and table.tag(tag).legal_hold == "case 17"
    assert run(table, "check_table").details["ok"], "a tag that may not be deleted is not offered for repair"
    assert not run(table, "check_table").details["findings"]
    run(table, "delete_tag", tag=tag, release_hold=True)
    make(warehouse, keep=1, retention="0 s")
    assert tag not in set_tags(warehouse)


def test_a_table_that_another_engine_has_dropped_stops_no_version(warehouse: str) -> None:
    make(warehouse)
    load(warehouse)
    delete_tree(catalog(warehouse).warehouse_store(), "e.db/b")
    make(warehouse, member=[], keep=1, retention="0 s")
    next_millisecond()
    made = make(warehouse, member=[], keep=1, retention="0 s").details
    assert (made["tables"], made["expired"]) == ({"d.a": 2}, [1])
    with pytest.raises(NotFoundError, match=r"e\.b"):
        seen(warehouse)
