"""Audit records, made of the properties of snapshots: no reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot, json_object
from airflow_paimon.core.publish.audit_properties import change_of
from airflow_paimon.core.publish.partial_publish import published_partitions
from airflow_paimon.core.sql_text.tokens import hide_literals
from airflow_paimon.core.table.made_by import MASKED, MAX_TEXT, NONE, record_sql
from airflow_paimon.core.table.properties import (
    APPROVED_AT_PROPERTY,
    APPROVED_BY_PROPERTY,
    BASE_SNAPSHOT_PROPERTY,
    BRANCH_FORCED_PROPERTY,
    BRANCH_OWNER_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_REASON_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    CHANGES_PROPERTY,
    CHECKS_FORCED_PROPERTY,
    CHECKS_PROPERTY,
    CONDITION_PROPERTY,
    DIFF_PROPERTY,
    DURATION_PROPERTY,
    FIGURES_PROPERTY,
    FOUR_EYES_PROPERTY,
    KEEP_LATER_PROPERTY,
    OPERATION_ID_PROPERTY,
    OPERATION_PROPERTY,
    REASON_PROPERTY,
    REQUESTED_BY_PROPERTY,
    TARGET_PROPERTY,
    UNDO_RETENTION_PROPERTY,
    UNDO_TAG_PROPERTY,
)

PUBLISH, ROLLBACK, UNDO, CORRECTION, ERASURE = "publish", "rollback", "undo", "correction", "erasure"
_ROLLBACK_TO = "rollback_to"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One publish, rollback or undo, one correction that waits on its branch, or one commit of an erasure.

    Attributes:
        kind: ``publish``, ``undo`` (of one publish), ``rollback`` (to an earlier state), ``correction`` or ``erasure``.
        branch: The branch that was written; main for a publish.
        time_ms: When it was committed, epoch milliseconds.
        snapshot_before: Of the same branch; with the one after it what was there before and afterwards.
        is_there: Whether the snapshot has not expired.
        from_branch: What was published, up to ``from_snapshot``, from ``base_snapshot`` on.
        only_partitions: Of a publish of some partitions of the branch, which.
        target_snapshot: What a rollback or undo went back to.
        commits: How many commits of the branch it brought.
        changes: The newest of them; of a correction or an erasure itself: see ``change_of``. An erasure's has
            ``condition_sha256``, and never the condition.
        diff: What was compared before a publish: totals, counts by partition, see ``diff_record``.
        checks: The outcome of each rule, by its name.
        approved_at: ISO with an offset.
        checks_forced: It was published although a required check was missing or had failed.
        forced: The branch was protected.
        statistics: Files, rows as files count them, and bytes that were put in and taken out.
        undone_by: The snapshot that took it back; None: it stands.
        duration_ms: From the operation's beginning until its snapshot was put.
    """

    table: str
    kind: str
    branch: str
    operation: str
    time_ms: int
    snapshot: int
    snapshot_before: int | None
    identity: str
    is_there: bool
    user: str
    operation_id: str | None = None
    from_branch: str | None = None
    from_snapshot: int | None = None
    base_snapshot: int | None = None
    only_partitions: Sequence[str] = ()
    target_snapshot: int | None = None
    owner: str | None = None
    reason: str | None = None
    requested_by: str | None = None
    approved_by: str | None = None
    approved_at: str | None = None
    four_eyes: bool = False
    forced: bool = False
    checks: Mapping[str, Any] = field(default_factory=dict)
    checks_forced: bool = False
    commits: int | None = None
    changes: Sequence[Mapping[str, Any]] = ()
    diff: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    undo_tag: str | None = None
    undo_retention: str | None = None
    undone_by: int | None = None
    duration_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def record_of(
    table: str,
    branch: str,
    snapshot: Snapshot,
    hiding: Iterable[Sequence[TableSchema]],
    *,
    is_there: bool,
    undone_by: int | None = None,
) -> AuditRecord:
    """Make the record of a snapshot of a branch. ``hiding``: schemas of main, and of the branch; what either hides now
    is hidden, whatever they said when it was committed.
    """
    said, kind = snapshot.properties, _kind(snapshot.properties)
    brought = json_object(said.get(CHANGES_PROPERTY))
    changes: list[dict[str, Any]] = [c for c in brought.get("commits", ()) if isinstance(c, dict)]
    count = brought.get("count")
    if kind in (CORRECTION, ERASURE):
        condition = {"condition_sha256": said[CONDITION_PROPERTY]} if kind == ERASURE else {}
        changes, count = [change_of(snapshot, MAX_TEXT) | condition], 1
    for schemas in hiding:
        changes = [_shown(change, schemas) for change in changes]
    return AuditRecord(
        table=table,
        kind=kind,
        branch=branch,
        operation=said.get(OPERATION_PROPERTY, ""),
        time_ms=snapshot.time_millis,
        snapshot=snapshot.id,
        snapshot_before=snapshot.id - 1 or None,
        identity=snapshot.identity,
        is_there=is_there,
        user=snapshot.commit_user,
        operation_id=said.get(OPERATION_ID_PROPERTY),
        from_branch=said.get(BRANCH_PROPERTY),
        from_snapshot=_int(said.get(BRANCH_SNAPSHOT_PROPERTY)),
        base_snapshot=_int(said.get(BASE_SNAPSHOT_PROPERTY)),
        only_partitions=list(published_partitions(snapshot)),
        target_snapshot=_int(said.get(TARGET_PROPERTY)),
        owner=said.get(BRANCH_OWNER_PROPERTY),
        reason=said.get(REASON_PROPERTY) or said.get(BRANCH_REASON_PROPERTY),
        requested_by=said.get(REQUESTED_BY_PROPERTY),
        approved_by=said.get(APPROVED_BY_PROPERTY),
        approved_at=said.get(APPROVED_AT_PROPERTY),
        four_eyes=said.get(FOUR_EYES_PROPERTY) == "true",
        forced=said.get(BRANCH_FORCED_PROPERTY) == "true",
        checks=json_object(said.get(CHECKS_PROPERTY)),
        checks_forced=CHECKS_FORCED_PROPERTY in said,
        commits=count if isinstance(count, int) else None,
        changes=changes,
        diff=_diff(said.get(DIFF_PROPERTY)),
        statistics=json_object(said.get(FIGURES_PROPERTY)),
        undo_tag=said.get(UNDO_TAG_PROPERTY),
        undo_retention=said.get(UNDO_RETENTION_PROPERTY),
        undone_by=undone_by,
        duration_ms=_int(said.get(DURATION_PROPERTY)),
    )


