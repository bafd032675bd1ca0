"""``merge_branch --rewrite``: fold a branch's buckets so that a writer that stays open on main keeps winning."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_paimon.core.commit_files import commit_buckets
from airflow_paimon.core.scan import BucketKey, plan_scan
from airflow_paimon.core.table import Table
from airflow_paimon.data.rewrite import fold_buckets
from airflow_paimon.data.write import plan_write


def fold(branch: Table, highest: Mapping[BucketKey, int]) -> None:
    """Rewrite these buckets with no sequence number above the given one, in one commit on the branch.

    One bucket at a time, streamed, in this process.

    Raises:
        ConflictError: a bucket changed meanwhile. UnsupportedFeatureError: a feature that this engine does not write.
    """
    messages = fold_buckets(plan_write(branch, overwrite=True), plan_scan(branch), highest)
    commit_buckets(branch, messages, properties={"airflow-paimon.operation": "fold"})
