"""What a person wants to read of a result, for the task's log: lines by operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_paimon.shown.correction_text import plan_lines
from airflow_paimon.shown.holders import holder_text
from airflow_paimon.shown.listing import size_text

Result = Mapping[str, Any]
_MOST = 20


def log_lines(operation: str, result: Result) -> list[str]:
    """Return the lines of an operation's result; none for most operations."""
    lines = _LINES.get(operation)
    return [] if lines is None else lines(result)


def _expire_branches(result: Result) -> list[str]:
    found = result["details"]
    word = "would be deleted" if result["dry_run"] else "deleted"
    lines = [f"Branch {one['branch']} {word}: {one['why']}" for one in found["expired"]]
    lines += [f"Branch {one['branch']} stays: {one['why']}" for one in found["kept"]]
    return lines + [f"Branch {one['branch']} expires at {one['expires_at']}" for one in found["expiring_soon"]]


def _remove_orphan_files(result: Result) -> list[str]:
    found = result["details"]
    word = "would be deleted" if result["dry_run"] else "deleted"
    lines = [f"{found['files']:,} files with {found['bytes']:,} bytes {word}"]
    lines += [
        f"{one['folder'] or 'the table folder'}: {one['files']:,} {one['kind']} files, {one['bytes']:,} bytes"
        for one in found["folders"]
    ]
    return lines + _why_kept(found)


def _why_kept(found: Mapping[str, Any]) -> list[str]:
    """Say why the other files stay."""
    young, held = found["young"], found["kept_for_writers"]
    lines = [f"{found['referenced']['files']:,} files stay as something refers to them:"]
    lines += [
        f"  {one['kind']} of {one['branch']}: {one['files']:,} files, {one['only_files']:,} of them by nothing else"
        for one in found["referenced"]["by"][:_MOST]
    ]
    if young["files"]:
        lines.append(f"{young['files']:,} files are too young, the first until {young['old_enough_from']}")
    if held["files"]:
        lines.append(f"{held['files']:,} old files stay as their writer has written a young one")
    if found["unknown"]["files"]:
        lines.append(f"{found['unknown']['files']:,} files have names that no known writer gives")
    return lines


def _storage_usage(result: Result) -> list[str]:
    found = result["details"]
    lines = [
        f"{found['total']['files']:,} files with {size_text(found['total']['bytes'])}, of which "
        f"{size_text(found['live']['bytes'])} are main's newest state and "
        f"{size_text(found['unreferenced']['bytes'])} are referenced by nothing"
    ]
    return lines + [
        f"{holder_text(one)} frees {size_text(one['frees_bytes'])} of {size_text(one['bytes'])}: {one['way']}"
        for one in found["references"][:_MOST]
    ]


def _table_health(result: Result) -> list[str]:
    found = result["details"]
    if "tables" in found:
        return [_health_line(one) for one in found["tables"]]
    return [
        f"Score {found['score']}",
        *(f"{one['id']} takes off {one['points']}: {one['text']}" for one in found["reasons"]),
    ]


def _health_line(one: Mapping[str, Any]) -> str:
    if one["score"] is None:
        return f"{one['table']} can't be read: {one['error']['message']}"
    why = ", ".join(f"{r['id']} -{r['points']}" for r in one["reasons"])
    return f"{one['table']}: score {one['score']}{f': {why}' if why else ''}"


def _compact(result: Result) -> list[str]:
    found = result["details"]
    if result["dry_run"]:
        return [f"{found['files_before']} files in {found['partitions']} partitions would be rewritten"]
    return [
        f"{found['files_before']} files became {found['files_after']} in {found['partitions']} partitions: "
        f"{found['rows']:,} rows, {found['deleted_rows']:,} deleted ones dropped",
        *found.get("warnings", ()),
    ]


def _rescale(result: Result) -> list[str]:
    found = result["details"]
    number, warnings = found["bucket_num"], found.get("warnings", [])
    if result["dry_run"]:
        files, size = found["files_before"], size_text(found["bytes_before"])
        line = f"{files} files ({size}) of {found['partitions']} partitions would be distributed to {number} buckets"
    elif not found["partitions"]:
        line = f"nothing to write: every chosen partition has {number} buckets already"
    else:
        line = f"{found['rows']:,} rows in {found['partitions']} partitions, now in {number} buckets each"
    return [line, *warnings]


def _expire_partitions(result: Result) -> list[str]:
    lines = []
    for group in result["details"].get("groups", ()):
        lines.append(f"{group['group'] or 'all'}: {group['reason']}")
        lines += [f"  {one['snapshot'] or 'before the first'} and {len(one['deltas'])} deltas: {one['rows']:,} rows"
                  for one in group["segments"]]  # fmt: skip
    return lines


def _compact_manifest(result: Result) -> list[str]:
    found = result["details"]
    before, after = found["before"], found["after"]
    if not result["changed"]:
        return [f"Nothing to merge; manifests: {before['manifests']:,}"]
    word = "would become" if result["dry_run"] else "became"
    return [
        f"{before['manifests']:,} manifests with {before['entries']:,} entries {word} {after['manifests']:,} with "
        f"{after['entries']:,}"
    ]


