"""Look for the snapshots of a branch that a watcher hasn't seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.manifest_entries import read_columns
from airflow_paimon.core.table.manifest_lists import read_delta_lists
from airflow_paimon.core.table.new_snapshots_plan import Cursor, NewSnapshot, base_of, describe_new, ids_above
from airflow_paimon.core.table.partition_values import parse_partition_spec
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.table import Table

_AT_ONCE = 100


class BranchFeed:
    """The new snapshots of one branch for many watchers, which share what any of them has read.

    Call ``look`` at each poll: with a right LATEST hint it costs three small reads, and that is all while nobody
    commits.
    """

    def __init__(self, view: Table) -> None:
        self.view = view
        self._head: Snapshot | None = None
        self._ids: list[int] = []
        self._known: dict[int, Snapshot] = {}

    def look(self) -> Snapshot | None:
        """
        Read the branch's newest snapshot, None while it has none.

        Raises:
            NotFoundError: there is no such table or branch.
        """
        head = self.view.hinted_snapshot()
        if head is None:
            self.view.require()
        self._take(head)
        return head

    def since(self, cursor: Cursor) -> Iterator[NewSnapshot]:
        """
        Give the snapshots that are new as of the last look, ascending, in bounded memory.

        One that expires or is rolled back while it is read ends the iteration; the next ``look`` sees the change.
        """
        if self._head is not None and cursor.head is not None and self._head.id < cursor.head[0]:
            self._take(self.view.latest_snapshot())  # a rollback, or a hint that is behind
        head = self._head
        if head is None or cursor.head == (head.id, head.identity):
            return
        try:
            if not self._ids:
                self._ids = [i for i in self.view.snapshot_ids() if i <= head.id]
            there = set(self._ids)
            remembered = self._read([i for i, _ in cursor.snapshots if i in there])
            base = base_of(cursor, self._ids, {s.id: s.identity for s in remembered})
            ids = ids_above(base, self._ids, cursor)
            for start in range(0, max(len(ids), 1), _AT_ONCE):
                for new in describe_new(self._read(ids[start : start + _AT_ONCE]), head, cursor, base):
                    cursor, base = cursor.then(new), new.snapshot.id
                    yield new
        except NotFoundError:
            self._ids = []

    def partitions_of(self, snapshot: Snapshot, specs: Sequence[str]) -> list[str]:
        """Return those of the partition specs in which a snapshot added or deleted files; reads its new manifests."""
        stored = StoredPartitions(self.view.schema(snapshot.schema_id))
        wanted = {spec: stored.selection([parse_partition_spec(spec, stored.keys, stored.types)]) for spec in specs}
        manifests = [m for m in read_delta_lists(self.view, [snapshot]) if any(w.may_be_in(m) for w in wanted.values())]
        touched = {p for columns in read_columns(self.view, manifests) for p in columns.partitions}
        return [spec for spec, selection in wanted.items() if any(map(selection, touched))]

    def _take(self, head: Snapshot | None) -> None:
        if head is None or self._head is None or head.identity != self._head.identity:
            self._known, self._ids = {}, []
        self._head = head

    def _read(self, ids: Sequence[int]) -> list[Snapshot]:
        for snapshot in self.view.snapshots([i for i in ids if i not in self._known]):
            self._known[snapshot.id] = snapshot
        return [self._known[i] for i in ids]


def partitions_written(view: Table, after: int, until: int) -> list[str]:
    """Return the partitions in which the snapshots ``after < id <= until`` added or deleted files, such as ``dt=1``.

    Their new manifests are read. Empty for a table without partitions.

    Raises:
        NotFoundError: none of the snapshots is there.
    """
    snapshots = list(view.snapshots([i for i in view.snapshot_ids() if after < i <= until]))
    if not snapshots:
        raise NotFoundError(f"{view.label}: the snapshots above {after} up to {until} have expired")
    stored = StoredPartitions(view.schema(snapshots[-1].schema_id))
    manifests = read_delta_lists(view, snapshots)
    touched = {p for columns in read_columns(view, manifests) for p in columns.partitions}
    return sorted(stored.text(partition) for partition in touched) if stored.keys else []
