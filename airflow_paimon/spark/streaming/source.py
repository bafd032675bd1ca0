"""``spark.readStream.format("airflow_paimon")``: the rows, or the changes, that come to a branch.

One ``PaimonStreamReader`` lives in a Python process next to the driver for as long as a query runs; it knows the
position. Tasks get copies, which only read.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.streaming.consumers import check_consumer_id, claim_consumer, keep_from, refresh_consumer
from airflow_paimon.core.streaming.stream import StepUnits, Stream, UnitsKey
from airflow_paimon.core.streaming.stream_plan import (
    READ_APPEND_OVERWRITE,
    READ_OVERWRITE,
    ROW_KIND_OPTION,
    START_OPTIONS,
    Offset,
    Position,
    Start,
    parse_offset,
    parse_start,
    stream_rules,
)
from airflow_paimon.core.table.options import parse_boolean, parse_duration
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.changes import ChangeRead, plan_changes, rows_of_changes
from airflow_paimon.data.files.arrow_types import ROW_KIND
from airflow_paimon.data.row_columns import with_row_columns
from airflow_paimon.spark.source_api import (
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from airflow_paimon.spark.spark_types import shipped_schema, spark_schema, to_shipped
from airflow_paimon.spark.tasks import OPEN_COST_BYTES, forgetting_zip_importers, pack, share_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

POLL_INTERVAL = "1 s"
REFRESH_S = 60.0
"""Seconds after which an idle stream writes its consumer again."""
READ_OPTIONS = (
    *START_OPTIONS, READ_OVERWRITE, READ_APPEND_OVERWRITE, ROW_KIND_OPTION, "maxFilesPerTrigger", "consumer-id",
    "consumer.ignore-progress", "poll-interval",
)  # fmt: skip
"""Options that only a stream has, besides those that name the table and ``columns``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What was asked for. ``overrides``: the table options that the stream overrides; ``poll_s``: seconds."""

    start: Start
    overrides: Mapping[str, str]
    row_kind: bool = False
    max_files: int | None = None
    consumer: str | None = None
    ignore_progress: bool = False
    poll_s: float = 1.0


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Read a stream's options; keys are those of ``READ_OPTIONS``.

    Raises:
        InvalidInputError: a value that is not allowed.
    """
    files = options.get("maxFilesPerTrigger")
    if files is not None and not (files.strip().isdigit() and int(files) > 0):
        raise InvalidInputError(f"The option maxFilesPerTrigger is a number of files above 0, not {files!r}")
    consumer = options.get("consumer-id")
    return StreamOptions(
        start=parse_start(options),
        overrides={k: options[k] for k in (READ_OVERWRITE, READ_APPEND_OVERWRITE) if k in options},
        row_kind=flag(options, ROW_KIND_OPTION),
        max_files=None if files is None else int(files),
        consumer=None if consumer is None else check_consumer_id(consumer),
        ignore_progress=flag(options, "consumer.ignore-progress"),
        poll_s=parse_duration(options.get("poll-interval", POLL_INTERVAL), "poll-interval").total_seconds(),
    )


def flag(options: Mapping[str, str], name: str) -> bool:
    """Read an option that is true or false; false by default."""
    return parse_boolean(options.get(name, "false"), f"The option {name}")


class PaimonStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """``schema``: of the rows, as when the query was started.

    Since Spark 4.2 it is told where a batch starts and how much it may take, and ``Trigger.AvailableNow`` goes on until
    what was there at its start has been read. Before, the position is that of the last batch, and such a run makes one
    batch.
    """

    def __init__(self, table: Table, schema: StructType, options: StreamOptions) -> None:
        self._table = table
        self._schema = schema
        self._options = options
        self._columns = [n for n in schema.fieldNames() if n != ROW_KIND]
        self._last: dict[str, Any] | None = None
        self._origin: Position | None = None
        self._next: tuple[float, object, dict[str, Any]] | None = None
        self._bounded = False
        self._until: Position | None = None
        self._refreshed: float | None = None
        self._known: dict[UnitsKey, StepUnits] = {}
        self._stream()  # refuses a table that can't be streamed before the query runs

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}  # tasks get what they read with their partitions

    @forgetting_zip_importers()
    def initialOffset(self) -> dict[str, Any]:
        return Offset(branch=self._table.branch_name).to_json()

    @forgetting_zip_importers()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Spark asks for this about 90 times a second while nothing is new; before 4.2 without saying the start."""
        now, question = time.monotonic(), (start, limit)
        if self._next is None or now >= self._next[0] or self._next[1] != question:
            self._next = now + self._options.poll_s, question, self._latest(start, limit)
        return self._next[2]

    def getDefaultReadLimit(self) -> Any:
        files = self._options.max_files
        return ReadAllAvailable() if files is None else ReadMaxFiles(files)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the run read what is there when it first asks, so that it ends beside a writer that never pauses."""
        self._bounded = True

    def _latest(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        self._refresh()
        last = start or self._last or self.initialOffset()
        read = parse_offset(last, self._table.branch_name)
        stream = self._stream()
        if limit is not None:  # that of the options, or all for Trigger.Once
            stream = replace(stream, max_files=getattr(limit, "max_files", None))
        origin = read.origin
        if read.at is None:
            origin = self._origin = self._origin or stream.origin(self._options.start)
        if self._bounded and self._until is None:  # after the origin of a new stream, which must not lie behind it
            self._until = stream.newest()
        end = stream.next_end(read.at or origin, self._until)
        return last if end is None else Offset(branch=read.branch, at=end, origin=origin).to_json()

    def _refresh(self) -> None:
        """Only batches with changes move the consumer; without this that of an idle stream looks unused."""
        now = time.monotonic()
        if self._options.consumer is not None and (self._refreshed is None or now >= self._refreshed + REFRESH_S):
            refresh_consumer(self._table, self._options.consumer)
            self._refreshed = now

    @forgetting_zip_importers()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._last, self._next = dict(end), None
        to = parse_offset(end, self._table.branch_name)
        since = parse_offset(start, self._table.branch_name)
        if to.at is None or start == end:
            return []
        if since.at is None and self._options.consumer is not None:
            # only now: the first batch is in Spark's log, so a repetition of it has the same start
            ignores = self._options.ignore_progress
            claim_consumer(self._table, self._options.consumer, to.origin.needs, ignore_progress=ignores)
        stream = self._stream()
        groups = plan_changes(stream, since.at or to.origin, to.at, self._columns)
        total = sum(map(_weight, groups))
        shares = pack(groups, _weight, share_of(total))
        return [InputPartition(pickle.dumps(share, pickle.HIGHEST_PROTOCOL)) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with forgetting_zip_importers():
            target = None
            for found in (one for group in pickle.loads(partition.value) for one in group):
                for batch in rows_of_changes(found, self._columns, self._options.row_kind):
                    target = target or self._shipped(found)
                    yield to_shipped(batch, target)

    def _shipped(self, found: ChangeRead) -> pa.Schema:
        fields = {f.name: f for f in with_row_columns(found.read.schema).fields}
        target = shipped_schema(fields[n] for n in self._columns)
        return target.append(pa.field(ROW_KIND, pa.string())) if self._options.row_kind else target

    @forgetting_zip_importers()
    def commit(self, end: dict[str, Any]) -> None:
        """Let snapshots expire that ``end`` doesn't need."""
        at = parse_offset(end, self._table.branch_name).at
        if self._options.consumer is not None and at is not None:
            keep_from(self._table, self._options.consumer, at.needs)

    def _stream(self) -> Stream:
        schema = self._table.schema()
        known = {f.name: f for f in with_row_columns(schema).fields}
        gone = [n for n in self._columns if n not in known]
        wanted = self._schema.fields[: len(self._columns)]
        types = [] if gone else [f.dataType for f in spark_schema(known[n] for n in self._columns)]
        if types != [f.dataType for f in wanted]:
            raise InvalidInputError(
                f"{self._table.label}: its columns have changed since the stream was "
                f"started{f': {gone[0]} was dropped' if gone else ''}; start the query again"
            )
        options, branch = self._options, self._table.branch_name
        rules = stream_rules(schema, options.overrides, options.row_kind, self._table.label, branch)
        return Stream(
            table=self._table, schema=schema, rules=rules, max_files=self._options.max_files, known=self._known
        )


def _weight(group: tuple[ChangeRead, ...]) -> int:
    return sum(f.file_size + OPEN_COST_BYTES for read in group for f in read.files)
