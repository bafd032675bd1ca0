"""The plan of a correction as lines for people: the log, the command and the task of a DAG show the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.shown.listing import counted, size_text

_SHOWN = 10


class Conflict(str):
    """A line about what the publish will meet on main or on another branch; a page marks it."""

    is_conflict = True


def plan_lines(details: Mapping[str, Any]) -> list[str]:
    """Return what ``plan_correction`` found, one fact a line; ``details`` is that of its result.

    In Airflow it has ``lineage`` (from a backend of OpenLineage), ``pipeline`` (a form filled in) and ``page``, too.
    """
    return [*figure_lines(details), *audience_lines(details), *map(_sentence, details["notes"]), *_next_lines(details)]


def figure_lines(details: Mapping[str, Any]) -> list[str]:
    """List what is read and written, what streaming readers see, and what hinders the publish."""
    reads, replaces, writes = details["reads"], details["replaces"], details["writes"]
    most = "at most " if details["at_most"] else ""
    lines = [
        f"Reads {most}{_amount(reads)}",
        *(f"Reads of {name} at most {_amount(one)}" for name, one in details["other_tables"].items()),
        f"Replaces {most}{_amount(replaces)}{_partitions(replaces)}",
        f"The branch will have {most}{size_text(writes['bytes'])} of new files; the replaced files stay until the "
        f"snapshots that have them expire",
        _sentence(details["streaming_readers"]["note"]),
        *filter(None, [_sentence(details["open_writers"]["note"])]),
    ]
    if details["changed_on_main_count"]:
        where = _listed(details["changed_on_main"], details["changed_on_main_count"])
        lines.append(
            Conflict(f"Conflict: main has changed {where} since the branch was made; merge_branch refuses that")
        )
    return lines


def audience_lines(details: Mapping[str, Any]) -> list[str]:
    """Name whom the correction concerns: registered readers, open branches, and what is made from the table."""
    return [*reader_lines(details), *downstream_lines(details)]


def reader_lines(details: Mapping[str, Any]) -> list[str]:
    """Name registered readers, and open branches that collide."""
    lines = [
        f"Consumer {c['name']} reads snapshot {c['next_snapshot']} next, {c['snapshots_behind']:,} behind"
        for c in details["streaming_readers"]["consumers"]
    ]
    return lines + [_conflict(one) for one in details["conflicts"]]


def downstream_lines(details: Mapping[str, Any]) -> list[str]:
    """Name the tables that were replayed from this one, and what a backend of OpenLineage says is made from it."""
    lineage = details.get("lineage") or {"datasets": (), "jobs": (), "problem": None}
    lines = [
        f"{one['table'] or one['name']} is made from this table, by {one['by']} (OpenLineage)"
        for one in lineage["datasets"][:_SHOWN]
    ]
    left = len(lineage["datasets"]) - _SHOWN
    lines += [f"{counted(left, 'more dataset')} are made from it (OpenLineage)"] if left > 0 else []
    lines += [f"{name} reads this table (OpenLineage)" for name in lineage["jobs"][:_SHOWN]]
    return lines + [
        f"{one['table']} was replayed from this table (as {one['source']}, from snapshot {one['snapshot']} on)"
        for one in details["replays"]
    ]


def _next_lines(details: Mapping[str, Any]) -> list[str]:
    lineage, lines = details.get("lineage"), list[str]()
    if lineage and lineage["problem"]:
        lines.append(f"OpenLineage at {lineage['asked']} could not be asked: {lineage['problem']}")
    if details.get("pipeline"):
        lines.append(
            "To rebuild these tables as well: complete this form, and trigger pipeline_correction (the DAG with the "
            "tag airflow-paimon:pipeline) with it"
        )
        lines.append(json.dumps(details["pipeline"], ensure_ascii=False))
    if details.get("page"):
        lines.append(f"DAGs that are scheduled on the table, and the forms: {details['page']}")
    return lines


def _amount(amount: Mapping[str, Any]) -> str:
    files, rows = counted(amount["files"], "file"), counted(amount["rows"], "stored row")
    return f"{files} with {size_text(amount['bytes'])} and {rows}"


def _partitions(replaces: Mapping[str, Any]) -> str:
    names = [name for name in replaces["partitions"] if name]
    return f", in {_listed(names, replaces['partition_count'])}" if names else ""


def _listed(names: Sequence[str], count: int) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if count <= _SHOWN else f"{shown} and {count - _SHOWN:,} more"


def _conflict(one: Mapping[str, Any]) -> str:
    if one["unreadable"]:
        return f"Branch {one['branch']} can't be compared: {one['unreadable']}"
    return Conflict(
        f"Conflict: branch {one['branch']} changes {_listed(one['buckets'], one['bucket_count'])} as well: the second "
        f"of the two to be published is merged by key, or refused"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
