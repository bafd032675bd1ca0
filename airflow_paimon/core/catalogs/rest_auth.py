"""How requests to a REST catalog prove who asks: a bearer token, or signatures of Alibaba Cloud's DLF."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from airflow_paimon.core.catalogs.options import CatalogOptions
from airflow_paimon.core.errors import InvalidInputError, StorageError, UnsupportedCatalogError

_ALGORITHM = "DLF4-HMAC-SHA256"
_PRODUCT = "DlfNext"
_REQUEST = "aliyun_v4_request"
_PAYLOAD = "UNSIGNED-PAYLOAD"
_SIGNED = frozenset(
    {"content-md5", "content-type", "x-dlf-content-sha256", "x-dlf-date", "x-dlf-version", "x-dlf-security-token"}
)
_REGION = re.compile(r"(?:pre-)?([a-z]+-[a-z]+(?:-\d+)?)")


@dataclass(frozen=True, slots=True)
class Request:
    """What is signed. ``path`` is as it is sent; ``query``: before it is encoded."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None


class Auth(Protocol):
    """Makes the headers that prove who asks. It can be pickled, and shows no secret."""

    @property
    def label(self) -> str:
        """Who asks, for messages."""
        ...

    @property
    def secrets(self) -> list[str]:
        """What must be masked in messages of the server."""
        ...

    def headers(self, request: Request) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class BearerAuth(Auth):
    token: str = field(repr=False)

    @property
    def label(self) -> str:
        return "the bearer token (option token)"

    @property
    def secrets(self) -> list[str]:
        return [self.token]

    def headers(self, request: Request) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@dataclass(frozen=True, slots=True)
class DlfKey:
    """A key of DLF; ``token``: of a temporary one."""

    id: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class DlfAuth(Auth):
    """``path``: a file in which another process renews the key; it is read for every request, in place of ``key``."""

    region: str
    key: DlfKey | None = None
    path: str | None = None

    @property
    def label(self) -> str:
        return f"the DLF key {self.key.id}" if self.key is not None else f"the DLF key in {self.path}"

    @property
    def secrets(self) -> list[str]:
        return [] if self.key is None else [s for s in (self.key.secret, self.key.token) if s]

    def headers(self, request: Request) -> dict[str, str]:
        return dlf_headers(request, self._current(), self.region, datetime.now(UTC))

    def _current(self) -> DlfKey:
        if self.key is not None:
            return self.key
        try:
            raw = json.loads(Path(str(self.path)).read_text("utf-8"))
            return DlfKey(str(raw["AccessKeyId"]), str(raw["AccessKeySecret"]), raw.get("SecurityToken"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"The file of dlf.token-path, {self.path}, contains no DLF key ({type(error).__name__})"
            ) from None


def dlf_headers(request: Request, key: DlfKey, region: str, now: datetime) -> dict[str, str]:
    """Return the headers by which DLF knows a request as one of this key, made at ``now``."""
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"x-dlf-date": stamp, "x-dlf-content-sha256": _PAYLOAD, "x-dlf-version": "v1"}
    if request.body:
        digest = hashlib.md5(request.body.encode(), usedforsecurity=False).digest()
        headers |= {"Content-Type": "application/json", "Content-MD5": base64.b64encode(digest).decode()}
    if key.token is not None:
        headers["x-dlf-security-token"] = key.token
    scope = f"{stamp[:8]}/{region}/{_PRODUCT}/{_REQUEST}"
    canonical = hashlib.sha256(_canonical(request, headers).encode()).hexdigest()
    signing = f"aliyun_v4{key.secret}".encode()
    for part in (stamp[:8], region, _PRODUCT, _REQUEST):
        signing = _hmac(signing, part)
    signature = _hmac(signing, "\n".join((_ALGORITHM, stamp, scope, canonical))).hex()
    return {**headers, "Authorization": f"{_ALGORITHM} Credential={key.id}/{scope},Signature={signature}"}


def _canonical(request: Request, headers: Mapping[str, str]) -> str:
    query = "&".join(f"{k.strip()}={v.strip()}" if v else k.strip() for k, v in sorted(request.query.items()))
    signed = {k.lower(): v.strip() for k, v in headers.items() if k.lower() in _SIGNED}
    return "\n".join((request.method, request.path, query, *(f"{k}:{v}" for k, v in sorted(signed.items())), _PAYLOAD))


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def auth_of(options: CatalogOptions) -> Auth:
    """Build what the options ``token.provider`` and its own ask for.

    Raises:
        InvalidInputError: one is missing. UnsupportedCatalogError: this package doesn't know the way.
    """
    provider = options.required("token.provider", "bear, with the option token")
    if provider == "bear":
        return BearerAuth(options.required("token", "the bearer token of the server"))
    if provider != "dlf":
        raise UnsupportedCatalogError(f"token.provider must be bear or dlf; it is {provider!r}")
    own = options.own
    uri = options.required("uri", "http://host:8080")
    if own.get("dlf.signing-algorithm", "openapi" if "dlfnext" in uri.lower() else "default") != "default":
        raise UnsupportedCatalogError(
            "dlf.signing-algorithm=openapi is not supported; use the endpoint of DLF in your network (VPC), which "
            "takes the default one"
        )
    found = _REGION.search(uri)
    region = own.get("dlf.region") or (found[1] if found else "")
    if not region:
        raise InvalidInputError("A rest catalog with token.provider=dlf needs the option dlf.region")
    if own.get("dlf.token-path"):
        return DlfAuth(region, path=own["dlf.token-path"])
    if "dlf.token-loader" in own:
        raise UnsupportedCatalogError("dlf.token-loader is not supported; use dlf.token-path or dlf.access-key-id")
    key = DlfKey(
        options.required("dlf.access-key-id", "the id of the key"),
        options.required("dlf.access-key-secret", "the key's secret"),
        own.get("dlf.security-token"),
    )
    return DlfAuth(region, key)
