"""The list of commits, by their snapshots alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_paimon.core.format.snapshot import Snapshot, json_object
from airflow_paimon.core.publish.partial_publish import published_partitions
from airflow_paimon.shown.commit import PUBLISH, ROLLBACK, UNREADABLE, Commit
from airflow_paimon.shown.listing import AnnotatedValue, Listing, heads, utc_time
from airflow_paimon.shown.lists import STORED_ROWS

_PREFIX = "airflow-paimon."
_MARKS = {PUBLISH: "good", ROLLBACK: "warn", UNREADABLE.lower(): "bad"}


def commit_of(snapshot: Snapshot) -> Commit:
    """Keep of a snapshot what is shown."""
    own = {k.removeprefix(_PREFIX): v for k, v in snapshot.properties.items() if k.startswith(_PREFIX)}
    target = _number(own.get("target-snapshot"))
    return Commit(
        id=snapshot.id,
        millis=snapshot.time_millis,
        kind=snapshot.commit_kind.value,
        identity=snapshot.identity,
        operation=_operation(own.get("operation"), snapshot.operation),
        user=snapshot.commit_user,
        rows=snapshot.delta_record_count,
        total=snapshot.total_record_count,
        schema_id=snapshot.schema_id,
        approved_by=own.get("approved-by", ""),
        source=own.get("branch", ""),
        source_id=_number(own.get("branch-snapshot")),
        parts=published_partitions(snapshot),
        target=target,
        undone=target + 1 if target is not None and own.get("keep-later") == "true" else None,
        changed=changed_rows(own),
    )


def changed_rows(own: Mapping[str, str]) -> str:
    """Say how many rows a publish changed, by the diff that was looked at, or a statement, by its own count."""
    diff, details = json_object(own.get("diff")), json_object(own.get("details"))
    total = diff.get("total")
    counted = {word: total.get(word) for word in ("added", "changed", "deleted")} if isinstance(total, dict) else {}
    if not any(isinstance(n, int) and n for n in counted.values()):
        counted = {word: details.get(f"rows_{word}") for word in ("inserted", "updated", "deleted")}
    return ", ".join(f"{n:,} {word}" for word, n in counted.items() if isinstance(n, int) and n > 0)


def _operation(job: str | None, stored: str | None) -> str:
    """The job of this package that committed, for a statement its kind (``UPDATE``), else what the writer stored."""
    return (stored or "") if job in (None, "", "sql") else job


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def commits(found: Sequence[tuple[str, Commit]], *, several: bool) -> Listing:
    """List commits with the branch of each. ``several``: of more than one branch, and their tags were read, too."""
    rows = [
        (
            c.id,
            *([branch] if several else []),
            utc_time(c.millis),
            AnnotatedValue(c.kind, mark=_MARKS.get(c.role, "")),
            AnnotatedValue(c.operation or None, short=c.what),
            c.changed or None,
            c.total,
            c.rows,
            c.schema_id,
            c.user,
            c.approved_by or None,
            *([", ".join(c.tags) or None] if several else []),
        )
        for branch, c in found
    ]
    names = heads(
        f"snapshot: number | {'branch | ' if several else ''}committed: utc | kind | operation | changed rows | "
        f"stored rows: number | stored change: number | schema: number | user: name | approved by: name"
        f"{' | tags: name' if several else ''}"
    )
    help = {
        "changed rows": "For a publish by the diff before it, for a statement by its own count",
        "stored rows": STORED_ROWS,
        "stored change": "How the commit changed the stored rows",
    }
    return Listing(title="snapshots", columns=names, rows=rows, help=help)
