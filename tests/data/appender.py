"""A process that appends single rows to partition ``dt=a`` of d.t, commit after commit, until it is told to stop.

``python -m tests.data.appender WAREHOUSE STOP_FILE PROGRESS_FILE PAUSE_SECONDS``: rows (k, 'appended', 'a') with
k from 1000 on.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import write_arrow

FIRST, LIMIT = 1000, 20_000


def main(warehouse: str, stop: str, progress: str, pause: str) -> None:
    table = open_table(warehouse, "d.t")
    for k in range(FIRST, LIMIT):
        if Path(stop).exists():
            return
        write_arrow(table, pa.table({"k": pa.array([k], pa.int32()), "v": ["appended"], "dt": ["a"]}))
        Path(progress).write_text(f"{k:08d}")
        time.sleep(float(pause))


@contextmanager
def appender(warehouse: Path, folder: Path, pause: float = 0) -> Iterator[Callable[[], int]]:
    """Run it; yields a function that returns how many rows it has committed at least. All are committed at the end."""
    stop, progress = folder / "stop", folder / "progress"
    progress.write_text("")
    command = [sys.executable, "-m", "tests.data.appender", str(warehouse), str(stop), str(progress), str(pause)]

    def committed() -> int:
        text = progress.read_text()
        return int(text) - FIRST + 1 if len(text) == 8 else 0

    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
        try:
            until = time.monotonic() + 600
            while committed() < 3 and process.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            yield committed
        finally:
            stop.touch()
            code = process.wait(600)
    assert code == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
