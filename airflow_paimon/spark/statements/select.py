"""A SELECT on the tables of a warehouse, as a DataFrame: each table in one state, however often it is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.inspect import inspect, takes_version
from airflow_paimon.core.table.manifest_lists import count_live_files
from airflow_paimon.core.table.paths import Identifier, parse_identifier
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.sys_tables import DATABASE as SYS
from airflow_paimon.core.table.sys_tables import sys_table
from airflow_paimon.core.table.table import Table, resolve_version, split_version
from airflow_paimon.data.fallback_branches import PinnedState
from airflow_paimon.data.planner import pin, plan_pinned
from airflow_paimon.data.read_groups import IN_SPARK
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.row_columns import ROW_COLUMNS, with_row_columns
from airflow_paimon.data.system_tables import ROW_TRACKING, WITH_ROWS, check_system_table
from airflow_paimon.spark.arrow_frames import arrow_frame
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.jobs.small_input import FEW_FILES, is_small_view, view_frame
from airflow_paimon.spark.jvm import hiding, kind_of, planned_frame, scala_sequence, sequence_items
from airflow_paimon.spark.spark_types import spark_schema, sql_name
from airflow_paimon.spark.statements.pruning import EVERYTHING, Needed, needed_of, placeholder, united
from airflow_paimon.spark.statements.sql_request import SqlRequest
from airflow_paimon.spark.statements.statement_plan import Fragment
from airflow_paimon.spark.statements.tables import NamedTables, find_table
from airflow_paimon.spark.statements.views import check_view_names, registered, view_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WRITES = ("InsertIntoDir", "InsertIntoStatement")


def query(request: SqlRequest, plan: Any) -> tuple[DataFrame, Sequence[Table]]:
    """Return the rows of a parsed query, and the tables that it names.

    The tables' states are chosen now, their rows are read when Spark asks.

    Raises:
        InvalidInputError: what Spark says is wrong, with its position. NotFoundError: no such table, branch or version.
    """
    check_view_names(request.views)
    spark, views = request.spark, request.views
    tables = QueryTables(
        spark, request.warehouse, request.storage_options, request.statement, database=request.database
    )

    def planned() -> DataFrame:
        frames = {name: tables.view(view) if isinstance(view, str) else view for name, view in views.items()}
        with registered(spark, frames):
            return planned_frame(spark, tables.plan(plan))

    hint = f"; tables of the warehouse {request.warehouse} are named db.table, and SHOW TABLES lists them"
    with query_errors("SELECT", NotFoundError, hint):
        frame = planned()
        return (planned() if tables.learn(frame) else frame), tables.named


def is_query(plan: Any) -> bool:
    """Whether a plan that is no command writes nothing either: INSERT OVERWRITE DIRECTORY is no command to Spark."""
    return kind_of(plan) not in _WRITES and all(is_query(child) for child in sequence_items(plan.children()))


_Key = tuple[str, str, "int | str | None", "int | None"]
"""A table's name and branch, the version and the time at which it is read."""


