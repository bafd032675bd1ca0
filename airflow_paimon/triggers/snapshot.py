"""What an ``AssetWatcher`` watches a table with, and what waits until a branch has caught up."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_paimon import settings
from airflow_paimon._compat import AirflowRuntimeError
from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.core.table.new_snapshots_plan import (
    DEFAULT_KINDS,
    Cursor,
    NewSnapshot,
    SnapshotFilter,
    parse_filter,
)
from airflow_paimon.core.table.paths import MAIN, parse_identifier
from airflow_paimon.triggers._polls import BranchPoll, poll_branch
from airflow_paimon.triggers.waits import SensorTrigger, event, serialized

__all__ = ["PaimonSnapshotTrigger", "SnapshotCatchUpTrigger"]

_STATE_KEY = "airflow_paimon.seen."


class SnapshotCatchUpTrigger(SensorTrigger):
    """
    Fires once when a branch has caught up, as the trigger of ``SnapshotCatchUpSensor`` does.

    :param table: the table, ``db.table``
    :param branch: the branch that has to catch up
    :param condition: a :class:`~airflow_paimon.core.streaming.catch_up.CatchUpCondition` as JSON
    :param paimon_conn_id: connection of type ``paimon``
    :param poke_interval: seconds between two polls
    """

    def __init__(
        self, *, table: str, branch: str, condition: Mapping[str, Any], paimon_conn_id: str, poke_interval: float = 60.0
    ) -> None:
        super().__init__(
            check="airflow_paimon.sensors.snapshot:check_caught_up",
            condition={"table": table, "branch": branch, "condition": dict(condition)},
            paimon_conn_id=paimon_conn_id,
            poll_interval=poke_interval,
        )


class PaimonSnapshotTrigger(BaseEventTrigger):
    """
    Sends an event for each new snapshot of a branch, of any engine: for an ``AssetWatcher``.

    The event's payload: ``{"table", "branch", "snapshot_id", "previous_snapshot_id", "commit_kind", "commit_user",
    "commit_time", "watermark", "rows", "partitions", "expired", "rolled_back"}``, in the asset event's extra under
    ``payload``; times are epoch milliseconds, ``rows`` physical ones that the commit added, ``partitions`` those of the
    argument that it wrote (None without it). Snapshots that expired before the trigger
    saw them are reported in the event of the next one (``expired``: the first and last id); after a rollback by another
    engine ``rolled_back`` is the newest id that was seen before it. Events with either are given whatever the filters
    say, because the missing snapshots can't be checked against them.

    The first poll only notes where the branch is. From Airflow 3.3 on what was seen is kept in the asset's state store,
    once its events are in the database, so none is lost when the triggerer stops; an event may come twice then. All
    triggers of one branch with the same connection and ``poke_interval`` share one poll. Earlier versions have neither:
    each trigger polls by itself, and what is committed while no triggerer runs gives no event, unless
    ``emit_head_on_start``.

    :param table: the table, ``db.table``
    :param branch: the branch to watch
    :param paimon_conn_id: connection of type ``paimon``
    :param kinds: the commit kinds that count: ``APPEND``, ``OVERWRITE``, ``COMPACT``, ``ANALYZE``
    :param partitions: only commits that wrote one of these, such as ``["dt=2025-01-01"]`` or ``["region=eu"]``
    :param watermark_step: only the first snapshot whose watermark has passed another multiple of this, such as ``1 h``:
        that hour is complete
    :param poke_interval: seconds between two polls
    :param emit_head_on_start: give an event for the newest snapshot when nothing is known of what was seen before
    """

    def __init__(
        self,
        *,
        table: str,
        branch: str = MAIN,
        paimon_conn_id: str = settings.CONN_ID,
        kinds: Sequence[str] = DEFAULT_KINDS,
        partitions: Sequence[str] = (),
        watermark_step: str | None = None,
        poke_interval: float = settings.POKE_INTERVAL,
        emit_head_on_start: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no annotations here
        parse_identifier(table)
        if poke_interval <= 0:
            raise InvalidInputError(f"poke_interval must be above 0 seconds, got {poke_interval!r}")
        self.filter: SnapshotFilter = parse_filter(kinds=kinds, partitions=partitions, watermark_step=watermark_step)
        self.table = table
        self.branch = branch
        self.paimon_conn_id = paimon_conn_id
        self.watermark_step = watermark_step
        self.poke_interval = float(poke_interval)
        self.emit_head_on_start = emit_head_on_start

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        names = ("table", "branch", "paimon_conn_id", "watermark_step", "poke_interval", "emit_head_on_start")
        found = self.filter
        return serialized(self, *names, kinds=list(found.kinds), partitions=list(found.partitions))

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll alone: where Airflow has no shared streams."""
        async for one in self.filter_shared_stream(self._polls()):
            yield one

    async def _polls(self) -> AsyncIterator[BranchPoll]:
        async for poll in poll_branch(self.serialize()[1]):
            yield poll
            poll.is_persisted = True

    # -- one poll for many (Airflow 3.3) -------------------------------------------------------------------------------

    def shared_stream_key(self) -> Hashable | None:
        """Share the poll with the triggers of the same branch."""
        return (type(self).__qualname__, self.paimon_conn_id, self.table, self.branch, self.poke_interval)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
        """Poll for all of them, and note which polls have all their events in the database."""
        from airflow_paimon.triggers._shared_polls import SharedPolls

        return SharedPolls(kwargs)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[BranchPoll]) -> AsyncIterator[TriggerEvent]:
        """Give the events of this trigger's own snapshots: those that it hasn't seen and that pass its filter."""
        cursor = await self._stored()
        pending: list[tuple[BranchPoll, Cursor]] = []
        async for poll in shared_stream:
            pending = await self._store_persisted(pending)
            if cursor is None:
                first = None if poll.head is None else NewSnapshot(snapshot=poll.head)
                cursor = Cursor() if first is None else Cursor().then(first)
                if first is not None and self.emit_head_on_start:
                    yield event(self._payload(first, None))
                    pending.append((poll, cursor))
                elif not await self._store(cursor):
                    cursor = None
                continue
            before = cursor
            try:
                async for new in poll.new_snapshots(cursor):
                    if (payload := await self._judge(poll, new, cursor)) is not None:
                        yield event(payload)
                    cursor = cursor.then(new)
            except PaimonError as error:
                self.log.warning("%s, branch %s: %s; checking again", self.table, self.branch, error.message)
            if cursor != before:
                pending.append((poll, cursor))

    async def _judge(self, poll: BranchPoll, new: NewSnapshot, cursor: Cursor) -> dict[str, Any] | None:
        wanted = self.filter.partitions
        touched = list(await asyncio.to_thread(poll.feed.partitions_of, new.snapshot, wanted)) if wanted else None
        passes = self.filter.passes(new, cursor, lambda _: touched or ())
        return self._payload(new, touched) if passes else None

    def _payload(self, new: NewSnapshot, touched: Sequence[str] | None) -> dict[str, Any]:
        """Describe a snapshot, in plain JSON."""
        snapshot = new.snapshot
        return {
            "table": self.table,
            "branch": self.branch,
            "snapshot_id": snapshot.id,
            "previous_snapshot_id": new.previous,
            "commit_kind": str(snapshot.commit_kind),
            "commit_user": snapshot.commit_user,
            "commit_time": snapshot.time_millis,
            "watermark": snapshot.known_watermark,
            "rows": snapshot.delta_record_count,
            "partitions": None if touched is None else list(touched),
            "expired": None if new.expired is None else list(new.expired),
            "rolled_back": new.rolled_back,
        }

    # -- what was seen, over a restart ---------------------------------------------------------------------------------

    @property
    def _state_key(self) -> str:
        # Another filter is another reader: it must not skip what this one has seen.
        arguments = {k: v for k, v in self.serialize()[1].items() if k not in ("poke_interval", "emit_head_on_start")}
        return _STATE_KEY + hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()[:16]

    def _stores(self) -> list[Any]:
        """The state stores of the assets that this trigger serves: mostly one, none before Airflow 3.3."""
        store = getattr(self, "asset_state_store", None)
        if store is None:
            return []
        # Airflow has no public way to the stores of several assets.
        return list(getattr(store, "_by_name", {}).values()) or [store]

    async def _stored(self) -> Cursor | None:
        for store in self._stores():
            value = await store.aget(self._state_key)
            if value is not None:
                try:
                    return Cursor.from_json(value)
                except PaimonError as error:
                    self.log.warning("%s, branch %s: %s; starting again", self.table, self.branch, error.message)
        return None

    async def _store_persisted(self, pending: list[tuple[BranchPoll, Cursor]]) -> list[tuple[BranchPoll, Cursor]]:
        """Store what was seen up to the newest poll whose events are in the database; return the polls after it."""
        done = 0
        while done < len(pending) and pending[done][0].is_persisted:
            done += 1
        return pending[done:] if done and await self._store(pending[done - 1][1]) else pending

    async def _store(self, cursor: Cursor) -> bool:
        try:
            for store in self._stores():
                await store.aset(self._state_key, cursor.to_json())
        except AirflowRuntimeError as error:  # of the API server: the next poll tries again
            self.log.warning("%s, branch %s: what was seen can't be stored: %s", self.table, self.branch, error)
            return False
        return True
