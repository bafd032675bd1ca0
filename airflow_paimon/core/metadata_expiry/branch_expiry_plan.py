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
    notify_before: int | None = None


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
    end, record = due_ms(age, rules), age.record
    if end is None or end >= now_ms:
        return None
    if record is not None and record.retention is not None:
        return f"its retention of {record.retention} is over"
    parts = ["it was created before the time that --older-than gives"] if rules.older_than is not None else []
    parts += ["nothing was committed to it for the time that --idle-for gives"] if rules.idle_for is not None else []
    return " and ".join(parts)


def due_ms(age: BranchAge, rules: ExpiryRules) -> int | None:
    """Return when the time of a branch is over (epoch milliseconds), None if it has no end."""
    record = age.record
    if record is not None and record.retention is not None:
        return record.expires_ms
    if age.made_ms is None or (record is not None and record.reason == KEPT_MAIN):
        return None
    ends = [] if rules.older_than is None else [age.made_ms + rules.older_than]
    ends += [] if rules.idle_for is None else [max(age.made_ms, age.head_ms or 0) + rules.idle_for]
    return max(ends, default=None)


def soon_due(age: BranchAge, rules: ExpiryRules, now_ms: int) -> int | None:
    """Return when a branch that isn't due expires, if that is within ``notify_before`` and it isn't protected."""
    end = due_ms(age, rules)
    if end is None or rules.notify_before is None or end > now_ms + rules.notify_before:
        return None
    return None if why_kept(age.record, fits=True) is not None else end


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
    """Return why a branch stays for its commits. ``on_main`` None: unknown, as the history has expired."""
    if not commits or on_main or drop:
        return None
    counted = f"{commits:,} commit{'' if commits == 1 else 's'}"
    if on_main is None:
        return (
            f"it can't be told whether main has its {counted}: it was published, and main has changed since, whose "
            f"snapshots are expired; --drop-unpublished expires it"
        )
    return f"it has {counted} that main doesn't have; --drop-unpublished expires it"
