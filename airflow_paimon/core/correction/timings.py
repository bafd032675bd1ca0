"""How long the last corrections of a table took, for the estimate of the next: ``_airflow_paimon/corrections.json``.

A hint: without it, or with one that can't be read, an estimate goes by a stated default. Two corrections that end at
once may lose one entry.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict

from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.correction.estimate_plan import Timing
from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.snapshot import parse_json
from airflow_paimon.core.plan import Replace
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.table import Table

TIMINGS_PATH = f"{PRIVATE_DIR}/corrections.json"
MOST_TIMINGS = 20


def read_timings(table: Table) -> tuple[Timing, ...]:
    """Return what is recorded, the oldest first; nothing if the record is missing or unreadable."""
    try:
        found = parse_json(table.store.read(TIMINGS_PATH))
        return tuple(_checked(Timing(**one)) for one in found["corrections"])
    except (NotFoundError, FormatError, ValueError, TypeError, KeyError):
        return ()


def _checked(timing: Timing) -> Timing:
    numbers = (timing.seconds, timing.work_bytes, timing.cores)
    if not (all(isinstance(n, int | float) and 0 <= n < math.inf for n in numbers) and timing.cores >= 1):
        raise ValueError
    return timing


def record_timing(table: Table, timing: Timing) -> None:
    """Add one correction; the oldest beyond ``MOST_TIMINGS`` are left out.

    Raises:
        StorageError: the record can't be written.
    """
    kept = [*read_timings(table), timing][-MOST_TIMINGS:]
    data = json.dumps({"corrections": [asdict(one) for one in kept]}, indent=2).encode()
    execute(table, [Replace(path=TIMINGS_PATH, data=data, reason="the next plan estimates its time by it")])
