"""What a statement reads, seen in DuckDB's own parse tree before anything is opened or run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.snapshot import parse_json
from airflow_paimon.core.table.paths import Identifier, parse_identifier
from airflow_paimon.core.table.table import split_version

if TYPE_CHECKING:
    import duckdb

_ROW_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"})
"""What may stand in FROM besides tables: none of them knows more than its arguments."""
_CATALOGS = frozenset({"memory", "system", "temp"})
"""What a session of DuckDB has by these names, so it can't tell a database of that name from them."""
_CHANGES_ROWS = {"INSERT", "UPDATE", "DELETE", "MERGE", "MERGE_INTO"}


@dataclass(frozen=True, slots=True)
class Mention:
    """A table as a statement names it: ``database`` is empty where it names none."""

    database: str
    name: str

    def __str__(self) -> str:
        return f"{self.database}.{self.name}" if self.database else self.name

    def identifier(self, default_database: str | None) -> tuple[Identifier, int | str | None]:
        """Return what is meant, and at which version (None: the latest state).

        Raises:
            InvalidInputError: no database, or a malformed name.
        """
        name, version = split_version(self.name)
        if not self.database and "." not in name and not default_database:
            raise InvalidInputError(
                f"SQL: table {self.name!r} is in no database; write db.{self.name}, or name the database of such "
                f"tables (database= of the operator, schema= of the hook)"
            )
        prefix = self.database or ("" if "." in name else default_database)
        return parse_identifier(f"{prefix}.{name}" if prefix else name), version


def tables_of(session: duckdb.DuckDBPyConnection, engine: Any, statement: str) -> list[Mention]:
    """Return the tables that a SELECT reads, each once, by name.

    Raises:
        InvalidInputError: it is no single SELECT, DuckDB can't parse it, or it reads from something else than tables.
    """
    _refuse_but_select(session, engine, statement)
    ((text,),) = session.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement]).fetchall()
    try:
        tree = parse_json(text)
    except ValueError as error:
        raise InvalidInputError(f"SQL: {error}") from None
    if tree.get("error"):
        raise InvalidInputError(f"SQL: {tree.get('error_message', 'DuckDB refuses it')}")
    nodes = list(_objects(tree))
    named_here = {entry["key"].lower() for node in nodes for entry in (node.get("cte_map") or {}).get("map", [])}
    for node in nodes:
        if node.get("type") == "TABLE_FUNCTION":
            _refuse_function(str(node["function"].get("function_name", "")).lower())
        if node.get("type") == "SHOW_REF" and node.get("query") is None:
            raise InvalidInputError(
                "SQL: SHOW would list tables of DuckDB, not of the warehouse; python -m airflow_paimon tables lists "
                "these, and DESCRIBE db.t shows the columns of one"
            )
    tables = [node for node in nodes if node.get("type") == "BASE_TABLE"]
    for table in tables:
        if table.get("catalog_name"):
            parts = ".".join(str(table[key]) for key in ("catalog_name", "schema_name", "table_name"))
            raise InvalidInputError(f"SQL: {parts} has three parts; a table is db.table in the connection's warehouse")
        if table.get("at_clause"):
            raise InvalidInputError(
                f'SQL: AT is not read here; name the version with the table: "{table["table_name"]}@VERSION"'
            )
        if (database := str(table["schema_name"])).lower() in _CATALOGS:
            raise InvalidInputError(
                f"SQL: DuckDB itself has a {database}; write the table's whole name in one pair of quotes: "
                f'"{database}.{table["table_name"]}"'
            )
    found = {Mention(str(t["schema_name"]), str(t["table_name"])) for t in tables}
    return sorted((m for m in found if m.database or m.name.lower() not in named_here), key=str)


def _refuse_but_select(session: duckdb.DuckDBPyConnection, engine: Any, statement: str) -> None:
    try:
        parsed = session.extract_statements(statement)
    except engine.Error as error:
        raise InvalidInputError(f"SQL: DuckDB can't read it as a SELECT: {error}") from None
    if not parsed:
        raise InvalidInputError("SQL: the statement is empty; give one SELECT")
    if len(parsed) != 1:
        raise InvalidInputError(
            f"SQL: this is {len(parsed)} statements, and one is run at a time: give a list of them, or "
            f"split_statements=True"
        )
    kind = parsed[0].type.name
    if kind == "SELECT":
        return
    if kind == "MULTI":
        raise InvalidInputError("SQL: a PIVOT needs its values: PIVOT db.t ON column IN ('a', 'b') USING ...")
    if kind in _CHANGES_ROWS:
        raise InvalidInputError(
            f"SQL: {kind.split('_')[0]} changes rows, and SQL of a Paimon connection only reads. Change them on a "
            f"branch: CorrectBranchOperator(sql=...), then MergeBranchOperator"
        )
    raise InvalidInputError(
        f"SQL: {kind} is refused: SQL of a Paimon connection reads tables by one SELECT. Branches, tags and tables are "
        f"made and changed by the operators and jobs of this package"
    )


def _refuse_function(name: str) -> None:
    if name not in _ROW_FUNCTIONS:
        raise InvalidInputError(
            f"SQL: FROM {name}(...) is refused: SQL of a Paimon connection reads its tables, no files and nothing of "
            f"this process; allowed are {', '.join(sorted(_ROW_FUNCTIONS))}"
        )


def _objects(tree: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object of a tree, however deep it is."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
