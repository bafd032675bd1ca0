"""The calls to a Hive metastore that its catalog needs, and what the metastore's errors mean.

Names and numbers are those of ``hive_metastore.thrift``. All calls exist since Hive 2.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlsplit

from airflow_paimon.core.catalogs.thrift import (
    ApplicationError,
    Struct,
    Value,
    call_bytes,
    flag,
    i32,
    i64,
    read_reply,
    structure,
    structures,
    text,
    text_map,
    texts,
)
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    PaimonError,
    StorageError,
    UnsafeOperationError,
    UnsupportedCatalogError,
)

EXAMPLE = "thrift://host:9083"
_PORT = 9083
_CONNECT_SECONDS = 10.0
_AGENT = "airflow-paimon"
_EXCLUSIVE, _TABLE_LEVEL = 3, 2
_ACQUIRED, _WAITING = 1, 2
_RAISES: Mapping[str, Sequence[str]] = {
    "set_ugi": ("Meta",),
    "get_all_databases": ("Meta",),
    "get_all_tables": ("Meta",),
    "get_database": ("NoSuchObject", "Meta"),
    "create_database": ("AlreadyExists", "InvalidObject", "Meta"),
    "drop_database": ("NoSuchObject", "InvalidOperation", "Meta"),
    "get_table": ("Meta", "NoSuchObject"),
    "get_table_objects_by_name": ("Meta", "InvalidOperation", "UnknownDB"),
    "create_table": ("AlreadyExists", "InvalidObject", "Meta", "NoSuchObject"),
    "alter_table_with_environment_context": ("InvalidOperation", "Meta"),
    "lock": ("NoSuchTxn", "TxnAborted"),
    "check_lock": ("NoSuchTxn", "TxnAborted", "NoSuchLock"),
    "unlock": ("NoSuchLock", "TxnOpen"),
}
"""The exceptions of each call, by their ids from 1."""
_MISSING = frozenset({"NoSuchObject", "UnknownDB", "NoSuchLock"})
_REFUSED = ("permission", "accesscontrol", "privilege", "authorization", "not authorized")
"""Words of a metastore that refuses: it has no exception of its own for that."""


class _DeclaredError(Exception):
    """An exception that a call declares. ``name`` as in ``_RAISES``."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name, self.message = name, message


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that was asked for. ``held``: it is ours; otherwise it waits for another's."""

    id: int
    held: bool


