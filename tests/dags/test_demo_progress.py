"""What the demos print while Airflow and Spark work."""

from __future__ import annotations

from typing import Any

from tests.dags.conftest import load_program


def test_a_task_that_takes_minutes_is_not_silent() -> None:
    progress: Any = load_program("_demo").Progress(now=0.0)
    running = [("correct", "running", None), ("replay 1", None, None)]
    said = {now: progress.lines(running, float(now)) for now in range(1, 40)}
    spoken = {now: lines for now, lines in said.items() if lines}
    assert list(spoken) == [15, 30]
    assert [line.split() for line in spoken[30]] == [["correct", "runs", "29", "s", "so", "far"]]
    done = progress.lines([("correct", "success", 41.25), ("replay 1", "running", None)], 42.0)
    assert [line.split() for line in done] == [["correct", "done", "41.2", "s"]]
    assert progress.lines([("correct", "success", 41.25), ("replay 1", "running", None)], 50.0) == [], "each once"
    (failed,) = progress.lines([("correct", "success", 41.25), ("replay 1", "failed", 9.0)], 51.0)
    assert failed.split() == ["replay", "1", "failed", "9.0", "s"]
