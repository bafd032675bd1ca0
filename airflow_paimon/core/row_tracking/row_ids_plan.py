"""Row ids of new files, and of files that move from one branch to another (pure).

A branch and main count on from the branch point's ``nextRowId``, so the same number means different rows on each side
from there on. A publish adds one shift to all those of the branch: what main has given out since. A *plain* file has
its ids in the manifest (``_FIRST_ROW_ID`` + position) and is renumbered there. A *stored* file (UPDATE, MERGE,
compaction) has ``_FIRST_ROW_ID`` null and its ids in a column: it is written again under another name, from which the
branch's own name can be told. See docs/contributing/format.md, Row tracking.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from airflow_paimon.core.errors import (
    FormatError,
    InvalidInputError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.binary_row import header_bytes
from airflow_paimon.core.format.manifest import DataFile, FileId, FileKind, FileSource, ManifestEntry

ROW_ID = "_ROW_ID"
VERSION = "_SEQUENCE_NUMBER"
_LISTED = 5
_BESIDE = re.compile(r"\.blob$|\.vector\.")
_REWRITTEN = re.compile(r"(.+)\.ids-[0-9a-f]{8}\.parquet")


class IdRange(NamedTuple):
    """Row ids, both ends included."""

    first: int
    last: int


class Shift(NamedTuple):
    """From the id ``first`` on, ``by`` is added to the ids of the source."""

    first: int
    by: int


class Partitions(Protocol):
    """Some partitions of a table. ``texts``: their texts."""

    @property
    def texts(self) -> tuple[str, ...]: ...

    def holds(self, stored: bytes) -> bool: ...


class PublishedVersion(NamedTuple):
    """A publish: versions of the source up to the snapshot ``source`` are the snapshot ``target`` on the target, in the
    partitions that were published; None: in all.
    """

    source: int
    target: int
    only: Partitions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdSpace:
    """What ids and versions of the source become on the target.

    ``shifts``: ascending; ids below the first one mean the same row on both sides. ``next_row_id``: of the target,
    after all of the source's. ``base``: versions up to this snapshot id mean the same on both sides; None: all do.
    ``published``: ascending; the earlier publishes of the source that the target still holds. ``first_free``: the ids
    stay free on the target as long as its ``nextRowId`` isn't higher; None: it is given no id.
    """

    shifts: tuple[Shift, ...]
    next_row_id: int
    base: int | None
    published: tuple[PublishedVersion, ...] = ()
    first_free: int | None = field(default=None, compare=False)

    def shift_of(self, row_id: int) -> int:
        return next((s.by for s in reversed(self.shifts) if s.first <= row_id), 0)

    def moves(self, ids: IdRange | None) -> bool:
        """Whether a file with ids of this range (None: unknown) holds any that change. Later shifts are not smaller."""
        return any(s.by for s in self.shifts) if ids is None else self.shift_of(ids.last) > 0

    def moved(self, ids: IdRange | None) -> IdRange | None:
        """Return bounds of what ids of this range (None: unknown) become."""
        return None if ids is None else IdRange(*(i + self.shift_of(i) for i in ids))

    @property
    def text(self) -> str:
        """The shifts as the property of a snapshot, for the next publish: ``2+0,5+3``."""
        return ",".join(f"{s.first}+{s.by}" for s in self.shifts)

    @property
    def published_text(self) -> str:
        """The earlier publishes as the property of a snapshot, JSON: ``[[4, 7, []], [9, 12, ["dt=a"]]]``."""
        parts = [[p.source, p.target, [] if p.only is None else list(p.only.texts)] for p in self.published]
        return json.dumps(parts, ensure_ascii=False)

    def in_partition(self, stored: bytes) -> IdSpace:
        """Return what holds for the rows of one partition: only what was published of it counts."""
        return replace(self, published=tuple(p for p in self.published if p.only is None or p.only.holds(stored)))

    def version_of(self, version: int) -> int | None:
        """Return a version of the source as the target has it; None: that of the commit on the target."""
        if self.base is None or version <= self.base:
            return version
        return next((p.target for p in self.published if version <= p.source), None)


def parse_shifts(text: str) -> tuple[Shift, ...]:
    """Parse ``IdSpace.text``; empty if it isn't one."""
    if not re.fullmatch(r"\d+\+\d+(,\d+\+\d+)*", text):
        return ()
    return tuple(Shift(*map(int, part.split("+"))) for part in text.split(","))


