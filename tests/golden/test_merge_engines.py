"""Random lives of primary-key tables that connector 2.0.0 wrote, nine of each merge engine: every read is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import read_arrow
from tests.oracles.canonical import assert_same_rows

Golden = Callable[[str], Path]

ARCHIVE = "merge-fuzz"
TABLES = [f"d.m{n}" for n in range(1, 37)]


def entry_of(folder: Path, name: str) -> dict[str, Any]:
    index: list[dict[str, Any]] = json.loads((folder / "index.json").read_text())
    (entry,) = [e for e in index if e["table"] == name]
    return entry


def version_of(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text


@pytest.mark.parametrize("name", TABLES)
def test_every_read_of_a_table(golden: Golden, name: str) -> None:
    folder = golden(ARCHIVE)
    entry = entry_of(folder, name)
    assert entry["reads"]
    for read in entry["reads"]:
        table = open_table(str(folder / "wh"), name, branch=read["branch"])
        rows = read_arrow(table, version=version_of(read["version"]))
        assert_same_rows(rows, pq.read_table(folder / read["expected"]))