def _kind(said: Mapping[str, str]) -> str:
    if CONDITION_PROPERTY in said:
        return ERASURE
    if UNDO_TAG_PROPERTY not in said:
        return CORRECTION
    if said.get(OPERATION_PROPERTY) != _ROLLBACK_TO:
        return PUBLISH
    return UNDO if said.get(KEEP_LATER_PROPERTY) == "true" else ROLLBACK


def _shown(change: Mapping[str, Any], schemas: Sequence[TableSchema]) -> dict[str, Any]:
    out, how = dict(change), record_sql(schemas)
    if how == NONE:
        return {k: v for k, v in out.items() if k not in ("sql", "sql_digest")}
    if how == MASKED and "sql" in out and (hidden := hide_literals(str(out["sql"]))) != out["sql"]:
        out["sql"] = hidden
        out.pop("sql_digest", None)  # of the text with its values: it would confirm a guess of them
    return out


def _diff(text: str | None) -> dict[str, Any]:
    """Read the property; empty where another program has written something else there."""
    kept = json_object(text)
    parts = kept.get("partitions") if isinstance(kept.get("total"), dict) and "partitions_differing" in kept else None
    is_ours = isinstance(parts, list) and all(isinstance(p, dict) and "partition" in p for p in parts)
    return kept if is_ours else {}


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
