"""Which branches expire: pure decisions over what was read of each."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from airflow_paimon.core.branches.branch_words import protection_text
from airflow_paimon.core.table.lineage import DELETED, DELETING, KEPT_MAIN, READY, Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryRules:
    """What was asked for, in milliseconds; ``older_than`` and ``idle_for`` are for branches without a retention."""

    older_than: int | None = None
    idle_for: int | None = None
    owner: str | None = None
    drop_unpublished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchAge:
    """``record``: None for a branch of another engine; ``made_ms``: by it. ``head``, ``head_ms``: the newest commit."""

    name: str
    record: Lineage | None
    head: int | None
    head_ms: int | None
    made_ms: int | None


def is_asked_for(age: BranchAge, rules: ExpiryRules) -> bool:
    """Whether the branch belongs to the owner that was asked for, which may be a pattern."""
    owner = age.record.owner if age.record is not None else None
    return rules.owner is None or (owner is not None and fnmatchcase(owner, rules.owner))


def why_due(age: BranchAge, rules: ExpiryRules, now_ms: int) -> str | None:
    """Return why the time of a branch is over, None if it isn't.

    Its own retention wins over the rules, which don't apply to main as it was before it was replaced.
    """
    record = age.record
    if record is not None and record.retention is not None:
        end = record.expires_ms
        return f"its retention of {record.retention} is over" if end is not None and end < now_ms else None
    if (rules.older_than is None and rules.idle_for is None) or age.made_ms is None:
        return None
    if record is not None and record.reason == KEPT_MAIN:
        return None
    idle_ms = max(age.made_ms, age.head_ms or 0)
    if rules.older_than is not None and now_ms - age.made_ms <= rules.older_than:
        return None
    if rules.idle_for is not None and now_ms - idle_ms <= rules.idle_for:
        return None
    parts = ["it was created before the time that --older-than gives"] if rules.older_than is not None else []
    parts += ["nothing was committed to it for the time that --idle-for gives"] if rules.idle_for is not None else []
    return " and ".join(parts)


def why_kept(record: Lineage | None, *, fits: bool) -> str | None:
    """Return why a branch stays although its time is over, as far as its record says; None if nothing keeps it.

    ``fits``: whether the record is about the branch that is there now.
    """
    if record is None:
        return "another engine created it, and nobody has given it a retention (alter_branch)"
    if record.protected:
        return f"it is {protection_text(record)}"
    if record.state not in (READY, DELETING, DELETED):
        return f"another operation is changing it ({record.state})"
    if not fits and record.known_origin and record.state == READY:
        return "its record doesn't fit the branch that is there now: another engine recreated it, or expired its base"
    return None


def why_unpublished(commits: int, *, on_main: bool | None, drop: bool) -> str | None:
    """Return why a branch stays for its commits. ``on_main`` None: it can't be told any more."""
    if not commits or on_main or drop:
        return None
    counted = f"{commits:,} commit{'' if commits == 1 else 's'}"
    if on_main is None:
        return (
            f"it can't be told whether main has its {counted}: it was published, and main has changed since, whose "
            f"snapshots are expired; --drop-unpublished expires it"
        )
    return f"it has {counted} that main doesn't have; --drop-unpublished expires it"
