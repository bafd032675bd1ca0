"""expire_partitions killed at any call, hours later, and beside writers and other runs of itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.files import drop_partitions
from airflow_paimon.core.commit.idempotency import old_records
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, OperationResult, open_context
from airflow_paimon.core.table.record_kinds import EXPIRY_PLANS
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.execution import perform
from tests.core.chain.tables import as_another_engine
from tests.core.tables import copied, run
from tests.data.chain.expiries import NOW, OLD, add_row, both, held, made, row_types, rows_of
from tests.randomness import moments
from tests.stores import Crash, FaultStore


def faulty(table: Table, fault: FaultStore, **values: Any) -> OperationResult:
    warehouse = table.store.uri.rsplit("/", 2)[0]
    request = build_request("expire_partitions", {"warehouse": warehouse, "table": table.name, **OLD, **values})
    context = open_context(request)
    return perform(Context(request, Table(fault, table.name), context.now_ms, context.started), request)


@pytest.fixture(scope="module")
def plain() -> Table:
    return made("US/0101 US/0201 US/0301 EU/0110 EU/0120", "US/0105 US/0101 EU/0115 US/0205 US/0315")


LEFT = ("EU/0120 US/0201 US/0301", "US/0205 US/0315")
STAYING = {day for text in LEFT for day in text.split()}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("operation_id", ["op", None], ids=["same operation", "another run"])
def test_killed_at_every_store_call(plain: Table, operation_id: str | None, after: bool) -> None:
    """Whatever a killed run left, what stays reads right, and the next run hours later ends the work, once."""
    expected = rows_of(plain, STAYING)
    probe = FaultStore(copied(plain).store)
    faulty(Table(probe, "d.t"), probe, operation_id=operation_id)
    for step in moments(len(probe.mutations) + 1):
        table = copied(plain)
        with pytest.raises(Crash):
            faulty(table, FaultStore(table.store, step, after=after), operation_id=operation_id)
        assert rows_of(table, STAYING) == expected
        run(table, "expire_partitions", **OLD, operation_id=operation_id)
        assert both(table) == LEFT
        assert rows_of(table, STAYING) == expected
        commits = [
            len(table.branch(b).snapshot_ids()) - len(plain.branch(b).snapshot_ids()) for b in ("delta", "snapshot")
        ]
        assert commits == [1, 1]


def killed_between(table: Table, **values: Any) -> None:
    """Let a run die after its commit of the delta branch, before that of the snapshot branch."""
    before = table.branch("snapshot").latest_snapshot_id()

    def die(method: str, path: str) -> None:
        if method == "create" and path.endswith(f"snapshot/snapshot-{(before or 0) + 1}") and "branch-snapshot" in path:
            raise Crash("between the branches")

    with pytest.raises(Crash):
        faulty(table, FaultStore(table.store, on_mutation=die), **values)


def test_hours_later_the_run_goes_on_with_what_was_planned(plain: Table) -> None:
    table = copied(plain)
    killed_between(table, operation_id="op", now=None, expiration_time="63 d")
    # Planned while US/0201 was the only old one but 0101; by now 0301 would be old as well.
    assert held(table, "snapshot") == held(plain, "snapshot")
    result = run(table, "expire_partitions", expiration_time="63 d", operation_id="op")
    assert result.details["replayed"]
    assert [c["branch"] for c in result.details["commits"]] == ["delta", "snapshot"]
    again = run(table, "expire_partitions", expiration_time="63 d", operation_id="op")
    assert again.details["commits"] == result.details["commits"]
    assert again.plan_id == result.plan_id


def test_the_recorded_cutoff_counts_not_the_time_of_the_retry() -> None:
    """Without --now the retry's clock is later; the plan is the first try's."""
    table = made("0101 0201 0301", "0110 0210")
    killed_between(table, operation_id="op")
    [plan] = table.store.walk(EXPIRY_PLANS.folder)
    assert b'"cutoff": "2025-03-01T00:00:00"' in table.store.read(plan)
    run(table, "expire_partitions", **OLD, operation_id="op")
    assert both(table) == ("0201 0301", "0210")
    assert plan in old_records(table, 2**60), "it ages as the record of its operation"


def drop(table: Table, branch: str, *names: str) -> None:
    drop_partitions(table.branch(branch), [{"region": n.split("/")[0], "dt": f"2025{n.split('/')[1]}"} for n in names])


def add(table: Table, branch: str, name: str) -> None:
    region, day = name.split("/")
    add_row(table.branch(branch), {"k": 9, "s": 999, "v": "late", "region": region, "dt": f"2025{day}"})


@pytest.mark.parametrize(
    ("meanwhile", "left"),
    [
        # A late delta behind the old anchor goes with it, in a commit of its own, not without its base.
        (lambda t: add(t, "delta", "US/0106"), LEFT),
        # So does one in a partition that was dropped already.
        (lambda t: add(t, "delta", "US/0105"), LEFT),
        # The partition to drop was written again: it is planned again, and goes.
        (lambda t: add(t, "snapshot", "US/0101"), LEFT),
        # Another engine dropped it.
        (lambda t: drop(t, "snapshot", "US/0101", "EU/0110"), LEFT),
        # A new full partition in between is planned again: it goes, too.
        (lambda t: add(t, "snapshot", "US/0115"), LEFT),
        # Elsewhere work goes on.
        (lambda t: (add(t, "delta", "US/0320"), add(t, "snapshot", "US/0325")),
         ("EU/0120 US/0201 US/0301 US/0325", "US/0205 US/0315 US/0320")),
    ],
    ids=["late delta", "late delta again", "rebuilt", "dropped", "new anchor", "elsewhere"],
)  # fmt: skip
@pytest.mark.parametrize("operation_id", ["op", None], ids=["same operation", "another run"])
def test_what_happened_between_the_two_commits(
    plain: Table, meanwhile: Callable[[Table], object], left: tuple[str, str], operation_id: str | None
) -> None:
    table = copied(plain)
    killed_between(table, operation_id=operation_id)
    meanwhile(table)
    staying = {d for text in left for d in text.split()}
    expected = rows_of(table, staying)
    run(table, "expire_partitions", **OLD, operation_id=operation_id)
    assert both(table) == left
    assert rows_of(table, staying) == expected


@pytest.mark.parametrize(
    ("operation_id", "deltas"),
    [("op", "US/0101 US/0105 US/0205 US/0315"), (None, "US/0205 US/0315")],
    ids=["same operation", "another run"],
)
def test_when_the_anchor_went_between_the_two_commits_the_older_one_stays(
    plain: Table, operation_id: str | None, deltas: str
) -> None:
    """The same operation knows what it dropped, and puts the deltas back that are needed now."""
    table = copied(plain)
    killed_between(table, operation_id=operation_id)
    as_another_engine(table, lambda: drop(table, "snapshot", "US/0201"))
    run(table, "expire_partitions", **OLD, operation_id=operation_id)
    assert both(table) == ("EU/0120 US/0101 US/0301", deltas)


# -- company ------------------------------------------------------------------------------------------------------


def competing(table: Table, branch: str, what: Callable[[], object]) -> FaultStore:
    """A store that lets somebody else act right before our commit on a branch is put."""
    done: list[object] = []

    def compete(method: str, path: str) -> None:
        if method == "create" and f"branch-{branch}/snapshot/snapshot-" in path and not done:
            done.append(None)
            what()

    return FaultStore(table.store, on_mutation=compete)


@pytest.mark.parametrize("branch", ["delta", "snapshot"])
def test_two_at_once_do_the_work_once_and_lose_nothing(plain: Table, branch: str) -> None:
    table = copied(plain)
    others: list[OperationResult] = []
    fault = competing(table, branch, lambda: others.append(run(table, "expire_partitions", **OLD)))
    result = faulty(table, fault)
    assert both(table) == LEFT
    assert others[0].changed
    made_by_both = [c["branch"] for r in (others[0], result) for c in r.details["commits"]]
    assert sorted(made_by_both) == ["delta", "snapshot"]


@pytest.mark.parametrize("late", ["US/0106", "US/0105"])
def test_late_data_right_before_a_commit(plain: Table, late: str) -> None:
    table = copied(plain)
    expected = rows_of(table, STAYING)
    faulty(table, competing(table, "delta", lambda: add(table, "delta", late)))
    assert both(table) == LEFT
    assert rows_of(table, STAYING) == expected


def test_late_data_in_the_other_branch_at_that_very_moment_stays_as_an_orphan(plain: Table) -> None:
    """Nothing locks two branches together: the late row is not lost, and goes with the next segment."""
    table = copied(plain)
    expected = rows_of(table, STAYING)
    faulty(table, competing(table, "snapshot", lambda: add(table, "delta", "US/0106")))
    assert both(table) == (LEFT[0], f"US/0106 {LEFT[1]}")
    assert rows_of(table, STAYING) == expected
    run(table, "expire_partitions", expiration_time="1 d", now=NOW)
    assert both(table) == ("EU/0120 US/0301", "US/0315")


def test_many_at_once_on_a_disk(tmp_path: Path) -> None:
    """Real threads, a real file system, and a writer of new deltas in between."""
    table = made("US/0101 US/0201 US/0301 EU/0110 EU/0120", "US/0105 US/0101 EU/0115 US/0205 US/0315", tmp_path)
    expected = rows_of(table, STAYING)
    with ThreadPoolExecutor(5) as pool:
        runs = [pool.submit(run, table, "expire_partitions", **OLD) for _ in range(4)]
        row = {"k": 9, "s": 999, "v": "new", "region": "US", "dt": "20250320"}
        new = pool.submit(write_arrow, table.branch("delta"), pa.Table.from_pylist([row], schema=row_types(row)))
        results = [r.result() for r in runs]
        new.result()
    commits = [c["branch"] for r in results for c in r.details["commits"]]
    assert sorted(commits) == ["delta", "snapshot"]
    assert both(table) == (LEFT[0], f"{LEFT[1]} US/0320")
    assert rows_of(table, STAYING) == expected


def test_inputs_that_keep_changing_end_in_a_conflict_that_lists_the_commits(plain: Table) -> None:
    table = copied(plain)
    days = iter(range(1, 1000))

    def compete(method: str, path: str) -> None:
        if method == "create" and "branch-snapshot/snapshot/snapshot-" in path:
            table.store.create(f"branch/branch-snapshot/late-{next(days)}", b"")
            add(table, "snapshot", "US/0101")

    with pytest.raises(ConflictError, match="kept changing") as error:
        faulty(table, FaultStore(table.store, on_mutation=compete))
    assert [(c["branch"], c["partitions"]) for c in error.value.details["done"]] == [("delta", 1)]
    assert both(table) == (held(plain, "snapshot"), "US/0101 US/0105 US/0205 US/0315"), "the other group's was deleted"
