"""Random lives of a table with branches, tags, publishes, undos and Paimon's own expiry, against a model of file sets.

The model knows, for main and each branch, which files each bucket holds. After every step: what is live equals the
model, and every file that main, a branch or a tag refers to exists: nothing was lost, nothing still needed deleted.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Set
from dataclasses import dataclass, field

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.errors import ConflictError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.table.data_file_paths import bucket_folder
from airflow_paimon.core.table.table import Table
from tests.core.metadata_expiry.test_remove_orphan_files import Aged, clean
from tests.core.tables import append, files, make_table, message, overwrite, rewrite, run
from tests.randomness import lives
from tests.stateful.paimon_expiry import delete_tag, expire_snapshots

pytestmark = pytest.mark.random

Buckets = dict[tuple[bytes, int], set[str]]
DAYS = st.sampled_from("ab")
BUCKET = st.sampled_from([0, 1])
BRANCHES = st.sampled_from(["fix", "alt"])


@dataclass
class BranchModel:
    """``changed``/``main_changed``: buckets really changed on either side since the branch point.

    ``main_compacted``: by compaction only, which nobody can tell any more once snapshots since then, or since the
    branch point (``forgotten``), are expired. ``published``: what main took from the branch last, in each bucket, but
    for what a rollback took back. ``moved``: what the branch has really changed since.
    """

    base: Buckets
    now: Buckets
    changed: set = field(default_factory=set)
    main_changed: set = field(default_factory=set)
    main_compacted: set = field(default_factory=set)
    forgotten: bool = False
    published: Buckets = field(default_factory=dict)
    moved: set = field(default_factory=set)

    def differs(self, main: Buckets) -> set:
        """Buckets that a publish takes: other than at the branch point, or published and taken back by the branch."""
        back = {k for k, state in self.published.items() if state and main.get(k) == state}
        return {k for k in self.changed if self.base.get(k, set()) != self.now.get(k, set()) or k in back}

    def alone(self, day: str | None) -> set:
        """Buckets that the branch has not changed since main took them: whatever main did since stands."""
        return {k for k in self.published if k not in self.moved and is_of(k, day)}

    def taken(self, buckets: set, day: str | None = None) -> None:
        """Main took these buckets, all that it had not of that day, as they are on the branch now."""
        differing = {k for k in self.base.keys() | self.now.keys() if self.base.get(k) != self.now.get(k)}
        known = buckets | {k for k in differing if is_of(k, day)}
        self.published = {k: v for k, v in self.published.items() if not is_of(k, day)}
        self.published |= {k: set(self.now.get(k, set())) for k in known}
        self.moved -= {k for k in self.moved if is_of(k, day)}

    def rolled_back(self, touched: set, earlier: Buckets) -> None:
        """Main no longer stands on what it took of these buckets, but on what it had taken ``earlier``."""
        self.published = {k: v for k, v in self.published.items() if k not in touched}
        self.published |= {k: earlier[k] for k in touched & earlier.keys()}
        self.moved -= touched
        self.moved |= {k for k in touched & earlier.keys() if earlier[k] != self.now.get(k, set())}


@dataclass(frozen=True)
class UndoablePublish:
    """A publish or undo: its undo tag, main before it, its buckets, and what main had taken of each branch before."""

    tag: str
    before: Buckets
    touched: set
    stood: dict[str, Buckets]


def is_of(key: tuple[bytes, int], day: str | None) -> bool:
    """Whether a bucket is of a partition; None: of any."""
    return day is None or key[0][-8:].startswith(day.encode())


class BranchMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.table: Table = make_table(
            f"memory://{uuid.uuid4()}/wh", **{"sequence.field": "v", "manifest.merge-min-count": "4"}
        )
        append(self.table, "a")
        self.main: Buckets = files(self.table)
        self.branches: dict[str, BranchModel] = {}
        self.related: set[str] = set()
        self.undo: list[UndoablePublish] = []
        self.stood: dict[str, Buckets] = {}

    def teardown(self) -> None:
        """Memory is one dictionary that each listing goes through: what is left in it slows the lives after it."""
        if hasattr(self, "table"):
            for path in self.table.store.walk(""):
                self.table.store.delete(path)

    def _main_write(self, receipt, *, real: bool) -> None:
        before, self.main = self.main, files(self.table)
        touched = {k for k in before.keys() | self.main.keys() if before.get(k) != self.main.get(k)}
        for branch in self.branches.values():
            (branch.main_changed if real or branch.forgotten else branch.main_compacted).update(touched)

    @rule(dt=DAYS, bucket=BUCKET, how=st.sampled_from(["append", "overwrite", "rewrite", "compact"]))
    def write_main(self, dt: str, bucket: int, how: str) -> None:
        self._main_write(_write(self.table, dt, bucket, how), real=how != "compact")

    @precondition(lambda self: self.branches)
    @rule(dt=DAYS, bucket=BUCKET, how=st.sampled_from(["append", "overwrite", "rewrite", "compact"]), data=st.data())
    def write_branch(self, dt: str, bucket: int, how: str, data) -> None:
        self._write_branch(data.draw(st.sampled_from(sorted(self.branches))), dt, bucket, how)

    def _write_branch(self, name: str, dt: str, bucket: int, how: str) -> None:
        model, view = self.branches[name], self.table.branch(name)
        before = model.now
        _write(view, dt, bucket, how)
        model.now = files(view)
        if how != "compact":
            touched = {k for k in before.keys() | model.now.keys() if before.get(k) != model.now.get(k)}
            model.changed |= touched
            model.moved |= touched

    @rule(data=st.data())
    def compact_manifests(self, data) -> None:
        """It changes no file, so that no publish meets a change."""
        name = data.draw(st.sampled_from(["main", *sorted(self.branches)]))
        view = self.table.branch(name)
        before = files(view)
        event(f"manifests compacted: {run(self.table, 'compact_manifest', branch=name).changed}")
        assert files(view) == before

    @rule(name=BRANCHES)
    def create_branch(self, name: str) -> None:
        if name in self.branches:
            return
        run(self.table, "create_branch", branch=name, snapshot=self.table.latest_snapshot_id())
        state = copy.deepcopy(self.main)
        self.branches[name] = BranchModel(base=state, now=copy.deepcopy(state))

    @precondition(lambda self: len(self.branches) == 2)
    @rule(data=st.data())
    def delete_branch(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.branches)))
        run(self.table, "delete_branch", branch=name)
        del self.branches[name]

    @rule(name=BRANCHES, dt=DAYS, bucket=BUCKET)
    def correct_and_merge(self, name: str, dt: str, bucket: int) -> None:
        self.create_branch(name)
        self._write_branch(name, dt, bucket, "rewrite")
        self._merge(name)

    @precondition(lambda self: self.branches)
    @rule(data=st.data())
    def merge(self, data) -> None:
        self._merge(data.draw(st.sampled_from(sorted(self.branches))))

    @rule(name=BRANCHES, dt=DAYS, bucket=BUCKET)
    def correct_two_days_and_merge_one(self, name: str, dt: str, bucket: int) -> None:
        self.create_branch(name)
        for day in "ab":
            self._write_branch(name, day, bucket, "rewrite")
        self._merge(name, dt)

    @precondition(lambda self: self.branches)
    @rule(data=st.data(), dt=DAYS)
    def merge_part(self, data, dt: str) -> None:
        self._merge(data.draw(st.sampled_from(sorted(self.branches))), dt)

    def _merge(self, name: str, day: str | None = None) -> None:
        model = self.branches[name]
        before = copy.deepcopy(self.main)
        differs, word = self._taken_by(model, before, day), "merge" if day is None else "merge of a part"
        try:
            result = run(self.table, "merge_branch", branch=name, **only(day))
        except ConflictError as error:
            assert files(self.table) == before
            conflicts = differs | self._unclear(name, day)
            assert conflicts & model.main_changed, "a conflict without a bucket that both sides changed"
            event(f"{word}: conflict")
            assert error.details["conflicts"]
            return
        except InvalidInputError:
            self._unchanged(model, before, day)
            return
        self.main = files(self.table)
        expected = self._expected(model, before, differs, day)
        assert self.main == self._with_what_stands(name, expected, before, differs)
        event(f"{word}: published" if result.changed else f"{word}: nothing to do")
        if result.changed:
            model.taken(differs, day)
            self._published(result.details["undo_tag"], before)

    @precondition(lambda self: len(self.branches) == 1)
    @rule()
    def rebase(self) -> None:
        (name,) = self.branches
        self._rebase(name, "alt" if name != "alt" else "fix")

    def _rebase(self, name: str, other: str) -> None:
        model = self.branches[name]
        before = copy.deepcopy(self.main)
        differs = self._taken_by(model, before, None)
        try:
            result = run(self.table, "rebase_branch", branch=name, to_branch=other)
        except ConflictError:
            conflicts = differs | self._unclear(name, None)
            assert conflicts & model.main_changed or self._columns_conflict(name)
            assert other not in self.table.branch_names()
            event("rebase: conflict")
            return
        assert files(self.table) == before
        event("rebase: done" if result.changed else "rebase: nothing to do")
        if not result.changed:
            return
        now = files(self.table.branch(other))
        expected = copy.deepcopy(before)
        for key in differs:
            _set(expected, key, model.now.get(key, set()))
        doubtful = model.alone(None) if model.forgotten else set()
        assert {k: v for k, v in now.items() if k not in doubtful} == {
            k: v for k, v in expected.items() if k not in doubtful
        }
        changed = {k for k in before.keys() | now.keys() if before.get(k) != now.get(k)}
        self.branches[other] = BranchModel(base=before, now=now, changed=changed)
        self.related |= {name, other}

    def _unclear(self, name: str, day: str | None) -> set:
        """Buckets that may conflict beside those that differ: published ones, once main's history has expired, and
        those that the branch has changed since main took them from a relative."""
        model = self.branches[name]
        own = model.alone(day) if model.forgotten else set()
        return own | {k for k in model.changed if name in self.related and is_of(k, day)}

    def _columns_conflict(self, name: str) -> bool:
        return False

    def _unchanged(self, model: BranchModel, before: Buckets, day: str | None) -> None:
        assert day is not None
        assert files(self.table) == before
        assert not [k for k in model.base.keys() | model.now.keys() if is_of(k, day) and _differ(model, k)]
        event("merge of a part: refused, the branch has not changed it")

    def _taken_by(self, model: BranchModel, before: Buckets, day: str | None) -> set:
        return {k for k in model.differs(before) if is_of(k, day)} - model.alone(day)

    def _expected(self, model: BranchModel, before: Buckets, differs: set, day: str | None) -> Buckets:
        """Of what has been published before, nobody can tell an undo once main's history has expired: if nothing of the
        publish is left, it comes again."""
        expected = copy.deepcopy(before)
        for key in differs:
            _set(expected, key, model.now.get(key, set()))
        for key in model.alone(day) if model.forgotten else ():
            if self.main.get(key) == model.now.get(key):
                _set(expected, key, model.now.get(key, set()))
        return expected

    def _with_what_stands(self, name: str, expected: Buckets, before: Buckets, differs: set) -> Buckets:
        """What main has got of a branch by the publish of a relative, and has changed since, stands."""
        both = differs & self.branches[name].main_changed if name in self.related else set()
        stands = {k for k in both if self.main.get(k) == before.get(k)}
        kept = {k: before[k] for k in stands if k in before}
        return {k: v for k, v in expected.items() if k not in stands} | kept

    def _published(self, undo_tag: str, before: Buckets, more: Set = frozenset()) -> None:
        touched = {k for k in before.keys() | self.main.keys() if before.get(k) != self.main.get(k)}
        for branch in self.branches.values():
            branch.main_changed |= touched
        self.undo.append(UndoablePublish(undo_tag, before, touched | more, self.stood))

    @invariant()
    def remember_what_main_has_taken(self) -> None:
        self.stood = {name: dict(b.published) for name, b in getattr(self, "branches", {}).items()}

    def _replaced(self, name: str) -> None:
        """Main has become a branch: what it had got of the others since that began is taken back, until an undo."""
        self.branches[name].taken(set(self.main))
        self.related |= set(self.branches)
        for other in self.branches.keys() - {name}:
            model = self.branches[other]
            model.published = {k: v for k, v in model.published.items() if self.main.get(k, set()) == v}

    def _rolled_back(self, undone: UndoablePublish, keep: bool) -> set:
        """Also where main had changed since what a publish had brought. Returns the buckets of these publishes."""
        later = self.undo[self.undo.index(undone) + 1 :]
        buckets = set().union(*(p.touched for p in later))
        touched = undone.touched - buckets if keep else undone.touched | buckets
        for name, branch in self.branches.items():
            branch.rolled_back(touched, undone.stood.get(name, {}))
        return touched

    @precondition(lambda self: len(self.branches) == 2)
    @rule(data=st.data(), discard=st.booleans())
    def fast_forward(self, data, discard: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.branches)))
        before = copy.deepcopy(self.main)
        try:
            result = run(self.table, "fast_forward", branch=name, discard_main=discard)
        except UnsafeOperationError:
            assert not discard
            assert files(self.table) == before
            event("fast_forward: refused")
            return
        self.main = files(self.table)
        assert self.main == self.branches[name].now
        if result.changed:
            event("fast_forward: published")
            self._replaced(name)
            self._published(result.details["undo_tag"], before)

    @precondition(lambda self: self.undo)
    @rule(data=st.data(), keep=st.booleans())
    def undo_publish(self, data, keep: bool) -> None:
        undone = data.draw(st.sampled_from(self.undo[-2:]))
        tag = undone.tag
        if tag not in self.table.tag_names():
            event("undo: its tag is expired")
            return
        before = copy.deepcopy(self.main)
        try:
            result = run(self.table, "rollback_to", tag=tag, keep_later=keep)
        except (ConflictError, UnsafeOperationError):
            assert keep
            assert files(self.table) == before
            event("undo: refused")
            return
        self.main = files(self.table)
        if not keep:
            assert self.main == undone.before
        if result.changed:
            event("undo: done")
            self._published(result.details["undo_tag"], before, self._rolled_back(undone, keep))

    @rule(retain=st.integers(1, 5))
    def paimon_expires(self, retain: int) -> None:
        event(f"expiry deleted files: {expire_snapshots(self.table, retain) > 0}")
        for branch in self.branches.values():
            branch.main_changed |= branch.main_compacted
            branch.forgotten = True

    @rule(uncommitted=st.booleans())
    def orphans_are_removed(self, uncommitted: bool) -> None:
        """All files are old by then, but for those of a writer that is at work."""
        young = set()
        if uncommitted:
            made = message(self.table, "a")
            young = {f"{bucket_folder(self.table.schema(), ('a',), 0)}/{made.new_files[0].file_name}"}
        result = clean(self.table, Aged(self.table.store, young=young))
        event(f"orphans removed: {result.changed}")
        for path in young:
            assert self.table.store.exists(path)
            self.table.store.delete(path)
        assert not clean(self.table).changed, "a second run finds nothing"

    @precondition(lambda self: self.undo)
    @rule(retain=st.integers(1, 3))
    def undo_tags_expire(self, retain: int) -> None:
        for tag in [p.tag for p in self.undo]:
            if tag in self.table.tag_names():
                delete_tag(self.table, tag)
        self.paimon_expires(retain)

    @precondition(lambda self: len(self.undo) > 2)
    @rule()
    def repair(self) -> None:
        result = run(self.table, "repair_table")
        event(f"repair: {len(result.details['repaired'])} findings")

    @invariant()
    def what_is_live_is_what_the_model_says(self) -> None:
        if not hasattr(self, "table"):
            return
        assert files(self.table) == self.main
        for name, model in self.branches.items():
            assert files(self.table.branch(name)) == model.now

    @invariant()
    def every_referenced_file_exists(self) -> None:
        if hasattr(self, "table"):
            findings = find_all(self.table, 0, verify_files=True)
            assert [f for f in findings if f.severity != "info"] == []


def only(day: str | None) -> dict[str, list[str]]:
    return {} if day is None else {"partitions": [f"dt={day}"]}


def _differ(model: BranchModel, key: tuple[bytes, int]) -> bool:
    return model.base.get(key) != model.now.get(key)


def _set(buckets: Buckets, key: tuple[bytes, int], names: set[str]) -> None:
    buckets.pop(key, None)
    if names:
        buckets[key] = set(names)


def _write(view: Table, dt: str, bucket: int, how: str):
    seq = (view.latest_snapshot_id() or 0) * 10
    if how == "append":
        return append(view, dt, bucket, seq=seq)
    if how == "overwrite":
        return overwrite(view, dt, bucket, seq=seq)
    return rewrite(view, dt, bucket, seq=seq, kind=CommitKind.COMPACT if how == "compact" else None)


TestBranchMachine = BranchMachine.TestCase
TestBranchMachine.settings = settings(max_examples=lives(5, 25), stateful_step_count=25)
