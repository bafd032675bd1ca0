"""Publishes of tables with data evolution: which columns of which rows each side wrote (pure).

Such a table keeps the columns of a row in several files. An update adds a file with the assigned columns of a range of
row ids and removes none, so files alone don't tell that both sides changed the same values. See
docs/contributing/format.md, Data evolution.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_paimon.core.errors import ConflictError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DataFile, FileKind, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.publish.bucket_merge_plan import BucketChange
from airflow_paimon.core.row_tracking.row_ids_plan import (
    ROW_ID,
    VERSION,
    IdSpace,
    is_beside,
    origin_name,
    ranged,
    stored_ids,
    torn_groups,
)
from airflow_paimon.core.table.live_files import BucketKey, Difference

_LISTED = 5
Schemas = Mapping[int, TableSchema]


class WrittenColumns(NamedTuple):
    """Some columns of a range of row ids, ends included. ``columns``: their ids and their names, as both sides may have
    given an id, or a name, to a column of their own; None: all.
    """

    bucket: BucketKey
    first: int
    last: int
    columns: frozenset[int | str] | None

    def meets(self, other: WrittenColumns) -> bool:
        """Whether both hold a column of the same row."""
        if self.bucket != other.bucket or self.last < other.first or other.last < self.first:
            return False
        return self.columns is None or other.columns is None or bool(self.columns & other.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOrder:
    """``known``: the source's row ids below this one can be of rows that the target has. ``floor``: the newest snapshot
    of the target from which files of such rows have come, on both sides or by a publish.
    """

    known: int
    floor: int

    def is_there(self, file: DataFile) -> bool:
        """Whether the target can have the rows of this file."""
        return file.first_row_id is not None and file.first_row_id < self.known


def check_column_conflicts(
    table: str,
    changes: Sequence[BucketChange],
    theirs: Difference,
    ours: Difference,
    *,
    space: IdSpace,
    schemas: tuple[Schemas, Schemas],
    name_bucket: Callable[[BucketKey], str],
) -> None:
    """Refuse a publish where both sides changed one column of one range of rows since the base.

    ``changes``: what the target would get; ``space``: what the source's row ids are there. ``schemas``: the target's
    and the source's, by id. A file that is gone counts as all of its rows' columns.

    Raises:
        ConflictError: lists the ranges.
    """
    mine = list(_of_target(theirs, ours, schemas[0]))
    hit = [(w, m) for w in _of_source(changes, space, schemas[1]) for m in mine if w.meets(m)]
    if not hit:
        return
    texts = sorted({_text(w, m, name_bucket) for w, m in hit})
    raise ConflictError(
        f"{table}: both sides changed the same columns of the same rows since the branch was made: "
        f"{'; '.join(texts[:_LISTED])}. Make a new branch of main and correct them again there",
        code="not-mergeable",
        details={"conflicts": texts[:_LISTED], "conflict_count": len(texts), "cause": "columns"},
    )


def check_ids(
    table: str,
    changes: Sequence[BucketChange],
    shared: Sequence[Difference],
    ours: Difference,
    *,
    space: IdSpace,
    name_bucket: Callable[[BucketKey], str],
) -> None:
    """Refuse changes of rows that the target got in another way than from this source, as from a branch that this one
    is a rebase of: their ids there are others than ``space`` says. ``shared``: what the source may have in common.

    Raises:
        ConflictError: names the bucket.
    """
    there = {origin_name(i.file_name): e.file for files in ours.added.values() for i, e in files.items()}
    apart: dict[str, WrittenColumns | None] = {}
    for bucket, files in (item for part in shared for item in part.added.items()):
        for name, entry in ((origin_name(i.file_name), e) for i, e in files.items()):
            if name in there and _has_other_ids(there[name], entry.file, space):
                apart[name] = _whole(entry, bucket)
    ranges = list(_known(apart.values()))
    for change in changes:
        is_gone = any(origin_name(e.file.file_name) in apart for e in change.delete)
        added = _known(_whole(e, change.bucket) for e in change.add)
        if is_gone or any(one.meets(other) for one in added for other in ranges):
            where = name_bucket(change.bucket)
            raise ConflictError(
                f"{table}: rows of {where} came to main from another branch, and have other row ids there than on this "
                "one, which changed them then. Make a new branch of main and correct them again there",
                code="not-mergeable",
                details={"conflicts": [where], "conflict_count": 1, "cause": "row-ids"},
            )


def _has_other_ids(on_main: DataFile, on_branch: DataFile, space: IdSpace) -> bool:
    first = on_branch.first_row_id
    if first is not None:
        return on_main.first_row_id != first + space.shift_of(first)
    return on_main.file_name != on_branch.file_name or space.moves(stored_ids(on_branch))


def check_ranges(
    table: str,
    live: Mapping[BucketKey, Collection[ManifestEntry]],
    changes: Sequence[BucketChange],
    *,
    space: IdSpace,
    name_bucket: Callable[[BucketKey], str],
) -> None:
    """Refuse a publish after which files of the same rows had different ranges, which no reader can put together.

    ``live``: the target's files, by bucket. That is so where the source compacted files of both sides,
    which changes no row and is not published, and changed the rows then.

    Raises:
        ConflictError: names the bucket.
    """
    for change in changes:
        gone = {e.identifier for e in change.delete} | {e.identifier for e in change.add}
        own = [_shifted(e, space).file for e in change.add if e.file.first_row_id is not None]
        kept = (e for e in live.get(change.bucket, ()) if e.identifier not in gone)
        others = [e.file for e in kept if e.file.first_row_id is not None]
        if own and torn_groups(ranged([*own, *others], space.next_row_id)):
            raise ConflictError(
                f"{table}: the branch compacted files of {name_bucket(change.bucket)} and changed their rows then, so "
                f"that its files don't fit to main's. Make a new branch of main and correct them again there",
                code="not-mergeable",
                details={"conflicts": [name_bucket(change.bucket)], "conflict_count": 1, "cause": "compaction"},
            )


def ordered(
    table: str,
    before: Sequence[ManifestEntry],
    after: Sequence[ManifestEntry],
    schemas: Schemas,
    order: ColumnOrder,
    head: int,
) -> tuple[ManifestEntry, ...]:
    """Keep the order of files that hold the same column of the same rows, where all of them get the commit's number.

    ``before``, ``after``: the entries of a publish with the source's numbers and with the target's; 0 is the number of
    the commit, ``head + 1``. Of several files of one column the newest gets it, the others the numbers before it, which
    have to be above those that the target's files of these rows can have: see ``ColumnOrder``.

    The oldest file of a range, which deletion vectors refer to, stays the oldest one.

    Raises:
        UnsupportedFeatureError: there are not that many numbers.
    """
    fresh = [at for at, e in enumerate(after) if e.kind == FileKind.ADD and e.file.max_sequence_number == 0]
    gone = [w for e in before if e.kind == FileKind.DELETE for w in [_whole(e, None)] if w is not None]
    known = {at: _place(before[at], schemas, order, gone) for at in fresh}
    newest_first = sorted(fresh, key=lambda at: -before[at].file.max_sequence_number)
    depth: dict[int, int] = {}
    out = list(after)
    for position, at in enumerate(newest_first):
        number = before[at].file.max_sequence_number
        newer = (o for o in newest_first[:position] if before[o].file.max_sequence_number > number)
        mine = known[at]
        meeting = [o for o in newer if mine is not None and (w := known[o]) is not None and w.meets(mine)]
        depth[at] = max((depth[o] + 1 for o in meeting), default=0)
        if not depth[at]:
            continue
        given = head + 1 - depth[at]
        if given <= (order.floor if order.is_there(before[at].file) else 0):
            raise UnsupportedFeatureError(
                f"{table}: the branch changed columns of the same rows in {depth[at] + 1} commits (the first one made "
                f"{before[at].file.file_name}), and main has too few snapshots since then to order them; compact the "
                "branch with Paimon's own engine, and publish it again"
            )
        out[at] = after[at]._replace(file=after[at].file._replace(min_sequence_number=given, max_sequence_number=given))
    return tuple(out)


def _place(
    entry: ManifestEntry, schemas: Schemas, order: ColumnOrder, gone: Collection[WrittenColumns]
) -> WrittenColumns | None:
    """Return what has to be in order: the file's columns, or all of a file that may become the oldest of its range."""
    whole = _whole(entry, None)
    if whole is None or is_beside(entry.file):
        return _written(entry, schemas)
    stays = order.is_there(entry.file) and not any(whole.meets(g) for g in gone)
    return _written(entry, schemas) if stays else whole


