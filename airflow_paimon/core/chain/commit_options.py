"""What a commit on a branch of a chain table tells its guard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OnStale = Literal["refuse", "record"]
"""What becomes of a write to delta partitions that a full partition hides: it is refused, or done, and the full
partitions that it makes stale are recorded. Rebuilding them is left to compaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOptions:
    """What a commit on a branch of a chain table tells the guard (``Draft.guard_options``).

    ``checked_by_caller``: whoever planned the commit compares the branches before and after it, and nothing has to be
    recorded; the guard looks only at the anchors that it drops. ``on_stale`` None: appends are refused, overwrites and
    drops are recorded.
    """

    on_stale: OnStale | None = None
    checked_by_caller: bool = False


CHECKED_BY_CALLER = ChainOptions(checked_by_caller=True)
