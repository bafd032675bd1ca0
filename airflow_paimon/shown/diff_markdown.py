"""The details of ``diff_branches`` as Markdown: what the approver reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.shown.markdown import counted, escape, table

_PARTITIONS = 50
_PARTITIONS_WITH_SAMPLES = 10
_CELL = 60
_COLUMNS = 8
"""Columns beside each other."""
_NARROWEST = 2
"""Columns beside a key, however wide that is."""


def render_markdown(details: Mapping[str, Any]) -> str:
    """Render a diff: what was compared, a table of counts by partition, and sample rows.

    Values are escaped, so that no text of the data becomes markup; long ones are cut, the details have them whole.
    """
    parts = [_headline(details), *_about(details.get("about") or {}), *_checks(details.get("checks") or {})]
    return "\n\n".join([*parts, *_rows_of(details)])


def render_undo(details: Mapping[str, Any]) -> str:
    """Render the diff of what a table will hold after an undo in comparison with what it holds, as far as that goes."""
    total = details["total"]
    counts = f"{counted(total['added'], 'row')} added, {_number(total['changed'])} changed, {_number(total['deleted'])}"
    said = f"The undo: **{counts} deleted**." if details["different"] else "The undo changes **no row**."
    return "\n\n".join([said, *_rows_of(details)])


def _rows_of(details: Mapping[str, Any]) -> list[str]:
    parts = [_counts(details), *_samples(details)] if details["partitions"] else []
    return [*parts, *(f"Note: {escape(note)}." for note in details.get("notes", ()))]


def _headline(details: Mapping[str, Any]) -> str:
    against = "its base" if details["against"] == "base" else f"branch {escape(details['against'])}"
    compared = (
        f"Branch {escape(details['branch'])} (snapshot {details['branch_snapshot']}) compared with {against} "
        f"(snapshot {details['against_snapshot']})"
    )
    buckets = details["buckets"]
    skipped = "those" if buckets["skipped"] is None else _number(buckets["skipped"])
    read = f"{counted(buckets['compared'], 'bucket')} compared; {skipped} with the same files were not read"
    if not details["different"]:
        return f"{compared}: **no row differs**. {read}."
    total, alike = details["total"], details["partitions_unchanged"]
    return (
        f"{compared}: **{counted(total['added'], 'row')} added, {_number(total['changed'])} changed, "
        f"{_number(total['deleted'])} deleted**, {_unchanged(total)} unchanged. "
        f"Partitions with differences: {_number(details['partitions_differing'])}, without: "
        f"{'not counted' if alike is None else _number(alike)}. {read}."
    )


def _checks(outcomes: Mapping[str, str]) -> list[str]:
    """What checks of the branch's snapshot said: what didn't pass by name."""
    if not outcomes:
        return []
    others = [f"{escape(name)}: **{escape(outcome)}**" for name, outcome in outcomes.items() if outcome != "passed"]
    passed = f"{sum(outcome == 'passed' for outcome in outcomes.values()):,} passed"
    return [f"Checks of this snapshot: {'; '.join([passed, *others])}."]


def _about(about: Mapping[str, Any]) -> list[str]:
    """Whose branch it is, why it exists, how long it lives and who protects it."""
    said = {"Owner": about.get("owner"), "reason": about.get("reason"), "retention": about.get("retention")}
    if about.get("protected"):
        said["protected by"] = about.get("protected_by") or "unknown"
    text = "; ".join(f"{name}: {escape(value)}" for name, value in said.items() if value)
    return [f"{text[:1].upper()}{text[1:]}."] if text else []


def _number(count: int) -> str:
    return f"{count:,}"


def _unchanged(counts: Mapping[str, Any]) -> str:
    return ("" if counts["unchanged_exact"] else "at most ") + _number(counts["unchanged"])


def _counts(details: Mapping[str, Any]) -> str:
    shown = details["partitions"][:_PARTITIONS]
    rows = [[_name(p), _number(p["added"]), _number(p["changed"]), _number(p["deleted"]), _unchanged(p)] for p in shown]
    counts = table(["Partition", "Added", "Changed", "Deleted", "Unchanged"], rows)
    more = details["partitions_differing"] - len(shown)
    return f"{counts}\n\n… and {counted(more, 'more partition')}" if more > 0 else counts


def _name(partition: Mapping[str, Any]) -> str:
    return escape(partition["partition"]) or "(whole table)"


def _samples(details: Mapping[str, Any]) -> list[str]:
    out = []
    for partition in details["partitions"][:_PARTITIONS_WITH_SAMPLES]:
        samples = partition.get("samples", {})
        if samples.get("changed"):
            out.append(f"**{_name(partition)}**, some changed rows:\n\n{_changed(samples['changed'], details['key'])}")
        for kind in ("added", "deleted"):
            if samples.get(kind):
                out.append(f"**{_name(partition)}**, some {kind} rows:\n\n{_rows(samples[kind], details['key'])}")
    return out


def _changed(pairs: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    """One line per changed value: the key, the column, before and after."""
    rows = []
    for pair in pairs:
        key = ", ".join(f"{escape(k)}={_cell(pair['after'][k])}" for k in keys)
        changed = [n for n in pair["after"] if pair["before"].get(n) != pair["after"][n]]
        shown = changed or ["(a difference too small to show)"]
        for name in shown:
            rows.append([key, escape(name), _cell(pair["before"].get(name)), _cell(pair["after"].get(name))])
    return table(["Key", "Column", "Before", "After"], rows)


def _rows(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    """Show every column; a wide row continues in further tables, each of which begins with the key."""
    others = [name for name in rows[0] if name not in keys]
    width = max(_COLUMNS - len(keys), _NARROWEST)
    parts = [others[at : at + width] for at in range(0, len(others), width)] or [[]]
    return "\n\n".join(_part(rows, [*keys, *part]) for part in parts)


def _part(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    return table([escape(name) for name in names], [[_cell(row.get(name)) for name in names] for row in rows])


def _cell(value: Any) -> str:
    if value is None:
        return "*null*"
    text = str(value)
    return escape(text if len(text) <= _CELL else text[: _CELL - 1] + "…") or "*empty*"
