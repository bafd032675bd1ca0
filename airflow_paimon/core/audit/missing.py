"""Records of publishes and erasures that are missing: the process was killed right after its snapshot and never tried
again, or the record could not be put.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import PutNew
from airflow_paimon.core.publish.approval import is_read_with_main
from airflow_paimon.core.publish.audit_properties import record_path
from airflow_paimon.core.table.properties import CONDITION_PROPERTY, UNDO_TAG_PROPERTY
from airflow_paimon.core.table.record_kinds import AUDIT
from airflow_paimon.core.table.table import Table


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