def parse_published(text: str, only: Callable[[Sequence[str]], Partitions]) -> tuple[PublishedVersion, ...]:
    """Parse ``IdSpace.published_text``; empty if it isn't one. ``only``: parses partitions.

    Earlier development versions wrote ``4>7,9>12`` where none was of some partitions.
    """
    if re.fullmatch(r"\d+>\d+(,\d+>\d+)*", text):
        pairs = (part.split(">") for part in text.split(","))
        return tuple(PublishedVersion(int(source), int(target)) for source, target in pairs)
    try:
        return tuple(
            PublishedVersion(int(s), int(t), only(texts) if texts else None) for s, t, texts in json.loads(text)
        )
    except (ValueError, TypeError, InvalidInputError):
        return ()


def id_space(
    table: str,
    *,
    earlier: Sequence[Shift] = (),
    shared: int,
    target: int,
    source: int,
    base: int | None,
    published: Sequence[PublishedVersion] = (),
) -> IdSpace:
    """Plan how ids move. ``shared``: the ids of the source from here on are new to the target; ``target`` and
    ``source``: the ``nextRowId`` of both. ``earlier``: what the last publish of the source did to the ids below.
    ``published``: see ``IdSpace``.

    Raises:
        UnsafeOperationError: the two sides have no numbering in common.
    """
    if target < shared:
        raise UnsafeOperationError(
            f"{table}: nextRowId is {target}, lower than {shared} where the branch was made: another "
            f"engine rolled main back and reuses row ids. Make a new branch from main's head and "
            f"correct it again",
            details={"next_row_id": target, "shared_row_ids": shared},
        )
    by = target - shared
    known = tuple(earlier)
    if source > shared and (not known or known[-1].by != by):
        known = (*known, Shift(shared, by))
    return IdSpace(
        shifts=known,
        next_row_id=max(target, source + by),
        base=base,
        published=tuple(published),
        first_free=target if source > shared else None,
    )


def is_stored(file: DataFile) -> bool:
    """Return whether the row ids are a column of the file."""
    return file.first_row_id is None and file.write_cols is not None and ROW_ID in file.write_cols


def has_row_ids(file: DataFile) -> bool:
    """Return whether the file's rows have ids: those of a file written without row tracking have none."""
    return file.first_row_id is not None or is_stored(file)


def refuse_without_ids(label: str, files: Iterable[DataFile], what: str, way_out: str) -> None:
    """Refuse to put files without row ids beside, or in place of, rows that have them.

    Raises:
        UnsafeOperationError: there are some; ``what`` and ``way_out`` complete its message.
    """
    without = sorted(f.file_name for f in files if not has_row_ids(f))
    if without:
        raise UnsafeOperationError(
            f"{label}: {what} {len(without)} files without row ids (e.g. {without[0]}), written before "
            f"row-tracking.enabled was set or by an engine that ignores it; nothing was changed. {way_out}",
            details={"files": without[:_LISTED], "file_count": len(without)},
        )


def stored_ids(file: DataFile) -> IdRange | None:
    """Return the range of ids of a stored file, from its statistics; None if unknown."""
    return _stored_range(file, ROW_ID)


def _stored_range(file: DataFile, name: str) -> IdRange | None:
    at = _place(file, name)
    if at is None:
        return None
    place, arity = at
    first, last = (_long(row, place, arity) for row in (file.value_stats.min_values, file.value_stats.max_values))
    return None if first is None or last is None else IdRange(first, last)


def _place(file: DataFile, name: str) -> tuple[int, int] | None:
    columns = file.value_stats_cols if file.value_stats_cols is not None else file.write_cols
    return None if columns is None or name not in columns else (list(columns).index(name), len(columns))


def _long(row: bytes, place: int, arity: int) -> int | None:
    """Read one BIGINT of a BinaryRow, whatever the other columns' types are."""
    header = header_bytes(arity)
    body = row[4:]
    if len(row) < 4 or struct.unpack_from(">i", row)[0] != arity or len(body) < header + 8 * arity:
        return None
    if body[(place + 8) >> 3] >> (place & 7) & 1:
        return None
    value: int = struct.unpack_from("<q", body, header + 8 * place)[0]
    return value


