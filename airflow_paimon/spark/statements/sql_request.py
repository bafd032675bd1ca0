"""What ``sql`` was called with, and the tables that a statement's plan names."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.table.paths import MAIN, Identifier, parse_identifier
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.spark.jvm import kind_of, mapping_of, sequence_items

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPERATION = "sql"
DATABASE_SETTING = "spark.airflow_paimon.currentDatabase"
"""The session's setting with the database of names of one part."""


@dataclass(frozen=True, slots=True)
class SqlRequest:
    """What ``sql`` was called with. ``started``: a reading of the monotonic clock."""

    spark: SparkSession
    warehouse: str
    statement: str
    views: Mapping[str, Any]
    operation_id: str | None
    all_rows: bool
    storage_options: Mapping[str, Any] | None
    writers_stopped: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def database(self) -> str | None:
        """The current database of the session, None where it has none."""
        return current_database(self.spark)

    def identifier(self, what: str, parts: Sequence[str]) -> Identifier:
        """Return the table that a name means. ``what``: the statement, for the error.

        Raises:
            InvalidInputError: not of two parts, or not a table's name.
        """
        parts = qualified(parts, self.database)
        shown = ".".join(parts)
        if len(parts) != 2:
            raise InvalidInputError(
                f"{what}: {shown!r} is not a table of this warehouse: name it as db.t, or as db.`t$branch_b` for a "
                f"branch of it; USE db chooses the database of names without one"
            )
        if any("`" in part or part != part.strip() for part in parts):
            raise InvalidInputError(f"{what}: {shown!r} can't be the name of a table")
        return parse_identifier(shown)

    def table(self, what: str, parts: Sequence[str]) -> Table:
        """Open the table that a statement names, on the branch that it names.

        Raises:
            NotFoundError: no such table or branch. InvalidInputError: not a table's name.
        """
        name = str(self.identifier(what, parts))
        return open_table(self.warehouse, name, storage_options=self.storage_options).require()

    def result(
        self,
        statement: str,
        table: str,
        branch: str = MAIN,
        *,
        changed: bool,
        before: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the result of a statement on a table, or on a database, that commits no rows."""
        return OperationResult(
            operation=OPERATION,
            table=table,
            branch=branch,
            changed=changed,
            snapshot_before=before,
            details={"statement": statement, **(details or {})},
            duration_s=time.monotonic() - self.started,
        ).to_json()


def current_database(spark: SparkSession) -> str | None:
    """Return the database that ``USE`` has chosen in this session."""
    return spark.conf.get(DATABASE_SETTING, None) or None


def qualified(parts: Sequence[str], database: str | None) -> Sequence[str]:
    """Return a name with the current database before it, where it has one part."""
    return parts if database is None or len(parts) != 1 else (database, *parts)


def parts_of(node: Any) -> tuple[str, ...]:
    """Return the parts of the name that an unresolved table, view or namespace has; none = the current namespace."""
    kind = kind_of(node)
    if kind == "UnresolvedIdentifier":
        return tuple(map(str, sequence_items(node.nameParts())))
    return () if kind == "CurrentNamespace$" else tuple(map(str, sequence_items(node.multipartIdentifier())))


def partition_of(scala_map: Any) -> dict[str, str | None]:
    """Return the texts of a PARTITION by column in lower case; None is NULL."""
    return {n.lower(): None if value is None else str(value) for n, value in mapping_of(scala_map).items()}
