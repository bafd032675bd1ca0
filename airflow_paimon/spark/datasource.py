"""``spark.read.format("airflow_paimon")`` and ``.write``: tables from SQL, through Spark's Python data source API.

Convenient, and slower than ``read_table`` and ``write_table``: Spark passes no column projection to such a source, and
offers no way to bring the rows of a bucket together before they are written. Needs Spark 4.0.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_paimon.core.chain.guard import parse_on_stale, report_write
from airflow_paimon.core.chain.write_plan import ChainOptions, OnStale
from airflow_paimon.core.commit.committed import verified_commits
from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions
from airflow_paimon.core.commit.idempotency import REFUSALS, Attempt, attempt, digest_of
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.arguments import read_storage_options
from airflow_paimon.core.sql_text.condition import parse_condition
from airflow_paimon.core.streaming.stream_plan import ROW_KIND_OPTION
from airflow_paimon.core.table.merge_options import combines_rows
from airflow_paimon.core.table.partition_values import PartitionSpec
from airflow_paimon.core.table.paths import MAIN, without_system_table
from airflow_paimon.core.table.table import Table, open_table, parse_version, split_version
from airflow_paimon.data.arguments import check_partition
from airflow_paimon.data.arrow_write import commit_or_discard_write, parse_write_mode
from airflow_paimon.data.chain.branch_states import chain_read_mode, parse_gap_policy
from airflow_paimon.data.compact_keyed import compact_written
from airflow_paimon.data.files.arrow_types import ROW_KIND
from airflow_paimon.data.planner import plan_rows, read_schema
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.row_columns import with_row_columns
from airflow_paimon.data.system_tables import check_system_table, system_fields
from airflow_paimon.data.task_messages import merged_messages
from airflow_paimon.data.where import to_expression
from airflow_paimon.data.write import TableWrite, WriteMode, plan_write, write_rows
from airflow_paimon.spark.char_columns import schema_with_chars
from airflow_paimon.spark.rows_in import check_columns, conform_for
from airflow_paimon.spark.shares import read_share, task_shares
from airflow_paimon.spark.source_api import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
    require_data_sources,
)
from airflow_paimon.spark.spark_types import spark_schema
from airflow_paimon.spark.streaming.sink import OTHER_ROWS, SPARK_OPTIONS, plan_stream_writer
from airflow_paimon.spark.streaming.source import READ_OPTIONS, PaimonStreamReader, flag, parse_stream_options
from airflow_paimon.spark.tasks import forgetting_zip_importers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

NAME = "airflow_paimon"
OPTIONS = (
    "warehouse", "table", "path", "branch", "version", "timestamp", "columns", "where", "mode", "partition",
    "operation-id", "storage-options", "gap-policy", "chain-read", "on-stale", "writers-stopped", "scan.branch",
)  # fmt: skip
NAMING = ("warehouse", "table", "path", "branch", "scan.branch", "storage-options")
SCAN_POINTS = ("scan.snapshot-id", "scan.tag-name", "scan.version", "scan.timestamp", "scan.timestamp-millis")
"""Paimon's names for the options ``version`` and ``timestamp``, for a batch read."""
STREAM_READ = (*NAMING, "columns", *READ_OPTIONS)
STREAM_WRITE = (*NAMING, *SPARK_OPTIONS, OTHER_ROWS)
BATCH_READ = (*OPTIONS, *SCAN_POINTS)
ANY_OPTION = tuple(dict.fromkeys((*BATCH_READ, *STREAM_READ)))
"""For the schema, which Spark asks for without saying whether it is going to read a stream."""
_OF_CREATE_TABLE = ("owner", "option.warehouse", "option.table", "option.path")
"""What Spark gives besides when CREATE TABLE asks for the columns."""
_NAMED = (
    f"Spark hands over no options of a table that CREATE TABLE ... USING {NAME} or saveAsTable makes. Use "
    f"CREATE TEMPORARY VIEW orders USING {NAME} OPTIONS (warehouse '...', table 'sales.orders'), which "
    f"spark.read.table and INSERT take"
)


def register(spark: SparkSession) -> None:
    """Make the format ``airflow_paimon`` known to a session.

    Raises:
        UnsupportedFeatureError: Spark 3.5 has no Python data sources.
    """
    require_data_sources(f"The format {NAME}", "read and write with read_table, write_table and sql")
    spark.dataSource.register(PaimonDataSource)


