"""Replays that were made of a table's rows: by the records in the folders of the tables that they wrote."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.store.base import read_existing
from airflow_paimon.core.store.threads import map_parallel
from airflow_paimon.core.streaming.replays import ReplayRecord
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.record_kinds import REPLAYS
from airflow_paimon.core.table.table import Table, find_tables

_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredReplay:
    """``table`` was written by a replay that read the source, as ``source``, from ``snapshot`` on."""

    table: str
    source: str
    snapshot: int


def replays_of(source: Table) -> tuple[list[DeclaredReplay], int]:
    """Return the replays that read this table, and how many tables were looked at: all of the same database.

    A record names its sources as the replay's author did; a snapshot that it started from tells which table that is.
    """
    if source.catalog is None:
        return [], 0
    main = source.branch(MAIN)
    others = [t for t in find_tables(source.catalog, source.name.partition(".")[0]) if t.name != source.name]
    records = map_parallel(_records, others, _AT_ONCE)
    known = dict[int, str | None]()
    found = set[DeclaredReplay]()
    for table, one in ((t, r) for t, some in zip(others, records, strict=True) for r in some):
        for name, start in one.starts.items():
            if start and start not in known:
                snapshot = main.find_snapshot(start)
                known[start] = snapshot.identity if snapshot is not None else None
            if start and known[start] is not None and known[start] == one.identities.get(name):
                found.add(DeclaredReplay(table=table.name, source=name, snapshot=start))
    return sorted(found, key=dataclasses.astuple), len(others)


def _records(table: Table) -> Sequence[ReplayRecord]:
    """Read the records in a table's folder; one that can't be read says nothing."""
    try:
        blobs = read_existing(table.store, REPLAYS.listed(table.store))
        return [ReplayRecord.parse(data, path) for path, data in blobs.items()]
    except PaimonError:
        return ()
