"""The details of ``diff_branches`` as Markdown: what the approver reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_PARTITIONS = 50
_PARTITIONS_WITH_SAMPLES = 10
_CELL = 60
_COLUMNS = 8


def render_markdown(details: Mapping[str, Any]) -> str:
    """Render a diff: what was compared, a table of counts by partition, and sample rows.

    Values are escaped, so that no text of the data becomes markup; long ones are cut, the details have them whole.
    """
    parts = [_headline(details)]
    if details["partitions"]:
        parts.append(_counts(details))
        parts += _samples(details)
    parts += [f"Note: {_escape(note)}." for note in details.get("notes", ())]
    return "\n\n".join(parts)


def _headline(details: Mapping[str, Any]) -> str:
    against = "its base" if details["against"] == "base" else f"branch `{details['against']}`"
    compared = (
        f"Branch `{details['branch']}` (snapshot {details['branch_snapshot']}) compared with {against} "
        f"(snapshot {details['against_snapshot']})"
    )
    buckets = details["buckets"]
    read = f"{buckets['compared']} buckets compared, {buckets['skipped']} identical ones not read"
    if not details["different"]:
        return f"{compared}: **no row differs**. {read}."
    total = details["total"]
    return (
        f"{compared}: **{_number(total['added'])} rows added, {_number(total['changed'])} changed, "
        f"{_number(total['deleted'])} deleted**, {_unchanged(total)} unchanged. "
        f"{details['partitions_differing']} partitions differ, {details['partitions_unchanged']} don't; {read}."
    )


def _number(count: int) -> str:
    return f"{count:,}"


def _unchanged(counts: Mapping[str, Any]) -> str:
    return ("" if counts["unchanged_exact"] else "at most ") + _number(counts["unchanged"])


def _counts(details: Mapping[str, Any]) -> str:
    shown = details["partitions"][:_PARTITIONS]
    rows = [[_name(p), _number(p["added"]), _number(p["changed"]), _number(p["deleted"]), _unchanged(p)] for p in shown]
    table = _table(["Partition", "Added", "Changed", "Deleted", "Unchanged"], rows)
    more = details["partitions_differing"] - len(shown)
    return f"{table}\n\n… and {more} more partitions" if more > 0 else table


def _name(partition: Mapping[str, Any]) -> str:
    return _escape(partition["partition"]) or "(whole table)"


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
        key = ", ".join(f"{_escape(k)}={_cell(pair['after'][k])}" for k in keys)
        changed = [n for n in pair["after"] if pair["before"].get(n) != pair["after"][n]]
        shown = changed or ["(a difference too small to show)"]
        for name in shown:
            rows.append([key, _escape(name), _cell(pair["before"].get(name)), _cell(pair["after"].get(name))])
    return _table(["Key", "Column", "Before", "After"], rows)


def _rows(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    names = [*keys, *(n for n in rows[0] if n not in keys)]
    shown = names[:_COLUMNS]
    headers = [_escape(n) for n in shown] + (["…"] if len(names) > len(shown) else [])
    return _table(headers, [[*(_cell(r.get(n)) for n in shown), *(["…"] * (len(headers) - len(shown)))] for r in rows])


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "*null*"
    text = str(value)
    return _escape(text if len(text) <= _CELL else text[: _CELL - 1] + "…") or "*empty*"


def _escape(text: str) -> str:
    """Take the meaning from every character that Markdown or HTML gives one inside a table cell."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for character in "\\`*_[]|~$":
        escaped = escaped.replace(character, "\\" + character)
    return " ".join(escaped.split("\n")).replace("\r", " ")
