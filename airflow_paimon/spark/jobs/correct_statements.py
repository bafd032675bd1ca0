"""correct_branch with several statements in one file: each sees what those before it did; the branch gets one commit.

They run on an unpublished view of the branch: their data files are written where they will stay, their commits are in
the driver's memory. Then one commit takes over what has changed. A run that ends before leaves files that nothing
refers to.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.commit.conditions import KEYS_STAY
from airflow_paimon.core.commit.draft import CommitIdentity
from airflow_paimon.core.commit.idempotency import REFUSALS
from airflow_paimon.core.commit.staging import Staging, Taken, take_over, unpublished, unpublished_snapshots
from airflow_paimon.core.errors import PaimonError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import FileKind, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace
from airflow_paimon.core.sql_text.checks import naming_statement
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_index_entries, selected_entries
from airflow_paimon.core.table.manifest_lists import read_delta_lists
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR, MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arrow_write import until_committed
from airflow_paimon.data.files.write import delete_unused
from airflow_paimon.data.publish_row_ids import rewrite_files
from airflow_paimon.spark.jobs.correct_statement import statement_of
from airflow_paimon.spark.jobs.correction import made_of, properties, read_heads, result_of
from airflow_paimon.spark.statements.statement_plan import Statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

JOINED = "\n;\n"
"""Stands between the statements in what identifies the request, and in the snapshot's properties."""
_ROWS = ("rows", "rows_updated", "rows_deleted", "rows_inserted")
_OF_EACH = (*_ROWS, "rows_deleted_at_most", "notes")
Change = Callable[[Context, Table, Statement], OperationResult]
"""Runs one statement on a view of the branch, with a commit of its own."""


def statements_of(spark: SparkSession, request: CorrectBranch, texts: Sequence[str]) -> list[Statement]:
    """Parse all statements before the first one runs.

    Raises:
        InvalidInputError: one of them is none, or not on ``branch``; names its number.
    """
    found = []
    for at, text in enumerate(texts, 1):
        with naming_statement(at, texts):
            statement = statement_of(spark, request, text)
        if statement is None:
            raise UnsupportedFeatureError(
                f"{request.table}: statement {at} of sql (--sql) is not an UPDATE, DELETE, MERGE or INSERT, or the "
                "session has no JVM to parse it; several of these run as one correction, a SELECT runs alone"
            )
        found.append(statement)
    return found


def correct_by_statements(
    context: Context,
    request: CorrectBranch,
    branch: Table,
    statements: Sequence[Statement],
    change: Change,
    identity: CommitIdentity,
) -> OperationResult:
    """Run the statements one after the other and commit what they did together.

    Raises:
        InvalidInputError: what is wrong with one of them, with its number; nothing was changed.
        ConflictError: other writers kept committing to the branch.
    """
    return until_committed(branch.label, lambda: _Together(context, request, branch, statements, change).run(identity))


