"""Lives of row-tracking tables by Paimon's connector: every read, and all rows with their ids after every statement."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from tests.oracles.canonical import assert_same_rows
from tests.oracles.golden import golden_index

Golden = Callable[[str], Path]

ARCHIVE = "row-tracking-fuzz"
LIVES = [e for e in golden_index(ARCHIVE) if "data-evolution.enabled" not in e["options"]]
IDS = ("_ROW_ID", "_SEQUENCE_NUMBER")


@pytest.mark.parametrize("life", LIVES or [None], ids=lambda life: life["table"] if life else "no-golden-tables")
@pytest.mark.every(3)
def test_life(golden: Golden, life: dict | None) -> None:  # type: ignore[type-arg]
    archive = golden(ARCHIVE)
    assert life is not None
    for read in life["reads"]:
        table = open_table(str(archive / "wh"), life["table"], branch=read["branch"])
        version = int(read["version"]) if (read["version"] or "").isdigit() else read["version"]
        expected = pq.read_table(archive / read["expected"])
        rows = read_arrow(table, version=version, columns=expected.column_names)
        assert_same_rows(rows, expected)
        _check_filters(table, version, rows)
    views = [open_table(str(archive / "wh"), life["table"])]
    views += [views[0].branch(name) for name in views[0].branch_names()]
    for at, view in enumerate(views):
        _check_steps(view, [step[at] for step in life["steps"] if len(step) > at])


def _check_filters(table: Table, version: int | str | None, rows: pa.Table) -> None:
    """A filter on an id or a version, which skips files, gives what filtering all rows gives."""
    for column, values in ((name, rows.column(name)) for name in IDS):
        for value in pc.unique(values).to_pylist()[:2]:
            for where in (pc.field(column) == value, pc.field(column) < value):
                found = read_arrow(table, version=version, columns=rows.column_names, where=where)
                assert_same_rows(found, rows.filter(where))
                assert read_arrow(table, version=version, columns=["id"], where=where).num_rows == found.num_rows


def _check_steps(view: Table, steps: list[list[str]]) -> None:
    """Each statement's rows are those of one of the snapshots, in order; a statement may have made none."""
    columns = [*view.schema().field_names, *IDS]
    snapshots = iter(view.snapshot_ids())
    shown: list[str] = []
    for step in steps:
        while shown != step:
            rows = read_arrow(view, version=next(snapshots), columns=columns)
            shown = sorted(json.dumps(list(row.values())) for row in rows.to_pylist())
