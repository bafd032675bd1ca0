"""Requests to Google Cloud Storage's JSON API, with Google's credentials."""

from __future__ import annotations

import json
import os
import random
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from airflow_paimon.core.errors import InvalidInputError, UnsupportedStorageError

Listing = tuple[list[dict[str, Any]], list[str]]
"""Objects as the API lists them, and the common prefixes."""

GOOGLE = "https://storage.googleapis.com"
ANONYMOUS = "anon"
AT_ONCE = 16
"""Requests that run at the same time; as many connections are kept open."""

_OPTIONS = frozenset({"endpoint_url", "project", "requester_pays", "token", "tries"})
_JAVA_OPTIONS = {
    "auth.service.account.json.keyfile": "token",
    "project.id": "project",
    "requester.pays.project.id": "requester_pays",
    "storage.root.url": "endpoint_url",
}
"""What Paimon's Java engine calls them, after ``fs.gs.`` or ``gs.``."""
_JAVA_LOGINS = {"UNAUTHENTICATED": ANONYMOUS, "SERVICE_ACCOUNT_JSON_KEYFILE": None, "APPLICATION_DEFAULT": None,
                "COMPUTE_ENGINE": None}  # fmt: skip
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_TRIES = 5
_PAUSE = 0.25
"""Seconds before the second try; each further pause is twice as long. Google allows one write a second to one name."""
_TIMEOUT = (5, 60)
_UNCERTAIN = frozenset({408, 429})
_PAGE = 1000


class RequestError(Exception):
    """A request that failed. ``status`` is 0 if there was no answer; ``applied``: it may have taken effect."""

    def __init__(self, status: int, reason: str, *, applied: bool) -> None:
        super().__init__(reason)
        self.status = status
        self.applied = applied


@dataclass(frozen=True, slots=True)
class Answer:
    """What the storage answered. The names of ``headers`` are matched regardless of case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def checked_options(options: Mapping[str, Any] | None) -> str:
    """Check storage options and return them as canonical JSON, the form that a store keeps. Java's names become ours.

    Raises:
        InvalidInputError: an option is unknown (a typo must not fall back to other credentials) or not what it must be.
    """
    found = _in_our_words(options or {})
    endpoint = found.get("endpoint_url")
    if endpoint and ("@" in endpoint or "://" not in endpoint):
        raise InvalidInputError("The storage option endpoint_url must look like http://host:port, without credentials")
    if not isinstance(found.get("tries", 1), int) or not 1 <= found.get("tries", 1) <= 10:
        raise InvalidInputError("The storage option tries must be a whole number from 1 to 10")
    if not isinstance(found.get("token", ""), str | Mapping):
        raise InvalidInputError(
            "The storage option token must be the path of a service account's key file, its content, or 'anon'"
        )
    try:
        return json.dumps(found, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("Storage options for gs:// must be plain JSON values") from error


def _in_our_words(options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    unknown = []
    for name, value in options.items():
        java = name.removeprefix("fs.").removeprefix("gs.") if name.startswith(("fs.gs.", "gs.")) else ""
        if value is None:
            continue
        if java == "auth.type" and str(value).upper() in _JAVA_LOGINS:
            if login := _JAVA_LOGINS[str(value).upper()]:
                found["token"] = login
        elif name in _OPTIONS or java in _JAVA_OPTIONS:
            found[_JAVA_OPTIONS.get(java, name)] = value
        else:
            unknown.append(name)
    if unknown:
        known = sorted(_OPTIONS | {f"fs.gs.{name}" for name in (*_JAVA_OPTIONS, "auth.type")})
        raise InvalidInputError(
            f"Unknown storage option for gs://: {', '.join(sorted(unknown))}; known are {', '.join(known)}; "
            f"fs.gs.auth.type can be {', '.join(_JAVA_LOGINS)}"
        )
    return found


def import_google_auth() -> None:
    """Check that the extra is there, without the half second that the packages themselves take."""
    from importlib.util import find_spec

    try:
        there = find_spec("google.auth") is not None and find_spec("requests") is not None
    except ImportError:
        there = False
    if not there:
        raise UnsupportedStorageError(
            "gs:// needs the packages google-auth and requests: pip install 'airflow-paimon[gcs]'"
        )


def client(options: str) -> Client:
    """Return this process's client for ``options`` and the credentials in the environment."""
    return _client(os.getpid(), options, os.environ.get("GOOGLE_APPLICATION_CREDENTIALS", ""))


