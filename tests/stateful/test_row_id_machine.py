"""A row-tracking table and its branch under every operation that writes: what its rows, their ids and versions become.

Keys are never used twice, so a key is a row. On each side an id stays with its row for good, through publish, undo and
rollback; no two rows share one; a version rises only for a row that was changed.
"""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import currently_in_test_context, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_paimon.core.errors import ConflictError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.publish.undoable_publishes import verify_publish, verify_rollback
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import drop_partitions, read_arrow, write_arrow
from airflow_paimon.data.compact import compact
from tests.core.tables import run
from tests.data.row_statements import Row, statement, with_ids
from tests.randomness import lives

pytestmark = pytest.mark.random

PARTITIONS = st.sampled_from(["a", "b", "c"])
SIDES = st.sampled_from(["main", "fix"])
Rows = dict[int, tuple[str, str]]
"""Key -> value and partition."""


def seen(what: str) -> None:
    """Count it in Hypothesis's statistics; steps written as a plain test have none."""
    if currently_in_test_context():
        event(what)


class Side:
    """What one branch should hold. ``ids``: of every row that it ever showed; ``changed``: rows that were written since
    the branch was made, ``unpublished``: since its last publish; ``may_change``: rows of the last step. Partitions,
    since the branch was made: ``appended``; ``rewritten``: whose files were replaced; ``replaced``: as a whole;
    ``moved``: into which rows of others came.
    """

    def __init__(self, view: Table, rows: Rows) -> None:
        self.view = view
        self.rows = dict(rows)
        self.ids: dict[int, int] = {}
        self.owners: dict[int, int] = {}
        self.versions: dict[int, int] = {}
        self.seen: dict[int, list[str]] = {}
        self.next_row_id = 0
        self.appended: set[str] = set()
        self.rewritten: set[str] = set()
        self.replaced: set[str] = set()
        self.may_change: set[int] = set()
        self.changed: set[int] = set()
        self.unpublished: set[int] = set()
        self.goes_back = False
        self.moved: set[str] = set()

    @property
    def head(self) -> int:
        return self.view.latest_snapshot_id() or 0


