"""Which branches of a table an operation reads and writes: what its task announces as inlets and outlets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.requests.operations import BY_TABLE, OPERATIONS
from airflow_paimon.core.table.paths import MAIN

_BASE = "base"


def branches_to_read(operation: str, arguments: Mapping[str, Any]) -> list[Any]:
    """Return the branches that a task reads, by its arguments, templated ones as they are written."""
    named = (_named(name, arguments) for name in OPERATIONS[operation].reads)
    return list(dict.fromkeys(MAIN if name == _BASE else _without_version(name) for name in named))


def branches_to_write(operation: str, arguments: Mapping[str, Any]) -> list[Any]:
    """Return the branches that a task may change, as far as its arguments say; compaction chooses by the table."""
    return [_named(name, arguments) for name in OPERATIONS[operation].writes if name != BY_TABLE]


def _named(name: str, arguments: Mapping[str, Any]) -> Any:
    return MAIN if name == MAIN else arguments.get(name)


def _without_version(name: Any) -> Any:
    """Return the branch of ``BRANCH@VERSION``; a template stays as it is written."""
    return name.partition("@")[0] if isinstance(name, str) and "{{" not in name else name


def branches_written(result: Mapping[str, Any]) -> list[str]:
    """Return the branches whose rows or columns an operation has changed; none for a dry run, a tag or a deletion."""
    operation, details = result["operation"], result["details"]
    if not result["changed"] or result["dry_run"] or not OPERATIONS[operation].writes:
        return []
    found = [result["branch"]]
    if operation == "alter_chain_table":
        found = list(details.get("branches") or found)
    if operation == "erase_rows":
        found = [one["branch"] for one in details["erased"]]
    if operation == "expire_partitions":
        found = list(details.get("expired") or found)  # of a chain table in two branches
    return list(dict.fromkeys(found))
