"""find_rows: which stored files hold rows of a condition, and who reaches them. Finding none proves an erasure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.erasure.reach_plan import ReachingRoots, reaching_roots, retaining_consumers
from airflow_paimon.core.erasure.stored_files import StoredFiles, read_stored_files
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.metadata_expiry.storage_usage_plan import NEWEST
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import FindRows
from airflow_paimon.core.table.merge_options import combines_rows, keeps_values
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.erasure.search import Search, Searched, parse_search, search_files

_LISTED_PROBLEMS = 100
NOT_LOOKED_AT = (
    "copies outside of the table's folder: other tables, exports, backups, versions that an object store keeps",
    "metadata: lowest and highest values of columns in manifests, statistics of ANALYZE, file indexes (*.index), names "
    "of partitions",
    "statements in properties of snapshots and in audit records",
    "what is written after the state that is named here",
)
"""What no search says anything about."""


def find_rows(context: Context, request: FindRows) -> OperationResult:
    """Search all stored files of all branches. Changes nothing.

    Raises:
        InvalidInputError: the condition can't be parsed. UnsupportedFeatureError: the rows of the table
            are spread over several files. FormatError: something that names files is unreadable.
    """
    table = context.table
    found = search_table(table, search_of(table, request.where))
    details = {
        "time": context.now_iso,
        "condition_sha256": condition_digest(request.where),
        **found.to_json(request.limit),
    }
    head = table.latest_snapshot_id()
    return context.result(None, branch=MAIN, changed=False, before=head, after=head, details=details)


def condition_digest(where: str) -> str:
    """Return what results and snapshots hold of a condition: it may name a person."""
    return hashlib.sha256(where.encode()).hexdigest()


def search_of(table: Table, where: str) -> Search:
    """Parse a condition on the columns of main.

    Raises:
        InvalidInputError: it can't be parsed. UnsupportedFeatureError: see ``find_rows``.
    """
    schema = table.branch(MAIN).schema()
    if TableOptions(schema.options).data_evolution:
        raise UnsupportedFeatureError(
            f"{table.name}: with data-evolution.enabled the columns of a row are in several files, so no single file "
            "shows whether it has such a row"
        )
    search = parse_search(where, schema)
    if combines_rows(schema) and not keeps_values(search.condition, schema):
        raise UnsupportedFeatureError(
            f"{table.name}: with merge-engine={TableOptions(schema.options).merge_engine} a row is merged from several "
            "stored ones, so none of them alone decides the condition; name columns of the primary key, and with AND "
            "one other at most, whose value is one that was written"
        )
    return search


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRows:
    """What is stored, what was searched of it, and what reaches the files with rows (by position there)."""

    stored: StoredFiles
    searched: Sequence[Searched]
    matching: Sequence[Searched]
    references: Sequence[ReachingRoots]

    @property
    def problems(self) -> list[dict[str, str]]:
        """What could not be searched: no proof is complete while there is any."""
        found = [{"path": one.file.path, "reason": one.problem} for one in self.searched if one.problem is not None]
        return found + [{"path": path, "reason": what} for path, what in self.stored.indexes]

    @property
    def proven(self) -> bool:
        """Whether no stored file holds such a row."""
        return not self.matching and not self.problems

    def to_json(self, limit: int) -> dict[str, Any]:
        """Return it as JSON values. ``limit``: files to list, 0 = all."""
        read = [one for one in self.searched if one.read]
        files = {one.file.path: one.file for one in self.searched}
        listed = self.matching[:limit] if limit else self.matching
        problems = self.problems
        reached = self.reached
        return {
            "proven": self.proven,
            "rows": sum(one.rows for one in self.matching),
            "files": {
                "total": len(files),
                "bytes": sum(f.size for f in files.values()),
                "read": len(read),
                "read_ratio": round(len(read) / len(files), 4) if files else 0.0,
                "with_rows": len(self.matching),
                "with_rows_bytes": sum(one.file.size for one in self.matching),
                "unreached": sum(not by for by in reached),
            },
            "state": {name: root.snapshot.id for name, root in sorted(self.stored.heads.items())},
            "branches": self._branches(),
            "references": [h.to_json() for h in self.references if h.kind != NEWEST],
            "consumers": [
                {"branch": c.branch, "name": c.name, "next_snapshot": c.next_snapshot}
                for c in retaining_consumers(self.stored.consumers, self.references)
            ],
            "found": [
                {
                    "path": one.file.path,
                    "kind": one.file.kind,
                    "rows": one.rows,
                    "bytes": one.file.size,
                    "reached_by": by,
                }
                for one, by in zip(listed, reached, strict=False)
            ],
            "found_left_out": len(self.matching) - len(listed),
            "unchecked": problems[:_LISTED_PROBLEMS],
            "unchecked_left_out": max(len(problems) - _LISTED_PROBLEMS, 0),
            "not_searched": list(NOT_LOOKED_AT),
            "warnings": list(self.stored.warnings),
        }

    @property
    def reached(self) -> list[list[str]]:
        """Who reaches each file with rows."""
        by: list[list[str]] = [[] for _ in self.matching]
        for holder in self.references:
            for at in holder.files:
                by[at].append(_holder_text(holder))
        return by

    def _branches(self) -> list[dict[str, Any]]:
        """The branches whose newest state has files with such rows; how many rows there are, also hidden ones."""
        return [
            {
                "branch": h.branch,
                "snapshot": h.roots[-1].snapshot.id,
                "files": len(h.files),
                "rows": sum(self.matching[at].rows for at in h.files),
            }
            for h in self.references
            if h.kind == NEWEST
        ]


def search_table(table: Table, search: Search) -> FoundRows:
    """Search all stored files of all branches.

    Raises:
        FormatError: something that names files is unreadable; names it.
    """
    stored = read_stored_files(table)
    searched = search_files(table, search, stored.files, stored.schemas)
    matching = sorted((one for one in searched if one.rows), key=lambda one: (-one.rows, one.file.path))
    references = reaching_roots(stored.index, stored.roots, [one.file.number for one in matching])
    return FoundRows(stored=stored, searched=searched, matching=matching, references=references)


def _holder_text(holder: ReachingRoots) -> str:
    """Name a holder: ``newest snapshot of main``, ``tag month_end``, ``snapshots 3 to 7 of branch fix``."""
    first, last = holder.roots[0].snapshot.id, holder.roots[-1].snapshot.id
    span = f"{first} to {last}" if first != last else f"{first}"
    branch = MAIN if holder.branch == MAIN else f"branch {holder.branch}"
    texts: Mapping[str, str] = {
        NEWEST: f"newest snapshot ({last}) of {branch}",
        "tag": f"tag {holder.name} of {branch}",
        "protective tag": f"tag {holder.name} of {branch}",
    }
    return texts.get(holder.kind, f"{holder.kind} {span} of {branch}")
