"""The result of an operation, as jobs print it and operators return it (docs/design.md, One result)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from airflow_paimon import __version__
from airflow_paimon.core.errors import error_to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationResult:
    """``snapshot_before``/``snapshot_after`` are of the branch that was written: main for a publish."""

    operation: str
    table: str
    branch: str
    changed: bool
    dry_run: bool = False
    plan_id: str | None = None
    snapshot_before: int | None = None
    snapshot_after: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    duration_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, the keys in the order of the contract, which is that of the fields."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            **values,
            "details": dict(self.details),
            "duration_s": round(self.duration_s, 3),
            "version": __version__,
        }


def failure_json(operation: str, table: str, error: BaseException) -> dict[str, Any]:
    """Return the result of a failed operation."""
    return {"operation": operation, "table": table, "error": error_to_json(error), "version": __version__}
