"""A diff counts rows under the partition that holds them, as Paimon tells partitions apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.data import write_arrow
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.core.tables import run
from tests.data.tables import make_table


def rows(partition: float, *keys: int) -> pa.Table:
    return pa.table({"p": pa.array([partition] * len(keys), pa.float64()), "k": pa.array(keys, pa.int32())})


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append"])
def test_zero_and_minus_zero_are_two_partitions(tmp_path: Path, keyed: bool) -> None:
    kind: dict[str, Any] = {"primary_keys": ["p", "k"], "bucket": "1"} if keyed else {}
    columns = {"p": "DOUBLE NOT NULL", "k": "INT NOT NULL"}
    table = make_table(tmp_path, columns, partition_keys=["p"], **kind)
    for partition, keys in ((0.0, range(3)), (-0.0, range(5)), (float("nan"), range(2))):
        write_arrow(table, rows(partition, *keys))
    run(table, "create_branch", branch="fix", snapshot=3)
    write_arrow(table.branch("fix"), rows(0.0, 7))
    write_arrow(table.branch("fix"), rows(float("nan"), 7))
    values = {"warehouse": str(tmp_path), "table": "d.t", "branch": "fix", "against": "main"}
    request = build_request("diff_branches", values)
    assert isinstance(request, DiffBranches)
    result = run_before_spark(request)
    assert result is not None
    found = {p["partition"]: (p["added"], p["unchanged"]) for p in result.details["partitions"]}
    assert found == {"p=0.0": (1, 3), "p=NaN": (1, 2)}
    assert result.details["partitions_unchanged"] == 1
    assert result.details["total"]["unchanged"] == 10
