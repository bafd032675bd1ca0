"""``create_table`` of the package: the core's, but what it returns is what ``open_table`` returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec

from airflow_paimon.core.schema import tables
from airflow_paimon.core.table.table import Table
from airflow_paimon.notebook.table import ReadableTable, open_table

P = ParamSpec("P")


def _opened(create: Callable[P, Table]) -> Callable[P, ReadableTable]:
    """Let a function that makes a table return it as ``open_table`` does."""

    @wraps(create)
    def created(*args: P.args, **kwargs: P.kwargs) -> ReadableTable:
        table = create(*args, **kwargs)
        given = signature(create).bind(*args, **kwargs).arguments
        return open_table(given["warehouse"], table.name, storage_options=given.get("storage_options"))

    return created


create_table = _opened(tables.create_table)
