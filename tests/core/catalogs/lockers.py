"""Processes that commit to a table under its catalog's lock, or are killed while they hold it."""

from __future__ import annotations

import multiprocessing
import signal
import time
from typing import Any

from airflow_paimon import create_table, open_table
from airflow_paimon.core.catalogs.table_store import CatalogTableStore
from tests.core.tables import COLUMNS, append

_FORK = multiprocessing.get_context("fork")


def _commit_many(warehouse: str, name: str, options: dict[str, Any], count: int) -> None:
    opened = open_table(warehouse, name, storage_options=options)
    for _ in range(count):
        append(opened, "x")


def _hold_for_ever(warehouse: str, name: str, options: dict[str, Any], held: Any) -> None:
    store = open_table(warehouse, name, storage_options=options).store
    assert isinstance(store, CatalogTableStore)
    with store.guard.hold("t"):
        held.set()
        time.sleep(600)


def assert_processes_lose_nothing(warehouse: str, name: str, options: dict[str, Any]) -> None:
    table = create_table(warehouse, name, COLUMNS, partition_keys=["dt"], storage_options=options)
    racers = [_FORK.Process(target=_commit_many, args=(warehouse, name, options, 5)) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(500)
        assert racer.exitcode == 0
    assert table.snapshot_ids() == list(range(1, 21))
    assert table.snapshot(20).total_record_count == 20


def die_with_the_lock(warehouse: str, name: str, options: dict[str, Any]) -> None:
    """Let a process take the lock on a table, and kill it."""
    held = _FORK.Event()
    holder = _FORK.Process(target=_hold_for_ever, args=(warehouse, name, options, held))
    holder.start()
    assert held.wait(500)
    holder.kill()
    holder.join()
    assert holder.exitcode == -signal.SIGKILL
