"""erase_rows with Spark's tasks: the same as in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.data.compaction_tasks import Workers
from airflow_paimon.data.erasure.erase_rows import erase_rows
from airflow_paimon.spark.compaction import in_tasks
from tests.data.erasure.tables import WHERE, keyed, plain
from tests.data.erasure.test_erase_rows import lived, shown, without
from tests.spark.jobs.operations import in_tasks as nothing_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("make", [plain, keyed])
def test_the_work_is_done_by_tasks(spark: SparkSession, tmp_path: Path, make: Callable[..., Any]) -> None:
    table = lived(make, tmp_path)
    before = shown(table)
    request = build_request("erase_rows", {"warehouse": str(tmp_path), "table": table.name, "where": WHERE})
    with nothing_here():
        details = erase_rows(open_context(request), request, Workers(in_tasks(spark, table.name, "erase"))).details
    assert [one["branch"] for one in details["erased"]] == ["main", "fix"] and details["branches"] == []
    assert shown(table) == without(before) != before
