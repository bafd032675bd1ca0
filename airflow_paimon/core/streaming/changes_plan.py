"""What one snapshot gives to a stream: units of files, in an order that never changes. Pure: no store, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DataFile, FileKind, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.table.features import check_readable
from airflow_paimon.core.table.live_files import BucketSplit, group_by_bucket
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.stored_partitions import StoredPartitions

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


def stream_rules(schema: TableSchema, asked: Mapping[str, str], row_kind: bool, label: str, branch: str) -> StreamRules:
    """Read the rules from a table's options; ``asked`` are the stream's own, which come first.

    Raises:
        InvalidInputError: the changes of a primary-key table without the column for their kind, or a value that
            is not known. UnsupportedFeatureError: a table whose changes this engine can't tell.
    """
    check_readable(schema, table=label, time_travel=True, layered=True, branch=branch)  # its own snapshots only
    options = TableOptions({**schema.options, **asked})
    keyed = bool(schema.primary_keys)
    if keyed and not row_kind:
        raise InvalidInputError(
            f"{label} has a primary key, so its stream has deletes and updates as well: set the option "
            f"{ROW_KIND_OPTION}=true, which adds the column _row_kind (+I, -U, +U, -D)"
        )
    if options.data_evolution:
        raise UnsupportedFeatureError(
            f"{label}: a stream can't tell updated columns of a data-evolution table from new rows; compare two "
            f"snapshots with diff_branches, or read it in batches"
        )
    producer = options.text("changelog-producer", "none").lower() if keyed else "none"
    if keyed and options.merge_engine != "deduplicate" and producer == "none":
        raise UnsupportedFeatureError(
            f"{label}: its merge engine {options.merge_engine} makes a row of several changes, which a stream of new "
            f"files can't tell; set changelog-producer=lookup or full-compaction (input is read as well, but gives the "
            f"records as they were written, not merged)"
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
    if snapshot.commit_kind is CommitKind.OVERWRITE:
        return _of_overwrite(snapshot, rules, label)
    return Source.DELTA if snapshot.commit_kind is CommitKind.APPEND and not rules.has_changelog else Source.NOTHING


def _of_overwrite(snapshot: Snapshot, rules: StreamRules, label: str) -> Source:
    match rules.overwrites:
        case Overwrites.FAIL:
            raise UnsafeOperationError(
                f"{label}: snapshot {snapshot.id} replaced rows (OVERWRITE: an UPDATE, DELETE, INSERT OVERWRITE, a "
                f"publish or a rollback), which a stream of new rows would miss. Set {READ_OVERWRITE}=true to get its "
                f"rows (with {ROW_KIND_OPTION}=true its exact changes), or false to skip such snapshots",
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
    for key, group in sorted(group_by_bucket(added, stored.canonical).items()):
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
    canonical = StoredPartitions(schema).canonical
    units = []
    for split in sorted(splits, key=lambda s: (canonical(s.partition), s.bucket)):
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
    canonical = StoredPartitions(schema).canonical
    totals: dict[bytes, set[int]] = {}
    for split in (*before, *after):
        totals.setdefault(canonical(split.partition), set()).add(split.total_buckets)
    groups: dict[tuple[bytes, int], tuple[list[BucketSplit], list[BucketSplit]]] = {}
    for side, splits in enumerate((before, after)):
        for split in (s for s in splits if s.bucket >= 0):
            partition = canonical(split.partition)
            bucket = split.bucket if len(totals[partition]) == 1 else ALL_BUCKETS
            groups.setdefault((partition, bucket), ([], []))[side].append(split)
    return [
        Unit(content=Content.STATES, before=tuple(old), after=tuple(new)) for _, (old, new) in sorted(groups.items())
    ]


ALL_BUCKETS = -1


def units_within(units: Sequence[Unit], first: int, budget: int | None, taken: int) -> tuple[int, int]:
    """Return the number of the unit at which a batch ends, and the files taken so far.

    ``budget``: files in a batch, None = any number; a batch takes one unit at least. ``taken``: those of earlier
    snapshots.
    """
    for number in range(first, len(units)):
        if budget is not None and taken and taken + units[number].files > budget:
            return number, taken
        taken += units[number].files
    return len(units), taken
