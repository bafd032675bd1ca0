"""The context of an operation (the table, the time, a stopwatch), and the result that it ends with."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from airflow_paimon import __version__
from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.commit.lost_races import lost_races
from airflow_paimon.core.errors import InvalidInputError, error_to_json
from airflow_paimon.core.plan import Plan
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.store.none import NoStore
from airflow_paimon.core.table.paths import is_pattern
from airflow_paimon.core.table.table import (
    Table,
    named_tables,
    open_or_place,
    open_table,
    parse_timestamp,
)

SPARK, WORKER = "spark", "worker"
_RUNS_ON: ContextVar[str] = ContextVar("runs_on", default=WORKER)


@contextmanager
def running_in_spark() -> Iterator[None]:
    """Let results say that a Spark application has done the work, and not plain Python."""
    token = _RUNS_ON.set(SPARK)
    try:
        yield
    finally:
        _RUNS_ON.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationResult:
    """What jobs print and operators return (docs/contributing/design.md, One result).

    ``snapshot_before``/``snapshot_after`` are of the branch that was written: main for a publish. ``ran_on``:
    ``spark``, or ``worker`` for plain Python: an Airflow worker, or whoever called.
    """

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
    ran_on: str = field(default_factory=_RUNS_ON.get)

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


@dataclass(frozen=True, slots=True)
class Context:
    """``table`` is main's view. ``now_ms``: the current time for planners (epoch milliseconds).

    ``lost_before``: races that commits of this process had lost when the operation began.
    ``attempts``: the operation ids under which the operation has put a record, or found one, with the digests of its
    request.
    """

    request: Request
    table: Table
    now_ms: int
    started: float
    lost_before: int = field(default_factory=lost_races)
    attempts: dict[str, str] = field(default_factory=dict)

    @property
    def now_local(self) -> datetime:
        """Now as Paimon's tags store it: local time without a zone."""
        return datetime.fromtimestamp(self.now_ms / 1000)

    @property
    def now_iso(self) -> str:
        return datetime.fromtimestamp(self.now_ms / 1000, UTC).isoformat(timespec="milliseconds")

    def result(
        self,
        plan: Plan | None,
        *,
        branch: str,
        changed: bool,
        before: int | None = None,
        after: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> OperationResult:
        """Build the result; a dry run shows the plan in ``details.plan``.

        ``details.commit_retries``: how often other writers were faster, where they were.
        """
        shown = dict(details or {})
        if lost_races() > self.lost_before:
            shown["commit_retries"] = lost_races() - self.lost_before
        if self.request.dry_run and plan is not None:
            shown["plan"] = plan.to_json()
        return OperationResult(
            operation=self.request.operation,
            table=self.table.name,
            branch=branch,
            changed=changed,
            dry_run=self.request.dry_run,
            plan_id=plan.plan_id if plan is not None else None,
            snapshot_before=before,
            snapshot_after=after,
            details=shown,
            duration_s=time.monotonic() - self.started,
        )


def open_context(request: Request) -> Context:
    """Open the request's table on main; of several tables the context's has no files, see ``tables_of``.

    Raises:
        NotFoundError: no such table. InvalidInputError: the table name carries a branch, or ``now`` has no time zone.
    """
    started = time.monotonic()
    if request.takes_patterns and is_pattern(request.table):
        catalog = open_catalog(request.warehouse, request.storage_options)
        several = Table(NoStore(catalog.label), request.table, catalog=catalog)
        return Context(request, several, _now_of(request), started)
    opened = open_table if request.needs_table else open_or_place
    table = opened(request.warehouse, request.table, storage_options=request.storage_options)
    if table.branch_name != "main":
        takes_branch = any(f.name == "branch" for f in fields(request))
        rest = f" and the branch as branch={table.branch_name!r}" if takes_branch else "; it works on the whole table"
        raise InvalidInputError(f"{request.operation}: give the table as {table.name}{rest}")
    now = _now_of(request)
    return Context(request, table.require() if request.needs_table else table, now, started)


def tables_of(context: Context) -> list[Table]:
    """Return the tables that a request with ``takes_patterns`` is about, each once.

    Raises:
        NotFoundError: there is no such table, or none that a pattern matches.
    """
    pattern, catalog = context.request.table, context.table.catalog
    if not is_pattern(pattern) or catalog is None:
        return [context.table]
    return named_tables(catalog, pattern)


def _now_of(request: Request) -> int:
    if not request.now:
        return int(time.time() * 1000)
    return parse_timestamp(request.now, f"{request.operation}: now (--now)")
