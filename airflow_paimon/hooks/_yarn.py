"""YARN's resource manager, by its REST interface, and the tags by which a retry finds what an earlier try submitted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import requests

from airflow_paimon.hooks._job_files import AttemptDriver

if TYPE_CHECKING:
    from requests.auth import AuthBase

_REQUEST_SECONDS = 30.0
_UNFINISHED = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
_OPERATION_TAG = "airflow-paimon-"
_RESULT_TAG = "airflow-paimon-result-"
# YARN keeps tags in lower case, of 100 characters at most.
_FITS_A_TAG = re.compile(r"[a-z0-9_.-]{1,70}")
_RESULT = re.compile(rf"(?:^|,){_RESULT_TAG}([^,]+)")
_PROXY = re.compile(r"tracking URL: (https?://[^/\s]+)/proxy/application_")


@dataclass(frozen=True, slots=True)
class ResourceManager:
    """The resource manager at an address such as ``http://resourcemanager:8088``.

    All methods raise ``RuntimeError`` when it gives no answer, or one that can't be understood.
    """

    url: str
    auth: AuthBase | None = None

    def state(self, application: str) -> str | None:
        """Return the application's state, None when the resource manager knows of no such application."""
        answer = self._ask("GET", f"apps/{application}")
        return None if answer is None else str(_field(answer, "app")["state"])

    def kill(self, application: str) -> None:
        """End the application. Nothing happens to one that has ended, or that isn't known."""
        self._ask("PUT", f"apps/{application}/state", {"state": "KILLED"})

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


def operation_tag(request_key: str) -> str:
    """Return the tag of the applications that try one request of an operation."""
    return _OPERATION_TAG + hashlib.sha256(request_key.encode()).hexdigest()[:32]


def tags_of(request_key: str | None, result_name: str) -> list[str]:
    """Return the tags of one try's application; none when it has no operation id or its result no fitting name."""
    name = result_name.rpartition("/")[2].removesuffix(".json")
    if request_key is None or not result_name.endswith(".json") or not _FITS_A_TAG.fullmatch(name):
        return []
    return [operation_tag(request_key), _RESULT_TAG + name]


def pages_address(line: str) -> str | None:
    """Return the address of the resource manager's pages where a line of ``spark-submit`` tells it."""
    found = _PROXY.search(line)
    return found[1] if found else None


def _field(answer: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = answer.get(name, {})
    if not isinstance(found, dict):
        raise RuntimeError(f"YARN's resource manager answers with an unexpected {name}: {found!r}")
    return found
