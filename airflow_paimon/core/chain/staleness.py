"""Finds stale snapshot partitions of a chain table: those that differ from a chain read, as their inputs changed.

A partition's provenance names the files that it was built from. It is stale once one of these inputs holds other files
(and not only because compaction rewrote them), one is gone, a delta came late, the anchor was replaced, or the anchor
is stale itself. Partitions without a record are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime

from airflow_paimon.core.chain.layout import Branch, ChainLayout, TimeLines, Values
from airflow_paimon.core.chain.provenance import Records, files_digest, state_digests, vectors_digests
from airflow_paimon.core.chain.provenance_plan import Part, Provenance
from airflow_paimon.core.chain.state import ChainState, splits_by_partition
from airflow_paimon.core.commit.held_partitions import names_digest
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.table.history import snapshots_between, touched
from airflow_paimon.core.table.scan import ScanPlan, partition_types, read_delta_list, read_entries
from airflow_paimon.core.table.table import Table

NEUTRAL = (CommitKind.COMPACT, CommitKind.ANALYZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StalePartition:
    """A snapshot partition to rebuild or drop.

    ``because``: the inputs that differ. ``cascade``: only its anchor is stale. ``lost``: inputs that are gone, so that
    a rebuild would lose their rows and must be requested explicitly.
    """

    values: Values
    reason: str
    because: tuple[Values, ...]
    cascade: bool = False
    lost: tuple[Values, ...] = ()


def stale_partitions(table: Table, state: ChainState) -> tuple[StalePartition, ...]:
    """Find the stale snapshot partitions of a chain table."""
    return find_stale(state, gather_provenances(table, state.layout, state.snapshot))


def gather_provenances(
    table: Table, layout: ChainLayout, snapshot: ScanPlan, asked: Set[Values] | None = None
) -> dict[Values, Provenance]:
    """Read the provenance of the live (or the given) snapshot partitions; those without a record are left out.

    A partition that only compaction has rewritten since keeps its record.
    """
    held = splits_by_partition(snapshot)
    digests = {v: files_digest(splits) for v, splits in held.items() if asked is None or v in asked}
    if not digests:
        return {}
    records = Records(table, layout, {layout.group_of(v) for v in digests})
    found = records.matching(digests)
    return found | _rewritten(records, layout, snapshot, digests.keys() - found.keys())


def _rewritten(records: Records, layout: ChainLayout, plan: ScanPlan, unknown: Set[Values]) -> dict[Values, Provenance]:
    """Find the records of partitions whose files compaction has rewritten since.

    A record applies to the live files if one commit after its inputs were read added exactly the files that it names,
    and only compaction changed them afterwards.
    """
    earlier = records.of_partitions(unknown)
    pairs = [(r, r.snapshots.get(layout.snapshot_branch)) for found in earlier.values() for r in found]
    if plan.snapshot is None or not pairs:
        return {}
    commits = _real_commits(plan, min(since or 0 for _, since in pairs))
    out: dict[Values, Provenance] = {}
    for record, since in pairs:
        puts = [names.get(record.values) for number, names in commits if number > (since or 0)]
        touches = [put for put in puts if put is not None]
        if len(touches) == 1 and names_digest(touches[0]) == record.files:
            out[record.values] = record
    return out


def _real_commits(plan: ScanPlan, since: int) -> list[tuple[int, dict[Values, list[str]]]]:
    """File names that each commit except compactions added, by snapshot id; empty if some snapshots are gone."""
    head = plan.snapshot
    commits = snapshots_between(plan.table, since, head.id) if head is not None and since <= head.id else None
    out = []
    types = partition_types(plan.schema)
    for snapshot in commits or ():
        if snapshot.commit_kind in NEUTRAL:
            continue
        put: dict[Values, list[str]] = {}
        for entries in read_entries(plan.table, read_delta_list(plan.table, snapshot)):
            for entry in entries:
                names = put.setdefault(decode_row(entry.partition, types), [])
                if entry.kind == FileKind.ADD:
                    names.append(entry.file.file_name)
        out.append((snapshot.id, put))
    return out


def _touched_since(plan: ScanPlan, since: int | None, identity: str | None) -> frozenset[Values] | None:
    """The partitions that commits other than compaction changed after a snapshot (id and, if known, identity); None:
    unknown, or another snapshot has that id now.
    """
    if since is None or plan.snapshot is None or since > plan.snapshot.id:
        return None
    if identity is not None:
        read = plan.table.find_snapshot(since)
        if read is None or read.identity != identity:
            return None  # removed by a rollback, and its id was reused
    commits = snapshots_between(plan.table, since, plan.snapshot.id)
    if commits is None:
        return None
    buckets = touched(plan.table, [s for s in commits if s.commit_kind not in NEUTRAL])
    if buckets is None:
        return None
    types = partition_types(plan.schema)
    return frozenset(decode_row(p, types) for p in {b.partition for b in buckets})


def find_stale(state: ChainState, provenances: Mapping[Values, Provenance]) -> tuple[StalePartition, ...]:
    """Check every snapshot partition with known provenance, group by group in chronological order."""
    return _Judge(state, provenances).all() if provenances else ()


@dataclass(slots=True)
class _Findings:
    """The findings about one partition."""

    reasons: list[str] = field(default_factory=list)
    because: list[Values] = field(default_factory=list)
    lost: list[Values] = field(default_factory=list)
    own: bool = False
    """Whether there is another reason than a stale anchor."""

    def add(self, reason: str, because: Values, *, lost: bool = False, own: bool = True) -> None:
        self.reasons.append(reason)
        self.because.append(because)
        self.own = self.own or own
        if lost:
            self.lost.append(because)


class _Judge:
    def __init__(self, state: ChainState, provenances: Mapping[Values, Provenance]) -> None:
        self.state = state
        self.layout: ChainLayout = state.layout
        self.provenances = provenances
        self.touched: dict[tuple[Branch, int | None, str | None], frozenset[Values] | None] = {}
        self.live = {b: state_digests(state, b) for b in (Branch.SNAPSHOT, Branch.DELTA)}
        self.vectors = {b: vectors_digests(state.plan(b)) for b in (Branch.SNAPSHOT, Branch.DELTA)}
        names = (state.layout.snapshot_branch, state.layout.delta_branch)
        self.names = dict(zip((Branch.SNAPSHOT, Branch.DELTA), names, strict=True))
        self.anchors = TimeLines(self.layout, self.live[Branch.SNAPSHOT])
        self.deltas = TimeLines(self.layout, self.live[Branch.DELTA])
        self.stale: dict[Values, StalePartition] = {}

    def all(self) -> tuple[StalePartition, ...]:
        for line in map(self.anchors.of, {self.layout.group_of(v) for v in self.provenances} & self.anchors.groups):
            for moment, values in zip(line.times, line.values, strict=True):
                built = self.provenances.get(values)
                if built is not None:
                    self._judge(built, moment)
        return tuple(sorted(self.stale.values(), key=lambda s: self.layout.text_of(s.values)))

    def _judge(self, built: Provenance, moment: datetime) -> None:
        found = _Findings()
        self._judge_deltas(built, moment, found)
        self._judge_anchor(built, moment, found)
        if found.reasons:
            self.stale[built.values] = StalePartition(
                values=built.values,
                reason="; ".join(found.reasons),
                because=tuple(found.because),
                cascade=not found.own,
                lost=tuple(found.lost),
            )

    def _judge_deltas(self, built: Provenance, moment: datetime, found: _Findings) -> None:
        live, text = self.live[Branch.DELTA], self.layout.text_of
        after = None if built.anchor is None else self.layout.parsed_time(built.anchor.values)
        recorded = {d.values for d in built.deltas}
        line = self.deltas.of(self.layout.group_of(built.values))
        for late in line.up_to(after, moment):
            if late not in recorded:
                found.add(f"delta {text(late)} came after it was built", late)
        expired = self._expired(built)
        for part in built.deltas:
            if part.values not in live:
                if part.values not in expired:
                    found.add(f"delta {text(part.values)} is gone", part.values, lost=True)
            elif self._changed(Branch.DELTA, part, built):
                found.add(f"delta {text(part.values)} was changed after it was built", part.values)

    def _expired(self, built: Provenance) -> set[Values]:
        """The recorded deltas that were dropped with their anchor, as expiry of whole segments does."""
        earlier = {d.values for d in built.deltas if d.values != built.values}
        gone = built.anchor is not None and built.anchor.values not in self.live[Branch.SNAPSHOT]
        return earlier if gone and not earlier & self.live[Branch.DELTA].keys() else set()

    def _judge_anchor(self, built: Provenance, moment: datetime, found: _Findings) -> None:
        """A missing anchor has no effect: the partition built on it holds its rows."""
        _, now = self.anchors.of(self.layout.group_of(built.values)).before(moment)
        recorded, text = built.anchor, self.layout.text_of
        if recorded is not None and recorded.values in self.live[Branch.SNAPSHOT]:
            if self._changed(Branch.SNAPSHOT, recorded, built):
                found.add(f"anchor {text(recorded.values)} was replaced after it was built", recorded.values)
            elif recorded.values in self.stale:
                found.add(f"its anchor {text(recorded.values)} is stale", recorded.values, own=False)
        if now is None or (recorded is not None and now == recorded.values) or not self._is_nearer(now, recorded):
            return
        if now in self.stale:
            found.add(f"its anchor {text(now)} is stale", now, own=False)
        elif not self._made_of_the_same(now, built):
            found.add(f"a nearer anchor {text(now)} came after it was built", now)

    def _is_nearer(self, now: Values, recorded: Part | None) -> bool:
        if recorded is None:
            return True
        before, after = self.layout.parsed_time(recorded.values), self.layout.parsed_time(now)
        return before is None or (after is not None and after > before)

    def _made_of_the_same(self, anchor: Values, built: Provenance) -> bool:
        """Whether a nearer anchor was built from the same inputs as the partition: then both agree."""
        other = self.provenances.get(anchor)
        if other is None:
            return False
        own = {d.values: d.files for d in built.deltas}
        return other.anchor == built.anchor and all(own.get(d.values) == d.files for d in other.deltas)

    def _changed(self, branch: Branch, part: Part, built: Provenance) -> bool:
        vectors = self.vectors[branch].get(part.values, "")
        if self.live[branch].get(part.values) == part.files and (part.vectors or "") == vectors:
            return False
        name = self.names[branch]
        known = self._touched(branch, built.snapshots.get(name), built.identities.get(name))
        return known is None or part.values in known

    def _touched(self, branch: Branch, since: int | None, identity: str | None) -> frozenset[Values] | None:
        asked = branch, since, identity
        if asked not in self.touched:
            self.touched[asked] = _touched_since(self.state.plan(branch), since, identity)
        return self.touched[asked]
