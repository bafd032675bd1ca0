"""What checks and a diff said about a branch, as Markdown: what the approver reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_paimon.shown.diff_lists import counts, samples, unchanged_text
from airflow_paimon.shown.listing import Listing, heads
from airflow_paimon.shown.markdown import counted, escape, table_of, where_it_ran

_COLUMNS = 8
"""Columns beside each other."""
_NARROWEST = 2
"""Columns beside a key, however wide that is."""
_OUTCOMES = {"passed": "passed", "warned": "**warns**", "failed": "**failed**", "skipped": "not compared"}
_ROWS = 3
_LONGEST_ROW = 300


def render_review(results: Mapping[str, Any]) -> list[str]:
    """Render what an approver goes by: what the checks said, the diff, and where that ran.

    ``results``: of ``diff``, ``check`` and what else ran, by task; None: it had none.
    """
    rules = (results.get("check") or {"details": {}})["details"].get("rules", ())
    return [render_checks(rules), render_markdown(results["diff"]["details"]), where_it_ran(results)]


def render_checks(rules: Sequence[Mapping[str, Any]]) -> str:
    """Render the ``rules`` in the details of ``check_branch_data``; an empty text without any.

    Values are escaped, so that no text of the data becomes markup.
    """
    if not rules:
        return ""
    warned = sum(rule["outcome"] == "warned" for rule in rules)
    summary = f"**{counted(len(rules), 'check')} of the branch**" + (f", {warned} with a warning" if warned else "")
    listed = [(r["name"], _OUTCOMES.get(r["outcome"], escape(r["outcome"])), r["said"]) for r in rules]
    listing = Listing(title="checks", columns=heads("check | outcome: markdown | rows"), rows=listed)
    parts = [f"{summary}:", table_of(listing)]
    return "\n\n".join([*parts, *(_broken_rows(rule) for rule in rules if rule["rows"])])


def _broken_rows(rule: Mapping[str, Any]) -> str:
    texts = [json.dumps(row, ensure_ascii=False) for row in rule["rows"][:_ROWS]]
    shown = [text if len(text) <= _LONGEST_ROW else f"{text[: _LONGEST_ROW - 1]}…" for text in texts]
    return f"Some rows of {escape(rule['name'])}:\n\n" + "\n".join(f"- {escape(text)}" for text in shown)


def render_markdown(details: Mapping[str, Any]) -> str:
    """Render a diff: what was compared, a table of counts by partition, and sample rows.

    Values are escaped, so that no text of the data becomes markup; long ones are cut, the details have them whole.
    """
    parts = [_headline(details), *_about(details.get("about") or {}), *_checks(details.get("checks") or {})]
    return "\n\n".join([*parts, *_rows_of(details)])


def render_undo(details: Mapping[str, Any]) -> str:
    """Render the diff of what a table will hold after an undo in comparison with what it holds, as far as that goes."""
    total = details["total"]
    text = f"{counted(total['added'], 'row')} added, {_number(total['changed'])} changed, {_number(total['deleted'])}"
    said = f"The undo: **{text} deleted**." if details["different"] else "The undo changes **no row**."
    return "\n\n".join([said, *_rows_of(details)])


def _rows_of(details: Mapping[str, Any]) -> list[str]:
    parts = [table_of(counts(details)), *_samples(details)] if details["partitions"] else []
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
        f"{_number(total['deleted'])} deleted**, {unchanged_text(total)} unchanged. "
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


def _samples(details: Mapping[str, Any]) -> list[str]:
    return [
        f"**{escape(name)}**, some {kind} rows:\n\n{table_of(listing) if kind == 'changed' else _wide(listing, keys)}"
        for keys in [len(details["key"])]
        for name, kind, listing in samples(details)
    ]


def _wide(listing: Listing, keys: int) -> str:
    """Show every column; a wide row continues in further tables, each of which begins with the key."""
    width, last = max(_COLUMNS - keys, _NARROWEST), len(listing.columns)
    parts = [[*range(keys), *range(at, min(at + width, last))] for at in range(keys, last, width)]
    return "\n\n".join(table_of(_part(listing, part)) for part in parts or [[*range(last)]])


def _part(listing: Listing, places: Sequence[int]) -> Listing:
    rows = [[row[place] for place in places] for row in listing.rows]
    return replace(listing, columns=[listing.columns[place] for place in places], rows=rows)
