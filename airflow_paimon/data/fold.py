"""The fold before a publish: rewrites buckets of a branch whose sequence numbers are too high.

See docs/design.md, A running writer keeps winning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.commit.idempotency import REFUSALS
from airflow_paimon.core.publish.fold import FOLD
from airflow_paimon.core.table.scan import BucketKey, plan_scan
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import rewrite
from airflow_paimon.data.discarded_files import discard_files
from airflow_paimon.data.write import plan_write

log = logging.getLogger(__name__)


def fold_buckets(branch: Table, limits: Mapping[BucketKey, int]) -> None:
    """Rewrite buckets of a branch, their rows unchanged, so that no sequence number is above the given one: one commit.

    In this process, one bucket after the other. Every publish calls it first where it is needed.

    Raises:
        ConflictError: a bucket changed meanwhile; nothing was published.
    """
    if not limits:
        return
    schema = branch.schema()
    plan = plan_scan(branch, selection=StoredPartitions(schema).those(key.partition for key in limits))
    write = plan_write(branch, by_buckets=True)
    log.info("%s: folding %d buckets", branch.label, len(limits))
    messages = rewrite.fold_buckets(write, plan, limits)
    try:
        properties = {"airflow-paimon.operation": FOLD}
        commit_buckets(branch, messages, CommitOptions(properties=properties), vectors=plan.index_entries)
    except REFUSALS:
        discard_files(write, messages)
        raise
