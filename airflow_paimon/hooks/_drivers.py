"""Drivers that run in a cluster: how to ask for the state of one, and how to end it, by the cluster's own interface."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.hooks._kubernetes import Pods
from airflow_paimon.hooks._yarn import ResourceManager

_REQUEST_SECONDS = 30.0
_CONNECT_SECONDS = 5.0
_OVER = {
    "standalone": frozenset({"FINISHED", "KILLED", "FAILED", "ERROR"}),
    "yarn": frozenset({"FINISHED", "KILLED", "FAILED"}),
    "kubernetes": frozenset({"Succeeded", "Failed"}),
}
GONE = "unknown to the cluster"


class Driver(Protocol):
    """One driver in a cluster."""

    @property
    def id(self) -> str:
        """The cluster's name for it."""

    @property
    def cluster(self) -> str:
        """The kind of cluster: which states mean the end."""

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


def is_over(driver: Driver, state: str) -> bool:
    """Say whether a driver in this state has ended."""
    return state in _OVER[driver.cluster]


@dataclass(frozen=True, slots=True)
class StandaloneDriver:
    """A driver of a standalone cluster, by the REST interface of its masters (``spark.master.rest.enabled``)."""

    endpoints: Sequence[str]
    id: str
    cluster = "standalone"

    def state(self) -> str:
        """Return the state; of several masters the one that leads knows it."""
        found = self._ask("status", "GET")
        if found.get("success"):
            return str(found["driverState"])
        if found.get("message"):  # a master that recovers, or stands by
            raise RuntimeError(str(found["message"]).splitlines()[0])
        return GONE

    def kill(self) -> None:
        """End the driver."""
        self._ask("kill", "POST")

    def ending(self, state: str) -> str:
        """Return the state."""
        return state

    def log(self) -> list[str]:
        """Return nothing."""
        return []

    def _ask(self, what: str, method: str) -> dict[str, Any]:
        failure: OSError | None = None
        answer: dict[str, Any] | None = None
        for endpoint in self.endpoints:
            request = urllib.request.Request(f"{endpoint}/v1/submissions/{what}/{self.id}", method=method)
            try:
                with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as response:
                    answer = json.load(response)
            except urllib.error.HTTPError as error:  # it answers with one where it does not find what was asked for
                failure = error
            except OSError as error:
                failure = error
            except ValueError:
                failure = OSError(f"{endpoint} is not the REST interface of a Spark master")
            if answer is not None and answer.get("success"):
                break
        if answer is None:
            raise failure or OSError("there is no master to ask")
        return answer


@dataclass(frozen=True, slots=True)
class YarnDriver:
    """An application of YARN."""

    manager: ResourceManager
    id: str
    cluster = "yarn"

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
    cluster = "kubernetes"

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


def standalone_endpoints(connection: Mapping[str, Any]) -> list[str]:
    """Return the REST interfaces of a standalone cluster's masters, from Airflow's Spark connection."""
    return [f"{connection['rest_scheme']}://{host}" for host in _rest_hosts(connection)]


def rest_master(connection: Mapping[str, Any]) -> str:
    """Return the ``--master`` that submits through the masters' REST interface, once that has answered."""
    endpoints = standalone_endpoints(connection)
    try:
        StandaloneDriver(endpoints, "driver-0").state()
    except (OSError, RuntimeError) as error:
        raise PaimonError(
            f"No Spark master answers at {', '.join(endpoints)} ({error}). Deploy mode cluster needs the REST "
            f"interface of a standalone master: spark.master.rest.enabled=true there, and the extra rest-port in the "
            f"Spark connection where it is not 6066",
            code="no-spark-master",
        ) from None
    return "spark://" + ",".join(_rest_hosts(connection))


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


def _rest_hosts(connection: Mapping[str, Any]) -> list[str]:
    master = str(connection["master"])
    names = [address.rsplit(":", 1)[0] for address in master.removeprefix("spark://").split(",") if address]
    if not names:
        raise InvalidInputError(f"{master} names no master")
    return [f"{name}:{connection['rest_port']}" for name in names]
