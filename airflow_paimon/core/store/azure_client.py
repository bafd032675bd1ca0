"""Requests to Azure Blob Storage, signed with an account's key, a shared access signature or a token of Entra ID."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate, parsedate_to_datetime
from functools import partial
from typing import Any, ClassVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.store.base import FileInfo
from airflow_paimon.core.store.http_client import Answer, HttpClient
from airflow_paimon.core.store.object_client import (
    EXISTS,
    NO_BUCKET,
    PART,
    Listing,
    RequestError,
    as_json,
    in_our_words,
    is_enough,
)

_OPTIONS = frozenset({
    "account_key", "account_name", "anon", "client_id", "client_secret", "endpoint_url", "sas_token", "tenant_id",
    "token_file", "tries",
})  # fmt: skip
_LOGINS = ("account_key", "sas_token", "client_secret", "anon")
_JAVA_OPTIONS = {
    "account.key": "account_key",
    "account.oauth2.client.id": "client_id",
    "account.oauth2.client.secret": "client_secret",
    "account.oauth2.client.endpoint": "tenant_id",
    "account.oauth2.msi.tenant": "tenant_id",
    "account.oauth2.token.file": "token_file",
    "account.auth.type": "",
    "account.oauth.provider.type": "",
    "sas.fixed.token": "sas_token",
}
"""What Paimon's Java engine calls them, after ``fs.azure.`` or ``azure.``; the account's host may follow."""
_JAVA_LOGINS = ("SharedKey", "OAuth", "SAS", "ClientCredsTokenProvider", "MsiTokenProvider",
                "WorkloadIdentityTokenProvider")  # fmt: skip
_KNOWN = [
    *sorted(_OPTIONS | {f"fs.azure.{name}" for name in _JAVA_OPTIONS}),
    f"those with the account's host behind it; types can be {', '.join(_JAVA_LOGINS)}",
]
_SCOPE = "https://storage.azure.com/.default"
_VERSION = "2021-12-02"
_TOKEN = "x-ms-meta-airflow_paimon_create"
_SPARE_SECONDS = 300
_PAGE = 5000
_SIGNED_HEADERS = (
    "Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date",
    "If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range",
)  # fmt: skip


def checked_options(options: Mapping[str, Any], container: str, host: str) -> str:
    """Check storage options and return them as canonical JSON, the form that a store keeps. Java's names become ours.

    Raises:
        InvalidInputError: see ``in_our_words``, or one is not what it must be; or only another account's are given.
    """
    account = host.partition(".")[0] or str(options.get("account_name"))
    found = in_our_words("Azure", options, partial(our_words, container, account), _KNOWN)
    others = [name for name in options if not _is_for(container, account, name)]
    if others and not found.keys() & {*_LOGINS, "client_id"}:
        raise InvalidInputError(f"The storage options {', '.join(others)} are not for the account {account}")
    if host:
        found["account_name"] = account
    if not found.get("account_name"):
        raise InvalidInputError(
            "The storage account is missing: write container@account.dfs.core.windows.net, or set account_name"
        )
    if len(logins := [name for name in _LOGINS if found.get(name)]) > 1:
        raise InvalidInputError(f"Only one of the storage options {', '.join(logins)} can identify the user")
    if "client_secret" in logins and not (found.get("client_id") and found.get("tenant_id")):
        raise InvalidInputError("The storage option client_secret also needs client_id and tenant_id")
    try:
        base64.b64decode(str(found.get("account_key", "")), validate=True)
    except ValueError:
        raise InvalidInputError("The storage option account_key must be in Base64, as Azure shows it") from None
    return as_json("abfs", found)


def our_words(container: str, account: str, name: str, value: Any) -> tuple[str | None, Any]:
    """Translate a storage option: see ``OurWords``. On one of another account or container nothing depends."""
    ours = name if name in _OPTIONS else _of_java(name)[0]
    if ours == "" and str(value).rpartition(".")[2] not in _JAVA_LOGINS:
        return None, value
    if ours is not None and not _is_for(container, account, name):
        return "", value
    return ours, _tenant(value) if ours == "tenant_id" else value


def _is_for(container: str, account: str, name: str) -> bool:
    of_container, owner = _of_java(name)[1:]
    return of_container in ("", container) and owner.partition(".")[0] in ("", account)


def _of_java(name: str) -> tuple[str | None, str, str]:
    """Give our name of an option of Java's engine ("" if nothing depends on it, None if unknown), and of which
    container and account it is, "" for all.
    """
    java = re.sub("^(fs[.])?azure[.]", "", name)
    for known, ours in _JAVA_OPTIONS.items():
        owner = java.removeprefix(known)
        if java != name and java.startswith(known) and owner[:1] in ("", "."):
            return ours, "", owner[1:]
    signature = re.fullmatch(r"fs[.]azure[.]sas[.]([^.]+)[.](.+)", name)
    return ("sas_token", signature[1], signature[2]) if signature else (None, "", "")


def _tenant(value: Any) -> str:
    """Find the tenant in the address of its tokens, which Java's engine is given."""
    found = re.search(r"//[^/]+/([^/]+)/", str(value))
    return found[1] if found else str(value)


