"""DROP TABLE: all of a table, once nobody has said that they need something of it."""

from __future__ import annotations

import time
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.schema.drop_table import drop_table
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import open_table
from airflow_paimon.spark.statements.figures import OPERATION
from airflow_paimon.spark.statements.sql_request import SqlRequest, parts_of

DROP = "DROP TABLE"


def _drop(request: SqlRequest, plan: Any) -> dict[str, Any]:
    started = time.monotonic()
    identifier = request.identifier(DROP, parts_of(plan.child()))
    if identifier.branch != MAIN or identifier.system_table is not None:
        raise InvalidInputError(f"{DROP} {identifier}: name a table; a branch of it is deleted by delete_branch")
    table = open_table(request.warehouse, str(identifier), storage_options=request.storage_options)
    if not request.all_rows:
        raise InvalidInputError(
            f"{DROP} {identifier} deletes the table with all its snapshots and files; confirm with all_rows=True"
        )
    before = table.latest_snapshot_id() if table.exists() else None
    dropped = drop_table(table)
    if not dropped and not plan.ifExists():
        raise table.missing()
    return OperationResult(
        operation=OPERATION,
        table=table.name,
        branch=MAIN,
        changed=dropped,
        snapshot_before=before,
        details={"statement": DROP},
        duration_s=time.monotonic() - started,
    ).to_json()


RUN = {"DropTable": _drop}
"""By the kind of Spark's plan."""
