"""Findings of check_table: each says what is at risk and what repair_table would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.plan import Action

ERROR, WARNING, INFO = "error", "warning", "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``id`` (``kind:subject``) is the same in every run. Without ``actions`` repair_table can't repair it.

    ``by_name_only``: repair_table repairs it only when it is named by id, because a running operation, or another
    engine, could look the same.
    """

    kind: str
    subject: str
    severity: str
    message: str
    at_risk: str
    repair: str | None = None
    actions: tuple[Action, ...] = ()
    by_name_only: bool = False

    @property
    def id(self) -> str:
        return f"{self.kind}:{self.subject}"

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "severity": self.severity,
            "message": self.message,
            "at_risk": self.at_risk,
            "repair": self.repair,
            "by_name_only": self.by_name_only,
        }
