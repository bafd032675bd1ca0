"""What a chain table holds, as rows: written from the rules of docs/chain-tables.md alone, without any files.

A partition is (group, number of the day or hour). Versions stand for the files that a partition holds: each write, but
none of compaction's own, makes a new one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    """What compaction made a full partition of: versions of anchor and deltas. ``of``: the version it speaks of."""

    of: int
    anchor: tuple[Partition, int] | None
    deltas: dict[Partition, int]


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

    # -- writes --------------------------------------------------------------------------------------------------------

    def write(self, branch: str, target: Partition, rows: list[Row], overwrite: bool) -> None:
        self.held[branch][target] = [*([] if overwrite else self.held[branch].get(target, [])), *rows]
        self.count += 1
        self.versions[branch, target] = self.count

    def change(self, branch: str, target: Partition, changed: Mapping[int, Row]) -> None:
        """What a statement does: of each key the newest version stays, deletes too, but for what it changes."""
        newest: dict[int, Row] = {}
        for row in sorted(self.held[branch].get(target, []), key=lambda r: (r.sequence is not None, r.sequence or 0)):
            newest[row.key] = row
        if changed:
            self.write(branch, target, [*{**newest, **changed}.values()], True)

    def drop(self, branch: str, targets: Iterable[Partition]) -> None:
        for target in targets:
            self.held[branch].pop(target, None)
            self.versions.pop((branch, target), None)

    def make_full(self, targets: Iterable[Partition]) -> None:
        """Each from the full partition before it, which may be one of them, and the deltas behind that."""
        for target in sorted(targets):
            anchor = self.before(target)
            deltas = {d: self.versions[DELTA, d] for d in self.deltas(anchor, target)}
            self.write(FULL, target, self.chain(target), True)
            of = self.versions[FULL, target]
            self.records[target] = Record(of, (anchor, self.versions[FULL, anchor]) if anchor else None, deltas)

    def orphaned(self, going: Collection[Partition]) -> bool:
        """Whether deltas would be left without the rows that they build on if these full partitions went."""
        for full in going & self.held[FULL].keys():
            stay = [f for f in self.near(FULL, full[0]) if f not in going]
            behind = min((f for f in stay if f > full), default=None)
            follows = any(d > full and (behind is None or d < behind) for d in self.near(DELTA, full[0]))
            if follows and not any(f < full for f in stay):
                return True
        return False

    # -- what goes stale -----------------------------------------------------------------------------------------------

    def record(self, full: Partition) -> Record | None:
        """What compaction made a full partition of, if nobody wrote to it since."""
        found = self.records.get(full)
        return found if found is not None and self.versions.get((FULL, full)) == found.of else None

    def surely_stale(self) -> set[Partition]:
        """Those that compaction made, of which an input that is there has changed, or to which a delta came late."""
        found = set()
        for full in self.held[FULL]:
            record = self.record(full)
            if record is not None and (self._moved(record) or self._came_late(full, record)):
                found.add(full)
        return found

    def surely_fresh(self) -> set[Partition]:
        """Those that compaction made, whose inputs are all as they were, and whose anchor is fresh or has none."""
        found: set[Partition] = set()
        for full in sorted(self.held[FULL]):
            record = self.record(full)
            if record is None or self._moved(record) or self._came_late(full, record):
                continue
            anchor = record.anchor[0] if record.anchor else None
            if self.before(full) == anchor and record.deltas.keys() <= self.held[DELTA].keys():
                found |= {full} if anchor is None or anchor in found else set()
        return found

    def _moved(self, record: Record) -> bool:
        if (
            record.anchor is not None
            and self.versions.get((FULL, record.anchor[0]), record.anchor[1]) != record.anchor[1]
        ):
            return True
        return any(self.versions.get((DELTA, d), v) != v for d, v in record.deltas.items())

    def _came_late(self, full: Partition, record: Record) -> bool:
        return any(d not in record.deltas for d in self.deltas(record.anchor[0] if record.anchor else None, full))

    # -- compaction and expiry -----------------------------------------------------------------------------------------

    def outcome(self, target: Partition, carry: bool) -> str:
        """What compaction makes of a partition that is not full, those before it as they are then."""
        anchor = self.before(target)
        if anchor is None and not self.deltas(anchor, target):
            return "nothing-to-do"
        return "compacted" if target in self.held[DELTA] or carry else "gap"

    def too_long(self, longest: int) -> set[Partition]:
        """The partitions whose chains are longer than that, each with those before it full."""
        found: set[Partition] = set()
        length: dict[str, int] = {}
        for at in sorted({*self.held[DELTA], *self.held[FULL]}):
            length[at[0]] = length.get(at[0], 0) + 1
            if at not in self.held[FULL] and length[at[0]] > longest:
                found.add(at)
            if at in self.held[FULL] or at in found:
                length[at[0]] = 0
        return found

    def expiring(self, cutoff: int, limit: int, keep: int) -> dict[str, list[Partition]]:
        """The full partitions that may go, by group: those before the newest that is older than ``cutoff``."""
        found = {}
        for group in {g for g, _ in self.held[FULL]}:
            fulls = self.near(FULL, group)
            found[group] = fulls[: max(0, min(bisect_left(fulls, (group, cutoff)) - 1, limit, len(fulls) - keep))]
        return found

    def expire(self, going: Iterable[Partition]) -> None:
        """Drop the first full partitions of groups, and the deltas before those that stay."""
        going = list(going)
        self.drop(FULL, going)
        for group in {g for g, _ in going}:
            first = self.near(FULL, group)[0]
            self.drop(DELTA, [d for d in self.near(DELTA, group) if d < first])


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
