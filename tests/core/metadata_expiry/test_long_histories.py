"""An expiry beside a long history reads its ends, and deletes the same files as one that reads all of it."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import ConflictError, FormatError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.metadata_expiry import expiry_run
from airflow_paimon.core.metadata_expiry.roots import RootReader
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.older_files import older_files_at
from airflow_paimon.core.table.properties import OLDER_FILES_PROPERTY
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import append, copied, make_table, message, move, names, overwrite, rewrite, run
from tests.randomness import chance, lives
from tests.soundness import assert_indexed, assert_sound, files_on_disk
from tests.stores import CountingStore, _Wrapper


@pytest.fixture
def table() -> Table:
    return make_table(f"memory://{uuid.uuid4()}/wh", **{"manifest.merge-min-count": "4"})


def expire(table: Table, store: Store | None = None, **values: Any) -> OperationResult:
    given = {"older_than": "0 s", "retain_min": 1, "grace": "0 s", "writers_stopped": True,
             "retry_window": "0 s", **values}  # fmt: skip
    request = build_request("expire_snapshots", {"warehouse": "w", "table": table.name, **given})
    on = table if store is None else Table(store, table.name)
    return perform(Context(request, on, int(time.time() * 1000) + 1000, 0.0), request)


def numbers_read(store: CountingStore) -> set[int]:
    uris = (uri for method, us in store.tally.log if method in ("read", "read_many") for uri in us.split(", "))
    return {int(uri.rpartition("-")[2]) for uri in uris if "snapshot/snapshot-" in uri or uri.startswith("snapshot-")}


def forget(table: Table, number: int) -> None:
    """Take away what only this package writes: as if another engine had made the snapshot."""
    path = table.paths.snapshot(number)
    raw = json.loads(table.store.read(path))
    raw.get("properties", {}).pop(OLDER_FILES_PROPERTY, None)
    table.store.replace(path, json.dumps(raw).encode())


def at(table: Table, number: int) -> int | None:
    return older_files_at(table.snapshot(number), "main", table.snapshot(number - 1).identity)


def test_the_middle_of_a_long_history_is_not_read(table: Table) -> None:
    costs = []
    for size in (40, 80):
        while len(table.snapshot_ids()) < size:
            overwrite(table, "ab"[size % 2])
        first = table.snapshot_ids()[0]
        store = CountingStore(table.store)
        result = expire(table, store, max_deletes=5)
        assert result.details["expired"] == {"main": {"snapshots": 5, "from": first, "to": first + 4}}
        assert not {n for n in numbers_read(store) if first + 20 < n < table.snapshot_ids()[-1] - 1}
        costs.append(store.tally.requests)
        assert_sound(table)
    assert costs[1] <= costs[0] * 1.25


def test_files_that_a_rollback_brought_back_for_a_while_stay(table: Table) -> None:
    append(table, "a")
    run(table, "create_tag", tag="t")
    kept = names(table)
    for _ in range(3):
        overwrite(table, "a")
    run(table, "rollback_to", tag="t")
    back = table.latest_snapshot_id()
    assert back is not None and names(table) == kept
    for _ in range(30):
        overwrite(table, "a")
    for tag in table.tag_names():
        table.store.delete(table.paths.tag(tag))
    store = CountingStore(table.store)
    expire(table, store, max_deletes=2, keep_undo=False)
    assert back in numbers_read(store) and back + 18 not in numbers_read(store)
    assert_sound(table)
    assert any(kept <= {path.rpartition("/")[2]} for path in files_on_disk(table))
    expire(table, keep_undo=False)
    assert_sound(table)
    assert not any(kept <= {path.rpartition("/")[2]} for path in files_on_disk(table))


def test_of_snapshots_of_other_engines_nothing_is_known(table: Table) -> None:
    for _ in range(30):
        overwrite(table, "a")
    for number in (8, 25):
        forget(table, number)
    overwrite(table, "a")
    assert [at(table, n) for n in (7, 8, 9, 24, 25, 26, 31)] == [0, None, 0, 0, None, 0, 0]
    forget(table, 31)
    overwrite(table, "a")
    head = table.snapshot(32)
    assert at(table, 32) == 31
    assert older_files_at(head, "other", None) is None, "copied to another branch, as a fast-forward of Paimon's does"
    raw = json.loads(table.store.read(table.paths.snapshot(32))) | {"id": 33, "baseManifestList": "manifest-list-x-0"}
    table.store.create(table.paths.snapshot(33), json.dumps(raw).encode())
    assert at(table, 33) is None, "Paimon's rollback hands properties on"


def test_snapshots_that_were_copied_from_a_branch_are_read(table: Table) -> None:
    """Paimon's fast-forward: main's newest snapshots are replaced by a branch's, which hold what main has dropped."""
    append(table, "a")
    kept = names(table)
    run(table, "create_branch", branch="b", snapshot=1)
    branch = table.branch("b")
    for _ in range(8):
        append(branch, "b")
    for _ in range(3):
        overwrite(table, "a")
    for tag in table.tag_names():
        table.store.delete(table.paths.tag(tag))
    for number in range(5, 10):
        data = table.store.read(branch.paths.snapshot(number))
        table.store.replace(table.paths.snapshot(number), data)
    for path in table.store.walk("branch"):
        table.store.delete(path)
    assert kept <= names(table)
    expire(table, max_deletes=3)
    assert table.snapshot_ids() == [4, 5, 6, 7, 8, 9]
    assert_sound(table, leaks=True)
    assert kept <= {path.rpartition("/")[2] for path in files_on_disk(table)}


