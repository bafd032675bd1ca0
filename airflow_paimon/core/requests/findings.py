"""Findings of check_table: each says what is at risk and what repair_table would do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.plan import Action

ERROR, WARNING, INFO = "error", "warning", "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``id`` (``kind:subject``, or the kind alone) is the same in every run. Without ``actions`` repair_table can't
    repair it.

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
        return f"{self.kind}:{self.subject}" if self.subject else self.kind

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "severity": self.severity,
            "message": self.message,
            "at_risk": self.at_risk,
            "repair": self.repair,
            "by_name_only": self.by_name_only,
        }


def unreadable_metadata(subject: str, error: PaimonError, at_risk: str) -> Finding:
    """Return the finding of a check that could not read what it is about."""
    return Finding(kind="unreadable-metadata", subject=subject, severity=ERROR, message=error.message, at_risk=at_risk)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity, then by id."""
    return sorted(findings, key=lambda f: ((ERROR, WARNING, INFO).index(f.severity), f.id))


def summary(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as a check's result has them; ``ok``: none is an error or a warning."""
    return {
        "ok": all(f.severity == INFO for f in findings),
        "findings": [f.to_json() for f in findings],
        "errors": sum(f.severity == ERROR for f in findings),
        "warnings": sum(f.severity == WARNING for f in findings),
    }
