"""What the log of an operator's task shows of a result."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.data import write_arrow
from airflow_paimon.operators import _log_lines
from airflow_paimon.operators._log_lines import log_lines
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.core.tables import append, make_table, run
from tests.data.chain.compactions import compact
from tests.data.chain.tables import chain_table


def texts(result: dict[str, Any]) -> list[str]:
    return [line for _, line in log_lines(result)]


def test_a_dry_run_says_so_first_and_nothing_twice() -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    for _ in range(4):
        append(table, "a")
    asked: dict[str, Any] = {"retain_min": 1, "retain_max": 1}
    plan = texts(run(table, "expire_snapshots", **asked, dry_run=True).to_json())
    assert plan[0] == "Dry run, nothing was changed. It would give:"
    assert plan[1:3] == ["expired:", "  main: {snapshots: 3, from: 1, to: 3}"]
    assert len([line for line in plan if line.strip() == "expired:"]) == 1
    assert "  - {action: Delete, path: snapshot/snapshot-1, reason: older than is to be kept}" in plan
    assert not [line for line in plan if "operation" in line or "plan_id" in line], "the line of the result has them"
    done = texts(run(table, "expire_snapshots", **asked).to_json())
    assert done[:2] == plan[1:3] and "plan:" not in done


def test_the_warnings_of_a_check_come_first(warehouse: Path) -> None:
    main = make_table(warehouse)
    write_arrow(main, pa.table({"k": pa.array([1, 2], pa.int64()), "v": ["a", "b"], "dt": ["1", "1"]}))
    run(main, "create_branch", branch="fix", snapshot=1)
    write_arrow(main.branch("fix"), pa.table({"k": pa.array([3], pa.int64()), "v": ["c"], "dt": ["1"]}))
    (rules := warehouse.with_suffix(".json")).write_text('[{"row_limits": {"added": 0}, "severity": "warn"}]')
    asked = {"warehouse": str(warehouse), "table": "d.t", "branch": "fix", "rules": str(rules)}
    result = run_before_spark(build_request("check_branch_data", asked))
    assert result is not None
    (level, warning), *lines = log_lines(result.to_json())
    assert (level, warning) == (logging.WARNING, *result.details["warnings"])
    assert [line for _, line in lines][:2] == ["branch_snapshot: 2", "rules:"]
    assert lines[2][1].startswith("- {name: ") and len(lines) == 3


def test_a_long_result_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    for number in range(60):
        append(table, f"{number:02}")
    result = run(table, "rollback_to", snapshot=1, dry_run=True).to_json()
    lines = texts(result)
    left = len(result["details"]["plan"]["actions"]) - 50
    assert left > 0 and lines[-1] == f"  - and {left} more"
    monkeypatch.setattr(_log_lines, "_MOST_LINES", 20)
    assert texts(result) == [*lines[:21], f"({len(lines) - 21} more lines: see the result)"]


def test_a_partition_that_was_compacted_takes_one_line(tmp_path: Path) -> None:
    writes = [("snapshot" if day == 1 else "delta", f"2026010{day}", [(1, day, "x")]) for day in range(1, 10)]
    table = chain_table(tmp_path, writes)
    result = compact(table, pending=True, max_chain_length=7).to_json()
    (line,) = [line for line in texts(result) if "outcome: compacted" in line]
    assert line.startswith("- {partition: dt=20260109")
    assert "dt=20260106, and 3 more]" in line, "of the deltas the first are shown"


def test_a_name_that_is_no_text_fails_no_task() -> None:
    result = {"dry_run": False, "details": {"examples": ["a\udce9", "x" * 900], "warnings": ["a\udce9"]}}
    assert texts(result) == ["a?", f"examples: ['a?', {'x' * 900}]"]
