"""Gathers the audit of a table: its publishes, rollbacks and erasures, expired ones too, and corrections that wait; and
that of several tables, side by side. A record is missing where the process was killed right after its snapshot and
never tried again, or where it could not be put.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from airflow_paimon.core.audit.audit_record import AuditRecord, record_of
from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot, parse_snapshot
from airflow_paimon.core.plan import PutNew
from airflow_paimon.core.publish.approval import is_read_with_main
from airflow_paimon.core.publish.audit_properties import readable_snapshots, record_path
from airflow_paimon.core.publish.earlier_publishes import undone_snapshots
from airflow_paimon.core.store.base import read_existing
from airflow_paimon.core.store.threads import map_parallel
from airflow_paimon.core.table.branch_record import BranchRecord, read_branch_record
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    CONDITION_PROPERTY,
    LEFT_PARTITIONS_PROPERTY,
    OPERATION_PROPERTY,
    SQL_PROPERTY,
    UNDO_TAG_PROPERTY,
)
from airflow_paimon.core.table.record_kinds import AUDIT
from airflow_paimon.core.table.table import Table, parse_timestamp

_CLOCKS_MS = 24 * 3_600_000
"""How far the storage's clock may be behind that of whoever committed."""
_AT_ONCE = 8
"""Tables that are read at the same time."""
_CORRECTIONS = ("correct_branch", "rebase_branch", "replay_branch", "sql", "write_arrow", "write_table")


def read_audit(table: Table, since_ms: int | None = None, until_ms: int | None = None) -> list[AuditRecord]:
    """Return the records of a table, the oldest first: of every branch that was published onto or rolled back, of
    erasures, and of the corrections on branches since their base that no publish has brought.

    Reads all snapshots that are there and the records of the others, of which a beginning leaves the older ones out.

    Args:
        since_ms: Only what was committed then or later, epoch milliseconds.
        until_ms: Only what was committed before.

    Raises:
        FormatError: a record of a publish is unreadable; names it.
    """
    main = table.branch(MAIN).require()
    schemas = main.schemas()
    found: list[AuditRecord] = []
    known: set[str] = set()
    brought: set[str] = set()
    branches: list[tuple[Table, BranchRecord | None, list[Snapshot]]] = []
    for view, record in ((main, None), *((main.branch(n), read_branch_record(main, n)) for n in main.branch_names())):
        there = _readable(view, after=record.snapshot_id or 0 if record is not None else 0)
        recorded = [s for s in _recorded(view, there, since_ms) if s.identity not in known]
        publishes = [s for s in recorded if UNDO_TAG_PROPERTY in s.properties]
        undone, living = undone_snapshots(publishes), {s.identity for s in there}
        for snapshot in recorded:
            is_there, by = snapshot.identity in living, undone.get(snapshot.id)
            found.append(record_of(main.name, view.branch_name, snapshot, [schemas], is_there=is_there, undone_by=by))
        known |= living | {s.identity for s in recorded}
        whole = (s for s in publishes if s.properties.get(LEFT_PARTITIONS_PROPERTY, "0") == "0")
        brought |= {s.properties.get(BRANCH_IDENTITY_PROPERTY, "") for s in whole}
        if view.branch_name != MAIN:
            branches.append((view, record, there))
    for view, record, there in branches:
        found += _open_corrections(view, record, there, brought, schemas)
    chosen = [r for r in found if (since_ms or 0) <= r.time_ms and (until_ms is None or r.time_ms < until_ms)]
    return sorted(chosen, key=lambda r: (r.time_ms, r.snapshot))


def _readable(view: Table, after: int) -> list[Snapshot]:
    """Read the snapshots of a branch after its base; none of one that is being made or deleted."""
    try:
        return readable_snapshots(view, [i for i in view.snapshot_ids() if i > after])
    except PaimonError:
        if view.branch_name == MAIN:
            raise
        return []


def _recorded(view: Table, there: Iterable[Snapshot], since_ms: int | None) -> list[Snapshot]:
    """Return the publishes, rollbacks and erasures of a branch by id: of the snapshots that are there, and of the
    records.

    A record is put after its snapshot, so what was put long before ``since_ms`` is not needed: what has undone a later
    publish is later still, and so is the publish of a later correction.
    """
    found = {s.identity: s for s in there if s.properties.keys() & {UNDO_TAG_PROPERTY, CONDITION_PROPERTY}}
    folder, oldest = f"{AUDIT.folder}/{view.branch_name}", None if since_ms is None else since_ms - _CLOCKS_MS
    files = [i for i in view.store.list(folder) if i.name.endswith(".json")]
    wanted = (i for i in files if oldest is None or i.modified_ms is None or i.modified_ms >= oldest)
    paths = sorted(f"{folder}/{info.name}" for info in wanted)
    for path, data in read_existing(view.store, paths).items():
        snapshot = parse_snapshot(data, f"{view.label}: {path}")
        found.setdefault(snapshot.identity, snapshot)
    return sorted((s for s in found.values() if not s.repeats_properties), key=lambda s: (s.id, s.time_millis))


