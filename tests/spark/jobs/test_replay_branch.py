"""replay_branch: statements, batches and streams over a corrected branch of an upstream table."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.errors import ConflictError, InvalidInputError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, parse_timestamp
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.spark.jobs import replay_tables, run_spark_operation
from tests.core.tables import forget_results, run
from tests.spark.jobs.operations import correct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = "tests.spark.jobs.test_replay_branch"
RAW = [("id", "BIGINT NOT NULL"), ("carrier", "STRING"), ("delay", "BIGINT"), ("dt", "STRING NOT NULL")]
DAILY = [("dt", "STRING NOT NULL"), ("carrier", "STRING NOT NULL"), ("delay", "BIGINT")]
Days = Mapping[str, list[tuple[str, int]]]


def flights(raw: Table, dt: str, *delays: tuple[str, int], first: int = 0) -> None:
    write_arrow(
        raw,
        pa.table(
            {
                "id": pa.array(range(first, first + len(delays)), pa.int64()),
                "carrier": [c for c, _ in delays],
                "delay": pa.array([d for _, d in delays], pa.int64()),
                "dt": [dt] * len(delays),
            }
        ),
    )


def totals(table: Table) -> list[tuple[Any, ...]]:
    rows = read_arrow(table).to_pylist()
    return sorted((r["dt"], r["carrier"], r["delay"]) for r in rows)


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[tuple[Table, Table]]:
    """Raw flights and their daily totals, tagged; branches ``fix`` of both. Day 2 of the raw feed is in seconds."""
    raw = create_table(
        str(tmp_path), "d.t", RAW, partition_keys=["dt"], primary_keys=["dt", "id"], options={"bucket": "1"}
    )
    daily = create_table(
        str(tmp_path), "d.daily", DAILY, partition_keys=["dt"], primary_keys=["dt", "carrier"], options={"bucket": "1"}
    )
    flights(raw, "1", ("AA", 5), ("AA", 6), ("UA", 7))
    flights(raw, "2", ("AA", 60), ("UA", 120))
    put_totals(daily, {"1": [("AA", 11), ("UA", 7)], "2": [("AA", 60), ("UA", 120)]})
    for table in (raw, daily):
        run(table, "create_tag", tag="T")
        run(table, "create_branch", branch="fix", tag="T")
    yield raw, daily


def put_totals(daily: Table, days: Days) -> None:
    rows = [(dt, c, d) for dt, found in days.items() for c, d in found]
    write_arrow(daily, pa.table(dict(zip(("dt", "carrier", "delay"), map(list, zip(*rows, strict=True)), strict=True))))


def replay(spark: SparkSession, warehouse: Path, sql: str | None = None, **more: Any) -> OperationResult:
    if sql is not None:
        (warehouse / "replay.sql").write_text(sql)
        more["sql"] = str(warehouse / "replay.sql")
    values = {"warehouse": str(warehouse), "table": "d.daily", "branch": "fix", "source": ["raw=d.t$branch_fix"]}
    return run_spark_operation(spark, build_request("replay_branch", {**values, "tag": "T", **more}))


IN_MINUTES = "UPDATE branch SET delay = delay / 60 WHERE dt = '2'"
AGAIN = """
    INSERT OVERWRITE branch PARTITION (dt = '2') -- not this one: ;
    SELECT carrier, sum(delay) FROM raw WHERE dt = '2' AND carrier <> ';' GROUP BY carrier;
    MERGE INTO branch USING (SELECT '1' AS dt, 'ZZ' AS carrier, 1L AS delay) AS s
    ON branch.dt = s.dt AND branch.carrier = s.carrier WHEN NOT MATCHED THEN INSERT *;
