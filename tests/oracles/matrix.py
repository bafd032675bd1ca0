"""O1, O2 and O4 in one form for the interoperability matrix: make a table, write, read. What each can't do is listed
here with the reason, and test_matrix.py holds the lists to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from airflow_paimon.core.format.types import ArrayType, AtomicType, DataType, MapType, RowType, parse_type
from airflow_paimon.core.table.table import Table, open_table
from tests.data.tables import ALL_TYPES
from tests.oracles.drivers import Change, PypaimonOracle, RustOracle, SparkConnectorOracle
from tests.oracles.paimon_types import to_arrow

Columns = Mapping[str, Any]
"""Column name -> Paimon type (text, or a schema file's object whose nested fields have ids)."""

SCALARS: Columns = {name: kind for name, kind in ALL_TYPES.items() if isinstance(kind, str) and name != "clock"}
NESTED: Columns = {
    "list": {"type": "ARRAY", "element": "INT"},
    "pairs": {"type": "MAP", "key": "STRING NOT NULL", "value": "BIGINT"},
    "row": {
        "type": "ROW",
        "fields": [{"id": 100, "name": "a", "type": "INT"}, {"id": 101, "name": "b", "type": "STRING"}],
    },
    "nested": {
        "type": "ARRAY",
        "element": {
            "type": "ROW",
            "fields": [
                {
                    "id": 102,
                    "name": "x",
                    "type": {"type": "MAP", "key": "STRING NOT NULL", "value": {"type": "ARRAY", "element": "INT"}},
                },
                {"id": 103, "name": "y", "type": "DECIMAL(5, 2)"},
            ],
        },
    },
}
CLOCK: Columns = {"clock": "TIME(3)"}
NANOS: Columns = {"t9": "TIMESTAMP(9)", "l9": "TIMESTAMP(9) WITH LOCAL TIME ZONE"}
EVERYTHING: Columns = {**SCALARS, **NESTED, **CLOCK}

Probes = Mapping[str, tuple[str, Any]]
"""Column -> its Paimon type, a value."""

NOT_READ: dict[str, dict[str, str]] = {
    "pypaimon": {},
    "pypaimon-rust": {},
    "Spark connector": {"clock": "Spark has no TIME", "t9": "Spark has microseconds", "l9": "Spark has microseconds"},
}
"""Engine -> column -> why it can't be in a table that the engine reads or writes."""

NOT_MADE: dict[str, dict[str, str]] = {
    "pypaimon": {},
    "pypaimon-rust": {
        "clock": "its SQL has no TIME; through its API it reads and writes them",
        "l6": "its SQL has TIMESTAMP WITH TIME ZONE only, which is TIMESTAMP(3) WITH LOCAL TIME ZONE",
        "l9": "as l6",
    },
    "Spark connector": NOT_READ["Spark connector"],
}
"""Engine -> column -> why its CREATE TABLE can't have it."""

NOT_FILTERED: dict[str, dict[str, str]] = {
    "pypaimon": {},
    "pypaimon-rust": {"i64": "DataFusion's estimate overflows where a column holds both ends of BIGINT"},
    "Spark connector": dict.fromkeys(("i8", "i16"), "its pushed-down Parquet filter has the wrong type"),
}
"""Engine -> column -> why it fails on a filter of the column, in its own files too."""

NOT_WRITTEN: dict[str, dict[str, str]] = {
    "pypaimon": {},
    "pypaimon-rust": {"orc": "its ORC writer has neither zstd, Paimon's default, nor decimals"},
    "Spark connector": {},
}
"""Engine -> file format -> why it only reads it."""


class Engine(Protocol):
    """One oracle and the warehouse that the matrix lies in."""

    @property
    def name(self) -> str: ...
    @property
    def warehouse(self) -> Path: ...

    def create(
        self, table: str, columns: Columns, keys: Sequence[str] = (), partitions: Sequence[str] = (), **options: str
    ) -> None: ...

    def write(self, table: str, rows: pa.Table, branch: str | None = None) -> None: ...

    def overwrite(self, table: str, rows: pa.Table, partition: Mapping[str, str]) -> None: ...

    def read(
        self, table: str, branch: str | None = None, tag: str | None = None, snapshot: int | None = None
    ) -> pa.Table: ...

    def evolve(self, table: str) -> None:
        """Drop b, rename d to words, add n after k and b anew as DATE, make a BIGINT and c DOUBLE."""

    def keys_where(self, table: str, probes: Probes) -> dict[str, list[int]]:
        """For each column the sorted k of the rows that have the value, each found by a filter of the engine's."""


class _ArrowEngine:
    """O1 and O2 take Arrow tables in exactly the types that they give."""

    oracle: PypaimonOracle | RustOracle

    def __init__(self, oracle: Any, warehouse: Path) -> None:
        self.oracle, self.warehouse = oracle, warehouse

    @property
    def name(self) -> str:
        return self.oracle.name

    def _put(self, table: str, rows: pa.Table, branch: str | None = None, **how: Any) -> None:
        view = open_table(str(self.warehouse), table, branch=branch or "main")
        self.oracle.write(self.warehouse, table, strict(rows, view), branch=branch, **how)

    def write(self, table: str, rows: pa.Table, branch: str | None = None) -> None:
        self._put(table, rows, branch)

    def overwrite(self, table: str, rows: pa.Table, partition: Mapping[str, str]) -> None:
        self._put(table, rows, mode="overwrite", partition=partition)

    def read(
        self, table: str, branch: str | None = None, tag: str | None = None, snapshot: int | None = None
    ) -> pa.Table:
        return self.oracle.read(self.warehouse, table, branch=branch, tag=tag, snapshot=snapshot)


def strict(rows: pa.Table, table: Table) -> pa.Table:
    """The rows with the table's NOT NULL, and TIMESTAMP(0) in seconds."""
    fields = []
    for name in rows.column_names:
        of, kind = table.schema().field(name).type, rows.schema.field(name).type
        if of == AtomicType("TIMESTAMP", (0,), of.nullable):
            kind = pa.timestamp("s")
        fields.append(pa.field(name, kind, of.nullable))
    return rows.cast(pa.schema(fields))


class Pypaimon(_ArrowEngine):
    oracle: PypaimonOracle

    def create(
        self, table: str, columns: Columns, keys: Sequence[str] = (), partitions: Sequence[str] = (), **options: str
    ) -> None:
        named = {"primary_keys": keys, "partition_keys": partitions, "options": options}
        self.oracle.create_table(self.warehouse, table, columns, **named)

    def keys_where(self, table: str, probes: Probes, where_of: str = "table") -> dict[str, list[int]]:
        found = {}
        for column, (type_, value) in probes.items():
            path = self.oracle._put(pa.table({"value": pa.array([value], to_arrow(type_))}))
            how = {"columns": ["k", column], "where": [column, path], "where_of": where_of}
            found[column] = sorted(self.oracle.read(self.warehouse, table, **how).column("k").to_pylist())
        return found

    def branch(self, table: str, tag: str, branch: str) -> None:
        self.oracle.do("create_tag", self.warehouse, table, name=tag)
        self.oracle.do("create_branch", self.warehouse, table, name=branch, tag=tag)

    def evolve(self, table: str) -> None:
        changes: list[Change] = [
            {"change": "drop_column", "name": "b"},
            {"change": "rename_column", "name": "d", "value": "words"},
            {"change": "add_column", "name": "n", "type": "INT"},
            {"change": "add_column", "name": "b", "type": "DATE"},
            {"change": "update_column_type", "name": "a", "type": "BIGINT"},
            {"change": "update_column_type", "name": "c", "type": "DOUBLE"},
        ]
        for change in changes:
            self.oracle.alter_table(self.warehouse, table, [change])


class Rust(_ArrowEngine):
    oracle: RustOracle

    def create(
        self, table: str, columns: Columns, keys: Sequence[str] = (), partitions: Sequence[str] = (), **options: str
    ) -> None:
        body = [f"{name} {_declared(type_, _rust_type)}" for name, type_ in columns.items()]
        body += [f"PRIMARY KEY ({', '.join(keys)})"] if keys else []
        by = f" PARTITIONED BY ({', '.join(partitions)})" if partitions else ""
        extra = f" WITH ({_options(options)})" if options else ""
        self.sql(f"CREATE TABLE paimon.{table} ({', '.join(body)}){by}{extra}")

    def sql(self, statement: str) -> pa.Table:
        return self.oracle.sql(self.warehouse, statement)

    def keys_where(self, table: str, probes: Probes) -> dict[str, list[int]]:
        found = {}
        for column, (type_, value) in probes.items():
            literal = _literal(parse_type(type_), value, _rust_type)
            rows = self.sql(f"SELECT k FROM paimon.{table} WHERE {column} = {literal}")
            found[column] = sorted(rows.column("k").to_pylist())
        return found

    def evolve(self, table: str) -> None:
        for change in (
            "DROP COLUMN b",
            "RENAME COLUMN d TO words",
            "ADD COLUMN n INT",
            "ADD COLUMN b DATE",
            "ALTER COLUMN a TYPE BIGINT",
            "ALTER COLUMN c TYPE DOUBLE",
        ):
            self.sql(f"ALTER TABLE paimon.{table} {change}")


class Connector:
    """O4, all through SQL."""

    def __init__(self, oracle: SparkConnectorOracle, warehouse: Path) -> None:
        self.oracle, self.warehouse = oracle, warehouse

    @property
    def name(self) -> str:
        return self.oracle.name

    def sql(self, *statements: str, **views: pa.Table) -> pa.Table:
        return self.oracle.sql(self.warehouse, *statements, views=views)

    def create(
        self, table: str, columns: Columns, keys: Sequence[str] = (), partitions: Sequence[str] = (), **options: str
    ) -> None:
        body = ", ".join(f"{name} {_declared(type_, _spark_type)}" for name, type_ in columns.items())
        by = f" PARTITIONED BY ({', '.join(partitions)})" if partitions else ""
        options = options | ({"primary-key": ",".join(keys)} if keys else {})
        extra = f" TBLPROPERTIES ({_options(options)})" if options else ""
        self.sql(f"CREATE TABLE {table} ({body}){by}{extra}")

    def write(self, table: str, rows: pa.Table, branch: str | None = None) -> None:
        self.sql(f"INSERT INTO {_quoted(table, branch)} {_all(rows)}", rows=rows)

    def overwrite(self, table: str, rows: pa.Table, partition: Mapping[str, str]) -> None:
        where = ", ".join(f"{name} = '{value}'" for name, value in partition.items())
        rows = rows.drop_columns(list(partition))
        self.sql(f"INSERT OVERWRITE {table} PARTITION ({where}) {_all(rows)}", rows=rows)

    def read(
        self, table: str, branch: str | None = None, tag: str | None = None, snapshot: int | None = None
    ) -> pa.Table:
        at = f" VERSION AS OF '{tag}'" if tag else f" VERSION AS OF {snapshot}" if snapshot else ""
        return self.sql(f"SELECT * FROM {_quoted(table, branch)}{at}")

    def branch(self, table: str, tag: str, branch: str) -> None:
        self.sql(f"CALL sys.create_tag(table => '{table}', tag => '{tag}')")
        self.sql(f"CALL sys.create_branch('{table}', '{branch}', '{tag}')")

    def keys_where(self, table: str, probes: Probes) -> dict[str, list[int]]:
        parts = []
        for column, (type_, value) in probes.items():
            literal = _literal(parse_type(type_), value, _spark_type)
            parts.append(f"SELECT '{column}' AS name, k FROM {table} WHERE {column} = {literal}")
        rows = self.sql(" UNION ALL ".join(parts)).to_pylist()
        return {column: sorted(row["k"] for row in rows if row["name"] == column) for column in probes}

    def evolve(self, table: str) -> None:
        changes = (
            "DROP COLUMN b",
            "RENAME COLUMN d TO words",
            "ADD COLUMN n INT AFTER k",
            "ADD COLUMN b DATE",
            "ALTER COLUMN a TYPE BIGINT",
            "ALTER COLUMN c TYPE DOUBLE",
        )
        self.sql(*(f"ALTER TABLE {table} {change}" for change in changes))


def _literal(of: DataType, value: Any, spelled: Callable[[DataType], str]) -> str:
    if isinstance(value, bool | int):
        return f"CAST({value} AS {spelled(of)})"
    if isinstance(value, str):
        return f"'{value}'"
    return f"CAST('{value}' AS {spelled(of)})"


def _all(rows: pa.Table) -> str:
    return f"SELECT {', '.join(rows.column_names)} FROM rows"


def _quoted(table: str, branch: str | None) -> str:
    database, name = table.split(".")
    return f"{database}.`{name}$branch_{branch}`" if branch else table


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"'{name.replace('_', '-')}' = '{value}'" for name, value in options.items())


