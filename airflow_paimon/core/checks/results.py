"""What the rules of a branch said about one of its snapshots, kept beside the table until a publish asks for it."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_paimon.core.checks.rules import ERROR, Rule
from airflow_paimon.core.commit.put import put_new
from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.snapshot import Snapshot, load_json_object
from airflow_paimon.core.store.base import read_present
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.table import Table

CHECKS_DIR = f"{PRIVATE_DIR}/checks"
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
class CheckRecord:
    """The results of one check of a snapshot. ``at_ms``: its time, in epoch milliseconds."""

    branch: str
    snapshot_id: int
    identity: str
    at_ms: int
    outcomes: Mapping[str, str] = field(default_factory=dict)
    """By the digest of the rule."""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=2).encode()


def put_record(table: Table, branch: str, snapshot: Snapshot, at_ms: int, results: Sequence[RuleResult]) -> None:
    """Keep what the rules said about a snapshot of a branch. No rows are kept.

    Raises:
        StorageError: it can't be written.
    """
    record = CheckRecord(
        branch=branch,
        snapshot_id=snapshot.id,
        identity=snapshot.identity,
        at_ms=at_ms,
        outcomes={r.digest: r.outcome for r in results},
    )
    put_new(table, f"{CHECKS_DIR}/{_prefix(branch, snapshot)}{uuid.uuid4()}.json", record.to_bytes())


def outcomes_for(table: Table, branch: str, snapshot: Snapshot) -> dict[str, str]:
    """Return the newest outcome of each rule, by its digest, for exactly this snapshot.

    Raises:
        FormatError: a record is unreadable.
    """
    begins = _prefix(branch, snapshot)
    paths = [f"{CHECKS_DIR}/{name}" for name in table.store.names(CHECKS_DIR) if name.startswith(begins)]
    records = [_parse(data, path) for path, data in read_present(table.store, paths).items()]
    mine = [r for r in records if (r.branch, r.identity) == (branch, snapshot.identity)]
    return {d: outcome for r in sorted(mine, key=lambda r: r.at_ms) for d, outcome in r.outcomes.items()}


def old_checks(table: Table, before_ms: int) -> list[str]:
    """Return the records that were put before a time (epoch milliseconds)."""
    return [
        f"{CHECKS_DIR}/{info.name}"
        for info in table.store.list(CHECKS_DIR)
        if info.modified_ms is not None and info.modified_ms < before_ms
    ]


def _prefix(branch: str, snapshot: Snapshot) -> str:
    mark = hashlib.sha256(f"{branch}/{snapshot.identity}".encode()).hexdigest()[:16]
    return f"{snapshot.id}-{mark}-"


def _parse(data: bytes, path: str) -> CheckRecord:
    raw = load_json_object(data, path)
    try:
        return CheckRecord(**{**raw, "outcomes": {str(d): str(o) for d, o in raw["outcomes"].items()}})
    except (TypeError, KeyError, AttributeError):
        raise FormatError(f"{path} is no record of checks; delete it and check the branch again") from None