@pytest.mark.parametrize("later", [0, 1, 9])
def test_a_copy_of_an_own_snapshot_on_top_of_others_is_read(table: Table, later: int) -> None:
    """Paimon's rollback, other commits, and the fast-forward of a branch from before, which nobody has written to."""
    append(table, "a")
    kept = names(table)
    for _ in range(7):
        append(table, "b")
    run(table, "create_branch", branch="b", snapshot=8)
    copy = table.store.read(table.branch("b").paths.snapshot(8))
    for path in [*map(table.paths.snapshot, range(4, 9)), *map(table.paths.tag, table.tag_names()),
                 *table.store.walk("branch"), table.paths.latest_hint]:  # fmt: skip
        table.store.delete(path)
    overwrite(table, "a")
    for _ in range(3):
        append(table, "b")
    table.store.create(table.paths.snapshot(8), copy)
    table.store.delete(table.paths.latest_hint)
    for _ in range(later):
        append(table, "b")
    assert kept <= names(table)
    expire(table, max_deletes=3)
    assert table.snapshot_ids()[0] == 4
    assert_sound(table, leaks=True)


@pytest.mark.parametrize("tells", [True, False])
def test_what_is_based_on_another_one_is_read_in_full_even_if_it_counts_as_many_files_and_rows(tells: bool) -> None:
    """Also where it doesn't tell, as another engine made it: it is older than the one before."""
    table = make_table(f"memory://{uuid.uuid4()}/wh", **{"manifest.merge-min-count": "3"})
    append(table, "a")
    kept = names(table)
    for _ in range(3):
        append(table, "b")
    copy = table.store.read(table.paths.snapshot(4))
    _take_away_from(table, 2)
    overwrite(table, "a")
    two = [message(table, "b"), message(table, "b")]
    commit_append(table, two, planned_on=table.latest_snapshot())
    table.store.create(table.paths.snapshot(4), copy)
    if not tells:
        forget(table, 4)
    assert kept <= names(table)
    expire(table, max_deletes=2)
    assert table.snapshot_ids() == [3, 4]
    assert_sound(table, leaks=True)


