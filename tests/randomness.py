"""Random tests draw from one seed: the same in each ``make test``, a new one in ``make thorough`` and ``make soak``.

``AIRFLOW_PAIMON_SEED`` repeats a run that failed; the seed stands in the report. ``make soak`` runs the tests that
carry the mark ``random`` again and again, each time with a new seed. They have few lives in ``make test``, of long
lists of cases and of the moments at which an operation is killed every n-th one; ``make thorough`` has all.
"""

import os
import random
from collections.abc import Iterable
from typing import TypeVar

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


def every(step: int, cases: Iterable[Case], first: int = 0) -> list[Case]:
    """Give every ``step``-th case, or all where all are asked for. Of a product of parameters, a step that has no
    factor in common with how many values each one has brings up other pairs of values each time.
    """
    return list(cases) if thorough() else list(cases)[first::step]


def moments(end: int, step: int = 5) -> range:
    """Number the moments of an operation at which a test kills it, or lets others act: 1, 1 + ``step``, ... below
    ``end``, or all. An odd step, as many operations come in pairs: a put and what proves it.
    """
    return range(1, end, 1 if thorough() else step)


def chance(case: int | str) -> random.Random:
    """Give the generator of one case (a parameter of a test): the same for the same seed of the run."""
    return random.Random(f"{choose_seed()}/{case}")
