"""YARN's resource manager, by its REST interface, and the tags by which a retry finds what an earlier try submitted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import requests

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.hooks._drivers import GONE, AttemptDriver, operation_tag

if TYPE_CHECKING:
    from requests.auth import AuthBase

_REQUEST_SECONDS = 30.0
_PROGRAM_SECONDS = 60
"""How long the program ``yarn`` may run: it asks a resource manager that is away for many minutes."""
_WITH_LIMIT = "import os, signal, sys; signal.alarm(int(sys.argv[1])); os.execvp(sys.argv[2], sys.argv[2:])"
"""The alarm outlasts the exec, and holds also when the task that has started it is gone."""
ADDRESS = "yarn_resourcemanager_webapp_address"
"""The extra of a Spark connection with the resource manager's address, by Airflow's name."""
_UNFINISHED = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
_RESULT_TAG = "airflow-paimon-result-"
# YARN keeps tags in lower case, of 100 characters at most.
_FITS_A_TAG = re.compile(r"[a-z0-9_.-]{1,70}")
_RESULT = re.compile(rf"(?:^|,){_RESULT_TAG}([^,]+)")
_APPLICATION = re.compile(r"application_\d+_\d+")
_PROXY = re.compile(r"tracking URL: (https?://[^/\s]+)/proxy/application_")


@dataclass(frozen=True, slots=True)
class ResourceManager:
    """The resource manager at an address such as ``http://resourcemanager:8088``.

    All methods raise ``RuntimeError`` when it gives no answer, or one that can't be understood.
    """

    url: str
    auth: AuthBase | None = None

    def state(self, driver: str) -> str:
        """Return the application's state, ``GONE`` when the resource manager knows of no such application."""
        answer = self._ask("GET", f"apps/{driver}")
        return GONE if answer is None else str(_field(answer, "app")["state"])

    def kill(self, driver: str) -> None:
        """End the application. Nothing happens to one that has ended, or that isn't known."""
        self._ask("PUT", f"apps/{driver}/state", {"state": "KILLED"})

    def log(self, driver: str) -> list[str]:
        """Return nothing: YARN hands out no logs here."""
        return []

    def drivers_of(self, request_key: str, result_name: str) -> list[AttemptDriver]:
        """Return the unfinished applications that try one request of an operation, the newest first.

        :param request_key: names the operation and its request
        :param result_name: the result of this try: those of other tries lie beside it
        """
        found = self._ask("GET", f"apps?applicationTags={operation_tag(request_key)}&states={_UNFINISHED}") or {}
        folder, slash, _ = result_name.rpartition("/")
        # Without any the list is left out.
        applications = (_field(found, "apps") or {}).get("app") or []
        return [
            AttemptDriver(str(each["id"]), str(each["state"]), f"{folder}{slash}{name}.json", each.get("trackingUrl"))
            for each in sorted(applications, key=lambda each: str(each["id"]), reverse=True)
            for name in _RESULT.findall(str(each.get("applicationTags")))
        ]

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the answer, None when what was asked for isn't known."""
        url, headers = f"{self.url}/ws/v1/cluster/{path}", {"Accept": "application/json"}
        try:
            answer = requests.request(method, url, json=body, headers=headers, auth=self.auth, timeout=_REQUEST_SECONDS)
            if answer.status_code == 404 and "NotFoundException" in answer.text:
                return None
            answer.raise_for_status()
            found = answer.json()
        except (requests.RequestException, ValueError) as error:
            raise RuntimeError(f"YARN's resource manager at {self.url} gives no answer: {error}") from error
        if not isinstance(found, dict):
            raise RuntimeError(f"{self.url} is not the address of YARN's resource manager")
        return found


