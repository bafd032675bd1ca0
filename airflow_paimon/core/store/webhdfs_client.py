"""HDFS's files over HTTP (WebHDFS): for machines that reach a gateway, or no port of the data nodes but this one.

It raises what hdfs-native's client raises: ``OSError`` and its kinds, ``RuntimeError`` for any other answer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

OPTIONS = frozenset({"delegation_token", "password", "path", "user"})
PROTOCOLS: Mapping[str, str] = {"webhdfs": "http", "swebhdfs": "https"}

_PATH = "/webhdfs/v1"
_TIMEOUT = (5, 60)
_TRIES = 3
_AT_ONCE = 16
"""Connections to a server; a request waits for one of them to be free."""
_SPOOLED = 16 * 2**20
"""Bytes of a file being written that are held in memory; more goes to a file of the system's temporary folder."""
_KINDS: Mapping[str, type[OSError]] = {
    "FileNotFoundException": FileNotFoundError,
    "FileAlreadyExistsException": FileExistsError,
    "AccessControlException": PermissionError,
    "AuthorizationException": PermissionError,
    "SecurityException": PermissionError,
}
_BUSY = frozenset({"RetriableException", "SafeModeException", "StandbyException"})
"""Answers of a name node that did nothing and may do it later."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder. ``modification_time`` in milliseconds by the name node's clock."""

    path: str
    isdir: bool
    length: int
    modification_time: int


class WebHdfsClient:
    """Calls of any thread to one server. ``prefix``: the path before the files' own, as ``/webhdfs/v1``."""

    def __init__(self, address: str, prefix: str, identity: Mapping[str, str], login: tuple[str, str] | None) -> None:
        import requests
        from requests.adapters import HTTPAdapter

        self._base = f"{address}{prefix.rstrip('/')}"
        self._identity = dict(identity)
        self._session = requests.Session()
        self._session.auth = login
        self._session.trust_env = False  # a .netrc or a proxy of the environment is not what the connection says
        self._session.mount(address, HTTPAdapter(pool_maxsize=_AT_ONCE, pool_block=True, max_retries=0))

    def get_file_info(self, key: str) -> Entry:
        return _entry(key, self._json("GETFILESTATUS", key)["FileStatus"])

    def list_status(self, key: str) -> list[Entry]:
        """List a folder or, with itself as the only entry, a file."""
        found = self._json("LISTSTATUS", key)["FileStatuses"]["FileStatus"]
        return [
            _entry(f"{key.rstrip('/')}/{each['pathSuffix']}" if each["pathSuffix"] else key, each) for each in found
        ]

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename in one step, refused where the target exists unless ``overwrite``.

        A server that doesn't know ``renameoptions`` (HttpFS) answers with a truth value instead: it never overwrites.
        """
        options = "OVERWRITE" if overwrite else "NONE"
        answer = self._call("PUT", "RENAME", source, {"destination": target, "renameoptions": options})
        if not answer.content:
            return
        if _parsed(answer).get("boolean") is not True:
            if overwrite:
                raise RuntimeError("the server doesn't know renameoptions (HttpFS), so it can't replace a file")
            raise FileExistsError(f"renaming to {target} was refused")

    def delete(self, key: str, *, recursive: bool) -> bool:
        found = _parsed(self._call("DELETE", "DELETE", key, {"recursive": str(recursive).lower()}))
        return found.get("boolean") is True

    def read(self, key: str) -> Reader:
        return Reader(self, key)

    def create(self, key: str) -> Writer:
        return Writer(self, key)

    def content(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a file or a part of it."""
        query = {"offset": str(start), **({"length": str(length)} if length is not None else {})}
        data: bytes = b""
        for _ in range(_TRIES):
            data = self._call("GET", "OPEN", key, query, follow=True).content
            # A connection that breaks is no error where a data node names no length.
            if length is None or len(data) == length:
                return data
        raise OSError(f"{key}: {length} bytes from {start} on were asked for, and {len(data)} came")

    def put(self, key: str, body: Any) -> None:
        """Write a new file; ``FileExistsError`` where the name exists. The name node says which data node takes it."""
        query = {"overwrite": "false", "createparent": "true"}
        answer = self._call("PUT", "CREATE", key, query)
        place = answer.headers.get("Location")
        if answer.status_code != HTTPStatus.TEMPORARY_REDIRECT or not place:
            raise OSError(f"the server named no data node to write to (status {answer.status_code})")
        # Only the server that was named gets the login: a data node, or whoever it names, must not see it.
        login = {} if _is_at(place, self._base) else {"auth": _nobody}
        headers = {"Content-Type": "application/octet-stream"}
        self._checked(self._request("PUT", place, data=body, headers=headers, **login))

    def _json(self, operation: str, key: str) -> dict[str, Any]:
        return _parsed(self._call("GET", operation, key, {}))

    def _call(self, method: str, operation: str, key: str, query: Mapping[str, str], *, follow: bool = False) -> Any:
        """Send a request; one that only reads again where no answer came."""
        address = f"{self._base}{quote(key, safe='/')}"
        params = {"op": operation, **query, **self._identity}
        tries = _TRIES if method == "GET" else 1
        for tried in range(1, tries + 1):
            try:
                return self._checked(self._request(method, address, params=params, allow_redirects=follow))
            except OSError as error:
                if tried == tries or type(error) is not OSError:
                    raise
        raise AssertionError("unreachable")

    def _request(self, method: str, address: str, **more: Any) -> Any:
        import requests

        try:
            return self._session.request(method, address, timeout=_TIMEOUT, **more)
        except requests.RequestException as error:
            # Without the address, in which a delegation token may stand.
            cause = getattr(error.args[0], "reason", None) if error.args else None
            why = str(cause or type(error).__name__).partition(": ")[2] or type(error).__name__
            raise OSError(f"no answer from {self._base}: {why}") from None

    def _checked(self, answer: Any) -> Any:
        if answer.status_code < HTTPStatus.BAD_REQUEST:
            return answer
        try:
            said = answer.json()["RemoteException"]
            name, message = str(said["exception"]), str(said.get("message", ""))
        except (ValueError, KeyError, TypeError):
            if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise PermissionError(f"status {answer.status_code} {answer.reason}") from None
            raise OSError(f"status {answer.status_code} {answer.reason}") from None
        message = message.split("\n")[0]
        if name in _BUSY:
            raise OSError(f"{name}: {message}")
        if kind := _KINDS.get(name):
            raise kind(message)
        raise RuntimeError(f'RPCError("{said.get("javaClassName") or name}", "{message}")')


