"""CREATE TABLE, with or without AS SELECT, DROP TABLE, and what of REPLACE TABLE can be one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions, Receipt
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    PaimonError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataType, with_nullable
from airflow_paimon.core.schema.drop_table import drop_table
from airflow_paimon.core.schema.schema_plan import new_schema
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.features import check_writable
from airflow_paimon.core.table.known_options import unknown_options
from airflow_paimon.core.table.paths import MAIN, Identifier
from airflow_paimon.core.table.table import Table, open_or_place, open_table
from airflow_paimon.data.arguments import check_operation_id
from airflow_paimon.data.write import TableWrite, WriteMode
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.jvm import kind_of, mapping_of, option_of, sequence_items, type_of_json
from airflow_paimon.spark.rows_in import check_frame
from airflow_paimon.spark.spark_types import paimon_type
from airflow_paimon.spark.statements.select import query
from airflow_paimon.spark.statements.sql_request import SqlRequest, parts_of
from airflow_paimon.spark.statements.write_statement import write_query, write_statement
from airflow_paimon.spark.truncated_times import lossy, truncated_columns
from airflow_paimon.spark.write import write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CREATE, DROP = "CREATE TABLE", "DROP TABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """The table that a statement describes. ``columns``: none yet where a query gives them; ``about``: what
    ``create_table`` and ``new_schema`` take besides.
    """

    name: str
    columns: Sequence[tuple[str, DataType]]
    about: Mapping[str, Any]

    def schema(self) -> TableSchema:
        """Return schema 0 of the table."""
        return new_schema(self.columns, **self.about)

    def create(self, request: SqlRequest, if_exists: str = "fail") -> Table:
        """Create the table; the errors are those of ``create_table``."""
        options = request.storage_options
        return create_table(
            request.warehouse, self.name, self.columns, if_exists=if_exists, storage_options=options, **self.about
        )


def _create(request: SqlRequest, plan: Any) -> dict[str, Any]:
    new = _new_table(request, plan)
    if not plan.ignoreIfExists():
        try:
            return _created(request, new.create(request), True)
        except AlreadyExistsError as error:
            raise _exists(new) from error
    known = _existing(request, new)
    try:
        made = new.create(request, "skip")  # which also makes known to the catalog what an earlier try left
    except AlreadyExistsError:
        if known is None:
            raise
        made = known
    return _created(request, made, known is None)


def _created(request: SqlRequest, table: Table, changed: bool) -> dict[str, Any]:
    schema = table.schema()
    details = {
        "schema_id": schema.id,
        "columns": [f"{f.name} {f.type}" for f in schema.fields],
        **(_warnings(schema) if changed else {"notes": [f"{table.name} exists; IF NOT EXISTS left it as it is"]}),
    }
    return request.result(CREATE, table.name, changed=changed, details=details)


def _warnings(schema: TableSchema) -> dict[str, list[str]]:
    found = unknown_options(schema.options)
    return {"warnings": found} if found else {}


def _exists(new: NewTable) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"{CREATE}: {new.name} exists; CREATE TABLE IF NOT EXISTS leaves it as it is, and INSERT INTO or INSERT "
        f"OVERWRITE writes into it"
    )


def _create_as(request: SqlRequest, plan: Any) -> dict[str, Any]:
    described = _new_table(request, plan)
    known = _existing(request, described)
    if known is not None and plan.ignoreIfExists():
        return _created(request, known, False)
    return _create_with_rows(request, plan, described, known)


def _create_with_rows(request: SqlRequest, plan: Any, described: NewTable, known: Table | None) -> dict[str, Any]:
    """Create a table with the rows of a query. ``known``: a table of that name."""
    frame, _ = query(request, plan.query())
    new = _with_columns(described, frame)
    if known is not None and not _is_own(request, known, new):
        raise _exists(new)
    _check_rows(new, frame)
    table = known or new.create(request)
    try:
        return _fill(request, table, frame, "append", f"{CREATE} AS SELECT")
    except PaimonError as error:
        if known is not None:
            raise
        left = f"{new.name} was created and has no rows of this statement: continue with INSERT INTO {new.name}"
        error.set_message(f"{error.message}. {left}")
        raise


def _replace(request: SqlRequest, plan: Any) -> dict[str, Any]:
    """A table's columns and rows can't be replaced in one commit, so only a statement that keeps the columns is run."""
    with_rows = kind_of(plan) == "ReplaceTableAsSelect"
    described = _new_table(request, plan)
    known = _existing(request, described)
    if known is None and not plan.orCreate():
        missing = open_or_place(request.warehouse, described.name, request.storage_options).missing()
        raise NotFoundError(f"REPLACE TABLE: {missing.message}; CREATE OR REPLACE TABLE makes it")
    if known is None:
        if with_rows:
            return _create_with_rows(request, plan, described, None)
        return _created(request, described.create(request), True)
    if not with_rows:
        raise UnsupportedFeatureError(
            f"REPLACE TABLE {known.name}: columns and rows of a table can't be replaced in one commit. Change the "
            f"columns with ALTER TABLE, and the rows with DELETE FROM or INSERT OVERWRITE"
        )
    frame, read = query(request, plan.query())
    if any((t.name, t.branch_name) == (known.name, MAIN) for t in read):
        raise UnsupportedFeatureError(
            f"REPLACE TABLE {known.name} reads the table that it replaces, and could lose what is written meanwhile; "
            f"write INSERT OVERWRITE {known.name} SELECT ..., which checks for that"
        )
    new = _with_columns(described, frame)
    if not _same(known.schema(), new.schema()):
        raise UnsupportedFeatureError(
            f"REPLACE TABLE {known.name} AS SELECT: columns, keys, comment or properties would change with the rows, "
            "which one commit can't do and keep the history. Change the table with ALTER TABLE, then write INSERT "
            f"OVERWRITE {known.name} SELECT ..."
        )
    if not request.all_rows:
        raise InvalidInputError(f"REPLACE TABLE {known.name} replaces every row; confirm with all_rows=True")
    _check_rows(new, frame)
    return _fill(request, known, frame, "overwrite", "REPLACE TABLE AS SELECT")


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


def _fill(request: SqlRequest, table: Table, frame: DataFrame, mode: str, kind: str) -> dict[str, Any]:
    """Write the rows of a query as one commit, whose errors are told of the statement."""
    check_operation_id(table, request.operation_id)

    def files(write: TableWrite) -> Sequence[CommitMessage]:
        with query_errors(f"{kind} {table.name}"):
            return write_files(frame, write)

    def write(options: CommitOptions) -> tuple[Receipt, Mapping[str, Any]]:
        return write_query(request, table, WriteMode(mode), options, files)

    schema = table.schema()
    details = {"statement": kind, "schema_id": schema.id, **_warnings(schema)}
    result = write_statement(request, table, details, write)
    return {**result, "changed": result["changed"] or mode == "append"}


def _existing(request: SqlRequest, new: NewTable) -> Table | None:
    """Return the table of that name, None if there is none.

    Raises:
        NotFoundError: the catalog has no such database.
    """
    found = open_or_place(request.warehouse, new.name, request.storage_options)
    return found if found.exists() else None


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


def _new_table(request: SqlRequest, plan: Any) -> NewTable:
    """Return what the statement says besides the query.

    Raises:
        UnsupportedFeatureError: a clause that a table here can't have; it names the way out.
    """
    if request.spark.version.startswith("3."):
        raise UnsupportedFeatureError(f"{CREATE} needs Spark 4; airflow_paimon.create_table makes tables in Python")
    identifier = _table_name(request, CREATE, plan.name(), "made by create_branch")
    name, spec = str(identifier), plan.tableSpec()
    columns = [] if kind_of(plan).endswith("AsSelect") else list(map(_column, sequence_items(plan.columns())))
    _check_spec(name, spec)
    properties = mapping_of(spec.properties())
    partitions = [_partition_column(name, t) for t in sequence_items(plan.partitioning())]
    if "path" in properties:
        raise _refused(name, "the property 'path'", "the catalog chooses a table's folder")
    about = {
        "comments": {name: comment for name, _, comment in columns if comment is not None},
        "partition_keys": partitions,
        "options": properties,
        "comment": option_of(spec.comment()),
    }
    return NewTable(name=name, columns=[(name, kind) for name, kind, _ in columns], about=about)


def _table_name(request: SqlRequest, what: str, node: Any, of_a_branch: str) -> Identifier:
    identifier = request.identifier(what, parts_of(node))
    if identifier.branch != MAIN or identifier.system_table is not None:
        raise InvalidInputError(f"{what} {identifier}: name a table; a branch of it is {of_a_branch}")
    return identifier


def _check_spec(name: str, spec: Any) -> None:
    provider = option_of(spec.provider())
    for given, what, way_out in (
        (
            provider is not None and str(provider).lower() != "paimon",
            f"USING {provider}",
            "leave it out, or write USING paimon; TBLPROPERTIES('file.format') chooses the format of the files",
        ),
        (
            option_of(spec.location()) is not None or spec.external(),
            "LOCATION or EXTERNAL",
            "the catalog chooses a table's folder",
        ),
        (
            option_of(spec.serde()) is not None,
            "STORED AS or ROW FORMAT",
            "TBLPROPERTIES('file.format' = ...) chooses the format",
        ),
        (option_of(spec.collation()) is not None, "DEFAULT COLLATION", "Paimon compares strings by their bytes"),
        (sequence_items(spec.optionExpression().options()), "OPTIONS", "write TBLPROPERTIES"),
        (
            sequence_items(spec.constraints()),
            "a constraint",
            "TBLPROPERTIES('primary-key' = 'a,b') declares the key, and the option airflow-paimon.required-checks "
            "other rules",
        ),
    ):
        if given:
            raise _refused(name, what, way_out)


def _refused(name: str, what: str, way_out: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(f"{CREATE} {name}: {what} is not executed; {way_out}")


def _partition_column(name: str, transform: Any) -> str:
    path = [str(p) for r in transform.references() for p in r.fieldNames()]
    if str(transform.name()) != "identity" or len(path) != 1:
        raise _refused(name, f"PARTITIONED BY or CLUSTERED BY {transform}", "partition by columns, and set buckets "
                       "with TBLPROPERTIES('bucket' = ..., 'bucket-key' = ...)")  # fmt: skip
    return path[0]


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
        error.set_message(f"Column {name!r}: {error.message}")
        raise


def _drop(request: SqlRequest, plan: Any) -> dict[str, Any]:
    """All of a table goes, once nobody has said that they need something of it."""
    identifier = _table_name(request, DROP, plan.child(), "deleted by delete_branch")
    table = open_table(request.warehouse, str(identifier), storage_options=request.storage_options)
    if not request.all_rows:
        raise InvalidInputError(
            f"{DROP} {identifier} deletes the table with all its snapshots and files; confirm with all_rows=True"
        )
    before = table.latest_snapshot_id() if table.exists() else None
    dropped = drop_table(table)
    if not dropped and not plan.ifExists():
        raise table.missing()
    return request.result(DROP, table.name, changed=dropped, before=before)


RUN = {
    "CreateTable": _create,
    "CreateTableAsSelect": _create_as,
    "ReplaceTable": _replace,
    "ReplaceTableAsSelect": _replace,
    "DropTable": _drop,
}
"""By the kind of Spark's plan."""
