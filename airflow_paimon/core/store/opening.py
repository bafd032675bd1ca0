"""Opens the store for a path or a URI."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from airflow_paimon.core.errors import InvalidInputError, UnsupportedStorageError
from airflow_paimon.core.store import azure_client, gcs_client, oss_client, s3_client
from airflow_paimon.core.store.azure import AzureStore
from airflow_paimon.core.store.base import Store, object_name
from airflow_paimon.core.store.gcs import GcsStore
from airflow_paimon.core.store.hdfs import HdfsStore
from airflow_paimon.core.store.local import LocalStore
from airflow_paimon.core.store.memory import MemoryStore
from airflow_paimon.core.store.object_client import OurWords
from airflow_paimon.core.store.object_store import ObjectStore
from airflow_paimon.core.store.oss import OssStore
from airflow_paimon.core.store.s3 import S3Store

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.:-]*):/")
_OBJECTS: dict[str, tuple[str, type[ObjectStore]]] = {
    "s3": ("s3", S3Store), "s3a": ("s3", S3Store), "gs": ("gs", GcsStore), "gcs": ("gs", GcsStore),
    "oss": ("oss", OssStore),
    **{scheme: (scheme, AzureStore) for scheme in ("abfs", "abfss", "az", "wasb", "wasbs")},
}  # fmt: skip
"""By the schemes of URIs: what a store calls it, and its kind."""


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A URI and options: enough to open the store in another process. Its repr shows only the names of options."""

    uri: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        _refuse_secrets(self.uri)

    def __repr__(self) -> str:
        return f"StoreSpec({self.uri!r}, options={sorted(self.options)})"

    def open(self) -> Store:
        return open_store(self.uri, self.options)


def open_store(uri_or_path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Store:
    """Open the store rooted at a path or a URI: ``file:``, ``s3://``, ``s3a://``, ``gs://``, ``abfs(s)://``,
    ``wasb(s)://``, ``az://``, ``oss://``, ``hdfs://``, ``viewfs://``, ``memory://`` or fsspec's.

    The URI is literal, as Paimon's Java engine writes it: ``%3A`` in it stays ``%3A``, nothing is unquoted.
    Nothing is read yet. ``storage_options`` apply to object stores; local and memory stores ignore them.

    Raises:
        InvalidInputError: the URI is malformed or holds a password, or an option is unknown.
        UnsupportedStorageError: the scheme is not supported, or its package is not installed.
    """
    uri = os.fspath(uri_or_path)
    if not uri:
        raise InvalidInputError("A store needs a path or a URI, not ''")
    _refuse_secrets(uri)
    match = _SCHEME.match(uri)
    if match is None:
        return LocalStore(uri)
    scheme = match[1].lower()
    if scheme == "file":
        return LocalStore(_local_path(uri))
    if not uri[len(scheme) :].startswith("://"):
        raise InvalidInputError(f"The URI {uri!r} needs two slashes after its scheme: {scheme}://")
    root = uri[len(scheme) + 3 :]
    if scheme in _OBJECTS:
        kept, kind = _OBJECTS[scheme]
        authority, _, prefix = root.partition("/")
        return kind(kept, authority, _checked_root(prefix), storage_options)
    if scheme in ("hdfs", "viewfs"):
        authority, _, path = root.partition("/")
        return HdfsStore(scheme, authority, _checked_root(path), storage_options)
    if scheme == "memory":
        return MemoryStore(_checked_root(root))
    # Imported here because fsspec takes 0.3 s and local paths and s3:// don't need it.
    from airflow_paimon.core.store.fsspec_store import FsspecStore, is_known

    if is_known(scheme):
        return FsspecStore(scheme, root.rstrip("/"), storage_options)
    raise UnsupportedStorageError(
        f"No storage is known for {scheme}:// ({uri}); use a path, file://, s3://, gs://, abfs://, oss://, hdfs://, "
        "or a scheme that fsspec reads"
    )


def merged_options(uri: str, options: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options with others over them: what both have, by any of its names, is the others'."""
    our_words = _our_words(uri)

    def ours(name: str, value: Any) -> str:
        return (our_words(name, value)[0] if our_words else None) or name

    taken = {ours(name, value) for name, value in over.items()}
    return {**{name: value for name, value in options.items() if ours(name, value) not in taken}, **over}


def java_options(uri: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of Paimon's Java engine that are for the storage of a URI."""
    our_words = _our_words(uri)
    return {name: value for name, value in options.items() if our_words and "." in name and our_words(name, value)[0]}


def _our_words(uri: str) -> OurWords | None:
    scheme, _, rest = uri.partition("://")
    container, _, host = rest.partition("/")[0].partition("@")
    words: Mapping[type[ObjectStore], OurWords] = {
        S3Store: s3_client.our_words,
        GcsStore: gcs_client.our_words,
        OssStore: oss_client.our_words,
        AzureStore: partial(azure_client.our_words, container, host.partition(".")[0]),
    }
    kind = _OBJECTS.get(scheme.lower())
    return None if kind is None else words[kind[1]]


def _local_path(uri: str) -> str:
    rest = uri[len("file:") :]
    if not rest.startswith("//"):
        return rest
    host, slash, path = rest[2:].partition("/")
    if host not in ("", "localhost") or not slash:
        raise InvalidInputError(f"The URI {uri!r} names the host {host!r}; a local folder is file:///…")
    return f"/{path}"


def _checked_root(root: str) -> str:
    root = root.strip("/")
    return object_name(root) if root else ""


def _refuse_secrets(uri: str) -> None:
    """Refuse credentials inside a URI: it ends up in logs, results and error messages."""
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme.lower() == "file":
        return
    authority = rest.split("/", 1)[0]
    user = authority.rpartition("@")[0]
    _, kind = _OBJECTS.get(scheme.lower(), ("", None))
    signed = "?" in rest and kind in (None, AzureStore) and scheme.lower() != "memory"
    if ":" in user or signed or (user and kind not in (None, AzureStore)):
        raise InvalidInputError(f"A {scheme}:// URI must not contain credentials; pass them as storage options")
