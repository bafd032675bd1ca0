"""A parsed statement as a value, and what can be refused by looking at it and the table's columns (pure).

Spark's parser makes the value (``parse.py``). A ``Fragment`` is a part of the statement: its text and position for
messages, and Spark's node, with which it is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, RowType

Kind = Literal["UPDATE", "DELETE", "MERGE", "INSERT", "INSERT OVERWRITE"]
Action = Literal["update", "delete", "insert"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A part of the statement. ``line`` and ``column`` count from 1; 0 = unknown."""

    text: str = ""
    line: int = 0
    column: int = 0
    node: Any = field(default=None, compare=False, repr=False)

    @property
    def where(self) -> str:
        """The position, for the end of a message."""
        return f" (line {self.line}, position {self.column})" if self.line else ""


Assigned = dict[tuple[str, ...], Fragment]
"""The values that a column gets: by the path of the field inside it, () = the whole column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """``SET key = value``. ``key``: the parts of the name, with what qualifies it. Messages name the value's position:
    Spark gives the key that of the whole SET.
    """

    key: tuple[str, ...]
    value: Fragment


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """What happens to rows: ``WHEN [NOT] MATCHED ... THEN``, or the whole of an UPDATE or DELETE.

    ``star``: ``UPDATE SET *`` and ``INSERT *``: every column gets the source's column of its name.
    """

    action: Action
    condition: Fragment | None = None
    assignments: tuple[Assignment, ...] = ()
    star: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The table that a statement changes, as the statement names it."""

    name: tuple[str, ...]
    alias: str | None
    at: Fragment

    @property
    def text(self) -> str:
        return ".".join(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertInto:
    """What INSERT has besides its query. ``partition``: the columns of PARTITION (...); ``static``: the texts of those
    that have a value, None = NULL.
    """

    columns: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()
    static: Mapping[str, str | None] = field(default_factory=dict)
    by_name: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement.

    Attributes:
        condition: WHERE, or the ON of a MERGE; None = every row.
        source: The source of a MERGE, or the query of an INSERT.
        matched: The clause of an UPDATE or DELETE, or the WHEN MATCHED clauses in order.
        ctes: Names and plans of WITH, in order.
    """

    kind: Kind
    text: str
    target: Target
    condition: Fragment | None = None
    source: Fragment | None = None
    matched: tuple[Clause, ...] = ()
    not_matched: tuple[Clause, ...] = ()
    not_matched_by_source: tuple[Clause, ...] = ()
    insert: InsertInto | None = None
    ctes: tuple[tuple[str, Fragment], ...] = ()

    @property
    def title(self) -> str:
        """How messages name it: ``UPDATE on db.t``."""
        return f"{self.kind} on {self.target.text}"

    @property
    def clauses(self) -> tuple[Clause, ...]:
        return (*self.matched, *self.not_matched, *self.not_matched_by_source)

    @property
    def counts_matches(self) -> bool:
        """Whether a target row matched by two source rows is an error: Spark's rule."""
        alone = len(self.matched) == 1 and self.matched[0].action == "delete" and self.matched[0].condition is None
        return self.kind == "MERGE" and bool(self.matched) and not alone


def with_nodes(statement: Statement, change: Callable[[Any], Any]) -> Statement:
    """Return the statement with every node of Spark's changed that is evaluated."""

    def part(fragment: Fragment) -> Fragment:
        return replace(fragment, node=change(fragment.node))

    def clause(found: Clause) -> Clause:
        condition = None if found.condition is None else part(found.condition)
        assignments = tuple(replace(a, value=part(a.value)) for a in found.assignments)
        return replace(found, condition=condition, assignments=assignments)

    return replace(
        statement,
        condition=None if statement.condition is None else part(statement.condition),
        source=None if statement.source is None else part(statement.source),
        matched=tuple(map(clause, statement.matched)),
        not_matched=tuple(map(clause, statement.not_matched)),
        not_matched_by_source=tuple(map(clause, statement.not_matched_by_source)),
        ctes=tuple((name, part(query)) for name, query in statement.ctes),
    )


def update_columns(statement: Statement, schema: TableSchema) -> tuple[str, ...]:
    """Return the columns that a row changed in place can get a new value in, in the table's order."""
    updates = [c for c in statement.clauses if c.action == "update"]
    if any(c.star for c in updates):
        return schema.field_names
    named = {column_of(statement, a, schema) for c in updates for a in c.assignments}
    return tuple(n for n in schema.field_names if n in named)


def column_of(statement: Statement, assignment: Assignment, schema: TableSchema) -> str:
    """Return the table's column that an assignment changes, whole or a field inside it."""
    return path_of(statement, assignment, schema)[0]


def path_of(statement: Statement, assignment: Assignment, schema: TableSchema) -> tuple[str, ...]:
    """Return the column that an assignment names, with or without the target's name before it, and the fields inside
    it.

    Raises:
        InvalidInputError: no such column, or no such field.
    """
    parts, target = assignment.key, statement.target
    qualifiers = [(target.alias,)] if target.alias else [target.name[i:] for i in range(len(target.name))]
    for qualifier in [(), *qualifiers]:
        n = len(qualifier)
        if len(parts) <= n or [p.lower() for p in parts[:n]] != [q.lower() for q in qualifier]:
            continue
        found = find_column(parts[n], schema)
        if found is not None:
            return (found, *_fields_of(statement, assignment, schema.field(found), parts[n + 1 :]))
    raise unknown_column(statement, ".".join(parts), assignment.value, schema)


def _fields_of(
    statement: Statement, assignment: Assignment, column: DataField, names: Sequence[str]
) -> tuple[str, ...]:
    found: list[str] = []
    inside = column
    for name in names:
        fields = inside.type.fields if isinstance(inside.type, RowType) else ()
        exact = [f for f in fields if f.name == name]
        same = exact or [f for f in fields if f.name.lower() == name.lower()]
        if len(same) != 1:
            has = f"fields: {', '.join(f.name for f in fields)}" if fields else f"it is a(n) {inside.type}"
            outer = ".".join([column.name, *found])
            raise InvalidInputError(
                f"{statement.title}: {outer!r} has no field {name!r}{assignment.value.where} ({has})"
            )
        inside = same[0]
        found.append(inside.name)
    return tuple(found)


def find_column(name: str, schema: TableSchema) -> str | None:
    """Find a column by name, regardless of case; an exact match first."""
    if name in schema.field_names:
        return name
    found = [f for f in schema.field_names if f.lower() == name.lower()]
    return found[0] if len(found) == 1 else None


def unknown_column(statement: Statement, name: str, at: Fragment, schema: TableSchema) -> InvalidInputError:
    return InvalidInputError(
        f"{statement.title}: the table has no column {name!r}{at.where} (columns: {', '.join(schema.field_names)})"
    )


def assigned(statement: Statement, clause: Clause, schema: TableSchema) -> dict[str, Assigned]:
    """Return the values that a clause gives to columns and to fields inside them; empty for a star.

    Raises:
        InvalidInputError: no such column or field, one assigned twice, or a field of a row that is inserted.
    """
    out: dict[str, Assigned] = {}
    for assignment in clause.assignments:
        name, *fields = path_of(statement, assignment, schema)
        given = out.setdefault(name, {})
        if any(all(a == b for a, b in zip(fields, other, strict=False)) for other in given):
            raise InvalidInputError(
                f"{statement.title}: column {'.'.join([name, *fields])!r} is assigned twice{assignment.value.where}"
            )
        if fields and clause.action == "insert":
            raise InvalidInputError(
                f"{statement.title}: INSERT gives whole columns, not fields inside {name!r}{assignment.value.where}"
            )
        given[tuple(fields)] = assignment.value
    return out


def check_statement(
    statement: Statement, schema: TableSchema, *, all_rows: bool, flag: str, dynamic: bool = False
) -> None:
    """Refuse what is wrong whatever the rows are.

    ``flag``: how the caller confirms a statement on every row. ``dynamic``: INSERT OVERWRITE replaces the partitions of
    its rows (``spark.sql.sources.partitionOverwriteMode``).

    Raises:
        InvalidInputError: an unknown column, one assigned twice, a key that would change, every row without ``flag``.
    """
    for clause in statement.clauses:
        assigned(statement, clause, schema)
    if statement.kind == "UPDATE":
        _check_keys(statement, schema)
    if statement.insert is not None:
        _check_insert(statement, statement.insert, schema)
    insert = statement.insert
    if statement.kind == "INSERT OVERWRITE" and insert is not None:
        takes_all = not insert.static and not (dynamic and schema.partition_keys)
    else:
        takes_all = statement.kind in ("UPDATE", "DELETE") and statement.condition is None
    if takes_all and not all_rows:
        what = "replaces every row" if statement.kind == "INSERT OVERWRITE" else "has no WHERE, so it takes every row"
        raise InvalidInputError(f"{statement.title} {what}; confirm that with {flag}")


def fixed_columns(schema: TableSchema) -> tuple[str, ...]:
    """Return the columns that no UPDATE may change: those that decide where a row with a primary key lies.

    Without a primary key a row can move: its old file is written without it, and a new one with it, in one commit.
    """
    fixed = {*schema.primary_keys, *schema.partition_keys, *schema.bucket_keys} if schema.primary_keys else ()
    return tuple(n for n in schema.field_names if n in fixed)


def _check_keys(statement: Statement, schema: TableSchema) -> None:
    fixed = fixed_columns(schema)
    for clause in statement.matched:
        for assignment in clause.assignments:
            name = column_of(statement, assignment, schema)
            if name in fixed:
                raise InvalidInputError(
                    f"{statement.title}: column {name!r}{assignment.value.where} belongs to the "
                    f"primary key, the partition or the bucket of its row and can't be changed in place; DELETE the "
                    f"row first, then INSERT it with its new value"
                )


def _check_insert(statement: Statement, insert: InsertInto, schema: TableSchema) -> None:
    named: list[str] = []
    for name in [*insert.columns, *insert.partition]:
        found = find_column(name, schema)
        if found is None:
            raise unknown_column(statement, name, Fragment(), schema)
        named.append(found)
    twice = sorted({n for n in named if named.count(n) > 1})
    if twice:
        raise InvalidInputError(f"{statement.title} names column {twice[0]!r} twice")
    for name in insert.partition:
        if find_column(name, schema) not in schema.partition_keys:
            raise InvalidInputError(
                f"{statement.title}: PARTITION names {name!r}, which is not a partition "
                f"column (those are: {', '.join(schema.partition_keys) or 'none'})"
            )


def table_of(target: Target) -> str:
    """Return the table that ``db.t`` or ```db`.`t$branch_b` `` names.

    Raises:
        InvalidInputError: a name with another number of parts.
    """
    if len(target.name) != 2:
        raise InvalidInputError(
            f"The target {target.text!r}{target.at.where} is not a table of this warehouse: name it as db.t, or as "
            f"db.`t$branch_b` for a branch of it"
        )
    return target.text
