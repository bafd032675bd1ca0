"""How long a correction will take, by the bytes that it reads and writes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIXED_S = 1.5
"""What a small correction takes in a Spark that runs already: plan, a few tasks, commit."""
BYTES_PER_CORE_S = 3_000_000
"""Bytes of data files, read and written, that one core handles in a second: what benchmarks/plans.py measured."""
DEFAULT_CORES = 2
_PRIOR_S = 3.0
"""How many seconds of work the default rate counts for, beside what was measured on the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One correction that committed. ``at_ms``: when it ended; ``seconds``: how long it took, without Spark's start.

    ``kind``: UPDATE, SELECT and so on; ``work_bytes``: what a plan of it foresaw (``Work.bytes``); ``cores``: of Spark.
    """

    at_ms: int
    kind: str
    seconds: float
    work_bytes: int
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """``seconds``: of the operation itself, without the start of Spark. ``source``: what it is estimated by."""

    seconds: float
    cores: int
    source: str


def estimate(work_bytes: int, timings: Sequence[Timing], kind: str, cores: int | None = None) -> Estimate:
    """Estimate the time from earlier corrections of the table, of the same kind where there are any.

    Small corrections say little of a large one, as most of their time is fixed: so the default rate counts for
    ``_PRIOR_S`` seconds of work. ``cores``: None = as many as the last correction had.
    """
    found = [t for t in timings if t.kind == kind] or list(timings)
    used = cores or (found[-1].cores if found else DEFAULT_CORES)
    seconds = [max(t.seconds - FIXED_S, 0.0) * t.cores for t in found]
    prior = _PRIOR_S * BYTES_PER_CORE_S
    rate = (sum(t.work_bytes for t in found) + prior) / (sum(seconds) + _PRIOR_S)
    return Estimate(seconds=round(FIXED_S + work_bytes / (rate * used), 1), cores=used, source=_source(found, kind))


def _source(found: Sequence[Timing], kind: str) -> str:
    default = f"{BYTES_PER_CORE_S / 1e6:g} MB of files a second and core"
    if not found:
        return f"default: {default}"
    same = f"{kind} " if all(t.kind == kind for t in found) else ""
    count = f"{len(found)} earlier {same}correction{'s' if len(found) > 1 else ''} of this table"
    small = sum(max(t.seconds - FIXED_S, 0.0) * t.cores for t in found) < _PRIOR_S
    return f"{count}, which took too little time to measure, and a default: {default}" if small else count
