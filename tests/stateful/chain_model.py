"""What a chain table holds, as rows: written from the rules alone (chain-tables 2 to 5, DESIGN 6), without any files.

A partition is (group, number of the day or hour). Versions stand for the files that a partition holds: each write, but
none of compaction's own, makes a new one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Partition = tuple[str, int]
MAIN, FULL, DELTA = "main", "snapshot", "delta"


@dataclass(frozen=True, slots=True)
class Row:
    """``values`` by the number of the column; a column that is not in there is null."""

    key: int
    sequence: int | None
    values: tuple[tuple[int, Any], ...]
    kind: str = "+I"


@dataclass(slots=True)
class Record:
    """What a full partition was built from: versions of its anchor and deltas. ``of``: the version it speaks of."""

    of: int
    anchor: tuple[Partition, int] | None
    deltas: dict[Partition, int]
    assumed: bool = False


class Refused(Exception):
    """The rules refuse it: nothing may have changed."""


@dataclass
class ChainModel:
    partial: bool
    held: dict[str, dict[Partition, list[Row]]] = field(default_factory=lambda: {MAIN: {}, FULL: {}, DELTA: {}})
    versions: dict[tuple[str, Partition], int] = field(default_factory=dict)
    records: dict[Partition, Record] = field(default_factory=dict)
    count: int = 0

    # -- reads ---------------------------------------------------------------------------------------------------------

    def near(self, branch: str, group: str) -> list[Partition]:
        """The partitions of a group, in the order of time."""
        return sorted(p for p in self.held[branch] if p[0] == group)

    def before(self, target: Partition) -> Partition | None:
        return max((p for p in self.near(FULL, target[0]) if p < target), default=None)

    def deltas(self, after: Partition | None, target: Partition) -> list[Partition]:
        return [p for p in self.near(DELTA, target[0]) if (after is None or p > after) and p <= target]

    def chain(self, target: Partition) -> list[Row]:
        """What merging gives; the full partition of its own does not count."""
        anchor = self.before(target)
        parts = [self.held[FULL][anchor]] if anchor else []
        return self.merged([*parts, *(self.held[DELTA][d] for d in self.deltas(anchor, target))])

    def merged(self, parts: Sequence[Sequence[Row]]) -> list[Row]:
        """Of a key's versions the last by (sequence, null lowest; place; order of writing) wins, or its values do."""
        found: dict[int, list[tuple[Any, Row]]] = {}
        for place, rows in enumerate(parts):
            for number, row in enumerate(rows):
                order = (row.sequence is not None, row.sequence or 0, place, number)
                found.setdefault(row.key, []).append((order, row))
        out = []
        for key in sorted(found):
            rows = [row for _, row in sorted(found[key], key=lambda pair: pair[0])]
            one = _folded(rows) if self.partial else rows[-1]
            if one is not None and one.kind in ("+I", "+U"):
                out.append(Row(one.key, one.sequence, one.values))
        return out

    def read(self, *, carry: bool = False) -> dict[Partition, list[Row]]:
        """What a read of main gives."""
        every = {p for held in self.held.values() for p in held}
        if carry:
            for group in {p[0] for p in every}:
                numbers = [n for g, n in every if g == group]
                every |= {(group, n) for n in range(min(numbers), max(numbers))}
        return {p: self._read_one(p) for p in every}

    def _read_one(self, target: Partition) -> list[Row]:
        for branch in (MAIN, FULL):
            if target in self.held[branch]:
                return self.merged([self.held[branch][target]])
        return self.chain(target)

    def read_branch(self, branch: str) -> dict[Partition, list[Row]]:
        return {p: self.merged([rows]) for p, rows in self.held[branch].items()}

    # -- what goes stale -----------------------------------------------------------------------------------------------

    def record(self, full: Partition) -> Record | None:
        found = self.records.get(full)
        return found if found is not None and self.versions.get((FULL, full)) == found.of else None

    def stale(self) -> dict[Partition, set[Partition]]:
        """The stale full partitions, each with what it was built from and is gone."""
        found: dict[Partition, set[Partition]] = {}
        for full in sorted(self.held[FULL]):
            record = self.record(full)
            if record is None:
                continue
            lost = self._lost(full, record)
            if lost or self._moved(record) or self._came_late(full, record) or self._other_anchor(full, record, found):
                found[full] = lost
        return found

    def _lost(self, full: Partition, record: Record) -> set[Partition]:
        """Deltas that are gone; but earlier ones that went together with the anchor have expired."""
        gone = {d for d in record.deltas if d not in self.held[DELTA]}
        earlier = {d for d in record.deltas if d != full}
        anchor_gone = record.anchor is not None and record.anchor[0] not in self.held[FULL]
        return gone - earlier if anchor_gone and earlier <= gone else gone

    def _moved(self, record: Record) -> bool:
        return any(self.versions.get((DELTA, d), v) != v for d, v in record.deltas.items())

    def _came_late(self, full: Partition, record: Record) -> bool:
        start = record.anchor[0] if record.anchor else None
        return any(d not in record.deltas for d in self.deltas(start, full))

    def _other_anchor(self, full: Partition, record: Record, stale: Collection[Partition]) -> bool:
        anchor, nearest = record.anchor, self.before(full)
        if anchor is not None and (anchor[0] in stale or self.versions.get((FULL, anchor[0]), anchor[1]) != anchor[1]):
            return True
        if nearest is None or (anchor is not None and nearest <= anchor[0]):
            return False
        other = self.record(nearest)
        same = other is not None and other.anchor == anchor and other.deltas.items() <= record.deltas.items()
        return nearest in stale or not same

    def affected(self, changed: Collection[Partition], deltas: Collection[Partition]) -> list[Partition]:
        """The full partitions at or behind changes that a chain may have gone into; others were loaded as they are."""
        firsts = {g: min(p for p in changed if p[0] == g) for g, _ in changed}
        found = [f for f in sorted(self.held[FULL]) if f[0] in firsts and f >= firsts[f[0]]]
        return [f for f in found if f in deltas or f in changed]

    def assume(self, fulls: Iterable[Partition]) -> None:
        """Those that nobody recorded count as built from what is there."""
        for full in fulls:
            if self.record(full) is None:
                self._write_down(full, self.before(full), self.versions[FULL, full], assumed=True)

    def _write_down(self, full: Partition, anchor: Partition | None, of: int, *, assumed: bool) -> None:
        deltas = {d: self.versions[DELTA, d] for d in self.deltas(anchor, full)}
        self.records[full] = Record(of, (anchor, self.versions[FULL, anchor]) if anchor else None, deltas, assumed)

    # -- writes --------------------------------------------------------------------------------------------------------

    def write(self, branch: str, target: Partition, rows: list[Row], overwrite: bool, on_stale: str | None) -> None:
        policy = on_stale or ("record" if overwrite else "refuse")
        if branch == DELTA:
            found = self.affected({target}, self.held[DELTA])
            if policy == "refuse" and target in self.held[FULL]:
                raise Refused("nobody would see them")
            self._check(policy, found, set())
            self.assume(found)
        elif branch == FULL and overwrite and target in self.held[FULL]:
            self.assume(f for f in self.affected({target}, self.held[DELTA]) if f != target)
        old = [] if overwrite else self.held[branch].get(target, [])
        self._put(branch, target, [*old, *rows])
        if branch == DELTA:
            self._settle(policy, {target}, set())

    def drop(self, branch: str, targets: Collection[Partition], on_stale: str | None = None) -> None:
        there = {t for t in targets if t in self.held[branch]}
        if branch == FULL:
            self._veto(there, self.held[DELTA], set())
        if branch == DELTA and there:
            found = self.affected(there, self.held[DELTA])
            self._check(on_stale or "record", found, there)
            self.assume(found)
        self._remove(branch, there)
        if branch == DELTA and there:
            self._settle(on_stale or "record", there, there)

    def _check(self, policy: str, found: Sequence[Partition], dropped: set[Partition]) -> None:
        """Refuse what could not be made good afterwards."""
        if policy == "rebuild":
            for full in found:
                record = self.record(full)
                known = record is not None and not record.assumed
                if not known and (full not in self.held[DELTA] or self.before(full) is None):
                    raise Refused("it may have been loaded as it is")
        if found and (policy == "drop" or (policy == "rebuild" and dropped)):
            self._veto(set(found), {d for d in self.held[DELTA] if d not in dropped}, dropped)

    def _settle(self, policy: str, changed: set[Partition], gone: set[Partition]) -> None:
        behind = self.affected(changed, {*self.held[DELTA], *self.held[FULL]})
        stale = {f: lost for f, lost in self.stale().items() if f in behind}
        if policy == "drop":
            self._remove(FULL, stale)
        if policy == "rebuild":
            wanted = {f for f, lost in stale.items() if not lost}
            if any(lost and lost <= gone for lost in stale.values()):
                wanted = set(stale)
                self._remove(FULL, stale)
            self.compact({f for f in wanted if f in self.held[DELTA]}, overwrite=True)

    def _veto(self, going: set[Partition], deltas: Collection[Partition], forgone: set[Partition]) -> None:
        """An anchor stays that deltas build on, unless the one before it and the deltas between give its rows."""
        for full in sorted(going):
            stay = [f for f in self.near(FULL, full[0]) if f not in going]
            before = max((f for f in stay if f < full), default=None)
            behind = min((f for f in stay if f > full), default=None)
            if not any(d > full and (behind is None or d < behind) for d in deltas if d[0] == full[0]):
                continue
            if before is None or any(d not in deltas and d not in forgone for d in self._parts(full, before)):
                raise Refused("an anchor is needed")

    def _parts(self, full: Partition, start: Partition) -> set[Partition]:
        found: set[Partition] = set()
        current: Partition | None = full
        while current is not None and current > start:
            record = self.record(current)
            if record is None:
                return found | {(current[0], n) for n in range(start[1] + 1, current[1] + 1)}
            found |= {d for d in record.deltas if d > start}
            current = record.anchor[0] if record.anchor else None
        return found

    def _put(self, branch: str, target: Partition, rows: list[Row]) -> None:
        self.held[branch][target] = rows
        self.count += 1
        self.versions[branch, target] = self.count

    def _remove(self, branch: str, targets: Iterable[Partition]) -> None:
        for target in targets:
            del self.held[branch][target]
            del self.versions[branch, target]

    # -- compaction ----------------------------------------------------------------------------------------------------

    def compact(
        self, asked: Collection[Partition], *, overwrite: bool = False, carry: bool = False, longest: int | None = None
    ) -> dict[Partition, str]:
        """Make full what is asked for, or what has chains longer than ``longest`` and what is stale; give outcomes."""
        stale, lost = self.stale(), self._not_again()
        anchors = {f: r.anchor[0] for f in self.held[FULL] if (r := self.record(f)) and r.anchor}
        named = longest is None
        knows = not named or overwrite or any(t in self.held[FULL] for t in asked)
        groups = {t[0] for t in asked} if named else {g for g, _ in (*self.held[FULL], *self.held[DELTA])}
        out: dict[Partition, str] = {}
        for group in sorted(groups):
            written: set[Partition] = set()
            stored = set(self.near(FULL, group))
            mine = {t for t in asked if t[0] == group}
            if longest is not None:
                mine = self._too_long(group, longest)
            for target in sorted(mine | stored):
                hangs = knows and anchors.get(target) in written and target in stored
                bad = hangs or (knows and target in stored and target in stale and (target in mine or not named))
                if target not in mine and not bad:
                    continue
                if target in stored:
                    outcome = self._judge_again(target, overwrite, bad, named and not hangs, target in lost)
                else:
                    outcome = self._judge_new(target, carry)
                if outcome in ("compacted", "stale-rebuilt"):
                    anchor = self.before(target)
                    self._put(FULL, target, self.chain(target))
                    self._write_down(target, anchor, self.versions[FULL, target], assumed=False)
                    written.add(target)
                out[target] = outcome
        return out

    def _not_again(self) -> set[Partition]:
        found = {f for f, lost in self.stale().items() if lost}
        for full in self.held[FULL]:
            record = self.record(full)
            if record is not None and record.anchor is not None:
                found |= {full} if not any(record.anchor[0] in self.held[b] for b in (FULL, DELTA)) else set()
            elif record is not None and record.assumed:
                found.add(full)
        return found

    def _too_long(self, group: str, longest: int) -> set[Partition]:
        found, length = set(), 0
        for moment in sorted({*self.near(DELTA, group), *self.near(FULL, group)}):
            length += 1
            if moment in self.held[FULL]:
                length = 0
            elif length > longest:
                found.add(moment)
                length = 0
        return found

    def _judge_again(self, target: Partition, overwrite: bool, bad: bool, stays: bool, lost: bool) -> str:
        anchor = self.before(target)
        if not overwrite and (not bad or stays):
            return "already-there"
        if not bad and target not in self.held[DELTA]:
            return "nothing-to-do"
        if lost or (anchor is None and not self.deltas(anchor, target)):
            return "already-there"
        return "stale-rebuilt" if bad else "compacted"

    def _judge_new(self, target: Partition, carry: bool) -> str:
        anchor = self.before(target)
        if anchor is None and not self.deltas(anchor, target):
            return "nothing-to-do"
        return "compacted" if target in self.held[DELTA] or carry else "gap"

    # -- expiry --------------------------------------------------------------------------------------------------------

    def expire(self, cutoff: int, limit: int, keep: int) -> dict[str, set[Partition]]:
        """Whole segments before the newest full partition that is older than ``cutoff``; gives what went."""
        gone: dict[str, set[Partition]] = {FULL: set(), DELTA: set()}
        for group in {g for g, _ in self.held[FULL]}:
            fulls = self.near(FULL, group)
            count = min(bisect_left(fulls, (group, cutoff)) - 1, limit, len(fulls) - keep)
            if count > 0:
                gone[FULL] |= set(fulls[:count])
                gone[DELTA] |= {d for d in self.near(DELTA, group) if d < fulls[count]}
        for branch, partitions in gone.items():
            self._remove(branch, partitions)
        return gone


def _folded(rows: Sequence[Row]) -> Row | None:
    found: tuple[int | None, dict[int, Any]] | None = None
    for row in rows:
        if row.kind == "-D":
            found = None
        elif row.kind != "-U":
            sequence, values = found or (None, {})
            new = {column: value for column, value in row.values if value is not None}
            found = (sequence if row.sequence is None else row.sequence, {**values, **new})
    return None if found is None else Row(rows[-1].key, found[0], tuple(sorted(found[1].items())))