class QueryTables(NamedTables):
    """The tables that a query names, their system tables included; ``_ROW_ID`` and ``_SEQUENCE_NUMBER`` are not part of
    ``*``.

    A large table is empty when the query is planned first: ``learn`` then says what of it the query needs.
    """

    def __init__(
        self, spark: SparkSession, warehouse: str, storage_options: Mapping[str, Any] | None, text: str, **about: Any
    ) -> None:
        super().__init__(spark, warehouse, storage_options, text, **about)
        self._catalog = partial(open_catalog, warehouse, storage_options)
        self._with_ids = any(name.lower() in text.lower() for name in ROW_COLUMNS)
        self._states: dict[_Key, PinnedState] = {}
        self._placeholders: dict[int, tuple[_Key, TableSchema]] = {}
        self._needed: dict[_Key, Needed] | None = None
        self._system: dict[tuple[Identifier, int | str | None, int | None], DataFrame] = {}

    def view(self, text: str) -> DataFrame:
        """Return the rows of ``db.t``, ``db.t$branch_b``, a system table of them, or either with ``@VERSION``.

        Raises:
            NotFoundError: no such table, branch or version. InvalidInputError: not of that form.
        """
        found = self._frame(text, None, Fragment())
        if found is None:
            name, _ = split_version(text)
            parse_identifier(name)
            raise self._find(name.partition("$")[0]).missing()
        return found

    def learn(self, frame: DataFrame) -> bool:
        """Find out what the planned query needs of large tables; False if that is known, and the query is final."""
        if self._needed is not None or not self._placeholders:
            return False
        found = needed_of(frame, {number: schema for number, (_, schema) in self._placeholders.items()})
        by_key: dict[_Key, list[Needed]] = {key: [] for key, _ in self._placeholders.values()}
        for number, needed in found.items():
            by_key[self._placeholders[number][0]] += needed
        self._needed = {key: united(needed) for key, needed in by_key.items()}
        self._forget()
        return True

    def _forget(self) -> None:
        self._frames.clear()
        self._own_frame = None

    def _plan(self, plan: Any) -> Any:
        """Put columns that ``*`` leaves out above the alias, which would not pass them on."""
        named = ("UnresolvedRelation", "RelationTimeTravel")
        if not self._with_ids or kind_of(plan) != "SubqueryAlias" or kind_of(plan.child()) not in named:
            return super()._plan(plan)
        found = self._relation(plan.child())
        hides = kind_of(found) == "Project"
        aliased = plan.withNewChildren(scala_sequence([found.child() if hides else found]))
        return hiding(aliased, tuple(ROW_COLUMNS)) if hides else aliased

    def _named_plan(self, parts: Any, frame: DataFrame) -> Any:
        plan = super()._named_plan(parts, frame)
        shows = str(parts[-1]).lower().endswith(f"${ROW_TRACKING}")
        hides = self._with_ids and not shows and set(ROW_COLUMNS) & set(frame.columns)
        return hiding(plan, tuple(ROW_COLUMNS)) if hides else plan

    def _frame(self, text: str, travel: Any, at: Fragment) -> DataFrame | None:
        name, version = split_version(text)
        if name.count("$"):
            identifier = parse_identifier(name)
            if identifier.system_table is not None:
                return self._system_frame(identifier, text, version, travel)
        database, _, short = name.partition(".")
        if database.lower() == SYS and version is None and travel is None:
            about = sys_table(self._catalog(), short)
            return None if about is None else arrow_frame(self._spark, about)
        found = super()._frame(text, travel, at)
        if self._with_ids and found is not None and set(ROW_COLUMNS) & set(found.columns):
            self._forget()  # two relations can't have the same hidden columns: the next one gets its own
        return found

    def _system_frame(
        self, identifier: Identifier, text: str, version: int | str | None, travel: Any
    ) -> DataFrame | None:
        table = find_table(self._find, str(replace(identifier, system_table=None)))
        if table is None:
            return None
        version, time = self._moment(table, text, version, travel)
        key = (identifier, version, time)
        if key not in self._system:
            self._named.append(table)
            self._system[key] = self._system_rows(table, str(identifier.system_table), version, time)
        return self._system[key]

    def _system_rows(self, table: Table, system: str, version: int | str | None, time: int | None) -> DataFrame:
        if system.lower() in WITH_ROWS:
            kind = check_system_table(table, system)
            state = self._state(table, version, time)
            return view_frame(self._spark, plan_pinned(state, ReadRequest(system=kind), IN_SPARK))
        if takes_version(system):
            view, snapshot = self._snapshot(table, version, time)
            return arrow_frame(self._spark, inspect(view, system, snapshot))
        if version is not None or time is not None:
            raise InvalidInputError(f"{table.label}: ${system} takes no version")
        return arrow_frame(self._spark, inspect(table, system))

    def _snapshot(self, table: Table, version: int | str | None, time: int | None) -> tuple[Table, Snapshot | None]:
        """Return the snapshot that the table's rows are read at as well."""
        try:
            state = self._state(table, version, time)
        except UnsupportedFeatureError:  # its rows are not read here
            return resolve_version(table, version, time)
        plan = next((p for p in state.states if p.table.branch_name == table.branch_name), state.states[0])
        return plan.table, plan.snapshot

    def _state(self, table: Table, version: int | str | None, time: int | None) -> PinnedState:
        key = (table.name, table.branch_name, version, time)
        if key not in self._states:
            self._states[key] = pin(table, version, time)
        return self._states[key]

    def _read(self, table: Table, version: int | str | None, time: int | None) -> DataFrame:
        state, key = self._state(table, version, time), (table.name, table.branch_name, version, time)
        schema = state.states[0].schema
        columns = view_columns(schema, self._text)
        if columns is not None:
            schema = with_row_columns(schema)
        if sum(count_live_files(s.table, s.snapshot) for s in state.states) <= FEW_FILES:
            planned = plan_pinned(state, ReadRequest(columns=columns), IN_SPARK)
            if is_small_view(f for group in planned.groups for f in group.files):  # whatever the query needs
                return view_frame(self._spark, planned)

        def rows(needed: Needed) -> DataFrame:
            if needed.columns is None or len(needed.columns) == len(schema.fields):
                return self._state_frame(state, columns, needed.predicate)
            read = [n for n in schema.field_names if n in needed.columns] or schema.field_names[:1]
            return _with_nulls(self._state_frame(state, read, needed.predicate), schema)

        return self._pruned(key, schema, rows)

    def _pruned(self, key: _Key, schema: TableSchema, rows: Callable[[Needed], DataFrame]) -> DataFrame:
        """Return what the query needs of a large table, by ``rows``; as long as that isn't known, no row of it."""
        if self._needed is not None:
            return rows(self._needed.get(key, EVERYTHING))
        frame, number = placeholder(self._spark, schema)
        self._placeholders[number] = (key, schema)
        return frame

    def _state_frame(self, state: PinnedState, columns: Sequence[str] | None, predicate: Predicate | None) -> DataFrame:
        planned = plan_pinned(state, ReadRequest(columns=columns, predicate=predicate), IN_SPARK)
        return view_frame(self._spark, planned)


def _with_nulls(frame: DataFrame, schema: TableSchema) -> DataFrame:
    """Return all columns of a table; those that were not read, as nothing needs them, are null."""
    from pyspark.sql import functions as sf

    kinds = spark_schema(schema.fields)
    return frame.select(
        *(
            sf.col(sql_name(f.name)) if f.name in frame.columns else sf.lit(None).cast(f.dataType).alias(f.name)
            for f in kinds
        )
    )
