"""Requests to a storage's own API over HTTP, sent again where it is busy, and uploads in parts."""

from __future__ import annotations

import re
import threading
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, BinaryIO, ClassVar
from urllib.parse import quote, urlencode

from airflow_paimon.core.errors import UnsupportedStorageError
from airflow_paimon.core.store.failures import Output
from airflow_paimon.core.store.object_client import AT_ONCE, PART, Fail, ObjectClient, RequestError, pause

_TRIES = 5
_TIMEOUT = (5, 60)
_UNCERTAIN = frozenset({408, 429})


@dataclass(frozen=True, slots=True)
class Answer:
    """What the storage answered. The names of ``headers`` are matched regardless of case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> tuple[bytes, int]:
        """An object or a range of it, and the size of the whole."""
        return self.body, int(self.headers.get("Content-Range", f"/{len(self.body)}").rpartition("/")[2])


def require_packages(scheme: str, extra: str, *packages: str) -> None:
    """Check that an extra is installed, without the half second that its packages take to be imported."""
    try:
        there = all(find_spec(package) for package in packages)
    except ImportError:
        there = False
    if not there:
        needed = " and ".join(package.replace(".", "-") for package in packages)
        raise UnsupportedStorageError(f"{scheme}:// needs the packages {needed}: pip install 'airflow-paimon[{extra}]'")


class HttpClient(ObjectClient):
    """Sends requests from any thread, again and again if the storage is busy. Raises only ``RequestError``."""

    delete_headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, endpoint: str, options: Mapping[str, Any]) -> None:
        import requests
        from requests.adapters import HTTPAdapter

        self.tried = {}
        self._endpoint = endpoint.rstrip("/")
        self._tries = int(options.get("tries", _TRIES))
        self._lock = threading.Lock()
        self._credentials: Any = None
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=AT_ONCE, max_retries=0))

    @abstractmethod
    def object(self, bucket: str, key: str) -> str:
        """Spell the address of an object."""

    @abstractmethod
    def begin_upload(self, bucket: str, key: str) -> str:
        """Begin an upload in parts; give the address that takes them."""

    @abstractmethod
    def put_part(self, upload: str, start: int, data: bytes, *, last: bool) -> None:
        """Send the next part of an upload, of ``PART`` bytes if it isn't the last. A repeated part does no harm."""

    @abstractmethod
    def drop_upload(self, upload: str) -> None:
        """Give an upload up."""

    @abstractmethod
    def _sign(self, prepared: Any) -> Any:
        """Say in a request that is ready to be sent who sends it, and give it back."""

    @abstractmethod
    def _refusal(self, response: Any) -> RequestError:
        """Read from an answer that isn't a success what the storage says."""

    def get(self, bucket: str, key: str, byte_range: str = "") -> tuple[bytes, int]:
        headers = {"Range": byte_range} if byte_range else {}
        return self.send("GET", self.object(bucket, key), {}, headers).content

    def upload(self, bucket: str, key: str, fail: Fail) -> BinaryIO:
        upload = _Upload(self, bucket, key)
        return Output(  # type: ignore[return-value]
            upload,  # type: ignore[arg-type]
            fail=fail,
            finish=upload.finish,
            discard=upload.discard,
            errors=(RequestError,),
        )

    def delete(self, bucket: str, key: str) -> None:
        try:
            self.send("DELETE", self.object(bucket, key), {}, self.delete_headers)
        except RequestError as error:
            if error.status != 404:
                raise

    def send(
        self,
        method: str,
        address: str,
        query: Mapping[str, str] | None = None,
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
                return self._send_once(method, address, query or {}, headers or {}, body)
            except RequestError as error:
                error.applied = applied = applied or error.applied
                again = not error.status or _is_uncertain(error.status)
                if tried == self._tries or not again or (once and applied):
                    raise
            pause(tried)
        raise AssertionError("unreachable")

    def _send_once(
        self, method: str, address: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer:
        import requests

        try:
            response = self._session.request(
                method, address, params=urlencode(query, quote_via=quote), headers=headers, data=body, timeout=_TIMEOUT,
                allow_redirects=False, auth=self._sign,
            )  # fmt: skip
        except (requests.RequestException, OSError) as error:
            # Without what is behind a question mark, which may be a signature.
            why = f"{type(error).__name__}: {_cause(error) or re.sub(r'[?][^ ]*', '', str(error))}"
            raise RequestError(0, why, applied=_was_connected(error)) from error
        # 308: Google has a part of an upload. Any other answer of this kind comes from somebody in between.
        if response.status_code < 300 or (response.status_code == 308 and "Content-Range" in headers):
            return Answer(response.status_code, response.headers, response.content)
        refusal = self._refusal(response)
        refusal.applied = _is_uncertain(response.status_code)
        raise refusal


class _Upload:
    """An object being written: kept until it is longer than a part, then sent part by part."""

    def __init__(self, client: HttpClient, bucket: str, key: str) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        self._held = bytearray()
        self._sent = 0
        self._address = ""

    def write(self, data: memoryview) -> int:
        self._held += data
        while len(self._held) > PART:  # something is left for the last part, which can't be empty
            self._address = self._address or self._client.begin_upload(self._bucket, self._key)
            self._client.put_part(self._address, self._sent, bytes(self._held[:PART]), last=False)
            del self._held[:PART]
            self._sent += PART
        return len(data)

    def finish(self) -> None:
        if self._address:
            self._client.put_part(self._address, self._sent, bytes(self._held), last=True)
        else:
            self._client.put(self._bucket, self._key, bytes(self._held))

    def discard(self) -> None:
        self._held.clear()
        if self._address:
            self._client.drop_upload(self._address)


def _is_uncertain(status: int) -> bool:
    return status in _UNCERTAIN or status >= 500


def _cause(error: Exception) -> Exception | None:
    """Return what requests has wrapped, which names the server and not the whole address."""
    cause: Exception | None = getattr(error.args[0], "reason", None) if error.args else None
    return cause


def _was_connected(error: Exception) -> bool:
    """Whether the storage may have got a request that failed; not where no connection was made."""
    from requests import ConnectTimeout
    from urllib3.exceptions import NewConnectionError

    return not isinstance(error, ConnectTimeout) and not isinstance(_cause(error), NewConnectionError)
