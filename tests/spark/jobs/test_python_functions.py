"""correct_branch and check_branch_data as functions of the package: in this process, and in a session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_paimon import check_branch_data, correct_branch, open_table
from airflow_paimon.core.errors import InvalidInputError
from tests.spark.jobs.operations import make_branch, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_branch_is_corrected_and_checked(spark: SparkSession, tmp_path: Path) -> None:
    _, fix = make_branch(tmp_path)
    warehouse = str(tmp_path)
    done = correct_branch("d.t", "fix", sql="UPDATE branch SET v = 'new' WHERE k = 1", warehouse=warehouse, spark=spark)
    assert (done.changed, done.details["rows_updated"]) == (True, 3)
    table = open_table(warehouse, "d.t")
    upper = "UPDATE branch SET v = upper(concat(v, '!')) WHERE k = 1"
    looked = correct_branch(table.branch("fix"), sql=upper, spark=spark, dry_run=True)
    assert (looked.changed, looked.dry_run) == (True, True)
    assert correct_branch(table.branch("fix"), sql=upper, spark=spark).details["rows_updated"] == 3
    assert "NEW!" in [row[1] for row in rows_of(fix)]
    checked = check_branch_data(table, "fix", rules=[{"not_null": ["v"]}], spark=spark)
    assert [rule["outcome"] for rule in checked.details["rules"]] == ["passed"]
    with pytest.raises(InvalidInputError, match="needs branch"):
        correct_branch(table, sql=upper)
