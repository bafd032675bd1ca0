"""Publishes of some partitions of a row-tracking table: no row may be on main twice because the branch has moved it."""

from __future__ import annotations

from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.format.manifest import DataFile, ManifestEntry
from airflow_paimon.core.publish.bucket_merge_plan import MAX_LISTED, listed
from airflow_paimon.core.publish.compare import Comparison
from airflow_paimon.core.publish.partial_publish import texts_of
from airflow_paimon.core.publish.publication import Publication
from airflow_paimon.core.publish.row_functions import FindSharedId
from airflow_paimon.core.row_tracking.row_ids_plan import IdRange, has_row_ids, is_stored, stored_ids
from airflow_paimon.core.table.history import difference
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.table import Table


def check_moved_rows(
    main: Table, branch: Table, compared: Comparison, publication: Publication, find_shared_id: FindSharedId | None
) -> None:
    """Check that no row of a publish of some partitions would be on main twice: the branch may have moved it to one of
    them from one that is not published.

    Compares the ids that files to be published store with those of main's files that the branch has changed, and that
    stay. Reads them only where their bounds don't tell.

    Raises:
        UnsafeOperationError: an id is on both sides, or can't be read here.
    """
    assert publication.row_ids is not None
    space, known = publication.row_ids.space, publication.row_ids.known
    added = [e for c in publication.changes for e in c.add if is_stored(e.file) and e.identifier not in known]
    if not added:
        return
    stay = _staying(main, branch, compared)
    suspects = [e for e in added if any(_overlap(space.moved(stored_ids(e.file)), o.file) for o in stay)]
    if not suspects:
        return
    others = [o for o in stay if any(_overlap(space.moved(stored_ids(e.file)), o.file) for e in suspects)]
    found = None
    if find_shared_id is not None:
        found = find_shared_id(branch, suspects, main, others, read_index_entries(main, compared.head), space)
    if find_shared_id is None or found is not None:
        where = listed(texts_of(compared.schema, {e.partition for e in others}))
        raise UnsafeOperationError(
            f"{main.name}: the branch has moved rows from {where} to partitions that are to be published"
            f"{'' if found is None else f', e.g. the one with _ROW_ID {found}'}, so they would be on main twice; "
            f"nothing was published. Publish those partitions together",
            details={"files": sorted(e.file.file_name for e in suspects)[:MAX_LISTED]},
        )


def _staying(main: Table, branch: Table, compared: Comparison) -> list[ManifestEntry]:
    """Return main's files out of scope, of the buckets in which the branch has other files or deletion vectors."""
    change = difference(branch, compared.head, compared.branch_snapshot)
    stored = StoredPartitions(compared.schema)
    buckets = {b for b in change.removed.keys() | change.index.keys() if not compared.scope.holds(b.partition)}
    if not buckets:
        return []
    live = live_entries(main, compared.head, stored.those({b.partition for b in buckets}))
    return [e for e in live.values() if stored.bucket(e) in buckets]


def _overlap(ids: IdRange | None, file: DataFile) -> bool:
    """Whether a file may have one of these ids; None: any."""
    if not has_row_ids(file):
        return False
    first = file.first_row_id
    other = stored_ids(file) if first is None else IdRange(first, first + file.row_count - 1)
    return ids is None or other is None or (ids.first <= other.last and other.first <= ids.last)