"""
CORRECTED = [("1", "AA", 11), ("1", "UA", 7), ("2", "AA", 1), ("2", "UA", 2)]


def test_statements_while_both_mains_get_other_partitions(
    spark: SparkSession, tmp_path: Path, pipeline: tuple[Table, Table]
) -> None:
    raw, daily = pipeline
    fix = daily.branch("fix")
    correct(spark, tmp_path, IN_MINUTES)
    flights(raw, "3", ("AA", 1))
    put_totals(daily, {"3": [("AA", 1)]})
    assert not replay(spark, tmp_path, AGAIN, dry_run=True, operation_id="op").changed
    result = replay(spark, tmp_path, AGAIN, operation_id="op")
    assert totals(fix) == sorted([*CORRECTED, ("1", "ZZ", 1)])
    assert result.details["sources"]["raw"] == {
        "table": "d.t", "branch": "fix", "start": 2, "caught_up_to": 3, "head": 3,
    }  # fmt: skip
    written = result.details["targets"]["daily"]
    assert (written["batches"], written["snapshot_before"], written["snapshot_after"]) == (2, 1, 3)
    correct(spark, tmp_path, "UPDATE branch SET delay = 0 WHERE dt = '1'")
    again = replay(spark, tmp_path, AGAIN, operation_id="op")
    assert again.to_json() == {**result.to_json(), "details": {**result.details, "replayed": True}}
    forget_results(daily)
    again = replay(spark, tmp_path, AGAIN, operation_id="op")
    assert (again.details["resumed"], again.snapshot_after) == (True, 3), "a retry reads the same snapshots"
    with pytest.raises(InvalidInputError, match="was replayed before with another function"):
        replay(spark, tmp_path, "DELETE FROM branch WHERE dt = '1'", operation_id="op")
    with pytest.raises(InvalidInputError, match=r"sql \(--sql\) takes UPDATE"):
        replay(spark, tmp_path, "SELECT * FROM raw")
    for table in (raw, daily):
        run(table, "merge_branch", branch="fix")
    assert totals(daily) == sorted([*CORRECTED, ("1", "ZZ", 1), ("3", "AA", 1)])
    assert ("3", "AA", 1) in totals(raw)


def in_batches(spark: SparkSession, sources: Any, targets: Any, start: Mapping[str, int]) -> None:
    raw = sources["raw"]
    changed = raw.changes()
    assert {(r["_row_kind"], r["delay"]) for r in changed.collect()} == {("-U", 60), ("+U", 1), ("-U", 120), ("+U", 2)}
    days = [r["dt"] for r in changed.select("dt").distinct().collect()]
    rows = raw.read(where=f"dt IN ({', '.join(map(repr, days))})").groupBy("dt", "carrier").sum("delay")
    named = rows.toDF("dt", "carrier", "delay")
    targets["daily"].write(named, partitions=[f"dt={day}" for day in days])
    targets["log"].write(spark.createDataFrame([(start["raw"],)], "start BIGINT"), mode="append")
    if FAIL:
        FAIL.clear()
        raise ValueError("after two writes")
    assert targets["daily"].read(where="dt = '2'").count() == 2


FAIL: list[bool] = []


def test_a_function_over_changes_into_two_tables(
    spark: SparkSession, tmp_path: Path, pipeline: tuple[Table, Table]
) -> None:
    daily = pipeline[1].branch("fix")
    log = create_table(str(tmp_path), "d.log", [("start", "BIGINT")])
    write_arrow(log, pa.table({"start": pa.array([0], pa.int64())}))
    run(log, "create_branch", branch="fix", snapshot=1)
    correct(spark, tmp_path, IN_MINUTES)
    asked = {"function": f"{HERE}:in_batches", "target": ["log=d.log$branch_fix"], "operation_id": "op"}
    FAIL.append(True)
    with pytest.raises(InvalidInputError, match="after two writes"):
        replay(spark, tmp_path, **asked)
    result = replay(spark, tmp_path, **asked)
    assert totals(daily) == CORRECTED
    assert read_arrow(log.branch("fix")).column("start").to_pylist() == [0, 2], "written once"
    assert {n: t["snapshot_after"] for n, t in result.details["targets"].items()} == {"daily": 2, "log": 2}
    with pytest.raises(InvalidInputError, match="needs a replay by streams"):
        replay(spark, tmp_path, function=f"{HERE}:in_streams")


def in_streams(spark: SparkSession, sources: Any, targets: Any, start: Mapping[str, int]) -> None:
    options = {"row-kind": "true", "streaming-read-overwrite": "true"}
    targets["daily"].write_stream(sources["raw"].stream(**options).select("dt", "carrier", "delay", "_row_kind"))


@pytest.mark.thorough
def test_streams_go_on_from_their_checkpoint(
    spark: SparkSession, tmp_path: Path, pipeline: tuple[Table, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off by the time-out; continued, with what came since; after a rollback of the branch anew: from a time on,
    until a watermark, with checkpoints elsewhere."""
    raw, daily = pipeline
    fix = daily.branch("fix")
    correct(spark, tmp_path, IN_MINUTES)
    asked: dict[str, Any] = {"function": f"{HERE}:in_streams"}
    with pytest.raises(ConflictError, match="within"):
        replay(spark, tmp_path, **asked, until_snapshot=["99"], timeout="0 s")
    flights(raw.branch("fix"), "4", ("AA", 9))
    result = replay(spark, tmp_path, **asked, until_snapshot=["4"])
    assert totals(fix) == [*CORRECTED, ("4", "AA", 9)]
    assert result.details["resumed"]
    assert result.details["sources"]["raw"]["caught_up_to"] == 4
    written = result.details["targets"]["daily"]
    assert (written["batches"], written["snapshot_after"]) in ((1, 2), (2, 3)), (
        "cut off before its first batch or after"
    )
    run(daily, "rollback_to", branch="fix", snapshot=1)
    monkeypatch.setattr(replay_tables, "POLL_S", 0.1)
    corrected = raw.branch("fix").snapshot(3)
    since: dict[str, Any] = {
        "tag": None,
        "timestamp": str(corrected.time_millis),
        "checkpoint": str(tmp_path / "elsewhere"),
        "timeout": "20 min",
    }
    with ThreadPoolExecutor() as pool:
        late = pool.submit(bring_watermark, raw.branch("fix"), fix)
        result = replay(spark, tmp_path, **asked, **since, until_watermark="2026-11-18T00:00:00+00:00")
        late.result()
    assert totals(fix) == [*CORRECTED, ("4", "AA", 9)], "the rows that were rolled back come again"
    source = result.details["sources"]["raw"]
    assert (result.details["resumed"], source["start"], source["caught_up_to"]) == (False, 2, 6)
    assert list((tmp_path / "elsewhere").glob("*/*/daily/commits/0"))


def bring_watermark(source: Table, target: Table) -> None:
    """Commit a watermark that is too low; once the target has all rows, the one that the replay waits for."""
    asked = parse_timestamp("2026-11-18T00:00:00+00:00")
    for watermark in (asked - 1, asked):
        put_watermark(source, watermark)
        deadline = time.monotonic() + 900
        while ("4", "AA", 9) not in totals(target):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def put_watermark(view: Table, watermark: int) -> None:
    schema = view.schema()
    commit(view, lambda _: Draft(kind=CommitKind.APPEND, entries=(), schema=schema, watermark=watermark))
