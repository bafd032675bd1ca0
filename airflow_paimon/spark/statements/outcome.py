"""What a statement wrote, before its commit, and the figures of its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.data.arrow_write import discard_files
from airflow_paimon.data.write import TableWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``read``: the target's files as they were read. ``rewritten``: names of those that a dry run would write again.
    ``deleted_at_most``: ``deleted`` counts stored rows, of which a merge or a deletion vector may hide some.
    """

    read: ScanPlan
    write: TableWrite
    messages: tuple[CommitMessage, ...]
    updated: int = 0
    deleted: int = 0
    inserted: int = 0
    rewritten: frozenset[str] = frozenset()
    deleted_at_most: bool = False

    @property
    def rows(self) -> int:
        return self.updated + self.deleted + self.inserted

    def discard(self) -> None:
        """Delete the new files: certainly nothing refers to them."""
        discard_files(self.write, self.messages)

    def details(self) -> Mapping[str, Any]:
        live = [f for s in self.read.splits for f in s.files]
        new = [f for m in self.messages for f in m.new_files]
        gone = {f.file_name for m in self.messages for f in m.replaced} | self.rewritten
        rewritten, kept = (
            [f for f in live if f.file_name in gone],
            [f for f in live if f.file_name not in gone],
        )
        return {
            "rows_updated": self.updated,
            "rows_deleted": self.deleted,
            **({"rows_deleted_at_most": True} if self.deleted_at_most else {}),
            "rows_inserted": self.inserted,
            "files_added": len(new),
            "bytes_added": sum(f.file_size for f in new),
            "files_rewritten": len(rewritten),
            "bytes_rewritten": sum(f.file_size for f in rewritten),
            "files_kept": len(kept),
            "bytes_kept": sum(f.file_size for f in kept),
        }
