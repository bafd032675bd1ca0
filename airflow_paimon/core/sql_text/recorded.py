"""What a snapshot records of the statement that made its rows: bounded, and without masked values."""

from __future__ import annotations

import json
from collections.abc import Sequence

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.sql_text.tokens import hide_literals
from airflow_paimon.core.table.made_by import FULL, MASKED, NONE, digest, record_sql, truncated
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import SQL_DIGEST_PROPERTY, SQL_PROPERTY, VIEWS_PROPERTY
from airflow_paimon.core.table.table import Table


def statement_properties(view: Table, sql: str, views: Sequence[str] = ()) -> dict[str, str]:
    """Return the snapshot properties of a statement on a branch: see ``sql_properties``.

    Main's schemas count as well as the branch's own, which may be older: it has the options of the snapshot that it was
    made from.

    Raises:
        InvalidInputError: the option of either has another value.
    """
    main = () if view.branch_name == MAIN else (view.branch(MAIN).schemas(),)
    return sql_properties(view.schemas(), sql, views, also=main)


def sql_properties(
    schemas: Sequence[TableSchema], sql: str, views: Sequence[str] = (), *, also: Sequence[Sequence[TableSchema]] = ()
) -> dict[str, str]:
    """Return the snapshot properties of a statement.

    The option ``airflow-paimon.record-sql`` of the newest schema decides: ``full``, ``masked`` (without its literals,
    the default of a table with masked columns) or ``none``.

    Args:
        schemas: Versions of the table's schema, the newest last.
        views: Further tables that it reads, ``name=db.t@version``.
        also: Those of other branches; which of all tells the least decides.

    Raises:
        InvalidInputError: the option has another value.
    """
    how = max(map(record_sql, (schemas, *also)), key=(FULL, MASKED, NONE).index)
    if how == NONE:
        return {}
    text = " ".join(hide_literals(sql).split()) if how == MASKED else sql
    out = {SQL_PROPERTY: truncated(text), SQL_DIGEST_PROPERTY: digest(text)}
    return out | ({VIEWS_PROPERTY: truncated(json.dumps(list(views)))} if views else {})
