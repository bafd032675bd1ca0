"""``python -m tests.soak SECONDS``: the random tests with a new seed each time, until the time is over or one fails."""

import os
import subprocess
import sys
import time
from random import SystemRandom

from tests.randomness import VARIABLE

_PASS_SECONDS = 120
"""How long one pass of a test that takes its time from AIRFLOW_PAIMON_SOAK may run."""


def main(seconds: int) -> int:
    """Run passes; give 0, or the exit code of the first pass that failed."""
    end = time.monotonic() + seconds
    passes = 0
    while passes == 0 or time.monotonic() < end:
        os.environ[VARIABLE] = seed = str(SystemRandom().randrange(10**9))
        limit = min(_PASS_SECONDS, max(1, int(end - time.monotonic())))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "random", "-p", "no:cacheprovider", *sys.argv[2:]]
        done = subprocess.run(command, env={**os.environ, "AIRFLOW_PAIMON_SOAK": str(limit)}, check=False)
        if done.returncode:
            print(f"soak: pass {passes + 1} failed; repeat it with {VARIABLE}={seed}", flush=True)
            return done.returncode
        passes += 1
    print(f"soak: {passes} passes, no failure", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