class PaimonDataSource(DataSource):
    """``version`` of digits is a snapshot id, and ``scan.snapshot-id``, ``scan.tag-name`` and the like of Paimon do the
    same for a table with the columns of today; ``partition`` is JSON or ``dt=2025-01-01``; ``columns`` are separated by
    commas; ``where`` is a condition that ``parse_condition`` takes; ``storage-options`` names a JSON file of
    the driver's machine. Of two rows with one key that come from different tasks either may win, unless
    ``sequence.field`` decides.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    @forgetting_zip_importers()
    def schema(self) -> StructType:
        self._check(ANY_OPTION)
        schema, system = read_schema(self._open(), self._version(), self._get("timestamp")), self._system_table()
        shown = with_row_columns(schema).fields
        if system is not None:
            shown = system_fields(check_system_table(self._open(), system), schema)
        fields = {f.name: f for f in shown}
        names = self._columns() or (schema.field_names if system is None else list(fields))
        unknown = [n for n in names if n not in fields]
        if unknown:
            raise InvalidInputError(f"There is no column {unknown[0]!r} (columns: {', '.join(schema.field_names)})")
        found = schema_with_chars([fields[n] for n in names])
        return found.add(ROW_KIND, "string") if flag(self.options, ROW_KIND_OPTION) else found

    @forgetting_zip_importers()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check(STREAM_READ, "as the source of a stream ")
        given = {name: text for name in READ_OPTIONS if (text := self.options.get(name)) is not None}
        return PaimonStreamReader(self._open_head(), schema, parse_stream_options(given))

    @forgetting_zip_importers()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        self._check(STREAM_WRITE, "as the target of a stream ")
        other_rows = flag(self.options, OTHER_ROWS)
        return plan_stream_writer(self._open_head(), schema, overwrite, other_rows=other_rows)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(BATCH_READ)
        policy = parse_gap_policy(self._get("gap-policy") or "empty")
        table, (version, timestamp) = self._open(), self._point()
        mode = chain_read_mode(table, version, self._get("chain-read") or "full")
        system = self._system_table()
        request = ReadRequest(
            version=version,
            timestamp=timestamp,
            columns=schema.fieldNames(),
            mode=mode,
            gap_policy=policy,
            system=None if system is None else check_system_table(table, system),
        )
        return PaimonReader(table, request, self._get("where"))

    @forgetting_zip_importers()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        self._check(OPTIONS)
        table, partition = self._open_head().require(), self._partition()
        mode = parse_write_mode(table, self._mode(overwrite), partition)
        policy = parse_on_stale(table, self._get("on-stale"))
        require_committable(table)
        stored = table.schema()
        if partition is not None:
            check_partition(table, stored, partition)
        check_columns(schema, stored, table.label, partial=mode.name == "append" and combines_rows(stored))
        columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        request = digest_of([mode.name, partition, columns])
        stopped = flag(self.options, "writers-stopped")
        where = table, self._get("operation-id"), table.branch_name, request
        with attempt(*where, writers_stopped=stopped) as tried:
            committed, plan = tried.committed(NAME), None
            if committed is None:
                plan = plan_write(table, overwrite=mode.overwrites, chained=True, tasks_share_buckets=True)
        return PaimonWriter(table, plan, mode, tried, policy, committed, stopped)

    def _point(self) -> tuple[int | str | None, str | None]:
        """Return version and timestamp of a batch read."""
        version, timestamp = self._version(), self._get("timestamp")
        points = {name: text.strip() for name in SCAN_POINTS if (text := self._get(name)) is not None}
        if not points:
            return version, timestamp
        (name, text), *more = points.items()
        if more or version is not None or timestamp is not None:
            raise InvalidInputError(f"The option {name} names a snapshot, and so does another option; give one of them")
        if name == "scan.snapshot-id" and not text.isdigit():
            raise InvalidInputError(f"The option scan.snapshot-id is a snapshot id, not {text!r}")
        timestamp = text if "timestamp" in name else None
        version = None if timestamp is not None else text if name == "scan.tag-name" else parse_version(text)
        self._check_columns_at(name, version, timestamp)
        return version, timestamp

    def _check_columns_at(self, name: str, version: int | str | None, timestamp: str | None) -> None:
        """Spark has asked for the columns before it said whether this is a stream, which has those of today."""
        table = self._open()
        now, then = (spark_schema(s.fields) for s in (table.schema(), read_schema(table, version, timestamp)))
        if now != then:
            instead = f"version={version}" if timestamp is None else f"timestamp={timestamp}"
            raise InvalidInputError(
                f"{table.label} had other columns than today where {name} points to; give the option {instead} instead"
            )

    def _get(self, name: str) -> str | None:
        return self.options.get(name)

    def _check(self, allowed: Sequence[str], use: str = "") -> None:
        known = {name.lower() for name in allowed}
        unknown = sorted(o for o in self.options if o.lower() not in known)
        if any(o.lower() in _OF_CREATE_TABLE for o in unknown):
            raise UnsupportedFeatureError(f"CREATE TABLE: {_NAMED}; airflow_paimon.create_table makes tables")
        if unknown:
            raise InvalidInputError(f"{NAME} {use}has no option {unknown[0]!r}; it has {', '.join(allowed)}")

    def _open(self) -> Table:
        file = self._get("storage-options")
        options = read_storage_options(file) if file else None
        path, branch = self._get("path"), self._get("branch") or self._get("scan.branch") or MAIN
        warehouse, name = self._get("warehouse"), self._get("table")
        if path is not None and warehouse is None and name is None:
            return open_table(branch=branch, storage_options=options, path=path)
        if path is None and warehouse is None and name is None:
            raise InvalidInputError(f"{NAME} needs the options warehouse and table, or path alone. {_NAMED}")
        if path is not None or warehouse is None or name is None:
            raise InvalidInputError(f"{NAME} needs the options warehouse and table, or path alone")
        return open_table(warehouse, without_system_table(split_version(name)[0])[0], branch, options)

    def _system_table(self) -> str | None:
        name = self._get("table")
        return None if name is None else without_system_table(split_version(name)[0])[1]

    def _open_head(self) -> Table:
        if self._version() is not None:
            raise InvalidInputError(
                f"{NAME}: only a batch read takes a version ({self._version()}); writes and streams start from the "
                "head of a branch"
            )
        if self._system_table() is not None:
            raise InvalidInputError(f"{NAME}: {self._get('table')} is a system table, which only a batch read takes")
        return self._open()

    def _version(self) -> int | str | None:
        text, name = self._get("version"), self._get("table")
        named = None if name is None else split_version(name)[1]
        if text is not None and named is not None:
            raise InvalidInputError(f"The table {name} and the option version={text} name two versions; give one")
        return named if text is None else parse_version(text)

    def _columns(self) -> list[str]:
        return [c.strip() for c in (self._get("columns") or "").split(",") if c.strip()]

    def _mode(self, overwrite: bool) -> str:
        mode = self._get("mode")
        if mode is None:
            return "overwrite" if overwrite else "append"
        if mode == "append" and overwrite:
            raise InvalidInputError("The option mode=append contradicts .mode('overwrite')")
        return mode

    def _partition(self) -> PartitionSpec | None:
        text = self._get("partition")
        if text is None:
            return None
        if not text.lstrip().startswith("{"):
            return text
        try:
            found = json.loads(text)
        except ValueError:
            raise InvalidInputError(f"The option partition is not a JSON object: {text!r}") from None
        return dict(found)


@dataclass
class PaimonReader(DataSourceReader):
    """Plans in a Python process next to the driver; each task reads its share of the splits."""

    table: Table
    request: ReadRequest
    where: str | None

    @forgetting_zip_importers()
    def partitions(self) -> Sequence[InputPartition]:
        table, request = self.table, self.request
        if self.where is not None:
            schema = with_row_columns(read_schema(table, request.version, request.timestamp))
            condition = parse_condition(self.where, schema)
            request = replace(request, where=to_expression(condition, schema), predicate=condition)
        planned = plan_rows(table, request)
        return [InputPartition(share) for share in task_shares(planned)] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return
        with forgetting_zip_importers():
            yield from read_share(partition.value)


@dataclass(frozen=True)
class TaskFiles(WriterCommitMessage):
    """The files that one task wrote."""

    messages: tuple[CommitMessage, ...]


@dataclass(frozen=True)
class PaimonWriter(DataSourceArrowWriter):
    """Each task writes the buckets for its rows; the driver commits once.

    ``plan`` None: an earlier try with this operation id was ``committed``.
    """

    table: Table
    plan: TableWrite | None
    mode: WriteMode
    tried: Attempt
    on_stale: OnStale | None
    committed: Snapshot | None
    writers_stopped: bool

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        write = self.plan
        if write is None:
            for _ in iterator:
                pass
            return TaskFiles(())
        with forgetting_zip_importers():
            return TaskFiles(tuple(write_rows(write, (conform_for(write, b) for b in iterator))))

    @forgetting_zip_importers()
    @verified_commits()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        committed = self.committed
        if self.plan is not None:
            files = merged_messages(self.plan, [t.messages for t in messages if isinstance(t, TaskFiles)])
            options = CommitOptions(
                identity=self.tried.identity(NAME),
                guard_options=ChainOptions(on_stale=self.on_stale),
                writers_stopped=self.writers_stopped,
            )
            try:
                committed = commit_or_discard_write(self.table, self.plan, files, self.mode, options)[0].snapshot
            except REFUSALS:
                self.tried.forget()
                raise
        compact_written(self.table, committed, writers_stopped=self.writers_stopped)
        for name, report in report_write(self.table, committed).items():
            log.warning("%s: %s: %s", self.table.label, name, report)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Keep the files: Spark calls this also after a failed commit, which may have been committed."""
