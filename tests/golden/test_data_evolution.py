"""Tables with data evolution that connector 2.0.0 wrote: column files are put together as it does."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.table.inspect import inspect
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.oracles.canonical import assert_same_rows
from tests.oracles.golden import golden_index

Golden = Callable[[str], Path]

ARCHIVE = "row-tracking-fuzz"
IDS = ("_ROW_ID", "_SEQUENCE_NUMBER")
LIVES = [e for e in golden_index(ARCHIVE) if e["options"].get("data-evolution.enabled") == "true"]


def opened(golden: Golden, entry: Mapping[str, Any] | None) -> Table:
    warehouse = golden(ARCHIVE) / "wh"
    assert entry is not None
    return open_table(str(warehouse), entry["table"])


def all_rows(table: Table, version: int | str | None = None, where: pc.Expression | None = None) -> pa.Table:
    return read_arrow(table, version=version, columns=[*table.schema().field_names, *IDS], where=where)


@pytest.mark.parametrize("entry", LIVES or [None], ids=lambda e: e["table"] if e else "no-golden-tables")
class TestLives:
    def test_reads(self, golden: Golden, entry: Mapping[str, Any] | None) -> None:
        table = opened(golden, entry)
        for read in entry["reads"] if entry else ():
            view = table if read["branch"] == "main" else table.branch(read["branch"])
            version = read["version"]
            version = int(version) if version is not None and version.isdigit() else version
            assert_same_rows(all_rows(view, version), pq.read_table(golden(ARCHIVE) / read["expected"]))

    @pytest.mark.every(3)
    def test_every_column_alone_and_every_filter(self, golden: Golden, entry: Mapping[str, Any] | None) -> None:
        table = opened(golden, entry)
        whole = all_rows(table)
        for name in whole.column_names:
            assert sorted(map(repr, read_arrow(table, columns=[name])[name].to_pylist())) == sorted(
                map(repr, whole[name].to_pylist())
            )
        for name in table.schema().field_names:
            for value in set(whole[name].to_pylist()) - {None}:
                where = pc.field(name) == value
                assert_same_rows(all_rows(table, where=where), whole.filter(where))


def test_every_snapshot_of_every_step(golden: Golden) -> None:
    """A statement makes at most one snapshot: each snapshot's rows are those after some statement, in this order."""
    for entry in LIVES or [None]:
        table = opened(golden, entry)
        steps = [sorted(step[0]) for step in entry["steps"]] if entry else []
        at = 0
        for snapshot in table.snapshots(table.snapshot_ids()):
            names = [*table.schema(snapshot.schema_id).field_names, *IDS]
            found = read_arrow(table, version=snapshot.id, columns=names).to_pylist()
            rows = sorted(json.dumps([row[n] for n in names]) for row in found)
            at = next((i for i in range(at, len(steps)) if steps[i] == rows), -1)
            assert at >= 0, f"{table.name}, snapshot {snapshot.id}"


def test_the_tables_have_column_files_and_deletion_vectors(golden: Golden) -> None:
    partial = 0
    for entry in LIVES or [None]:
        partial += sum(cols is not None for cols in inspect(opened(golden, entry), "files")["write_cols"].to_pylist())
    assert partial > 5


def test_a_diff_reads_whole_ranges_of_column_files(golden: Golden, tmp_path: Path) -> None:
    """Of a range with a new column file, the files that both sides have are read, too."""
    entry = next((e for e in LIVES if any(r["branch"] == "b" for r in e["reads"])), None)
    source = opened(golden, entry)
    assert entry is not None
    shutil.copytree(golden(ARCHIVE) / "wh" / "d.db" / entry["table"].split(".")[1], tmp_path / "d.db" / "t")
    table = open_table(str(tmp_path), "d.t")
    ours, theirs = (read_arrow(view).to_pylist() for view in (table.branch("b"), table))
    assert _texts(theirs) == _texts(read_arrow(source).to_pylist())
    values = {"warehouse": str(tmp_path), "table": "d.t", "branch": "b", "against": "main"}
    request = build_request("diff_branches", values)
    assert isinstance(request, DiffBranches)
    result = run_before_spark(request)
    assert result is not None
    total, both = result.details["total"], Counter(_texts(ours)) & Counter(_texts(theirs))
    assert total["unchanged"] == both.total()
    assert total["added"] + total["changed"] == len(ours) - both.total() > 0
    assert total["deleted"] + total["changed"] == len(theirs) - both.total()


def _texts(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))