@lru_cache(maxsize=16)
def _client(pid: int, options: str, environment: str) -> Client:
    return Client(json.loads(options))


class Client:
    """Sends requests from any thread, again and again if the storage is busy. Raises only ``RequestError``."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        import requests
        from requests.adapters import HTTPAdapter

        self._endpoint = str(options.get("endpoint_url") or GOOGLE).rstrip("/")
        self._tries = int(options.get("tries", _TRIES))
        self._payer = {"userProject": options["requester_pays"]} if options.get("requester_pays") else {}
        self._token = options.get("token")
        self._lock = threading.Lock()
        self._credentials: Any = None
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=AT_ONCE, max_retries=0))

    def object(self, bucket: str, key: str) -> str:
        """Spell the address of an object."""
        return f"{self._endpoint}/storage/v1/b/{quote(bucket, safe='')}/o/{quote(key, safe='')}"

    def get(self, bucket: str, key: str, byte_range: str = "") -> Answer:
        """Read an object or a range of it (an HTTP ``Range`` value)."""
        headers = {"Range": byte_range} if byte_range else {}
        return self.send("GET", self.object(bucket, key), {"alt": "media"}, headers)

    def metadata(self, bucket: str, key: str) -> dict[str, str]:
        """Read the metadata that the writer of an object gave it."""
        answer = self.send("GET", self.object(bucket, key), {"fields": "metadata"})
        found: dict[str, str] = _parsed(answer).get("metadata", {})
        return found

    def put(self, bucket: str, key: str, data: bytes, metadata: Mapping[str, str], *, if_absent: bool = False) -> None:
        """Write an object with one request. With ``if_absent`` status 412 says that it exists.

        The multipart form, because the condition of a resumable upload counts when it begins and when it ends.
        """
        boundary = uuid.uuid4().hex
        about = json.dumps({"name": key, "metadata": dict(metadata)})
        head = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{about}\r\n--{boundary}\r\n"
        kind = "Content-Type: application/octet-stream\r\n\r\n"
        body = b"".join(((head + kind).encode(), data, f"\r\n--{boundary}--\r\n".encode()))
        query = {"uploadType": "multipart", **({"ifGenerationMatch": "0"} if if_absent else {})}
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        self.send("POST", self._uploads(bucket), query, headers, body, once=if_absent)

    def begin_upload(self, bucket: str, key: str) -> str:
        """Begin an upload in parts; give the address that takes them."""
        about = json.dumps({"name": key}).encode()
        headers = {"Content-Type": "application/json; charset=UTF-8"}
        answer = self.send("POST", self._uploads(bucket), {"uploadType": "resumable", "name": key}, headers, about)
        return answer.headers["Location"]

    def put_part(self, upload: str, start: int, data: bytes, *, last: bool) -> None:
        """Send the next part of an upload. A repeated part does no harm: the storage skips what it has already."""
        end = start + len(data)
        for _ in range(self._tries):
            size = end if last else "*"
            answer = self.send("PUT", upload, {}, {"Content-Range": f"bytes {start}-{end - 1}/{size}"}, data)
            if answer.status != 308:
                return
            kept = int(answer.headers.get("Range", "bytes=0--1").rpartition("-")[2]) + 1
            if kept >= end and not last:
                return
            data, start = data[max(kept - start, 0) :], max(kept, start)
        raise RequestError(308, "the storage does not take the data", applied=False)

    def drop_upload(self, upload: str) -> None:
        """Give an upload up. Google answers 499 to that."""
        try:
            self.send("DELETE", upload, {}, once=True)
        except RequestError as error:
            if error.status != 499:
                raise

    def list_all(self, bucket: str, prefix: str, delimiter: str) -> Listing:
        """List the objects that start with ``prefix``, and, with a ``delimiter``, the folders."""
        objects: list[dict[str, Any]] = []
        folders: list[str] = []
        query = {
            "prefix": prefix,
            "maxResults": str(_PAGE),
            "fields": "items(name,size,updated),prefixes,nextPageToken",
        }
        if delimiter:
            query["delimiter"] = delimiter
        address = f"{self._endpoint}/storage/v1/b/{quote(bucket, safe='')}/o"
        while True:  # each page starts after the one before it
            page = _parsed(self.send("GET", address, query))
            objects += page.get("items", [])
            folders += page.get("prefixes", [])
            if not page.get("nextPageToken"):
                return objects, folders
            query["pageToken"] = page["nextPageToken"]

    def send(
        self,
        method: str,
        address: str,
        query: Mapping[str, str],
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        once: bool = False,
    ) -> Answer:
        """Send a request until it is answered with anything but "busy" or an error of the server.

        With ``once`` it is not sent again where it may have taken effect.
        """
        applied = False
        for tried in range(1, self._tries + 1):
            try:
                return self._send_once(method, address, {**self._payer, **query}, dict(headers or {}), body)
            except RequestError as error:
                error.applied = applied = applied or error.applied
                again = not error.status or error.status in _UNCERTAIN or error.status >= 500
                if tried == self._tries or not again or (once and applied):
                    raise
            pause(tried)
        raise AssertionError("unreachable")

    def _send_once(
        self, method: str, address: str, query: Mapping[str, str], headers: dict[str, str], body: bytes
    ) -> Answer:
        import requests

        self._sign(method, address, headers)
        try:
            response = self._session.request(
                method, address, params=query, headers=headers, data=body, timeout=_TIMEOUT, allow_redirects=False
            )
        except (requests.RequestException, OSError) as error:
            why = f"{type(error).__name__}: {_cause(error) or error}"
            raise RequestError(0, why, applied=_was_connected(error)) from error
        if response.status_code < 400:
            return Answer(response.status_code, response.headers, response.content)
        uncertain = response.status_code in _UNCERTAIN or response.status_code >= 500
        raise RequestError(response.status_code, _reason(response), applied=uncertain)

    def _sign(self, method: str, address: str, headers: dict[str, str]) -> None:
        """Add the access token. It is fetched, and fetched again before it expires, by one thread at a time."""
        if self._token == ANONYMOUS:
            return
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        with self._lock:
            try:
                if self._credentials is None:
                    self._credentials = _credentials(self._token)
                self._credentials.before_request(Request(self._session), method, address, headers)
            except (GoogleAuthError, OSError, ValueError) as error:
                raise RequestError(401, f"no access token: {error}", applied=False) from error

    def _uploads(self, bucket: str) -> str:
        return f"{self._endpoint}/upload/storage/v1/b/{quote(bucket, safe='')}/o"


def pause(tried: int) -> None:
    """Wait before the next try; a random share, so that writers that collided don't meet again."""
    time.sleep(_PAUSE * 2 ** (tried - 1) * random.uniform(0.5, 1.0))