def _declared(type_: Any, spelled: Callable[[DataType], str]) -> str:
    parsed = parse_type(type_)
    return spelled(parsed) + ("" if parsed.nullable else " NOT NULL")


def _spark_type(of: DataType) -> str:
    if isinstance(of, ArrayType):
        return f"ARRAY<{_spark_type(of.element)}>"
    if isinstance(of, MapType):
        return f"MAP<{_spark_type(of.key)}, {_spark_type(of.value)}>"
    if isinstance(of, RowType):
        return f"STRUCT<{', '.join(f'{f.name}: {_spark_type(f.type)}' for f in of.fields)}>"
    roots = {"TIMESTAMP": "TIMESTAMP_NTZ", "TIMESTAMP_LTZ": "TIMESTAMP", "BYTES": "BINARY", "BINARY": "BINARY"}
    args = of.args if of.root in ("DECIMAL", "CHAR", "VARCHAR") else ()
    return roots.get(of.root, of.root) + _args(args)


def _rust_type(of: DataType) -> str:
    if isinstance(of, ArrayType):
        return f"ARRAY<{_rust_type(of.element)}>"
    if isinstance(of, MapType):
        return f"MAP({_rust_type(of.key)}, {_rust_type(of.value)})"
    if isinstance(of, RowType):
        return f"STRUCT<{', '.join(f'{f.name} {_rust_type(f.type)}' for f in of.fields)}>"
    if of.root == "TIMESTAMP_LTZ":
        return "TIMESTAMP WITH TIME ZONE"
    return of.root + _args(of.args)


def _args(args: Sequence[int]) -> str:
    return f"({', '.join(map(str, args))})" if args else ""
