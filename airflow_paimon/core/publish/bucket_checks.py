"""Checks of the buckets that a publish or rollback replaces: their number, and what open writers don't know (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_paimon.core.errors import ConflictError, UnsafeOperationError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.publish.bucket_merge_plan import (
    MAX_LISTED,
    BucketChange,
    Sides,
    bucket_names,
    highest_sequence,
    listed,
)
from airflow_paimon.core.table.features import SNAPSHOT_ORDERING
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN


def check_bucket_counts(
    table: str,
    sides: Sides,
    changes: Sequence[BucketChange],
    schema: TableSchema,
    target: str = MAIN,
    *,
    by_file: bool = False,
) -> None:
    """Refuse if one side changed a partition's bucket count while the other side changed its rows.

    ``by_file``: both sides' files of one bucket may be taken.

    Raises:
        ConflictError: rows of one key would be in two buckets.
    """
    taken = {c.bucket for c in changes}
    by_partition: dict[bytes, set[int]] = {}
    for diff in (sides.theirs, sides.ours):
        for group in (diff.added, diff.removed):
            for bucket, entries in group.items():
                counts = {e.total_buckets for e in entries.values()}
                by_partition.setdefault(bucket.partition, set()).update(counts)
    for partition, counts in by_partition.items():
        touched = {b for b in sides.theirs.buckets | sides.ours.buckets if b.partition == partition}
        both = by_file and touched & sides.theirs.buckets and touched & sides.ours.buckets
        if len(counts) > 1 and (both or (touched & taken and touched - taken)):
            where = bucket_names(schema, touched)
            raise ConflictError(
                f"{table}: the number of buckets of {listed(where)} changed since the branch point, and both sides "
                f"wrote there; create a new branch from {target}'s head",
                code="not-mergeable",
                details={"conflicts": where[:MAX_LISTED]},
            )


def other_bucket_counts(changes: Sequence[BucketChange], schema: TableSchema) -> list[int]:
    """Return the numbers of buckets that these changes give to partitions that had none or another one, and that are
    not the option's.
    """
    new: dict[bytes, set[int]] = {}
    old: dict[bytes, set[int]] = {}
    for change in changes:
        for found, entries in ((new, change.add), (old, change.delete)):
            found.setdefault(change.bucket.partition, set()).update(e.total_buckets for e in entries)
    option = TableOptions(schema.options).bucket
    given = {count for partition, counts in new.items() for count in counts - old[partition] if count > 0}
    return sorted(given - {option}) if option > 0 else []


def warn_of_bucket_counts(changes: Sequence[BucketChange], schema: TableSchema) -> list[str]:
    """Say what other engines' writers would do to partitions of another number of buckets than the option's."""
    counts = other_bucket_counts(changes, schema)
    if not counts:
        return []
    return [
        f"partitions have {' or '.join(map(str, counts))} buckets now, and the option bucket is "
        f"{TableOptions(schema.options).bucket}: stop Paimon's own writers of them until it is the same (alter_table "
        f"--change 'set bucket={counts[0]}') or they are rescaled; they refuse them, or put a key into a second bucket"
    ]


def check_deletion_vectors(table: str, *, theirs: TableSchema, ours: TableSchema) -> None:
    """Refuse deletion vectors that main doesn't have: without the option Paimon's readers ignore them.

    Raises:
        UnsafeOperationError: a publish can't switch the option.
    """
    if TableOptions(theirs.options).deletion_vectors and not TableOptions(ours.options).deletion_vectors:
        raise UnsafeOperationError(
            f"{table}: deletion-vectors.enabled is set on the branch and not on main, where readers would show the "
            f"deleted rows; set it on main first, or make a new branch from main's head and correct it again"
        )


def other_keys(table: str, buckets: Iterable[BucketKey], schema: TableSchema, whose: str) -> UnsafeOperationError:
    """Return the refusal of dynamic buckets with other keys: an open writer remembers the bucket of each key.

    ``whose``: where the keys come from, for people.
    """
    names = bucket_names(schema, buckets)
    return _unsafe(
        names,
        f"{table}: {listed(names)} of {whose} have other keys than the table has now: a writer that stays "
        f"open remembers other dynamic buckets for them, and would put a key into a second one. Use "
        f"writers_stopped (--writers-stopped) when no writer is open",
        code="dynamic-bucket-keys",
    )


def check_snapshot_numbers(table: str, changes: Sequence[BucketChange], schema: TableSchema, publish: int) -> None:
    """Refuse rows whose numbers, the ids of the branch's snapshots, are above that of the publish (``publish``).

    With ``sequence.snapshot-ordering`` main's next commits would lose to them.

    Raises:
        UnsafeOperationError: lists the buckets.
    """
    if not TableOptions(schema.options).flag(SNAPSHOT_ORDERING):
        return
    highest = {c.bucket: highest_sequence([e.file for e in c.add]) for c in changes}
    names = bucket_names(schema, (bucket for bucket, number in highest.items() if number > publish))
    if names:
        raise _unsafe(
            names,
            f"{table}: {listed(names)} of the branch hold rows of its snapshots up to {max(highest.values())}, and "
            f"the publish would be snapshot {publish}: with {SNAPSHOT_ORDERING} the next commits of main would lose "
            f"to them. Make a new branch of main's head and write the correction there in one commit",
        )


def check_moving_keys(
    table: str, changes: Sequence[BucketChange], schema: TableSchema, whose: str = "the branch"
) -> None:
    """Refuse rows for partitions between which keys may move: a writer that stays open remembers where each key lives.

    Nothing in the metadata says whether a key has moved; a file that goes may be the delete of a moved one.

    Raises:
        UnsafeOperationError: lists the buckets.
    """
    if not schema.crosses_partitions or TableOptions(schema.options).bucket > 0:
        return
    names = bucket_names(schema, (c.bucket for c in changes))
    if names:
        raise _unsafe(
            names,
            f"{table}: {listed(names)} of {whose} may have keys that were in other partitions, as the primary key "
            f"lacks partition columns: a writer that stays open remembers the partition of each key, and would add a "
            f"second row. Use writers_stopped (--writers-stopped) when no writer is open",
            code="moved-keys",
        )


def _unsafe(buckets: Sequence[str], message: str, code: str | None = None) -> UnsafeOperationError:
    details = {"buckets": buckets[:MAX_LISTED], "bucket_count": len(buckets)}
    return UnsafeOperationError(message, code=code, details=details)
