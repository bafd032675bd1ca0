"""Requests to Alibaba Cloud OSS, signed (version 4) by Alibaba's own package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.store.base import FileInfo
from airflow_paimon.core.store.http_client import HttpClient
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

_OPTIONS = frozenset({"anon", "endpoint_url", "key", "region", "secret", "token", "tries"})
_JAVA_OPTIONS = {
    "fs.oss.accessKeyId": "key",
    "fs.oss.accessKeySecret": "secret",
    "fs.oss.securityToken": "token",
    "fs.oss.endpoint": "endpoint_url",
    "fs.oss.region": "region",
}
"""What Paimon's Java engine calls them; it matches the first three regardless of case."""
_BY_LOWER_NAME = {name.lower(): ours for name, ours in _JAVA_OPTIONS.items()}
_REGION = re.compile(r"oss-([a-z0-9-]+?)(-internal)?[.]")
_TOKEN = "x-oss-meta-airflow-paimon-create"
_PAGE = 1000


def our_words(name: str, value: Any) -> tuple[str | None, Any]:
    """Translate a storage option: see ``OurWords``."""
    return name if name in _OPTIONS else _BY_LOWER_NAME.get(name.lower()), value


def checked_options(options: Mapping[str, Any]) -> str:
    """Check storage options and return them as canonical JSON, the form that a store keeps. Java's names become ours.

    Raises:
        InvalidInputError: see ``in_our_words``, or one is missing, or not what it must be.
    """
    found = in_our_words("oss://", options, our_words, sorted({*_OPTIONS, *_JAVA_OPTIONS}))
    if bool(found.get("key")) is not bool(found.get("secret")):
        raise InvalidInputError("The storage options key and secret of oss:// go together")
    _set_place(found)
    return as_json("oss", found)


def _set_place(found: dict[str, Any]) -> None:
    """Find the endpoint by the region, and the region, which each signature names, by the endpoint."""
    endpoint, region = str(found.get("endpoint_url") or ""), found.get("region")
    if not endpoint and not region:
        raise InvalidInputError(
            "The bucket's place is missing: set endpoint_url (oss-cn-hangzhou.aliyuncs.com) or region"
        )
    endpoint = endpoint or f"oss-{region}.aliyuncs.com"
    found["endpoint_url"] = endpoint if "://" in endpoint else f"https://{endpoint}"
    match = _REGION.match(urlsplit(found["endpoint_url"]).hostname or "")
    if not region and not match and not found.get("anon"):
        raise InvalidInputError(f"The endpoint {endpoint} doesn't contain its region: add the storage option region")
    found["region"] = str(region or (match[1] if match else "")).removeprefix("oss-")


