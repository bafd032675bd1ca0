"""What the button *Test* of a connection checks, and what it advises."""

from __future__ import annotations

import os
import pwd
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from airflow_paimon._compat import AirflowNotFoundException
from airflow_paimon.core.catalogs import storage_only
from airflow_paimon.core.catalogs.filesystem import FilesystemCatalog
from airflow_paimon.core.errors import (
    InvalidInputError,
    NotFoundError,
    PaimonError,
    StorageError,
    did_you_mean,
    first_few,
)
from airflow_paimon.core.store import Store, open_store, s3_client
from airflow_paimon.core.store.base import FileInfo
from airflow_paimon.core.store.object_client import RequestError
from airflow_paimon.hooks._catalog_check import LISTED, check_catalog_access, described, tables_of
from airflow_paimon.notify import choose_notifiers
from airflow_paimon.shown.listing import counted

if TYPE_CHECKING:
    from airflow_paimon.hooks.paimon import PaimonHook

T = TypeVar("T")

PATIENCE_SECONDS = 20.0
_ONE_TRY = {"connect_timeout": 4, "read_timeout": 8, "retries": {"mode": "standard", "total_max_attempts": 1}}
_MOST_FOLDERS = 20
"""Folders that are looked into, for tables or for databases."""
_MOST_TABLES = 1000
"""Names that patterns of ``masked_columns`` are compared with."""
_SUFFIX = ".db"
_SPARK_TYPES = ("spark", "spark_connect")
_OF_TABLES = frozenset({"schema", "snapshot", "manifest"})

_KEYS = "Enter Access key and Secret key again, or leave both empty for the machine's own credentials"
_REGION = "Set Region to the bucket's"
_NOT_S3 = "What answers at Endpoint is broken, or is not S3: check its address and port"
_UNHEARD = "Check the address, and that this machine reaches it"
_UNREACHABLE = "Check Endpoint (http:// or https://, host, port) and that this machine reaches it"
_AZURE_LOGINS = (
    "Correct account_key, sas_token or client_id, tenant_id and client_secret in Storage options, or leave them out "
    "for the machine's own identity"
)
_ADVICE: Mapping[str, Mapping[str, str]] = {
    "s3": {
        "InvalidAccessKeyId": f"The storage doesn't know this access key. {_KEYS}; set Endpoint where it is not AWS",
        "SignatureDoesNotMatch": f"The secret key doesn't belong to the access key. {_KEYS}",
        "InvalidToken": "The session token is not of this access key: enter it again, or empty it for a permanent key",
        "ExpiredToken": "The session token has expired: enter a new one",
        "NoSuchBucket": "Correct the bucket's name in Warehouse, create the bucket, or set Endpoint where it isn't AWS",
        "PermanentRedirect": _REGION,
        "AuthorizationHeaderMalformed": _REGION,
        "IllegalLocationConstraintException": _REGION,
        "status 301": _REGION,
        "status 307": _REGION,
        "status 401": _KEYS,
        "status 403": "The key may not list the bucket: it needs s3:ListBucket, and s3:GetObject, s3:PutObject and "
        "s3:DeleteObject in the warehouse. AWS returns the same for another account's bucket: check its name",
        "status 404": _NOT_S3,
        "status 500": _NOT_S3,
        "NoCredentialsError": f"There is no access key here, in the environment, or of the instance. {_KEYS}",
        "PartialCredentialsError": f"Access key and Secret key belong together. {_KEYS}",
        "ResponseParserError": _NOT_S3,
        "SSLError": "Endpoint begins with https://, but no trusted certificate answers there: check http:// or "
        'https://, or name the certificate in Storage options: {"client_kwargs": {"verify": "/path/ca.pem"}}',
        "status 0": _UNREACHABLE,
    },
    "gcs": {
        "status 0": "Check the option endpoint_url in Storage options, if it is set, and that this machine reaches it",
        "status 401": "Correct the option token in Storage options (the path of a key file, or its content), or leave "
        "it out for the machine's own credentials",
        "status 403": "The account may not list the bucket: it needs storage.objects.list, and get, create and delete "
        "on what is in the warehouse",
        "status 404": "Correct the bucket's name in Warehouse, or create the bucket",
        "": "Check that Google Cloud Storage answers at this address",
    },
    "azure": {
        "status 0": "Check the account's name in Warehouse, or endpoint_url in Storage options, and that this machine "
        "reaches it",
        "status 401": _AZURE_LOGINS,
        "status 403": f"{_AZURE_LOGINS}; it needs the role Storage Blob Data Contributor, and this machine's clock to "
        "be right",
        "status 404": "Correct the container's name in Warehouse, or create the container",
        "": "Check that Azure Blob Storage answers at this address",
    },
    "oss": {
        "status 0": "Check Endpoint and Region, and that this machine reaches it",
        "status 401": "There is no access key here or in the environment: fill in Access key and Secret key",
        "status 403": "Correct Access key and Secret key; they need the rights to list, get, put and delete, and this "
        "machine's clock must be right",
        "status 404": "Correct the bucket's name in Warehouse, or create the bucket",
        "": "Check that OSS answers at this address",
    },
    "hdfs": {
        "Permission denied": "The user is HADOOP_USER_NAME, the Kerberos ticket's, or else who this process runs as: "
        "<user>",
        "StandbyException": "This is a standby name node: name the active one in Warehouse, or by hdfs:// the name "
        "service",
        "SafeModeException": "The name node is in safe mode: wait until it has left that, or let an administrator end "
        "it",
        "RetriableException": "The name node is starting: wait until it has left its safe mode",
        "RPCError(": "The name node's log shows the cause",
        "": "Check the host and port in Warehouse, and that this machine reaches them",
    },
    "": {"": "This process runs as user <user>"},
}
"""By the kind of storage: what to do by what it has answered, the first that is in that. ``status 0``: no answer."""


