"""The lists that people look at, of values that somebody has read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from airflow_paimon.core.audit.audit_record import ERASURE, AuditRecord
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.format.types import with_nullable
from airflow_paimon.core.health.health_plan import Reason, TableHealth
from airflow_paimon.core.health.table_health import TableReport
from airflow_paimon.core.metadata_expiry.storage_usage import TableUsage, Totals, usage_json
from airflow_paimon.core.requests.findings import Finding
from airflow_paimon.core.table.known_options import OptionClass, find_option, is_known, known_options, unknown_text
from airflow_paimon.core.table.masking import masked_option
from airflow_paimon.core.table.paths import (
    KEEP_TAG_PREFIX,
    PUBLISH_TAG_PREFIX,
    STAGED_TAG_PREFIX,
    UNDO_TAG_PREFIX,
    is_run_tag,
    protects,
)
from airflow_paimon.shown.holders import holder_text
from airflow_paimon.shown.listing import Listing, counted, duration_text, heads, size_text, utc_time

STORED_ROWS = "With earlier versions of rows and deletes; a reader may see fewer"


def columns(schema: TableSchema) -> Listing:
    """List the columns of a schema, in their order."""
    rows = [
        (
            field.name,
            str(with_nullable(field.type, True)),
            "yes" if field.type.nullable else "no",
            ", ".join(_roles(schema, field.name)),
            field.description,
        )
        for field in schema.fields
    ]
    names = heads("column | type | nullable | key | comment")
    return Listing(title="columns", columns=names, rows=rows)


def _roles(schema: TableSchema, column: str) -> list[str]:
    keys = (("partition", schema.partition_keys), ("primary", schema.primary_keys))
    return [f"{kind} key {names.index(column) + 1}" for kind, names in keys if column in names]


def options(found: Mapping[str, str], main: Mapping[str, str] | None = None) -> Listing:
    """List options with Paimon's defaults, unknown ones first; why others have no effect here. ``main``: main's, where
    a branch is shown. Values that may be secrets are hidden.
    """
    keys = sorted(found.keys() | (main or {}).keys(), key=lambda key: (is_known(key), key))
    known = known_options()
    rows = [
        (
            key,
            _value(key, found),
            known[key].default or None if key in known else None,
            *(() if main is None else ("the same" if found.get(key) == main.get(key) else _value(key, main),)),
            _remark(key),
        )
        for key in keys
    ]
    on_main = "" if main is None else "on main | "
    names = heads(f"option | value | default | {on_main}remark")
    return Listing(title="options", columns=names, rows=rows)


def _value(key: str, found: Mapping[str, str]) -> str | None:
    return masked_option(key, found[key]) if key in found else None


def _remark(key: str) -> str | None:
    if not is_known(key):
        return unknown_text(key)
    known = find_option(key)
    return f"not used here: {known.why}" if known and known.option_class is OptionClass.NO_EFFECT else None


def tags(found: Sequence[Tag]) -> Listing:
    """List tags, the last one first."""
    rows = [
        (
            tag.name,
            _purpose(tag.name),
            tag.snapshot.id,
            utc_time(tag.snapshot.time_millis),
            tag.snapshot.total_record_count,
            tag.create_time,
            _kept(tag),
            tag.expires_at(),
        )
        for tag in reversed(found)
    ]
    names = heads(
        "tag | what for | snapshot: number | committed: utc | stored rows: number | created: time | kept | "
        "expires: time"
    )
    return Listing(title="tags", columns=names, rows=rows, help={"stored rows": STORED_ROWS})


def _purpose(name: str) -> str | None:
    """Say what a tag is for, by its name; None for one that somebody made."""
    if name.startswith(UNDO_TAG_PREFIX):
        return "undo tag"
    if name.startswith(PUBLISH_TAG_PREFIX):
        return "publish, for its undo"
    if (branch := protects(name)) is not None:
        return f"protects branch {branch}"
    if name.startswith(KEEP_TAG_PREFIX):
        return "keeps files that came back"
    if name.startswith(STAGED_TAG_PREFIX):
        return "kept by a publish until it is done"
    return "start of a correction" if is_run_tag(name) else None


def _kept(tag: Tag) -> str:
    if tag.legal_hold is not None:
        return f"legal hold: {tag.legal_hold}"
    return "for ever" if tag.time_retained is None else duration_text(tag.time_retained)


def holders(usage: TableUsage) -> Listing:
    """List what holds files of a table, of all branches, with what its end would free, the most first."""
    found = [usage_json(one, usage.roots) for one in usage.usages]
    rows = [(holder_text(h), h["roots"], h["bytes"], h["frees_bytes"], h["frees_files"], h["way"]) for h in found]
    names = heads(
        "referenced by | snapshots: number | size: size | frees: size | frees files: number | to free it: sentence"
    )
    help = {
        "snapshots": "Snapshots, tags and changelogs in it",
        "size": "All that it refers to, shared files included",
        "frees": "What nothing else refers to",
    }
    return Listing(title="references", columns=names, rows=rows, note=_totals(usage.totals), help=help)


def _totals(totals: Totals) -> str:
    old = totals.unreferenced.bytes - totals.young.bytes
    return (
        f"{size_text(totals.total.bytes)} in {totals.total.files:,} files; main's newest state: "
        f"{size_text(totals.live.bytes)}; referenced by nothing: {size_text(old)}, and {size_text(totals.young.bytes)} "
        "younger than a day"
    )


def reasons(health: TableHealth) -> Listing:
    """List the reasons of a table's score, those that cost the most points first; the note says what it is made of."""
    rows = [
        (r.id, r.points, r.value, r.limit, r.unit, _job_of(r), r.cost_bytes or None, r.text) for r in health.reasons
    ]
    names = heads("reason | points: number | value: number | limit: number | unit | job | costs: size | why: sentence")
    help = {
        "points": "What it takes off the score of 100",
        "job": "The job that fixes it; with none, a setting or a writer does",
        "costs": "What that job reads and rewrites at most",
    }
    return Listing(title="reasons", columns=names, rows=rows, note=_facts(health), help=help)