def _open_corrections(
    view: Table,
    record: BranchRecord | None,
    there: Sequence[Snapshot],
    brought: Collection[str],
    of_main: Sequence[TableSchema],
) -> list[AuditRecord]:
    """Return the commits of a branch that say what made their rows, after the last one that was published.

    What main's schemas (``of_main``) or the branch's own hide is hidden.
    """
    published = max((s.id for s in there if s.identity in brought), default=0)
    open_ones = [s for s in there if s.id > published and _is_correction(s)]
    if not open_ones:
        return []
    hiding = (of_main, view.schemas())
    made = [record_of(view.name, view.branch_name, s, hiding, is_there=True) for s in open_ones]
    if record is None:
        return made
    return [replace(one, base_snapshot=record.snapshot_id, owner=record.owner, reason=record.reason) for one in made]


def _is_correction(snapshot: Snapshot) -> bool:
    said = snapshot.properties
    return SQL_PROPERTY in said or said.get(OPERATION_PROPERTY) in _CORRECTIONS


def missing_records(view: Table, snapshots: Iterable[Snapshot]) -> dict[int, PutNew]:
    """Return what keeps the publishes, rollbacks, undos and erasures among a branch's snapshots for audits, by snapshot
    id.

    Those that have a record are left out, and publishes onto branches that no reader of the table sees, as
    ``keep_record`` is not asked for them. Lists a folder if there are any.
    """
    kinds = {CONDITION_PROPERTY, UNDO_TAG_PROPERTY}
    ours = [s for s in snapshots if s.properties.keys() & kinds and not s.repeats_properties]
    if ours and not is_read_with_main(view):
        ours = [s for s in ours if CONDITION_PROPERTY in s.properties]
    if not ours:
        return {}
    there = set(view.store.names(f"{AUDIT.folder}/{view.branch_name}"))
    paths = {s.id: record_path(view.branch_name, s) for s in ours}
    reason = "the audit has no record of it yet"
    return {
        s.id: PutNew(path=paths[s.id], data=s.to_bytes(), reason=reason, same_ok=True)
        for s in ours
        if paths[s.id].rpartition("/")[2] not in there
    }


# -- of several tables -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAudit:
    """A table's records, or the error why they can't be told."""

    table: str
    records: Sequence[AuditRecord] = ()
    error: PaimonError | None = None


def read_audits(tables: Sequence[Table], since_ms: int | None, until_ms: int | None) -> list[TableAudit]:
    """Read the audit of each table, as ``read_audit`` does; in the order of the tables."""
    return map_parallel(partial(_audit, since_ms=since_ms, until_ms=until_ms), tables, _AT_ONCE)


def records_of(audits: Sequence[TableAudit]) -> list[AuditRecord]:
    """Return all records, the oldest first.

    Raises:
        PaimonError: that of the first table that can't be read; an audit that lacks a table's records says so nowhere.
    """
    failed = [one for one in audits if one.error is not None]
    if failed and (error := failed[0].error) is not None:
        raise error
    return sorted((r for one in audits for r in one.records), key=lambda r: (r.time_ms, r.table, r.snapshot))


def _audit(table: Table, since_ms: int | None, until_ms: int | None) -> TableAudit:
    try:
        return TableAudit(table=table.name, records=read_audit(table, since_ms, until_ms))
    except PaimonError as error:
        return TableAudit(table=table.name, error=error)


def moments(since: tuple[str, str | None], until: tuple[str, str | None], where: str) -> tuple[int | None, int | None]:
    """Return a range of time in epoch milliseconds. ``since``, ``until``: the flag, and its text: an ISO time with an
    offset, or a date (midnight UTC).

    Raises:
        InvalidInputError: a text is neither, or nothing can be between the two.
    """
    first, end = _moment(*since), _moment(*until)
    if first is not None and end is not None and first >= end:
        raise InvalidInputError(
            f"{where}: {since[0]} {since[1]} is not before {until[0]} {until[1]}, so no record can be between"
        )
    return first, end


def _moment(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        if len(text) == len("2026-11-18"):
            return int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp() * 1000)
        if text.isdigit():  # 2026 or 20261118 would be epoch milliseconds, a day of 1970
            raise ValueError
        return parse_timestamp(text)
    except (InvalidInputError, ValueError):
        raise InvalidInputError(
            f"{flag} takes a date or an ISO time with an offset, such as 2026-11-18 or 2026-11-18T06:00Z, not {text!r}"
        ) from None
