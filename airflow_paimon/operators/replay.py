"""Operators that replay upstream changes into branches of downstream tables.

Made by ``make functions`` of the requests and of tests/python_operators.py: change those.
"""

# fmt: off
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.operators._base import keeps_arguments
from airflow_paimon.operators._corrections import SqlOrFunctionOperator

__all__ = [
    "ReplayBranchOperator",
]


class ReplayBranchOperator(SqlOrFunctionOperator):
    """
    Run a function or statements over upstream tables, from a snapshot on, into branches.

    A retry continues where the first attempt stopped. A batch reads the same snapshots and doesn't repeat what has been
    committed; streams continue from their checkpoints. ``details`` has for each source where it started and how far it
    was read, and for each target batches, rows and the snapshots before and after.

    :param branch: Branch of the table to write (templated)
    :param source: Upstream table, name=db.table[$branch_b] (templated)
    :param target: Further table to write, name=db.table$branch_b (templated)
    :param function: module:name, called as name(spark, sources, targets, start); ship its module with
        ``spark_options={"py_files": ...}`` (templated)
    :param sql: UPDATE, DELETE, MERGE or INSERT statements on the view branch, separated by semicolons, or the name of a
        file ending in ``.sql`` beside the DAG with them; they see the views branch, main and the sources (templated)
    :param restricted_sql: Refuse SQL, in rules as well, that reaches beyond the tables, as paths of files and calls of
        Java do; left out, this is on for SQL that is a template or comes from a form, unless the Paimon connection's
        ``forms`` say otherwise (templated)
    :param all_rows: Confirm an UPDATE or DELETE without WHERE, or an INSERT OVERWRITE of the whole table (templated)
    :param tag: Start after this tag of the sources: the targets already contain its rows (templated)
    :param snapshot: Start after this snapshot: [name=]ID (templated)
    :param timestamp: Start with what was committed at this time or later, ISO with an offset (templated)
    :param available_now: Run the function's streams until nothing is new (templated)
    :param until_snapshot: Run the function's streams until they have read this snapshot of a source: [name=]ID
        (templated)
    :param until_watermark: Run the function's streams until every source has this watermark and is read, ISO with an
        offset or epoch milliseconds (templated)
    :param timeout: How long streams may run, e.g. ``1 h``; a re-run continues from their checkpoints (templated)
    :param checkpoint: Folder for checkpoints of streams, which Spark must reach; by default in the table's folder, if
        that is local (templated)
    """

    operation = "replay_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, source: Sequence[str] | str = (), target: Sequence[str] | str = (),
        function: str | None = None, sql: str | None = None, restricted_sql: bool | str | None = None,
        all_rows: bool | str = False, tag: str | None = None, snapshot: Sequence[str] | str = (),
        timestamp: str | None = None, available_now: bool | str = False, until_snapshot: Sequence[str] | str = (),
        until_watermark: str | None = None, timeout: str = "1 h", checkpoint: str | None = None, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
