"""Connections of type ``paimon``, and the databases and tables of their warehouses."""

from __future__ import annotations

import os
import unicodedata
from dataclasses import dataclass
from typing import Any

from airflow.models.connection import Connection
from airflow.secrets.environment_variables import EnvironmentVariablesBackend
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_paimon._compat import AirflowNotFoundException
from airflow_paimon.core.catalogs import Catalog
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, PaimonError
from airflow_paimon.core.store.secrets import secret_values
from airflow_paimon.core.table.paths import MAIN, parse_identifier
from airflow_paimon.core.table.table import Table
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.plugin.auth import of_team

_ENVIRONMENT = "AIRFLOW_CONN_"
_SHORTEST_SECRET = 3


@dataclass(frozen=True, slots=True)
class Known:
    """A connection that the page lists. Nothing of its settings but the description."""

    conn_id: str
    description: str
    origin: str


def known_connections() -> list[Known]:
    """Find the connections of type ``paimon`` in Airflow's database and in the API server's environment.

    Those of a secrets backend can't be listed; they open by their id.
    """
    names = [n.removeprefix(_ENVIRONMENT).lower() for n in os.environ if n.startswith(_ENVIRONMENT)]
    found = {name: Known(name, "", "environment") for name in names if _type_of(name) == PaimonHook.conn_type}
    with create_session() as session:
        rows = session.execute(
            select(Connection.conn_id, Connection.description).where(Connection.conn_type == PaimonHook.conn_type)
        ).all()
    for conn_id, description in rows:
        found.setdefault(conn_id, Known(conn_id, description or "", "database"))
    return sorted(found.values(), key=lambda known: known.conn_id)


def _type_of(conn_id: str) -> str | None:
    try:
        found = EnvironmentVariablesBackend().get_connection(conn_id)
    except Exception:  # one variable that can't be parsed must not hide the other connections
        return None
    return None if found is None else found.conn_type


class Warehouse:
    """One connection's warehouse. It knows the connection's secrets only to keep them out of what is shown.

    ``scope``: identifies the connection with its present settings.
    """

    def __init__(self, conn_id: str) -> None:
        try:
            connection: Any = Connection.get_connection_from_secrets(conn_id, **of_team(Connection, conn_id))
        except AirflowNotFoundException:
            raise NotFoundError(f"There is no Airflow connection {conn_id!r}") from None
        self.conn_id = conn_id
        self.hook = PaimonHook(conn_id, connection=connection)
        extras = connection.extra_dejson
        known = [
            *secret_values(extras),
            connection.password,
            connection.login,
            *_texts(extras.get("storage_options")),
            *_texts(extras.get("catalog_options")),
            *secret_values(self._storage_options()),
        ]
        self.scope = self.hook.scope
        self._secrets = sorted({s for s in known if s and len(s) >= _SHORTEST_SECRET}, key=len, reverse=True)

    def _storage_options(self) -> dict[str, Any] | None:
        """With what the storage connection says, which can change while this connection stays."""
        try:
            return self.hook.storage_options
        except PaimonError:  # wrong settings, which are told where the warehouse is opened
            return None

    def without_secrets(self, text: str) -> str:
        """Blank out the connection's secrets in a message of a storage."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def catalog(self) -> Catalog:
        """Open the catalog. ``PaimonError`` when its settings are wrong."""
        return self.hook.get_catalog()

    def databases(self) -> list[str]:
        """Name the databases."""
        return sorted(name for name in self.catalog().databases() if name)

    def tables(self, database: str) -> list[str]:
        """Name what can be tables of a database."""
        checked_name(f"{database}.t")
        return sorted(name for name in self.catalog().tables(database) if _is_plain(name))

    def table(self, database: str, name: str) -> Table:
        """Open a table on main; reads nothing."""
        return self.hook.get_table(checked_name(f"{database}.{name}"))


def _texts(options: Any) -> list[str]:
    """Return what to blank out of ``storage_options``: all of it where it is one text."""
    return [options] if isinstance(options, str) else secret_values(options) if isinstance(options, dict) else []


def _is_plain(name: str) -> bool:
    try:
        checked_name(f"d.{name}")
    except InvalidInputError:
        return False
    return True


def checked_name(name: str) -> str:
    """Return a table's name as ``db.table``. ``InvalidInputError`` for what could be a path or another table."""
    identifier = parse_identifier(name)
    odd = any(unicodedata.category(c) in ("Cc", "Cs") for c in name)
    if odd or identifier.branch != MAIN or identifier.system_table or str(identifier) != name:
        raise InvalidInputError(f"{name!r} is not the name of a table, db.table")
    return name


def without_secrets_of(conn_id: str, message: str) -> str:
    """Blank out a connection's secrets; the message is withheld when they are not known."""
    try:
        return Warehouse(conn_id).without_secrets(message)
    except NotFoundError as error:
        return error.message
    except Exception:  # a connection that can't be parsed: its settings may be in the message
        return f"Connection {conn_id!r} can't be read; see the API server's log"
