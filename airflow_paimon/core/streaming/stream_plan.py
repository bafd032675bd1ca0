"""Where a stream starts, how far it has read, and what each snapshot gives to it. Pure: no store, no clock.

Snapshot ids alone repeat after a rollback or a fast-forward by another engine, so a position also holds the identity
of its snapshot. A snapshot gives units of files, in an order that never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from airflow_paimon.core.errors import FormatError, InvalidInputError, UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DataFile, FileKind, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.table.features import check_readable
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.properties import OPERATION_PROPERTY, RESCALE

ALL = -1
"""All units of a snapshot."""

LATEST_FULL, LATEST = "latest-full", "latest"
FROM_SNAPSHOT, FROM_SNAPSHOT_FULL, AFTER_SNAPSHOT = "from-snapshot", "from-snapshot-full", "after-snapshot"
FROM_TIMESTAMP = "from-timestamp"
MODES = (LATEST_FULL, LATEST, FROM_SNAPSHOT, FROM_SNAPSHOT_FULL, AFTER_SNAPSHOT, FROM_TIMESTAMP)
AT_A_SNAPSHOT = (FROM_SNAPSHOT, FROM_SNAPSHOT_FULL, AFTER_SNAPSHOT)
START_OPTIONS = ("scan.mode", "scan.snapshot-id", "scan.tag-name", "scan.timestamp", "scan.timestamp-millis")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a new stream starts; ``timestamp``: ISO text with an offset, or epoch milliseconds."""

    mode: str = LATEST_FULL
    snapshot_id: int | None = None
    tag: str | None = None
    timestamp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Everything before it has been read.

    Attributes:
        snapshot: The snapshot that was read last, or partly; 0 = nothing yet.
        identity: ``Snapshot.identity``; empty where that snapshot had expired when the stream started.
        full: Of this snapshot all rows of the table are read, not its changes.
        units: How many of its units have been read.
    """

    snapshot: int = 0
    identity: str = ""
    full: bool = False
    units: int = ALL

    @property
    def is_complete(self) -> bool:
        return self.units == ALL

    @property
    def needs(self) -> int:
        """The oldest snapshot that is needed to go on.

        Its own shows that the history is still the same. The changes of one that is read in part may be its difference
        to the one before.
        """
        return self.snapshot if self.is_complete or self.full else self.snapshot - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The units ``first`` <= number < ``last`` (``ALL`` = to the end) of one snapshot."""

    snapshot: int
    identity: str = ""
    full: bool = False
    first: int = 0
    last: int = ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A position as Spark's checkpoint keeps it, with the position at which the stream started.

    Spark does not log the start of the first batch and asks for it anew when it repeats that batch. ``at`` None is
    what it gets then: the true start is in the batch's end.
    """

    branch: str
    at: Position | None = None
    origin: Position = Position()

    def to_json(self) -> dict[str, Any]:
        """Return texts, whole numbers and booleans, always in the same order: Spark compares offsets as text."""
        if self.at is None:
            return {"branch": self.branch, "snapshot": ALL}
        return {
            "branch": self.branch,
            "snapshot": self.at.snapshot,
            "identity": self.at.identity,
            "full": self.at.full,
            "units": self.at.units,
            "origin_snapshot": self.origin.snapshot,
            "origin_identity": self.origin.identity,
            "origin_full": self.origin.full,
        }


def parse_offset(value: Mapping[str, Any], branch: str) -> Offset:
    """Parse the output of ``Offset.to_json``.

    Raises:
        InvalidInputError: it is of another branch. FormatError: not an offset of this source.
    """
    try:
        found, snapshot = str(value["branch"]), int(value["snapshot"])
        if found != branch:
            raise InvalidInputError(
                f"The checkpoint belongs to a stream of branch {found!r}, not of {branch!r}: use a new checkpoint "
                f"location"
            )
        if snapshot == ALL:
            return Offset(branch=found)
        origin_full = bool(value["origin_full"])
        return Offset(
            branch=found,
            at=Position(
                snapshot=snapshot,
                identity=str(value["identity"]),
                full=bool(value["full"]),
                units=int(value["units"]),
            ),
            origin=Position(
                snapshot=int(value["origin_snapshot"]),
                identity=str(value["origin_identity"]),
                full=origin_full,
                units=0 if origin_full else ALL,
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise FormatError(
            f"The checkpoint contains an offset that is not of a stream of this source: {str(dict(value))[:200]}"
        ) from None


def parse_start(options: Mapping[str, str]) -> Start:
    """Read the starting point from a stream's options, with Paimon's names and defaults (docs/reference/spark.md).

    Raises:
        InvalidInputError: an unknown mode, or options that contradict each other or the mode.
    """
    given = {k: options[k].strip() for k in START_OPTIONS if k in options}
    timestamp = given.get("scan.timestamp", given.get("scan.timestamp-millis"))
    snapshot, tag = given.get("scan.snapshot-id"), given.get("scan.tag-name")
    points = [k for k in START_OPTIONS[1:] if k in given]
    if len(points) > 1:
        raise InvalidInputError(f"The options {' and '.join(points)} contradict each other: give one of them")
    if snapshot is not None and not (snapshot.isdigit() and int(snapshot) > 0):
        raise InvalidInputError(f"The option scan.snapshot-id is a snapshot id, not {snapshot!r}")
    mode = given.get("scan.mode", "default").lower()
    if mode == "default":
        mode = (FROM_SNAPSHOT if snapshot else FROM_SNAPSHOT_FULL if tag else FROM_TIMESTAMP) if points else LATEST_FULL
    mode = LATEST_FULL if mode == "full" else mode
    if mode not in MODES:
        raise InvalidInputError(f"The option scan.mode is one of {', '.join(MODES)}, not {mode!r}")
    needed = {FROM_TIMESTAMP: ("scan.timestamp", "scan.timestamp-millis")}
    needed |= dict.fromkeys(AT_A_SNAPSHOT, ("scan.snapshot-id", "scan.tag-name"))
    fits = needed.get(mode, ())
    if bool(points) != bool(fits) or any(p not in fits for p in points):
        what = f"needs {' or '.join(fits)}" if fits else f"takes no {points[0]}"
        raise InvalidInputError(f"The option scan.mode={mode} {what}")
    return Start(mode=mode, snapshot_id=int(snapshot) if snapshot else None, tag=tag, timestamp=timestamp)


def steps_between(start: Position, end: Position) -> list[Step]:
    """List what lies after ``start`` up to ``end``, in order.

    Raises:
        FormatError: ``end`` lies before ``start``: the checkpoint was edited.
    """
    if end.snapshot < start.snapshot:
        raise FormatError(f"The checkpoint goes back from snapshot {start.snapshot} to {end.snapshot}")
    if end.snapshot == start.snapshot:
        if start.is_complete or start.units == end.units:
            return []
        return [_step(end, start.units, end.units)]
    steps = [] if start.is_complete else [_step(start, start.units, ALL)]
    steps += [Step(snapshot=i) for i in range(start.snapshot + 1, end.snapshot)]
    return [*steps, _step(end, 0, end.units)]


def _step(at: Position, first: int, last: int) -> Step:
    return Step(snapshot=at.snapshot, identity=at.identity, full=at.full, first=first, last=last)


READ_OVERWRITE, READ_APPEND_OVERWRITE = "streaming-read-overwrite", "streaming-read-append-overwrite"
ROW_KIND_OPTION = "row-kind"


class Overwrites(StrEnum):
    """What an OVERWRITE snapshot gives."""

    FAIL = "fail"
    SKIP = "skip"
    ADDED = "added"
    CHANGES = "changes"


class Source(StrEnum):
    """Where the changes of a snapshot are."""

    NOTHING = "nothing"
    DELTA = "delta"
    CHANGELOG = "changelog"
    DIFFERENCE = "difference"


class Content(StrEnum):
    """What the files of a unit hold: rows of the table, changes with a kind each, or two states to compare."""

    ROWS = "rows"
    CHANGES = "changes"
    STATES = "states"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Files that are read one after the other. ``before``: the earlier state of ``after``'s buckets."""

    content: Content
    after: tuple[BucketSplit, ...]
    before: tuple[BucketSplit, ...] = ()

    @property
    def files(self) -> int:
        return sum(len(s.files) for s in (*self.after, *self.before))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRules:
    """How the snapshots of a table are read: by its options, and by those of the stream."""

    keyed: bool
    producer: str
    overwrites: Overwrites

    @property
    def has_changelog(self) -> bool:
        return self.producer != "none"

    @property
    def merges_later(self) -> bool:
        """Whether the changes of new files come with a later compaction."""
        return self.producer in ("lookup", "full-compaction")


