"""Requests to Google Cloud Storage's JSON API, with Google's credentials."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.store.base import FileInfo
from airflow_paimon.core.store.http_client import Answer, HttpClient
from airflow_paimon.core.store.object_client import (
    NO_BUCKET,
    TOKEN,
    Listing,
    RequestError,
    as_json,
    in_our_words,
    is_enough,
)

GOOGLE = "https://storage.googleapis.com"
ANONYMOUS = "anon"

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
_KNOWN = [
    *sorted(_OPTIONS | {f"fs.gs.{name}" for name in _JAVA_OPTIONS}),
    f"fs.gs.auth.type, which can be {', '.join(_JAVA_LOGINS)}",
]
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_PAGE = 1000


def our_words(name: str, value: Any) -> tuple[str | None, Any]:
    """Translate a storage option: see ``OurWords``."""
    java = name.removeprefix("fs.").removeprefix("gs.") if name.startswith(("fs.gs.", "gs.")) else ""
    if java == "auth.type":
        login = _JAVA_LOGINS.get(str(value).upper(), "")
        return (None if login == "" else "token" if login else ""), login
    return name if name in _OPTIONS else _JAVA_OPTIONS.get(java), value


def checked_options(options: Mapping[str, Any]) -> str:
    """Check storage options and return them as canonical JSON, the form that a store keeps. Java's names become ours.

    Raises:
        InvalidInputError: see ``in_our_words``, or one is not what it must be.
    """
    found = in_our_words("gs://", options, our_words, _KNOWN)
    if not isinstance(found.get("token", ""), str | Mapping):
        raise InvalidInputError(
            "The storage option token must be the path of a service account's key file, its content, or 'anon'"
        )
    return as_json("gs", found)


class GcsClient(HttpClient):
    """Objects by the JSON API."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(str(options.get("endpoint_url") or GOOGLE), options)
        self._token = options.get("token")
        self._payer = {"userProject": options["requester_pays"]} if options.get("requester_pays") else {}

    def object(self, bucket: str, key: str) -> str:
        return f"{self._objects(bucket)}/{quote(key, safe='')}"

    def get(self, bucket: str, key: str, byte_range: str = "") -> tuple[bytes, int]:
        headers = {"Range": byte_range} if byte_range else {}
        return self.send("GET", self.object(bucket, key), {"alt": "media"}, headers).content

    def get_version(self, bucket: str, key: str) -> tuple[bytes, str]:
        answer = self.send("GET", self.object(bucket, key), {"alt": "media"})
        return answer.body, answer.headers.get("x-goog-generation", "")

    def delete_version(self, bucket: str, key: str, version: str) -> None:
        self.send("DELETE", self.object(bucket, key), {"ifGenerationMatch": version})

    def head(self, bucket: str, key: str) -> str | None:
        answer = self.send("GET", self.object(bucket, key), {"fields": "metadata"})
        found: dict[str, str] = _parsed(answer).get("metadata", {})
        return found.get(TOKEN)

    def put(self, bucket: str, key: str, data: bytes, token: str = "") -> None:
        self._put(bucket, key, data, token, "0" if token else "")

    def put_version(self, bucket: str, key: str, data: bytes, version: str) -> None:
        if not version:
            raise RequestError(400, "the storage names no generation of the object that was read")
        self._put(bucket, key, data, "", version)

    def _put(self, bucket: str, key: str, data: bytes, token: str, generation: str) -> None:
        """Write an object in the multipart form: the condition of a resumable upload counts when it begins and ends."""
        boundary = uuid.uuid4().hex
        about = json.dumps({"name": key, "metadata": {TOKEN: token} if token else {}})
        head = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{about}\r\n--{boundary}\r\n"
        kind = "Content-Type: application/octet-stream\r\n\r\n"
        body = b"".join(((head + kind).encode(), data, f"\r\n--{boundary}--\r\n".encode()))
        query = {"uploadType": "multipart", **({"ifGenerationMatch": generation} if generation else {})}
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        self.send("POST", self._objects(bucket, "/upload"), query, headers, body, once=bool(generation))

    def begin_upload(self, bucket: str, key: str) -> str:
        about = json.dumps({"name": key}).encode()
        headers = {"Content-Type": "application/json; charset=UTF-8"}
        query = {"uploadType": "resumable", "name": key}
        return self.send("POST", self._objects(bucket, "/upload"), query, headers, about).headers["Location"]

    def put_part(self, upload: str, start: int, data: bytes, *, last: bool) -> None:
        """Send the next part of an upload: the storage skips what it has already."""
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
        raise RequestError(308, "the storage does not take the data")

    def drop_upload(self, upload: str) -> None:
        """Give an upload up. Google answers 499 to that."""
        try:
            self.send("DELETE", upload, once=True)
        except RequestError as error:
            if error.status != 499:
                raise

    def list_all(self, bucket: str, prefix: str, delimiter: str, limit: int | None = None) -> Listing:
        objects: list[FileInfo] = []
        folders: list[str] = []
        query = {
            "prefix": prefix,
            "maxResults": str(_PAGE),
            "fields": "items(name,size,updated),prefixes,nextPageToken",
        }
        if delimiter:
            query["delimiter"] = delimiter
        while True:  # each page starts after the one before it
            page = _parsed(self.send("GET", self._objects(bucket), query))
            objects += map(_info, page.get("items", []))
            folders += page.get("prefixes", [])
            if not page.get("nextPageToken") or is_enough(objects, limit):
                return objects, folders
            query["pageToken"] = page["nextPageToken"]

    def _send_once(
        self, method: str, address: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer:
        return super()._send_once(method, address, {**self._payer, **query}, headers, body)

    def _sign(self, prepared: Any) -> Any:
        """Add the access token. It is fetched, and fetched again before it expires, by one thread at a time."""
        if self._token == ANONYMOUS:
            return prepared
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        with self._lock:
            try:
                if self._credentials is None:
                    self._credentials = _credentials(self._token)
                self._credentials.before_request(
                    Request(self._session), prepared.method, prepared.url, prepared.headers
                )
            except (GoogleAuthError, OSError, ValueError) as error:
                raise RequestError(401, f"no access token: {error}") from error
        return prepared

    def _refusal(self, response: Any) -> RequestError:
        try:
            said = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            said = response.text
        status = response.status_code
        no_bucket = status == 404 and ("/o/" not in response.url or "bucket" in said)
        return RequestError(status, f"{status} {said}".strip()[:300], code=NO_BUCKET if no_bucket else "")

    def _objects(self, bucket: str, kind: str = "") -> str:
        return f"{self._endpoint}{kind}/storage/v1/b/{quote(bucket, safe='')}/o"


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


def _info(entry: Mapping[str, Any]) -> FileInfo:
    modified = datetime.fromisoformat(entry["updated"])
    return FileInfo(entry["name"], False, int(entry["size"]), int(modified.timestamp() * 1000))


def _parsed(answer: Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RequestError(answer.status, "what answered is not Google Cloud Storage")
    return found
