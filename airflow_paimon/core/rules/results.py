"""What the rules of a branch said about one of its snapshots, kept beside the table until a publish asks for it."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airflow_paimon.core.commit.put import put_new
from airflow_paimon.core.format.records import NOT_STORED, Record
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.rules.rules import ERROR, Rule
from airflow_paimon.core.store.base import read_existing
from airflow_paimon.core.table.record_kinds import CHECKS
from airflow_paimon.core.table.table import Table

PASSED, WARNED, FAILED, SKIPPED = "passed", "warned", "failed", "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """What one rule said.

    ``broken``: how many rows break it; of limits and drifts, how many partitions or totals. ``said``: that as a
    sentence, with the rows' number. ``rows``: the first few of them, as JSON objects.
    """

    name: str
    digest: str
    outcome: str
    broken: int
    said: str
    rows: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"rows": [dict(row) for row in self.rows]}


def outcome_of(rule: Rule, broken: int) -> str:
    """Return what a rule's severity makes of rows that break it."""
    if not broken:
        return PASSED
    return FAILED if rule.severity == ERROR else WARNED


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """What the rule of this name said: ``passed``, ``warned``, ``failed`` or ``skipped``."""

    name: str
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRecord(Record):
    """The results of one check of a snapshot.

    ``compared_with``: the identity of the snapshot that the branch was compared with, empty if there was none.
    ``modified_ms``: when it was put, by the storage's clock; 0 if the storage has none.
    """

    branch: str
    snapshot_id: int
    identity: str
    compared_with: str = ""
    rules: Mapping[str, RuleOutcome] = field(default_factory=dict)
    """By the digest of the rule."""
    modified_ms: int = field(default=0, metadata=NOT_STORED)
    KIND = CHECKS


def put_record(
    table: Table, branch: str, snapshot: Snapshot, compared_with: Snapshot | None, results: Sequence[RuleResult]
) -> None:
    """Keep what the rules said about a snapshot of a branch. No rows are kept.

    Raises:
        StorageError: it can't be written.
    """
    record = CheckRecord(
        branch=branch,
        snapshot_id=snapshot.id,
        identity=snapshot.identity,
        compared_with="" if compared_with is None else compared_with.identity,
        rules={r.digest: RuleOutcome(name=r.name, outcome=r.outcome) for r in results},
    )
    put_new(table, CHECKS.path(f"{_prefix(branch, snapshot)}{uuid.uuid4()}"), record.to_bytes())


def records_of(table: Table, branch: str, snapshots: Sequence[Snapshot]) -> list[CheckRecord]:
    """Return the results of the checks of these very snapshots.

    Raises:
        FormatError: a record is unreadable.
    """
    begins = tuple(_prefix(branch, snapshot) for snapshot in snapshots)
    put_at = {
        f"{CHECKS.folder}/{info.name}": info.modified_ms or 0
        for info in table.store.list(CHECKS.folder)
        if info.name.startswith(begins)
    }
    known = {snapshot.identity for snapshot in snapshots}
    data = read_existing(table.store, list(put_at))
    found = [replace(CheckRecord.parse(d, path), modified_ms=put_at[path]) for path, d in data.items()]
    return [record for record in found if record.branch == branch and record.identity in known]


def newest_outcomes(records: Sequence[CheckRecord]) -> dict[str, RuleOutcome]:
    """Return the newest outcome of each rule, by its digest; of two at the same time the failed one.

    The storage's clock decides, which no caller can set.
    """
    said = [(r.modified_ms, one.outcome == FAILED, digest, one) for r in records for digest, one in r.rules.items()]
    return {digest: one for _, _, digest, one in sorted(said, key=lambda s: s[:2])}


def _prefix(branch: str, snapshot: Snapshot) -> str:
    mark = hashlib.sha256(f"{branch}/{snapshot.identity}".encode()).hexdigest()[:16]
    return f"{snapshot.id}-{mark}-"
