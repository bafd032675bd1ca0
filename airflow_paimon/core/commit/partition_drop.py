"""A commit that drops partitions only if their contents have not changed since the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from airflow_paimon.core.commit.committer import CommitIdentity, Draft, Receipt, commit
from airflow_paimon.core.commit.held_partitions import names_digest
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.table.scan import live_entries, read_index
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table

_LISTED = 20


def drop_held(
    view: Table,
    expected: Mapping[str, str],
    *,
    check: Callable[[Snapshot | None], None],
    identity: CommitIdentity | None = None,
    properties: Mapping[str, str] | None = None,
    guard_options: object = None,
) -> Receipt:
    """Drop partitions in one OVERWRITE snapshot: ``expected`` gives each one's ``digest`` by its ``key``.

    Missing partitions are skipped; if all are missing, nothing is committed. ``check`` is called with every head that
    the commit may be based on, unless all are missing, and may raise. ``guard_options``: see ``Draft``.

    Raises:
        ConflictError: a partition holds other files than expected.
    """

    def draft(head: Snapshot | None) -> Draft | None:
        schema = view.schema()
        stored = StoredPartitions(schema)
        asked = stored.those(map(bytes.fromhex, expected))
        found: dict[str, list[ManifestEntry]] = {}
        for entry in live_entries(view, head, asked).values():
            found.setdefault(stored.canonical(entry.partition).hex(), []).append(entry)
        if not found:
            return None
        check(head)
        _check_unchanged(view, stored, found, expected)
        index = None
        if head is not None and head.index_manifest:
            index = [i for i in read_index(view, head) if stored.canonical(i.partition).hex() not in found]
        return Draft(
            kind=CommitKind.OVERWRITE,
            entries=[e.deleted() for entries in found.values() for e in entries],
            index_entries=index,
            schema=schema,
            properties=properties or {},
            operation=Operation.OVERWRITE,
            guard_options=guard_options,
        )

    return commit(view, draft, identity)


def _check_unchanged(
    view: Table, stored: StoredPartitions, found: Mapping[str, Sequence[ManifestEntry]], expected: Mapping[str, str]
) -> None:
    changed = sorted(
        stored.text(entries[0].partition)
        for key, entries in found.items()
        if names_digest(e.file.file_name for e in entries) != expected[key]
    )
    if changed:
        raise ConflictError(
            f"{view.label}: {len(changed)} partitions changed since the drop was planned: "
            f"{', '.join(changed[:_LISTED])}; plan again",
            table=view.name,
            details={"partitions": changed[:_LISTED]},
        )
