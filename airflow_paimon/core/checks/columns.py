"""Whether the columns that rules name are there, found before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from airflow_paimon.core.checks.rules import AcceptedValues, Drift, NotNull, Relationships, Rule, Unique
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema


def check_columns(rules: Sequence[Rule], schema: TableSchema, label: str) -> None:
    """Check the names of columns of the branch in rules other than SQL.

    Raises:
        InvalidInputError: names the rule and the column.
    """
    for rule in rules:
        for name in columns_of(rule):
            if name not in schema.field_names:
                near = get_close_matches(name, schema.field_names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(schema.field_names)}"
                raise InvalidInputError(f"{label} has no column {name!r}, which rule {rule.name!r} names{hint}")


def columns_of(rule: Rule) -> tuple[str, ...]:
    """Return the columns of the branch that a rule names, but for one in SQL or a function."""
    if isinstance(rule, NotNull | Unique | Relationships):
        return rule.columns
    if isinstance(rule, AcceptedValues):
        return (rule.column,)
    return (rule.column,) if isinstance(rule, Drift) and rule.column is not None else ()
