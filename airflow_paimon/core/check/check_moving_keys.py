"""Findings about tables with one row of a key in all partitions: a key that two partitions have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_paimon.core.commit.since import has_moving_keys
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.findings import ERROR, INFO, Finding
from airflow_paimon.core.table.table import Table

FindDoubleKeys = Callable[[Table, Snapshot], list[tuple[str, str, str]] | None]
"""Reads the keys of a snapshot: up to 100 keys that two partitions have, and the partitions; None: too many keys to
compare. Implemented by the data layer."""


def moving_key_findings(view: Table, double_keys: FindDoubleKeys | None) -> Iterator[Finding]:
    """Check the head of a branch. ``double_keys`` None: nothing, as only the rows tell."""
    schema, head = view.schema(), view.latest_snapshot()
    if head is None or double_keys is None or not has_moving_keys(schema):
        return
    found = double_keys(view, head)
    if found is None:
        yield Finding(
            kind="keys-not-compared",
            subject=view.branch_name,
            severity=INFO,
            message=f"{view.label}: the table has too many keys to look for one that two partitions have",
            at_risk="nothing, if every writer has read the keys of the whole table",
        )
    elif found:
        key, one, other = found[0]
        yield Finding(
            kind="key-in-two-partitions",
            subject=view.branch_name,
            severity=ERROR,
            message=f"{view.label}: {len(found)} keys are in two partitions, e.g. {key} in {one} and {other}",
            at_risk="reads give both rows, and every engine refuses to write; overwrite one of the partitions without "
            "the row (write_table or write_arrow with mode=overwrite)",
        )
