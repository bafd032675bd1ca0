"""The provenance record of a partition of the snapshot branch: its inputs. A value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_paimon.core.chain.layout import Values


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
    ``origin``: the operation that built the partition, or ``assumed`` if another engine built it: then the inputs are
    those that existed when one of its deltas was about to be overwritten.
    """

    values: Values
    files: str
    anchor: Part | None
    deltas: tuple[Part, ...]
    snapshots: Mapping[str, int | None]
    origin: str
    created_at: str
    identities: Mapping[str, str] = field(default_factory=dict)