def _shifted(entry: ManifestEntry, space: IdSpace) -> ManifestEntry:
    first = entry.file.first_row_id
    if first is None:
        return entry
    return entry._replace(file=entry.file._replace(first_row_id=first + space.shift_of(first)))


def _of_source(changes: Sequence[BucketChange], space: IdSpace, schemas: Schemas) -> Iterator[WrittenColumns]:
    for change in changes:
        yield from _known(_written(_shifted(e, space), schemas, change.bucket) for e in change.add)
        yield from _known(_whole(e, change.bucket) for e in change.delete)  # of the target, with its ids


def _of_target(theirs: Difference, ours: Difference, schemas: Schemas) -> Iterator[WrittenColumns]:
    """What the target changed; not what it got from the source by an earlier publish."""
    published = {i.file_name for d in (theirs.added, theirs.removed) for group in d.values() for i in group}
    for files, of in ((ours.added, True), (ours.removed, False)):
        for bucket, group in files.items():
            entries = [e for i, e in group.items() if i.file_name not in published]
            yield from _known(_written(e, schemas, bucket) if of else _whole(e, bucket) for e in entries)


def _known(found: Iterable[WrittenColumns | None]) -> Iterator[WrittenColumns]:
    return (w for w in found if w is not None)


def _written(entry: ManifestEntry, schemas: Schemas, bucket: BucketKey | None = None) -> WrittenColumns | None:
    whole = _whole(entry, bucket)
    written, schema = entry.file.write_cols, schemas.get(entry.file.schema_id)
    names = [n for n in written or () if n not in (ROW_ID, VERSION)]
    if whole is None or not names or schema is None or not set(names) <= set(schema.field_names):
        return whole
    return whole._replace(columns=frozenset(names) | {schema.field(n).id for n in names})


def _whole(entry: ManifestEntry, bucket: BucketKey | None) -> WrittenColumns | None:
    first = entry.file.first_row_id
    if first is None:
        return None
    place = BucketKey(entry.partition, entry.bucket) if bucket is None else bucket
    return WrittenColumns(place, first, first + entry.file.row_count - 1, None)


def _text(one: WrittenColumns, other: WrittenColumns, name_bucket: Callable[[BucketKey], str]) -> str:
    both = one.columns or other.columns or frozenset()
    if one.columns and other.columns:
        both = one.columns & other.columns
    names = ", ".join(sorted(n for n in both if isinstance(n, str))) or "all columns"
    first, last = max(one.first, other.first), min(one.last, other.last)
    return f"{names} of row ids {first} to {last} in {name_bucket(one.bucket)}"
