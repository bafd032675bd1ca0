"""What erasing rows from a chain table needs beside the rewriting of files: checks, an order, records of provenance."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_paimon.core.chain.erasure import keep_records, rebase_records
from airflow_paimon.core.chain.erasure_plan import why_needed
from airflow_paimon.core.chain.guard import chain_role
from airflow_paimon.core.chain.layout import ChainBranch, Values, chain_keys
from airflow_paimon.core.chain.state import ChainState, files_digest, splits_by_partition
from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.errors import ConflictError, UnsafeOperationError, UnsupportedFeatureError, first_few
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.reachability import find_deletion_vectors
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.erasure.find_rows import FoundRows
from airflow_paimon.data.erasure.search import Search
from airflow_paimon.data.read import deleted_rows
from airflow_paimon.data.read_splits import deletions_of

_SHOWN = 5


def check_condition(label: str, schema: TableSchema, search: Search) -> None:
    """Refuse a condition on more than what all stored rows of a key have in common.

    Without the newest row of a key an earlier day's row of it would be seen again.

    Raises:
        UnsupportedFeatureError: names the columns, and the way out.
    """
    days = chain_keys(schema)
    allowed = [name for name in schema.primary_keys if name not in days]
    other = sorted({f.name for f in search.fields} - set(allowed))
    if other:
        raise UnsupportedFeatureError(
            f"{label} is a chain table, where rows are erased by key on all days: without one stored row an older one "
            f"would be visible. Leave {', '.join(other)} out of the condition, and name "
            f"{', '.join(allowed) or 'nothing: it has no other key column'}; read the table to find the keys"
        )


@dataclass(frozen=True, slots=True)
class ChainErasure:
    """A round of an erasure. ``state``: the branches as they were before they were searched."""

    state: ChainState
    may_vanish: Mapping[ChainBranch, frozenset[Values]]
    """Partitions of which no row may be left."""

    def order(self, branch: Table) -> int:
        """Return when a branch's turn is: an old row of a key must not be seen because a newer one is gone.

        Deltas come first only where full partitions go, which is allowed once nothing builds on them.
        """
        role = chain_role(branch, branch.schema())
        first, second = ChainBranch.SNAPSHOT, ChainBranch.DELTA
        if self.may_vanish[ChainBranch.SNAPSHOT]:
            first, second = second, first
        return 0 if role == first else 1 if role == second else 2

    def before_commit(self, plan: ScanPlan, messages: Sequence[CommitMessage]) -> None:
        """Check what a commit leaves of each partition, and record what full ones are built from.

        Raises:
            ConflictError: a partition would vanish that must not; nothing was committed.
        """
        role = chain_role(plan.table, plan.schema)
        if role is None:
            return
        types = plan.schema.partition_types
        held = splits_by_partition(plan)
        touched = {decode_row(m.partition, types) for m in messages}
        names = {(decode_row(m.partition, types), m.bucket): m.new_files for m in messages}
        left = {values: tuple(_after(s, names) for s in held.get(values, ())) for values in touched}
        layout = self.state.layout
        vanished = {v for v, splits in left.items() if not any(s.files for s in splits)} - self.may_vanish[role]
        if vanished:
            texts = ", ".join(sorted(map(layout.text_of, vanished))[:_SHOWN])
            raise ConflictError(f"{plan.table.label}: no row would be left in {texts}, where others were a moment ago")
        if role == ChainBranch.SNAPSHOT:
            digests = {v: files_digest(splits) for v, splits in left.items()}
            keep_records(plan.table.branch(MAIN), layout, plan, digests)

    def finish(self, main: Table) -> int:
        """Let the records name the files that there are now; see ``rebase_records``."""
        return rebase_records(main, self.state)


def _after(split: BucketSplit, names: Mapping[tuple[Values, int], tuple[DataFile, ...]]) -> BucketSplit:
    new = names.get((split.values, split.bucket))
    return split if new is None else replace(split, files=new)


def plan_chain_erasure(state: ChainState, found: FoundRows) -> ChainErasure:
    """Plan a round.

    Raises:
        UnsafeOperationError: a partition would lose all its rows whose being there matters; nothing was changed.
    """
    rows = {one.file.name: one.rows for one in found.matching}
    emptied = {b: frozenset(_emptied(state.plan(b), rows)) for b in ChainBranch}
    reasons = why_needed(state.layout, state.partitions, emptied)
    if reasons:
        raise UnsafeOperationError(
            f"{state.layout.label}: nothing was erased, as all rows would go of partitions that must stay: "
            f"{first_few(reasons, _SHOWN, '; ')}",
            details={"needed": reasons},
        )
    return ChainErasure(state, emptied)


def _emptied(plan: ScanPlan, rows: Mapping[str, int]) -> Collection[Values]:
    """Return the partitions of which no row may be left: hidden ones count as gone."""
    gone = []
    deletions = find_deletion_vectors(plan.index_entries, plan.schema)
    for values, splits in splits_by_partition(plan).items():
        files = [f for s in splits for f in s.files]
        matching = sum(rows.get(f.file_name, 0) for f in files)
        if matching:
            hidden = deleted_rows(plan.table.store, deletions_of(deletions, files))
            if matching + hidden >= sum(f.row_count for f in files):
                gone.append(values)
    return gone
