"""CREATE TABLE, with or without AS SELECT, and what of REPLACE TABLE can be one commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.commit.committer import CommitIdentity, Receipt
from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    PaimonError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataType, with_nullable
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.schema.schema_plan import new_schema
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.features import check_writable
from airflow_paimon.core.table.known_options import unknown_options
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table, open_or_place
from airflow_paimon.data.arguments import check_operation_id
from airflow_paimon.data.write import TableWrite, WriteMode
from airflow_paimon.spark.jvm import kind_of, mapping_of, option_of, sequence_items, type_of_json
from airflow_paimon.spark.rows_in import check_frame
from airflow_paimon.spark.spark_types import paimon_type
from airflow_paimon.spark.statements.errors import sql_errors
from airflow_paimon.spark.statements.figures import OPERATION
from airflow_paimon.spark.statements.select import query
from airflow_paimon.spark.statements.sql_request import SqlRequest, parts_of
from airflow_paimon.spark.statements.written import write_query, write_statement
from airflow_paimon.spark.truncated_times import lossy, truncated_columns
from airflow_paimon.spark.write import write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CREATE = "CREATE TABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """The table that a statement describes. ``columns``: none yet where a query gives them."""

    name: str
    columns: Sequence[tuple[str, DataType]] = ()
    comments: Mapping[str, str] = field(default_factory=dict)
    partition_keys: Sequence[str] = ()
    primary_keys: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None

    def schema(self) -> TableSchema:
        """Return schema 0 of the table."""
        return new_schema(self.columns, **self._rest())

    def create(self, request: SqlRequest, if_exists: str = "fail") -> Table:
        """Create the table; the errors are those of ``create_table``."""
        return create_table(
            request.warehouse,
            self.name,
            self.columns,
            if_exists=if_exists,
            storage_options=request.storage_options,
            **self._rest(),
        )

    def _rest(self) -> dict[str, Any]:
        return {
            "partition_keys": self.partition_keys,
            "primary_keys": self.primary_keys,
            "options": self.options,
            "comment": self.comment,
            "comments": self.comments,
        }


def _create(request: SqlRequest, plan: Any) -> dict[str, Any]:
    started = time.monotonic()
    new = _new_table(request, plan, _columns(plan))
    if not plan.ignoreIfExists():
        try:
            return _created(new.create(request), True, started)
        except AlreadyExistsError as error:
            raise _exists(new) from error
    known = _existing(request, new)
    try:
        made = new.create(request, "skip")  # which also makes known to the catalog what an earlier try left
    except AlreadyExistsError:
        if known is None:
            raise
        made = known
    return _created(made, known is None, started)


def _created(table: Table, changed: bool, started: float) -> dict[str, Any]:
    schema = table.schema()
    details: dict[str, Any] = {
        "statement": CREATE,
        "schema_id": schema.id,
        "columns": [f"{f.name} {f.type}" for f in schema.fields],
    }
    if changed:
        details |= _warnings(schema)
    else:
        details["notes"] = [f"{table.name} exists; IF NOT EXISTS left it as it is"]
    return OperationResult(
        operation=OPERATION,
        table=table.name,
        branch=MAIN,
        changed=changed,
        details=details,
        duration_s=time.monotonic() - started,
    ).to_json()


def _warnings(schema: TableSchema) -> dict[str, list[str]]:
    found = unknown_options(schema.options)
    return {"warnings": found} if found else {}


def _exists(new: NewTable) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"{CREATE}: {new.name} exists; CREATE TABLE IF NOT EXISTS leaves it as it is, and INSERT INTO or INSERT "
        f"OVERWRITE writes into it"
    )


def _create_as(request: SqlRequest, plan: Any) -> dict[str, Any]:
    started = time.monotonic()
    described = _new_table(request, plan, ())
    known = _existing(request, described)
    if known is not None and plan.ignoreIfExists():
        return _created(known, False, started)
    frame, _ = _query(request, plan)
    new = _with_columns(described, frame)
    if known is not None and not _is_own(request, known, new):
        raise _exists(new)
    _check_rows(new, frame)
    table = known or new.create(request)
    try:
        return _fill(request, table, frame, "append", f"{CREATE} AS SELECT", started)
    except PaimonError as error:
        if known is not None:
            raise
        left = f"{new.name} was created and has no rows of this statement: continue with INSERT INTO {new.name}"
        raise type(error)(f"{error.message}. {left}", details=error.details) from error


def _replace(request: SqlRequest, plan: Any) -> dict[str, Any]:
    """A table's columns and rows can't be replaced in one commit, so only a statement that keeps the columns is run."""
    started = time.monotonic()
    with_rows = kind_of(plan) == "ReplaceTableAsSelect"
    described = _new_table(request, plan, () if with_rows else _columns(plan))
    known = _existing(request, described)
    if known is None:
        if not plan.orCreate():
            raise _missing(request, described)
        return _fresh(request, plan, described, with_rows, started)
    if not with_rows:
        raise UnsupportedFeatureError(
            f"REPLACE TABLE {known.name}: columns and rows of a table can't be replaced in one commit. Change the "
            f"columns with ALTER TABLE, and the rows with DELETE FROM or INSERT OVERWRITE"
        )
    frame, read = _query(request, plan)
    if any((t.name, t.branch_name) == (known.name, MAIN) for t in read):
        raise UnsupportedFeatureError(
            f"REPLACE TABLE {known.name} reads the table that it replaces, and could lose what is written meanwhile; "
            f"write INSERT OVERWRITE {known.name} SELECT ..., which checks for that"
        )
    if not _same(known.schema(), _with_columns(described, frame).schema()):
        raise UnsupportedFeatureError(
            f"REPLACE TABLE {known.name} AS SELECT: columns, keys, comment or properties would change with the rows, "
            "which one commit can't do and keep the history. Change the table with ALTER TABLE, then write INSERT "
            f"OVERWRITE {known.name} SELECT ..."
        )
    if not request.all_rows:
        raise InvalidInputError(f"REPLACE TABLE {known.name} replaces every row; confirm with all_rows=True")
    _check_rows(_with_columns(described, frame), frame)
    return _fill(request, known, frame, "overwrite", "REPLACE TABLE AS SELECT", started)


def _fresh(request: SqlRequest, plan: Any, described: NewTable, with_rows: bool, started: float) -> dict[str, Any]:
    if not with_rows:
        return _created(described.create(request), True, started)
    frame, _ = _query(request, plan)
    new = _with_columns(described, frame)
    _check_rows(new, frame)
    return _fill(request, new.create(request), frame, "append", f"{CREATE} AS SELECT", started)


def _query(request: SqlRequest, plan: Any) -> tuple[DataFrame, Sequence[Table]]:
    return query(request, plan.query())


def _with_columns(new: NewTable, frame: DataFrame) -> NewTable:
    """Return the table with the columns of a query; all are nullable, as Spark has it, but those of the key."""
    columns = [(f.name, _typed(f.name, f.dataType, True)) for f in frame.schema.fields]
    return replace(new, columns=columns)


def _check_rows(new: NewTable, frame: DataFrame) -> None:
    """Refuse before the table is made what its first write would refuse."""
    schema = new.schema()
    check_writable(schema, table=new.name)
    check_frame(frame, schema, new.name)
    times = {f.name for f in schema.fields if "TIMESTAMP" in str(f.type)}
    for lost in truncated_columns(frame, times):
        raise lossy(new.name, lost)


def _fill(request: SqlRequest, table: Table, frame: DataFrame, mode: str, kind: str, started: float) -> dict[str, Any]:
    """Write the rows of a query as one commit, whose errors are told of the statement."""
    check_operation_id(table, request.operation_id)

    def files(write: TableWrite) -> Sequence[CommitMessage]:
        with sql_errors(f"{kind} {table.name}"):
            return write_files(frame, write)

    def write(identity: CommitIdentity) -> tuple[Receipt, Mapping[str, Any]]:
        return write_query(request, table, WriteMode(mode), identity, files)

    schema = table.schema()
    details = {"statement": kind, "schema_id": schema.id, **_warnings(schema)}
    result = write_statement(request, table, details, write, started)
    return {**result, "changed": result["changed"] or mode == "append"}


def _existing(request: SqlRequest, new: NewTable) -> Table | None:
    """Return the table of that name, None if there is none.

    Raises:
        NotFoundError: the catalog has no such database.
    """
    found = open_or_place(request.warehouse, new.name, request.storage_options)
    return found if found.exists() else None


def _missing(request: SqlRequest, new: NewTable) -> NotFoundError:
    missing = open_or_place(request.warehouse, new.name, request.storage_options).missing()
    return NotFoundError(f"REPLACE TABLE: {missing.message}; CREATE OR REPLACE TABLE makes it")


def _is_own(request: SqlRequest, known: Table, new: NewTable) -> bool:
    """Whether the table is what an earlier try of this operation has made."""
    if request.operation_id is None or not _same(known.schema(), new.schema()):
        return False
    newest = known.latest_snapshot_id()
    first = None if newest is None else known.find_snapshot(1)
    return newest is None or (first is not None and first.commit_user == request.operation_id)


def _same(current: TableSchema, wanted: TableSchema) -> bool:
    def shape(schema: TableSchema) -> object:
        fields = [(f.name, str(f.type), f.description, f.default_value) for f in schema.fields]
        return fields, schema.partition_keys, schema.primary_keys, dict(schema.options), schema.comment

    return shape(current) == shape(wanted)


def _new_table(request: SqlRequest, plan: Any, columns: Sequence[tuple[str, DataType, str | None]]) -> NewTable:
    """Return what the statement says besides the query.

    Raises:
        UnsupportedFeatureError: a clause that a table here can't have; it names the way out.
    """
    if request.spark.version.startswith("3."):
        raise UnsupportedFeatureError(f"{CREATE} needs Spark 4; airflow_paimon.create_table makes tables in Python")
    identifier = request.identifier(CREATE, parts_of(plan.name()))
    if identifier.branch != MAIN or identifier.system_table is not None:
        raise InvalidInputError(f"{CREATE} {identifier}: name a table; a branch of it is made by create_branch")
    spec = plan.tableSpec()
    _check_spec(str(identifier), spec)
    properties = mapping_of(spec.properties())
    partitions = [_partition_column(str(identifier), t) for t in sequence_items(plan.partitioning())]
    if "path" in properties:
        raise _refused(str(identifier), "the property 'path'", "the catalog chooses a table's folder")
    return NewTable(
        name=str(identifier),
        columns=[(name, kind) for name, kind, _ in columns],
        comments={name: comment for name, _, comment in columns if comment is not None},
        partition_keys=partitions,
        options=properties,
        comment=option_of(spec.comment()),
    )


def _check_spec(name: str, spec: Any) -> None:
    provider = option_of(spec.provider())
    if provider is not None and str(provider).lower() != "paimon":
        raise _refused(name, f"USING {provider}", "leave it out, or write USING paimon; TBLPROPERTIES('file.format') "
                       "chooses the format of the files")  # fmt: skip
    if option_of(spec.location()) is not None or spec.external():
        raise _refused(name, "LOCATION or EXTERNAL", "the catalog chooses a table's folder")
    if option_of(spec.serde()) is not None:
        raise _refused(name, "STORED AS or ROW FORMAT", "TBLPROPERTIES('file.format' = ...) chooses the format")
    if option_of(spec.collation()) is not None:
        raise _refused(name, "DEFAULT COLLATION", "Paimon compares strings by their bytes")
    if sequence_items(spec.optionExpression().options()):
        raise _refused(name, "OPTIONS", "write TBLPROPERTIES")
    if sequence_items(spec.constraints()):
        raise _refused(name, "a constraint", "TBLPROPERTIES('primary-key' = 'a,b') declares the key, and the option "
                       "airflow-paimon.required-checks other rules")  # fmt: skip


def _refused(name: str, what: str, way_out: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(f"{CREATE} {name}: {what} is not executed; {way_out}")


def _partition_column(name: str, transform: Any) -> str:
    path = [str(p) for r in transform.references() for p in r.fieldNames()]
    if str(transform.name()) != "identity" or len(path) != 1:
        raise _refused(name, f"PARTITIONED BY or CLUSTERED BY {transform}", "partition by columns, and set buckets "
                       "with TBLPROPERTIES('bucket' = ..., 'bucket-key' = ...)")  # fmt: skip
    return path[0]


def _columns(plan: Any) -> list[tuple[str, DataType, str | None]]:
    return [_column(c) for c in sequence_items(plan.columns())]


def _column(column: Any) -> tuple[str, DataType, str | None]:
    name = str(column.name())
    for what, given in (
        ("DEFAULT", column.defaultValue()),
        ("GENERATED ALWAYS AS", column.generationExpression()),
        ("GENERATED AS IDENTITY", column.identityColumnSpec()),
    ):
        if given.isDefined():
            raise UnsupportedFeatureError(f"{CREATE}: {what} of column {name!r} is not executed; leave it out")
    return name, declared_type(name, column.dataType(), bool(column.nullable())), option_of(column.comment())


def declared_type(name: str, data_type: Any, nullable: bool) -> DataType:
    """Return the type of a column as Spark's parser has it.

    Raises:
        UnsupportedFeatureError: it is none that a table can have.
    """
    if " collate " in str(data_type.sql()).lower():
        raise UnsupportedFeatureError(
            f"Column {name!r}: COLLATE is not executed; Paimon compares strings by their bytes"
        )
    return _typed(name, type_of_json(str(data_type.json())), nullable)


def _typed(name: str, kind: Any, nullable: bool) -> DataType:
    try:
        return with_nullable(paimon_type(kind), nullable)
    except UnsupportedFeatureError as error:
        raise UnsupportedFeatureError(f"Column {name!r}: {error.message}") from None


RUN = {
    "CreateTable": _create,
    "CreateTableAsSelect": _create_as,
    "ReplaceTable": _replace,
    "ReplaceTableAsSelect": _replace,
}
"""By the kind of Spark's plan."""