class YarnSubmission:
    """An application of YARN, found by its tags.

    :param address: the resource manager's; where there is none, the one in what ``spark-submit`` prints
    :param auth: gives what logs in there
    :param ticket: logs in for Hadoop's own programs, and gives the variables by which they find the ticket
    """

    variables = "spark.yarn.appMasterEnv."
    place: Mapping[str, str | None] = {}

    def __init__(
        self,
        conn_id: str,
        address: str | None,
        auth: Callable[[], AuthBase | None],
        ticket: Callable[[], Mapping[str, str]],
        poll_seconds: float,
    ) -> None:
        self.poll_seconds = poll_seconds
        self.returns_at_once = False
        self.driver: str | None = None
        self._conn_id, self._address, self._auth, self._ticket = conn_id, address, auth, ticket
        self._tags: list[str] = []
        self._result_name = ""

    def drivers(self) -> ResourceManager:
        """Return the resource manager.

        Raises ``InvalidInputError`` where its address isn't known, or when the connection has a keytab, and there is no
        requests-kerberos to log in with.
        """
        if self._address is None:
            raise InvalidInputError(
                f"Connection {self._conn_id!r}: to wait for a job on YARN in the triggerer, set the extra {ADDRESS}, "
                f"such as http://resourcemanager:8088"
            )
        try:
            return ResourceManager(self._address, self._auth())
        except RuntimeError as error:
            raise InvalidInputError(f"Connection {self._conn_id!r}: {error}") from None

    def return_at_once(self) -> None:
        """Let ``spark-submit`` end as soon as there is an application."""
        self.drivers()
        self.returns_at_once = True

    def begin(self, request_key: str | None, result_name: str, storage_options: Mapping[str, Any] | None) -> None:
        """Begin a try."""
        self.driver, self._result_name, self._tags = None, result_name, tags_of(request_key, result_name)

    def settings(self, conf: Mapping[str, Any]) -> dict[str, str]:
        """Return the Spark settings of this try."""
        # YARN would start a driver that failed a second time, beside the task that reports the failure.
        found = {"spark.yarn.maxAppAttempts": str(conf.get("spark.yarn.maxAppAttempts", 1))}
        if tags := [*filter(None, [conf.get("spark.yarn.tags")]), *self._tags]:
            found["spark.yarn.tags"] = ",".join(tags)
        if self.returns_at_once:
            found["spark.yarn.submit.waitAppCompletion"] = "false"
        return found

    def notice(self, line: str) -> None:
        """Notice the application's id, and the address of the resource manager's pages."""
        if found := _APPLICATION.search(line):
            self.driver = found[0]
        if self._address is None and (found := _PROXY.search(line)):
            self._address = found[1]

    def submitted(self, request: Request, *, failed: bool) -> AttemptDriver | None:
        """Return the application."""
        return None if failed or self.driver is None else AttemptDriver(self.driver, "", self._result_name)

    def earlier(self, request_key: str, result_name: str) -> list[AttemptDriver]:
        """Return the applications of all tries, none where the resource manager's address isn't known."""
        if self._address is None or not tags_of(request_key, result_name):
            return []
        return self.drivers().drivers_of(request_key, result_name)

    def adopt(
        self, earlier: AttemptDriver, request_key: str, storage_options: Mapping[str, Any] | None
    ) -> AttemptDriver:
        """Take the application of an earlier try."""
        self.driver = earlier.id
        return earlier

    def kill(self) -> str | None:
        """End the application: by the program ``yarn`` where nothing here can log in at the resource manager."""
        if self.driver is None:
            return None
        try:
            self.drivers().kill(self.driver)
        except InvalidInputError as error:
            if (program := shutil.which("yarn")) is None:
                raise
            # In a session of its own: it takes seconds to start, and Airflow doesn't wait for this process so long.
            command = [sys.executable, "-I", "-S", "-c", _WITH_LIMIT, str(_PROGRAM_SECONDS), program]
            ended = subprocess.run(
                [*command, "application", "-kill", self.driver], env={**os.environ, **self._ticket()}, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                check=False,
            )  # fmt: skip
            if ended.returncode:
                said = ended.stdout.strip() or f"exit code {ended.returncode}"
                raise RuntimeError(f"{error.message}; {program} application -kill failed, too: {said}") from None
        return self.driver


def tags_of(request_key: str | None, result_name: str) -> list[str]:
    """Return the tags of one try's application; none when it has no operation id or its result no fitting name."""
    name = result_name.rpartition("/")[2].removesuffix(".json")
    if request_key is None or not result_name.endswith(".json") or not _FITS_A_TAG.fullmatch(name):
        return []
    return [operation_tag(request_key), _RESULT_TAG + name]


def _field(answer: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = answer.get(name, {})
    if not isinstance(found, dict):
        raise RuntimeError(f"YARN's resource manager answers with an unexpected {name}: {found!r}")
    return found