def check_connection(hook: PaimonHook) -> tuple[bool, str]:
    """Say whether the connection is right, and of one that isn't what to change."""
    try:
        hook.check_settings()
        _check_spark(hook)
        choose_notifiers(hook.notify, None, hook.paimon_conn_id)
        is_folder = hook.catalog_type == "filesystem"
        where = hook.warehouse if is_folder else hook.get_catalog().label
        way_out = _UNREACHABLE if is_folder and hook.storage == "s3" else _UNHEARD
        return within(PATIENCE_SECONDS, where, lambda: _check_tables(hook), way_out)
    except InvalidInputError as error:  # perhaps there is no warehouse whose kind of storage could be named
        return False, error.message
    except PaimonError as error:
        return False, _with_advice(hook.storage, error)


def _check_tables(hook: PaimonHook) -> tuple[bool, str]:
    """Look for the tables, and where they are right for what the connection hides of them."""
    if hook.catalog_type == "filesystem":
        found = _look(_store(hook))
    else:
        options = storage_only(hook.storage_options)
        found = check_catalog_access(
            hook.get_catalog(),
            hook.catalog_type,
            lambda: open_store(hook.warehouse, options),
            lambda uri, error: _with_advice(hook.storage_of(uri), error),
        )
    if found[0]:
        _check_masks(hook)
    return found


def within(seconds: float, where: str, look: Callable[[], T], way_out: str = _UNHEARD) -> T:
    """Give what ``look`` gives. ``StorageError`` when that takes longer; it then goes on in a daemon thread."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(look())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="paimon-connection-test", daemon=True).start()
    if not wait([future], seconds).done:
        raise StorageError(f"{where} didn't answer within {seconds:g} seconds. {way_out}")
    return future.result()


def _check_spark(hook: PaimonHook) -> None:
    conn_id, options = hook.spark_conn_id, hook.spark_settings().options
    conn_type = None if conn_id is None else _spark_type(hook, conn_id)
    if options and conn_id is not None and conn_type == "spark_connect":
        from airflow_paimon.hooks.spark_connect_job import check_connect_options

        check_connect_options(conn_id, options)
    elif options:
        from airflow_paimon.hooks.spark_job import check_options

        check_options(options)


def _spark_type(hook: PaimonHook, conn_id: str) -> str:
    try:
        conn_type = hook.get_connection(conn_id).conn_type
    except AirflowNotFoundException:
        raise InvalidInputError(
            f"There is no Airflow connection {conn_id!r}, which the field Spark connection names; create one of type "
            f"'spark' or 'spark_connect', or correct the name"
        ) from None
    if conn_type not in _SPARK_TYPES:
        raise InvalidInputError(
            f"The Spark connection {conn_id!r} is of type {conn_type!r}; it must be of type 'spark' or 'spark_connect'"
        )
    return str(conn_type)


def _store(hook: PaimonHook) -> Store:
    """Open the warehouse, a remote one with few tries: who waits here wants the reason soon."""
    options = dict(storage_only(hook.storage_options) or {})
    if hook.storage == "s3":
        options["config_kwargs"] = {**(options.get("config_kwargs") or {}), **_ONE_TRY}
    elif hook.storage in ("gcs", "azure", "oss"):
        options["tries"] = 1
    elif hook.storage == "hdfs":
        options.setdefault("dfs.client.failover.max.attempts", "2")
    elif "://" not in hook.warehouse and not hook.warehouse.startswith(("/", "file:")):
        raise InvalidInputError(
            f"The warehouse {hook.warehouse!r} is a relative path, which means another folder in each process; give "
            f"the whole path, such as {os.path.abspath(hook.warehouse)}"
        )
    return open_store(hook.warehouse, options or None)


def _look(store: Store) -> tuple[bool, str]:
    entries = store.list("")
    if store.uri.startswith("file://"):
        _check_local(store.uri.removeprefix("file://"), entries)
    folders = [entry.name for entry in entries if entry.is_dir]
    databases = [f.removesuffix(_SUFFIX) for f in folders if f.endswith(_SUFFIX) and f != _SUFFIX]
    if not databases:
        return False, _without_database(store, folders)
    place = store.uri.removeprefix("file://")
    tables = list(islice(tables_of(FilesystemCatalog(store), databases), _MOST_FOLDERS + 1))
    found = any(table.exists() for table in tables[:_MOST_FOLDERS])
    if 0 < len(tables) <= _MOST_FOLDERS and not found:
        return False, (
            f"{counted(len(databases), 'database')} in {place}, but none of the {len(tables)} folders in there is a "
            f"Paimon table (a folder with schema/schema-0): this is a warehouse of another format. Correct the path in "
            f"Warehouse"
        )
    return True, f"{described(databases, place, tables)}{_read_only(store)}"


def _check_local(path: str, entries: Sequence[FileInfo]) -> None:
    if entries or os.path.isdir(path):
        return
    if os.path.exists(path):
        raise InvalidInputError(f"{path} is a file; the warehouse is the folder with the databases")
    above = os.path.dirname(path)
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    raise NotFoundError(
        f"There is no folder {path} on this machine ({above} exists). Correct the path, create the folder, or mount "
        "the storage here and, under the same path, on every worker"
    )


def _without_database(store: Store, folders: Sequence[str]) -> str:
    uri = store.uri.removeprefix("file://")
    above = uri.rstrip("/").rpartition("/")[0]
    if len(_OF_TABLES & set(folders)) > 1:
        top = above.rpartition("/")[0]
        return f"{uri} is a table; the warehouse is the folder above its database. Set Warehouse to {top}"
    if uri.rstrip("/").endswith(_SUFFIX):
        return f"{uri} is a database; the warehouse is the folder above it. Set Warehouse to {above}"
    if not folders:
        return (
            f"There is no database in {uri}: it is empty. A new warehouse gets its first one by CREATE DATABASE in "
            f"Spark or Flink, or by CreateChainTableOperator. Otherwise correct the path in Warehouse"
        )
    for folder in folders[:_MOST_FOLDERS]:
        if any(entry.is_dir and entry.name.endswith(_SUFFIX) for entry in store.list(folder)):
            below = f"{uri.rstrip('/')}/{folder}"
            return f"There is no database in {uri}, but in its folder {folder}. Set Warehouse to {below}"
    return (
        f"{uri} is not a Paimon warehouse: none of its folders is a database (a folder name.db). It contains "
        f"{first_few(folders, LISTED)}. Correct the path in Warehouse"
    )


def _read_only(store: Store) -> str:
    path = store.uri.removeprefix("file://")
    if not store.uri.startswith("file://") or os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    return f". This process (user {_user()}) may read it, but not write: give it that right"


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user without a name
        return str(os.geteuid())


def _with_advice(storage: str, error: PaimonError) -> str:
    """Return an error's message with what to do about it. ``storage``: the kind of storage that was looked at."""
    if error.__cause__ is None or not isinstance(error, StorageError | NotFoundError):
        return error.message
    answer = _answer(storage, error, error.__cause__)
    advice = next((advice for part, advice in _ADVICE[storage].items() if part in answer), "")
    return f"{error.message.rstrip('.')}. {advice}".replace("<user>", _user()) if advice else error.message