def _facts(health: TableHealth) -> str:
    files, retained = health.files, health.retained
    facts = [
        f"Score {health.score}: {counted(files.files, 'file')} with {size_text(files.bytes)}",
        f"{files.small_files:,} of them small",
        f"{counted(files.most_runs, 'sorted run')} at most" if files.most_runs else "",
        f"{counted(files.waiting_rows, 'uncompacted row')}" if files.waiting_rows else "",
        f"{counted(retained.snapshots, 'snapshot')}, {counted(retained.tags, 'tag')}, "
        f"{counted(retained.branches, 'branch')}",
        counted(health.manifests.count, "manifest"),
        _oldest_text(health),
    ]
    return "; ".join(filter(None, facts))


def _oldest_text(health: TableHealth) -> str:
    oldest = health.retained.oldest
    if oldest is None:
        return ""
    day = datetime.fromtimestamp(oldest.since_ms / 1000, UTC).date().isoformat()
    return f"the oldest state, of {day}, is kept by {oldest.kind} {oldest.name}"


def _job_of(reason: Reason) -> str | None:
    """Spell the job that mends it, as ``python -m airflow_paimon job`` takes it; None: no job does."""
    if reason.operation is None or reason.branch == "main":
        return reason.operation
    return f"{reason.operation} --branch {reason.branch}"


def healths(found: Sequence[TableReport], clean: Callable[[str], str] = str) -> Listing:
    """List tables by their health. ``clean`` takes secrets out of a storage's message."""
    names = heads(
        "table | score: number | files: number | size: size | snapshots: number | branches: number | "
        "costs: size | why: sentence"
    )
    help = {"score": "From 0 to 100", "costs": "What the jobs that fix it rewrite at most"}
    return Listing(title="tables", columns=names, rows=[_health(one, clean) for one in found], help=help)


def _health(report: TableReport, clean: Callable[[str], str]) -> list[object]:
    health = report.health
    if health is None:
        assert report.error is not None
        return [report.table, *[None] * 6, f"unreadable: {clean(report.error.message)}"]
    why = ", ".join(f"{r.id} -{r.points}" for r in health.reasons)
    retained, files, costs = health.retained, health.files, health.cost_bytes or None
    return [report.table, health.score, files.files, files.bytes, retained.snapshots, retained.branches, costs, why]


def findings(found: Sequence[Finding]) -> Listing:
    """List what a check of a table has found."""
    rows = [(f.severity, f.id, f.message, f.at_risk, f.repair) for f in found]
    names = heads("severity | finding | message | at risk | repair")
    return Listing(title="findings", columns=names, rows=rows)


def records(found: Sequence[AuditRecord]) -> Listing:
    """List the records of an audit, the newest first."""
    several = len({r.table for r in found}) > 1
    rows = [
        (
            *([r.table] if several else []),
            r.snapshot,
            r.kind,
            r.branch,
            utc_time(r.time_ms),
            r.from_branch,
            r.requested_by,
            r.approved_by,
            r.reason,
            _made(r),
            r.statistics.get("files_added"),
            r.statistics.get("bytes_added"),
            r.undo_tag,
            r.undone_by,
        )
        for r in reversed(found)
    ]
    names = heads(
        f"{'table | ' if several else ''}snapshot: number | what | on | committed: utc | branch: name | asked by: name"
        " | approved by: name | reason | made by: sql | files: number | size: size | undo tag: name"
        " | undone by: number"
    )
    help = {
        "made by": "The newest statement or function that it brought",
        "files": "Put in",
        "size": "Put in",
        "undo tag": "rollback_to with this tag and keep_later undoes it",
        "undone by": "The snapshot that undid it",
    }
    return Listing(title="records", columns=names, rows=rows, help=help)


def _made(record: AuditRecord) -> str | None:
    made = next((str(c.get("sql") or c["function"]) for c in record.changes if "sql" in c or "function" in c), None)
    if made is None and record.kind == ERASURE:
        return f"Condition with SHA-256 {record.changes[0]['condition_sha256']}"
    return made
