"""The connection type ``paimon``: a warehouse, its catalog type, and how to reach its storage."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from airflow_paimon._compat import AirflowNotFoundException, BaseHook, mask_secret
from airflow_paimon.core.catalogs.options import CATALOGS, METASTORE
from airflow_paimon.core.errors import InvalidInputError, PaimonError, did_you_mean
from airflow_paimon.core.store.opening import merged_options
from airflow_paimon.core.store.secrets import secret_values
from airflow_paimon.core.table.options import parse_boolean, requested_duration
from airflow_paimon.forms.policy import FormPolicy, parse_policy
from airflow_paimon.get_provider_info import connection_fields
from airflow_paimon.settings import CONN_ID, MANIFEST_CACHE_MB, SPARK_CONN_ID

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_paimon.core.catalogs import Catalog
    from airflow_paimon.core.table.read_cache import FileCache
    from airflow_paimon.core.table.table import Table

__all__ = ["PaimonHook"]

ADDRESSING_STYLES = ("auto", "path", "virtual")

EXTRAS = frozenset({"key", "secret", *connection_fields()})
"""The form has login and password for key and secret."""
_MARKUP = re.compile(r"\[(?=[a-z#/@])")
_STORAGES = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "oss": "oss", "hdfs": "hdfs", "viewfs": "hdfs",
    **dict.fromkeys(("abfs", "abfss", "az", "wasb", "wasbs"), "azure"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """With what a job is submitted: the connection of type ``spark`` and the arguments of ``SparkJobHook``."""

    conn_id: str
    conf: Mapping[str, Any]
    options: Mapping[str, Any]


class PaimonHook(BaseHook):
    """
    Reach the tables of a Paimon warehouse.

    :doc:`/reference/connection` lists the extras of the connection.

    :param paimon_conn_id: the Airflow connection
    :param connection: take this connection instead of looking one up by its id
    """

    conn_name_attr = "paimon_conn_id"
    default_conn_name = CONN_ID
    conn_type = "paimon"
    hook_name = "Apache Paimon"

    def __init__(self, paimon_conn_id: str = default_conn_name, *, connection: Connection | None = None) -> None:
        super().__init__()
        self.paimon_conn_id = paimon_conn_id
        self._connection = connection

    @property
    def connection(self) -> Connection:
        """The Airflow connection, read once. ``InvalidInputError`` when there is none of that name."""
        if self._connection is None:
            try:
                self._connection = self.get_connection(self.paimon_conn_id)
            except AirflowNotFoundException:
                raise InvalidInputError(
                    f"There is no Airflow connection {self.paimon_conn_id!r}; create one of type 'paimon' with the "
                    f"warehouse in it",
                    code="no-connection",
                ) from None
        return self._connection

    @property
    def warehouse(self) -> str:
        """The warehouse folder or URI."""
        warehouse = self._extras.get("warehouse")
        if not isinstance(warehouse, str) or not warehouse.strip():
            raise InvalidInputError(f"Connection {self.paimon_conn_id!r} names no warehouse; set its field 'warehouse'")
        return warehouse.strip()

    @property
    def storage(self) -> str:
        """The warehouse's kind of storage: ``s3``, ``gcs``, ``azure``, ``oss``, ``hdfs``, else nothing."""
        return self.storage_of(self.warehouse)

    @staticmethod
    def storage_of(uri: str) -> str:
        """Return the kind of storage of a URI."""
        return _STORAGES.get(uri.partition("://")[0].lower(), "")

    @property
    def catalog_type(self) -> str:
        """One of ``CATALOGS``: that of the field, or of the storage option ``metastore``."""
        given = (self._extras.get("catalog_type"), self._json_object("storage_options").get(METASTORE))
        named = {str(name).strip().lower() for name in given if name} - {CATALOGS[0]}
        if len(named) > 1 or not named <= set(CATALOGS):
            raise InvalidInputError(
                f"Connection {self.paimon_conn_id!r}: catalog_type, or {METASTORE} in storage_options, must be one of "
                f"{', '.join(CATALOGS)}; it is {' and '.join(sorted(named))}"
            )
        return named.pop() if named else CATALOGS[0]

    @cached_property
    def storage_options(self) -> dict[str, Any] | None:
        """The options of storage and catalog, None if there are none. They may hold secrets: never log them."""
        extras = self._extras
        options = self._from_storage_connection()
        fields = self._options_of_fields(extras)
        if self.storage in ("s3", "oss"):
            options = merged_options(self.warehouse, options, fields)
        elif fields and (self.storage or self.catalog_type == "rest"):  # a local folder needs none, whatever is there
            raise InvalidInputError(
                f"Connection {self.paimon_conn_id!r}: {', '.join(fields)} are read only for a warehouse at s3:// or "
                f"oss://, and this one is {self.warehouse!r}. Clear these fields (of key and secret: login, password); "
                "a REST catalog's storage gets them in storage_options"
            )
        more = self._json_object("storage_options")
        if "config_kwargs" in options and isinstance(more.get("config_kwargs"), dict):
            more = {**more, "config_kwargs": {**options["config_kwargs"], **more["config_kwargs"]}}
        options = merged_options(self.warehouse, options, more)
        if self.catalog_type != CATALOGS[0]:
            catalog = {**self._json_object("catalog_options"), METASTORE: self.catalog_type}
            options = merged_options(self.warehouse, options, catalog)
        _mask(options)
        return options or None

    @property
    def spark_conn_id(self) -> str | None:
        """The connection of type ``spark`` for operators that name none; None when there is none here either."""
        return str(self._extras.get("spark_conn_id") or "").strip() or None

    def spark_settings(
        self,
        conn_id: str | None = None,
        conf: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> SparkSettings:
        """
        Complete what an operator names of its Spark settings with the connection's, setting by setting.

        :param conn_id: connection of type ``spark``; left out, the extra ``spark_conn_id``, or ``spark_default``
        :param conf: Spark settings, which win over the extra ``spark_conf``
        :param options: further arguments of the submission, which win over the extra ``spark_options``
        """
        own = self._json_object("spark_conf")
        _mask(own)
        chosen = (conn_id or "").strip()  # a template of an empty form field gives "None"
        return SparkSettings(
            chosen if chosen not in ("", "None") else self.spark_conn_id or SPARK_CONN_ID,
            {**own, **(conf or {})},
            {**self._json_object("spark_options"), **(options or {})},
        )

    @property
    def local_execution(self) -> str:
        """What of the work on rows runs in plain Python where it is small: ``none``, ``reads`` or ``all``."""
        from airflow_paimon.core.requests.local_execution import local_execution
        from airflow_paimon.settings import LOCAL_EXECUTION

        name = f"Connection {self.paimon_conn_id!r}: local_execution"
        return local_execution(self._extras.get("local_execution"), name, LOCAL_EXECUTION)

    @property
    def results_folder(self) -> str:
        """Where jobs leave their results when the driver runs on another machine."""
        return str(self._extras.get("results_folder") or f"{self.warehouse.rstrip('/')}/_airflow_paimon_results")

    @property
    def notify(self) -> dict[str, dict[str, Any]]:
        """The notifiers of approvals: name -> ``class`` and its arguments."""
        found = self._json_extra("notify", {})
        if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
            raise InvalidInputError(
                f"Connection {self.paimon_conn_id!r}: notify must be a JSON object of notifiers by name, such as "
                f'{{"oncall": {{"class": "path.of.SomeNotifier", "text": "{{{{ paimon.text }}}}"}}}}'
            )
        return found

    @property
    def approvers(self) -> list[str]:
        """The ids of the users who may answer approvals; everybody when empty."""
        found = self._extras.get("approvers") or []
        names = found.split(",") if isinstance(found, str) and not found.strip().startswith("[") else None
        chosen = self._json_extra("approvers", []) if names is None else names
        if not isinstance(chosen, list) or not all(isinstance(name, str) for name in chosen):
            raise InvalidInputError(f"Connection {self.paimon_conn_id!r}: approvers must be a list of user ids")
        return [name.strip() for name in chosen if name.strip()]

    @property
    def remind_before(self) -> str | None:
        """How long before an approval runs out its notifiers hear again, as a duration; ``never``; None = a quarter."""
        text = str(self._extras.get("remind_before") or "").strip()
        if text and text.lower() != "never":
            requested_duration(text, f"Connection {self.paimon_conn_id!r}: remind_before")
        return text or None

    @property
    def four_eyes(self) -> bool:
        """Whether publishing a branch needs the approval of somebody other than who triggered the run."""
        said = self._extras.get("four_eyes") or "false"
        return parse_boolean(said, f"Connection {self.paimon_conn_id!r}: four_eyes")

    @property
    def form_policy(self) -> FormPolicy:
        """What trigger forms may ask of this connection."""
        return parse_policy(self.paimon_conn_id, self.warehouse, self._json_object("forms"))

    @property
    def masks(self) -> list[str]:
        """The columns whose values no sample shows, as ``table:column``, besides those of the tables' own options."""
        return [f"{pattern}:{column}" for pattern, columns in self.masked.items() for column in columns]

    @property
    def masked(self) -> dict[str, list[str]]:
        """The same by table, whose name may be a pattern."""
        found = self._json_object("masked_columns")
        if not all(isinstance(one, list) and all(isinstance(c, str) for c in one) for one in found.values()):
            raise InvalidInputError(
                f"Connection {self.paimon_conn_id!r}: masked_columns must be a JSON object of lists by table, such as "
                f'{{"sales.orders": ["email"], "hr.*": ["name", "phone"]}}'
            )
        return found

    def get_catalog(self) -> Catalog:
        """Return the warehouse's catalog; it connects when it is asked something."""
        from airflow_paimon.core.catalogs import open_catalog

        return open_catalog(self.warehouse, self.storage_options)

    @property
    def scope(self) -> tuple[str, str]:
        """Identifies the connection with its present settings and credentials, which can't be told from it."""
        connection = self.connection
        try:
            options = self.storage_options  # with what the storage connection says, which changes on its own
        except PaimonError:  # wrong settings, which are told where the warehouse is opened
            options = None
        settings = (connection.host, connection.login, connection.password, connection.extra, options)
        return self.paimon_conn_id, hashlib.sha256(repr(settings).encode()).hexdigest()

    def keeping_manifests(self, view: Table) -> Table:
        """Return a view that keeps the manifests that it reads in this process, for views of this ``scope`` only.

        For the API server and the triggerer, which read them repeatedly. It may show files that are deleted by now:
        what checks or changes a table reads storage. A view of a table that its catalog doesn't know stays as it is.
        """
        from airflow_paimon.core.store.none import NoStore
        from airflow_paimon.core.table.read_cache import CachingStore

        if isinstance(view.store, NoStore):
            return view
        return replace(view, store=CachingStore(view.store, _kept_manifests(), self.scope))

    def get_table(self, table: str | None = None, branch: str = "main", *, path: str | None = None) -> Table:
        """
        Open a table as ``open_table`` does.

        :param table: ``db.table`` in the connection's catalog
        :param branch: the branch of the view
        :param path: a table's folder instead of its name; it is written without its catalog's locks
        """
        from airflow_paimon.core.table.table import open_table

        if path is not None:
            return open_table(path=path, branch=branch, storage_options=self.storage_options)
        return open_table(self.warehouse, table, branch, self.storage_options)

    def open_table(self, table: str | None = None, branch: str = "main", *, path: str | None = None) -> Any:
        """
        Open a table for notebooks and own tasks: ``airflow_paimon.open_table`` with the connection's warehouse.

        Returns what that returns: a view with ``to_arrow``, ``to_pandas``, ``head``, ``diff`` and the like.

        :param table: ``db.table`` in the connection's catalog
        :param branch: the branch of the view
        :param path: a table's folder instead of its name
        """
        import airflow_paimon

        if path is not None:
            return airflow_paimon.open_table(path=path, branch=branch, storage_options=self.storage_options)
        return airflow_paimon.open_table(self.warehouse, table, branch, self.storage_options)

    def test_connection(self) -> tuple[bool, str]:
        """Check the settings and look at the warehouse, without Spark; answers within half a minute."""
        from airflow_paimon.hooks._connection_check import check_connection

        good, message = check_connection(self)
        # The form tests it under a name that Airflow makes up.
        for word in ("Connection", "connection"):
            message = message.replace(
                f"{word} {self.paimon_conn_id!r}", f"{'T' if word[0] == 'C' else 't'}he connection"
            )
        # `airflow connections test` prints it as markup, which would swallow [s3]; pip takes the blank.
        return good, _MARKUP.sub("[ ", message)

    def check_settings(self) -> None:
        """Read every setting. ``InvalidInputError`` names the first one that is wrong."""
        _ = self.warehouse, self.catalog_type, self.storage_options, self.notify, self.approvers, self.remind_before
        _ = self.four_eyes, self.form_policy, self.masks, self.local_execution
        self.spark_settings()

    @cached_property
    def _extras(self) -> dict[str, Any]:
        extras: dict[str, Any] = self.connection.extra_dejson
        if self.connection.conn_type != self.conn_type:
            raise InvalidInputError(
                f"Connection {self.paimon_conn_id!r} is of type {self.connection.conn_type!r}; it must be 'paimon'"
            )
        unknown = sorted(set(extras) - EXTRAS)
        if unknown:
            named = [name + did_you_mean(name, EXTRAS) for name in unknown]
            raise InvalidInputError(
                f"Connection {self.paimon_conn_id!r} has the unknown extras {', '.join(named)}; there are: "
                f"{', '.join(sorted(EXTRAS))}. What the storage should get belongs into storage_options"
            )
        return extras

    def _json_extra(self, name: str, empty: Any) -> Any:
        """Return an extra that may be JSON text; None for text that is none."""
        value = self._extras.get(name) or empty
        if isinstance(value, str):
            try:
                return json.loads(value)
            except ValueError:
                return None
        return value

    def _json_object(self, name: str) -> dict[str, Any]:
        found = self._json_extra(name, {})
        if not isinstance(found, dict):
            raise InvalidInputError(
                f'Connection {self.paimon_conn_id!r}: {name} must be a JSON object, such as {{"name": "value"}}'
            )
        return found

    def _from_storage_connection(self) -> dict[str, Any]:
        conn_id = str(self._extras.get("storage_conn_id") or "").strip()
        if not conn_id:
            return {}
        from airflow_paimon.hooks._storage_connection import options_from

        try:
            found = self.get_connection(conn_id)
        except AirflowNotFoundException:
            raise InvalidInputError(
                f"There is no Airflow connection {conn_id!r}, which the field Storage connection of "
                f"{self.paimon_conn_id!r} names"
            ) from None
        return options_from(found, self.storage)

    def _options_of_fields(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "key": extras.get("key") or self.connection.login,
            "secret": extras.get("secret") or self.connection.password,
            "token": extras.get("token"),
            "endpoint_url": extras.get("endpoint"),
            "region": extras.get("region"),
        }
        style = extras.get("addressing_style") or ADDRESSING_STYLES[0]
        if style not in ADDRESSING_STYLES:
            raise InvalidInputError(
                f"Connection {self.paimon_conn_id!r}: addressing_style must be one of {', '.join(ADDRESSING_STYLES)}; "
                f"it is {style!r}"
            )
        if style != ADDRESSING_STYLES[0] and self.storage == "s3":
            found["config_kwargs"] = {"s3": {"addressing_style": style}}
        return {name: value for name, value in found.items() if value}


@cache
def _kept_manifests() -> FileCache:
    from airflow_paimon.core.table.read_cache import FileCache

    return FileCache(MANIFEST_CACHE_MB << 20)


def _mask(options: Mapping[str, Any]) -> None:
    for secret in secret_values(options):
        mask_secret(secret)