class AzureClient(HttpClient):
    """Block blobs by the Blob API, also of accounts with a hierarchical namespace, where folders are blobs as well."""

    delete_headers: ClassVar[Mapping[str, str]] = {"x-ms-delete-snapshots": "include"}

    def __init__(self, options: Mapping[str, Any], host: str) -> None:
        host = host if "." in host else f"{options['account_name']}.blob.core.windows.net"
        super().__init__(options.get("endpoint_url") or f"https://{host.replace('.dfs.', '.blob.', 1)}", options)
        self._options = options
        # A plus is one: nothing in a signature is a space.
        signature = str(options.get("sas_token", "")).removeprefix("?").replace("+", "%2B")
        self._signature = dict(parse_qsl(signature))

    def object(self, bucket: str, key: str) -> str:
        return f"{self._endpoint}/{quote(bucket, safe='')}/{quote(key, safe='/')}"

    def tail(self, bucket: str, key: str, size: int) -> tuple[bytes, int]:
        """Read the last bytes. Azure takes no range from the end: a small object is read whole, a larger one again."""
        data, whole = self.get(bucket, key, f"bytes=0-{size - 1}")
        return (data, whole) if whole <= size else self.get(bucket, key, f"bytes={whole - size}-{whole - 1}")

    def head(self, bucket: str, key: str) -> str | None:
        headers = self.send("HEAD", self.object(bucket, key)).headers
        if _is_folder(headers.get):
            raise RequestError(404, "a folder")
        return headers.get(_TOKEN)

    def get_version(self, bucket: str, key: str) -> tuple[bytes, str]:
        answer = self.send("GET", self.object(bucket, key))
        return answer.body, answer.headers.get("ETag", "")

    def delete_version(self, bucket: str, key: str, version: str) -> None:
        self.send("DELETE", self.object(bucket, key), {}, {**self.delete_headers, "If-Match": version})

    def put(self, bucket: str, key: str, data: bytes, token: str = "") -> None:
        self._put(bucket, key, data, {"If-None-Match": "*", _TOKEN: token} if token else {})

    def put_version(self, bucket: str, key: str, data: bytes, version: str) -> None:
        self._put(bucket, key, data, {"If-Match": version})

    def _put(self, bucket: str, key: str, data: bytes, condition: Mapping[str, str]) -> None:
        headers = {"x-ms-blob-type": "BlockBlob", **condition}
        self.send("PUT", self.object(bucket, key), {}, headers, data, once=bool(condition))

    def begin_upload(self, bucket: str, key: str) -> str:
        return self.object(bucket, key)

    def put_part(self, upload: str, start: int, data: bytes, *, last: bool) -> None:
        self.send("PUT", upload, {"comp": "block", "blockid": _block(start)}, {}, data)
        if last:
            blocks = "".join(f"<Latest>{_block(each)}</Latest>" for each in range(0, start + 1, PART))
            body = f"<?xml version='1.0' encoding='utf-8'?><BlockList>{blocks}</BlockList>"
            self.send("PUT", upload, {"comp": "blocklist"}, {}, body.encode())

    def drop_upload(self, upload: str) -> None:
        """Nothing to do: Azure drops blocks of no list after a week, and there is no call for it."""

    def delete_folder(self, bucket: str, key: str) -> None:
        """Delete the empty blob that stands for a folder, if there is one."""
        try:
            found = self.send("HEAD", self.object(bucket, key)).headers
        except RequestError as error:
            if error.status != 404:
                raise
            return
        if _is_folder(found.get):
            self.delete(bucket, key)

    def list_all(self, bucket: str, prefix: str, delimiter: str, limit: int | None = None) -> Listing:
        objects: list[FileInfo] = []
        folders: list[str] = []
        query = {"restype": "container", "comp": "list", "include": "metadata", "maxresults": str(_PAGE)}
        query |= {"prefix": prefix} if prefix else {}
        query |= {"delimiter": delimiter} if delimiter else {}
        while True:  # each page starts after the one before it
            page = _parsed(self.send("GET", f"{self._endpoint}/{quote(bucket, safe='')}", query).body)
            objects += map(_info, page.iter("Blob"))
            folders += (_name(entry) for entry in page.iter("BlobPrefix"))
            query["marker"] = page.findtext("NextMarker") or ""
            if not query["marker"] or is_enough(objects, limit):
                break
        if delimiter:
            folders = sorted({*folders, *(f"{info.name}/" for info in objects if info.is_dir)})
        return objects, folders

    def _send_once(
        self, method: str, address: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer:
        return super()._send_once(method, address, {**self._signature, **query}, headers, body)

    def _sign(self, prepared: Any) -> Any:
        prepared.headers["x-ms-version"] = _VERSION
        prepared.headers["x-ms-date"] = formatdate(usegmt=True)
        if key := self._options.get("account_key"):
            text = _string_to_sign(prepared, self._options["account_name"]).encode()
            digest = hmac.new(base64.b64decode(key), text, hashlib.sha256).digest()
            signature = base64.b64encode(digest).decode()
            prepared.headers["Authorization"] = f"SharedKey {self._options['account_name']}:{signature}"
        elif not self._signature and not self._options.get("anon"):
            prepared.headers["Authorization"] = f"Bearer {self._access_token()}"
        return prepared

    def _access_token(self) -> str:
        """Fetch a token, and another one before it expires, by one thread at a time."""
        from azure.core.exceptions import AzureError

        with self._lock:
            try:
                if self._credentials is None or self._credentials.expires_on < time.time() + _SPARE_SECONDS:
                    self._credentials = _credential(self._options).get_token(_SCOPE)
            except (AzureError, OSError, ValueError) as error:
                raise RequestError(401, f"no access token: {str(error)[:300]}") from error
            token: str = self._credentials.token
            return token

    def _refusal(self, response: Any) -> RequestError:
        status, code = response.status_code, response.headers.get("x-ms-error-code", "")
        try:
            page = ElementTree.fromstring(response.content)
            said = (page.findtext("Message") or "").partition("\n")[0]
            more = page.findtext("AuthenticationErrorDetail") or ""
        except ElementTree.ParseError:
            said, more = response.reason, ""
        if "MAC signature" in more:
            more = "the account's key is another one"
        if code == "BlobAlreadyExists":
            status = EXISTS
        reason = f"{response.status_code} {code}: {said} {more}".strip()[:300]
        return RequestError(status, reason, code=NO_BUCKET if code == "ContainerNotFound" else code)


def _credential(options: Mapping[str, Any]) -> Any:
    """Find what gives tokens: an application's secret or file, else what the environment and the machine have."""
    from azure import identity

    who: Any = options.get("client_id")
    tenant: Any = options.get("tenant_id")
    if secret := options.get("client_secret"):
        return identity.ClientSecretCredential(tenant, who, secret)
    if file := options.get("token_file"):
        return identity.WorkloadIdentityCredential(tenant_id=tenant, client_id=who, token_file_path=file)
    chosen = {"managed_identity_client_id": who, "workload_identity_client_id": who} if who else {}
    return identity.DefaultAzureCredential(**chosen)


def _string_to_sign(prepared: Any, account: str) -> str:
    """Spell a request in the form over which Azure computes the signature."""
    headers = {name.lower(): value for name, value in prepared.headers.items()}
    if headers.get("content-length") == "0":
        del headers["content-length"]
    at = urlsplit(prepared.url)
    own = sorted((name, value) for name, value in headers.items() if name.startswith("x-ms-"))
    query = sorted((name.lower(), value) for name, value in parse_qsl(at.query, keep_blank_values=True))
    return "\n".join([
        prepared.method,
        *(headers.get(name.lower(), "") for name in _SIGNED_HEADERS),
        *(f"{name}:{value}" for name, value in own),
        f"/{account}{at.path}",
        *(f"{name}:{value}" for name, value in query),
    ])  # fmt: skip


def _block(start: int) -> str:
    return base64.b64encode(f"{start:015d}".encode()).decode()


def _parsed(body: bytes) -> ElementTree.Element:
    try:
        found = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        found = None
    if found is None or found.tag != "EnumerationResults":
        raise RequestError(200, "what answered is not Azure Blob Storage")
    return found


def _is_folder(header: Callable[[str], str | None]) -> bool:
    """Whether a blob stands for a folder: Hadoop's driver marks it, and an account with a hierarchical namespace."""
    return header("x-ms-meta-hdi_isfolder") == "true" or header("x-ms-resource-type") == "directory"


def _name(entry: ElementTree.Element) -> str:
    name = entry.find("Name")
    assert name is not None
    return unquote(name.text or "") if name.get("Encoded") == "true" else name.text or ""


def _info(entry: ElementTree.Element) -> FileInfo:
    is_folder = (
        entry.findtext("Metadata/hdi_isfolder") == "true" or entry.findtext("Properties/ResourceType") == "directory"
    )
    modified = parsedate_to_datetime(entry.findtext("Properties/Last-Modified") or "")
    size = int(entry.findtext("Properties/Content-Length") or 0)
    return FileInfo(_name(entry), is_folder, size, int(modified.timestamp() * 1000))
