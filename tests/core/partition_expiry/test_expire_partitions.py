"""expire_partitions on ordinary tables: which partitions are too old, one commit, retries, crashes, late data."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.commit.partition_contents import PartitionContent, partition_contents
from airflow_paimon.core.errors import ConflictError, InvalidInputError
from airflow_paimon.core.partition_expiry.partition_expiry_plan import (
    ExpiryRule,
    expiry_age,
    expiry_rule,
    plan_partition_expiry,
)
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, OperationResult, open_context
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import append, forget_results, make_table, message, run
from tests.stores import Crash, FaultStore

NOW = "2025-03-31T00:00:00+00:00"
OLD = {"expiration_time": "30 d", "now": NOW}


def days(table: Table) -> list[str]:
    return [h.text.removeprefix("dt=") for h in partition_contents(plan_scan(table))]


def filled(warehouse: Path | str, *partitions: str, **options: str) -> Table:
    table = make_table(warehouse, **options)
    for partition in partitions:
        append(table, partition)
    return table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return filled(tmp_path, "2025-01-01", "2025-02-28", "2025-03-01", "2025-03-30", "someday", "2025-02-31")


def test_partitions_before_the_cutoff_go_in_one_commit(table: Table) -> None:
    append(table, "2025-01-01", bucket=1, rows=3)
    result = run(table, "expire_partitions", **OLD)
    assert (result.changed, result.branch, result.snapshot_before, result.snapshot_after) == (True, "main", 7, 8)
    assert result.details["expired"] == {"main": ["dt=2025-01-01", "dt=2025-02-28"]}
    assert (result.details["partitions"], result.details["files"], result.details["rows"]) == (2, 3, 5)
    assert result.details["cutoff"] == "2025-03-01 00:00:00"
    assert result.details["unreadable"] == ["dt=2025-02-31", "dt=someday"]
    assert "2 partitions have no readable time and stay" in result.details["warnings"][0]
    assert "data files are deleted when their snapshots expire" in result.details["note"]
    assert days(table) == ["2025-02-31", "2025-03-01", "2025-03-30", "someday"]
    head = table.snapshot(8)
    assert head.commit_kind == "OVERWRITE"
    assert head.properties["airflow-paimon.operation"] == "expire_partitions"
    again = run(table, "expire_partitions", **OLD)
    assert (again.changed, again.snapshot_before, again.snapshot_after) == (False, 8, 8)


def test_a_dry_run_prints_why_and_changes_nothing(table: Table) -> None:
    result = run(table, "expire_partitions", **OLD, dry_run=True)
    assert (result.changed, result.dry_run) == (True, True)
    (first, _) = result.details["plan"]["actions"]
    assert first["path"] == "main: dt=2025-01-01"
    assert first["reason"] == "its time is 2025-01-01 00:00:00, before 2025-03-01 00:00:00"
    assert result.plan_id == run(table, "expire_partitions", **OLD, dry_run=True).plan_id
    assert len(days(table)) == 6
    assert run(table, "expire_partitions", **OLD).plan_id == result.plan_id


def test_the_oldest_go_first_when_there_is_a_limit(table: Table) -> None:
    assert run(table, "expire_partitions", **OLD, limit=1).details["expired"] == {"main": ["dt=2025-01-01"]}
    result = run(table, "expire_partitions", **{**OLD, "expiration_time": "1 d"}, limit=1)
    assert result.details["expired"] == {"main": ["dt=2025-02-28"]}
    assert result.details["over_limit"] == 1


def test_age_strategy_and_limit_come_from_the_options(tmp_path: Path) -> None:
    options = {"expiration-time": "30 d", "expiration-max-num": "1", "timestamp-formatter": "yyyyMMdd"}
    table = filled(tmp_path, "20250101", "20250201", **{f"partition.{k}": v for k, v in options.items()})
    result = run(table, "expire_partitions", now=NOW)
    assert result.details["expired"] == {"main": ["dt=20250101"]}


def test_a_branch_expires_by_itself(table: Table) -> None:
    run(table, "create_branch", branch="dev", snapshot=6)
    result = run(table, "expire_partitions", branch="dev", **OLD)
    assert result.branch == "dev"
    assert len(days(table)) == 6
    assert days(table.branch("dev")) == ["2025-02-31", "2025-03-01", "2025-03-30", "someday"]


def test_readers_of_a_fallback_branch_are_thought_of(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    run(table, "create_branch", branch="other")
    schema = table.schema()
    read_together = replace(schema, id=1, options={**schema.options, "scan.fallback-branch": "other"})
    table.store.create(table.paths.schema(1), read_together.to_bytes())
    append(table, "2025-01-01")
    assert "read together with branch 'other'" in run(table, "expire_partitions", **OLD).details["warnings"][0]


# -- what the time of a partition is ----------------------------------------------------------------------------


def time_of(values: dict[str, Any], types: dict[str, str], **rule: str) -> datetime | None:
    table = create_table(
        f"memory://{uuid.uuid4()}/wh",
        "d.t",
        [("v", "INT"), *types.items()],
        partition_keys=list(types),
        options={"bucket": "-1"},
    )
    held = PartitionContent(
        key="", values=tuple(values.values()), text="", files=1, rows=1, bytes=1, digest="", updated=None
    )
    made = expiry_rule(table.schema(), "d.t", expiration_time="1 d", **rule)
    return made.time_of(table.schema(), held)


@pytest.mark.parametrize(
    ("values", "rule", "expected"),
    [
        ({"dt": "2025-1-2"}, {}, datetime(2025, 1, 2)),
        ({"dt": "2025-01-02 3:04:05"}, {}, datetime(2025, 1, 2, 3, 4, 5)),
        ({"dt": "2025-01-02 03:04:05.678"}, {}, datetime(2025, 1, 2, 3, 4, 5)),
        ({"dt": "20250102"}, {}, None),
        ({"dt": "2025-13-02"}, {}, None),
        ({"dt": "\u0662\u0660\u0662\u0665-\u0660\u0661-\u0660\u0662"}, {}, None),  # digits that Paimon doesn't take
        ({"dt": "20250102"}, {"formatter": "yyyyMMdd"}, datetime(2025, 1, 2)),
        ({"dt": "20250102", "h": "07"}, {"formatter": "yyyyMMdd"}, datetime(2025, 1, 2)),
        (
            {"dt": "20250102", "h": "07"},
            {"pattern": "$dt $h:00", "formatter": "yyyyMMdd HH:mm"},
            datetime(2025, 1, 2, 7),
        ),
        ({"m": "2025-02"}, {"pattern": "$m-01"}, datetime(2025, 2, 1)),
        ({"d": "x", "dt": "2025-01-02"}, {"pattern": "$dt"}, datetime(2025, 1, 2)),
        ({"year": "2025", "month": "3", "day": "1"}, {"pattern": "$year-$month-$day"}, datetime(2025, 3, 1)),
        ({"dt": None}, {}, None),
        ({"region": None, "dt": "2025-01-02"}, {"pattern": "$dt"}, datetime(2025, 1, 2)),  # as in Paimon 2.0
        ({"dt": "2025-01-02", "region": None}, {}, datetime(2025, 1, 2)),
        ({"dt": "2025-01-02", "h": None}, {"pattern": "$dt $h:00:00"}, None),
        ({"dt": "7.1.2025"}, {"pattern": "$dt"}, None),
    ],
)
def test_times_by_value(values: dict[str, Any], rule: dict[str, str], expected: datetime | None) -> None:
    assert time_of(values, dict.fromkeys(values, "STRING"), **rule) == expected


def test_a_date_column_is_read_as_a_date() -> None:
    assert time_of({"dt": date(2025, 1, 2)}, {"dt": "DATE"}) == datetime(2025, 1, 2)
    assert time_of({"dt": 20250102}, {"dt": "INT"}, formatter="yyyyMMdd") == datetime(2025, 1, 2)


def test_update_time_goes_by_the_newest_file() -> None:
    now = datetime(2025, 3, 31)
    ages = {"new": now, "old": now - timedelta(days=31), "older": now - timedelta(days=40), "?": None}
    held = [
        PartitionContent(key=t, values=(t,), text=t, files=1, rows=1, bytes=1, digest="", updated=updated)
        for t, updated in ages.items()
    ]
    rule = ExpiryRule(strategy="update-time", age=timedelta(days=30))
    schema = make_table(f"memory://{uuid.uuid4()}/wh").schema()
    plan = plan_partition_expiry(schema, held, rule, now - rule.age, 100)
    assert [h.text for h, _ in plan.expired] == ["older", "old"]
    assert [h.text for h in plan.unreadable] == ["?"]
    assert plan.younger == 1


def test_files_tell_when_a_partition_was_updated(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    for millis, seq in ((1_735_700_000_000, 0), (1_735_800_000_000, 1)):
        new = message(table, "x", seq=seq)
        dated = type(new)(
            partition=new.partition,
            bucket=0,
            total_buckets=2,
            new_files=(new.new_files[0]._replace(creation_time_ms=millis),),
        )
        commit_append(table, [dated], planned_on=table.latest_snapshot())
    (held,) = partition_contents(plan_scan(table))
    assert held.updated == datetime(2025, 1, 2, 6, 40)
    result = run(table, "expire_partitions", strategy="update-time", **OLD)
    assert result.details["expired"] == {"main": ["dt=x"]}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "partition.expiration-time"),
        ({"expiration_time": "30"}, "milliseconds"),
        ({"expiration_time": "soon"}, "not a duration"),
        ({"expiration_time": "0 d"}, "everything"),
        ({"expiration_time": "9999999 d"}, "is too long"),
        ({"expiration_time": "1 d", "limit": 0}, "at least 1"),
        ({"expiration_time": "1 d", "min_full_partitions": 2}, "chain tables"),
        ({"expiration_time": "1 d", "timestamp_pattern": "$day"}, "no partition column"),
        ({"expiration_time": "1 d", "timestamp_formatter": "yyyyMM"}, "complete date"),
        ({"expiration_time": "1 d", "strategy": "size"}, "must be one of"),
    ],
)
def test_what_is_not_a_rule_is_refused(table: Table, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        run(table, "expire_partitions", **asked)
    assert len(table.snapshot_ids()) == 6


def test_a_table_without_partitions_has_nothing_to_expire(tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.plain", [("v", "INT")], options={"bucket": "-1"})
    with pytest.raises(InvalidInputError, match="not partitioned"):
        run(table, "expire_partitions", **OLD)
    with pytest.raises(InvalidInputError, match="give expiration_time"):
        expiry_age(None, TableOptions({}), "d.t")


# -- retries, crashes, company ----------------------------------------------------------------------------------


def faulty(table: Table, fault: FaultStore, **values: Any) -> OperationResult:
    warehouse = table.store.uri.rsplit("/", 2)[0]
    request = build_request("expire_partitions", {"warehouse": warehouse, "table": table.name, **values})
    context = open_context(request)
    return perform(Context(request, Table(fault, table.name), context.now_ms, context.started), request)


def fresh() -> Table:
    return filled(f"memory://{uuid.uuid4()}/wh", "2025-01-01", "2025-02-01", "2025-03-30")


def test_a_retry_gives_the_first_result_and_no_second_commit() -> None:
    table = fresh()
    first = run(table, "expire_partitions", **OLD, operation_id="op")
    append(table, "2025-01-01")  # late data is not the retry's business
    forget_results(table)
    again = run(table, "expire_partitions", **OLD, operation_id="op")
    assert again.details["replayed"]
    assert (again.changed, again.plan_id, again.snapshot_after) == (True, first.plan_id, first.snapshot_after)
    assert again.details["expired"] == first.details["expired"]
    assert days(table) == ["2025-01-01", "2025-03-30"]
    with pytest.raises(InvalidInputError, match="another request"):
        run(table, "expire_partitions", **{**OLD, "expiration_time": "2 d"}, operation_id="op")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_every_store_call(after: bool) -> None:
    table = fresh()
    probe = FaultStore(table.store)
    faulty(table, probe, **OLD, operation_id="op")
    for step in range(1, len(probe.mutations) + 1):
        table = fresh()
        with pytest.raises(Crash):
            faulty(table, FaultStore(table.store, step, after=after), **OLD, operation_id="op")
        assert days(table) in (["2025-01-01", "2025-02-01", "2025-03-30"], ["2025-03-30"])
        result = run(table, "expire_partitions", **OLD, operation_id="op")
        assert days(table) == ["2025-03-30"]
        assert result.changed
        assert table.snapshot_ids() == [1, 2, 3, 4]


def test_a_plan_is_gone_on_with_after_a_rollback_by_another_engine() -> None:
    table = fresh()
    append(table, "2025-03-30", seq=1)

    def killed(method: str, path: str) -> None:
        if path.startswith("manifest/"):
            raise Crash

    with pytest.raises(Crash):
        faulty(table, FaultStore(table.store, on_mutation=killed), **OLD, operation_id="op")
    table.store.delete(table.paths.snapshot(4))
    table.store.replace(table.paths.latest_hint, b"3")
    table.store.delete(table.paths.snapshot(1))
    assert run(table, "expire_partitions", **OLD, operation_id="op").changed
    assert days(table) == ["2025-03-30"]


def competing(table: Table, what: Callable[[], object]) -> FaultStore:
    """A store that lets somebody else act right before our snapshot is put."""
    done: list[object] = []

    def compete(method: str, path: str) -> None:
        if method == "create" and "snapshot-" in path and not done:
            done.append(None)
            what()

    return FaultStore(table.store, on_mutation=compete)


def test_late_data_in_what_is_to_go_is_planned_again() -> None:
    table = fresh()
    fault = competing(table, lambda: append(table, "2025-01-01", seq=1))
    result = faulty(table, fault, **OLD, operation_id="op")
    assert days(table) == ["2025-03-30"]
    assert (result.details["files"], result.snapshot_after) == (3, 5)
    assert run(table, "expire_partitions", **OLD, operation_id="op").details["files"] == 3


def test_other_partitions_may_change_meanwhile() -> None:
    table = fresh()
    result = faulty(table, competing(table, lambda: append(table, "2025-03-30", seq=1)), **OLD)
    assert (result.details["files"], result.snapshot_before, result.snapshot_after) == (2, 4, 5)


def test_two_at_once_do_the_work_once() -> None:
    table = fresh()
    others: list[OperationResult] = []
    fault = competing(table, lambda: others.append(run(table, "expire_partitions", **OLD)))
    result = faulty(table, fault, **OLD)
    assert others[0].changed
    assert not result.changed
    assert result.details["commits"] == []
    assert table.snapshot_ids() == [1, 2, 3, 4]


def test_data_that_never_stops_coming_is_a_conflict() -> None:
    table = fresh()
    sequence = iter(range(1, 1000))

    def compete(method: str, path: str) -> None:
        if method == "create" and "snapshot-" in path:
            append(table, "2025-01-01", seq=next(sequence))

    for _ in range(2):  # a retry gets as many attempts as the first try
        with pytest.raises(ConflictError, match="kept changing") as error:
            faulty(table, FaultStore(table.store, on_mutation=compete), **OLD, operation_id="op")
        assert error.value.details["done"] == []
    assert "2025-02-01" in days(table)
    run(table, "expire_partitions", **OLD, operation_id="op")
    assert days(table) == ["2025-03-30"]