def stream_rules(schema: TableSchema, own: Mapping[str, str], row_kind: bool, label: str, branch: str) -> StreamRules:
    """Read the rules from a table's options; ``own`` are the stream's own, which come first.

    Raises:
        InvalidInputError: the changes of a primary-key table without the column for their kind, or a value that
            is not known. UnsupportedFeatureError: a table whose changes this engine can't tell.
    """
    check_readable(schema, table=label, time_travel=True, layered=True, branch=branch)  # its own snapshots only
    options = TableOptions({**schema.options, **own})
    keyed = bool(schema.primary_keys)
    if keyed and not row_kind:
        raise InvalidInputError(
            f"{label} has a primary key, so its stream has deletes and updates as well: set the option "
            f"{ROW_KIND_OPTION}=true, which adds the column _row_kind (+I, -U, +U, -D)"
        )
    if options.data_evolution:
        raise UnsupportedFeatureError(
            f"{label}: a stream can't distinguish updated columns of a data-evolution table from new rows; compare two "
            "snapshots with diff_branches, or read it in batches"
        )
    producer = options.text("changelog-producer", "none").lower() if keyed else "none"
    if keyed and options.merge_engine != "deduplicate" and producer == "none":
        raise UnsupportedFeatureError(
            f"{label}: its merge engine {options.merge_engine} merges several changes to one row, which new files "
            "alone don't show; set changelog-producer=lookup or full-compaction (input returns records as written, "
            "not merged)"
        )
    rules = StreamRules(keyed=keyed, producer=producer, overwrites=_overwrites(options, keyed, row_kind))
    if rules.merges_later and rules.overwrites is Overwrites.CHANGES:
        raise UnsupportedFeatureError(
            f"{label}: {READ_OVERWRITE}=true does not go together with changelog-producer={producer}; set it to false"
        )
    return rules


