"""Runs of the correction DAGs: what they are waiting for, and what became of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.partition_text import parse_partition_text
from airflow_paimon.runbooks.kinds import Kind

_BECAME = {
    "merge": "published", "fast_forward": "published", "publish": "published",
    "undo": "undone", "remove": "cleaned up", "erase": "erased",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """What a run asks or asked people."""

    subject: str
    asked_at: datetime | None
    answered_at: datetime | None
    answered_by: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun:
    """A run about the table, as the database has it. ``conf``: its form; ``tasks``: states by task id; ``progress``: of
    running ones; ``ran_on``: ``spark`` or ``worker``, of operators' tasks that ended.
    """

    dag_id: str
    kind: Kind
    run_id: str
    state: str
    conf: Mapping[str, Any]
    by: str = ""
    began: datetime | None = None
    tasks: Mapping[str, str] = field(default_factory=dict)
    approval: Approval | None = None
    progress: Mapping[str, str] = field(default_factory=dict)
    ran_on: Mapping[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """Whose the branch is that the run makes: one of the same name may be, or may have been, another's."""
        return f"{self.dag_id}/{self.run_id}"

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.state in ("success", "failed")

    @property
    def unanswered(self) -> bool:
        """Whether it waits for an answer."""
        return self.approval is not None and self.approval.answered_at is None and not self.ended


def waits_for(run: TableRun, others: Sequence[TableRun]) -> str:
    """Say what a run waits for; ``others``: unfinished runs about the same table. Empty for one that ended."""
    if run.ended:
        return ""
    parts = [_own_wait(run)]
    rivals = [o.run_id for o in others if o is not run and overlap(run.conf, o.conf)]
    if rivals:
        parts.append(f"corrects the same partitions as {', '.join(rivals)}: the one that publishes later is refused")
    return "; ".join(p for p in parts if p)


def _own_wait(run: TableRun) -> str:
    if run.unanswered or "awaiting_input" in run.tasks.values():
        return "an approval"
    if run.state == "queued":
        return "its turn: the run is queued"
    if run.tasks.get("wait") in ("deferred", "up_for_reschedule"):
        return "files to have waited for their readers" if "erase" in run.tasks else "its branch to catch up"
    retried = sorted(t for t, state in run.tasks.items() if state == "up_for_retry")
    if retried:
        return f"the next try of {', '.join(retried)}"
    waiting = sorted(t for t, state in run.tasks.items() if state in ("queued", "scheduled"))
    running = sorted(t for t, state in run.tasks.items() if state == "running")
    if running:
        return f"task {', '.join(running)}, which runs"
    return f"a worker, for {', '.join(waiting)}" if waiting else ""


def overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Say whether two corrections can touch the same rows: without partitions they are about the whole table."""
    mine, theirs = one.get("partitions"), other.get("partitions")
    if not mine or not theirs:
        return True
    try:
        pairs = [(parse_partition_text(str(m)), parse_partition_text(str(t))) for m in mine for t in theirs]
    except InvalidInputError:
        return True
    return any(all(m[key] == t[key] for key in m.keys() & t.keys()) for m, t in pairs)


def outcome(run: TableRun) -> tuple[str, str]:
    """Say what became of a run, and how that is coloured."""
    if not run.ended:
        return "running", "warn"
    if run.tasks.get("rejected") in ("success", "failed"):
        return "rejected", "bad"
    done = [t for t in _BECAME if run.tasks.get(t) == "success"]
    if run.state == "failed":
        failed = sorted(t for t, state in run.tasks.items() if state == "failed" and t != "report_failure")
        after = "" if not done else " after rows were erased" if done == ["erase"] else " after it was published"
        return f"failed{after}: {', '.join(failed) or 'see the run'}", "bad"
    if run.tasks.get("remove") == "skipped":
        return "nothing removed", ""
    return _BECAME.get(done[0] if done else "", "done"), "good"
