"""What a publish keeps of the diff that was looked at before it: totals and counts by partition, no rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.publish.fold import is_folded
from airflow_paimon.core.requests.requests import DiffBranches, PublishBranch
from airflow_paimon.core.table.made_by import stored_bytes, truncated
from airflow_paimon.core.table.properties import DIFF_PROPERTY
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

KINDS = ("added", "changed", "deleted")
MAX_BYTES = 8000
"""Of the property, as the snapshot's file has it."""
_MAX_PARTITIONS = 20
_MAX_VALUE = 100
_COUNTS = (*KINDS, "unchanged")
_COMPARED = ("against", "against_snapshot", "branch_snapshot")


def diff_properties(request: PublishBranch, branch: Table, theirs: Snapshot) -> tuple[dict[str, str], list[str]]:
    """Return what the publish's snapshot says of the diff that the publish is given, and warnings. A diff of another
    snapshot of the branch is left out, with a warning.

    Raises:
        InvalidInputError: the file is no result of ``diff_branches``, or one of another table or branch.
    """
    if request.diff is None:
        return {}, []
    details = _details(request, request.diff)
    seen = details.get("branch_snapshot")
    known = SnapshotRef(seen, str(details.get("branch_identity") or "")) if isinstance(seen, int) else None
    if known is None or not (known.is_of(theirs) or is_folded(branch, theirs, known)):
        text = f"the audit does not contain the diff: it compared snapshot {seen} of the branch, not {theirs.id}"
        log.warning("%s: %s", branch.label, text)
        return {}, [text]
    try:
        text = diff_text(details)
    except (AttributeError, KeyError, TypeError):
        raise _no_result(request) from None
    return {DIFF_PROPERTY: text}, []


def _details(request: PublishBranch, path: str) -> Mapping[str, Any]:
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{request.table}: diff (--diff) {path!r} can't be read as JSON: {error}") from None
    details = found.get("details") if isinstance(found, dict) else None
    if not isinstance(details, dict) or found.get("operation") != DiffBranches.operation:
        raise _no_result(request)
    about = (found.get("table"), details.get("branch"))
    if about != (request.table, request.branch):
        raise InvalidInputError(
            f"{request.table}: diff (--diff) {path!r} is of branch {about[1]!r} of {about[0]}, not of "
            f"{request.branch!r}; compare the branch that is published"
        )
    return details


def _no_result(request: PublishBranch) -> InvalidInputError:
    return InvalidInputError(
        f"{request.table}: diff (--diff) {request.diff!r} is not a result of diff_branches; run diff_branches "
        "--result-uri to write it"
    )


def diff_text(details: Mapping[str, Any]) -> str:
    """Return what is kept of a diff's details, as JSON: as many partitions as fit."""
    parts = [p for p in details.get("partitions", ()) if isinstance(p, Mapping)]
    kept: dict[str, Any] = {
        **{name: _cut(details.get(name)) for name in _COMPARED},
        "total": {name: details["total"].get(name) for name in (*_COUNTS, "unchanged_exact")},
        "partitions_differing": details.get("partitions_differing", len(parts)),
        "partitions": [],
    }
    for part in parts[:_MAX_PARTITIONS]:
        counts = {"partition": _cut(part.get("partition")), **{n: part.get(n) for n in _COUNTS}}
        more = {**kept, "partitions": [*kept["partitions"], counts]}
        if stored_bytes(_json(more)) <= MAX_BYTES:
            kept = more
    return _json(kept)


def _cut(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and isfinite(value)):
        return value
    return truncated(value if isinstance(value, str) else _json(value), _MAX_VALUE)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