class Reader:
    """A file that is open for reading. Its length is asked for once, when it is needed."""

    def __init__(self, client: WebHdfsClient, key: str) -> None:
        self._client = client
        self._key = key

    def __len__(self) -> int:
        found = self._client.get_file_info(self._key)
        if found.isdir:
            raise FileNotFoundError(f"{self._key} is a folder")
        return found.length

    def read(self) -> bytes:
        return self._client.content(self._key)

    def read_range(self, start: int, length: int) -> bytes:
        return self._client.content(self._key, start, length)


class Writer:
    """A file being written: it is sent, and its name taken, when it is closed."""

    def __init__(self, client: WebHdfsClient, key: str) -> None:
        self._client = client
        self._key = key
        self._file: Any = tempfile.SpooledTemporaryFile(_SPOOLED)  # noqa: SIM115 - closed by close or discard

    def write(self, data: Any) -> int:
        self._file.write(data)
        return len(data)

    def close(self) -> None:
        with self._file:
            size = self._file.tell()
            self._file.seek(0)
            self._client.put(self._key, self._file if size else b"")

    def discard(self) -> None:
        self._file.close()


def _is_at(address: str, base: str) -> bool:
    """Whether an address is the same server's, by the same protocol."""
    return urlsplit(address)[:2] == urlsplit(base)[:2]


def _nobody(request: Any) -> Any:
    """Log nobody in: without it the session's login goes with a request."""
    return request


def _entry(path: str, status: Mapping[str, Any]) -> Entry:
    return Entry(path, status["type"] == "DIRECTORY", int(status["length"]), int(status["modificationTime"]))


def _parsed(answer: Any) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RuntimeError("what answered is not WebHDFS")
    return found


@lru_cache(maxsize=16)
def client(pid: int, scheme: str, authority: str, options: tuple[tuple[str, str], ...], user: str) -> WebHdfsClient:
    """Give this process's client. ``scheme``: ``webhdfs`` (HTTP) or ``swebhdfs`` (HTTPS)."""
    given = dict(options)
    address = f"{PROTOCOLS[scheme]}://{authority}"
    login = (given["user"], given["password"]) if given.get("password") else None
    identity: dict[str, str] = {}
    if given.get("delegation_token"):
        identity = {"delegation": given["delegation_token"]}
    elif login is None and (name := given.get("user") or user):
        identity = {"user.name": name}
    return WebHdfsClient(address, given.get("path", _PATH), identity, login)
