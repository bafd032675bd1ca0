"""Reads what a stream needs: its starting point, how far it can go, and the units of each snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.streaming import stream_plan
from airflow_paimon.core.streaming.stream_plan import Position, Source, Start, Step, StreamRules, Unit
from airflow_paimon.core.table.history import difference
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.manifest_lists import read_changelog_list, read_delta_lists
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import plan_snapshot
from airflow_paimon.core.table.table import Table, parse_timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUnits:
    """The units of a step, with the snapshots whose deletion vectors apply (None = none)."""

    units: tuple[Unit, ...]
    after: Snapshot | None = None
    before: Snapshot | None = None


UnitsKey = tuple[int, str, bool, int]
"""A snapshot's id and identity, whether all its rows are read, and the id of the schema of the read."""
_MOST_KNOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream of one branch: ``table`` is the view of that branch, ``max_files`` bounds a batch.

    ``known``: the units of snapshots that are yet to be read or read in part, which never change. With ``max_files`` a
    snapshot is divided into many batches, each of which would plan it twice.
    """

    table: Table
    schema: TableSchema
    rules: StreamRules
    max_files: int | None = None
    known: dict[UnitsKey, StepUnits] = field(default_factory=dict)

    # -- positions -------------------------------------------------------------------------------------------------

    def origin(self, start: Start) -> Position:
        """Find where a new stream starts.

        Raises:
            NotFoundError: the snapshot or tag doesn't exist, or rows that were asked for have expired.
            InvalidInputError: a snapshot that is yet to come.
        """
        if start.mode in stream_plan.AT_A_SNAPSHOT:
            return self._origin_at(start)
        if start.mode == stream_plan.FROM_TIMESTAMP:
            return self._origin_at_time(parse_timestamp(start.timestamp or ""))
        head = self.table.latest_snapshot()
        if head is None:
            self.table.require()
            return Position()
        return _all_of(head) if start.mode == stream_plan.LATEST else _none_of(head)

    def _origin_at(self, start: Start) -> Position:
        number, tag = start.snapshot_id or 1, None if start.tag is None else self.table.tag(start.tag).snapshot
        if start.mode == stream_plan.FROM_SNAPSHOT:
            return self._before(number if tag is None else tag.id)
        found = self.table.snapshot(number) if tag is None else tag
        return _none_of(found) if start.mode == stream_plan.FROM_SNAPSHOT_FULL else _all_of(found)

    def _before(self, snapshot_id: int) -> Position:
        """Return the position with which this snapshot is the next one."""
        ids = self.table.snapshot_ids()
        if snapshot_id not in ids:
            self.table.require()
            if ids and snapshot_id < ids[0]:
                raise self._expired(snapshot_id, ids[0])
            if snapshot_id != (ids[-1] if ids else 0) + 1:
                raise InvalidInputError(
                    f"{self.table.label} has no snapshot {snapshot_id} to start from; "
                    f"{f'its newest is {ids[-1]}' if ids else 'it has none'}"
                )
        before = self.table.find_snapshot(snapshot_id - 1)
        return Position(snapshot=snapshot_id - 1) if before is None else _all_of(before)

    def _origin_at_time(self, time_ms: int) -> Position:
        # Not searched: where clocks differ, the first snapshot of that time may follow a later one.
        before = None
        snapshots = self.table.snapshots()
        for snapshot in snapshots:
            if snapshot.time_millis >= time_ms:
                break
            before = snapshot
        if before is not None:
            return _all_of(before)
        if snapshots and snapshots[0].id > 1:
            raise NotFoundError(
                f"{self.table.label}: snapshots since {time_ms} ms have expired; the earliest that is left is "
                f"{snapshots[0].id}, of {snapshots[0].time_millis} ms. Start there with scan.snapshot-id, or read all "
                f"rows first (scan.mode=latest-full)"
            )
        self.table.require()
        return Position()

    def newest(self) -> Position:
        """Return the position after the newest snapshot."""
        head = self.table.latest_snapshot()
        return Position() if head is None else _all_of(head)

    def next_end(self, at: Position, until: Position | None = None) -> Position | None:
        """Return how far the next batch goes: to the newest snapshot, or as far as ``max_files`` allows.

        None = nothing is new. ``until``: not further than there.

        Raises:
            UnsafeOperationError: the history was replaced below ``at``. NotFoundError: rows after it have expired.
        """
        head = self.table.latest_snapshot()
        self._check(at, head)
        for key in [k for k in self.known if k[0] < at.snapshot]:
            del self.known[key]
        last = Position() if head is None else _all_of(head)
        if until is not None and until.snapshot < last.snapshot:
            last = until
        if last.snapshot < at.snapshot or (last.snapshot == at.snapshot and at.is_complete):
            return None
        last = replace(last, full=at.full and last.snapshot == at.snapshot)
        if self.max_files is None:
            return last
        return self._end_within(at, last, self.max_files)

    def _end_within(self, at: Position, end: Position, budget: int) -> Position:
        taken = 0
        for step in stream_plan.steps_between(at, end):
            snapshot = self._snapshot(step)
            units = self._known_units(snapshot, step.full).units
            number, taken = stream_plan.units_within(units, step.first, budget, taken)
            if number < len(units):
                return Position(snapshot=snapshot.id, identity=snapshot.identity, full=step.full, units=number)
            if taken >= budget:
                return Position(snapshot=snapshot.id, identity=snapshot.identity, full=step.full)
        return end

    def _check(self, at: Position, head: Snapshot | None) -> None:
        newest = 0 if head is None else head.id
        found = head if head is not None and newest == at.snapshot else self.table.find_snapshot(at.snapshot)
        if newest < at.snapshot or (found is not None and at.identity and found.identity != at.identity):
            raise self._replaced(at.snapshot)

    # -- units -----------------------------------------------------------------------------------------------------

    def read(self, start: Position, end: Position) -> list[StepUnits]:
        """Read the units between two positions: the same ones each time, as snapshots never change.

        Raises:
            UnsafeOperationError: the history was replaced, or an OVERWRITE came unexpectedly (``changes_of``).
            NotFoundError: a snapshot has expired.
        """
        self._check(start, self.table.latest_snapshot())
        steps = stream_plan.steps_between(start, end)
        out = []
        for step in steps:
            found = self._known_units(self._snapshot(step), step.full)
            last = len(found.units) if step.last == stream_plan.ALL else step.last
            units = found.units[step.first : last]
            if units:
                out.append(StepUnits(units=units, after=found.after, before=found.before))
        return out

    def _snapshot(self, step: Step) -> Snapshot:
        found = self.table.find_snapshot(step.snapshot)
        if found is None and step.full:
            tags = (t.snapshot for t in self.table.tags())
            found = next((s for s in tags if s.id == step.snapshot and s.identity == step.identity), None)
        if found is None:
            ids = self.table.snapshot_ids()
            if ids and step.snapshot < ids[0]:
                raise self._expired(step.snapshot, ids[0])
            raise self._replaced(step.snapshot)
        if step.identity and found.identity != step.identity:
            raise self._replaced(step.snapshot)
        return found

    def _known_units(self, snapshot: Snapshot, full: bool) -> StepUnits:
        if self.max_files is None:
            return self._units(snapshot, full)
        key = snapshot.id, snapshot.identity, full, self.schema.id
        if key not in self.known:
            while len(self.known) >= _MOST_KNOWN:
                self.known.pop(min(self.known))
            self.known[key] = self._units(snapshot, full)
        return self.known[key]

    def _units(self, snapshot: Snapshot, full: bool) -> StepUnits:
        if full:
            scan = plan_snapshot(self.table, snapshot, self.schema)
            return StepUnits(
                units=tuple(stream_plan.units_of_state(scan.splits, self.schema, self.rules)), after=snapshot
            )
        source = stream_plan.changes_of(snapshot, self.rules, self.table.label)
        if source is Source.NOTHING:
            return StepUnits(units=())
        if source is Source.DIFFERENCE:
            return self._difference(snapshot)
        if source is Source.CHANGELOG:
            manifests = read_changelog_list(self.table, snapshot)
        else:
            manifests = read_delta_lists(self.table, [snapshot])
        entries = (e for part in read_entries(self.table, manifests) for e in part)
        return StepUnits(units=tuple(stream_plan.units_of_entries(entries, self.schema, self.rules)))

    def _difference(self, snapshot: Snapshot) -> StepUnits:
        before = self.table.find_snapshot(snapshot.id - 1) if snapshot.id > 1 else None
        if before is None and snapshot.id > 1:
            raise self._expired(snapshot.id - 1, snapshot.id)
        changed = difference(self.table, before, snapshot)
        old, new = (self._buckets(s, changed.buckets) for s in (before, snapshot))
        if not self.rules.keyed:  # rows in files that both have are the same, unless their deletion vectors differ
            both = {f.file_name for s in old for f in s.files} & {f.file_name for s in new for f in s.files}
            old, new = ([_without(s, both, changed.index.keys(), self.schema) for s in side] for side in (old, new))
        units = stream_plan.units_of_difference(old, new, self.schema)
        return StepUnits(units=tuple(u for u in units if u.files), after=snapshot, before=before)

    def _buckets(self, snapshot: Snapshot | None, wanted: set[BucketKey]) -> list[BucketSplit]:
        stored = StoredPartitions(self.schema)
        selection = stored.those(b.partition for b in wanted)
        splits = plan_snapshot(self.table, snapshot, self.schema, selection).splits
        return [s for s in splits if stored.bucket(s) in wanted]

    # -- errors ----------------------------------------------------------------------------------------------------

    def _expired(self, snapshot_id: int, earliest: int) -> NotFoundError:
        return NotFoundError(
            f"{self.table.label}: snapshot {snapshot_id}, which the stream reads next, has expired (earliest: "
            f"{earliest}), so rows would be missed. Use a new checkpoint location with scan.mode=latest-full, and "
            "consumer-id, which keeps unread snapshots",
            details={"snapshot": snapshot_id, "earliest": earliest},
        )

    def _replaced(self, snapshot_id: int) -> UnsafeOperationError:
        return UnsafeOperationError(
            f"{self.table.label} was rolled back or fast-forwarded by another engine at or below snapshot "
            f"{snapshot_id}, the stream's position: rows would be missed or come twice. Use a new checkpoint "
            "location, or set scan.mode and scan.snapshot-id",
            details={"snapshot": snapshot_id},
        )


def _all_of(snapshot: Snapshot) -> Position:
    return Position(snapshot=snapshot.id, identity=snapshot.identity)


def _none_of(snapshot: Snapshot) -> Position:
    return Position(snapshot=snapshot.id, identity=snapshot.identity, full=True, units=0)


def _without(split: BucketSplit, names: set[str], redone: Iterable[BucketKey], schema: TableSchema) -> BucketSplit:
    if StoredPartitions(schema).bucket(split) in redone:
        return split
    return replace(split, files=tuple(f for f in split.files if f.file_name not in names))
