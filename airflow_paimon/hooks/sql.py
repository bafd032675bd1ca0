"""SQL over Paimon tables for the operators and sensors of Airflow's provider common-sql: reads only, without Spark.

Airflow makes this hook of a connection of type ``paimon`` (``Connection.get_hook``). What it needs besides, the
provider common-sql and DuckDB, comes with the extra ``sql``; without them it is a ``PaimonHook`` whose SQL says what to
install.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_paimon._compat import BaseHook
from airflow_paimon.core.errors import InvalidInputError, UnsupportedError
from airflow_paimon.hooks.paimon import EXTRAS, PaimonHook
from airflow_paimon.settings import CONN_ID

try:
    from airflow.providers.common.sql.hooks.sql import DbApiHook
except ImportError as _missing:
    _WHY = str(_missing)

    class DbApiHook(BaseHook):  # type: ignore[no-redef]
        """Stands for common-sql's where that is not installed."""

        def run(self, *_: Any, **__: Any) -> NoReturn:
            """Say what to install."""
            raise UnsupportedError(
                f"SQL of a Paimon connection needs the provider common-sql, which is not installed here ({_WHY}): "
                f"pip install 'airflow-paimon[sql]'"
            )

        get_records = get_first = get_df = get_df_by_chunks = run


if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_paimon.sql.connection import Connection as SqlConnection

    Parameters = Sequence[Any] | Mapping[str, Any] | None

__all__ = ["PaimonSqlHook"]


class PaimonSqlHook(PaimonHook, DbApiHook):  # type: ignore[misc]
    """
    Read Paimon tables by SQL in the worker, with DuckDB: for checks, sensors and small results.

    ``SQLExecuteQueryOperator``, ``SqlSensor``, ``SQLColumnCheckOperator`` and the others of the provider common-sql
    take it from a connection of type ``paimon``. A statement is one SELECT in DuckDB's dialect over ``db.t``,
    ``db.t$branch_b``, ``db."t@VERSION"`` and system tables such as ``db.t$snapshots``; what changes something is
    refused. It reaches the tables of the connection's warehouse and nothing else: no file, no network, no variable of
    the process. All statements of one call see each table in one state.

    :param paimon_conn_id: the Airflow connection
    :param connection: take this connection instead of looking one up by its id
    :param schema: the database of tables that are named without one; operators set it by ``database``
    :param log_sql: whether the statements are logged
    :param memory_limit: how much DuckDB may take before it uses temporary files, such as ``2GB``; by default four
        fifths of the machine's
    :param threads: how many threads it uses; by default as many as there are cores
    :param extras: the connection's extras, which operators pass besides; they are read from the connection
    """

    _placeholder = "?"

    def __init__(
        self,
        paimon_conn_id: str = CONN_ID,
        *,
        connection: Connection | None = None,
        schema: str | None = None,
        log_sql: bool = True,
        memory_limit: str | None = None,
        threads: int | None = None,
        **extras: Any,
    ) -> None:
        if unknown := sorted(set(extras) - EXTRAS):
            raise InvalidInputError(
                f"hook_params: {', '.join(unknown)} is unknown; a Paimon connection takes schema, log_sql, "
                f"memory_limit and threads"
            )
        super().__init__(paimon_conn_id, connection=connection)
        self.schema = schema
        self.log_sql = log_sql
        self.memory_limit = memory_limit
        self.threads = threads

    def get_conn(self) -> SqlConnection:
        """Return a connection of Python's DB-API; nothing is read before a statement runs."""
        from airflow_paimon.sql.connection import Connection

        return Connection(
            self.warehouse,
            self.storage_options,
            database=self.schema or None,
            memory_limit=self.memory_limit,
            threads=self.threads,
        )

    def insert_rows(self, table: Any, *_: Any, **__: Any) -> NoReturn:
        """Refuse: SQL of a Paimon connection only reads."""
        raise InvalidInputError(
            f"{table}: rows are not inserted through a Paimon connection's SQL; write them by "
            f"airflow_paimon.data.write_arrow, or on a branch by CorrectBranchOperator"
        )

    bulk_load = bulk_dump = insert_rows

    def _get_pandas_df(self, sql: str, parameters: Parameters = None, **kwargs: Any) -> Any:
        return self._frame(sql, parameters, kwargs).to_pandas()

    def _get_polars_df(self, sql: str, parameters: Parameters = None, **kwargs: Any) -> Any:
        return _polars()(self._frame(sql, parameters, kwargs))

    def _get_pandas_df_by_chunks(
        self, sql: str, parameters: Parameters = None, *, chunksize: int, **kwargs: Any
    ) -> Generator[Any, None, None]:
        for rows in self._frames(sql, parameters, chunksize, kwargs):
            yield rows.to_pandas()

    def _get_polars_df_by_chunks(
        self, sql: str, parameters: Parameters = None, *, chunksize: int, **kwargs: Any
    ) -> Generator[Any, None, None]:
        made = _polars()
        for rows in self._frames(sql, parameters, chunksize, kwargs):
            yield made(rows)

    def _frame(self, sql: str, parameters: Parameters, unknown: Mapping[str, Any]) -> Any:
        _refuse(unknown)
        with closing(self.get_conn()) as connection, closing(connection.cursor()) as cursor:
            return cursor.arrow(sql, parameters)

    def _frames(self, sql: str, parameters: Parameters, chunksize: int, unknown: Mapping[str, Any]) -> Iterable[Any]:
        _refuse(unknown)
        with closing(self.get_conn()) as connection, closing(connection.cursor()) as cursor:
            yield from cursor.batches(sql, chunksize, parameters)


def _polars() -> Any:
    try:
        from polars import from_arrow
    except ImportError as error:
        raise UnsupportedError(f"df_type='polars' needs the package polars ({error}): pip install polars") from None
    return from_arrow


def _refuse(unknown: Mapping[str, Any]) -> None:
    if unknown:
        raise InvalidInputError(f"get_df of a Paimon connection takes no {', '.join(sorted(unknown))}")