class _Together:
    """One try. ``written``: all files that it has written so far, as far as their statements have ended."""

    def __init__(
        self,
        context: Context,
        request: CorrectBranch,
        branch: Table,
        statements: Sequence[Statement],
        change: Change,
    ) -> None:
        self._context, self._request, self._statements, self._change = context, request, statements, change
        self._base = read_heads(context, request, branch)
        self._working = unpublished(branch)
        self._rewritten: list[ManifestEntry] = []

    def run(self, identity: CommitIdentity) -> OperationResult:
        request, base, context = self._request, self._base, self._context
        try:
            done = self._run_statements()
        except BaseException:
            self._discard(())
            raise
        try:
            taken = self._take_over(identity, done)
        except REFUSALS:
            self._discard(())
            raise
        committed = taken.receipt.snapshot
        replayed = taken.receipt.replayed  # another try of the operation was faster, with files of its own
        self._discard(() if committed is None or replayed else taken.added, committed)
        if committed is not None and replayed:
            return result_of(context, request, committed)
        details = self._details(done, taken.removed, taken.added)
        return base.result(context, request, details, changed=committed is not None, after=committed)

    def _run_statements(self) -> list[OperationResult]:
        inside = dataclasses.replace(self._context, table=self._working.branch(MAIN))
        done = []
        for at, statement in enumerate(self._statements, 1):
            with naming_statement(at, self._statements):
                done.append(self._change(inside, self._working, statement))
        return done

    def _take_over(self, identity: CommitIdentity, done: Sequence[OperationResult]) -> Taken:
        base = self._base
        text = JOINED.join(statement.text for statement in self._statements)
        made = made_of(self._request, base.table, text)
        stay = KEYS_STAY if all(KEYS_STAY.items() <= s.properties.items() for s in self._commits()) else {}

        def described(removed: Sequence[ManifestEntry], added: Sequence[ManifestEntry]) -> Mapping[str, str]:
            return {**properties(self._request, made, self._details(done, removed, added)), **stay}

        def rewrite(view: Table, entries: Sequence[ManifestEntry], space: IdSpace) -> Sequence[ManifestEntry]:
            self._rewritten += rewrite_files(view, entries, space)
            return self._rewritten

        staging = Staging(view=self._working, onto=base.table, head=base.head, schema=base.schema)
        return take_over(
            staging,
            identity=identity,
            properties=described,
            rewrite=rewrite,
        )

    def _commits(self) -> list[Snapshot]:
        """Return the statements' own commits. Others may have committed to the branch meanwhile."""
        return unpublished_snapshots(self._working)

    def _discard(self, kept: Sequence[ManifestEntry], committed: Snapshot | None = None) -> None:
        """Delete what the statements wrote but for ``kept``, and for the indexes of the snapshot that ``committed``.

        Failing to leaves orphans, which are harmless, and hides no failure of the operation.
        """
        try:
            delete_unused(self._base.table.store, self._unused(kept, committed))
        except PaimonError as error:
            log.warning("%s: files that nothing refers to may be left behind (%s)", self._base.table.label, error)

    def _unused(self, kept: Sequence[ManifestEntry], committed: Snapshot | None) -> list[str]:
        base, commits = self._base, self._commits()
        below = self._below(commits)
        if below is None:
            return []
        lists = read_delta_lists(self._working, commits)
        written = [e for e in selected_entries(self._working, lists, None) if e.kind == FileKind.ADD]
        others = (e for s in below for e in live_entries(base.table, s).values())
        names = {e.file.file_name for e in (*kept, *others)}
        unused = {_path(base.schema, e) for e in (*written, *self._rewritten) if e.file.file_name not in names}
        indexes = {i.file_name for s in commits for i in read_index_entries(self._working, s)}
        indexes -= {i.file_name for s in (*below, committed) for i in read_index_entries(base.table, s)}
        return [*sorted(unused), *(f"{INDEX_DIR}/{name}" for name in sorted(indexes))]

    def _below(self, commits: Sequence[Snapshot]) -> list[Snapshot] | None:
        """Return the published snapshots under the statements' commits, which go on with their files: the base's, and
        others that were committed meanwhile. None: one has expired, so that it isn't known which files are the
        statements' own.
        """
        own, below = {s.id for s in commits}, {self._base.head.identity: self._base.head}
        for number in (s.id - 1 for s in commits if s.id - 1 not in own):
            found = self._base.table.find_snapshot(number)
            if found is None:
                return None
            below[found.identity] = found
        return [*below.values()]

    def _details(
        self, done: Sequence[OperationResult], removed: Sequence[ManifestEntry], added: Sequence[ManifestEntry]
    ) -> dict[str, Any]:
        each = [
            {"statement": statement.kind, **{k: found.details[k] for k in _OF_EACH if k in found.details}}
            for statement, found in zip(self._statements, done, strict=True)
        ]
        return {
            "statements": each,
            **{name: sum(one.get(name, 0) for one in each) for name in _ROWS},
            **self._base.figures(removed, added),
        }


def _path(schema: TableSchema, entry: ManifestEntry) -> str:
    return data_file_path(schema, StoredPartitions(schema).values(entry.partition), entry.bucket, entry.file)