class RowIdMachine(RuleBasedStateMachine):
    @initialize(partitioned_ids=st.booleans(), small=st.booleans())
    def start(self, partitioned_ids: bool, small: bool) -> None:
        options = {"bucket": "-1", "row-tracking.enabled": "true"}
        options |= {} if partitioned_ids else {"row-tracking.partition-group-on-commit": "false"}
        options |= {"target-file-size": "2 kb"} if small else {}
        columns = [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]
        self.warehouse = self.new_warehouse()
        self.table = create_table(self.warehouse, "d.t", columns, partition_keys=["dt"], options=options)
        self.keys = 0
        self.sides = {"main": Side(self.table, {})}
        self.undo: tuple[str, Rows] | None = None
        self.stands = False  # main still has the last publish as it was
        self._insert(self.sides["main"], "a", 2)
        self._check(self.sides["main"])
        self._branch()

    def new_warehouse(self) -> str:
        return f"memory://{uuid.uuid4()}/wh"

    def _fresh(self, dt: str, count: int) -> Rows:
        self.keys += count
        return dict.fromkeys(range(self.keys - count, self.keys), ("new", dt))

    def _arrow(self, rows: Rows) -> pa.Table:
        columns = {"k": pa.array(list(rows), pa.int32())}
        return pa.table(columns | {"v": [v for v, _ in rows.values()], "dt": [dt for _, dt in rows.values()]})

    def _insert(self, side: Side, dt: str, count: int) -> None:
        rows = self._fresh(dt, count)
        write_arrow(side.view, self._arrow(rows))
        side.rows |= rows
        side.appended.add(dt)

    def _side(self, name: str) -> Side:
        return self.sides[name]

    @rule(name=SIDES, dt=PARTITIONS, count=st.integers(1, 3))
    def insert(self, name: str, dt: str, count: int) -> None:
        self._insert(self._side(name), dt, count)

    @rule(name=SIDES, dt=PARTITIONS, count=st.integers(1, 2))
    def overwrite_a_partition(self, name: str, dt: str, count: int) -> None:
        side, rows = self._side(name), self._fresh(dt, count)
        write_arrow(side.view, self._arrow(rows), mode="dynamic_overwrite")
        side.rows = {k: r for k, r in side.rows.items() if r[1] != dt} | rows
        side.appended.add(dt)
        side.rewritten.add(dt)
        side.replaced.add(dt)

    @rule(name=SIDES, dt=PARTITIONS)
    def drop_a_partition(self, name: str, dt: str) -> None:
        side = self._side(name)
        drop_partitions(side.view, [{"dt": dt}])
        side.rewritten.add(dt)
        side.replaced.add(dt)
        side.rows = {k: r for k, r in side.rows.items() if r[1] != dt}

    @rule(
        name=SIDES, every=st.integers(2, 4), kind=st.sampled_from(["update", "delete", "move", "merge"]), dt=PARTITIONS
    )
    def state(self, name: str, every: int, kind: str, dt: str) -> None:
        """UPDATE, DELETE, an UPDATE of the partition, or a MERGE that inserts as well."""
        side = self._side(name)
        new = self._fresh(dt, 1) if kind == "merge" else {}
        word = f"v{side.view.latest_snapshot_id()}-{every}"
        self.change(side, kind, every, dt, word, new)
        for k in [k for k in side.rows if k % every == 0]:
            v, old = side.rows[k]
            if kind == "delete":
                side.rewritten.add(old)
                del side.rows[k]
            elif kind == "move" and old != dt:
                side.rewritten.add(old)
                side.appended.add(dt)
                side.moved.add(dt)
                side.rows[k] = v, dt
                side.may_change.add(k)
            elif kind != "move":
                side.rewritten.add(old)
                side.rows[k] = word, old
                side.may_change.add(k)
        side.rows |= new
        side.appended |= {d for _, d in new.values()}

    def change(self, side: Side, kind: str, every: int, dt: str, word: str, new: Rows) -> None:
        """The statement, below Spark. It has to be the only commit, and none if it changes nothing."""

        def one(row: Row) -> Row | None:
            if row["k"] % every:
                return row
            if kind == "delete":
                return None
            return {**row, "dt": dt} if kind == "move" else {**row, "v": word}

        operation = "UPDATE" if kind == "move" else kind.upper()
        statement(side.view, one, [{"k": k, "v": v, "dt": d} for k, (v, d) in new.items()], operation)

    @rule(name=SIDES)
    def compact_files(self, name: str) -> None:
        side = self._side(name)
        asked = {"warehouse": self.warehouse, "table": "d.t", "branch": side.view.branch_name, "min_files": 2}
        request = build_request("compact", asked)
        assert isinstance(request, Compact)
        changed = compact(open_context(request), request).changed
        side.rewritten |= {dt for _, dt in side.rows.values()} if changed else set()
        seen(f"compacted: {changed}")

    @rule()
    def branch_again(self) -> None:
        run(self.table, "delete_branch", branch="fix")
        self._branch()

    def _branch(self) -> None:
        main = self.sides["main"]
        run(self.table, "create_branch", branch="fix", snapshot=self.table.latest_snapshot_id())
        fix = Side(self.table.branch("fix"), main.rows)
        fix.ids, fix.owners, fix.next_row_id = dict(main.ids), dict(main.owners), main.next_row_id
        fix.versions, fix.seen = dict(main.versions), dict(main.seen)
        main.appended, main.rewritten, self.undo, self.stands = set(), set(), None, False
        self.sides["fix"] = fix
        self.base = main.head
        self.known = {self.base: dict(main.rows)}  # main's snapshot -> the branch's rows that it stands on

    @property
    def expected(self) -> Rows:
        """The branch's rows as main has them: of the last publish that main stands on, or of the branch point."""
        return self.known[max(self.known)]

    def _merged(self, ours: Rows, before: Rows, after: Rows) -> Rows:
        """A three-way merge by row."""
        changed = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
        out = {k: r for k, r in ours.items() if k not in changed}
        return out | {k: after[k] for k in changed & after.keys()}

    @rule(keep=st.booleans(), rewrite=st.booleans())
    def publish(self, keep: bool = False, rewrite: bool = False) -> None:
        self._publish(None, keep, rewrite)

    @rule(dt=PARTITIONS, keep=st.booleans(), rewrite=st.booleans())
    def publish_a_partition(self, dt: str, keep: bool = False, rewrite: bool = False) -> None:
        """The others stay on the branch, and it stays known of each what was published last."""
        self._publish(dt, keep, rewrite)

    def _publish(self, day: str | None, keep: bool, rewrite: bool) -> None:
        """Whatever main got meanwhile stays, and a refusal has a reason: both sides replaced files of a partition."""
        main, fix = self.sides["main"], self.sides["fix"]
        before, head = dict(main.rows), main.head
        asked: dict[str, Any] = {"branch": "fix", "keep_appended": keep, "revert_compaction": rewrite}
        days, word = set("abc" if day is None else day), "publish" if day is None else "publish of a partition"
        try:
            result = run(self.table, "merge_branch", **asked, partitions=[f"dt={day}"] if day else [])
        except ConflictError as error:
            appended = set() if keep else main.appended & fix.replaced
            assert days & ((main.rewritten & (fix.rewritten | fix.appended)) | appended), error.message
            assert main.head == head
            seen(f"{word}: conflict by {error.details['cause']}")
            return
        except InvalidInputError:
            base = self.known[self.base]
            assert {k: r for k, r in fix.rows.items() if r[1] in days} == {
                k: r for k, r in base.items() if r[1] in days
            }
            return
        except UnsafeOperationError as error:
            assert "moved rows" in str(error) and fix.moved & days, error.message
            assert main.head == head
            seen(f"{word}: rows have moved")
            return
        seen(f"{word}: " + ("done" if result.changed else "nothing to do"))
        seen(f"publish: rewritten files: {result.details['rewritten_files'] > 0}")
        seen(f"publish: compactions reverted: {'compactions_reverted' in result.details}")
        seen(f"publish: beside rows of main: {bool(main.appended & (fix.appended | fix.rewritten))}")
        ours, known, theirs = (
            {k: r for k, r in rows.items() if r[1] in days} for rows in (before, self.expected, fix.rows)
        )
        merged = self._merged(ours, known, theirs)
        main.rows = {k: r for k, r in before.items() if r[1] not in days} | merged
        main.may_change |= fix.unpublished if self.stands else fix.changed
        if result.changed:
            verify_publish(self.table, snapshot_id=main.head, branch="fix", branch_snapshot=fix.head)
            self.known[main.head] = {k: r for k, r in self.expected.items() if r[1] not in days} | theirs
            fix.unpublished -= {k for k in fix.unpublished if k not in fix.rows or fix.rows[k][1] in days}
            self.stands = True
            fix.replaced -= days
            self.undo = result.details["undo_tag"], before

    @rule(every=st.integers(2, 4), dt=PARTITIONS, kind=st.sampled_from(["update", "merge"]))
    def publish_folded(self, every: int, dt: str, kind: str) -> None:
        """Correct once more, compact the branch, publish: all its rows' versions are stored as its own numbers."""
        self.state("fix", every, kind, dt)
        self.compact_files("fix")
        self._check(self.sides["fix"])
        self.publish()

    @rule(every=st.integers(2, 4), dt=PARTITIONS, rewrite=st.booleans())
    def publish_over_a_compaction(self, every: int, dt: str, rewrite: bool) -> None:
        """Main appends to what the branch corrects, and compacts it."""
        self.state("fix", every, "update", dt)
        self._insert(self.sides["main"], dt, 1)
        self.compact_files("main")
        self._check(self.sides["main"])
        self._check(self.sides["fix"])
        self.publish(False, rewrite)

    @precondition(lambda self: self.undo is not None)
    @rule()
    def undo_the_publish(self) -> None:
        main = self.sides["main"]
        assert self.undo is not None
        tag, before = self.undo
        at = self._published_at()
        published = {k: (v, dt) for k, v, dt, *_ in with_ids(self.table, version=at)}
        later = main.head != at
        try:
            run(self.table, "rollback_to", tag=tag, keep_later=True)
        except ConflictError:
            assert later and main.rewritten
            seen("undo: conflict")
            return
        verify_rollback(self.table, snapshot_id=main.head, target=self.table.tag(tag).snapshot, keep_later=True)
        seen(f"undo: commits after it {later}")
        main.rows = self._merged(main.rows, published, before)
        if max(self.known) == at:
            self.known[main.head] = self.known[max(k for k in self.known if k < at)]
        main.goes_back, self.undo, self.stands = True, None, False

    def _published_at(self) -> int:
        assert self.undo is not None
        return self.table.tag(self.undo[0]).snapshot.id + 1

    @precondition(lambda self: (self.table.latest_snapshot_id() or 0) > 1)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        main = self.sides["main"]
        number = data.draw(st.sampled_from(self.table.snapshot_ids()))
        rows = read_arrow(self.table, version=number).to_pylist()
        run(self.table, "rollback_to", snapshot=number)
        dts = {dt for _, dt in main.rows.values()} | {r["dt"] for r in rows}
        main.appended |= dts
        main.rewritten |= dts
        older = [k for k in self.known if k <= number]
        self.known[main.head] = self.known[max(older)] if older else self.known[self.base]
        self.stands = False
        main.rows, main.goes_back, self.undo = {r["k"]: (r["v"], r["dt"]) for r in rows}, True, None

    @invariant()
    def rows_have_their_ids(self) -> None:
        for side in getattr(self, "sides", {}).values():
            self._check(side)

    def _check(self, side: Side) -> None:
        found: dict[int, Any] = {row[0]: row[1:] for row in with_ids(side.view)}
        assert {k: (v, dt) for k, (v, dt, _, _) in found.items()} == side.rows
        head = side.view.latest_snapshot()
        assert head is not None and (head.next_row_id or 0) >= side.next_row_id
        side.next_row_id = head.next_row_id or 0
        for key, (*row, row_id, version) in found.items():
            assert side.ids.setdefault(key, row_id) == row_id
            assert side.owners.setdefault(row_id, key) == key
            assert row_id < side.next_row_id and version <= head.id
            known = side.versions.get(key)
            if known is not None and not side.goes_back:
                assert version == known or (version > known and key in side.may_change)
                assert version > known or row == side.seen[key], "changed, and readers of newer versions miss it"
        side.changed |= side.may_change
        side.unpublished |= side.may_change
        side.may_change, side.goes_back = set(), False
        side.versions = {key: row[-1] for key, row in found.items()}
        side.seen = {key: list(row[:-2]) for key, row in found.items()}


MACHINE = settings(max_examples=lives(3, 15), stateful_step_count=25)
TestRowIdMachine = RowIdMachine.TestCase
TestRowIdMachine.settings = MACHINE


def test_a_publish_after_publishes_that_changed_nothing_and_an_undo() -> None:
    """The branch's rows come back: neither a publish without changes nor the undo of the last one is a conflict."""
    state = RowIdMachine()
    state.start(partitioned_ids=False, small=False)
    for _ in range(2):
        state.insert(count=1, dt="a", name="fix")
        state.publish()
    state.publish()
    state.publish()
    state.undo_the_publish()
    state.rows_have_their_ids()
    state.publish()
    state.rows_have_their_ids()
    assert state.sides["main"].rows == state.sides["fix"].rows
    state.teardown()
