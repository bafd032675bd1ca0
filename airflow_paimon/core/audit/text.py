"""Audit records as JSON, CSV or Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_paimon.core.audit.audit_record import AuditRecord
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.publish.diff_record import KINDS

FORMATS = ("json", "csv", "markdown")
FIGURES = ("partitions", "buckets", "files_added", "files_deleted", "rows_added", "rows_deleted", "bytes_added",
            "bytes_deleted")  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_ACTIVE = str.maketrans({c: f"\\{c}" for c in "\\`*_[]|~$"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def render(records: Sequence[AuditRecord], form: str) -> str:
    """Return the records in a format, ended by a line break.

    Raises:
        InvalidInputError: there is no such format.
    """
    if form == "json":
        return json.dumps([as_json(r) for r in records], indent=2, ensure_ascii=False) + "\n"
    if form == "csv":
        return _csv(records)
    if form == "markdown":
        return "\n".join(map(_section, records)) or "No publish, undo or correction.\n"
    raise InvalidInputError(f"An audit is written as {', '.join(FORMATS)}, not as {form!r}")


def as_json(record: AuditRecord) -> dict[str, Any]:
    """Return a record with its time as ISO in UTC."""
    return {"committed": time_text(record.time_ms), **record.to_json()}


def time_text(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _csv(records: Sequence[AuditRecord]) -> str:
    """One line a record; checks and changes are JSON in their cells. No cell is a formula for a spreadsheet."""
    out = io.StringIO()
    fields = [n for n in AuditRecord.__dataclass_fields__ if n != "statistics"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["committed", *fields, *FIGURES])
    for record in records:
        values = as_json(record)
        cells = [values["committed"], *(values[n] for n in fields), *(record.statistics.get(n) for n in FIGURES)]
        writer.writerow([_cell(value) for value in cells])
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None or value in ([], {}):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text


def _section(record: AuditRecord) -> str:
    at = time_text(record.time_ms)
    lines = [f"## {at}: {record.kind} of {_plain(record.table)}, snapshot {record.snapshot} of {_plain(record.branch)}"]
    lines += ["", *(f"- {name}: {value}" for name, value in _facts(record) if value)]
    for change in record.changes:
        lines += ["", *_change(change)]
    return "\n".join(lines) + "\n"


def _facts(record: AuditRecord) -> list[tuple[str, str]]:
    undone = "" if record.undone_by is None else f"undone by snapshot {record.undone_by}"
    approved = _plain(record.approved_by or "")
    if approved:
        approved += f" at {_plain(record.approved_at)}" if record.approved_at else ""
        approved += " (four eyes)" if record.four_eyes else ""
    brought = ""
    if record.from_branch:
        brought = (
            f"branch {_plain(record.from_branch)} at snapshot {record.from_snapshot}, from {record.base_snapshot} on"
        )
        if record.only_partitions:
            brought += f", only {_plain(', '.join(record.only_partitions))}"
    statistics = ", ".join(
        f"{name.replace('_', ' ')} {record.statistics[name]:,}" for name in FIGURES if name in record.statistics
    )
    checks = ", ".join(f"{_plain(name)} {_plain(_text(said))}" for name, said in record.checks.items())
    return [
        ("brought", brought),
        ("back to snapshot", "" if record.target_snapshot is None else str(record.target_snapshot)),
        ("reason", _plain(record.reason or "")),
        ("asked for by", _plain(record.requested_by or "")),
        ("approved by", approved),
        ("differences", _differences(record.diff)),
        ("checks", checks + (" (published in spite of them)" if record.checks_forced else "")),
        ("protection overridden", "yes" if record.forced else ""),
        ("statistics", statistics),
        ("undo tag", _plain(record.undo_tag or "")),
        ("undone", undone),
        ("duration", "" if record.duration_ms is None else f"{record.duration_ms / 1000:.1f} s"),
        ("committed by", _plain(record.user)),
    ]


def _differences(diff: Mapping[str, Any]) -> str:
    if not diff:
        return ""
    total = diff["total"]
    rows = ", ".join(f"{total[name]:,} rows {name}" for name in KINDS if isinstance(total.get(name), int))
    where = ", ".join(_plain(_text(p["partition"])) for p in diff["partitions"] if p["partition"])
    return f"{rows} in {diff['partitions_differing']} partitions{f': {where}' if where else ''}"


def _change(change: Mapping[str, Any]) -> list[str]:
    made = change.get("function")
    version = f" ({_plain(_text(change['function_version']))})" if change.get("function_version") else ""
    by = f", by {_plain(_text(made))}{version}" if made else ""
    rows = "".join(f", {name.replace('_', ' ')} {change[name]:,}" for name in change if str(name).startswith("rows"))
    line = f"Commit {change.get('snapshot')} ({_plain(_text(change.get('operation')))}{rows}){by}"
    if "sql" not in change:
        return [line]
    return [f"{line}:", "", *(f"    {part}" for part in _text(change["sql"]).splitlines())]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(text: str) -> str:
    """Show text as it is, on one line, never as markup."""
    return " ".join(text.split()).translate(_ACTIVE)
