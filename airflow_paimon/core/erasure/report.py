"""The report of a search for rows, as markdown that an auditor reads and keeps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def report_markdown(result: Mapping[str, Any]) -> str:
    """Return a report of ``find_rows`` or ``erase_rows`` as markdown. ``result``: theirs.

    No value of a row is in it; names of partitions are, in the paths of files.
    """
    found = result["details"]
    files = found["files"]
    unread = len(found["unchecked"]) + found["unchecked_left_out"]
    verdict = (
        "**No stored file has such a row.**"
        if found["proven"]
        else f"**{files['with_rows']:,} files hold {found['rows']:,} such rows; {unread:,} could not be read.**"
    )
    heads = ", ".join(f"{name} at snapshot {number}" for name, number in found["state"].items())
    lines = [
        f"# Rows of a condition in {result['table']}",
        "",
        verdict,
        "",
        f"- Time: {found['time']}",
        f"- SHA-256 of the condition: `{found['condition_sha256']}`",
        f"- State: {heads}",
        f"- Files of the table: {files['total']:,} with {files['bytes']:,} bytes; read: {files['read']:,} "
        f"({files['read_ratio']:.1%}), the others by their statistics",
        f"- Made by: airflow-paimon {result['version']}, {result['operation']}",
    ]
    lines += _section(
        "Who reaches them",
        ("held by", "files", "lost with it", "way"),
        [(f"rows of branch {b['branch']}", b["files"], "nothing but the rows", "") for b in found["branches"]]
        + [(_holder(h), h["files"], h["lost"], h["way"]) for h in found["references"]],
    )
    lines += _section(
        "Files",
        ("path", "kind", "rows", "bytes", "reached by"),
        [(f["path"], f["kind"], f["rows"], f["bytes"], "; ".join(f["reached_by"]) or "nobody") for f in found["found"]],
    )
    lines += [f"... and {found['found_left_out']:,} more"] if found["found_left_out"] else []
    lines += _section("Not read", ("path", "reason"), [(u["path"], u["reason"]) for u in found["unchecked"]])
    lines += ["", "## Not checked", "", *(f"- {text[:1].upper()}{text[1:]}" for text in found["not_searched"])]
    return "\n".join([*lines, ""])


def _holder(holder: Mapping[str, Any]) -> str:
    first, last = holder["first_snapshot"], holder["last_snapshot"]
    span = f"snapshot {first}" if first == last else f"snapshots {first} to {last}"
    name = f" {holder['name']}" if holder["name"] else ""
    return f"{holder['kind']}{name} of {holder['branch']} ({span})"


def _section(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    if not rows:
        return []
    cells = [[str(value).replace("|", "\\|") for value in row] for row in rows]
    table = [f"| {' | '.join(row)} |" for row in (columns, *cells)]
    return ["", f"## {title}", "", table[0], f"|{'---|' * len(columns)}", *table[1:]]
