"""One poll for many triggers, from Airflow 3.3 on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_paimon.triggers._polls import BranchPoll, poll_branch


class SharedPolls(SharedStreamProducer):
    """Gives every trigger each poll, and marks a poll when the events of all of them are in the database."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = dict(arguments)

    async def open_stream(self) -> AsyncIterator[tuple[BranchPoll, BranchPoll]]:
        """Poll."""
        async for poll in poll_branch(self._arguments):
            yield poll, poll

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Mark the polls. A trigger whose events were not stored has failed by now and reads nothing from here."""
        for item in batch:
            item.broker_payload.is_persisted = True
