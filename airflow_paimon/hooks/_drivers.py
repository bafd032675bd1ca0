"""Drivers that run in a cluster: how to ask for the state of one, and how to end it, by the cluster's own interface."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Protocol

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.hooks._kubernetes import Pods
from airflow_paimon.hooks._yarn import ResourceManager

_CONNECT_SECONDS = 5.0
ENDED_STATES = frozenset({"FINISHED", "KILLED", "FAILED", "Succeeded", "Failed"})
"""The states of YARN and of Kubernetes in which a driver has ended."""
GONE = "unknown to the cluster"


class Driver(Protocol):
    """One driver in a cluster."""

    @property
    def id(self) -> str:
        """The cluster's name for it."""

    def state(self) -> str:
        """Return the cluster's word for the state, ``GONE`` when it knows of no such driver.

        Raises ``OSError`` or ``RuntimeError`` when the cluster gives no answer, ``PaimonError`` when it refuses to.
        """

    def kill(self) -> None:
        """Ask the cluster to end it. Raises as :meth:`state` does."""

    def ending(self, state: str) -> str:
        """Return the state that it ended in, and why as far as the cluster tells. Raises as :meth:`state` does."""

    def log(self) -> list[str]:
        """Return the last lines of its log, none where the cluster doesn't hand them out. Raises as :meth:`state`."""


@dataclass(frozen=True, slots=True)
class YarnDriver:
    """An application of YARN."""

    manager: ResourceManager
    id: str

    def state(self) -> str:
        """Return the application's state."""
        return self.manager.state(self.id) or GONE

    def kill(self) -> None:
        """Kill the application."""
        self.manager.kill(self.id)

    def ending(self, state: str) -> str:
        """Return the state."""
        return state

    def log(self) -> list[str]:
        """Return nothing."""
        return []


@dataclass(frozen=True, slots=True)
class KubernetesDriver:
    """A driver's pod."""

    pods: Pods
    id: str

    def state(self) -> str:
        """Return the pod's phase."""
        return self.pods.phase(self.id) or GONE

    def kill(self) -> None:
        """Delete the pod."""
        self.pods.delete(self.id)

    def ending(self, state: str) -> str:
        """Return the phase with what the pod tells of its end."""
        said = self.pods.ending(self.id)
        return state if said is None else f"{state}: {said}"

    def log(self) -> list[str]:
        """Return the end of the pod's log."""
        return self.pods.log(self.id)


def check_masters(conn_id: str, master: str) -> None:
    """Check that a standalone master takes connections, as ``spark-submit`` tries those that don't for minutes.

    Raises:
        PaimonError: none does; names the Spark connection and the addresses.
    """
    faults = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            return  # Spark says what is wrong with it
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            faults.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise PaimonError(
        f"Spark connection {conn_id!r}: no Spark master takes a connection ({'; '.join(faults)}), so nothing was "
        f"submitted. Check Host and Port in the connection, that the master runs, and that this machine reaches it"
    )