def _overwrites(options: TableOptions, keyed: bool, row_kind: bool) -> Overwrites:
    text = options.text(READ_OVERWRITE).lower()
    if text not in ("", "true", "false", "fail"):
        raise InvalidInputError(f"The option {READ_OVERWRITE} is true, false or fail, not {text!r}")
    if text == "true":
        return Overwrites.CHANGES if row_kind else Overwrites.ADDED
    if not keyed and options.flag(READ_APPEND_OVERWRITE):
        return Overwrites.ADDED
    return Overwrites.SKIP if text == "false" else Overwrites.FAIL


def changes_of(snapshot: Snapshot, rules: StreamRules, label: str) -> Source:
    """Return where a snapshot's changes are.

    Raises:
        UnsafeOperationError: it is an OVERWRITE, and the stream was not told what to do with one.
    """
    if rules.has_changelog and snapshot.changelog_manifest_list is not None:
        return Source.CHANGELOG
    if snapshot.properties.get(OPERATION_PROPERTY) == RESCALE:  # of this package: no row changes
        return Source.NOTHING
    if snapshot.commit_kind is CommitKind.OVERWRITE:
        return _of_overwrite(snapshot, rules, label)
    return Source.DELTA if snapshot.commit_kind is CommitKind.APPEND and not rules.has_changelog else Source.NOTHING


