"""Fences: whether a branch still holds the files on which a plan was based (docs/chain-tables.md, Compaction)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_paimon.core.chain.layout import Values
from airflow_paimon.core.chain.provenance import files_digest
from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.history import snapshots_between, touched
from airflow_paimon.core.table.scan import BucketSplit, plan_snapshot
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Contents of partitions of one branch at the snapshot ``seen``. ``held``: the digests of those that ``concerns``.

    A partition that ``concerns`` and that is not in ``held`` did not exist.
    """

    table: Table
    schema: TableSchema
    seen: Snapshot | None
    held: Mapping[Values, str]
    concerns: Callable[[Values], bool]

    def moved(self, head: Snapshot | None) -> list[Values]:
        """Return the partitions with other files at ``head``. No reads for an unmoved branch, few otherwise."""
        if _same(self.seen, head) or not self._may_have_moved(head):
            return []
        now: dict[Values, list[BucketSplit]] = {}
        concerned = StoredPartitions(self.schema).where(self.concerns)
        for split in plan_snapshot(self.table, head, self.schema, concerned).splits:
            now.setdefault(split.values, []).append(split)
        digests = {v: files_digest(splits) for v, splits in now.items()}
        return sorted((v for v in {*digests, *self.held} if digests.get(v) != self.held.get(v)), key=repr)

    def _may_have_moved(self, head: Snapshot | None) -> bool:
        """Read only the commits in between, provided that the branch's history continues from ``seen``."""
        if self.seen is None or head is None or head.id < self.seen.id:
            return True
        try:
            if self.table.snapshot(self.seen.id).identity != self.seen.identity:
                return True
        except NotFoundError:
            return True
        between = snapshots_between(self.table, self.seen.id, head.id)
        buckets = None if between is None else touched(self.table, between)
        if buckets is None:
            return True
        return any(map(StoredPartitions(self.schema).where(self.concerns), {b.partition for b in buckets}))


def _same(seen: Snapshot | None, head: Snapshot | None) -> bool:
    if seen is None or head is None:
        return seen is head
    return seen.id == head.id and seen.identity == head.identity
