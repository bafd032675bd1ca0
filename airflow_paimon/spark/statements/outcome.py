"""What a statement wrote, before its commit, and the figures of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.data.write import TableWrite, discard_files
from airflow_paimon.spark.statements.statement_plan import Statement

_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementOutcome:
    """``read``: the target's files as they were read. ``rewritten``: names of those that a dry run would write again.
    ``deleted_at_most``: ``deleted`` counts stored rows, of which a merge or a deletion vector may hide some.
    ``marked``: how many files keep their place with more rows deleted by deletion vectors.
    ``partitions``: the names of the table's, where nothing changes, as far as they are known.
    """

    read: ScanPlan
    write: TableWrite
    messages: tuple[CommitMessage, ...]
    updated: int = 0
    deleted: int = 0
    inserted: int = 0
    rewritten: frozenset[str] = frozenset()
    deleted_at_most: bool = False
    marked: int = 0
    partitions: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.updated + self.deleted + self.inserted

    @property
    def changes_nothing(self) -> bool:
        return not self.rows and not self.messages

    def discard(self) -> None:
        """Delete the new files: certainly nothing refers to them."""
        discard_files(self.write, self.messages)

    def details(self) -> Mapping[str, Any]:
        live = [f for s in self.read.splits for f in s.files]
        new = [f for m in self.messages for f in m.new_files]
        gone = {f.file_name for m in self.messages for f in m.replaced} | self.rewritten
        rewritten = [f for f in live if f.file_name in gone]
        kept = [f for f in live if f.file_name not in gone]
        changes = [m.changelog for m in self.messages if m.changelog is not None]
        return {
            "rows_updated": self.updated,
            "rows_deleted": self.deleted,
            **({"rows_deleted_at_most": True} if self.deleted_at_most else {}),
            "rows_inserted": self.inserted,
            **changed_files(new, rewritten),
            **({"files_with_deletions": self.marked} if self.marked else {}),
            **({"changelog_rows": sum(f.row_count for files in changes for f in files)} if changes else {}),
            "files_kept": len(kept),
            "bytes_kept": sum(f.file_size for f in kept),
        }


def changed_files(added: Sequence[DataFile], rewritten: Sequence[DataFile]) -> dict[str, int]:
    """Return the figures of the files that a commit adds, and of those that it takes away."""
    return {
        "files_added": len(added),
        "bytes_added": sum(f.file_size for f in added),
        "files_rewritten": len(rewritten),
        "bytes_rewritten": sum(f.file_size for f in rewritten),
    }


def notes_of(statement: Statement, outcome: StatementOutcome) -> list[str]:
    """Say why a statement changed nothing: what no row met, and which partitions there are."""
    if not outcome.changes_nothing:
        return []
    text = " ".join(statement.condition.text.split()) if statement.condition is not None else ""
    condition = text if len(text) <= _TEXT else f"{text[:_TEXT]}..."
    if statement.kind == "INSERT":
        why = "its query returned no rows"
    elif statement.kind == "MERGE":
        why = f"none of its clauses took a row, joined ON {condition}"
    else:
        why = f"no row has {condition}" if condition else "the table has no rows"
    names, known = outcome.partitions, ""
    if names:
        first_and_last = " to ".join(sorted({names[0], names[-1]}))
        known = f"; the table has {len(names)} partition{'s' * (len(names) > 1)}, {first_and_last}"
    return [f"{statement.title} changed nothing: {why}{known}"]
