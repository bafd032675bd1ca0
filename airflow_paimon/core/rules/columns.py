"""Which columns rules name, and whether they are there, found before anything is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.rules.rules import (
    AcceptedValues,
    Drift,
    Function,
    NotNull,
    Relationships,
    RowLimits,
    Rule,
    Sql,
    Unique,
)


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
        if isinstance(rule, Drift) and rule.date is not None and rule.date not in schema.partition_keys:
            keys = ", ".join(schema.partition_keys) or "none"
            raise InvalidInputError(
                f"{label}: rule {rule.name!r} takes its dates from {rule.date!r}, which is not a partition column; "
                f"those are: {keys}"
            )


def columns_of(rule: Rule) -> tuple[str, ...]:
    """Return the columns of the branch that a rule names, but for one in SQL or a function."""
    if isinstance(rule, NotNull | Unique | Relationships):
        return rule.columns
    if isinstance(rule, AcceptedValues):
        return (rule.column,)
    if isinstance(rule, Drift):
        return tuple(name for name in (rule.column, rule.date) if name is not None)
    if isinstance(rule, Sql | Function | RowLimits):
        return ()
    raise TypeError(f"the columns of rules of kind {rule.kind!r} are not defined here")


def may_name(rule: Rule, column: str) -> bool:
    """Whether a rule names a column: in SQL, whether the word stands anywhere in it."""
    if isinstance(rule, Sql):
        return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", rule.sql, re.IGNORECASE) is not None
    return column in columns_of(rule)
