"""Two tries of one operation at once, and answers of the storage that get lost, on tables with row tracking.

The work is done once, and no file that a snapshot refers to is deleted. A try whose commit was made by the other one
(``replayed``) deletes what it has written: if it ever took its own commit for the other's, that would be live files.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.idempotency import digest_of
from airflow_paimon.core.errors import AlreadyExistsError, ConflictError, OutcomeUnknownError, PaimonError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.scan import plan_snapshot
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.data.arrow_write import WriteRequest, write_once
from airflow_paimon.data.compact import compact
from airflow_paimon.execution import perform
from airflow_paimon.spark.statements import run as statements
from airflow_paimon.spark.statements.outcome import StatementOutcome
from tests.core.tables import copied
from tests.data.row_statements import planned, with_ids
from tests.randomness import moments
from tests.stores import FaultStore, _Wrapper

Try = Callable[[Table], Any]


def make() -> Table:
    return copied(_made())


@cache
def _made() -> Table:
    """Four small files on main; the branch ``fix`` has updated a row that it had inserted, so its file stores an id."""
    columns = [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    warehouse = f"memory://{uuid.uuid4()}/wh"
    table = create_table(warehouse, "d.t", columns, partition_keys=["dt"], options=options)
    for key in range(3):
        insert(table, key, "a")
    operate(table, "create_branch", branch="fix", snapshot=3)
    insert(table.branch("fix"), 20, "b")
    update(table.branch("fix"))
    insert(table, 3, "c")
    return table


def insert(view: Table, key: int, dt: str, operation_id: str | None = None) -> None:
    rows = pa.table({"k": pa.array([key], pa.int32()), "v": ["new"], "dt": [dt]})
    write_arrow(view, rows, operation_id=operation_id)


def operate(table: Table, operation: str, **values: Any) -> Any:
    warehouse = table.store.uri.rsplit("/", 2)[0]
    request = build_request(operation, {"warehouse": warehouse, "table": "d.t", **values})
    context = replace(open_context(request), table=table)
    return compact(context, request) if isinstance(request, Compact) else perform(context, request)


def update(view: Table, operation_id: str | None = None) -> None:
    """Change the rows with an even key and insert one: what ``sql`` does, without Spark's evaluation."""

    def write(identity: Any) -> Any:
        receipt, _ = statements.commit_statement(
            None, None, view, None, CommitOptions(identity=identity), lambda outcome: {}
        )  # type: ignore[arg-type]
        return receipt, ()

    write_once(view, WriteRequest("sql", operation_id, digest_of("update")), write, lambda committed: {})


@pytest.fixture(autouse=True)
def given_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluated(spark: Any, statement: Any, table: Table, tables: Any, **how: Any) -> StatementOutcome:
        def change(row: dict[str, Any]) -> dict[str, Any]:
            return {**row, "v": row["v"] + "+"} if row["k"] % 2 == 0 else row

        plan, messages = planned(table, change, [{"k": 100, "v": "in", "dt": "a"}])
        return StatementOutcome(read=plan.scan, write=plan.write, messages=tuple(messages))

    class Named:
        kind = "MERGE"

    real = statements._commit
    monkeypatch.setattr(statements, "compute_changes", evaluated)
    monkeypatch.setattr(statements, "_commit", lambda table, _, *rest: real(table, Named, *rest))  # type: ignore[arg-type]


OPERATIONS: dict[str, Try] = {
    "append": lambda table: insert(table, 7, "a", "op"),
    "statement": lambda table: update(table, "op"),
    "compaction": lambda table: operate(table, "compact", operation_id="op", min_files=2),
    "publish": lambda table: operate(table, "merge_branch", branch="fix", operation_id="op"),
}


def check(table: Table, expected: list[tuple[Any, ...]]) -> set[str]:
    """The work is done once, and every live file is there; the data files that no snapshot of either branch needs."""
    assert [row[:3] for row in with_ids(table)] == expected
    head = table.latest_snapshot_id()
    assert head == 5 and len({row[-2] for row in with_ids(table)}) == len(expected)
    needed = set()
    for view in (table, table.branch("fix")):
        for snapshot in view.snapshots():
            schema = view.schema(snapshot.schema_id)
            for split in plan_snapshot(view, snapshot, schema).splits:
                needed |= {data_file_path(schema, split.values, split.bucket, f) for f in split.files}
    there = {p for p in table.store.walk("") if PurePosixPath(p).name.startswith("data-")}
    assert needed <= there, f"deleted, though a snapshot refers to it: {needed - there}"
    return there - needed


def once(operation: str) -> list[tuple[Any, ...]]:
    table = make()
    OPERATIONS[operation](table)
    rows = [row[:3] for row in with_ids(table)]
    assert check(table, rows) == set()
    return rows


@pytest.mark.parametrize("operation", OPERATIONS)
def test_another_try_at_any_moment(operation: str) -> None:
    """The other try runs as a whole between two changes of the storage by the first one."""
    expected = once(operation)
    again = 0
    for at in moments(100):
        table = make()
        seen = 0

        def beside(method: str, path: str, table: Table = table, at: int = at) -> None:
            nonlocal seen
            seen += 1
            if seen == at:
                OPERATIONS[operation](table)

        first = replace(table, store=FaultStore(table.store, on_mutation=beside))
        try:
            OPERATIONS[operation](first)
        except ConflictError as error:
            assert operation == "publish", error  # its tag is there already; another retry finds the result
            OPERATIONS[operation](table)
            again += 1
        if seen < at:
            break
        assert check(table, expected) == set()
    assert at > 5 and again < at // 2


class LostAnswer(_Wrapper):
    """The put of a snapshot takes effect, and its answer gets lost: the client's own second put finds the file."""

    def __init__(self, inner: Store, error: PaimonError) -> None:
        super().__init__(inner)
        self.error = error

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        if "snapshot/snapshot-" in path:
            raise self.error


@pytest.mark.parametrize(
    "error", [AlreadyExistsError("there"), OutcomeUnknownError("timeout")], ids=["there", "unknown"]
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_lost_answer_is_no_other_try(operation: str, error: PaimonError) -> None:
    expected, table = once(operation), make()
    OPERATIONS[operation](replace(table, store=LostAnswer(table.store, error)))
    assert check(table, expected) == set()
    OPERATIONS[operation](table)
    assert check(table, expected) == set()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_storage_that_fails_at_any_change(operation: str, after: bool) -> None:
    """A retry does the work once. A try that failed, and doesn't know how, deletes nothing that may be live."""
    expected = once(operation)
    for at in moments(100):
        table = make()
        store = FaultStore(table.store, at, error=OSError(errno.EIO, "broken"), after=after)
        try:
            OPERATIONS[operation](replace(table, store=store))
        except PaimonError:
            OPERATIONS[operation](table)
        check(table, expected)
        if len(store.mutations) < at:
            break
    assert at > 5
