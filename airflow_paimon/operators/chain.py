"""Operators for chain tables: set up, check, alter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.operators._base import PaimonOperator

__all__ = ["AlterChainTableOperator", "CheckChainTableOperator", "CreateChainTableOperator"]


class AlterChainTableOperator(PaimonOperator):
    """
    Apply one schema change to the three branches of a chain table: all of them or, if one can't take it, none.

    A run that was cut off is finished by the next try.

    :param change: ``add column NAME TYPE``, ``drop column NAME``, ``rename column NAME to NAME``,
        ``alter column NAME type TYPE``, ``set KEY=VALUE``, ``reset KEY`` (templated)
    """

    operation = "alter_chain_table"
    template_fields: Sequence[str] = (*PaimonOperator.template_fields, "change")

    def __init__(self, *, change: Sequence[str] | str = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.change = change


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
    template_fields: Sequence[str] = (
        *PaimonOperator.template_fields,
        "column",
        "primary_key",
        "partition_key",
        "option",
        "snapshot_branch",
        "delta_branch",
        "chain_partition_key",
        "timestamp_pattern",
        "timestamp_formatter",
        "sequence_field",
    )

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
        self.column = column
        self.primary_key = primary_key
        self.partition_key = partition_key
        self.option = option
        self.snapshot_branch = snapshot_branch
        self.delta_branch = delta_branch
        self.chain_partition_key = chain_partition_key
        self.timestamp_pattern = timestamp_pattern
        self.timestamp_formatter = timestamp_formatter
        self.sequence_field = sequence_field