def stamped(
    entries: Sequence[ManifestEntry], snapshot_id: int, next_row_id: int, *, by_partition: bool = True
) -> tuple[list[ManifestEntry], int]:
    """Give new files their versions and row ids, and return the entries with the next row id.

    Done again for each attempt to commit, as another commit may have taken the ids. ``by_partition``: the files of a
    partition get adjacent ids (``row-tracking.partition-group-on-commit``); partitions in the order in which they come.
    """
    out = [e._replace(file=_versioned(e.file, snapshot_id)) if e.kind == FileKind.ADD else e for e in entries]
    groups: dict[bytes, list[int]] = {}
    for at, entry in enumerate(out):
        file = entry.file
        if entry.kind == FileKind.ADD and not has_row_ids(file) and file.file_source != FileSource.COMPACT:
            groups.setdefault(entry.partition if by_partition else b"", []).append(at)
    for at in (at for group in groups.values() for at in group):
        out[at] = out[at]._replace(file=out[at].file._replace(first_row_id=next_row_id))
        next_row_id += out[at].file.row_count
    return out, next_row_id


def _versioned(file: DataFile, snapshot_id: int) -> DataFile:
    """A lowest version of 0 is that of a file whose rows are all new, a highest of 0 one with some changed rows."""
    if file.min_sequence_number == 0:
        return file._replace(min_sequence_number=snapshot_id, max_sequence_number=snapshot_id)
    if file.max_sequence_number == 0:
        return file._replace(max_sequence_number=snapshot_id)
    return file


def rewritten_name(file_name: str, number: int) -> str:
    """Return the name of a file that is written again with other ids; ``number`` is chance."""
    return f"{origin_name(file_name)}.ids-{number & 0xFFFFFFFF:08x}.parquet"


def origin_name(file_name: str) -> str:
    """Return the name that a file has on the branch from which it was published."""
    found = _REWRITTEN.fullmatch(file_name) if ".ids-" in file_name else None
    return found[1] if found else file_name


def origin(file: FileId) -> FileId:
    """Return the identity that a file has on the branch from which it was published."""
    return file._replace(file_name=origin_name(file.file_name)) if ".ids-" in file.file_name else file


@dataclass(frozen=True, slots=True, kw_only=True)
class Renumbering:
    """``entries`` as adjusted for the target. ``rewrite``: those, by position, whose files have to be written again,
    and whether because of their ids (else because of their versions). ``renumbered``: how many others got other ids.
    """

    entries: tuple[ManifestEntry, ...]
    rewrite: Mapping[int, bool]
    renumbered: int


def renumber(table: str, entries: Sequence[ManifestEntry], known: Collection[FileId], space: IdSpace) -> Renumbering:
    """Give the files of the source their ids and versions on the target. ``known``: files that the target had before.

    Raises:
        FormatError: a file has no row ids at all.
        UnsupportedFeatureError: a later release describes a file that changes, or the ids of one change in part.
    """
    out, rewrite, renumbered = list(entries), {}, 0
    for at, entry in enumerate(entries):
        if entry.kind != FileKind.ADD or entry.identifier in known:
            continue
        file = entry.file
        if not has_row_ids(file):
            raise _without_ids(table, file)
        versioned = _on_target(file, space.in_partition(entry.partition))
        if file.first_row_id is not None:
            by = space.shift_of(file.first_row_id)
            if by != space.shift_of(file.first_row_id + max(file.row_count, 1) - 1):
                raise UnsupportedFeatureError(
                    f"{table}: file {file.file_name} of the branch joins rows from before the branch was made with new "
                    f"ones, which get other row ids on the target; make a new branch of main and correct them there"
                )
            renumbered += by > 0
            out[at] = entry._replace(file=(versioned or file)._replace(first_row_id=file.first_row_id + by))
        elif space.moves(stored_ids(file)):
            rewrite[at] = True
        elif versioned is None:
            rewrite[at] = False
        else:
            out[at] = entry._replace(file=versioned)
        if file.unknown and (out[at].file != file or at in rewrite):
            raise UnsupportedFeatureError(
                f"{table}: the rows of {file.file_name} get other ids or versions on the target, and the file has "
                "fields of a later Paimon release, which may refer to them; publish with a newer airflow-paimon"
            )
    return Renumbering(entries=tuple(out), rewrite=rewrite, renumbered=renumbered)


