"""Row ids of files that move from one branch to another by reference (pure).

Both branches count on from the branch point's ``nextRowId``, so the same number means different rows on each side from
there on. A *plain* file has its ids in the manifest (``_FIRST_ROW_ID`` + position) and can be renumbered there. A
*stored* file (UPDATE, MERGE, compaction) has ``_FIRST_ROW_ID`` null and its ids in a column: it would have to be
rewritten. See docs/format.md, Row tracking.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_paimon.core.errors import FormatError, UnsafeOperationError
from airflow_paimon.core.format.binary_row import header_bytes
from airflow_paimon.core.format.manifest import DataFile, FileId, FileKind, FileSource, ManifestEntry

ROW_ID = "_ROW_ID"
_LISTED = 5


class IdRange(NamedTuple):
    """Row ids, both ends included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdSpace:
    """The state of both sides' row id numbering.

    ``shared``: the ids below it mean the same row on both sides. ``target`` and ``source``: the ``nextRowId`` of the
    branch that gets the files and of the one that they come from.
    """

    shared: int
    target: int
    source: int

    @property
    def same(self) -> bool:
        """Whether the target has assigned no id of its own, so that every id of the source is free there."""
        return self.target == self.shared


def is_stored(file: DataFile) -> bool:
    """Return whether the row ids are a column of the file."""
    return file.first_row_id is None and file.write_cols is not None and ROW_ID in file.write_cols


def has_row_ids(file: DataFile) -> bool:
    """Return whether the file's rows have ids: those of a file written without row tracking have none."""
    return file.first_row_id is not None or is_stored(file)


def stored_ids(file: DataFile) -> IdRange | None:
    """Return the range of ids of a stored file, from its statistics; None if unknown."""
    columns = file.value_stats_cols if file.value_stats_cols is not None else file.write_cols
    if columns is None or ROW_ID not in columns:
        return None
    place, arity = list(columns).index(ROW_ID), len(columns)
    first, last = (_long(row, place, arity) for row in (file.value_stats.min_values, file.value_stats.max_values))
    return None if first is None or last is None else IdRange(first, last)


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
        if entry.kind == FileKind.ADD and not has_row_ids(file) and file.file_source == FileSource.APPEND:
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


def assign_row_ids(
    table: str, entries: Sequence[ManifestEntry], known: Collection[FileId], space: IdSpace
) -> tuple[list[ManifestEntry], int]:
    """Return the entries as adjusted for the target, and its next row id, which never decreases.

    ``known``: files that the target had before, under the same ids. If the target has assigned no id since the branch
    point, all ids are kept; otherwise plain files that it never had get new ids.

    Raises:
        UnsafeOperationError: a stored file may hold ids that the target uses for other rows, or the two sides have no
            numbering in common. FormatError: a file has no row ids at all.
    """
    if space.target < space.shared:
        raise UnsafeOperationError(
            f"{table}: nextRowId is {space.target}, lower than {space.shared} where the branch was made: another "
            f"engine rolled main back and reuses row ids. Make a new branch from main's head and "
            f"correct it again",
            table=table,
            details={"next_row_id": space.target, "shared_row_ids": space.shared},
        )
    fresh = [e for e in entries if e.kind == FileKind.ADD and e.identifier not in known]
    _check_ids(table, fresh, space)
    next_row_id = max(space.target, space.source)
    if space.same:
        return list(entries), next_row_id
    renumbered = {e.identifier for e in fresh if _plain_end(e.file) > space.shared}
    out = []
    for entry in entries:
        if entry.kind == FileKind.ADD and entry.identifier in renumbered:
            entry = entry._replace(file=entry.file._replace(first_row_id=next_row_id))
            next_row_id += entry.file.row_count
        out.append(entry)
    return out, next_row_id


def _plain_end(file: DataFile) -> int:
    """The id after the last one of a plain file; 0 for other files."""
    return 0 if file.first_row_id is None else file.first_row_id + file.row_count


def _check_ids(table: str, fresh: Sequence[ManifestEntry], space: IdSpace) -> None:
    without = next((e.file for e in fresh if not has_row_ids(e.file)), None)
    if without is not None:
        raise FormatError(
            f"{table}: file {without.file_name} has no row ids, although row-tracking.enabled is set: it was written "
            f"before the option, or by an engine that ignores it; rewrite its rows with INSERT OVERWRITE",
            table=table,
            details={"file": without.file_name},
        )
    if space.same:
        return
    taken = sorted(e.file.file_name for e in fresh if is_stored(e.file) and not _below(e.file, space.shared))
    if taken:
        raise UnsafeOperationError(
            f"{table}: {len(taken)} files of the branch, e.g. {', '.join(taken[:_LISTED])}, store row ids that main "
            f"has given to other rows since the branch was made (an UPDATE, MERGE or compaction of rows that were "
            f"inserted on the branch), so one _ROW_ID would be on two rows; nothing was published. Make a new branch "
            f"from main's head, correct it again and publish it before main gets new rows",
            table=table,
            details={"files": taken[:_LISTED], "file_count": len(taken), "shared_row_ids": space.shared},
        )


def _below(file: DataFile, limit: int) -> bool:
    ids = stored_ids(file)
    return ids is not None and ids.last < limit
