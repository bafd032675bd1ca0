"""A diff as lists: counts by partition, and sample rows. ``details``: those of ``diff_branches``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_paimon.shown.listing import Listing, heads

_PARTITIONS = 50
_PARTITIONS_WITH_SAMPLES = 10
_KEY = 60
"""Characters of a key's value."""
_CHANGED = (("key", "text"), ("column", "text"), ("Before", "value"), ("After", "value"))


def counts(details: Mapping[str, Any]) -> Listing:
    """List how many rows of each partition differ."""
    shown = details["partitions"][:_PARTITIONS]
    exact = all(p["unchanged_exact"] for p in shown)
    rows = [
        (_name(p), p["added"], p["changed"], p["deleted"], p["unchanged"] if exact else unchanged_text(p))
        for p in shown
    ]
    names = f"partition | added: number | changed: number | deleted: number | unchanged{': number' if exact else ''}"
    left = details["partitions_differing"] - len(shown)
    return Listing(title="partitions", columns=heads(names), rows=rows, left=left)


def unchanged_text(counted: Mapping[str, Any]) -> str:
    """Say how many rows are unchanged, as far as that is known."""
    return ("" if counted["unchanged_exact"] else "at most ") + f"{counted['unchanged']:,}"


def samples(details: Mapping[str, Any]) -> Iterator[tuple[str, str, Listing]]:
    """Give of each partition, by its name, the samples of each kind: of changed rows one line a value."""
    keys = details["key"]
    for partition in details["partitions"][:_PARTITIONS_WITH_SAMPLES]:
        for kind in ("changed", "added", "deleted"):
            if rows := partition.get("samples", {}).get(kind):
                yield _name(partition), kind, _changed(rows, keys) if kind == "changed" else _rows(rows, keys)


def _name(partition: Mapping[str, Any]) -> str:
    return partition["partition"] or "(whole table)"


def _changed(pairs: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Listing:
    rows = []
    for pair in pairs:
        before, after = pair["before"], pair["after"]
        key = ", ".join(f"{k}={_short(after[k])}" for k in keys)
        differ = [name for name in after if before.get(name) != after[name]]
        for name in differ or ["(a difference too small to show)"]:
            rows.append((key, name, before.get(name), after.get(name)))
    return Listing(title="rows", columns=_CHANGED, rows=rows)


def _rows(found: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Listing:
    """List rows, their keys first."""
    names = [*keys, *(name for name in dict.fromkeys(n for row in found for n in row) if name not in keys)]
    rows = [[row.get(name) for name in names] for row in found]
    return Listing(title="rows", columns=[(name, "value") for name in names], rows=rows)


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _KEY else text[: _KEY - 1] + "…"