def _expire_tags(result: Result) -> list[str]:
    found = result["details"]
    word = "would expire" if result["dry_run"] else "expired"
    lines = [f"{branch}: {len(names)} tags {word}: {', '.join(names)}" for branch, names in found["expired"].items()]
    for branch, needed in found["needed"].items():
        lines += [f"{branch}: tag {name} stays: {reason}" for name, reason in needed.items()]
    return lines + _freed(result)


def _expired(what: str) -> Callable[[Result], list[str]]:
    def lines(result: Result) -> list[str]:
        found = result["details"]
        word = "would expire" if result["dry_run"] else "expired"
        lines = [f"{branch}: {what} {e['from']} to {e['to']} {word}" for branch, e in found["expired"].items()]
        lines += [f"{branch}: {reason}" for branch, reason in found["retained_by"].items()]
        return lines + _freed(result)

    return lines


def _freed(result: Result) -> list[str]:
    found = result["details"]
    deleted = found["deleted"]
    files = deleted["data_files"] + deleted["changelog_files"]
    word = "would be deleted" if result["dry_run"] else "deleted"
    lines = [f"{files} data files and {deleted['metadata_files']} metadata files {word}: {deleted['bytes']:,} bytes"]
    if found["trash"]["entries"]:
        lines.append(f"{found['trash']['entries']} entries wait in the trash until {found['trash']['next_due']}")
    return lines + [f"Warning: {warning}" for warning in found["warnings"]]


def _export_audit(result: Result) -> list[str]:
    found = result["details"]
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found["kinds"].items())
    lines = [f"{found['records']:,} records of {found['tables']:,} tables{f': {kinds}' if kinds else ''}"]
    if found.get("to_table"):
        lines.append(f"{found['to_table']}: {found['rows_written']:,} written, {found['rows_deleted']:,} deleted")
    return lines + [f"{table} was left out: {why}" for table, why in found["unreadable"].items()]


def _compact_chain_table(result: Result) -> list[str]:
    details = result["details"]
    found = details.get("partitions") or details.get("plan", {}).get("partitions", ())
    return [_partition_line(one) for one in found]


def _partition_line(one: Mapping[str, Any]) -> str:
    text = f"{one['partition']}: {one.get('outcome') or one.get('action')}: {one['reason']}"
    if "rows_in" in one:
        text += f"; {one['rows_in']:,} rows in {one['files_in']} files"
    if "rows_out" in one:
        text += f" became {one['rows_out']:,} in {one['files_out']}"
    return text


def _find_rows(result: Result) -> list[str]:
    found = result["details"]
    files = found["files"]
    lines = [
        f"{files['with_rows']:,} of {files['total']:,} files hold {found['rows']:,} such rows "
        f"({size_text(files['with_rows_bytes'])}); read: {files['read']:,} files, the others by their statistics"
    ]
    lines += [f"branch {b['branch']}: {b['files']:,} files with {b['rows']:,} rows" for b in found["branches"]]
    lines += [
        f"{h['kind']} {h['name'] or ''} of {h['branch']} keeps {h['files']:,} files: {h['way']}"
        for h in found["references"][:_MOST]
    ]
    return lines + [f"not read: {one['path']}: {one['reason']}" for one in found["unchecked"][:_MOST]]


def _erase_rows(result: Result) -> list[str]:
    found = result["details"]
    lines = [
        f"branch {e['branch']}: {e['rows']:,} rows erased from {e['files']:,} files by snapshot {e['snapshot']}"
        for e in found.get("erased", ())
    ]
    done = "No stored file has such a row" if found["complete"] else "Not complete: see what still keeps files"
    return [*lines, *_find_rows(result), done]


def _replay_branch(result: Result) -> list[str]:
    found = result["details"]
    lines = [
        f"{name}: read from after snapshot {s['start']} up to {s['caught_up_to']} of {s['head']}"
        for name, s in found["sources"].items()
    ]
    return lines + [
        f"{name}: {t['rows']:,} rows in {t['batches']} batches; snapshot {t['snapshot_before']} became "
        f"{t['snapshot_after']}"
        for name, t in found["targets"].items()
    ]


_LINES: Mapping[str, Callable[[Result], list[str]]] = {
    "check_branch_data": lambda result: [
        f"{rule['name']}: {rule['outcome']}, {rule['said']}" for rule in result["details"]["rules"]
    ],
    "compact": _compact,
    "compact_chain_table": _compact_chain_table,
    "compact_manifest": _compact_manifest,
    "create_table_set": lambda result: [
        f"{result['details']['version']}: {name} at snapshot {at}" for name, at in result["details"]["tables"].items()
    ],
    "erase_rows": _erase_rows,
    "expire_branches": _expire_branches,
    "expire_changelogs": _expired("changelogs"),
    "expire_partitions": _expire_partitions,
    "expire_snapshots": _expired("snapshots"),
    "expire_tags": _expire_tags,
    "export_audit": _export_audit,
    "find_rows": _find_rows,
    "plan_correction": lambda result: plan_lines(result["details"]),
    "remove_orphan_files": _remove_orphan_files,
    "replay_branch": _replay_branch,
    "rescale": _rescale,
    "storage_usage": _storage_usage,
    "table_health": _table_health,
}
