"""Dry runs in XCom, a row of Airflow's database: the plan of a table with many partitions has an action for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST = 100
"""Entries that a list of a dry run keeps."""
LEFT_OUT = "left_out"
"""In ``details``: how many entries each shortened list lacks, by its name."""


def shortened(result: dict[str, Any]) -> dict[str, Any]:
    """Cut the lists of a dry run to their first entries and say in ``details`` how many are missing.

    Results of other runs stay as they are.
    """
    if not result["dry_run"]:
        return result
    left: dict[str, int] = {}
    details = {name: _cut(value, name, left) for name, value in result["details"].items()}
    if isinstance(plan := details.get("plan"), Mapping):
        details["plan"] = {name: _cut(value, f"plan.{name}", left) for name, value in plan.items()}
    return {**result, "details": {**details, LEFT_OUT: left}} if left else result


def _cut(value: Any, name: str, left: dict[str, int]) -> Any:
    if not isinstance(value, list | tuple) or len(value) <= MOST:
        return value
    left[name] = len(value) - MOST
    return list(value[:MOST])
