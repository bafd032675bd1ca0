"""What "caught up" means, and what it costs to find out."""

import dataclasses
import json
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.format.snapshot import NO_WATERMARK, CommitKind
from airflow_paimon.core.streaming.catch_up import (
    CatchUpCondition,
    CatchUpState,
    Head,
    PartitionFiles,
    check,
    gather,
    judge,
    parse_catch_up,
)
from airflow_paimon.core.streaming.consumers import keep_from
from airflow_paimon.core.table.table import Table, open_table
from tests.clock import next_millisecond
from tests.core.tables import append, make_table, run
from tests.stores import CountingStore

T0 = 1_780_000_000_000
MINUTE = 60_000


def state(branch: Head | None, main: Head | None = None, *partitions: PartitionFiles) -> CatchUpState:
    return CatchUpState(table="d.t", branch="fix", branch_head=branch, main_head=main, partitions=partitions)


def head(number: int = 5, *, at: int = T0, watermark: int | None = None) -> Head:
    return Head(snapshot_id=number, commit_time_ms=at, watermark_ms=watermark)


def files(branch: dict[str, int], main: dict[str, int]) -> PartitionFiles:
    return PartitionFiles(
        spec="dt=1",
        branch_files=frozenset(branch),
        branch_newest_ms=max(branch.values(), default=None),
        main_files=frozenset(main),
        main_newest_ms=max(main.values(), default=None),
    )


@pytest.mark.parametrize(
    ("condition", "seen", "caught_up"),
    [
        pytest.param({"min_snapshot_id": 5}, state(None), False, id="no snapshot at all"),
        pytest.param({"min_snapshot_id": 5}, state(head(4)), False, id="one short"),
        pytest.param({"min_snapshot_id": 5}, state(head(5)), True, id="just reached"),
        pytest.param({"min_snapshot_id": 5}, state(head(6)), True, id="passed"),
        pytest.param(
            {"max_watermark_lag": "10 min"},
            state(head(watermark=T0), head(watermark=T0 + 10 * MINUTE)),
            True,
            id="watermark at the lag",
        ),
        pytest.param(
            {"max_watermark_lag": "10 min"},
            state(head(watermark=T0), head(watermark=T0 + 10 * MINUTE + 1)),
            False,
            id="watermark beyond the lag",
        ),
        pytest.param(
            {"max_watermark_lag": "10 min"}, state(head(), head(watermark=T0)), False, id="branch has no watermark"
        ),
        pytest.param(
            {"max_watermark_lag": "10 min"}, state(head(watermark=T0), head()), False, id="main has no watermark"
        ),
        pytest.param({"max_watermark_lag": "10 min"}, state(head(), None), True, id="main is empty"),
        pytest.param(
            {"max_watermark_lag": "0 s", "reference_time": T0}, state(head(watermark=T0 - 1)), False, id="given time"
        ),
        pytest.param(
            {"max_watermark_lag": "0 s", "reference_time": T0}, state(head(watermark=T0)), True, id="given time reached"
        ),
        pytest.param(
            {"max_commit_lag": timedelta(minutes=1)}, state(head(at=T0), head(at=T0 + MINUTE)), True, id="commit"
        ),
        pytest.param(
            {"max_commit_lag": "1 min"}, state(head(at=T0), head(at=T0 + MINUTE + 1)), False, id="commit too old"
        ),
        pytest.param(
            {"max_commit_lag": "1 min", "min_snapshot_id": 9}, state(head(5), head(5)), False, id="all must hold"
        ),
        pytest.param({"partitions": ["dt=1"]}, state(head(), head(), files({}, {})), False, id="partition missing"),
        pytest.param(
            {"partitions": ["dt=1"]}, state(head(), head(), files({"a": 1}, {})), True, id="only on the branch"
        ),
        pytest.param(
            {"partitions": ["dt=1"]}, state(head(), head(), files({"a": 1}, {"b": 2})), False, id="main's is newer"
        ),
        pytest.param(
            {"partitions": ["dt=1"]}, state(head(), head(), files({"a": 2}, {"b": 2})), True, id="branch's as new"
        ),
        pytest.param(
            {"partitions": ["dt=1"]}, state(head(), head(), files({"a": 1}, {"a": 1})), True, id="the same files"
        ),
        pytest.param(
            {"partitions": ["dt=1"], "allow_older_partitions": True},
            state(head(), None, files({"a": 1}, {})),
            True,
            id="age does not matter",
        ),
    ],
)
def test_predicate(condition: dict[str, Any], seen: CatchUpState, caught_up: bool) -> None:
    verdict = judge(parse_catch_up(**condition), seen)
    assert verdict.caught_up is caught_up
    assert bool(verdict.waiting_for) is not caught_up


