"""Requests of the expiries of snapshots and tags."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_paimon.core.requests.base import Request, flag

GRACE, LEAST_GRACE, RETRY_WINDOW = "1 h", "10 min", "1 d"


@dataclass(frozen=True, kw_only=True)
class Expiry(Request):
    """Fields common to both: where, how old, and how long what was taken away waits in the trash."""

    branch: str = flag("Branch to expire", "main")
    all_branches: bool = flag("Expire main and every branch", False)
    older_than: str | None = flag("An age, e.g. '7 d', or an ISO time with an offset")
    grace: str = flag(
        "How long files stay after their snapshot or tag has expired, for whoever began to read or tag it before; at "
        f"least {LEAST_GRACE!r}",
        GRACE,
    )
    writers_stopped: bool = flag(
        "Nobody writes, reads, tags or makes branches: allows a shorter --grace, '0 s' for none", False
    )


@dataclass(frozen=True, kw_only=True)
class ExpireSnapshots(Expiry):
    operation = "expire_snapshots"
    retain_min: int | None = flag(
        "The newest snapshots that always stay; by default the option snapshot.num-retained.min (10)", minimum=1
    )
    retain_max: int | None = flag(
        "The most snapshots that stay, whatever their age; by default the option snapshot.num-retained.max", minimum=1
    )
    max_deletes: int | None = flag("The most snapshots of a branch that expire in one run", minimum=1)
    keep_undo: bool = flag("Keep the snapshots that the undo of a publish needs, while its undo tag lives", True)
    retry_window: str = flag(
        "Keep the snapshots in which a retry of an operation, or of a stream's batch, looks for its commit, for those "
        "this young",
        RETRY_WINDOW,
    )


@dataclass(frozen=True, kw_only=True)
class ExpireTags(Expiry):
    operation = "expire_tags"
    prefix: str | None = flag("Only tags whose name begins with this")
    include_unlimited: bool = flag(
        "With --older-than: also tags without a retention, by the age of the tag's file", False
    )
