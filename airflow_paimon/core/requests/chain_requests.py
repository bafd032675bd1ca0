"""Requests of the operations on chain tables, and of partition expiry."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_paimon.core.requests.base import Request, flag
from airflow_paimon.core.requests.words import GRAMMAR, STRATEGIES

GAP_POLICIES = ("empty", "carry_forward")


@dataclass(frozen=True, kw_only=True)
class CreateChainTable(Request):
    operation = "create_chain_table"
    needs_table = False
    column: tuple[str, ...] = flag(
        "Column of a new table: name TYPE [NOT NULL] ['comment'] (repeat); without any, an existing table is converted",
        (),
        repeat=True,
    )
    primary_key: tuple[str, ...] = flag("Primary key column of a new table (repeat)", (), repeat=True)
    partition_key: tuple[str, ...] = flag("Partition column of a new table (repeat)", (), repeat=True)
    option: tuple[str, ...] = flag("Table option, key=value (repeat)", (), repeat=True)
    snapshot_branch: str = flag("Branch that holds full partitions", "snapshot")
    delta_branch: str = flag("Branch that holds changes", "delta")
    chain_partition_key: tuple[str, ...] = flag(
        "Partition column of the partition time (repeat); by default all", (), repeat=True
    )
    timestamp_pattern: str | None = flag("Pattern of the partition time over the chain columns, e.g. '$dt'")
    timestamp_formatter: str | None = flag("Format of the partition time, e.g. yyyyMMdd")
    sequence_field: tuple[str, ...] = flag("Column that orders the versions of a row (repeat)", (), repeat=True)


@dataclass(frozen=True, kw_only=True)
class AlterChainTable(Request):
    operation = "alter_chain_table"
    change: tuple[str, ...] = flag(
        f"Schema change for all three branches (repeat): {'; '.join(GRAMMAR)}",
        (),
        repeat=True,
    )


@dataclass(frozen=True, kw_only=True)
class CheckChainTable(Request):
    operation = "check_chain_table"


@dataclass(frozen=True, kw_only=True)
class CompactChainTable(Request):
    operation = "compact_chain_table"
    partition: tuple[str, ...] = flag(
        "Partition to compact, k=v,...; without group columns: in every group (repeat)", (), repeat=True
    )
    from_: str | None = flag("First partition of a range, k=v,... of the chain columns")
    to: str | None = flag("Last partition of a range")
    pending: bool = flag("Compact every chain of more than --max-chain-length deltas, and stale partitions", False)
    max_chain_length: int | None = flag("With --pending: the most deltas that a chain may have")
    overwrite: bool = flag("Rebuild partitions that the snapshot branch already has", False)
    gap_policy: str = flag("What to do for a partition without a delta", "empty", choices=GAP_POLICIES)
    task_memory_mb: int = flag(
        "Approximate MiB of rows that a task holds in memory, whatever the size of a bucket", 256, minimum=1
    )


@dataclass(frozen=True, kw_only=True)
class ExpirePartitions(Request):
    operation = "expire_partitions"
    branch: str = flag("Branch to expire; chain tables always expire as a whole", "main")
    expiration_time: str | None = flag("Age, e.g. '30 d'; by default the option partition.expiration-time")
    strategy: str | None = flag(
        "values-time or update-time; by default the option partition.expiration-strategy", choices=STRATEGIES
    )
    timestamp_pattern: str | None = flag("By default the option partition.timestamp-pattern")
    timestamp_formatter: str | None = flag("By default the option partition.timestamp-formatter")
    min_anchors: int = flag("Chain tables: the least number of full partitions that each group keeps", 1)
    limit: int | None = flag(
        "The most partitions (chain tables: segments per group) to expire in one run; "
        "by default the option partition.expiration-max-num (100)"
    )
