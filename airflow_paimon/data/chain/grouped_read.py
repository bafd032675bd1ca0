"""Reads of chain tables with many files that one process plans: it sorts their entries into groups, in about 40 bytes
each, and plans one group after the other, so that no more than one has objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from airflow_paimon.core.parallel.sorted_runs import Kept, SortedRuns
from airflow_paimon.core.table.read_once import reading_once
from airflow_paimon.core.table.scan import plan_state, with_schemas
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import grouped_read
from airflow_paimon.data.chain.groups import ChainGroups
from airflow_paimon.data.chain.scan import ChainRead, PinnedChain, choose_chain
from airflow_paimon.data.chain.whole_read import (
    ChainGroupRead,
    WholeChain,
    has_more_entries,
    plan_chain_or_whole,
    plan_group,
    plan_pinned_chain_or_whole,
    sort_out,
)
from airflow_paimon.data.scan import TableRead

_FILES, _MOST_GROUPS = 2000, 20_000
"""Files of a group, about."""
_MEMORY_BYTES = 64 << 20
"""What is kept in memory of the entries; the rest lies in a temporary file."""


class PlannedChain(NamedTuple):
    """What to read. ``main``: defines the output, without the files' schemas. ``reads`` can be taken once."""

    main: TableRead
    reads: Iterable[ChainRead]


def plan_chain_by_groups(table: Table, **asked: Any) -> PlannedChain:
    """Plan a read as ``plan_chain`` does, whose arguments are ``asked``. The files are chosen now; what is wrong with
    one of very many is raised when its group is planned.
    """
    return by_groups(plan_chain_or_whole(table, **asked, more_than=grouped_read.MANY_ENTRIES))


def plan_pinned_chain_by_groups(pinned: PinnedChain, **asked: Any) -> PlannedChain:
    """Plan a read of a pinned state, as ``plan_chain_by_groups``."""
    return by_groups(plan_pinned_chain_or_whole(pinned, **asked, more_than=grouped_read.MANY_ENTRIES))


def pin_chain(table: Table, version: int | str | None = None, timestamp: int | str | None = None) -> PinnedChain:
    """Choose the state of a chain table from which any number of reads can be planned, with its files unless they are
    many.

    Raises:
        PaimonError: as ``plan_chain``.
    """
    with reading_once():
        chosen = choose_chain(table, version, timestamp)
        if has_more_entries(chosen, grouped_read.MANY_ENTRIES):
            return chosen.partitions_only()
        return chosen.planned(lambda state: with_schemas(plan_state(state)))


def by_groups(found: ChainRead | WholeChain) -> PlannedChain:
    """Return what was planned, or what this process plans group by group."""
    if isinstance(found, ChainRead):
        return PlannedChain(found.inputs.main, [found])
    return PlannedChain(found.base.inputs.main, _planned(*_grouped(found)))


_Parts = dict[int, list[Kept]]


def _grouped(whole: WholeChain) -> tuple[ChainGroupRead, ChainGroups, _Parts]:
    """Sort the files of a read into groups.

    Raises:
        FormatError: a manifest is missing or corrupt. UnsupportedFeatureError: an index file that is not read here.
        StorageError: the disk of temporary files is full.
    """
    groups = whole.divided(max(_FILES, -(-whole.files // _MOST_GROUPS)))
    kept, parts = SortedRuns(_MEMORY_BYTES), dict[int, list[Kept]]()
    plans = whole.of.state.plans
    schema_ids: tuple[set[int], ...] = tuple(set() for _ in plans)
    with reading_once():
        for one in sort_out(whole.of, groups, whole.listed):
            parts.setdefault(one.group, []).append(kept.keep(one.data))
            schema_ids[one.data[0]].update(one.schema_ids)
        main, snapshot, delta = map(with_schemas, plans, schema_ids)
    state = replace(whole.of.state, main=main, snapshot=snapshot, delta=delta)
    return replace(whole.of, state=state), groups, parts


def _planned(of: ChainGroupRead, groups: ChainGroups, parts: _Parts) -> Iterator[ChainRead]:
    """Plan one group after the other."""
    for group in range(len(groups)):
        yield plan_group(of, groups.reads(group), (bytes(part.read()) for part in parts.get(group, ())))
