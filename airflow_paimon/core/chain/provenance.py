"""Provenance records of partitions of a chain table's snapshot branch, files under ``_airflow_paimon/chain/``; and the
partitions that are stale by them, as they differ from a chain read.

A record is written before the commit that it describes, and is valid only while the partition's live files are those
that it names: after a commit that was never made, or another engine's overwrite, it is ignored. A partition is stale
once one of the inputs that its record names holds other files (and not only because compaction rewrote them), one is
gone, a delta came late, the anchor was replaced, or the anchor is stale itself. Partitions without a record are not
checked. What else goes by records is here, too: whether a partition could be rebuilt, and which records can go.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from airflow_paimon.core.chain.compaction_plan import ChainTargets, Staleness
from airflow_paimon.core.chain.layout import ChainBranch, ChainLayout, Partitions, TimeLines, Values
from airflow_paimon.core.chain.provenance_plan import Part, Provenance, has_too_many, superfluous
from airflow_paimon.core.chain.state import (
    ChainState,
    files_digest,
    gather_chain,
    splits_by_partition,
    state_digests,
    touched_since,
    vectors_digests,
)
from airflow_paimon.core.commit.partition_contents import names_digest
from airflow_paimon.core.commit.put import execute, put_new
from airflow_paimon.core.errors import AlreadyExistsError, PaimonError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.format.records import Record
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.plan import Delete, Replace
from airflow_paimon.core.store.base import read_existing
from airflow_paimon.core.table.history import snapshots_between
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.manifest_lists import read_delta_lists
from airflow_paimon.core.table.partition_values import parse_partition_spec
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.record_kinds import CHAIN
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table

_LISTED_ONE_BY_ONE = 8


def record_provenance(table: Table, layout: ChainLayout, built: Provenance) -> None:
    """Write a record, before the commit. Idempotent."""
    try:
        put_new(table, _path(layout, built.values, built.files), _to_bytes(layout, built))
    except AlreadyExistsError:
        return


def replace_record(table: Table, layout: ChainLayout, built: Provenance) -> None:
    """Write a record in the place of another one for the same files."""
    path = _path(layout, built.values, built.files)
    execute(table, [Replace(path=path, data=_to_bytes(layout, built), reason="its inputs lie in other files now")])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """``Part`` as it is stored."""

    partition: Mapping[str, str]
    files: str
    vectors: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored(Record):
    """``Provenance`` as it is stored, in a folder for each group."""

    partition: Mapping[str, str]
    files: str
    anchor: _Input | None
    deltas: tuple[_Input, ...]
    snapshots: Mapping[str, int | None]
    identities: Mapping[str, str]
    origin: str
    created_at: str
    KIND = CHAIN


_SAME = ("files", "snapshots", "identities", "origin", "created_at")


def _parse(layout: ChainLayout, data: bytes | None) -> Provenance | None:
    def part(one: _Input) -> Part:
        return Part(values=_values(layout, one.partition), files=one.files, vectors=one.vectors)

    if data is None:
        return None
    try:
        stored = _Stored.parse(data, "A record of a chain")
        return Provenance(
            values=_values(layout, stored.partition),
            anchor=None if stored.anchor is None else part(stored.anchor),
            deltas=tuple(map(part, stored.deltas)),
            **{name: getattr(stored, name) for name in _SAME},
        )
    except (PaimonError, ValueError, KeyError):
        return None


class Records:
    """The records of some groups, listed once; contents are read on demand."""

    def __init__(self, table: Table, layout: ChainLayout, groups: Collection[Values]) -> None:
        self._table = table
        self._layout = layout
        self.paths = frozenset(_listed(table, layout, groups))

    def matching(self, digests: Mapping[Values, str]) -> dict[Values, Provenance]:
        """Read the recorded provenance of partitions with these files."""
        paths = {v: path for v, f in digests.items() if (path := _path(self._layout, v, f)) in self.paths}
        found = zip(paths, self._read(list(paths.values())), strict=True)
        return {v: built for v, built in found if built is not None}

    def of_partitions(self, partitions: Collection[Values]) -> dict[Values, list[Provenance]]:
        """Read all records of partitions, for any files; partitions without records are left out."""
        by_prefix: dict[str, list[str]] = {}
        for path in sorted(self.paths) if partitions else ():
            by_prefix.setdefault(path.rpartition("-")[0], []).append(path)
        out: dict[Values, list[Provenance]] = {}
        for values in partitions:
            found = self._read(by_prefix.get(_prefix(self._layout, values), []))
            if built := [r for r in found if r is not None]:
                out[values] = built
        return out

    def _read(self, paths: Sequence[str]) -> list[Provenance | None]:
        content = read_existing(self._table.store, paths)  # without those that were pruned meanwhile
        return [_parse(self._layout, content.get(path)) for path in paths]


def _listed(table: Table, layout: ChainLayout, groups: Collection[Values]) -> Iterable[str]:
    if len(groups) > _LISTED_ONE_BY_ONE:
        return table.store.walk(CHAIN.folder)
    folders = [group_folder(layout, group) for group in groups]
    return [f"{folder}/{name}" for folder in folders for name in table.store.names(folder)]


def group_folder(layout: ChainLayout, group: Values) -> str:
    """Return the name of the folder of a group's records."""
    return f"{CHAIN.folder}/{hashlib.sha256(layout.group_text(group).encode()).hexdigest()[:16]}"


