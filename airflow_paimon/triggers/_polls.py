"""The poll of a branch that triggers share, and the connection that it is made with."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_paimon._compat import AirflowNotFoundException, BaseHook
from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.hooks.paimon import PaimonHook

if TYPE_CHECKING:
    from airflow.sdk import Connection

    # A DAG file that holds a trigger imports this module: it must not load the stores.
    from airflow_paimon.core.format.snapshot import Snapshot
    from airflow_paimon.core.table.new_snapshots import BranchFeed
    from airflow_paimon.core.table.new_snapshots_plan import Cursor, NewSnapshot

log = logging.getLogger(__name__)

_MOST = 500
"""Snapshots that one look gives a trigger: Airflow ends one that takes longer than five minutes over a look."""


@dataclass(slots=True)
class BranchPoll:
    """One look at a branch, for all triggers that share the poll. ``is_persisted``: its events are in the database."""

    feed: BranchFeed
    head: Snapshot | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_persisted: bool = False

    async def new_snapshots(self, cursor: Cursor) -> AsyncIterator[NewSnapshot]:
        """Give what is new, at most some hundreds, read in a thread: the triggerer's loop never waits for storage."""
        found = self.feed.since(cursor)

        def step() -> NewSnapshot | None:
            with self.lock:
                return next(found, None)

        for _ in range(_MOST):
            new = await asyncio.to_thread(step)
            if new is None:
                return
            yield new


async def poll_branch(arguments: Mapping[str, Any]) -> AsyncIterator[BranchPoll]:
    """BranchPoll at a branch for ever. What fails, storage or a table that isn't there yet, is looked at again."""
    from airflow_paimon.core.table.new_snapshots import BranchFeed

    feed: BranchFeed | None = None
    lock, reported = threading.Lock(), ""

    def look(feed: BranchFeed) -> BranchPoll:
        with lock:
            return BranchPoll(feed, feed.look(), lock)

    while True:
        try:
            if feed is None:
                hook = await connected_hook(arguments["paimon_conn_id"])
                view = await asyncio.to_thread(hook.get_table, arguments["table"], arguments["branch"])
                feed = BranchFeed(hook.keeping_manifests(view))
            found = await asyncio.to_thread(look, feed)
        except PaimonError as error:
            feed = None
            if error.message != reported:
                log.warning("%s, branch %s: %s; checking again every %s s", arguments["table"], arguments["branch"],
                            error.message, arguments["poke_interval"])  # fmt: skip
                reported = error.message
        else:
            reported = ""
            yield found
        await asyncio.sleep(arguments["poke_interval"])


async def connection_of(conn_id: str) -> Connection:
    """Return a connection. ``InvalidInputError`` when there is none of that name."""
    try:
        return await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException:
        raise InvalidInputError(f"There is no Airflow connection {conn_id!r}") from None


async def connected_hook(paimon_conn_id: str) -> PaimonHook:
    """Return a hook that threads may use. ``InvalidInputError`` when there is no such connection."""
    hook = PaimonHook(paimon_conn_id, connection=await connection_of(paimon_conn_id))
    # The options are read here and kept: masking their secrets talks to the supervisor, which a thread must not.
    hook.storage_options  # noqa: B018
    return hook
