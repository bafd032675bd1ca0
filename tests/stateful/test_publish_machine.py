"""The branch machine with what makes publishing hard: columns added on either side, branches of branches, and tables
without a sequence field, whose branches may hold numbers too high to publish. Main is replaced by branches, and the
one that keeps the previous main is a branch like the others.

After every step main still has each column it had, unless it was replaced, and what the base machine asks for.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from airflow_paimon import execution
from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import ConflictError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.publish.fold import FOLD
from airflow_paimon.core.publish.publish_branch import publish_branch
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.requests.requests import PublishBranch
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import run_operation
from tests.core.tables import alter_table, append, files, make_table, message, run
from tests.randomness import lives
from tests.stateful.test_branch_machine import BRANCHES, BranchMachine, BranchModel, only

pytestmark = pytest.mark.random

KID = "kid"
OLD = "old"
WORD = st.sampled_from(["", "writers_stopped"])


def _fold(view: Table, limits: Mapping[BucketKey, int]) -> None:
    """What folds before a publish: each bucket becomes one file whose numbers are no higher than the limit, all in
    one commit."""
    types = view.schema().partition_types
    live = list(live_entries(view, view.latest_snapshot()).values())
    messages = []
    for key, limit in limits.items():
        (dt,) = decode_row(key.partition, types)
        gone = tuple(e.file for e in live if (e.partition, e.bucket) == (key.partition, key.bucket))
        messages.append(replace(message(view, dt, key.bucket, seq=limit, level=5), replaced=gone))
    commit_buckets(view, messages, CommitOptions(properties={OPERATION_PROPERTY: FOLD}))


class PublishMachine(BranchMachine):
    @initialize(sequence=st.booleans())
    def start(self, sequence: bool) -> None:
        options = {"sequence.field": "v"} if sequence else {}
        self.sequence = sequence
        self.table = make_table(f"memory://{uuid.uuid4()}/wh", **{"manifest.merge-min-count": "4"}, **options)
        append(self.table, "a")
        self.main = files(self.table)
        self.branches: dict[str, BranchModel] = {}
        self.related: set[str] = set()
        self.undo = []
        self.stood = {}
        self.columns = set(self.table.schema().field_names)
        self.added = 0
        self.altered: set[str] = set()
        self.main_altered: set[str] = set()
        self.parent: str | None = None
        self.dropped: set[str] = set()
        self.replaced: Any = {}
        self.word = ""

    def _run(self, operation: str, **values: Any) -> OperationResult:
        warehouse = self.table.store.uri.rsplit("/", 2)[0]
        given = {"warehouse": warehouse, "table": self.table.name, **values}
        if self.word and operation != "rollback_to":
            given[self.word] = True
        request = build_request(operation, given)
        if isinstance(request, PublishBranch):
            return publish_branch(open_context(request), request, replace(execution.row_functions(), fold=_fold))
        return run_operation(request)

    def _new_column(self, view: Table) -> None:
        self.added += 1
        alter_table(view, [AddColumn(name=f"c{self.added}", type="INT")])

    @rule()
    def alter_main(self) -> None:
        self._new_column(self.table)
        self.columns = set(self.table.schema().field_names)
        self.main_altered |= set(self.branches)

    @precondition(lambda self: self.branches)
    @rule(data=st.data())
    def alter_branch(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.branches)))
        self._new_column(self.table.branch(name))
        self.altered.add(name)

    @rule(name=BRANCHES)
    def create_branch(self, name: str) -> None:
        if name not in self.branches:
            super().create_branch(name)
            # The schema of the snapshot: main may have been altered since.
            self.main_altered -= {name}
            self.altered -= {name}
            if set(self.table.branch(name).schema().field_names) != self.columns:
                self.main_altered.add(name)

    @precondition(lambda self: self.branches and KID not in self.branches)
    @rule(data=st.data())
    def branch_of_a_branch(self, data: st.DataObject) -> None:
        self.parent = parent = data.draw(st.sampled_from(sorted(self.branches)))
        at = self.table.branch(parent).latest_snapshot_id()
        run(self.table, "create_branch", branch=KID, from_branch=parent, snapshot=at)
        self.related |= {KID, parent}
        self.branches[KID] = replace(copy.deepcopy(self.branches[parent]), published={}, moved=set())
        for sides in (self.altered, self.main_altered):
            sides -= {KID}
            sides |= {KID} if parent in sides else set()

    def _columns_conflict(self, name: str) -> bool:
        return name in self.altered and name in self.main_altered

    def _rebase(self, name: str, other: str) -> None:
        super()._rebase(name, other)
        if other in self.branches:
            self.main_altered -= {other}
            columns = set(self.table.branch(other).schema().field_names)
            self.altered |= {other}
            if columns != self.columns:
                self.main_altered.add(other)

    @precondition(lambda self: len(self.branches) > 1)
    @rule(data=st.data())
    def delete_branch(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.branches)))
        try:
            run(self.table, "delete_branch", branch=name)
        except UnsafeOperationError:
            assert KID in self.branches
            assert name == self.parent
            event("delete: refused, its kid lives")
            return
        del self.branches[name]

    @precondition(lambda self: self.branches)
    @rule(data=st.data(), word=WORD)
    def merge(self, data: st.DataObject, word: str) -> None:
        self.word = word
        self._merge(data.draw(st.sampled_from(sorted(self.branches))))

    @rule(word=WORD)
    def say(self, word: str) -> None:
        self.word = word

    def _merge(self, name: str, day: str | None = None) -> None:
        model, before = self.branches[name], copy.deepcopy(self.main)
        differs = self._taken_by(model, before, day)
        try:
            result = self._run("merge_branch", branch=name, **only(day))
        except (ConflictError, UnsafeOperationError) as error:
            assert files(self.table) == before
            conflicts = differs | self._unclear(name, day)
            self._refused(name, error, bool(conflicts & model.main_changed))
            return
        except InvalidInputError:
            self._unchanged(model, before, day)
            return
        finally:
            # A fold is a commit on the branch, and stays when the publish is refused.
            model.now = files(self.table.branch(name))
        self.main = files(self.table)
        expected = self._expected(model, before, differs, day)
        expected = self._with_what_stands(name, expected, before, differs)
        self._committed(name, before, expected, result)
        if result.changed:
            model.taken(differs, day)

    def _refused(self, name: str, error: Exception, conflicting: bool) -> None:
        both_altered = name in self.altered and name in self.main_altered
        if isinstance(error, ConflictError):
            assert conflicting or both_altered, error
            event("refused: conflict of " + ("buckets" if conflicting else "columns"))
        else:
            assert not self.sequence, error
            assert not self.word, error
            assert "writers-stopped" in str(error)
            event("refused: high numbers")

    def _committed(self, name: str, before: Any, expected: Any, result: OperationResult) -> None:
        self.main = files(self.table)
        assert self.main == expected
        event(f"{result.operation}: " + ("published" if result.changed else "nothing to do"))
        if not result.changed:
            return
        columns = set(self.table.schema().field_names)
        theirs = set(self.table.branch(name).schema().field_names)
        if result.operation == "replace_main":
            assert columns == theirs
            self.dropped |= self.columns - columns
        else:
            assert columns >= self.columns | (theirs - self.dropped)
        if columns != self.columns:
            event("a column of the branch reached main")
            self.main_altered |= set(self.branches) - {name}
            self.columns = columns
        self._published(result.details["undo_tag"], before)

    @precondition(lambda self: self.branches)
    @rule(data=st.data(), discard=st.booleans(), word=WORD)
    def fast_forward(self, data: st.DataObject, discard: bool, word: str) -> None:
        self.word = word
        self._whole("fast_forward", data.draw(st.sampled_from(sorted(self.branches))), discard)

    @precondition(lambda self: self.branches)
    @rule(data=st.data(), discard=st.booleans(), word=WORD, keep=st.booleans())
    def replace_main(self, data: st.DataObject, discard: bool, word: str, keep: bool) -> None:
        self._replace(data.draw(st.sampled_from(sorted(self.branches))), discard, word, keep)

    @precondition(lambda self: OLD in self.branches)
    @rule(discard=st.booleans(), word=WORD)
    def replace_back(self, discard: bool, word: str) -> None:
        self._replace(OLD, discard, word, False)

    def _replace(self, name: str, discard: bool, word: str, keep: bool) -> None:
        """What was kept may come back without the word only if main has got nothing else since."""
        self.word = word
        keeps = {"keep_old_as": OLD} if keep and OLD not in self.branches else {}
        before, columns, kept = copy.deepcopy(self.main), set(self.columns), copy.deepcopy(self.branches.get(OLD))
        committed = self._whole("replace_main", name, discard, **keeps)
        if committed and name == OLD and not discard and kept is not None:
            event("replace_main: by what was kept")
            known = (self.replaced, kept.base, kept.now)  # an undo may have brought some of it back already
            lost = [k for k in before.keys() | self.replaced.keys() if before.get(k) not in [s.get(k) for s in known]]
            assert not lost, "rows that main got since would be lost"
        if committed and keeps:
            view = self.table.branch(OLD)
            assert files(view) == before
            assert set(view.schema().field_names) == columns
            touched = {k for k in before.keys() | self.main.keys() if before.get(k) != self.main.get(k)}
            self.branches[OLD] = BranchModel(base=before, now=copy.deepcopy(before), main_changed=touched)
            self.altered.add(OLD)
            self.main_altered.add(OLD)
            self.replaced = copy.deepcopy(self.main)
        elif keeps:
            assert OLD not in self.table.branch_names()

    def _main_write(self, receipt: Any, *, real: bool) -> None:
        same = self.main == self.replaced
        super()._main_write(receipt, real=real)
        if same and not real:  # what compaction does may go
            self.replaced = copy.deepcopy(self.main)

    def _whole(self, operation: str, name: str, discard: bool, **values: Any) -> bool:
        before = copy.deepcopy(self.main)
        try:
            result = self._run(operation, branch=name, discard_main=discard, **values)
        except (ConflictError, UnsafeOperationError) as error:
            assert files(self.table) == before
            if isinstance(error, ConflictError) or (discard and not self.word):
                self._refused(name, error, False)
            else:
                assert not discard, error
                event(f"{operation}: refused")
            return False
        finally:
            self.branches[name].now = files(self.table.branch(name))
        self._committed(name, before, self.branches[name].now, result)
        if result.changed:
            self._replaced(name)
        return bool(result.changed)

    @invariant()
    def no_column_of_main_is_lost(self) -> None:
        if hasattr(self, "table"):
            assert set(self.table.schema().field_names) == self.columns


TestPublishMachine = PublishMachine.TestCase
TestPublishMachine.settings = settings(max_examples=lives(3, 15), stateful_step_count=25)
