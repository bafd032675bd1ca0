"""Random tests draw from a seed that is new in each run; a failing run is repeated with ``AIRFLOW_PAIMON_SEED``.

The seed is chosen once, before xdist starts its workers, and stands in the report. ``make soak`` runs the tests that
carry the mark ``random`` again and again, each time with a new seed and with all their lives; ``make test`` has few of
each kind, others in each run.
"""

import os
import random

VARIABLE = "AIRFLOW_PAIMON_SEED"


def choose_seed() -> int:
    """Give the seed of this run and hand it on to the processes that it starts."""
    return int(os.environ.setdefault(VARIABLE, str(random.SystemRandom().randrange(10**9))))


def soaking() -> bool:
    """Whether this is a pass of ``make soak``."""
    return bool(os.environ.get("AIRFLOW_PAIMON_SOAK"))


def lives(few: int, many: int) -> int:
    """Give how many random lives of one kind a test has: ``few`` in ``make test``, ``many`` in ``make soak``."""
    return many if soaking() else few


def chance(case: int | str) -> random.Random:
    """Give the generator of one case (a parameter of a test): the same for the same seed of the run."""
    return random.Random(f"{choose_seed()}/{case}")