def _of_overwrite(snapshot: Snapshot, rules: StreamRules, label: str) -> Source:
    match rules.overwrites:
        case Overwrites.FAIL:
            raise UnsafeOperationError(
                f"{label}: snapshot {snapshot.id} replaced rows (an UPDATE, DELETE, INSERT OVERWRITE, publish or "
                f"rollback), which a stream of new rows would miss. Set {READ_OVERWRITE}=true to read them (with "
                f"{ROW_KIND_OPTION}=true as changes), or false to skip them",
                code="stream-overwrite",
                details={"snapshot": snapshot.id},
            )
        case Overwrites.SKIP:
            return Source.NOTHING
        case Overwrites.ADDED:
            return Source.DELTA
        case Overwrites.CHANGES:
            return Source.DIFFERENCE


def units_of_entries(entries: Iterable[ManifestEntry], schema: TableSchema, rules: StreamRules) -> list[Unit]:
    """Return the units of the files that a delta or a changelog adds: of a bucket its files from old to new, without
    a primary key each file.
    """
    stored = StoredPartitions(schema)
    added = (e for e in entries if e.kind == FileKind.ADD and e.bucket >= 0)
    units = []
    for key, group in sorted(stored.by_bucket(added).items()):
        one = group[0]
        files = sorted((e.file for e in group), key=lambda f: (f.min_sequence_number, f.file_name))
        split = BucketSplit(one.partition, stored.values(one.partition), key.bucket, one.total_buckets, tuple(files))
        if rules.keyed:
            units.append(Unit(content=Content.CHANGES, after=(split,)))
        else:
            units += [Unit(content=Content.ROWS, after=(replace(split, files=(f,)),)) for f in files]
    return units


def units_of_state(splits: Iterable[BucketSplit], schema: TableSchema, rules: StreamRules) -> list[Unit]:
    """Return the units of all rows of a snapshot."""
    units = []
    for split in sorted(splits, key=StoredPartitions(schema).bucket):
        files = _visible(split, schema, rules) if split.bucket >= 0 else ()
        if rules.keyed and files:
            units.append(Unit(content=Content.ROWS, after=(replace(split, files=files),)))
        elif not rules.keyed:
            ordered = sorted(files, key=lambda f: f.file_name)
            units += [Unit(content=Content.ROWS, after=(replace(split, files=(f,)),)) for f in ordered]
    return units


def _visible(split: BucketSplit, schema: TableSchema, rules: StreamRules) -> tuple[DataFile, ...]:
    """Return the files whose changes no later changelog has."""
    if not rules.merges_later:
        return split.files
    lowest = 1 if rules.producer == "lookup" else TableOptions(schema.options).num_levels - 1
    return tuple(f for f in split.files if f.level >= lowest)


def units_of_difference(before: Sequence[BucketSplit], after: Sequence[BucketSplit], schema: TableSchema) -> list[Unit]:
    """Return units that compare two states bucket by bucket; a partition as a whole if its bucket count changed."""
    bucket_of = StoredPartitions(schema).compared_by((*before, *after))
    groups: dict[BucketKey, tuple[list[BucketSplit], list[BucketSplit]]] = {}
    for side, splits in enumerate((before, after)):
        for split in (s for s in splits if s.bucket >= 0):
            groups.setdefault(bucket_of(split), ([], []))[side].append(split)
    return [
        Unit(content=Content.STATES, before=tuple(old), after=tuple(new)) for _, (old, new) in sorted(groups.items())
    ]


def units_within(units: Sequence[Unit], first: int, budget: int, taken: int) -> tuple[int, int]:
    """Return the number of the unit at which a batch ends, and the files taken so far.

    ``budget``: files in a batch, which takes one unit at least. ``taken``: those of earlier snapshots.
    """
    for number in range(first, len(units)):
        if taken and taken + units[number].files > budget:
            return number, taken
        taken += units[number].files
    return len(units), taken