def _path(layout: ChainLayout, values: Values, files: str) -> str:
    return f"{_prefix(layout, values)}-{files}.json"


def _prefix(layout: ChainLayout, values: Values) -> str:
    name = hashlib.sha256(layout.text_of(values).encode()).hexdigest()[:24]
    return f"{group_folder(layout, layout.group_of(values))}/{name}"


def _to_bytes(layout: ChainLayout, built: Provenance) -> bytes:
    def part(one: Part) -> _Input:
        return _Input(partition=layout.spec_of(one.values), files=one.files, vectors=one.vectors)

    return _Stored(
        partition=layout.spec_of(built.values),
        anchor=None if built.anchor is None else part(built.anchor),
        deltas=tuple(map(part, built.deltas)),
        **{name: getattr(built, name) for name in _SAME},
    ).to_bytes()


def _values(layout: ChainLayout, spec: Mapping[str, str]) -> Values:
    parsed = parse_partition_spec(spec, layout.partition_keys, layout.partition_types)
    return tuple(parsed[k] for k in layout.partition_keys)


UNPROVEN = "its inputs were not recorded, and its rows may be nowhere else"
_LONGEST = 10_000


def _missing_inputs(table: Table, layout: ChainLayout, held: Partitions, built: Provenance) -> str | None:
    """Return why a partition can't be rebuilt from live partitions; None: it can.

    Nothing is missing with an anchor that was dropped while all is there that it was built from, as its record says,
    which outlives it: a rebuild starts from the anchor before it.
    """
    if not built.is_proven:
        return UNPROVEN
    current = built
    for _ in range(_LONGEST):
        gone = [layout.text_of(d.values) for d in current.deltas if d.values not in held.delta]
        if gone:
            return f"{', '.join(gone)} was deleted"
        anchor = current.anchor
        if anchor is None or anchor.values in held.snapshot:
            return None
        path = _path(layout, anchor.values, anchor.files)
        found = _parse(layout, read_existing(table.store, [path]).get(path))
        if found is None or not found.is_proven:
            return f"its anchor {layout.text_of(anchor.values)} was deleted"
        current = found
    return UNPROVEN


log = logging.getLogger(__name__)


def prune_records(table: Table, now_ms: int) -> int:
    """Delete records that nothing needs, where there are many more than full partitions; return how many.

    They are listed before the branches are read, so that the record of a commit that is made in between belongs to live
    files. A failure is logged, never raised.
    """
    try:
        paths, state = table.store.walk(CHAIN.folder), gather_chain(table)
        if not has_too_many(len(paths), len(state.partitions.snapshot)):
            return 0
        content = read_existing(table.store, paths)
        found = {path: r for path, data in content.items() if (r := _parse(state.layout, data)) is not None}
        moment = datetime.fromtimestamp(min(now_ms / 1000, time.time()), UTC)  # never later than the clock
        gone = superfluous(found, state_digests(state, ChainBranch.SNAPSHOT), state.partitions.delta, moment)
        execute(table, [Delete(path=p, expected=content[p], reason="its partition was deleted") for p in gone])
        return len(gone)
    except PaimonError as error:
        log.warning("%s: old provenance records were not pruned (%s)", table.label, error.message)
        return 0


NEUTRAL = (CommitKind.COMPACT, CommitKind.ANALYZE)
ERASURE = "erase_rows"


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


def is_neutral(snapshot: Snapshot) -> bool:
    """Return whether a commit leaves what partitions were built from as it was.

    It changes no row, or erases keys, which go from all partitions.
    """
    return snapshot.commit_kind in NEUTRAL or snapshot.properties.get(OPERATION_PROPERTY) == ERASURE