class Once(_Wrapper):
    """Lets somebody act right before a read of one path."""

    def __init__(self, inner: Store, path: str, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.path, self.act, self.done = path, act, False

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if method in ("read", "read_many") and self.path in path.split(", ") and not self.done:
            self.done = True
            self.act()
        return super()._call(method, path, action)


def test_a_snapshot_that_goes_before_it_is_read_asks_for_a_look_at_all(table: Table) -> None:
    for _ in range(8):
        overwrite(table, "a")
    store = Once(table.store, "snapshot/snapshot-4", partial(expire, table, max_deletes=5))
    expire(table, store, max_deletes=3)
    assert store.done
    assert table.snapshot_ids()[0] > 5
    assert_sound(table)


def test_the_ends_must_be_readable(table: Table) -> None:
    for _ in range(8):
        overwrite(table, "a")
    before = table.store.walk("")
    table.store.replace(table.paths.snapshot(4), b"{")
    with pytest.raises(FormatError, match="snapshot-4"):
        expire(table, max_deletes=3)
    assert table.store.walk("") == before


def _untag(table: Table, random: random.Random, count: int) -> None:
    if table.tag_names():
        run(table, "delete_tag", tag=random.choice(table.tag_names()))


def _roll_back(table: Table, random: random.Random, count: int) -> None:
    if table.tag_names() and random.random() < 0.5:
        run(table, "rollback_to", tag=random.choice(table.tag_names()))
    else:
        run(table, "rollback_to", snapshot=random.choice(table.snapshot_ids()))


def _branch(table: Table, random: random.Random, count: int) -> None:
    names = table.branch_names()
    if len(names) < 2 and random.random() < 0.5:
        run(table, "create_branch", branch=f"b{count}", snapshot=random.choice(table.snapshot_ids()[-3:]))
    elif names:
        run(table, random.choice(["merge_branch", "delete_branch", "merge_branch"]), branch=names[-1])


def _cut(table: Table, random: random.Random, count: int) -> None:
    """Paimon's rollback."""
    _take_away_from(table, random.choice(table.snapshot_ids()[1:][-6:]))


def _take_away_from(table: Table, number: int) -> None:
    tags = [table.tag(name) for name in table.tag_names()]
    paths = [table.paths.tag(t.name) for t in tags if t.snapshot.id >= number]
    paths += [table.paths.snapshot(n) for n in reversed(table.snapshot_ids()) if n >= number]
    for path in [*paths, table.paths.latest_hint]:
        table.store.delete(path)


def _forward(table: Table, random: random.Random, count: int) -> None:
    """Paimon's fast-forward."""
    view = table.branch(random.choice(table.branch_names()))
    ids = view.snapshot_ids()
    if table.snapshot_ids()[0] < ids[0] <= table.snapshot_ids()[-1] + 1:
        _take_away_from(table, ids[0])
        for number in ids:
            table.store.create(table.paths.snapshot(number), view.store.read(view.paths.snapshot(number)))


def _move(table: Table, random: random.Random, count: int) -> None:
    """A compaction that only moves a file to another level: deleted and added under one name."""
    entry = random.choice(list(live_entries(table, table.latest_snapshot()).values()))
    move(table, entry)


def _write(table: Table, random: random.Random, count: int) -> None:
    views = [table, *map(table.branch, table.branch_names())]
    view = random.choice(views) if random.random() < 0.3 else table
    random.choice([append, overwrite, rewrite])(view, random.choice("ab"))


_STEPS: list[Callable[[Table, random.Random, int], object]] = [
    *[_write] * 6,
    lambda on, random, count: run(on, "create_tag", tag=f"t{count}", snapshot=random.choice(on.snapshot_ids())),
    lambda table, random, count: forget(table, random.choice(table.snapshot_ids()[-4:])),
    _untag, _roll_back, _branch, _branch, _cut, _forward, _move,
]  # fmt: skip


@pytest.mark.random
@pytest.mark.parametrize("case", range(lives(4, 60)))
def test_copies_on_top_of_others_keep_their_files(case: int) -> None:
    """Paimon's rollbacks, and fast-forwards of branches from before that nobody has written to."""
    random = chance(case)
    table = make_table(f"memory://{uuid.uuid4()}/wh", **{"manifest.merge-min-count": random.choice(["2", "3", "30"])})

    def write(number: int) -> None:
        for _ in range(number):
            random.choice([append, append, overwrite, rewrite])(table, random.choice("abcde"))

    write(5)
    for _ in range(random.randint(1, 3)):
        write(random.randint(2, 5))
        number = random.choice(table.snapshot_ids()[2:])
        copy = table.store.read(table.paths.snapshot(number))
        _take_away_from(table, random.choice([n for n in table.snapshot_ids()[1:] if n <= number]))
        write(max(number - 1 - table.snapshot_ids()[-1], 0) + random.randint(0, 2))
        _take_away_from(table, number)
        table.store.create(table.paths.snapshot(number), copy)
        write(random.randint(0, 3))
        if random.random() < 0.3:
            forget(table, random.choice(table.snapshot_ids()[-3:]))
    while len(table.snapshot_ids()) > 1:
        expire(table, max_deletes=random.randint(1, 3))
        assert_sound(table, leaks=True)


@pytest.mark.random
@pytest.mark.parametrize("case", range(lives(4, 60)))
def test_the_same_files_go_as_if_all_were_read(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = chance(case)
    table = make_table(f"memory://{uuid.uuid4()}/wh", **{"manifest.merge-min-count": "3"})
    for _ in range(3):
        append(table, "a")
    for count in range(40):
        try:
            random.choice(_STEPS)(table, random, count)
        except (ConflictError, FormatError, IndexError, NotFoundError, UnsafeOperationError):  # it can't be done here
            continue
        if count % 10 == 9:
            asked: dict[str, Any] = {"max_deletes": random.choice([1, 3, 8]), "keep_undo": random.random() < 0.3,
                                     "all_branches": random.random() < 0.3}  # fmt: skip
            other = copied(table)
            with monkeypatch.context() as patch:
                patch.setattr(expiry_run, "RootReader", lambda table, since, reads_snapshots: RootReader(table, since))
                all_read = expire(other, **asked)
            ends_read = expire(table, **asked)
            assert table.store.walk("") == other.store.walk("")
            for key in ("expired", "deleted", "retained_by", "trash", "warnings"):
                assert ends_read.details[key] == all_read.details[key]
            assert_sound(table, leaks=True)
            assert_indexed(table)
