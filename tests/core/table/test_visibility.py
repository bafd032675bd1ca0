"""Which files of a table batch reads don't show: on tables that Paimon wrote, beside what it read from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import open_table
from airflow_paimon.core.table.visibility import invisible_files

Golden = Callable[[str], Path]

# of first-row and deletion-vector tables: the files that wait, and whether reads show anything else
WAITING = {"m3": 20, "m19": 8, "m23": 3, "m11": 0, "m12": 0, "m14": 0, "m7": 0}


@pytest.mark.parametrize("name", WAITING)
def test_rows_that_paimon_did_not_show_lie_in_the_files_found(golden: Golden, name: str) -> None:
    folder = golden("merge-fuzz")
    table = open_table(str(folder / "wh"), f"d.{name}")
    entries = list(live_entries(table, table.latest_snapshot()).values())
    hidden = invisible_files(entries, table.schema())
    assert len(hidden) == WAITING[name]
    if hidden:
        shown = sum(e.file.row_count for e in entries) - sum(e.file.row_count for e in hidden)
        (read,) = [r for r in _reads(folder, name) if r["version"] is None and (r["branch"] or "main") == "main"]
        assert pq.read_table(folder / read["expected"]).num_rows == shown
        assert sum(e.file.row_count for e in hidden) > 0


def _reads(folder: Path, name: str) -> list[dict[str, str]]:
    index = json.loads((folder / "index.json").read_text())
    (entry,) = [e for e in index if e["table"] in (name, f"d.{name}")]
    return list(entry["reads"])


HIDE = [
    ({"merge-engine": "first-row"}, True),
    ({"deletion-vectors.enabled": "true"}, True),
    ({"deletion-vectors.enabled": "true", "deletion-vectors.merge-on-read": "true"}, False),
    ({"changelog-producer": "lookup", "write-only": "true"}, False),
    ({"changelog-producer": "full-compaction", "write-only": "true"}, False),
    ({"merge-engine": "aggregation"}, False),
]


@pytest.mark.parametrize(("options", "hides"), HIDE)
def test_only_deletion_vectors_and_first_row_hide_level_zero(
    golden: Golden, options: dict[str, str], hides: bool
) -> None:
    table = open_table(str(golden("merge-fuzz") / "wh"), "d.m3")
    entries = list(live_entries(table, table.latest_snapshot()).values())
    plain = {k: v for k, v in table.schema().options.items() if not k.startswith(("merge-engine", "deletion-"))}
    schema: TableSchema = replace(table.schema(), options=plain | options)
    assert bool(invisible_files(entries, schema)) is hides
    assert not invisible_files(entries, replace(schema, primary_keys=())), (
        "an append table has level 0 only, and shows it"
    )
    postponed = [e._replace(bucket=-2) for e in entries]
    assert len(invisible_files(postponed, schema)) == len(entries)