@pytest.mark.parametrize(
    "values",
    [
        {"reference_time": "2026-01-01T00:00:00+00:00"},
        {"reference_time": "2026-01-01T00:00:00+00:00", "partitions": ["dt=1"]},
        {"min_snapshot_id": "five"},
        {"min_snapshot_id": -1},
        {"max_commit_lag": "soon"},
        {"max_commit_lag": timedelta(seconds=-1)},
        {"max_commit_lag": "1 h", "reference_time": "2026-01-01T00:00:00"},
        {"partitions": ["2026-01-01"]},
        {"partitions": ["dt=1/dt=2"]},
    ],
)
def test_malformed_conditions_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        parse_catch_up(**values)


def test_condition_survives_json() -> None:
    condition = parse_catch_up(min_snapshot_id="7", max_commit_lag="1 h", partitions=["dt=1", "dt=2/h=3"])
    assert condition == CatchUpCondition(min_snapshot_id=7, commit_lag_ms=3_600_000, partitions=("dt=1", "dt=2/h=3"))
    assert CatchUpCondition.from_json(condition.to_json()) == condition


def _history(store: CountingStore, length: int, branch: str = "main") -> Table:
    """A branch that is nothing but its snapshot files and hints, which is all that a poke looks at."""
    table = Table(store, "d.t", branch)
    first = table.branch("main").latest_snapshot()
    assert first is not None
    for number in range(1, length + 1):
        store.replace(table.paths.snapshot(number), dataclasses.replace(first, id=number).to_bytes())
    store.replace(table.paths.latest_hint, str(length).encode())
    return table


@pytest.fixture
def counted() -> CountingStore:
    """The store of a table in memory with one commit."""
    table = make_table(f"memory://{uuid.uuid4().hex}")
    append(table, "1")
    return CountingStore(table.store)


@pytest.mark.parametrize("length", [10, 10_000])
def test_a_poke_costs_three_reads_a_branch_however_long_the_history(counted: CountingStore, length: int) -> None:
    _history(counted, length)
    branch = _history(counted, length, "fix")
    before = counted.tally.requests
    verdict = check(branch, parse_catch_up(min_snapshot_id=length, max_commit_lag="1 h", max_watermark_lag="1 h"))
    assert counted.tally.requests - before <= 6
    assert verdict.state.branch_head is not None
    assert verdict.state.branch_head.snapshot_id == length
    before = counted.tally.requests
    check(branch, parse_catch_up(min_snapshot_id=length))
    assert counted.tally.requests - before <= 3


def test_wrong_hints_cost_a_listing_and_no_wrong_answer(counted: CountingStore) -> None:
    table = _history(counted, 50)
    for hint in (b"7", b"999", b"garbage", b""):
        counted.replace(table.paths.latest_hint, hint)
        assert check(table, parse_catch_up(min_snapshot_id=50)).caught_up, hint


