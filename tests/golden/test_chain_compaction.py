"""Compaction of the golden chain tables: our snapshot branch against the one that connector 2.0.0 left.

And the rewriting of buckets that statements do, without a change: no read may differ.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.publish.bucket_merge_plan import highest_sequence
from airflow_paimon.core.table.partition_text import quoted_partition
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.rewrite import live_bucket, rewrite_bucket
from airflow_paimon.data.write import plan_write
from tests.data.chain.compactions import compact, drop, outcomes
from tests.oracles.canonical import assert_same_rows
from tests.oracles.golden import golden_index
from tests.randomness import every, lives

Golden = Callable[[str], Path]

FUZZ = golden_index("chain-fuzz")


def copied(archive: Path, name: str, folder: Path) -> Table:
    database, table = name.split(".")
    shutil.copytree(archive / "wh" / f"{database}.db" / table, folder / f"{database}.db" / table)
    return open_table(str(folder), name)


@pytest.mark.parametrize("entry", FUZZ or [None], ids=lambda entry: entry["table"] if entry else "no-golden-tables")
@pytest.mark.every(3)
def test_random_tables(golden: Golden, tmp_path: Path, entry: Mapping[str, Any] | None) -> None:
    archive = golden("chain-fuzz")
    assert entry is not None
    table = copied(archive, entry["table"], tmp_path)
    main, asked = read_arrow(table), entry["compact"]
    where = _matches(asked["partition"])
    before = read_arrow(table.branch("snapshot"))
    result = compact(table, quoted_partition(asked["partition"]))
    after = read_arrow(table.branch("snapshot"))
    theirs = pq.read_table(archive / asked["snapshot_after"])
    made = [name for name, outcome in outcomes(result).items() if outcome == "compacted"]
    if asked["result"] or not made:
        assert_same_rows(after, theirs)
    else:
        # connector 2.0.0 skips all groups once one has the partition (docs/howto/chain-maintenance.md, Compaction)
        assert "exists" in outcomes(result).values()
        assert_same_rows(theirs, before)
    assert_same_rows(read_arrow(table), main)
    # what is in main is of main there, and what was in the snapshot branch stays
    full = after.filter(where).num_rows
    assert full == before.filter(where).num_rows + sum(
        r["rows_out"] for r in result.details["partitions"] if r["outcome"] == "compacted"
    )
    again = compact(table, quoted_partition(asked["partition"]))
    assert not again.changed


def test_rewritten_buckets_lose_nothing(golden: Golden, tmp_path: Path) -> None:
    """Every bucket of both branches is written again as an UPDATE does, which keeps one version of each key."""
    archive, rewritten = golden("chain-fuzz"), 0
    for name in every(6, [entry["table"] for entry in FUZZ]):
        table = copied(archive, name, tmp_path)
        expected = read_arrow(table)
        for branch in (table.branch("snapshot"), table.branch("delta")):
            own = read_arrow(branch)
            try:
                write = plan_write(branch, by_buckets=True, chained=True)
            except UnsupportedFeatureError as error:
                assert "merge-engine=partial-update" in error.message
                continue
            plan = plan_scan(branch)
            messages = [
                rewrite_bucket(write, split, live_bucket(plan, split), (), highest_sequence(split.files))
                for split in plan.splits
            ]
            rewritten += len(messages)
            commit_buckets(branch, messages)
            assert_same_rows(read_arrow(branch), own)
            assert_same_rows(read_arrow(table), expected)
    assert rewritten > lives(0, 30)


def _matches(partition: Mapping[str, str]) -> pc.Expression:
    where = pc.scalar(True)
    for column, value in partition.items():
        where = where & (pc.field(column) == value)
    return where


@pytest.mark.parametrize("overwrite", [False, True], ids=["dropped before", "overwrite"])
@pytest.mark.parametrize(
    ("name", "partition", "made"),
    [
        ("ch_daily", "dt=20250814", {"dt=20250814": "compacted"}),
        (
            "ch_group",
            "dt=20250813",
            {
                "region=CN/dt=20250813": "compacted",
                "region=UK/dt=20250813": "compacted",
                "region=US/dt=20250813": "gap",
            },
        ),
    ],
)
def test_what_the_connector_compacted(
    golden: Golden, tmp_path: Path, name: str, partition: str, made: dict[str, str], overwrite: bool
) -> None:
    archive = golden("paimon-2.0.0")
    table = copied(archive, f"d.{name}", tmp_path)
    main, branch = read_arrow(table), table.branch("snapshot")
    if not overwrite:
        drop(table, "snapshot", partition)
    assert outcomes(compact(table, partition, overwrite=overwrite)) == made
    theirs = pq.read_table(archive / "expected" / f"{name}_compacted_snapshot.parquet")
    assert_same_rows(read_arrow(branch), theirs)
    assert_same_rows(read_arrow(table), main)


@pytest.mark.parametrize("name", ["ch_daily", "ch_delete", "ch_group", "ch_partial"])
def test_compacting_everything_changes_no_answer(golden: Golden, tmp_path: Path, name: str) -> None:
    archive = golden("paimon-2.0.0")
    table = copied(archive, f"d.{name}", tmp_path)
    expected = pq.read_table(archive / "expected" / f"{name}_all.parquet")
    assert compact(table, pending=True, max_chain_length=0).changed
    assert_same_rows(read_arrow(table), expected)
    assert not compact(table, pending=True, max_chain_length=0).changed
