"""Files of a publish that are written again, because they store row ids or versions that mean other rows on main."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_paimon.core.commit.committer import perform
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.manifest import FileId, ManifestEntry
from airflow_paimon.core.plan import Delete
from airflow_paimon.core.publish.draft import Publication
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace, refuse_stored
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import data_file_path
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

Rewrite = Callable[[Table, Sequence[ManifestEntry], IdSpace], Sequence[ManifestEntry]]
"""Writes files of a branch again, in order, with the ids and versions of main and the branch's schema ids;
implemented by the data layer."""


@dataclass(slots=True)
class RewrittenFiles:
    """The files that this call has written. An attempt to commit uses those of an earlier one if main has given out no
    ids in between.
    """

    rewrite: Rewrite | None
    made: dict[tuple[FileId, IdSpace], ManifestEntry] = field(default_factory=dict)

    def entries_of(self, published: Publication) -> dict[int, ManifestEntry]:
        """Return the entries to commit in place of those that can't be taken by reference, by their position.

        Raises:
            UnsafeOperationError: there are some, and nothing can write them.
        """
        d, found = published.decision, published.renumbering
        if found is None or d.id_space is None or not found.rewrite:
            return {}
        if self.rewrite is None:
            refuse_stored(d.target.name, found)
            return {}
        own = {e.identifier: e for c in d.changes for e in c.add}
        wanted = [found.entries[at].identifier for at in found.rewrite]
        missing = [own[i] for i in wanted if (i, d.id_space) not in self.made]
        if missing:
            log.info("%s: writing %d files again with other row ids", d.target.name, len(missing))
            for old, new in zip(missing, self.rewrite(d.source, missing, d.id_space), strict=True):
                self.made[old.identifier, d.id_space] = new
        out = {}
        for at in found.rewrite:
            entry = found.entries[at]
            new = self.made[entry.identifier, d.id_space]
            out[at] = entry._replace(file=new.file._replace(schema_id=entry.file.schema_id))
        return out

    def discard(self, table: Table, kept: Collection[str] = ()) -> None:
        """Delete files that no snapshot refers to. A failure leaves orphans, which are harmless."""
        delete_files(table, [e for e in self.made.values() if e.file.file_name not in kept])


def delete_files(table: Table, entries: Sequence[ManifestEntry]) -> None:
    """Delete files that no snapshot refers to. A failure leaves orphans, which are harmless."""
    schema = table.schema()
    values = StoredPartitions(schema).values
    paths = [data_file_path(schema, values(e.partition), e.bucket, e.file) for e in entries]
    try:
        perform(table, [Delete(path=p, reason="written by a publish that did not use it") for p in paths])
    except PaimonError as error:
        log.info("%s: unused files were left behind (%s)", table.label, error)


def names_of(entries: Mapping[int, ManifestEntry]) -> set[str]:
    """Return the names of the files of these entries."""
    return {e.file.file_name for e in entries.values()}
