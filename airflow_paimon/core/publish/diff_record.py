"""What a publish keeps of the diff that was looked at before it: totals, and a few sample rows, bounded in bytes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.publish.fold import is_folded
from airflow_paimon.core.requests.requests import DiffBranches, PublishBranch
from airflow_paimon.core.table.made_by import FULL, MASKED, record_sql, stored_bytes, truncated
from airflow_paimon.core.table.masking import Masks, masks_of
from airflow_paimon.core.table.properties import DIFF_PROPERTY
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

KINDS = ("added", "changed", "deleted")
MAX_BYTES = 8000
"""Of the property, as the snapshot's file has it."""
_MAX_PARTITIONS = 20
_MAX_SAMPLES = 10
_MAX_COLUMNS = 20
_MAX_VALUE = 100
_COUNTS = (*KINDS, "unchanged")
_COMPARED = ("against", "against_snapshot", "branch_snapshot")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDiff:
    """``properties``: what the publish's snapshot says of the diff; ``warnings``: why it says nothing of it."""

    properties: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def kept_diff(request: PublishBranch, branch: Table, theirs: Snapshot, schemas: Sequence[TableSchema]) -> KeptDiff:
    """Read the diff that a publish is given. One of another snapshot of the branch is left out, with a warning.

    ``schemas``: main's, which say what no record shows.

    Raises:
        InvalidInputError: the file is no result of ``diff_branches``, or one of another table or branch.
    """
    if request.diff is None:
        return KeptDiff()
    details = _details(request, request.diff)
    seen = details.get("branch_snapshot")
    known = SnapshotRef(seen, str(details.get("branch_identity") or "")) if isinstance(seen, int) else None
    if known is None or not (known.is_of(theirs) or is_folded(branch, theirs, known)):
        text = f"the audit does not contain the diff: it compared snapshot {seen} of the branch, not {theirs.id}"
        log.warning("%s: %s", branch.label, text)
        return KeptDiff(warnings=(text,))
    try:
        text = diff_text(details, schemas)
    except (AttributeError, KeyError, TypeError):
        raise _no_result(request) from None
    return KeptDiff(properties={DIFF_PROPERTY: text})


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


def diff_text(details: Mapping[str, Any], schemas: Sequence[TableSchema]) -> str:
    """Return what is kept of a diff's details, as JSON: as many partitions and samples as fit."""
    parts = [p for p in details.get("partitions", ()) if isinstance(p, Mapping)]
    kept: dict[str, Any] = {
        **{name: _cut(details.get(name)) for name in _COMPARED},
        "total": {name: details["total"].get(name) for name in (*_COUNTS, "unchanged_exact")},
        "partitions_differing": details.get("partitions_differing", len(parts)),
        "partitions": [],
        "samples": [],
    }
    wanted = [("partitions", _counts(p)) for p in parts[:_MAX_PARTITIONS]]
    if _keeps_samples(schemas):
        wanted += [("samples", one) for _, one in zip(range(_MAX_SAMPLES), _samples(parts, details), strict=False)]
    for name, one in wanted:
        more = {**kept, name: [*kept[name], one]}
        if stored_bytes(_json(shown_diff(more, schemas))) <= MAX_BYTES:
            kept = more
    return _json(shown_diff(kept, schemas))


def shown_diff(kept: Mapping[str, Any], schemas: Sequence[TableSchema]) -> dict[str, Any]:
    """Return a kept diff without the values of columns that the table hides now."""
    masks = masks_of(schemas)
    samples = kept["samples"] if _keeps_samples(schemas) else ()
    return {**kept, "samples": [_shown(s, masks) for s in samples]}


def _keeps_samples(schemas: Sequence[TableSchema]) -> bool:
    """Whether records show rows: not where the table says that no statement, or none with its values, is recorded, and
    no columns that are hidden instead.
    """
    how = record_sql(schemas)
    return how == FULL or (how == MASKED and bool(masks_of(schemas).columns))


def _shown(sample: Mapping[str, Any], masks: Masks) -> dict[str, Any]:
    if "row" in sample:
        return {**sample, "row": masks.row(sample["row"])}
    return {**sample, **masks.pair(sample)}


def _counts(partition: Mapping[str, Any]) -> dict[str, Any]:
    return {"partition": _cut(partition.get("partition")), **{n: partition.get(n) for n in _COUNTS}}


def _samples(parts: Sequence[Mapping[str, Any]], details: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give sample rows, in turn of each kind of each partition: few of them are to show as much as possible."""
    keys = [str(k) for k in details.get("key", ())]
    groups = [(p, kind, p.get("samples", {}).get(kind, ())) for p in parts for kind in KINDS]
    for at in range(max((len(found) for _, _, found in groups), default=0)):
        for partition, kind, found in groups:
            if at < len(found):
                yield {"partition": _cut(partition.get("partition")), "kind": kind, **_sample(kind, found[at], keys)}


def _sample(kind: str, row: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Keep the key, what has changed, and then other columns."""
    if kind != "changed":
        return {"row": _columns(row, [*(k for k in keys if k in row), *row])}
    before, after = row["before"], row["after"]
    changed = [n for n in after if before.get(n) != after[n]]
    names = [*(k for k in keys if k in after), *changed, *after]
    return {"before": _columns(before, names), "after": _columns(after, names)}


def _columns(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {n: _cut(row.get(n)) for n in list(dict.fromkeys(names))[:_MAX_COLUMNS]}


def _cut(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and isfinite(value)):
        return value
    return truncated(value if isinstance(value, str) else _json(value), _MAX_VALUE)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
