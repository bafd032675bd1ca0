"""Random lives of primary-key tables that connector 2.0.0 wrote, nine of each merge engine: every read is right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.data.test_changes import Follower
from tests.oracles.canonical import assert_same_rows
from tests.randomness import every, lives

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
@pytest.mark.every(2)
def test_every_read_of_a_table(golden: Golden, name: str) -> None:
    folder = golden(ARCHIVE)
    entry = entry_of(folder, name)
    assert entry["reads"]
    for read in entry["reads"]:
        table = open_table(str(folder / "wh"), name, branch=read["branch"])
        rows = read_arrow(table, version=version_of(read["version"]))
        assert_same_rows(rows, pq.read_table(folder / read["expected"]))


def test_diffs_of_branches_are_those_of_their_rows(golden: Golden) -> None:
    folder, compared = golden(ARCHIVE), 0
    for name in TABLES:
        branches = {r["branch"] for r in entry_of(folder, name)["reads"]} - {"main", None}
        for branch in sorted(branches):
            table = open_table(str(folder / "wh"), name)
            values = {"warehouse": str(folder / "wh"), "table": name, "branch": branch, "against": "main"}
            request = build_request("diff_branches", values)
            assert isinstance(request, DiffBranches)
            result = run_before_spark(request)
            assert result is not None
            keys = table.schema().primary_keys
            before, after = (_by_key(view, keys) for view in (table, table.branch(branch)))
            both = before.keys() & after.keys()
            total = result.details["total"]
            assert total["added"] == len(after.keys() - both), name
            assert total["deleted"] == len(before.keys() - both), name
            assert total["changed"] == sum(before[k] != after[k] for k in both), name
            compared += 1
    assert compared > 3


def test_buckets_are_read_in_key_order_where_that_is_asked_for(golden: Golden) -> None:
    """With deletion vectors and first-row, batch reads return file after file."""
    folder, out_of_order = golden(ARCHIVE), 0
    for name in TABLES:
        table = open_table(str(folder / "wh"), name)
        keys = table.schema().trimmed_primary_keys
        found = []
        for in_key_order in (False, True):
            read, splits = plan_read(plan_scan(table), in_key_order=in_key_order)
            buckets = [[row for b in read_split(read, s) for row in b.to_pylist()] for s in splits]
            is_sorted = all(rows == sorted(rows, key=lambda r: [r[k] for k in keys]) for rows in buckets)
            assert is_sorted or not in_key_order, name
            out_of_order += not is_sorted
            found.append(sorted(repr(row) for rows in buckets for row in rows))
        assert found[0] == found[1], name
    assert out_of_order > 0


def test_streams_of_changelogs_end_with_the_rows_that_were_emitted(golden: Golden) -> None:
    """From the state after the last overwrite on, whose changes Paimon writes into no changelog."""
    folder, streamed, changes = golden(ARCHIVE), Counter[str](), 0
    for name in TABLES:
        table = open_table(str(folder / "wh"), name)
        options = TableOptions(table.schema().options)
        if options.text("changelog-producer", "none") in ("none", "input"):
            continue
        skipping = {"streaming-read-overwrite": "false"}
        start = {"scan.mode": "from-snapshot-full", "scan.snapshot-id": str(_after_last_overwrite(table))}
        found = Follower(table, row_kind=True, **skipping, **start).all()
        names, keys = table.schema().field_names, table.schema().primary_keys
        state = {}
        for *row, kind in found:
            key = tuple(row[names.index(k)] for k in keys)
            if kind in ("+I", "+U"):
                state[key] = row
            else:
                assert state.pop(key) == row, (name, kind)
        emitted = [row for *row, _ in Follower(table, row_kind=True, **skipping).all()]
        assert sorted(state.values(), key=repr) == sorted(emitted, key=repr), name
        streamed[options.merge_engine] += 1
        changes += sum(kind != "+I" for *_, kind in found)
    assert len(streamed) == 4
    assert changes > 40


def _after_last_overwrite(table: Table) -> int:
    snapshots = table.snapshots(table.snapshot_ids())
    last = max((n for n, s in enumerate(snapshots) if s.commit_kind is CommitKind.OVERWRITE), default=0)
    while last + 1 < len(snapshots) and snapshots[last + 1].commit_kind is CommitKind.COMPACT:
        last += 1
    return snapshots[last].id


def _by_key(table: Table, keys: tuple[str, ...]) -> dict[tuple[Any, ...], str]:
    return {tuple(row[k] for k in keys): repr(row) for row in read_arrow(table).to_pylist()}


def test_filters_and_single_columns_change_nothing(golden: Golden) -> None:
    folder, filtered = golden(ARCHIVE), 0
    for name in every(4, TABLES):
        table = open_table(str(folder / "wh"), name)
        whole = read_arrow(table)
        for number, column in enumerate(whole.column_names):
            assert_same_rows(read_arrow(table, columns=[column]), whole.select([column]))
            values = sorted(set(whole.column(column).to_pylist()) - {None})[number % 3 :: 4][:1]
            for where in [pc.field(column).is_null(), *(pc.field(column) == v for v in values)]:
                assert_same_rows(read_arrow(table, where=where), whole.filter(where))
                filtered += 1
    assert filtered > lives(20, 100)
