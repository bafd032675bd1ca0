"""Random tests draw from one seed: the same in each ``make test``, a new one in ``make thorough`` and ``make soak``.

``AIRFLOW_PAIMON_SEED`` repeats a run that failed; the seed stands in the report. ``make soak`` runs the tests that
carry the mark ``random`` again and again, each time with a new seed and with all their lives; ``make test`` has few of
each kind. Of the products of what tables may be, and of the moments at which it kills an operation, it has a part as
well (``some``, ``moments``, the mark ``part`` of ``tests/parts.py``), which the seed chooses; ``make thorough`` has all
of it, and the tests with the mark ``thorough``, which ``make test`` leaves out.
"""

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, TypeVar

Case = TypeVar("Case")
VARIABLE = "AIRFLOW_PAIMON_SEED"
_SEED = 1


def choose_seed(*, new: bool = False) -> int:
    """Give the seed of this run and hand it on to the processes that it starts. ``new``: one that nobody had before."""
    seed = random.SystemRandom().randrange(10**9) if new or thorough() else _SEED
    return int(os.environ.setdefault(VARIABLE, str(seed)))


def soaking() -> bool:
    """Whether this is a pass of ``make soak``."""
    return bool(os.environ.get("AIRFLOW_PAIMON_SOAK"))


def thorough() -> bool:
    """Whether all of the cases are asked for: ``make soak``, ``make thorough``."""
    return soaking() or os.environ.get("AIRFLOW_PAIMON_THOROUGH") == "1"


def lives(few: int, many: int) -> int:
    """Give how many random lives of one kind a test has: ``few`` in ``make test``, ``many`` where all are asked for."""
    return many if thorough() else few


def some(cases: Iterable[Case], few: int = 0, by: Callable[[Case], Any] = lambda case: case) -> list[Case]:
    """Choose cases for ``make test``, at least ``few``, and of tuples and mappings, which hold a
    value of each of several parameters, so many that each value comes up.

    Every process of a run chooses the same, by the texts of the cases.

    Args:
        by: A tuple or mapping with those values of a case that have to come up.
    """
    found = list(cases)
    if thorough():
        return found
    texts = repr(found)
    assert " at 0x" not in texts, "another text in each process"
    left = list(range(len(found)))
    chance(texts).shuffle(left)
    values = [_values(by(case)) for case in found]
    missing = set().union(*values)
    chosen: list[int] = []
    while missing or len(chosen) < min(few, len(found)):
        best = max(left, key=lambda at: len(missing & values[at]))
        missing -= values[best]
        left.remove(best)
        chosen.append(best)
    return [found[at] for at in sorted(chosen)]


def _values(case: Any) -> set[tuple[Any, str]]:
    named = case.items() if isinstance(case, Mapping) else enumerate(case) if isinstance(case, tuple) else ()
    return {(name, repr(value)) for name, value in named}


def moments(end: int, every: int = 4) -> Iterator[int]:
    """Number the moments of an operation at which a test kills it, or lets others act: 1, 2, ... below ``end``.

    ``make test`` has one of each ``every`` moments: the first one is at most ``every``, and what
    ends after fewer moments than ``end`` meets a number that it doesn't reach.
    """
    if thorough():
        return iter(range(1, end))
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    drawn = chance(f"{test} {next(_loops[test])}")
    return (drawn.randrange(first, min(first + every, end)) for first in range(1, end, every))


_loops: defaultdict[str, Iterator[int]] = defaultdict(count)
"""Numbers the loops of each test: each has moments of its own."""


def chance(case: int | str) -> random.Random:
    """Give the generator of one case (a parameter of a test): the same for the same seed of the run."""
    return random.Random(f"{choose_seed()}/{case}")
