"""Checks of table options before they are written, beside those of ``opening_rules``: options of this package, those
that nobody knows, and changes that would make another table of one with data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.rules.columns import check_columns, may_name
from airflow_paimon.core.rules.rules import parse_rules_text
from airflow_paimon.core.table.known_options import unknown_options
from airflow_paimon.core.table.options import REQUIRED_CHECKS_OPTION, TableOptions

log = logging.getLogger(__name__)

_MERGED_MANIFESTS = "manifest.merge-min-count"
_IGNORING = ("ignore-delete", "ignore-update-before")


def check_options(schema: TableSchema, only: str | None = None) -> None:
    """Check the options that this package alone has rules for; ``only``: check just this one.

    Raises:
        InvalidInputError: names the option, its value, and what is allowed.
    """
    for key in schema.options if only is None else (only,):
        if key == REQUIRED_CHECKS_OPTION:
            rules = parse_rules_text(schema.options[key], f"Table option {key}")
            check_columns(rules, schema, "The table")
        elif key == _MERGED_MANIFESTS and TableOptions(schema.options).manifest_merge_min_count < 1:
            raise InvalidInputError(f"Table option {key} can't be {schema.options[key]!r}; give a number from 1 on")


def check_naming(schema: TableSchema, column: str) -> str | None:
    """Return the name of the first required check that names a column; None: none does, or they can't be read."""
    try:
        rules = parse_rules_text(schema.options.get(REQUIRED_CHECKS_OPTION, ""), REQUIRED_CHECKS_OPTION)
    except InvalidInputError:  # set by another engine; whoever evaluates them says it
        return None
    return next((rule.name for rule in rules if may_name(rule, column)), None)


def check_same_layout(old: TableSchema, new: TableSchema, key: str, has_data: bool) -> None:
    """Check that a change of option ``key`` turns neither deletion vectors nor fixed buckets on or off in a table with
    data, nor brings back ignored deletes, which Paimon refuses as well.

    Without the option Paimon's readers ignore deletion vectors that are there; with it they skip what a primary-key
    table has not compacted. A key that lies in a fixed bucket would get a second one.

    Raises:
        InvalidInputError: it does.
    """
    before, after = TableOptions(old.options), TableOptions(new.options)
    if not has_data:
        return
    if before.deletion_vectors != after.deletion_vectors and not before.flag("deletion-vectors.modifiable"):
        raise InvalidInputError(
            f"Option {key}: on a table with data, readers would show deleted rows or skip uncompacted ones. Set it on "
            "a new table and copy the rows, or set deletion-vectors.modifiable=true and compact all with Paimon's "
            "connector"
        )
    if key in _IGNORING and before.flag(key) and not after.flag(key):
        raise InvalidInputError(f"Option {key}: rows that were ignored no longer exist; leave it at true")
    if before.bucket != after.bucket and -1 in (before.bucket, after.bucket):
        raise InvalidInputError(
            f"Option {key}: the buckets of a table with data can't change from {before.bucket} to {after.bucket}, as "
            "readers would search a row in the wrong bucket; use rescale, or set it on a new table and copy the rows"
        )


def warn_of_options(table: str, names: Iterable[str]) -> dict[str, list[str]]:
    """Log a warning for each option that no engine knows, and return them for a result's details: ``warnings``, if
    there are any. A refusal would keep a newer Paimon's options out.
    """
    found = unknown_options(names)
    for sentence in found:
        log.warning("%s: %s", table, sentence)
    return {"warnings": found} if found else {}
