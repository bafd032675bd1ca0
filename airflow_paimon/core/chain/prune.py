"""Deletes provenance records whose partitions are gone, so that their number stays bounded."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime

from airflow_paimon.core.chain.layout import Branch, Values
from airflow_paimon.core.chain.provenance import Records, group_folder, state_digests
from airflow_paimon.core.chain.prune_plan import has_too_many, superfluous
from airflow_paimon.core.chain.state import ChainState, gather_chain
from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.plan import Delete, Plan
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)


def prune_records(
    table: Table, now_ms: int, state: ChainState | None = None, groups: Collection[Values] | None = None
) -> int:
    """Prune the groups (None: all) that have many more records than full partitions; return how many were deleted.

    ``state``: a recent state of the branches (None: it is read). Records are listed before the branches are read again,
    so that the record of a commit that lands in between belongs to live files. A failure is logged, never raised.
    """
    try:
        return _prune(table, state or gather_chain(table), now_ms, groups)
    except PaimonError as error:
        log.warning("%s: old provenance records were not pruned (%s)", table.label, error.message)
        return 0


def _prune(table: Table, state: ChainState, now_ms: int, groups: Collection[Values] | None) -> int:
    layout, held = state.layout, state.partitions
    if groups is None:
        groups = {layout.group_of(v) for v in held.snapshot | held.delta}
    records = Records(table, layout, groups)
    listed = Counter(path.rpartition("/")[0] for path in records.paths)
    full = Counter(layout.group_of(v) for v in held.snapshot)
    crowded = {g for g in groups if has_too_many(listed[group_folder(layout, g)], full[g])}
    if not crowded:
        return 0
    found = Records(table, layout, crowded).all()
    now = gather_chain(table)
    live = state_digests(now, Branch.SNAPSHOT)
    moment = datetime.fromtimestamp(min(now_ms / 1000, time.time()), UTC)  # never later than the clock
    found = {path: r for path, r in found.items() if layout.group_of(r.values) in crowded}
    gone = superfluous(found, live, now.partitions.delta, moment)
    actions = tuple(Delete(path=path, reason="its partition is gone") for path in gone)
    execute(table, Plan(operation="prune_records", table=table.name, actions=actions))
    return len(gone)
