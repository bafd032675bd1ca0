"""The request of a replay."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_paimon.core.requests.base import Request, flag


@dataclass(frozen=True, kw_only=True)
class ReplayBranch(Request):
    operation = "replay_branch"
    branch: str = flag("Branch of the table to write", "")
    source: tuple[str, ...] = flag("Upstream table, name=db.table[$branch_b] (repeat)", (), repeat=True)
    target: tuple[str, ...] = flag("Further table to write, name=db.table$branch_b (repeat)", (), repeat=True)
    function: str | None = flag("module:name, called as name(spark, sources, targets, start)")
    sql: str | None = flag(
        "Path of a file with UPDATE, DELETE, MERGE or INSERT statements, separated by semicolons, on the view branch; "
        "they see the views branch, main and the sources"
    )
    restricted_sql: bool = flag(
        "Refuse SQL that reaches beyond the tables: paths of files, calls of Java, scripts, variables of the "
        "environment, functions that are not Spark's own",
        False,
    )
    all_rows: bool = flag("Confirm an UPDATE or DELETE without WHERE, or an INSERT OVERWRITE of the whole table", False)
    tag: str | None = flag("Start after this tag of the sources: the targets contain what it holds")
    snapshot: tuple[str, ...] = flag("Start behind this snapshot: [name=]ID (repeat)", (), repeat=True)
    timestamp: str | None = flag("Start with what was committed at this time or later, ISO with an offset")
    available_now: bool = flag("Run the function's streams until nothing is new", False)
    until_snapshot: tuple[str, ...] = flag(
        "Run the function's streams until they have read this snapshot of a source: [name=]ID (repeat)", (), repeat=True
    )
    until_watermark: str | None = flag(
        "Run the function's streams until every source has this watermark and is read, ISO with an offset or epoch "
        "milliseconds"
    )
    timeout: str = flag("How long streams may run, e.g. '1 h'; a re-run goes on from their checkpoints", "1 h")
    checkpoint: str | None = flag(
        "Folder for checkpoints of streams, which Spark must reach; by default in the table's folder, if that is local"
    )
