"""Findings about this package's own files: those that can't be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from airflow_paimon.core.commit.idempotency import AttemptRecord, KeptResult
from airflow_paimon.core.commit.stream_batch import BatchRecord
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.records import RecordKind, is_record
from airflow_paimon.core.format.snapshot import load_json_object, parse_snapshot
from airflow_paimon.core.metadata_expiry.references import has_all_metadata
from airflow_paimon.core.metadata_expiry.root_values import HOLD, Root, TrashEntry
from airflow_paimon.core.partition_expiry.drop_run import ExpiryPlan
from airflow_paimon.core.plan import Delete
from airflow_paimon.core.publish.hold import Hold
from airflow_paimon.core.requests.findings import WARNING, Finding
from airflow_paimon.core.rules.results import CheckRecord
from airflow_paimon.core.store.base import read_existing
from airflow_paimon.core.streaming.replays import ReplayRecord
from airflow_paimon.core.table.branch_record import BranchRecord
from airflow_paimon.core.table.paths import MANIFEST_DIR, PRIVATE_DIR
from airflow_paimon.core.table.record_kinds import AUDIT, CHAIN, ERASURES, MARKS, OPERATIONS
from airflow_paimon.core.table.table import Table

_RECORDS = (
    AttemptRecord, KeptResult, ExpiryPlan, CheckRecord, BatchRecord, ReplayRecord, Hold, TrashEntry, BranchRecord,
)  # fmt: skip
_PARSERS: Mapping[RecordKind, Callable[[bytes, str], object]] = {
    **{record.KIND: record.parse for record in _RECORDS},
    AUDIT: parse_snapshot,
    CHAIN: load_json_object,
    ERASURES: load_json_object,
}


def unreadable_records(table: Table) -> Iterator[Finding]:
    """Find the files that are damaged, and holds of what is. None is repaired unasked: some are the only proof of what
    was done.
    """
    for kind, parse in _PARSERS.items():
        for path, data in read_existing(table.store, list(filter(is_record, table.store.walk(kind.folder)))).items():
            fault = _fault(table, path, data, parse)
            if fault is None:
                continue
            name = path.removeprefix(f"{PRIVATE_DIR}/")
            actions = [Delete(path=path, expected=data, reason="it is unreadable")] if "delete" in kind.way_out else []
            if kind is OPERATIONS:  # a mark without its record would void the next record of that id
                mark = f"{MARKS.folder}/{name.partition('/')[2].removesuffix('.json')}"
                actions.insert(0, Delete(path=mark, reason="the mark of an unreadable record"))
            yield Finding(
                kind="unreadable-record",
                subject=name,
                severity=WARNING,
                message=fault,
                at_risk=kind.at_risk,
                repair="delete it" if actions else None,
                actions=tuple(actions),
                by_name_only=True,
            )


def _fault(table: Table, path: str, data: bytes, parse: Callable[[bytes, str], object]) -> str | None:
    try:
        record = parse(data, f"{table.name}: {path}")
    except PaimonError as error:
        return error.message
    if not isinstance(record, Hold):
        return None
    root = Root(kind=HOLD, branch=record.branch, name=path, path=path, data=data, snapshot=record.snapshot)
    if has_all_metadata(table, root, set(table.store.names(MANIFEST_DIR))):
        return None
    return (
        f"{table.name}: {path} keeps snapshot {record.snapshot.id} of branch {record.branch!r} for a publish or "
        "rollback that is running or was killed, and manifests of it are missing"
    )
