"""Operators for chain tables: compact, set up, check, alter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.operators._base import PaimonOperator, keeps_arguments

__all__ = [
    "AlterChainTableOperator",
    "ChainCompactOperator",
    "CheckChainTableOperator",
    "CreateChainTableOperator",
]


class ChainCompactOperator(PaimonOperator):
    """
    Compact partitions of a chain table: anchor and deltas become a full partition of the snapshot branch.

    Name partitions, a range, or what has grown too long; ``partition`` narrows the latter two, to one group, say. Each
    partition is committed on its own, in ``details["partitions"]`` with its outcome: ``compacted``, ``stale-rebuilt``,
    ``already-there``, ``gap``, ``nothing-to-do``. A retry goes on where the first try stopped.

    :param partition: ``k=v,...``; without group columns: in every group (templated)
    :param from_: first partition of a range, ``k=v,...`` of the chain columns (templated)
    :param to: last partition of a range (templated)
    :param pending: whatever has grown longer than ``max_chain_length``, and what is stale (templated)
    :param max_chain_length: with ``pending``: how many deltas a chain may have (templated)
    :param overwrite: build partitions that the snapshot branch already has again (templated)
    :param gap_policy: ``empty`` or ``carry_forward``: make partitions without a delta full, too (templated)
    :param task_memory_mb: MiB of rows that a Spark task holds at once, about, however large a bucket is (templated)
    """

    operation = "compact_chain_table"

    @keeps_arguments
    def __init__(
        self,
        *,
        partition: Sequence[str] | str = (),
        from_: str | None = None,
        to: str | None = None,
        pending: bool | str = False,
        max_chain_length: int | str | None = None,
        overwrite: bool | str = False,
        gap_policy: str = "empty",
        task_memory_mb: int | str = 256,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        details = result["details"]
        found = details.get("partitions") or details.get("plan", {}).get("partitions", ())
        return [_partition_line(one) for one in found]


def _partition_line(one: Mapping[str, Any]) -> str:
    text = f"{one['partition']}: {one.get('outcome') or one.get('action')}: {one['reason']}"
    if "rows_in" in one:
        text += f"; {one['rows_in']:,} rows in {one['files_in']} files"
    if "rows_out" in one:
        text += f" became {one['rows_out']:,} in {one['files_out']}"
    return text


class AlterChainTableOperator(PaimonOperator):
    """
    Apply one schema change to the three branches of a chain table: all of them or, if one can't take it, none.

    A run that was cut off is finished by the next try.

    :param change: ``add column NAME TYPE``, ``drop column NAME``, ``rename column NAME to NAME``,
        ``alter column NAME type TYPE``, ``set KEY=VALUE``, ``reset KEY`` (templated)
    """

    operation = "alter_chain_table"

    @keeps_arguments
    def __init__(self, *, change: Sequence[str] | str = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)


class CheckChainTableOperator(PaimonOperator):
    """
    Check options, branches, schemas and partitions of a chain table: drift, gaps, stale partitions, hidden deltas.

    The findings are in ``details``, worst first; ``details["ok"]`` is true when none is an error or a warning.
    """

    operation = "check_chain_table"


class CreateChainTableOperator(PaimonOperator):
    """
    Create a chain table, or make an existing primary-key table one: the branches and all options, in one go.

    Everything is checked before the first write; a run that was cut off is finished by the next try.

    :param column: columns of a new table, ``name TYPE [NOT NULL] ['comment']``; none to convert a table (templated)
    :param primary_key: primary key columns of a new table (templated)
    :param partition_key: partition columns of a new table, group columns first (templated)
    :param option: further table options, ``key=value`` (templated)
    :param snapshot_branch: branch that holds full partitions (templated)
    :param delta_branch: branch that holds changes (templated)
    :param chain_partition_key: the last partition columns, which make the time; all when left out (templated)
    :param timestamp_pattern: how these make a time, such as ``$dt`` (templated)
    :param timestamp_formatter: the pattern's form, such as ``yyyyMMdd`` (templated)
    :param sequence_field: columns that say which version of a row is newer (templated)
    """

    operation = "create_chain_table"

    @keeps_arguments
    def __init__(
        self,
        *,
        column: Sequence[str] | str = (),
        primary_key: Sequence[str] | str = (),
        partition_key: Sequence[str] | str = (),
        option: Sequence[str] | str = (),
        snapshot_branch: str = "snapshot",
        delta_branch: str = "delta",
        chain_partition_key: Sequence[str] | str = (),
        timestamp_pattern: str | None = None,
        timestamp_formatter: str | None = None,
        sequence_field: Sequence[str] | str = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
