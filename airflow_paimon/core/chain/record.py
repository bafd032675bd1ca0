"""The provenance record of a partition of the snapshot branch: what it was built from. A value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_paimon.core.chain.layout import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One input: a partition and the ``files_digest`` of what it held.

    ``vectors``: what identifies its deletion vectors (see ``vectors_digests``), "" without any; None: not recorded.
    """

    values: Values
    files: str
    vectors: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """``files`` is the digest of the built partition's files; ``snapshots`` the ids read, by branch name.

    ``identities``: the read snapshots' identities, by branch name: after a rollback another one may get the same id.
    ``origin``: the operation that built the partition, or ``assumed`` for one that another engine built and that was
    there, built from whatever its deltas held, when one of them was about to be overwritten.
    """

    values: Values
    files: str
    anchor: Part | None
    deltas: tuple[Part, ...]
    snapshots: Mapping[str, int | None]
    origin: str
    created_at: str
    identities: Mapping[str, str] = field(default_factory=dict)
