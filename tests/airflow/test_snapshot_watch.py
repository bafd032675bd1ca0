"""The trigger of an AssetWatcher, run by the code with which Airflow's triggerer shares streams."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.shared_stream import SharedStreamManager

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.triggers.snapshot import PaimonSnapshotTrigger
from tests.core.tables import append, make_table, rewrite, run

pytestmark = pytest.mark.airflow


@dataclass
class StateStore:
    """An asset's state store: what outlives a triggerer."""

    values: dict[str, Any] = field(default_factory=dict)

    async def aget(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = value


@dataclass
class Triggerer:
    """Runs triggers as the triggerer does. ``stores``: whether it gets to putting the events into the database."""

    events: list[dict[str, Any]] = field(default_factory=list)
    stores: bool = True
    confirm: dict[int, Callable[[], None]] = field(default_factory=dict)
    """By snapshot: put its event into the database after all."""

    async def drive(self, manager: SharedStreamManager, number: int, trigger: PaimonSnapshotTrigger) -> None:
        key = trigger.shared_stream_key()
        assert key is not None
        stream = manager.subscribe(trigger_id=number, trigger=trigger, key=key)
        async for event in trigger.filter_shared_stream(stream):
            seq = manager.bind_pending_event(trigger_id=number, key=key)
            self.events.append(event.payload)
            if seq is None:
                continue
            self.confirm[event.payload["snapshot_id"]] = partial(manager.confirm_persisted, [seq])
            if self.stores:
                asyncio.get_running_loop().call_later(0.01, manager.confirm_persisted, [seq])


@asynccontextmanager
async def running(*triggers: PaimonSnapshotTrigger, stores: bool = True) -> AsyncIterator[Triggerer]:
    """A triggerer until it is killed: nothing of it is left but the state stores."""
    triggerer, manager = Triggerer(stores=stores), SharedStreamManager()
    tasks = [asyncio.create_task(triggerer.drive(manager, n, t)) for n, t in enumerate(triggers)]
    try:
        yield triggerer
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await manager.stop_all()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(12_000):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("not within ten minutes")


def watch(store: StateStore | None, **arguments: Any) -> PaimonSnapshotTrigger:
    trigger = PaimonSnapshotTrigger(table="d.t", poke_interval=0.1, **arguments)
    # As the triggerer makes them: from what is in the database.
    path, serialized = trigger.serialize()
    assert path == "airflow_paimon.triggers.snapshot.PaimonSnapshotTrigger"
    made = PaimonSnapshotTrigger(**serialized)
    made.asset_state_store = store  # type: ignore[assignment]
    return made


def ids(triggerer: Triggerer) -> list[int]:
    return [event["snapshot_id"] for event in triggerer.events]


def test_no_snapshot_is_lost_over_restarts_and_each_comes_once(warehouse: Path) -> None:
    table, store = make_table(warehouse), StateStore()
    append(table, "1")

    async def life() -> None:
        async with running(watch(store)) as first:
            await until(lambda: bool(store.values))
            append(table, "1", rows=3)
            append(table, "2")
            await until(lambda: ids(first) == [2, 3])
            await until(lambda: next(iter(store.values.values()))["snapshots"][-1][0] == 3)
        assert first.events[0] == {
            "table": "d.t",
            "branch": "main",
            "snapshot_id": 2,
            "previous_snapshot_id": 1,
            "commit_kind": "APPEND",
            "commit_user": table.snapshot(2).commit_user,
            "commit_time": table.snapshot(2).time_millis,
            "watermark": None,
            "rows": 3,
            "partitions": None,
            "expired": None,
            "rolled_back": None,
        }
        append(table, "3")
        append(table, "3")
        async with running(watch(store)) as second:
            await until(lambda: ids(second) == [4, 5])

    asyncio.run(life())


def test_events_that_did_not_get_into_the_database_come_again(warehouse: Path) -> None:
    table, store = make_table(warehouse), StateStore()
    append(table, "1")

    async def life() -> None:
        async with running(watch(store), stores=False) as first:
            await until(lambda: bool(store.values))
            append(table, "1")
            await until(lambda: ids(first) == [2])
            append(table, "1")  # the trigger goes on, but nothing says that the first event is stored
            await until(lambda: ids(first) == [2, 3])
            await asyncio.sleep(0.5)
        async with running(watch(store)) as second:
            await until(lambda: ids(second) == [2, 3])

    asyncio.run(life())


def test_only_what_is_in_the_database_counts_as_seen(warehouse: Path) -> None:
    table, store = make_table(warehouse), StateStore()
    append(table, "1")

    async def life() -> None:
        async with running(watch(store), stores=False) as first:
            await until(lambda: bool(store.values))
            for snapshot in (2, 3, 4):
                append(table, "1")
                await until(lambda snapshot=snapshot: ids(first)[-1:] == [snapshot])
            first.confirm[2]()
            await until(lambda: stored() > 1)
            append(table, "1")
            await until(lambda: ids(first) == [2, 3, 4, 5])
            assert stored() == 2
        async with running(watch(store)) as second:
            await until(lambda: ids(second) == [3, 4, 5])

    def stored() -> int:
        (seen,) = store.values.values()
        newest: int = seen["snapshots"][-1][0]
        return newest

    asyncio.run(life())


def test_watchers_of_one_branch_share_a_poll_and_have_filters_of_their_own(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_paimon.core.table.new_snapshots import BranchFeed

    table = make_table(warehouse)
    append(table, "1")
    run(table, "create_branch", branch="fix", snapshot=1)
    opened, make = [], BranchFeed.__init__
    monkeypatch.setattr(
        BranchFeed, "__init__", lambda self, view: (opened.append(view.branch_name), make(self, view))[1]
    )
    stores = [StateStore() for _ in range(4)]
    triggers = [
        watch(stores[0]),
        watch(stores[1], kinds=["COMPACT"]),
        watch(stores[2], partitions=["dt=2"]),
        watch(stores[3], branch="fix"),
    ]

    async def life() -> None:
        async with running(*triggers) as triggerer:
            await until(lambda: all(store.values for store in stores))
            append(table, "2")
            rewrite(table, "2", kind=CommitKind.COMPACT)
            append(table, "3")
            append(table.branch("fix"), "2")
            await until(lambda: len(triggerer.events) == 5)
            found = [(e["branch"], e["snapshot_id"], e["partitions"]) for e in triggerer.events]
            assert sorted(found, key=str) == [
                ("fix", 2, None), ("main", 2, None), ("main", 2, ["dt=2"]), ("main", 3, None), ("main", 4, None),
            ]  # fmt: skip

    asyncio.run(life())
    assert sorted(opened) == ["fix", "main"]


def test_it_waits_for_a_table_that_is_not_there_yet_and_starts_with_its_first_snapshot(warehouse: Path) -> None:
    store = StateStore()

    async def life() -> None:
        async with running(watch(store)) as triggerer:
            await asyncio.sleep(0.3)
            assert not store.values
            table = make_table(warehouse)
            await until(lambda: bool(store.values))
            append(table, "1")
            await until(lambda: ids(triggerer) == [1])

    asyncio.run(life())


def test_without_a_state_store_it_starts_at_the_head_or_tells_it(warehouse: Path) -> None:
    """Before Airflow 3.3 there is neither a store nor a shared stream: ``run`` polls."""
    table = make_table(warehouse)
    append(table, "1")
    append(table, "1")

    async def first(trigger: PaimonSnapshotTrigger) -> list[int]:
        found = []
        async for event in trigger.run():
            found.append(event.payload["snapshot_id"])
            if len(found) == 2:
                break
            append(table, "1")
        return found

    async def life() -> None:
        assert await first(watch(None, emit_head_on_start=True)) == [2, 3]
        waiting = asyncio.create_task(first(watch(None)))
        for _ in range(600):  # nothing tells when it has taken its first look, after which it misses none
            append(table, "1")
            done, _ = await asyncio.wait([waiting], timeout=1)
            if done:
                break
        one, two = await asyncio.wait_for(waiting, 300)
        assert one > 3 and two == one + 1

    asyncio.run(life())


@pytest.mark.parametrize(
    "arguments", [{"table": "t"}, {"kinds": ["DELETE"]}, {"poke_interval": 0}, {"watermark_step": "soon"}]
)
def test_what_can_not_be_watched_is_refused_when_the_dag_is_parsed(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        PaimonSnapshotTrigger(**{"table": "d.t", **arguments})
