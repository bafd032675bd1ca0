"""The branch machine with our own expiry in between, beside Paimon's, beside other writers, and killed.

The model is the set of files that each snapshot and tag must be able to read. Whatever an expiry leaves reads as
before, every file that it names exists, and without other engines nothing is left over that nothing names.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.metadata_expiry.roots import RootReader
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import append, files, move, run
from tests.randomness import lives
from tests.soundness import assert_sound, files_on_disk, named_files, states
from tests.stateful.test_branch_machine import BranchMachine
from tests.stores import Crash, FaultStore

pytestmark = pytest.mark.random

GRACE = st.sampled_from(["0 s", "1 h"])
MEANWHILE = st.sampled_from(["", "append", "tag", "branch commit", "kill"])


class ExpiryMachine(BranchMachine):
    @initialize(alone=st.booleans())
    def start_alone(self, alone: bool) -> None:
        """``alone``: no other engine expires anything, so that nothing may be left over."""
        self.alone = alone
        self.ahead_ms = 0
        self.tags = 0

    @rule(dt=st.sampled_from("ab"))
    def compaction_moves_a_file(self, dt: str) -> None:
        """To another level, as an upgrade does: deleted and added under the same name."""
        for entry in live_entries(self.table, self.table.latest_snapshot()).values():
            if entry.file.level < 4:
                self._main_write(move(self.table, entry), real=False)
                for branch in self.branches.values():
                    branch.main_compacted.add((entry.partition, entry.bucket))
                event("moved")
                return

    @rule(dt=st.sampled_from("ab"), how=st.sampled_from(["overwrite", "rewrite", "compact"]), tag=st.booleans())
    def a_busy_hour(self, dt: str, how: str, tag: bool) -> None:
        for number in range(4):
            self.write_main(dt, 0, how)
            if tag and number == 1:
                self.create_tag(-1, None)

    @rule(at=st.integers(0, 6), days=st.sampled_from([None, 1, 5]))
    def create_tag(self, at: int, days: int | None) -> None:
        ids = self.table.snapshot_ids()
        self.tags += 1
        retained = None if days is None else f"{days} d"
        run(self.table, "create_tag", tag=f"t{self.tags}", snapshot=ids[at % len(ids)], time_retained=retained)

    @rule(hours=st.sampled_from([1, 30, 200]))
    def time_passes(self, hours: int) -> None:
        self.ahead_ms += hours * 3_600_000

    @rule(
        keep=st.integers(1, 3), limit=st.sampled_from([None, 4]), everywhere=st.booleans(), undo=st.booleans(),
        grace=GRACE, meanwhile=MEANWHILE, at=st.integers(1, 30),
    )  # fmt: skip
    def we_expire_snapshots(
        self, keep: int, limit: int | None, everywhere: bool, undo: bool, grace: str, meanwhile: str, at: int
    ) -> None:
        values = {"older_than": "0 s", "retain_min": keep, "max_deletes": limit, "all_branches": everywhere}
        earliest = self.table.snapshot_ids()[0]
        self._expire(
            "expire_snapshots", {**values, "keep_undo": undo, "grace": grace, "writers_stopped": True}, meanwhile, at
        )
        for branch in self.branches.values():
            branch.main_changed |= branch.main_compacted
            branch.forgotten |= self.table.snapshot_ids()[0] != earliest

    @rule(grace=GRACE, meanwhile=MEANWHILE, unlimited=st.booleans(), at=st.integers(1, 10))
    def we_expire_tags(self, grace: str, meanwhile: str, unlimited: bool, at: int) -> None:
        values: dict[str, Any] = {"all_branches": True, "grace": grace, "writers_stopped": True}
        if unlimited:
            values |= {"older_than": "1 h", "include_unlimited": True}
        self._expire("expire_tags", values, meanwhile, at)

    def _expire(self, operation: str, values: dict[str, Any], meanwhile: str, at: int) -> None:
        request = build_request(operation, {"warehouse": "w", "table": self.table.name, **values})
        before, extra = states(self.table), self._extra() if self.alone else set()

        to_do, lock = [meanwhile], threading.Lock()  # files are deleted by several threads

        def interfere(_method: str, _path: str) -> None:
            with lock:
                if len(store.mutations) >= at - 1 and to_do:
                    self._meanwhile(to_do.pop())

        store = FaultStore(
            self.table.store, fail_at=at if meanwhile == "kill" else None, on_mutation=interfere, after=at % 2 == 0
        )
        now_ms = int(time.time() * 1000) + 60_000 + self.ahead_ms
        try:
            result = perform(Context(request, Table(store, self.table.name), now_ms, 0.0), request)
            self._tell(operation, result)
        except Crash:
            event(f"{operation}: killed")
            assert_sound(self.table, leaks=True)
            perform(Context(request, self.table, now_ms, 0.0), request)
        after = states(self.table)
        for path, live in before.items():
            assert after.get(path, live) == live
        assert not [r for r in RootReader(self.table).gather().roots if r.trash is not None and r.trash.reaping]
        assert_sound(self.table, leaks=True)
        if self.alone:
            assert self._extra() <= extra, "it left files over"

    def _extra(self) -> set[str]:
        return files_on_disk(self.table) - set().union(*named_files(self.table).values())

    def _tell(self, operation: str, result: OperationResult) -> None:
        event(f"{operation}: " + ("files freed" if result.details["deleted"]["data_files"] else "no file freed"))

    def _meanwhile(self, what: str) -> None:
        if what == "append":
            self._main_write(append(self.table, "a"), real=True)
        elif what == "tag":
            self.tags += 1
            try:
                run(self.table, "create_tag", tag=f"t{self.tags}", snapshot=self.table.snapshot_ids()[0])
            except NotFoundError:
                event("the snapshot was just expired")
        elif what == "branch commit" and self.branches:
            name = min(self.branches)
            append(self.table.branch(name), "b", seq=10**6)
            now = files(self.table.branch(name))
            model = self.branches[name]
            touched = {k for k in now if now[k] != model.now.get(k)}
            model.changed |= touched
            model.moved |= touched
            model.now = now

    @precondition(lambda self: not self.alone)
    @rule(retain=st.integers(1, 5))
    def paimon_expires(self, retain: int) -> None:
        super().paimon_expires(retain)

    @precondition(lambda self: self.undo and not self.alone)
    @rule(retain=st.integers(1, 3))
    def undo_tags_expire(self, retain: int) -> None:
        super().undo_tags_expire(retain)


TestExpiryMachine = ExpiryMachine.TestCase
TestExpiryMachine.settings = settings(max_examples=lives(4, 20), stateful_step_count=35)
