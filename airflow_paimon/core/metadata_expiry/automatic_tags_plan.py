"""Which snapshots get which automatic tags, and which of them go (pure): Paimon's TagAutoCreation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.tag_periods import BATCH_PREFIX, TagPeriods, TagRules


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSnapshot:
    """``time``: by which it gets a tag, see ``tag_periods``; None: it has none, such as no watermark."""

    snapshot: Snapshot
    time: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTags:
    """``tags``: names and snapshots, in order. ``skipped``: why a name gets no tag. ``following``: the period that the
    next tag stands for; None: the next snapshot begins.
    """

    tags: Sequence[tuple[str, Snapshot]] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    following: datetime | None = None


def newest_automatic(periods: TagPeriods, names: Iterable[str]) -> str | None:
    """Return the automatic tag of the latest period: after its snapshot, creation goes on."""
    timed = [(time, name) for name in names if (time := periods.time_of(name)) is not None]
    return max(timed)[1] if timed else None


def plan_new_tags(
    rules: TagRules, tagged: Mapping[str, int], newest: str | None, snapshots: Sequence[TimedSnapshot]
) -> NewTags:
    """Plan the tags of the modes process-time and watermark.

    ``tagged``: the snapshot id of each automatic tag; ``newest``: see ``newest_automatic``; ``snapshots``: those after
    its snapshot, in order. A period's tag is of the first snapshot after its end and the delay; it stands for the last
    period that was over then, or, to complete, for the one after the newest tag.
    """
    periods = rules.periods
    assert periods is not None
    known, taken = set(tagged), set(tagged.values())
    following = None if newest is None else _next(periods, periods.time_of(newest))
    tags: list[tuple[str, Snapshot]] = []
    skipped: dict[str, str] = {}
    for snapshot, time in ((s.snapshot, s.time) for s in snapshots):
        if time is None or (following is not None and time - rules.delay < following + periods.length):
            continue
        this = following if rules.complete and following is not None else periods.before(time)
        name = periods.name_of(this)
        following = _next(periods, this)
        if name in known:
            continue
        if snapshot.id in taken:
            skipped[name] = f"snapshot {snapshot.id} has an automatic tag, and Paimon takes only one"
            continue
        tags.append((name, snapshot))
        known.add(name)
        taken.add(snapshot.id)
    return NewTags(tags=tags, skipped=skipped, following=following)


def _next(periods: TagPeriods, time: datetime | None) -> datetime:
    assert time is not None
    return time + periods.length


def batch_tag_name(rules: TagRules, time: datetime) -> str:
    """Return the name of the tag of the mode batch for a snapshot of that time."""
    return rules.batch_name or f"{BATCH_PREFIX}{time.year:04}-{time.month:02}-{time.day:02}"


def beyond_most(rules: TagRules, tagged: Mapping[str, int]) -> list[str]:
    """Return the automatic tags that are too many, the oldest first; ``tagged``: the snapshot id of each tag.

    Paimon counts the snapshots that have one.
    """
    if rules.most is None:
        return []
    automatic = {name: number for name, number in tagged.items() if rules.is_automatic(name)}
    numbers = sorted(set(automatic.values()))
    gone = set(numbers[: max(0, len(numbers) - rules.most)])
    return sorted((n for n, number in automatic.items() if number in gone), key=lambda n: (automatic[n], n))
