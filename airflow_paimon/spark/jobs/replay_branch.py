"""replay_branch: a function or statements over upstream tables, from a point on, into branches of downstream tables."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.context import Context, OperationResult, open_context
from airflow_paimon.core.requests.requests import CorrectBranch, ReplayBranch
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark.datasource import register
from airflow_paimon.spark.jobs.correct_branch import correct_branch
from airflow_paimon.spark.jobs.correction_sources import (
    BRANCH_VIEW,
    MAIN_VIEW,
    as_asked,
    call_function,
    import_function,
)
from airflow_paimon.spark.jobs.replay_check import Replay, keep_record, plan_replay, replay_result
from airflow_paimon.spark.jobs.replay_tables import ReplayRun, ReplaySource, ReplayTarget
from airflow_paimon.spark.source_api import HAS_DATA_SOURCES, require_data_sources
from airflow_paimon.spark.statements.parse import TAKEN, parse_statement
from airflow_paimon.spark.statements.restricted_sql import check_restricted_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def replay_branch(spark: SparkSession, context: Context, request: ReplayBranch) -> OperationResult:
    """Run the user's function or statements into branches.

    A batch reads the same snapshots in each try of its operation id, and doesn't repeat what an earlier try has
    committed. Streams go on from their checkpoints.

    Raises:
        InvalidInputError: the request, the function or a statement is wrong. ConflictError: not caught up in time.
        UnsupportedFeatureError: a replay by streams on Spark 3.5.
    """
    replay = plan_replay(context, request)
    if replay.streams:
        require_data_sources(
            f"{request.table}: a replay by streams", "replay as a batch, with tag (--tag) or snapshot (--snapshot)"
        )
    if request.dry_run:
        return replay_result(context, request, replay, {})
    function = import_function(str(request.function)) if request.function else None
    for text in replay.statements:
        _check_statement(spark, request, text, replay.sources)
    with attempt_of(context, request.branch, as_asked(request), commits=False):
        return _replay(spark, context, request, replay, function)


def _replay(
    spark: SparkSession, context: Context, request: ReplayBranch, replay: Replay, function: object
) -> OperationResult:
    keep_record(request, replay)
    with _options_file(request) as file:
        deadline = time.monotonic() + replay.timeout_s
        run = ReplayRun(spark=spark, request=request, replay=replay, options_file=file, deadline=deadline)
        if function is None:
            _run_statements(run)
        else:
            if HAS_DATA_SOURCES:
                register(spark)
            _run_function(run, function)
    if replay.streams:
        keep_record(request, replay)
    return replay_result(context, request, replay, run.written, run.caught_up)


def _check_statement(spark: SparkSession, request: ReplayBranch, text: str, sources: Collection[str]) -> None:
    if request.restricted_sql:
        check_restricted_sql(spark, request, text, {BRANCH_VIEW, MAIN_VIEW, *sources})
    try:
        statement = parse_statement(spark, text)
    except InvalidInputError as error:
        error.set_message(f"sql (--sql): {error.message}")
        raise
    if statement is None:
        raise InvalidInputError(f"{request.table}: sql (--sql) takes {TAKEN}, not {text[:80]!r}")


def _run_statements(run: ReplayRun) -> None:
    """Run each statement as a correction of the branch, with the sources as views of the snapshots in the record."""
    request, replay = run.request, run.replay
    target = next(iter(replay.targets))
    views = tuple(f"{name}={_pinned(table, replay.record.ends[name])}" for name, table in replay.sources.items())
    with tempfile.TemporaryDirectory() as folder:
        for text in replay.statements:
            file = Path(folder) / "statement.sql"
            file.write_text(text, encoding="utf-8")
            correction = CorrectBranch(
                warehouse=request.warehouse, storage_options=request.storage_options, table=request.table,
                branch=request.branch, sql=str(file), view=views, all_rows=request.all_rows,
                restricted_sql=request.restricted_sql, operation_id=run.next_operation(target),
            )  # fmt: skip
            found = correct_branch(run.spark, open_context(correction), correction)
            run.add(target, int(found.changed), found.details.get("rows", 0))


def _pinned(table: Table, snapshot: int) -> str:
    name = table.name if table.branch_name == MAIN else f"{table.name}$branch_{table.branch_name}"
    return f"{name}@{snapshot}" if snapshot else name


def _run_function(run: ReplayRun, function: object) -> None:
    replay = run.replay
    sources = {
        name: ReplaySource(name=name, table=table.name, branch=table.branch_name, start=replay.record.starts[name],
                           end=None if replay.streams else replay.record.ends[name], run=run)
        for name, table in replay.sources.items()
    }  # fmt: skip
    targets = {
        name: ReplayTarget(name=name, table=table.name, branch=table.branch_name, run=run)
        for name, table in replay.targets.items()
    }
    start = dict(replay.record.starts)
    call_function(str(run.request.function), function, run.spark, sources, targets, start)


@contextmanager
def _options_file(request: ReplayBranch) -> Iterator[str | None]:
    """Keep storage options where Spark's processes on this machine read them, and only this user can."""
    if not request.storage_options or not request.function:
        yield None
        return
    descriptor, name = tempfile.mkstemp(suffix=".json")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(dict(request.storage_options), file)
        yield name
    finally:
        Path(name).unlink(missing_ok=True)
