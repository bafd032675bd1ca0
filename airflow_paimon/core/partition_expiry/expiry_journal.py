"""The plan of an expiry, and its journal: ``_airflow_paimon/operations/<id>-expiry-<round>.json``.

The plan is written down before its first commit, so that a killed run goes on, hours later too, with what was planned.
Each round of planning has a file of its own; none is ever changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from airflow_paimon.core.commit.committer import put_new
from airflow_paimon.core.commit.held_partitions import HeldPartition
from airflow_paimon.core.commit.idempotency import name_part
from airflow_paimon.core.errors import AlreadyExistsError, FormatError
from airflow_paimon.core.format.json_value import parse_json
from airflow_paimon.core.plan import DropPartition, Plan, Precondition
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.table import Table

MAX_ROUNDS = 10
"""How often one try plans again because partitions to drop were changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDrop:
    """A partition to drop if ``digest`` is still that of its files; ``key`` as in ``HeldPartition``."""

    key: str
    text: str
    files: int
    rows: int
    bytes: int
    digest: str
    reason: str

    @classmethod
    def of(cls, held: HeldPartition, reason: str) -> PartitionDrop:
        return cls(
            key=held.key,
            text=held.text,
            files=held.files,
            rows=held.rows,
            bytes=held.bytes,
            digest=held.digest,
            reason=reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStep:
    """The partitions that one commit drops from one branch."""

    branch: str
    drops: tuple[PartitionDrop, ...]

    @property
    def expected(self) -> dict[str, str]:
        return {d.key: d.digest for d in self.drops}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryPlan:
    """Commits in order. ``cutoff``: the local time before which partitions expire. ``report``: JSON values.

    ``anchors``: partitions that must stay, each with the digest of its files by its key, in the last step's branch.
    """

    cutoff: datetime
    preconditions: tuple[Precondition, ...]
    steps: tuple[DropStep, ...]
    report: Mapping[str, Any] = field(default_factory=dict)
    anchors: Mapping[str, str] = field(default_factory=dict)

    def keys(self, branch: str) -> frozenset[str]:
        return frozenset(d.key for s in self.steps if s.branch == branch for d in s.drops)

    def head(self, branch: str) -> int:
        """The branch's newest snapshot id when this was planned, 0 = none."""
        return next((p.snapshot_id or 0 for p in self.preconditions if p.branch == branch), 0)

    def to_plan(self, operation: str, table: str) -> Plan:
        """Return the printable plan: an action for each partition, in the order of execution."""
        actions = tuple(
            DropPartition(path=f"{s.branch}: {d.text}", reason=d.reason) for s in self.steps for d in s.drops
        )
        summary = dict(self.report)
        return Plan(
            operation=operation, table=table, preconditions=self.preconditions, actions=actions, summary=summary
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "cutoff": self.cutoff.isoformat(),
            "preconditions": [p.to_json() for p in self.preconditions],
            "steps": [{"branch": s.branch, "drops": [asdict(d) for d in s.drops]} for s in self.steps],
            "report": dict(self.report),
            "anchors": dict(self.anchors),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ExpiryPlan:
        return cls(
            cutoff=datetime.fromisoformat(raw["cutoff"]),
            preconditions=tuple(Precondition(**p) for p in raw["preconditions"]),
            steps=tuple(
                DropStep(branch=s["branch"], drops=tuple(PartitionDrop(**d) for d in s["drops"])) for s in raw["steps"]
            ),
            report=raw["report"],
            anchors=raw.get("anchors", {}),
        )


def save_plan(table: Table, operation_id: str, number: int, plan: ExpiryPlan) -> ExpiryPlan:
    """Write a round's plan to the journal and return it, or the plan of a faster process of the same operation."""
    entry = {"operation_id": operation_id, "round": number, **plan.to_json()}
    try:
        put_new(table, _path(operation_id, number), json.dumps(entry, indent=2, ensure_ascii=False).encode())
    except AlreadyExistsError:
        return _read(table, operation_id, number)
    return plan


def load_plans(table: Table, operation_id: str) -> list[ExpiryPlan]:
    """Read the plans of earlier tries of an operation, by round.

    Raises:
        FormatError: a journal is unreadable.
    """
    plans: list[ExpiryPlan] = []
    while table.store.exists(_path(operation_id, len(plans))):
        plans.append(_read(table, operation_id, len(plans)))
    return plans


def _read(table: Table, operation_id: str, number: int) -> ExpiryPlan:
    path = _path(operation_id, number)
    data = table.store.read(path)
    try:
        return ExpiryPlan.from_json(parse_json(data))
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{table.name}: the journal {path} is unreadable; delete it and run the expiry again, with a new plan"
        ) from error


def _path(operation_id: str, number: int) -> str:
    return f"{PRIVATE_DIR}/operations/{name_part(operation_id)}-expiry-{number}.json"
