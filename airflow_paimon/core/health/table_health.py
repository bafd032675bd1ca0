"""table_health: how one table fares; and how all tables of a warehouse do, side by side, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from airflow_paimon.core.errors import PaimonError, error_to_json
from airflow_paimon.core.health.gather import HealthRules, read_health
from airflow_paimon.core.health.health_plan import TableHealth
from airflow_paimon.core.requests.context import Context, OperationResult, tables_of
from airflow_paimon.core.requests.requests import TableHealthCheck
from airflow_paimon.core.store.threads import map_parallel
from airflow_paimon.core.table.paths import MAIN, is_pattern
from airflow_paimon.core.table.table import Table

_AT_ONCE = 8
"""Tables that are read at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """A table's health, or the error why it can't be told."""

    table: str
    health: TableHealth | None = None
    error: PaimonError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values: ``health_json``, or the table with its ``error``."""
        if self.health is not None:
            return {"table": self.table, **health_json(self.health)}
        assert self.error is not None
        return {"table": self.table, "score": None, "error": error_to_json(self.error)}


def table_health(context: Context, request: TableHealthCheck) -> OperationResult:
    """Judge a table, or several, of which ``details.tables`` lists the worst first. Changes nothing.

    Raises:
        FormatError: something that is needed of the one table is unreadable; names it.
    """
    if is_pattern(request.table):
        return _several(context, request)
    found = read_health(context.table, context.now_ms, HealthRules(storage=request.storage))
    head = found.snapshot
    return context.result(None, branch=MAIN, changed=False, before=head, after=head, details=health_json(found))


def _several(context: Context, request: TableHealthCheck) -> OperationResult:
    reports = read_healths(tables_of(context), context.now_ms, HealthRules(storage=request.storage))
    listed = reports[: request.limit or None]
    details = {
        "tables": [one.to_json() for one in listed],
        "left_out": len(reports) - len(listed),
        "unreadable": sum(one.health is None for one in reports),
        "score": min((one.health.score for one in reports if one.health is not None), default=None),
    }
    return context.result(None, branch=MAIN, changed=False, details=details)


def health_json(found: TableHealth) -> dict[str, Any]:
    """Return a health as JSON values; ``cost_bytes``: of all that its reasons ask for."""
    return {k: v for k, v in asdict(found).items() if k != "table"} | {"cost_bytes": found.cost_bytes}


def read_healths(tables: Iterable[Table], now_ms: int, rules: HealthRules | None = None) -> list[TableReport]:
    """Judge several tables side by side, the worst first; those that can't be read come before all others."""
    return worst_first(map_parallel(partial(_report, now_ms=now_ms, rules=rules), tables, _AT_ONCE))


def worst_first(reports: Sequence[TableReport]) -> list[TableReport]:
    """Sort reports: unreadable tables, then by score; of equal ones the one with more files."""

    def key(report: TableReport) -> tuple[int, int, str]:
        health = report.health
        return (-1, 0, report.table) if health is None else (health.score, -health.files.files, report.table)

    return sorted(reports, key=key)


def _report(table: Table, *, now_ms: int, rules: HealthRules | None) -> TableReport:
    try:
        return TableReport(table=table.name, health=read_health(table, now_ms, rules))
    except PaimonError as error:
        return TableReport(table=table.name, error=error)
