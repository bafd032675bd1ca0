"""YARN's resource manager, by its REST interface, and the tags by which a retry finds what an earlier try submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import requests

from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.hooks._drivers import GONE, AttemptDriver, operation_tag

if TYPE_CHECKING:
    from requests.auth import AuthBase

_REQUEST_SECONDS = 30.0
ADDRESS = "yarn_resourcemanager_webapp_address"
"""The extra of a Spark connection with the resource manager's address, by Airflow's name."""
_UNFINISHED = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
_RESULT_TAG = "airflow-paimon-result-"
# YARN keeps tags in lower case, of 100 characters at most.
_FITS_A_TAG = re.compile(r"[a-z0-9_.-]{1,70}")
_RESULT = re.compile(rf"(?:^|,){_RESULT_TAG}([^,]+)")
_APPLICATION = re.compile(r"application_\d+_\d+")


@dataclass(frozen=True, slots=True)
class ResourceManager:
    """The resource manager at an address such as ``http://resourcemanager:8088``.

    All methods raise ``RuntimeError`` when it gives no answer, or one that can't be understood, ``PaimonError`` when it
    refuses one.
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
            if answer.status_code in (401, 403):
                raise PaimonError(
                    f"YARN's resource manager at {self.url} refuses to answer ({answer.status_code} {answer.reason}): "
                    f"Kerberos needs requests-kerberos, and a ticket or the connection's keytab"
                )
            answer.raise_for_status()
            found = answer.json()
        except PaimonError:
            raise
        except Exception as error:  # also those of the libraries that log in
            raise RuntimeError(f"YARN's resource manager at {self.url} gives no answer: {error}") from error
        if not isinstance(found, dict):
            raise RuntimeError(f"{self.url} is not the address of YARN's resource manager")
        return found


def kerberos_login(keytab: str | None, principal: str | None) -> AuthBase | None:
    """Return what logs in where Kerberos is asked for: by the keytab, else by the ticket that this process has."""
    try:
        kerberos, spnego = import_module("requests_kerberos"), import_module("spnego")
    except ImportError:
        if keytab:
            raise InvalidInputError(
                "To log in at YARN with a keytab install requests-kerberos on the workers and triggerers"
            ) from None
        return None
    # By its default it refuses the answers of a resource manager that needs no login.
    login: AuthBase = kerberos.HTTPKerberosAuth(
        mutual_authentication=kerberos.OPTIONAL, principal=spnego.KerberosKeytab(keytab, principal) if keytab else None
    )
    return login


class YarnSubmission:
    """An application of YARN, found by its tags.

    :param drivers: the resource manager
    """

    poll_seconds = 5.0
    variables = "spark.yarn.appMasterEnv."
    place: Mapping[str, str | None] = {}

    def __init__(self, drivers: ResourceManager) -> None:
        self.drivers = drivers
        self.driver: str | None = None
        self._tags: list[str] = []
        self._result_name = ""

    def begin(self, request_key: str | None, result_name: str, storage_options: Mapping[str, Any] | None) -> None:
        """Begin a try."""
        self.driver, self._result_name, self._tags = None, result_name, tags_of(request_key, result_name)

    def settings(self, conf: Mapping[str, Any]) -> dict[str, str]:
        """Return the Spark settings of this try."""
        # YARN would start a driver that failed a second time, beside the task that reports the failure.
        found = {"spark.yarn.maxAppAttempts": str(conf.get("spark.yarn.maxAppAttempts", 1))}
        if tags := [*filter(None, [conf.get("spark.yarn.tags")]), *self._tags]:
            found["spark.yarn.tags"] = ",".join(tags)
        return found | {"spark.yarn.submit.waitAppCompletion": "false"}

    def notice(self, line: str) -> None:
        """Notice the application's id."""
        if found := _APPLICATION.search(line):
            self.driver = found[0]

    def submitted(self, request: Request, *, failed: bool) -> AttemptDriver | None:
        """Return the application."""
        return None if failed or self.driver is None else AttemptDriver(self.driver, "", self._result_name)

    def earlier(self, request_key: str, result_name: str) -> list[AttemptDriver]:
        """Return the applications of all tries."""
        return self.drivers.drivers_of(request_key, result_name) if tags_of(request_key, result_name) else []

    def adopt(
        self, earlier: AttemptDriver, request_key: str, storage_options: Mapping[str, Any] | None
    ) -> AttemptDriver:
        """Take the application of an earlier try."""
        self.driver = earlier.id
        return earlier

    def kill(self) -> str | None:
        """End the application."""
        if self.driver is not None:
            self.drivers.kill(self.driver)
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