def _on_target(file: DataFile, space: IdSpace) -> DataFile | None:
    """Put the versions of rows that changed since the branch point as the target has them (0: the commit gives them).

    None: they are stored, so the file has to be written again.
    """
    base = space.base
    if base is None or file.max_sequence_number <= base:
        return file
    highest = space.version_of(file.max_sequence_number) or 0
    if file.first_row_id is not None:
        # numbers of single columns would be the source's; without them all columns have the file's
        return file._replace(min_sequence_number=highest, max_sequence_number=highest, write_cols_sequences=None)
    at, versions, counts = _place(file, VERSION), _stored_range(file, VERSION), file.value_stats.null_counts
    if at is None or not counts or len(counts) != at[1]:
        return None
    if counts[at[0]] == file.row_count:
        return file._replace(min_sequence_number=highest, max_sequence_number=highest)
    if counts[at[0]] and versions is not None and versions.last <= base:
        return file._replace(max_sequence_number=highest)
    return None


def _without_ids(table: str, file: DataFile) -> FormatError:
    return FormatError(
        f"{table}: file {file.file_name} has no row ids, although row-tracking.enabled is set: it was written "
        f"before the option, or by an engine that ignores it; rewrite its rows with INSERT OVERWRITE",
        details={"file": file.file_name},
    )


def refuse_stored(table: str, found: Renumbering) -> None:
    """Refuse files that would have to be written again because of their ids, where nothing can write them.

    Raises:
        UnsafeOperationError: one ``_ROW_ID`` would be on two rows.
    """
    taken = sorted(found.entries[at].file.file_name for at, is_needed in found.rewrite.items() if is_needed)
    if taken:
        raise UnsafeOperationError(
            f"{table}: {len(taken)} files of the branch, e.g. {', '.join(taken[:_LISTED])}, store row ids that main "
            "has since given to other rows; nothing was published. Run it where pyarrow is installed, which rewrites "
            "them, or create a new branch from main's head",
            details={"files": taken[:_LISTED], "file_count": len(taken)},
        )


@dataclass(frozen=True, slots=True)
class Ranged:
    """A file and the range that its ids are in."""

    file: DataFile
    ids: IdRange


def ranged(files: Sequence[DataFile], next_row_id: int) -> list[Ranged]:
    """Return the files with ids and their ranges, in order; one whose statistics don't tell may hold any id."""
    found = [Ranged(f, ids_of(f, next_row_id)) for f in files if has_row_ids(f) and f.row_count]
    return sorted(found, key=lambda r: (r.ids, r.file.file_name))


def ids_of(file: DataFile, next_row_id: int) -> IdRange:
    """Return the range that a file's ids are in; where its statistics don't tell, all that were given out."""
    if file.first_row_id is not None:
        return IdRange(file.first_row_id, file.first_row_id + file.row_count - 1)
    return stored_ids(file) or IdRange(0, max(0, next_row_id - 1))


def beyond(files: Sequence[Ranged], next_row_id: int) -> list[str]:
    """Files with ids that the table has not given out yet, so that it will give them out again."""
    return [r.file.file_name for r in files if r.ids.last >= next_row_id]


def overlapping(files: Sequence[Ranged]) -> Iterator[list[Ranged]]:
    """Group files whose ranges overlap, directly or by way of others; ``files`` as ``ranged`` returns them."""
    group: list[Ranged] = []
    reach = -1
    for one in files:
        if group and one.ids.first > reach:
            if len(group) > 1:
                yield group
            group = []
        group.append(one)
        reach = max(reach, one.ids.last) if len(group) > 1 else one.ids.last
    if len(group) > 1:
        yield group


def is_beside(file: DataFile) -> bool:
    """Whether a file holds only columns of blobs, or only vectors, beside a file with the other columns."""
    return _BESIDE.search(file.file_name) is not None


def torn_groups(files: Sequence[Ranged]) -> list[str]:
    """With data evolution: files that share some but not all of their ids, which no reader can lay side by side.

    Files of blobs and vectors may hold any part of a range.
    """
    files = [r for r in files if not is_beside(r.file)]
    return [r.file.file_name for group in overlapping(files) for r in group if r.ids != group[0].ids]
