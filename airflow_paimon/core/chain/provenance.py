"""Provenance records of partitions of a chain table's snapshot branch: files under ``_airflow_paimon/chain/``.

A record is written before the commit that it describes, and is valid only while the partition's live files are those
that it names: after a commit that never landed, or another engine's overwrite, it is ignored. Files are identified by a
digest of their names, which are never reused. What else goes by these digests is here, too: whether a partition could
be rebuilt, which records can go, and whether a branch still holds the files on which a plan was based.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_paimon.core.chain.layout import Branch, ChainLayout, Values
from airflow_paimon.core.chain.provenance_plan import Part, Provenance, has_too_many, superfluous
from airflow_paimon.core.chain.state import ChainState, gather_chain, splits_by_partition
from airflow_paimon.core.commit.held_partitions import names_digest
from airflow_paimon.core.commit.put import execute, put_new
from airflow_paimon.core.errors import AlreadyExistsError, NotFoundError, PaimonError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot, parse_json
from airflow_paimon.core.plan import Delete, Plan
from airflow_paimon.core.store.base import read_present
from airflow_paimon.core.table.history import snapshots_between, touched
from airflow_paimon.core.table.partitions import (
    StoredPartitions,
    format_partition,
    parse_partition_spec,
    readable_value,
)
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.scan import BucketSplit, ScanPlan, partition_types, plan_snapshot
from airflow_paimon.core.table.table import Table

FOLDER = f"{PRIVATE_DIR}/chain"
"""Parent of one folder per group."""
_LISTED_ONE_BY_ONE = 8


def files_digest(splits: Iterable[BucketSplit]) -> str:
    """Return a digest of the files of a partition."""
    return names_digest(f.file_name for s in splits for f in s.files)


def vectors_digests(plan: ScanPlan) -> dict[Values, str]:
    """Return a digest of each partition's deletion vectors, which delete rows without changing files."""
    types = partition_types(plan.schema)
    found: dict[Values, list[str]] = {}
    for entry in plan.index_entries:
        ranges = f"{entry.bucket}/{entry.index_type}/{entry.file_name}/{entry.deletion_vector_ranges}"
        found.setdefault(decode_row(entry.partition, types), []).append(ranges)
    return {values: names_digest(ranges) for values, ranges in found.items()}


def state_digests(state: ChainState, branch: Branch) -> dict[Values, str]:
    """Return a digest of each partition's files in a branch."""
    return {v: files_digest(splits) for v, splits in splits_by_partition(state.plan(branch)).items()}


def record_provenance(table: Table, layout: ChainLayout, built: Provenance) -> None:
    """Write a record, before the commit. Idempotent."""
    data = json.dumps(_to_json(layout, built), indent=2, ensure_ascii=False).encode()
    try:
        put_new(table, _path(layout, built.values, built.files), data)
    except AlreadyExistsError:
        return


def _parse(layout: ChainLayout, data: bytes | None) -> Provenance | None:
    try:
        return None if data is None else _from_json(layout, parse_json(data))
    except (ValueError, KeyError, TypeError, PaimonError):
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

    def all(self) -> dict[str, Provenance]:
        """Read all of them, by path; unreadable ones are left out."""
        paths = sorted(self.paths)
        return {p: r for p, r in zip(paths, self._read(paths), strict=True) if r is not None}

    def _read(self, paths: Sequence[str]) -> list[Provenance | None]:
        content = read_present(self._table.store, paths)  # without those that were pruned meanwhile
        return [_parse(self._layout, content.get(path)) for path in paths]


def _listed(table: Table, layout: ChainLayout, groups: Collection[Values]) -> Iterable[str]:
    if len(groups) > _LISTED_ONE_BY_ONE:
        return table.store.walk(FOLDER)
    folders = [group_folder(layout, group) for group in groups]
    return [f"{folder}/{name}" for folder in folders for name in table.store.names(folder)]


def read_provenances(table: Table, layout: ChainLayout, digests: Mapping[Values, str]) -> dict[Values, Provenance]:
    """Read the recorded provenance of partitions with these files."""
    return Records(table, layout, {layout.group_of(v) for v in digests}).matching(digests)