def _answer(storage: str, error: PaimonError, cause: BaseException) -> str:
    """Return what tells why a storage failed."""
    if storage == "s3":
        kinds = " ".join(cls.__name__ for cls in type(cause.__cause__ or cause).__mro__)
        return f"{s3_client.code_of(cause)} status {s3_client.status_of(cause)} {kinds}"
    if storage == "hdfs":
        return f"{error.message} {cause}"
    return f"status {cause.status if isinstance(cause, RequestError) else 0}"


def _check_masks(hook: PaimonHook) -> None:
    """Look for the tables and columns that the connection hides: a name that nothing has hides nothing.

    Raises:
        InvalidInputError: names one that isn't there.
    """
    for pattern, columns in hook.masked.items():
        known = _columns_of(hook, pattern, {c.strip().lower() for c in columns})
        missing = [c for c in columns if c.strip().lower() not in known]
        if missing:
            meant = did_you_mean(missing[0].lower(), known)
            raise InvalidInputError(
                f"masked_columns: {pattern} has no column {missing[0]}{meant}, so nothing is hidden there. Correct the "
                f"name, or leave it out"
            )


def _columns_of(hook: PaimonHook, pattern: str, wanted: set[str]) -> set[str]:
    """Return the columns of the tables that a pattern names, all versions of them, in lower case; not of further
    tables once all that are ``wanted`` are found.
    """
    if any(c in pattern for c in "*?["):
        catalog = hook.get_catalog()
        every = (f"{database}.{table}" for database in catalog.databases() for table in catalog.tables(database))
        names = [n for n in islice(every, _MOST_TABLES) if fnmatchcase(n.lower(), pattern.strip().lower())]
    else:
        names = [pattern.strip()]
    found: set[str] = set()
    opened = 0
    for name in names:
        if wanted <= found and opened:
            break
        try:
            schemas = hook.get_table(name).require().schemas()
            found |= {field.name.lower() for schema in schemas for field in schema.fields}
            opened += 1
        except PaimonError:  # none, one of another format, or one that this user may not read
            continue
    if not opened:
        raise InvalidInputError(
            f"masked_columns: there is no table {pattern} that can be read, so nothing is hidden there. Correct the "
            f"name, or leave it out"
        )
    return found