class OssClient(HttpClient):
    """Objects by OSS's API. A bucket is the first part of the host's name, or of the path where the host is an IP."""

    condition: ClassVar[str] = "x-oss-forbid-overwrite"
    keeps_answer: ClassVar[bool] = False  # versioning may be switched on at any time

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(str(options["endpoint_url"]), options)
        self._options = options
        self._at = urlsplit(self._endpoint)
        self._in_path = _is_ip(self._at.hostname or "")

    def endpoint(self) -> str:
        return self._endpoint

    def is_trusted_endpoint(self) -> bool:
        """Never: on a bucket that keeps versions OSS ignores the condition of a put."""
        return False

    def object(self, bucket: str, key: str) -> str:
        name = quote(key, safe="/")
        if self._in_path:
            return f"{self._endpoint}/{quote(bucket, safe='')}/{name}"
        return f"{self._at.scheme}://{quote(bucket, safe='')}.{self._at.netloc}/{name}"

    def get(self, bucket: str, key: str, byte_range: str = "") -> tuple[bytes, int]:
        # Without "standard" a range behind the end gives the whole object.
        headers = {"Range": byte_range, "x-oss-range-behavior": "standard"} if byte_range else {}
        return self.send("GET", self.object(bucket, key), {}, headers).content

    def get_from(self, bucket: str, key: str) -> tuple[bytes, str]:
        """Read an object, and what the server calls itself."""
        answer = self.send("GET", self.object(bucket, key))
        return answer.body, answer.headers.get("Server", "")

    def head(self, bucket: str, key: str) -> str | None:
        return self.send("HEAD", self.object(bucket, key)).headers.get(_TOKEN)

    def put(self, bucket: str, key: str, data: bytes, token: str = "") -> None:
        headers = {"x-oss-forbid-overwrite": "true", _TOKEN: token} if token else {}
        self.send("PUT", self.object(bucket, key), {}, headers, data, once=bool(token))

    def begin_upload(self, bucket: str, key: str) -> str:
        address = self.object(bucket, key)
        upload = _parsed(self.send("POST", address, {"uploads": ""}).body, "InitiateMultipartUploadResult")
        return f"{address}?uploadId={quote(upload.findtext('UploadId') or '', safe='')}"

    def put_part(self, upload: str, start: int, data: bytes, *, last: bool) -> None:
        address, _, number = upload.partition("?uploadId=")
        query = {"uploadId": unquote(number)}
        self.send("PUT", address, {"partNumber": str(start // PART + 1), **query}, {}, data)
        if last:
            try:
                self.send("POST", address, query, {"x-oss-complete-all": "yes"})
            except RequestError as error:
                # The answer to an earlier try got lost: the upload is no more as it is complete.
                if error.code != "NoSuchUpload" or not error.applied:
                    raise

    def drop_upload(self, upload: str) -> None:
        address, _, number = upload.partition("?uploadId=")
        self.send("DELETE", address, {"uploadId": unquote(number)})

    def list_all(self, bucket: str, prefix: str, delimiter: str, limit: int | None = None) -> Listing:
        objects: list[FileInfo] = []
        folders: list[str] = []
        query = {"list-type": "2", "encoding-type": "url", "max-keys": str(_PAGE)}
        query |= {"prefix": prefix} if prefix else {}
        query |= {"delimiter": delimiter} if delimiter else {}
        while True:  # each page starts after the one before it
            page = _parsed(self.send("GET", self.object(bucket, ""), query).body, "ListBucketResult")
            objects += map(_info, page.iterfind("Contents"))
            folders += (unquote(entry.text or "") for entry in page.iterfind("CommonPrefixes/Prefix"))
            if page.findtext("IsTruncated") != "true" or is_enough(objects, limit):
                return objects, folders
            query["continuation-token"] = unquote(page.findtext("NextContinuationToken") or "")

    def _sign(self, prepared: Any) -> Any:
        if self._options.get("anon"):
            return prepared
        from alibabacloud_oss_v2.exceptions import BaseError
        from alibabacloud_oss_v2.signer import SignerV4
        from alibabacloud_oss_v2.types import HttpRequest, SigningContext

        bucket, key = self._named(prepared.url)
        request = HttpRequest(prepared.method, prepared.url, headers=prepared.headers)
        try:
            context = SigningContext(product="oss", region=self._options["region"], bucket=bucket, key=key,
                                     request=request, credentials=self._who())  # fmt: skip
            SignerV4().sign(context)
        except BaseError as error:
            raise RequestError(401, f"no key: {error}") from error
        prepared.headers.update(request.headers)
        return prepared

    def _who(self) -> Any:
        from alibabacloud_oss_v2 import credentials

        if self._options.get("key"):
            return credentials.StaticCredentialsProvider(
                self._options["key"], self._options["secret"], self._options.get("token")
            ).get_credentials()
        return credentials.EnvironmentVariableCredentialsProvider().get_credentials()

    def _named(self, url: str) -> tuple[str, str]:
        """Read the bucket and the key from an address."""
        at = urlsplit(url)
        path = unquote(at.path).removeprefix("/")
        if self._in_path:
            bucket, _, key = path.partition("/")
            return bucket, key
        return (at.hostname or "").partition(".")[0], path

    def _refusal(self, response: Any) -> RequestError:
        status = response.status_code
        try:
            page = ElementTree.fromstring(response.content)
            code, said = page.findtext("Code") or "", page.findtext("Message") or ""
        except ElementTree.ParseError:
            code, said = "", response.reason
        reason = f"{status} {code}: {said}".strip()[:300]
        if code == "FileAlreadyExists":
            status = EXISTS
        return RequestError(status, reason, code=NO_BUCKET if code == "NoSuchBucket" else code)


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _parsed(body: bytes, tag: str) -> ElementTree.Element:
    try:
        found = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        found = None
    if found is None or found.tag.rpartition("}")[2] != tag:
        raise RequestError(200, "what answered is not OSS")
    return found


def _info(entry: ElementTree.Element) -> FileInfo:
    modified = datetime.fromisoformat(entry.findtext("LastModified") or "")
    size = int(entry.findtext("Size") or 0)
    return FileInfo(unquote(entry.findtext("Key") or ""), False, size, int(modified.timestamp() * 1000))
