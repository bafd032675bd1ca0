"""What refuses a correction for certain, by the table and the request alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.sql_text.statement import (
    BRANCH,
    QUERIES,
    STATEMENTS,
    named_tables,
    outside_parentheses,
    statement_kind,
    target_of,
)
from airflow_paimon.core.sql_text.tokens import split_statements, tokens_of
from airflow_paimon.core.table.table import Table, resolve_version, split_version


def check_mode(schema: TableSchema, mode: str, partitions: Sequence[str], label: str) -> None:
    """Refuse an upsert without keys, and an overwrite that names no partition of a partitioned table.

    Raises:
        InvalidInputError: says which.
    """
    if mode == "upsert" and not schema.primary_keys:
        raise InvalidInputError(
            f"{label} has no primary key to upsert by; use mode=overwrite with partitions (--partitions)"
        )
    if mode == "overwrite" and schema.partition_keys and not partitions:
        raise InvalidInputError(
            f"{label} is partitioned by {', '.join(schema.partition_keys)}: name the partitions to overwrite in "
            f"partitions (--partitions), e.g. {schema.partition_keys[0]}=..."
        )


def check_is_query(sql: str) -> None:
    """Refuse SQL that no correction is, such as ``DROP TABLE``, by its first word.

    Raises:
        InvalidInputError: it is empty, or begins as neither a statement on rows nor a query.
    """
    tokens = tokens_of(sql)
    if not tokens:
        raise InvalidInputError("SQL contains no statement; give one UPDATE, DELETE, MERGE, INSERT or SELECT")
    if tokens[0].is_word(*QUERIES, *STATEMENTS) or tokens[0].is_mark("("):
        return
    near = get_close_matches(tokens[0].text.lower(), (*STATEMENTS, *QUERIES), 1, 0.75)
    meant = f" (did you mean {near[0].upper()}?)" if near else ""
    raise InvalidInputError(
        f"SQL starts with {tokens[0].text!r}{meant}: give one UPDATE, DELETE, MERGE or INSERT on branch, or one SELECT"
    )


@contextmanager
def naming_statement(at: int, statements: Sequence[object]) -> Iterator[None]:
    """Name the statement that an error is about, where there are several. ``at``: its number, from 1 on."""
    try:
        yield
    except InvalidInputError as error:
        if len(statements) == 1:
            raise
        message = error.message.removeprefix("sql (--sql): ")
        error.set_message(f"sql (--sql), statement {at} of {len(statements)}: {message}")
        raise


def divided(sql: str) -> list[str]:
    """Return the statements of a correction's SQL, one or more; one is returned as it is.

    Raises:
        InvalidInputError: one of them is no correction, or there are several, one of which is a SELECT.
    """
    texts = split_statements(sql)
    if len(texts) < 2:
        check_is_query(sql)
        return [sql]
    for at, text in enumerate(texts, 1):
        with naming_statement(at, texts):
            check_is_query(text)
        if tokens_of(text)[0].is_word("select"):
            raise InvalidInputError(
                f"sql (--sql): statement {at} of {len(texts)} is a SELECT, which gives the rows of a branch by itself: "
                f"give it alone, or as INSERT INTO {BRANCH}"
            )
    return texts


def check_for_connector(texts: Sequence[str]) -> None:
    """Refuse what Paimon's connector is not given. ``texts``: the statements; none: a function gives the rows.

    Raises:
        InvalidInputError: anything else than one statement.
    """
    if len(texts) != 1 or statement_kind(texts[0]) is None:
        raise InvalidInputError(
            "engine=connector takes one UPDATE, DELETE, MERGE or INSERT, no SELECT or function. Write a SELECT as "
            "INSERT OVERWRITE branch PARTITION (...), run statements one at a time, or use engine=embedded"
        )


def check_target(sql: str) -> None:
    """Refuse a statement on something else than the branch.

    Raises:
        InvalidInputError: names what it would change.
    """
    target = target_of(sql)
    if target not in (None, BRANCH):
        raise InvalidInputError(
            f"sql (--sql): the target of a statement is the branch that is corrected, so name it {BRANCH}, not "
            f"{target!r}"
        )


def check_statement_alone(kind: str, mode: str, partitions: Sequence[str]) -> None:
    """Refuse what only a SELECT takes beside a statement, which says by itself what it changes.

    Raises:
        InvalidInputError: partitions, or another mode than overwrite.
    """
    if partitions or mode != "overwrite":
        raise InvalidInputError(
            f"sql (--sql): {kind} determines by itself which rows change; leave out partitions (--partitions) and mode "
            "(--mode), which are for a SELECT"
        )


def check_all_rows(sql: str, kind: str, table: str) -> None:
    """Refuse an UPDATE or DELETE without a WHERE.

    Raises:
        InvalidInputError: it has none, and so takes every row.
    """
    if kind in ("UPDATE", "DELETE") and not any(t.is_word("where") for t in outside_parentheses(tokens_of(sql))):
        raise InvalidInputError(
            f"The {kind} has no WHERE, so it takes every row of {table}; add one, or switch on "
            "Allow full-table change (all_rows)"
        )


def further_views(texts: Sequence[str]) -> dict[str, str]:
    """Return the tables of ``--view name=db.t[$branch_b][@VERSION]`` by view name; raises as ``named_tables``."""
    return named_tables("view (--view)", texts, versions=True)


def viewed_columns(texts: Sequence[str], open_named: Callable[[str], Table]) -> dict[str, Sequence[str]]:
    """Return the columns of further views by name. ``open_named``: opens a table by its name.

    Raises:
        InvalidInputError: as ``further_views``. NotFoundError: there is no such table, branch or version.
    """
    found: dict[str, Sequence[str]] = {}
    for name, text in further_views(texts).items():
        table, version = split_version(text)
        try:
            view, snapshot = resolve_version(open_named(table).require(), version)
            schema = view.schema(snapshot.schema_id if version is not None and snapshot is not None else None)
        except NotFoundError as error:
            error.set_message(f"view (--view) {name}={text}: {error.message}")
            raise
        found[name] = schema.field_names
    return found