def group_folder(layout: ChainLayout, group: Values) -> str:
    """Return the name of the folder of a group's records."""
    width = layout.group_width
    text = format_partition(group, layout.partition_keys[:width], layout.partition_types[:width])
    return f"{FOLDER}/{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _path(layout: ChainLayout, values: Values, files: str) -> str:
    return f"{_prefix(layout, values)}-{files}.json"


def _prefix(layout: ChainLayout, values: Values) -> str:
    name = hashlib.sha256(layout.text_of(values).encode()).hexdigest()[:24]
    return f"{group_folder(layout, layout.group_of(values))}/{name}"


def _to_json(layout: ChainLayout, built: Provenance) -> dict[str, Any]:
    def part(one: Part) -> dict[str, Any]:
        vectors = {} if one.vectors is None else {"vectors": one.vectors}
        return {"partition": _spec(layout, one.values), "files": one.files, **vectors}

    return {
        "partition": _spec(layout, built.values),
        "files": built.files,
        "anchor": part(built.anchor) if built.anchor else None,
        "deltas": [part(d) for d in built.deltas],
        "snapshots": dict(built.snapshots),
        "identities": dict(built.identities),
        "origin": built.origin,
        "created_at": built.created_at,
    }


def _from_json(layout: ChainLayout, raw: Mapping[str, Any]) -> Provenance:
    def part(one: Mapping[str, Any]) -> Part:
        return Part(values=_values(layout, one["partition"]), files=str(one["files"]), vectors=one.get("vectors"))

    return Provenance(
        values=_values(layout, raw["partition"]),
        files=str(raw["files"]),
        anchor=part(raw["anchor"]) if raw["anchor"] else None,
        deltas=tuple(part(d) for d in raw["deltas"]),
        snapshots=dict(raw["snapshots"]),
        origin=str(raw["origin"]),
        created_at=str(raw["created_at"]),
        identities=dict(raw.get("identities", {})),
    )


def _spec(layout: ChainLayout, values: Values) -> dict[str, str]:
    typed = zip(layout.partition_keys, values, layout.partition_types, strict=True)
    return {k: readable_value(v, t) for k, v, t in typed}


def _values(layout: ChainLayout, spec: Mapping[str, str]) -> Values:
    parsed = parse_partition_spec(spec, layout.partition_keys, layout.partition_types)
    return tuple(parsed[k] for k in layout.partition_keys)


ASSUMED = "assumed"
"""Origin of records that were not written when the partition was built."""

UNPROVEN = "its inputs were not recorded, and its rows may be nowhere else"

RecordOf = Callable[[Part], Provenance | None]
"""Returns the record of a partition as of the time when another one was built from it."""

_LONGEST = 10_000


def records_of(table: Table, layout: ChainLayout) -> RecordOf:
    """Look up records by the files of a partition, whether or not it still exists."""

    def record_of(part: Part) -> Provenance | None:
        path = _path(layout, part.values, part.files)
        return _parse(layout, read_present(table.store, [path]).get(path))

    return record_of


def is_proven(built: Provenance | None) -> bool:
    """Return whether a record was written when the partition was built."""
    return built is not None and built.origin != ASSUMED


def what_is_lacking(
    layout: ChainLayout,
    built: Provenance | None,
    snapshots: Set[Values],
    deltas: Set[Values],
    record_of: RecordOf,
) -> str | None:
    """Return why a partition can't be rebuilt from live partitions; None: it can."""
    if built is None or not is_proven(built):
        return UNPROVEN
    current: Provenance | None = built
    text = layout.text_of
    anchor = built.anchor
    for _ in range(_LONGEST):
        if current is None or not is_proven(current):
            break
        gone = [text(d.values) for d in current.deltas if d.values not in deltas]
        if gone:
            return f"{', '.join(gone)} is gone"
        anchor = current.anchor
        if anchor is None or anchor.values in snapshots:
            return None
        current = record_of(anchor)
    return f"its anchor {text(anchor.values)} is gone" if anchor is not None else UNPROVEN


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