def test_missing_branch_is_an_error_and_an_empty_one_is_waited_for(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    with pytest.raises(NotFoundError, match="nope"):
        gather(table.branch("nope"), parse_catch_up(min_snapshot_id=1))
    verdict = check(table, parse_catch_up(min_snapshot_id=1))
    assert verdict.waiting_for == ("branch main has no snapshot yet",)


def test_commits_without_rows_and_compactions_are_no_progress(tmp_path: Path) -> None:
    """Neither the branch's, by which it would seem to have caught up, nor main's, which it could never reach."""
    main = make_table(tmp_path)
    append(main, "1")
    run(main, "create_branch", branch="fix", snapshot=1)
    fix, first = main.branch("fix"), main.find_snapshot(1)
    assert first is not None
    lag = parse_catch_up(max_commit_lag="1 min")

    def commit(table: Table, number: int, minutes: int, rows: int = 0, kind: CommitKind = CommitKind.APPEND) -> None:
        at = first.time_millis + minutes * MINUTE
        made = dataclasses.replace(first, id=number, time_millis=at, delta_record_count=rows, commit_kind=kind)
        table.store.create(table.paths.snapshot(number), made.to_bytes())
        table.store.replace(table.paths.latest_hint, str(number).encode())

    for number in range(2, 100):
        commit(main, number, 10)
    assert check(fix, lag).caught_up and check(fix, parse_catch_up()).caught_up
    commit(main, 100, 10, rows=1)
    commit(fix, 2, 10)
    commit(fix, 3, 11, rows=1, kind=CommitKind.COMPACT)
    (text,) = check(fix, lag).waiting_for
    assert text.startswith("newest commit 20")
    assert not check(fix, parse_catch_up()).caught_up
    commit(fix, 4, 12, kind=CommitKind.OVERWRITE)  # as many rows as before
    assert check(fix, lag).caught_up


def test_a_reader_is_waited_for_by_its_consumer(tmp_path: Path) -> None:
    main = make_table(tmp_path)
    append(main, "1")
    append(main, "2")
    asked = parse_catch_up(consumer="sums", min_snapshot_id="1")
    assert CatchUpCondition.from_json(json.loads(json.dumps(asked.to_json()))) == asked
    (text,) = check(main, asked).waiting_for
    assert text == "consumer sums to pass snapshot 1 (the branch has no such consumer yet)"
    keep_from(main, "sums", 1)
    (text,) = check(main, asked).waiting_for
    assert text == "consumer sums to pass snapshot 1 (it reads snapshot 1 next)"
    keep_from(main, "sums", 2)
    assert check(main, asked).caught_up
    assert not check(main, parse_catch_up(consumer="sums")).caught_up  # main's head is 2
    keep_from(main, "sums", 3)
    assert check(main, parse_catch_up(consumer="sums")).caught_up


def test_a_branch_that_is_waited_for_may_be_made_later(tmp_path: Path) -> None:
    main = make_table(tmp_path)
    append(main, "1")
    condition = parse_catch_up(wait_for_branch=True)
    waits = check(main.branch("fix"), condition)
    assert (waits.waiting_for, waits.to_json()["snapshot_id"]) == (("branch fix, which does not exist yet",), None)
    run(main, "create_branch", branch="fix", snapshot=1)
    assert check(main.branch("fix"), condition).caught_up
    assert not check(main.branch("fix"), parse_catch_up(wait_for_branch=True, min_snapshot_id=2)).caught_up
    with pytest.raises(NotFoundError, match=r"d\.other"):
        check(open_table(str(tmp_path), "d.other", branch="fix"), condition)


def test_long_min_value_is_not_a_watermark(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, "1")
    snapshot = table.latest_snapshot()
    assert snapshot is not None
    table.store.replace(
        table.paths.snapshot(snapshot.id), dataclasses.replace(snapshot, watermark=NO_WATERMARK).to_bytes()
    )
    found = gather(table, parse_catch_up(max_watermark_lag="0 s", reference_time=T0))
    assert found.branch_head is not None
    assert found.branch_head.watermark_ms is None


def test_partitions_of_a_real_branch(tmp_path: Path) -> None:
    main = make_table(tmp_path)
    append(main, "1")
    run(main, "create_branch", branch="fix", snapshot=1)
    branch = main.branch("fix")
    present = parse_catch_up(partitions=["dt=1"])
    assert check(branch, present).caught_up  # the same files
    assert check(branch, parse_catch_up(partitions=["dt=1", "dt=2"])).waiting_for == ("partition dt=2",)
    append(main, "2")
    assert not check(branch, parse_catch_up(partitions=["dt=2"])).caught_up
    with pytest.raises(InvalidInputError, match="partition column"):
        check(branch, parse_catch_up(partitions=["day=1"]))


def test_partitions_that_are_to_be_marked_as_complete(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh")
    append(table, "a")
    condition = parse_catch_up(marked_partitions=["dt=a", "dt=b"])
    assert CatchUpCondition.from_json(json.loads(json.dumps(condition.to_json()))) == condition
    run(table, "mark_partition_done", partitions="dt=b")
    assert check(table, condition).waiting_for == ("partition dt=a to be marked as complete",)
    table.store.create("dt=a/_SUCCESS", b"")  # by another engine, whatever is in it
    assert check(table, condition).caught_up
    several = parse_catch_up(marked_partitions=["dt=b;dt=c"])
    assert check(table, several).waiting_for == ("partition dt=c to be marked as complete",)
    with pytest.raises(InvalidInputError, match="'day' is not a partition column"):
        check(table, parse_catch_up(marked_partitions=["day=1"]))
    with pytest.raises(InvalidInputError, match="at least one key=value"):
        parse_catch_up(marked_partitions=[""])


def test_without_a_condition_a_branch_has_to_catch_up_with_main(tmp_path: Path) -> None:
    main, condition = make_table(tmp_path), parse_catch_up()
    append(main, "1")
    run(main, "create_branch", branch="fix", snapshot=1)
    fix = main.branch("fix")
    assert check(fix, condition).caught_up
    next_millisecond()
    append(main, "2")
    (text,) = check(fix, condition).waiting_for
    assert text.startswith("newest commit 20")
    next_millisecond()
    append(fix, "2")
    assert check(fix, CatchUpCondition.from_json(condition.to_json())).caught_up
    with pytest.raises(InvalidInputError, match="main can't lag behind itself"):
        check(main, condition)
    heads = (Head(snapshot_id=1, commit_time_ms=5, watermark_ms=w) for w in (7, 9))
    state = CatchUpState(table="d.t", branch="fix", branch_head=next(heads), main_head=next(heads))
    assert judge(condition, state).waiting_for[0].startswith("watermark 1970")