def _credentials(token: str | Mapping[str, Any] | None) -> Any:
    """Find credentials: a key file, its content, or what the environment gives (a file, gcloud's, the machine's own).

    Raises:
        ValueError: the key is of no known kind. OSError: its file can't be read. GoogleAuthError: there are none.
    """
    import google.auth
    from google.oauth2 import credentials, service_account

    user: Any = credentials.Credentials
    service: Any = service_account.Credentials

    if token is None:
        return google.auth.default(scopes=[_SCOPE])[0]
    if isinstance(token, str):
        with open(token, encoding="utf-8") as file:
            token = json.load(file)
    kind = token.get("type") if isinstance(token, Mapping) else None
    if kind == "service_account":
        return service.from_service_account_info(token, scopes=[_SCOPE])
    if kind == "authorized_user":
        return user.from_authorized_user_info(token, scopes=[_SCOPE])
    raise ValueError("the key file is of no known type; it must be service_account or authorized_user")


def _cause(error: Exception) -> Exception | None:
    """Return what requests has wrapped, which names the server and not the whole address."""
    cause: Exception | None = getattr(error.args[0], "reason", None) if error.args else None
    return cause


def _was_connected(error: Exception) -> bool:
    """Whether the storage may have got a request that failed; not where no connection was made."""
    from requests import ConnectTimeout
    from urllib3.exceptions import NewConnectionError

    return not isinstance(error, ConnectTimeout) and not isinstance(_cause(error), NewConnectionError)


def _parsed(answer: Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RequestError(answer.status, "what answered is not Google Cloud Storage", applied=False)
    return found


def _reason(response: Any) -> str:
    """Return what the storage says about a refusal, in at most 300 characters."""
    try:
        said = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = response.text
    return f"{response.status_code} {said}".strip()[:300]
