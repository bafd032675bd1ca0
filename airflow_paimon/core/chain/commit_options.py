"""Options of a commit on a branch of a chain table, for the guard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OnStale = Literal["refuse", "record"]
"""For a write to delta partitions that a full partition hides: refuse it, or record what becomes stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOptions:
    """Options of a commit on a branch of a chain table (``Draft.guard_options``).

    ``checked_by_caller``: the caller compares the branches before and after the commit, so nothing has to be recorded;
    the guard only checks dropped anchors. ``on_stale`` None: appends are refused, overwrites and drops are recorded.
    """

    on_stale: OnStale | None = None
    checked_by_caller: bool = False


CHECKED_BY_CALLER = ChainOptions(checked_by_caller=True)
