"""Storage options from the connections that users have for the providers of Amazon, Google, Microsoft and Alibaba."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Connection

_GOOGLE_PREFIX = "extra__google_cloud_platform__"
_NOT_TAKEN = {
    "aws": ("role_arn", "assume_role_method", "assume_role_with_web_identity_token_file", "profile_name"),
    "google_cloud_platform": ("impersonation_chain", "key_secret_name", "credential_config_file"),
    "wasb": ("connection_string", "managed_identity_client_id"),
    "adls": ("connection_string", "managed_identity_client_id"),
    "oss": (),
}


def options_from(connection: Connection, storage: str) -> dict[str, Any]:
    """Return the storage options that a connection means, for the kind of storage that the warehouse is on.

    Raises:
        InvalidInputError: it is a connection for another storage, or logs in by a way that jobs can't take over.
    """
    of, read = _READERS.get(connection.conn_type or "", ("", None))
    if read is None or of != storage:
        fitting = [kind for kind, (name, _) in _READERS.items() if name == storage]
        raise InvalidInputError(
            f"The storage connection {connection.conn_id!r} is of type {connection.conn_type!r}; for this warehouse it "
            + (f"must be of type {' or '.join(map(repr, fitting))}" if fitting else "is not needed: leave it empty")
        )
    extras = _extras(connection)
    given = [name for name in _NOT_TAKEN[str(connection.conn_type)] if extras.get(name)]
    if given:
        raise InvalidInputError(
            f"The storage connection {connection.conn_id!r} uses {', '.join(given)}, which jobs on a cluster can't "
            f"take over; leave it empty and give workers and cluster these rights, or name keys in it"
        )
    return {name: value for name, value in read(connection, extras).items() if value}


def _extras(connection: Connection) -> dict[str, Any]:
    return {name.removeprefix(_GOOGLE_PREFIX): value for name, value in connection.extra_dejson.items()}


def _aws(connection: Connection, extras: Mapping[str, Any]) -> dict[str, Any]:
    service = extras.get("service_config")
    s3 = service.get("s3") if isinstance(service, Mapping) else None
    own = s3.get("endpoint_url") if isinstance(s3, Mapping) else None
    return {
        "key": extras.get("aws_access_key_id") or connection.login,
        "secret": extras.get("aws_secret_access_key") or connection.password,
        "token": extras.get("aws_session_token"),
        "endpoint_url": own or extras.get("endpoint_url"),
        "region": extras.get("region_name"),
    }


def _google(connection: Connection, extras: Mapping[str, Any]) -> dict[str, Any]:
    if str(extras.get("is_anonymous", "")).lower() == "true":
        return {"token": "anon"}
    key = extras.get("keyfile_dict")
    if isinstance(key, str) and key.strip():
        try:
            key = json.loads(key)
        except ValueError:
            raise InvalidInputError(
                f"The storage connection {connection.conn_id!r}: keyfile_dict must be a JSON object"
            ) from None
    return {"token": key or extras.get("key_path")}


def _azure(connection: Connection, extras: Mapping[str, Any]) -> dict[str, Any]:
    """Both types give a client's id and secret together with a tenant, else a key of the account."""
    tenant = extras.get("tenant_id")
    if tenant:
        return {"tenant_id": tenant, "client_id": connection.login, "client_secret": connection.password}
    if extras.get("sas_token"):
        return {"sas_token": str(extras["sas_token"]).rpartition("?")[2]}
    return {"account_key": extras.get("shared_access_key") or connection.password}


def _oss(connection: Connection, extras: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "key": extras.get("access_key_id"),
        "secret": extras.get("access_key_secret"),
        "region": extras.get("region"),
        "endpoint_url": extras.get("endpoint"),
    }


_READERS: dict[str, tuple[str, Callable[[Connection, Mapping[str, Any]], dict[str, Any]]]] = {
    "aws": ("s3", _aws),
    "google_cloud_platform": ("gcs", _google),
    "wasb": ("azure", _azure),
    "adls": ("azure", _azure),
    "oss": ("oss", _oss),
}
