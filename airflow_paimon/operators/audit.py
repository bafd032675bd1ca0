"""The operator that keeps what auditors ask for outside of the tables it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.operators._base import PaimonOperator, keeps_arguments

__all__ = ["ExportAuditOperator"]


class ExportAuditOperator(PaimonOperator):
    """
    Write who changed tables, why, by which statement, and who approved it, to a file, to a table, or to both.

    A table gets each record once, however often it is exported, and what has changed of it since, such as an undo; a
    run that finds nothing new commits nothing. The fields are those of :doc:`/howto/audit`.

    :param table: the table, or names and patterns of several with commas between, such as ``sales.*``; ``*`` for all of
        the warehouse (templated)
    :param from_: only what was committed from this date or ISO time with an offset on, such as
        ``{{ data_interval_start }}`` (templated)
    :param to: only what was committed before (templated)
    :param uri: the file, which is replaced (templated)
    :param format: of the file: ``json``, ``csv`` or ``markdown``; left out, by the ending of its name (templated)
    :param to_table: the Paimon table, ``db.table``; created if it is missing (templated)
    :param skip_unreadable: leave tables out whose audit can't be read, and list them; else nothing is written
        (templated)
    """

    operation = "export_audit"

    @keeps_arguments
    def __init__(
        self,
        *,
        from_: str | None = None,
        to: str | None = None,
        uri: str | None = None,
        format: str | None = None,  # the job's flag
        to_table: str | None = None,
        skip_unreadable: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        found = result["details"]
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in found["kinds"].items())
        lines = [f"{found['records']:,} records of {found['tables']:,} tables{f': {kinds}' if kinds else ''}"]
        if found.get("to_table"):
            lines.append(f"{found['to_table']}: {found['rows_written']:,} written, {found['rows_deleted']:,} deleted")
        return lines + [f"{table} was left out: {why}" for table, why in found["unreadable"].items()]
