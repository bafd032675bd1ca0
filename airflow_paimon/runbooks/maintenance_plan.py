"""Which tables ``table_maintenance`` works on within a budget, and what it does to each: by their health. Pure.

The budget is for compactions: the worst table comes first, and one whose compaction doesn't fit waits for another
night. What expires by the tables' options and retentions costs no bytes, and is never left out for the budget.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.options import parse_duration, parse_size
from airflow_paimon.shown.listing import size_text

if TYPE_CHECKING:
    from airflow_paimon.core.health.health_plan import TableHealth
    from airflow_paimon.core.health.table_health import TableReport

UNLIMITED = "unlimited"
COMPACTING = ("small-files", "sorted-runs", "deleted-rows")
"""The reasons of a table's health that ``compact`` mends on main."""
NOT_DUE = "nothing is due"
_AMOUNT = re.compile(r"\d+\s*([a-z]+)", re.IGNORECASE)
_TIMES = ("h", "hour", "hours", "min", "mins", "minute", "minutes", "s", "sec", "second", "seconds", "d", "day", "days")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """``bytes`` that compactions read and write again, or ``time`` from the run's start; None = as much as it takes."""

    bytes: int | None = None
    time: timedelta | None = None


def parse_budget(text: str | None) -> Budget | None:
    """Parse the form's budget: a size (``500 gb``), a duration (``2 h``) or ``unlimited``; None for an empty one.

    Raises:
        InvalidInputError: neither, without a unit, or 0.
    """
    limit = (text or "").strip().lower()
    if not limit:
        return None
    if limit == UNLIMITED:
        return Budget()
    unit = match[1] if (match := _AMOUNT.fullmatch(limit)) else ""
    if unit in _TIMES:
        found = Budget(time=parse_duration(limit, "budget"))
    elif unit.endswith(("b", "bytes")):
        found = Budget(bytes=parse_size(limit, "budget"))
    else:
        found = Budget(bytes=0)
    if not (found.bytes or found.time):
        raise InvalidInputError(
            f"budget: {text!r} is neither a size with its unit, such as 500 gb, nor a time, such as 2 h or 90 min, nor "
            f"{UNLIMITED}"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """What a table's night is: ``skipped`` steps with the reason, all others run. ``score`` None: it is unreadable.

    ``compact_bytes``: what its compaction reads and writes again at most.
    """

    table: str
    score: int | None
    skipped: Mapping[str, str]
    compact_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePlan:
    """``tables``: those with something to do, the worst first. ``waiting``: whose compaction doesn't fit the budget."""

    tables: tuple[TablePlan, ...]
    measured: int
    waiting: tuple[TablePlan, ...] = ()


def plan_maintenance(
    reports: Sequence[TableReport], budget: Budget, params: Mapping[str, Any], steps: Sequence[str], *, orphans: bool
) -> MaintenancePlan:
    """Plan a night. ``reports``: the worst first; ``orphans``: whether orphan files go on this day.

    A table that can't be read has all its steps, so that the run says what is wrong with it. Orphan files can't be
    told from metadata: on their day each table is looked through.
    """
    left = budget.bytes
    tables: list[TablePlan] = []
    waiting: list[TablePlan] = []
    for report in reports:
        if report.health is None:
            tables.append(TablePlan(table=report.table, score=None, skipped={}))
            continue
        due = _due(report.health, params) | ({"remove_orphan_files"} if orphans else set())
        cost = sum(_compacting(report.health, params))
        skipped = {step: NOT_DUE for step in steps if step not in due}
        if "compact" in due and left is not None and cost > left:
            skipped["compact"] = (
                f"it rewrites up to {size_text(cost)}, and {size_text(left)} of the budget of "
                f"{size_text(budget.bytes or 0)} are left"
            )
        elif "compact" in due and left is not None:
            left -= cost
        plan = TablePlan(table=report.table, score=report.health.score, skipped=skipped, compact_bytes=cost)
        waiting += [plan] if "compact" in due and "compact" in skipped else []
        tables += [plan] if len(skipped) < len(steps) else []
    return MaintenancePlan(tables=tuple(tables), measured=len(reports), waiting=tuple(waiting))


def _due(health: TableHealth, params: Mapping[str, Any]) -> set[str]:
    """Return the steps with something to do. An expiry too many does no harm; one too few must not be."""
    retained = health.retained
    found = {
        "compact": params["compact"] and bool(_compacting(health, params)),
        "expire_partitions": retained.partitions_expire,
        "expire_branches": retained.branches > 0,
        "trigger_tag_automatic_creation": retained.automatic_tags,
        "expire_tags": retained.due_tags + retained.keep_tags > 0,
        "expire_snapshots": retained.due_snapshots + retained.trash + retained.changelogs + retained.consumers > 0,
    }
    return {step for step, is_due in found.items() if is_due}


def _compacting(health: TableHealth, params: Mapping[str, Any]) -> list[int]:
    """Return the costs of what ``compact`` mends. Of primary-key tables it drops deleted rows only with all runs."""
    keyed = health.files.most_runs > 0
    ids = [i for i in COMPACTING if i != "deleted-rows" or not keyed or params["max_sorted_runs"] is None]
    return [r.cost_bytes for r in health.reasons if r.id in ids and r.branch == "main"]


SMALL_BYTES, TOGETHER_BYTES, TOGETHER = 1 << 30, 4 << 30, 50
"""Small work rewrites at most so many bytes; a Spark application gets so many, of so many tables or groups."""


def group_small_jobs(sizes: Mapping[str, int]) -> list[list[str]]:
    """Put small work together, in its order: each list is for one Spark application. What is large is alone.

    ``sizes``: the bytes that the compaction of a table, or of a group of a chain table, rewrites at most.
    """
    found: list[list[str]] = []
    open_at, used = -1, 0
    for name, size in sizes.items():
        if size > SMALL_BYTES:
            found.append([name])
        elif open_at < 0 or used + size > TOGETHER_BYTES or len(found[open_at]) == TOGETHER:
            open_at, used = len(found), size
            found.append([name])
        else:
            found[open_at].append(name)
            used += size
    return found
