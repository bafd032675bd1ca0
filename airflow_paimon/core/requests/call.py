"""From the text of a CALL to the request of an operation; what only the table can tell is looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from operator import attrgetter
from typing import Any

from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.procedures import MINOR, ONTO, plan_call
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.sql_text.call import parse_call
from airflow_paimon.core.table.history import existing_snapshots, publish_target
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table, open_table, parse_timestamp, snapshots_around

_MINOR_RUNS, _DEFAULT_RUNS = "num-sorted-run.compaction-trigger", 5


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
    if (look_up := _LOOK_UPS.get(planned.procedure)) is not None:
        table = open_table(warehouse, str(values.get("table", "")), storage_options=storage_options).require()
        values = look_up(table, values)
    session = {"warehouse": warehouse, "operation_id": operation_id, "storage_options": storage_options}
    return CallRequest(build_request(planned.operation, {**values, **session}), planned.procedure, planned.notes)


def _first_since(
    table: Table, values: Mapping[str, Any], argument: str, value_of: Callable[[Snapshot], int | None]
) -> dict[str, Any]:
    """Put the first snapshot with that value or a later one, ``value_of`` in epoch milliseconds, in the place of
    ``timestamp``, as Paimon does: of tags as well. Times grow from snapshot to snapshot; some may have no watermark.

    Raises:
        NotFoundError: there is none.
    """
    since = parse_timestamp(values["timestamp"], f"create_tag_from_{argument}: {argument}")
    view = _view(table, values)
    if "snapshot" in values:
        raise InvalidInputError(f"{view.label}: give a snapshot to create_tag; here a time or watermark chooses it")
    own = (
        filter(None, snapshots_around(view, since))
        if argument == "timestamp"
        else existing_snapshots(view, view.snapshot_ids())
    )
    known = [*own, *(tag.snapshot for tag in view.tags())]
    later = [(value, s.id) for s in known if (value := value_of(s)) is not None and value >= since]
    if not later:
        raise NotFoundError(f"{view.label}: no snapshot and no tag has a {argument} of {since} ms or later")
    return {k: v for k, v in values.items() if k != "timestamp"} | {"snapshot": min(later)[1]}


def _may_be_missing(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Let a tag or a consumer to delete be missing, as Paimon does, unless the CALL says otherwise."""
    return dict(values) if "next_snapshot" in values else {"if_missing": "skip", **values}


def _onto_its_own(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the branch that a CALL names as the target with the one that the source is published onto.

    Raises:
        InvalidInputError: it is another one.
    """
    found = dict(values)
    onto = found.pop(ONTO, None)
    own = publish_target(table.branch(MAIN), table.branch(str(found["branch"])).require()) if onto else None
    if own is not None and onto != own.branch_name:
        raise InvalidInputError(
            f"merge_branch: target_branch is {onto!r}, and branch {found['branch']!r} of {table.name} is published "
            f"onto {own.branch_name}: leave target_branch out for that"
        )
    return found


def _runs_of_minor(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Put the sorted runs from which on Paimon compacts in the place of ``minor``; tables without keys have none."""
    found = dict(values)
    if found.get("max_sorted_runs") != MINOR:
        return found
    del found["max_sorted_runs"]
    schema = _view(table, values).schema()
    if not schema.primary_keys:
        return found
    runs = TableOptions(schema.options).number(_MINOR_RUNS, _DEFAULT_RUNS)
    return found | {"max_sorted_runs": max(1, runs - 1)}


def _view(table: Table, values: Mapping[str, Any]) -> Table:
    return table.branch(values.get("branch", table.branch_name)).require()


_LOOK_UPS: Mapping[str, Callable[[Table, Mapping[str, Any]], dict[str, Any]]] = {
    "compact": _runs_of_minor,
    "create_tag_from_timestamp": partial(_first_since, argument="timestamp", value_of=attrgetter("time_millis")),
    "create_tag_from_watermark": partial(_first_since, argument="watermark", value_of=attrgetter("known_watermark")),
    "delete_tag": _may_be_missing,
    "merge_branch": _onto_its_own,
    "reset_consumer": _may_be_missing,
}
"""What only the table can tell, by the name of Paimon's procedure: returns the request's values with it filled in."""
