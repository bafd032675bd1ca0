"""Diffs of row-tracking tables of connector 2.0.0: rows are paired by ``_ROW_ID``, as a dictionary pairs them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.core.tables import run
from tests.oracles.golden import golden_index

Golden = Callable[[str], Path]
Row = tuple[Any, ...]

ARCHIVE = "row-tracking-fuzz"
KINDS = ("added", "changed", "deleted", "unchanged")


def by_id(table: Table) -> dict[int, Row]:
    columns = table.schema().field_names
    rows = read_arrow(table, columns=["_ROW_ID", *columns]).to_pylist()
    return {row["_ROW_ID"]: tuple(row[c] for c in columns) for row in rows}


def expected(before: Mapping[int, Row], after: Mapping[int, Row], shared: int, keys: list[int]) -> Counter[str]:
    """Rows of one id in one partition are one row; the others count as values, whatever their ids are."""

    def place(row: Row) -> Row:
        return tuple(row[k] for k in keys)

    both = [i for i in before.keys() & after.keys() if i < shared and place(before[i]) == place(after[i])]
    counts = Counter("unchanged" if before[i] == after[i] else "changed" for i in both)
    old = Counter(row for i, row in before.items() if i not in both)
    new = Counter(row for i, row in after.items() if i not in both)
    same = (old & new).total()
    return counts + Counter(added=new.total() - same, deleted=old.total() - same, unchanged=same)


@pytest.mark.parametrize(
    "entry", golden_index(ARCHIVE) or [None], ids=lambda e: e["table"] if e else "no-golden-tables"
)
@pytest.mark.every(3)
def test_a_branch_at_an_earlier_snapshot(golden: Golden, tmp_path: Path, entry: Mapping[str, Any] | None) -> None:
    root = golden(ARCHIVE) / "wh" / "d.db"
    assert entry is not None
    shutil.copytree(root / entry["table"].split(".")[1], tmp_path / "d.db" / "t")
    table = open_table(str(tmp_path), "d.t")
    schema, main = table.schema(), by_id(table)
    keys = [schema.field_names.index(k) for k in schema.partition_keys]
    for snapshot in table.snapshots(table.snapshot_ids()[:-1]):
        run(table, "create_tag", tag=f"at{snapshot.id}", snapshot=snapshot.id)
        run(table, "create_branch", branch=f"b{snapshot.id}", tag=f"at{snapshot.id}")
        branch = by_id(table.branch(f"b{snapshot.id}"))
        values = {"warehouse": str(tmp_path), "table": "d.t", "branch": f"b{snapshot.id}", "against": "main"}
        request = build_request("diff_branches", values)
        assert isinstance(request, DiffBranches)
        result = run_before_spark(request)
        assert result is not None
        counted = Counter({k: result.details["total"][k] for k in KINDS})
        assert counted == expected(main, branch, snapshot.next_row_id or 0, keys), snapshot.id
        for partition in result.details["partitions"]:
            for pair in partition["samples"].get("changed", ()):
                row_id = pair["before"]["_ROW_ID"]
                assert pair["after"]["_ROW_ID"] == row_id
                assert [pair["before"][n] for n in schema.field_names] == list(main[row_id])
                assert [pair["after"][n] for n in schema.field_names] == list(branch[row_id])
        if any(p["changed"] for p in result.details["partitions"]):
            assert result.details["key"] == ["_ROW_ID"]
