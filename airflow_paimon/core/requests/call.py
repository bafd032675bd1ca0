"""From the text of a CALL to the request of an operation; what only the table can tell is looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.call_look_ups import LOOK_UPS
from airflow_paimon.core.requests.procedures import plan_call
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.sql_text.call import parse_call
from airflow_paimon.core.table.table import open_table


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A request, the procedure that was called, and what the CALL says that has no effect here."""

    request: Request
    procedure: str
    notes: tuple[str, ...]

    @property
    def details(self) -> dict[str, Any]:
        """For the details of the operation's result."""
        return {"procedure": self.procedure, **({"call_notes": list(self.notes)} if self.notes else {})}


def read_call(
    text: str,
    warehouse: str,
    *,
    operation_id: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    zone: tzinfo | None = None,
    database: str | None = None,
) -> CallRequest:
    """Return the request that ``CALL sys.procedure(...)`` asks for.

    Args:
        zone: Of times without an offset, which Paimon reads as those of the JVM; by default this machine's.
        database: Of a table's name that has none.

    Raises:
        PaimonError: the text, the procedure, an argument or the table is wrong; nothing was changed.
    """
    planned = plan_call(parse_call(text), zone, database)
    values: Mapping[str, Any] = planned.values
    if (look_up := LOOK_UPS.get(planned.procedure)) is not None:
        table = open_table(warehouse, str(values.get("table", "")), storage_options=storage_options).require()
        values = look_up(table, values)
    session = {"warehouse": warehouse, "operation_id": operation_id, "storage_options": storage_options}
    return CallRequest(build_request(planned.operation, {**values, **session}), planned.procedure, planned.notes)
