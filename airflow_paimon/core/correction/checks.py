"""What refuses a correction for certain, by the table and the request alone."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from airflow_paimon.core.correction.sql_words import QUERIES, STATEMENTS, tokens_of, without_comments
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema


def check_mode(schema: TableSchema, mode: str, partitions: Sequence[str], label: str) -> None:
    """Refuse an upsert without keys, and an overwrite that names no partition of a partitioned table.

    Raises:
        InvalidInputError: says which.
    """
    if mode == "upsert" and not schema.primary_keys:
        raise InvalidInputError(f"{label} has no primary key to upsert by; use --mode overwrite with --partitions")
    if mode == "overwrite" and schema.partition_keys and not partitions:
        raise InvalidInputError(
            f"{label} is partitioned by {', '.join(schema.partition_keys)}: name the partitions to overwrite "
            f"with --partitions, e.g. --partitions {schema.partition_keys[0]}=..."
        )


def check_is_query(sql: str) -> None:
    """Refuse SQL that no correction is, such as ``DROP TABLE``, by its first word.

    Raises:
        InvalidInputError: it begins as neither a statement on rows nor a query.
    """
    tokens = tokens_of(without_comments(sql))
    if not tokens or tokens[0].is_word(*QUERIES, *STATEMENTS) or tokens[0].text == "(":
        return
    near = get_close_matches(tokens[0].text.lower(), (*STATEMENTS, *QUERIES), 1, 0.75)
    meant = f" (did you mean {near[0].upper()}?)" if near else ""
    raise InvalidInputError(
        f"SQL starts with {tokens[0].text!r}{meant}: give one UPDATE, DELETE, MERGE or INSERT on branch, or one SELECT"
    )
