"""Which versions of a table set expire. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from airflow_paimon.core.table.table_set import TableSet


def expired_versions(ended: Sequence[TableSet], *, keep: int, retained_ms: int, now_ms: int) -> list[TableSet]:
    """Choose from the numbers that have ended, ascending.

    The newest ``keep`` versions stay. An older one stays for ``retained_ms`` from when the next one took its place, not
    from when it was made: who began to read the newest version has as long to finish. The greatest number stays, so
    that none is given twice; a number that was given up goes by its age.
    """
    versions = [one for one in ended if one.abandoned is None]
    replaced = {one.number: following.created_ms for one, following in pairwise(versions)}
    kept = {one.number for one in versions[max(len(versions) - keep, 0) :]}
    kept |= {one.number for one in ended[-1:]}
    since = {one.number: replaced.get(one.number, one.created_ms) for one in ended}
    return [one for one in ended if one.number not in kept and since[one.number] < now_ms - retained_ms]