def gather_provenances(
    table: Table,
    layout: ChainLayout,
    snapshot: ScanPlan,
    only: Set[Values] | None = None,
) -> dict[Values, Provenance]:
    """Read the provenance of the live (or the given) snapshot partitions; those without a record are left out.

    A partition that only neutral commits have rewritten since, such as compactions, keeps its record.
    """
    held = splits_by_partition(snapshot)
    digests = {v: files_digest(splits) for v, splits in held.items() if only is None or v in only}
    if not digests:
        return {}
    records = Records(table, layout, {layout.group_of(v) for v in digests})
    found = records.matching(digests)
    return found | _rewritten(records, layout, snapshot, digests.keys() - found.keys())


def _rewritten(records: Records, layout: ChainLayout, plan: ScanPlan, unknown: Set[Values]) -> dict[Values, Provenance]:
    """Find the records of partitions whose files compaction has rewritten since.

    A record applies to the live files if one commit after its inputs were read added exactly the files that it names,
    and only neutral commits changed them afterwards.
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
    """File names that each commit that is not neutral added, by snapshot id; empty if some snapshots are gone."""
    head = plan.snapshot
    commits = snapshots_between(plan.table, since, head.id) if head is not None and since <= head.id else None
    out = []
    types = plan.schema.partition_types
    for snapshot in commits or ():
        if is_neutral(snapshot):
            continue
        put: dict[Values, list[str]] = {}
        for entries in read_entries(plan.table, read_delta_lists(plan.table, [snapshot])):
            for entry in entries:
                names = put.setdefault(decode_row(entry.partition, types), [])
                if entry.kind == FileKind.ADD:
                    names.append(entry.file.file_name)
        out.append((snapshot.id, put))
    return out


def find_stale(state: ChainState, provenances: Mapping[Values, Provenance]) -> tuple[StalePartition, ...]:
    """Check every snapshot partition with known provenance, group by group in chronological order."""
    return _StalenessJudge(state, provenances).all() if provenances else ()


def read_staleness(
    table: Table, state: ChainState, targets: ChainTargets
) -> tuple[Mapping[Values, Provenance], Staleness]:
    """Read the provenance of the snapshot partitions in the requested groups, and check them for staleness."""
    layout, held = state.layout, state.partitions
    requested = {v for v in held.snapshot if targets.matches(layout.group_of(v)) or v in targets.rebuild}
    provenances = gather_provenances(table, layout, state.snapshot, requested)
    lost: dict[Values, str] = {}
    unproven: dict[Values, str] = {}
    incomplete: dict[Values, str] = {}
    for values, built in provenances.items():
        lacking = _missing_inputs(table, layout, held, built)
        if lacking is not None:
            has_anchor = built.anchor is not None and built.anchor.values in held.snapshot
            (lost if not has_anchor else incomplete if built.is_proven else unproven)[values] = lacking
    return provenances, Staleness(
        stale={s.values: s.reason for s in find_stale(state, provenances)},
        lost=lost,
        unproven=unproven,
        incomplete=incomplete,
        anchors={v: b.anchor.values for v, b in provenances.items() if b.anchor is not None},
    )


@dataclass(slots=True)
class LiveParts:
    """What the partitions of the snapshot and the delta branch hold now: digests of their ``files`` and ``vectors``."""

    state: ChainState
    files: Mapping[ChainBranch, dict[Values, str]] = field(init=False)
    vectors: Mapping[ChainBranch, dict[Values, str]] = field(init=False)
    _touched: dict[tuple[ChainBranch, int | None, str | None], frozenset[Values] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        branches = (ChainBranch.SNAPSHOT, ChainBranch.DELTA)
        self.files = {b: state_digests(self.state, b) for b in branches}
        self.vectors = {b: vectors_digests(self.state.plan(b)) for b in branches}

    def part(self, branch: ChainBranch, values: Values) -> Part:
        """Return a partition as the input of another one."""
        return Part(values=values, files=self.files[branch][values], vectors=self.vectors[branch].get(values, ""))

    def is_same(self, branch: ChainBranch, part: Part, built: Provenance) -> bool:
        """Whether an input holds what it held when it was read, but for what neutral commits did."""
        vectors = self.vectors[branch].get(part.values, "")
        if self.files[branch].get(part.values) == part.files and (part.vectors or "") == vectors:
            return True
        plan = self.state.plan(branch)
        name = plan.table.branch_name
        key = branch, built.snapshots.get(name), built.identities.get(name)
        if key not in self._touched:
            self._touched[key] = touched_since(plan.table, plan.schema, *key[1:], plan.snapshot, is_neutral)
        known = self._touched[key]
        return known is not None and part.values not in known


class _Fault(NamedTuple):
    """Why a partition is stale. ``lost``: the input is gone; ``own``: it is not only that the anchor is stale."""

    reason: str
    because: Values
    lost: bool = False
    own: bool = True


class _StalenessJudge:
    def __init__(self, state: ChainState, provenances: Mapping[Values, Provenance]) -> None:
        self.layout: ChainLayout = state.layout
        self.provenances = provenances
        self.parts = LiveParts(state)
        self.live = self.parts.files
        self.anchors = TimeLines(self.layout, self.live[ChainBranch.SNAPSHOT])
        self.deltas = TimeLines(self.layout, self.live[ChainBranch.DELTA])
        self.stale: dict[Values, StalePartition] = {}

    def all(self) -> tuple[StalePartition, ...]:
        for line in map(self.anchors.of, {self.layout.group_of(v) for v in self.provenances} & self.anchors.groups):
            for moment, values in zip(line.times, line.values, strict=True):
                built = self.provenances.get(values)
                if built is not None:
                    self._judge(built, moment)
        return tuple(sorted(self.stale.values(), key=lambda s: self.layout.text_of(s.values)))

    def _judge(self, built: Provenance, moment: datetime) -> None:
        found = [*self._judge_deltas(built, moment), *self._judge_anchor(built, moment)]
        if found:
            self.stale[built.values] = StalePartition(
                values=built.values,
                reason="; ".join(fault.reason for fault in found),
                because=tuple(fault.because for fault in found),
                cascade=not any(fault.own for fault in found),
                lost=tuple(fault.because for fault in found if fault.lost),
            )

    def _judge_deltas(self, built: Provenance, moment: datetime) -> Iterator[_Fault]:
        live, text = self.live[ChainBranch.DELTA], self.layout.text_of
        after = None if built.anchor is None else self.layout.parsed_time(built.anchor.values)
        recorded = {d.values for d in built.deltas}
        line = self.deltas.of(self.layout.group_of(built.values))
        for late in line.up_to(after, moment):
            if late not in recorded:
                yield _Fault(f"delta {text(late)} came after it was built", late)
        expired = self._expired(built)
        for part in built.deltas:
            if part.values not in live:
                if part.values not in expired:
                    yield _Fault(f"delta {text(part.values)} was deleted", part.values, lost=True)
            elif not self.parts.is_same(ChainBranch.DELTA, part, built):
                yield _Fault(f"delta {text(part.values)} was changed after it was built", part.values)

    def _expired(self, built: Provenance) -> set[Values]:
        """The recorded deltas that were dropped with their anchor, as expiry of whole segments does."""
        earlier = {d.values for d in built.deltas if d.values != built.values}
        gone = built.anchor is not None and built.anchor.values not in self.live[ChainBranch.SNAPSHOT]
        return earlier if gone and not earlier & self.live[ChainBranch.DELTA].keys() else set()

    def _judge_anchor(self, built: Provenance, moment: datetime) -> Iterator[_Fault]:
        """A missing anchor has no effect: the partition built on it holds its rows."""
        _, now = self.anchors.of(self.layout.group_of(built.values)).before(moment)
        recorded, text = built.anchor, self.layout.text_of
        if recorded is not None and recorded.values in self.live[ChainBranch.SNAPSHOT]:
            if not self.parts.is_same(ChainBranch.SNAPSHOT, recorded, built):
                yield _Fault(f"anchor {text(recorded.values)} was replaced after it was built", recorded.values)
            elif recorded.values in self.stale:
                yield _Fault(f"its anchor {text(recorded.values)} is stale", recorded.values, own=False)
        if now is None or (recorded is not None and now == recorded.values) or not self._is_nearer(now, recorded):
            return
        if now in self.stale:
            yield _Fault(f"its anchor {text(now)} is stale", now, own=False)
        elif not self._made_of_the_same(now, built):
            yield _Fault(f"a nearer anchor {text(now)} came after it was built", now)

    def _is_nearer(self, now: Values, recorded: Part | None) -> bool:
        if recorded is None:
            return True
        before, after = self.layout.parsed_time(recorded.values), self.layout.parsed_time(now)
        return before is None or (after is not None and after > before)

    def _made_of_the_same(self, anchor: Values, built: Provenance) -> bool:
        """Whether a nearer anchor, with those that it was built on, comes from the partition's inputs: then both agree.
        So it is where day 3 was made full from anchor 1 and deltas 2 and 3, and later day 2 from anchor 1 and delta 2.

        It isn't stale, and so none of those is.
        """
        own = {d.values: d.files for d in built.deltas}
        other = self.provenances.get(anchor)
        while other is not None and all(own.get(d.values) == d.files for d in other.deltas):
            if other.anchor == built.anchor:
                return True
            other = None if other.anchor is None else self.provenances.get(other.anchor.values)
        return False
