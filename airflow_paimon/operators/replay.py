"""The operator that replays upstream changes into branches of downstream tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.operators._base import SqlOrFunctionOperator, keeps_arguments

__all__ = ["ReplayBranchOperator"]


class ReplayBranchOperator(SqlOrFunctionOperator):
    """
    Run a function or statements over upstream tables, from a point on, into branches of downstream tables.

    A retry goes on where the first try stopped: a batch doesn't repeat what has been committed and reads the same
    snapshots, streams go on from their checkpoints. ``details`` has for each source where it started and how far it was
    read, and for each target batches, rows and the snapshots before and after.

    :param branch: the branch to write; main is refused (templated)
    :param source: the upstream tables, as ``["raw=flights.raw$branch_fix"]`` (templated)
    :param target: further tables to write, as ``["totals=flights.totals$branch_fix"]``; functions only (templated)
    :param function: ``module:name``, called as ``name(spark, sources, targets, start)``; ship its module with
        ``spark_options={"py_files": ...}`` (templated). Of this and ``sql``, one must be None when they are rendered
    :param sql: UPDATE, DELETE, MERGE or INSERT statements on the view ``branch``, separated by semicolons, over
        the views ``branch``, ``main`` and the sources: the text, or a ``.sql`` file beside the DAG (templated)
    :param restricted_sql: refuse SQL that reaches beyond the tables, as paths of files and calls of Java do; left out,
        this is on for SQL that is a template or comes from a form, unless the Paimon connection's ``forms`` say
        otherwise (templated)
    :param all_rows: confirms an UPDATE or DELETE without WHERE, and an INSERT OVERWRITE of the whole table (templated)
    :param tag: start after this tag of the sources (templated)
    :param snapshot: start behind these snapshots, as ``["raw=7"]`` (templated)
    :param timestamp: start with what was committed at this time or later (templated)
    :param available_now: run the function's streams until nothing is new (templated)
    :param until_snapshot: run them until these snapshots are read, as ``["raw=9"]`` (templated)
    :param until_watermark: run them until every source has this watermark and is read (templated)
    :param timeout: how long streams may run, such as ``1 h`` (templated)
    :param checkpoint: folder for checkpoints that Spark can reach; needed where the table is on an object store
        (templated)
    """

    operation = "replay_branch"
    branch: str

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str | None = None,
        source: Sequence[str] | str = (),
        target: Sequence[str] | str = (),
        function: str | None = None,
        sql: str | None = None,
        restricted_sql: bool | str | None = None,
        all_rows: bool | str = False,
        tag: str | None = None,
        snapshot: Sequence[str] | str = (),
        timestamp: str | None = None,
        available_now: bool | str = False,
        until_snapshot: Sequence[str] | str = (),
        until_watermark: str | None = None,
        timeout: str = "1 h",
        checkpoint: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(sql=sql, function=function, **kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        found = result["details"]
        lines = [
            f"{name}: read from after snapshot {s['start']} up to {s['caught_up_to']} of {s['head']}"
            for name, s in found["sources"].items()
        ]
        return lines + [
            f"{name}: {t['rows']:,} rows in {t['batches']} batches; snapshot {t['snapshot_before']} became "
            f"{t['snapshot_after']}"
            for name, t in found["targets"].items()
        ]
