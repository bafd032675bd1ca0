"""A row-tracking table and its branch under every operation that writes: what its rows, their ids and versions become.

Keys are never used twice, so a key is a row. On each side an id stays with its row for good, through publish, undo and
rollback; no two rows share one; a version rises only for a row that was changed.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.requests.build import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import drop_partitions, read_arrow, write_arrow
from airflow_paimon.data.compact import compact
from tests.core.tables import run
from tests.data.row_statements import Row, statement, with_ids

pytestmark = pytest.mark.random

PARTITIONS = st.sampled_from(["a", "b", "c"])
SIDES = st.sampled_from(["main", "fix"])
Rows = dict[int, tuple[str, str]]
"""Key -> value and partition."""


class Side:
    """What one branch should hold. ``ids``: of every row that it ever showed; ``touched``: partitions, and ``changed``:
    rows, that were written since the branch was made; ``may_change``: rows of the last step.
    """

    def __init__(self, view: Table, rows: Rows) -> None:
        self.view = view
        self.rows = dict(rows)
        self.ids: dict[int, int] = {}
        self.owners: dict[int, int] = {}
        self.versions: dict[int, int] = {}
        self.next_row_id = 0
        self.touched: set[str] = set()
        self.may_change: set[int] = set()
        self.changed: set[int] = set()
        self.goes_back = False


class RowIdMachine(RuleBasedStateMachine):
    @initialize(partitioned_ids=st.booleans(), small=st.booleans())
    def start(self, partitioned_ids: bool, small: bool) -> None:
        options = {"bucket": "-1", "row-tracking.enabled": "true"}
        options |= {} if partitioned_ids else {"row-tracking.partition-group-on-commit": "false"}
        options |= {"target-file-size": "2 kb"} if small else {}
        columns = [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]
        warehouse = f"memory://{uuid.uuid4()}/wh"
        self.table = create_table(warehouse, "d.t", columns, partition_keys=["dt"], options=options)
        self.keys = 0
        self.sides = {"main": Side(self.table, {})}
        self.undo: tuple[str, Rows] | None = None
        self._insert(self.sides["main"], "a", 2)
        self._check(self.sides["main"])
        self._branch()

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
        side.touched.add(dt)

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
        side.touched.add(dt)

    @rule(name=SIDES, dt=PARTITIONS)
    def drop_a_partition(self, name: str, dt: str) -> None:
        side = self._side(name)
        drop_partitions(side.view, [{"dt": dt}])
        if any(r[1] == dt for r in side.rows.values()):
            side.touched.add(dt)
        side.rows = {k: r for k, r in side.rows.items() if r[1] != dt}

    @rule(
        name=SIDES, every=st.integers(2, 4), kind=st.sampled_from(["update", "delete", "move", "merge"]), dt=PARTITIONS
    )
    def state(self, name: str, every: int, kind: str, dt: str) -> None:
        """UPDATE, DELETE, an UPDATE of the partition, or a MERGE that inserts as well."""
        side = self._side(name)
        new = self._fresh(dt, 1) if kind == "merge" else {}
        word = f"v{self.keys}-{len(side.versions)}-{every}"

        def change(row: Row) -> Row | None:
            if row["k"] % every:
                return row
            if kind == "delete":
                return None
            return {**row, "dt": dt} if kind == "move" else {**row, "v": word}

        statement(side.view, change, [{"k": k, "v": v, "dt": d} for k, (v, d) in new.items()], kind.upper())
        for k in [k for k in side.rows if k % every == 0]:
            v, old = side.rows[k]
            if kind == "delete":
                side.touched.add(old)
                del side.rows[k]
            elif kind == "move" and old != dt:
                side.touched |= {old, dt}
                side.rows[k] = v, dt
                side.may_change.add(k)
            elif kind != "move":
                side.touched.add(old)
                side.rows[k] = word, old
                side.may_change.add(k)
        side.rows |= new
        side.touched |= {d for _, d in new.values()}

    @rule(name=SIDES)
    def compact_files(self, name: str) -> None:
        side = self._side(name)
        warehouse = self.table.store.uri.rsplit("/", 2)[0]
        asked = {"warehouse": warehouse, "table": "d.t", "branch": side.view.branch_name, "min_files": 2}
        request = build_request("compact", asked)
        assert isinstance(request, Compact)
        event(f"compacted: {compact(open_context(request), request).changed}")

    @rule()
    def branch_again(self) -> None:
        run(self.table, "delete_branch", branch="fix")
        self._branch()

    def _branch(self) -> None:
        main = self.sides["main"]
        run(self.table, "create_branch", branch="fix", snapshot=self.table.latest_snapshot_id())
        fix = Side(self.table.branch("fix"), main.rows)
        fix.ids, fix.owners, fix.next_row_id = dict(main.ids), dict(main.owners), main.next_row_id
        fix.versions = dict(main.versions)
        main.touched, self.undo = set(), None
        self.sides["fix"] = fix

    @rule()
    def publish(self) -> None:
        main, fix = self.sides["main"], self.sides["fix"]
        before, head = dict(main.rows), self.table.latest_snapshot_id()
        try:
            result = run(self.table, "merge_branch", branch="fix")
        except ConflictError:
            assert main.touched & fix.touched
            assert self.table.latest_snapshot_id() == head
            event("publish: conflict")
            return
        event("publish: " + ("done" if result.changed else "nothing to do"))
        event(f"publish: rewritten files: {result.details['rewritten_files'] > 0}")
        main.rows = {k: r for k, r in main.rows.items() if r[1] not in fix.touched}
        main.rows |= {k: r for k, r in fix.rows.items() if r[1] in fix.touched}
        main.may_change |= fix.changed
        if result.changed:
            self.undo = result.details["undo_tag"], before

    @precondition(lambda self: self.undo is not None)
    @rule()
    def undo_the_publish(self) -> None:
        main = self.sides["main"]
        assert self.undo is not None
        tag, before = self.undo
        head = self.table.latest_snapshot_id()
        if head != self._published_at():
            return  # other commits in between are the publish machine's
        run(self.table, "rollback_to", tag=tag, keep_later=True)
        main.rows, main.goes_back, self.undo = before, True, None

    def _published_at(self) -> int | None:
        assert self.undo is not None
        return self.table.tag(self.undo[0]).snapshot.id + 1

    @precondition(lambda self: (self.table.latest_snapshot_id() or 0) > 1)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        main = self.sides["main"]
        number = data.draw(st.sampled_from(self.table.snapshot_ids()))
        rows = read_arrow(self.table, version=number).to_pylist()
        run(self.table, "rollback_to", snapshot=number)
        main.touched |= {dt for _, dt in main.rows.values()} | {r["dt"] for r in rows}
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
        for key, (_, _, row_id, version) in found.items():
            assert side.ids.setdefault(key, row_id) == row_id
            assert side.owners.setdefault(row_id, key) == key
            assert row_id < side.next_row_id and version <= head.id
            known = side.versions.get(key)
            if known is not None and not side.goes_back:
                assert version == known or (version > known and key in side.may_change)
        side.changed |= side.may_change
        side.may_change, side.goes_back = set(), False
        side.versions = {key: row[-1] for key, row in found.items()}


TestRowIdMachine = RowIdMachine.TestCase
TestRowIdMachine.settings = settings(
    max_examples=int(os.environ.get("AIRFLOW_PAIMON_EXAMPLES", "15")),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
