"""What a commit on a branch of a chain table tells its guard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_paimon.core.chain.read_plan import Values

OnStale = Literal["refuse", "record", "rebuild", "drop"]
"""What a writer of the delta branch wants of snapshot partitions that it makes stale. ``refuse``: appends that would be
hidden are refused, anything else is recorded. The guard refuses what could not be done; the writer does it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOptions:
    """What a commit on a branch of a chain table tells the guard (``Draft.guard_options``).

    ``checked_by_caller``: whoever planned the commit compares the branches before and after it, and nothing has to be
    recorded; the guard looks only at the anchors that it drops.
    ``may_be_missing``: delta partitions that were dropped on purpose and shall stay away.
    """

    on_stale: OnStale = "refuse"
    checked_by_caller: bool = False
    may_be_missing: frozenset[Values] = frozenset()


CHECKED_BY_CALLER = ChainOptions(checked_by_caller=True)
