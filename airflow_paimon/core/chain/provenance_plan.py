"""The provenance record of a partition of the snapshot branch, its inputs; and which records can go. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_paimon.core.chain.layout import Values

ASSUMED = "assumed"
"""Origin of records that were not written when the partition was built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One input: a partition and the ``files_digest`` of its files.

    ``vectors``: the digest of its deletion vectors (see ``vectors_digests``), "" without any; None: not recorded.
    """

    values: Values
    files: str
    vectors: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """``files`` is the digest of the built partition's files; ``snapshots`` the ids read, by branch name.

    ``identities``: the read snapshots' identities, by branch name: after a rollback another one may get the same id.
    ``origin``: the operation that built the partition, or ``ASSUMED`` if another engine built it: then the inputs are
    those that existed when one of its deltas was about to be overwritten, so that the overwrite makes it stale.
    """

    values: Values
    files: str
    anchor: Part | None
    deltas: tuple[Part, ...]
    snapshots: Mapping[str, int | None]
    origin: str
    created_at: str
    identities: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_proven(self) -> bool:
        """Whether the record was written when the partition was built."""
        return self.origin != ASSUMED


KEPT_FOR = timedelta(days=7)
"""A younger record may belong to a commit that is not committed yet, or be needed again after a rollback."""
_SPARE = 32


def has_too_many(records: int, partitions: int) -> bool:
    """Return whether there are so many records that pruning them pays off."""
    return records > 2 * partitions + _SPARE


def superfluous(
    records: Mapping[str, Provenance], live: Mapping[Values, str], deltas: Set[Values], now: datetime
) -> list[str]:
    """Return the keys of the records to delete. ``live``: the files digest of each partition of the snapshot branch.

    Kept are: records of live files; all records of a live partition without a record of its live files (compaction may
    have rewritten them); records of dropped anchors through which live partitions can be rebuilt; and young records.
    """
    by_part = {(r.values, r.files): key for key, r in records.items()}
    matched = {r.values for r in records.values() if live.get(r.values) == r.files}
    keep = {
        key
        for key, r in records.items()
        if live.get(r.values) == r.files or (r.values in live and r.values not in matched) or _is_young(r, now)
    }
    waiting = list(keep)
    while waiting:
        anchor = records[waiting.pop()].anchor
        key = None if anchor is None else by_part.get((anchor.values, anchor.files))
        if key is not None and key not in keep and all(d.values in deltas for d in records[key].deltas):
            keep.add(key)
            waiting.append(key)
    return [key for key in records if key not in keep]


def _is_young(record: Provenance, now: datetime) -> bool:
    try:
        return datetime.fromisoformat(record.created_at) > now - KEPT_FOR
    except (ValueError, TypeError):
        return True
