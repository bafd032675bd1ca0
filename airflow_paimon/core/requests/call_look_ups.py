"""What a CALL means that only the table can tell: each function returns the request's values with it filled in."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.procedures import MINOR, ONTO
from airflow_paimon.core.table.history import publish_target
from airflow_paimon.core.table.new_snapshots_plan import NO_WATERMARK
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table, parse_timestamp

_MINOR_RUNS, _DEFAULT_RUNS = "num-sorted-run.compaction-trigger", 5


def first_since_timestamp(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Put the first snapshot of that time or later in the place of ``timestamp``, as Paimon does: of tags as well.

    Raises:
        NotFoundError: there is none.
    """
    since = parse_timestamp(values["timestamp"], "create_tag_from_timestamp: timestamp")
    view = _view(table, values)
    ids = view.snapshot_ids()
    at = bisect_left(ids, since, key=lambda number: view.snapshot(number).time_millis)
    later = view.snapshot(ids[at]) if at < len(ids) else None
    tagged = next((s for s in _tagged(view) if s.time_millis >= since), None)
    if later is None or (tagged is not None and tagged.time_millis < later.time_millis):
        later = tagged
    return _at(view, values, later, f"was committed at {since} ms or later")


def first_since_watermark(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Put the first snapshot with that watermark or a later one in the place of ``timestamp``: of tags as well.

    Raises:
        NotFoundError: there is none.
    """
    since = parse_timestamp(values["timestamp"], "create_tag_from_watermark: watermark")
    view = _view(table, values)
    snapshots = (s for s in map(view.find_snapshot, view.snapshot_ids()) if s is not None)
    later = next((s for s in snapshots if _watermark(s) >= since), None)
    tagged = next((s for s in _tagged(view) if _watermark(s) >= since), None)
    if later is None or (tagged is not None and _watermark(tagged) < _watermark(later)):
        later = tagged
    return _at(view, values, later, f"has a watermark of {since} ms or later")


def may_be_missing(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Let a tag or a consumer to delete be missing, as Paimon does, unless the CALL says otherwise."""
    return dict(values) if "next_snapshot" in values else {"if_missing": "skip", **values}


def onto_its_own(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
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


def runs_of_minor(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
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


def _tagged(view: Table) -> list[Snapshot]:
    return sorted((tag.snapshot for tag in view.tags()), key=lambda s: s.id)


def _watermark(snapshot: Snapshot) -> int:
    return NO_WATERMARK if snapshot.watermark is None else snapshot.watermark


def _at(view: Table, values: Mapping[str, Any], found: Snapshot | None, what: str) -> dict[str, Any]:
    if "snapshot" in values:
        raise InvalidInputError(f"{view.label}: give a snapshot to create_tag; here a time or watermark chooses it")
    if found is None:
        raise NotFoundError(f"{view.label}: no snapshot and no tag {what}")
    return {k: v for k, v in values.items() if k != "timestamp"} | {"snapshot": found.id}


LOOK_UPS: Mapping[str, Callable[[Table, Mapping[str, Any]], dict[str, Any]]] = {
    "compact": runs_of_minor,
    "create_tag_from_timestamp": first_since_timestamp,
    "create_tag_from_watermark": first_since_watermark,
    "delete_tag": may_be_missing,
    "merge_branch": onto_its_own,
    "reset_consumer": may_be_missing,
}
"""By the name of Paimon's procedure."""