@dataclass(frozen=True, slots=True)
class HiveServer:
    """One metastore. ``addresses``: (host, port) of its servers, tried in this order. It holds no connection."""

    addresses: tuple[tuple[str, int], ...]
    timeout_s: float

    @property
    def label(self) -> str:
        return ",".join(f"thrift://{host}:{port}" for host, port in self.addresses)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Connect for a few calls in the name of ``user()``.

        Raises:
            StorageError: no server can be reached.
        """
        with self._connect() as connection, connection.makefile("rb") as answers:
            connection.settimeout(self.timeout_s)
            session = Session(self, user(), connection, answers)
            session.call("set_ugi", "", text(session.user), texts([]))
            yield session

    def _connect(self) -> socket.socket:
        errors = []
        for address in self.addresses:
            try:
                return socket.create_connection(address, min(_CONNECT_SECONDS, self.timeout_s))
            except OSError as error:
                errors.append(f"{address[0]}:{address[1]}: {error.strerror or error}")
        raise StorageError(f"The Hive metastore {self.label} can't be reached ({'; '.join(errors)})")


class Session:
    """Calls on one connection, one after the other."""

    def __init__(self, server: HiveServer, user: str, connection: socket.socket, answers: BinaryIO) -> None:
        self.server, self.user = server, user
        self._connection, self._answers = connection, answers

    def databases(self) -> list[str]:
        return _texts(self.call("get_all_databases", ""))

    def tables(self, database: str) -> list[str]:
        """Name what the metastore calls tables: views and tables of every kind. None for an unknown database."""
        return _texts(self.call("get_all_tables", database, text(database)))

    def database(self, name: str) -> Struct | None:
        """Return a ``Database``."""
        found = self._found("get_database", name, text(name))
        return None if found is None else found.value

    def create_database(self, name: str, location: str) -> None:
        """Create a database. ``AlreadyExistsError``: there is one."""
        made = {1: text(name), 2: text(""), 3: text(location), 4: text_map({})}
        self.call("create_database", name, structure(made))

    def drop_database(self, name: str) -> None:
        """Drop a database that has no tables; its folder stays. ``NotFoundError``: there is none."""
        self.call("drop_database", name, text(name), flag(False), flag(False))

    def table(self, database: str, name: str) -> Struct | None:
        """Return a ``Table``."""
        found = self._found("get_table", f"{database}.{name}", text(database), text(name))
        return None if found is None else found.value

    def tables_named(self, database: str, names: Sequence[str]) -> list[Struct]:
        """Return those ``Table``s that exist."""
        found = self._found("get_table_objects_by_name", database, text(database), texts(names))
        return [] if found is None else list(found.value.values)

    def create_table(self, database: str, name: str, table: Struct) -> None:
        """Create a table. ``AlreadyExistsError``: there is one. ``NotFoundError``: there is no such database."""
        self.call("create_table", f"{database}.{name}", structure(table))

    def alter_table(self, database: str, name: str, table: Struct, environment: Mapping[str, str]) -> None:
        """Replace the description of a table. ``environment``: what the metastore is to do besides."""
        context = structure({1: text_map(environment)})
        call = "alter_table_with_environment_context"
        self.call(call, f"{database}.{name}", text(database), text(name), structure(table), context)

    def lock(self, database: str, object_name: str) -> Lock:
        """Ask for the exclusive lock on an object, which needn't exist."""
        part = {1: i32(_EXCLUSIVE), 2: i32(_TABLE_LEVEL), 3: text(database), 4: text(object_name)}
        request = {1: structures([part]), 3: text(self.user), 4: text(socket.gethostname()), 5: text(_AGENT)}
        return self._lock(self.call("lock", f"{database}.{object_name}", structure(request)))

    def check_lock(self, lock_id: int) -> Lock | None:
        """Look at a lock, which also keeps it from being forgotten; None if it has been."""
        found = self._found("check_lock", f"lock {lock_id}", structure({1: i64(lock_id)}))
        return None if found is None else self._lock(found)

    def unlock(self, lock_id: int) -> None:
        """Give a lock up, or stop waiting for it. Releases of Hive differ in what they say of one that is gone."""
        self._found("unlock", f"lock {lock_id}", structure({1: i64(lock_id)}))

    def _lock(self, answer: Value | None) -> Lock:
        if answer is None or answer.value[2].value not in (_ACQUIRED, _WAITING):
            raise StorageError(f"The Hive metastore {self.server.label} gives no lock: its transactions are off")
        return Lock(answer.value[1].value, answer.value[2].value == _ACQUIRED)

    def _found(self, name: str, subject: str, *arguments: Value) -> Value | None:
        try:
            return self._call(name, subject, *arguments)
        except _DeclaredError as error:
            if error.name in _MISSING:
                return None
            raise self._told(name, subject, error) from None

    def call(self, name: str, subject: str, *arguments: Value) -> Value | None:
        """Make one call. ``subject``: what it is about, for messages.

        Raises:
            StorageError: the server is gone or fails. UnsafeOperationError: it refuses the user.
            UnsupportedCatalogError: it doesn't know the call, or can't do what it asks for.
            AlreadyExistsError, NotFoundError, InvalidInputError: as the call declares.
        """
        try:
            return self._call(name, subject, *arguments)
        except _DeclaredError as error:
            raise self._told(name, subject, error) from None

    def _call(self, name: str, subject: str, *arguments: Value) -> Value | None:
        try:
            self._connection.sendall(call_bytes(name, dict(enumerate(arguments, 1))))
            answer = read_reply(self._answers)
        except TimeoutError:
            raise StorageError(f"{self._asked(name, subject)} got no answer in {self.server.timeout_s:g} s") from None
        except (OSError, EOFError) as error:
            hint = "; one that wants Kerberos or TLS does that, too" if name == "set_ugi" else ""
            raise StorageError(
                f"{self._asked(name, subject)} got no answer: the connection broke ({str(error) or 'closed'}){hint}"
            ) from None
        except FormatError as error:
            raise UnsupportedCatalogError(
                f"{self._asked(name, subject)}: {error.message}; the uri of a Hive metastore is such as {EXAMPLE}"
            ) from None
        except ApplicationError as error:
            failed = UnsupportedCatalogError if error.is_unknown else StorageError
            raise failed(f"{self._asked(name, subject)} failed: {error}") from None
        for number, raised in enumerate(_RAISES[name], 1):
            if number in answer:
                message = answer[number].value.get(1)
                raise _DeclaredError(raised, "" if message is None else message.value)
        return answer.get(0)

    def _asked(self, name: str, subject: str) -> str:
        about = f" {subject}" if subject else ""
        return f"The Hive metastore {self.server.label}, asked by {self.user!r} to {name}{about},"

    def _told(self, name: str, subject: str, error: _DeclaredError) -> PaimonError:
        message = f"{self._asked(name, subject)} said: {error.message or error.name}"
        if error.name in ("Meta", "InvalidOperation") and any(w in error.message.lower() for w in _REFUSED):
            return UnsafeOperationError(message)
        return _KINDS.get(error.name, StorageError)(message)


_KINDS: Mapping[str, type[PaimonError]] = {
    "AlreadyExists": AlreadyExistsError,
    "NoSuchObject": NotFoundError,
    "InvalidObject": InvalidInputError,
    "InvalidOperation": UnsupportedCatalogError,
}


def _texts(answer: Value | None) -> list[str]:
    return [] if answer is None else sorted(answer.value.values)


def user() -> str:
    """Return in whose name the metastore is asked: as Hadoop's clients without Kerberos do."""
    named = os.environ.get("HADOOP_USER_NAME")
    if named:
        return named
    with suppress(KeyError, OSError):  # an id without a name, as in containers
        return getpass.getuser()
    return f"uid-{os.getuid()}"


def parse_uris(uris: str, timeout_s: float) -> HiveServer:
    """Parse ``thrift://host:port``, several divided by commas.

    Raises:
        InvalidInputError: one is not of that form.
    """
    addresses = []
    for uri in uris.split(","):
        at = urlsplit(uri.strip())
        try:
            port = at.port or _PORT
        except ValueError:
            port = 0
        if at.scheme != "thrift" or not at.hostname or not port or at.username or at.path.strip("/"):
            raise InvalidInputError(f"The uri of a Hive metastore is such as {EXAMPLE}, several divided by commas")
        addresses.append((at.hostname, port))
    return HiveServer(tuple(addresses), timeout_s)
