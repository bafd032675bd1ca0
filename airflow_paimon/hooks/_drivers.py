"""Drivers that run in a cluster: how to ask for the state of one, and how to end it, by the cluster's own interface."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

ENDED_STATES = frozenset({"FINISHED", "KILLED", "FAILED", "Succeeded", "Failed"})
"""The states of YARN and of Kubernetes in which a driver has ended."""
GONE = "unknown to the cluster"


@dataclass(frozen=True, slots=True)
class AttemptDriver:
    """A driver that some try of an operation has in a cluster, as the cluster says it.

    ``state``: the cluster's word for it. ``result_name``: the file that its result will be in. ``url``: its page.
    ``files``: the folder of its uploads.
    """

    id: str
    state: str
    result_name: str
    url: str | None = None
    files: str | None = None


class Drivers(Protocol):
    """The drivers of a cluster, by their names in it.

    All methods raise ``OSError`` or ``RuntimeError`` when the cluster gives no answer, ``PaimonError`` when it refuses
    one.
    """

    def state(self, driver: str) -> str:
        """Return the cluster's word for the state, after the end with why (``Failed: OOMKilled``) as far as the cluster
        tells; ``GONE`` when it knows of no such driver.
        """

    def kill(self, driver: str) -> None:
        """Ask the cluster to end it. Nothing happens to one that has ended, or that isn't known."""

    def log(self, driver: str) -> list[str]:
        """Return the last lines of its log, none where the cluster doesn't hand them out."""


def has_ended(state: str) -> bool:
    """Say whether a driver in this state has ended, by what ``Drivers.state`` returned."""
    return state.partition(":")[0] in ENDED_STATES


def operation_tag(request_key: str) -> str:
    """Return the tag or label of the drivers that try one request of an operation."""
    return "airflow-paimon-" + hashlib.sha256(request_key.encode()).hexdigest()[:32]
