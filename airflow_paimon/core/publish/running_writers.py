"""Whether running jobs have left the buckets alone that a branch, or some partitions, would replace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.core.publish.overlap import compare
from airflow_paimon.core.table.history import publish_target
from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.open_writers import describe_writers
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table


def branch_writers(main: Table, branch: Table, now_ms: int) -> dict[str, Any]:
    """Describe the jobs at the buckets that a branch has changed, on the branch that it is published onto, as
    ``describe_writers`` does.

    Raises:
        FormatError: a snapshot is missing or corrupt.
    """
    target = publish_target(main, branch)
    schema, compared = target.schema(), compare(target, branch, target.schema())
    sides = None if compared is None else compared.sides.theirs
    buckets = set[BucketKey]() if sides is None else {*sides.removed, *sides.index}
    return describe_writers(target, schema, buckets, target.latest_snapshot(), now_ms)


def partition_writers(view: Table, partitions: Sequence[str], now_ms: int) -> dict[str, Any]:
    """Describe the jobs at the buckets of some partitions (none given: all), as ``describe_writers`` does."""
    schema, head = view.schema(), view.latest_snapshot()
    live = live_columns(view, head, choose_partitions(schema, partitions, view.label).selection(schema))
    form = StoredPartitions(schema).canonical
    buckets = {BucketKey(form(p), b) for p, b in set(zip(live.partitions, live.buckets, strict=True))}
    return describe_writers(view, schema, buckets, head, now_ms)


def look_for_writers(main: Table, branch: str | None, partitions: Sequence[str], now_ms: int) -> dict[str, Any]:
    """Return ``branch_writers`` of a branch, or ``partition_writers`` of main."""
    if branch is None or branch == MAIN:
        return partition_writers(main, partitions, now_ms)
    return branch_writers(main, main.branch(branch).require(), now_ms)
