"""What a replay hands to the user's function: upstream tables from the start on, and branches of downstream tables."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import ConflictError, InvalidInputError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import CorrectBranch, ReplayBranch
from airflow_paimon.core.streaming.stream_plan import READ_OVERWRITE, Offset, Position, Start
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import ROW_KIND
from airflow_paimon.spark.datasource import NAME
from airflow_paimon.spark.failures import query_errors, task_errors
from airflow_paimon.spark.jobs.correct_branch import correct_by_rows
from airflow_paimon.spark.jobs.replay_check import Replay, checkpoint_folder
from airflow_paimon.spark.plan_text import aliased
from airflow_paimon.spark.read import read_table
from airflow_paimon.spark.spark_types import spark_schema
from airflow_paimon.spark.streaming.catch_up import catch_up
from airflow_paimon.spark.streaming.source import PaimonStreamReader, StreamOptions
from airflow_paimon.spark.tasks import map_tasks
from airflow_paimon.spark.write import write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)
POLL_S = 5.0
APPEND = "append"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRun:
    """What the tables of one run share. ``options_file``: storage options for Spark's processes; None without any."""

    spark: SparkSession
    request: ReplayBranch
    replay: Replay
    options_file: str | None
    deadline: float
    written: dict[str, dict[str, int]] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    caught_up: dict[str, int] = field(default_factory=dict)

    def next_operation(self, target: str) -> str | None:
        """Name the next write to a target: the same in a re-run, as long as the function writes in the same order."""
        self.calls[target] = number = self.calls.get(target, 0) + 1
        return f"{self.request.operation_id}-{target}-{number}" if self.request.operation_id else None

    def add(self, target: str, batches: int, rows: int) -> None:
        """Count what was written, and log it."""
        found = self.written.setdefault(target, {"batches": 0, "rows": 0})
        found["batches"] += batches
        found["rows"] += rows
        log.info("%s: %d batches, %d rows written", target, found["batches"], found["rows"])

    def read(self, table: Table, version: int | None, columns: Sequence[str] | None, where: str | None) -> DataFrame:
        """Return the rows of a table's branch, of its newest snapshot where there is no ``version``."""
        request = self.request
        return read_table(
            self.spark, request.warehouse, table.name, table.branch_name, version, columns=columns, where=where,
            storage_options=request.storage_options,
        )  # fmt: skip

    def naming(self, table: Table) -> dict[str, str]:
        """Return the options of the data source that name a table."""
        options = {"warehouse": self.request.warehouse, "table": table.name, "branch": table.branch_name}
        return options | ({"storage-options": self.options_file} if self.options_file else {})

    def require_streams(self, what: str) -> None:
        """Refuse a stream in a replay that runs as a batch."""
        if not self.replay.streams:
            raise InvalidInputError(
                f"{self.request.table}: {what} needs a replay by streams: give available_now (--available-now), "
                "until_snapshot (--until-snapshot) or until_watermark (--until-watermark)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySource:
    """An upstream table, or a branch of it. ``start``: the snapshot whose rows the targets contain; 0 = none.

    ``end``: the newest snapshot that a batch reads, the same in a re-run; None in a replay by streams.
    """

    name: str
    table: str
    branch: str
    start: int
    end: int | None
    run: ReplayRun = field(repr=False, compare=False)

    def read(self, columns: Sequence[str] | None = None, where: str | None = None) -> DataFrame:
        """Return all rows at ``end``, or at the newest snapshot."""
        return self.run.read(self._view, self.end or None, columns, where)

    def changes(self) -> DataFrame:
        """Return what came after the start, up to ``end`` or the newest snapshot, with the column ``_row_kind``.

        Snapshots that replaced rows give their exact changes.

        Raises:
            InvalidInputError: the replay has no start. NotFoundError: snapshots have expired.
        """
        run, view = self.run, self._view
        if not run.replay.has_start:
            raise InvalidInputError(
                f"{self.table}: changes() needs tag (--tag), snapshot (--snapshot) or timestamp (--timestamp); or use "
                "read()"
            )
        end = view.snapshot(self.end) if self.end else view.latest_snapshot()
        start = Position(snapshot=self.start, identity=run.replay.record.identities[self.name])
        schema = spark_schema(view.schema().fields).add(ROW_KIND, "string")
        options = StreamOptions(start=Start(), overrides={READ_OVERWRITE: "true"}, row_kind=True)
        reader = PaimonStreamReader(view, schema, options)
        stop = start if end is None else Position(snapshot=end.id, identity=end.identity)
        offsets = [Offset(branch=self.branch, at=at, origin=start).to_json() for at in (start, stop)]
        shares = [[share] for share in reader.partitions(*offsets)]
        found = map_tasks(run.spark, shares, reader.read, schema)
        return aliased(found, view.label, "changes", self.start, stop.snapshot)

    def stream(self, **options: str) -> DataFrame:
        """Return a stream of what came after the start; without a start, of all rows first.

        ``options`` are those of the data source, such as ``stream(**{"row-kind": "true"})``.
        """
        self.run.require_streams(f"sources[{self.name!r}].stream()")
        start: dict[str, str] = {}
        if self.start:
            start = {"scan.mode": "after-snapshot", "scan.snapshot-id": str(self.start)}
        elif self.run.replay.has_start:
            start = {"scan.snapshot-id": "1"}
        reader = self.run.spark.readStream.format(NAME).options(**self.run.naming(self._view))
        return reader.options(**start).options(**options).load()

    @property
    def _view(self) -> Table:
        return self.run.replay.sources[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTarget:
    """A branch of a downstream table."""

    name: str
    table: str
    branch: str
    run: ReplayRun = field(repr=False, compare=False)

    def read(self, columns: Sequence[str] | None = None, where: str | None = None) -> DataFrame:
        """Return the branch's rows as they are now."""
        return self.run.read(self._view, None, columns, where)

    def write(self, rows: DataFrame, mode: str = "overwrite", partitions: Sequence[str] = ()) -> dict[str, Any]:
        """Write a batch as one snapshot and return its result.

        ``overwrite``: ``partitions`` (``dt=2026-11-18``; all of an unpartitioned table) become exactly these rows.
        ``upsert``: by primary key, with ``_row_kind`` deletes as well. ``append``: without a primary key. A re-run with
        the same operation id doesn't write again what an earlier run has written.

        Raises:
            InvalidInputError: the rows don't fit. ConflictError: another writer has changed the same buckets.
        """
        run, request = self.run, self.run.request
        operation = run.next_operation(self.name)
        if mode == APPEND:
            found = self._append(rows, operation)
        else:
            values = {"warehouse": request.warehouse, "storage_options": request.storage_options, "table": self.table,
                      "branch": self.branch, "mode": mode, "partitions": tuple(partitions),
                      "function": request.function, "operation_id": operation}  # fmt: skip
            correction = build_request(CorrectBranch.operation, values)
            assert isinstance(correction, CorrectBranch)
            found = correct_by_rows(run.spark, open_context(correction), correction, rows).to_json()
        run.add(self.name, 1, found["details"].get("rows", 0))
        return found

    def _append(self, rows: DataFrame, operation: str | None) -> dict[str, Any]:
        request = self.run.request
        if self._view.schema().primary_keys:
            raise InvalidInputError(f"{self._view.label} has a primary key: write with mode upsert, not append")
        return write_table(
            rows, request.warehouse, self.table, self.branch, operation_id=operation,
            storage_options=request.storage_options,
        )  # fmt: skip

    def write_stream(self, rows: DataFrame, name: str = "") -> int:
        """Write a stream, exactly once, until it has caught up; returns the number of batches.

        The checkpoint is the replay's: a killed run goes on from it. ``name`` tells several streams into one target
        apart.

        Raises:
            ConflictError: it has not caught up in time; a re-run goes on.
        """
        run = self.run
        run.require_streams(f"targets[{self.name!r}].write_stream()")
        checkpoint = checkpoint_folder(run.request, run.replay, f"{self.name}-{name}" if name else self.name)
        options = {**run.naming(self._view), "checkpointLocation": checkpoint}
        users = set[str]()

        def start() -> StreamingQuery:
            query = rows.writeStream.format(NAME).options(**options).trigger(availableNow=True).start()
            users.add(str(query.id))
            return query

        with query_errors(f"function (--function) {run.request.function}"), task_errors():
            batches = _until_reached(run, start)
        before = run.replay.record.before[self.name]
        own = [s for s in self._view.snapshots() if s.id > before and s.commit_user in users]
        run.add(self.name, len(own), sum(s.delta_record_count or 0 for s in own))
        return batches

    @property
    def _view(self) -> Table:
        return self.run.replay.targets[self.name]


def _until_reached(run: ReplayRun, start: Callable[[], StreamingQuery]) -> int:
    """Run the streams until the sources have reached the point that was asked for, and all up to it has been read."""
    batches = 0
    while True:
        heads = run.replay.heads()
        batches += catch_up(start, max(1.0, run.deadline - time.monotonic()))
        missing = run.replay.goal.missing(heads)
        if not missing:
            read = {name: min(head, run.caught_up.get(name, head)) for name, (head, _) in heads.items()}
            run.caught_up.update(read)
            return batches
        log.info("Caught up with the sources, waiting for them: %s", "; ".join(missing))
        while run.replay.heads() == heads:
            if time.monotonic() >= run.deadline:
                raise ConflictError(f"Timed out waiting for the sources: {'; '.join(missing)}")
            time.sleep(POLL_S)
