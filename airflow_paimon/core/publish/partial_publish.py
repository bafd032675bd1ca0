"""Publishes of some partitions of a branch (``merge_branch --partitions``): what may be asked, what stays behind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import MAX_LISTED, listed
from airflow_paimon.core.publish.compare import Comparison
from airflow_paimon.core.requests.requests import MergeBranch
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.properties import (
    LEFT_PARTITIONS_PROPERTY,
    ONLY_PARTITIONS_PROPERTY,
)
from airflow_paimon.core.table.table import Table


def check_parts(main: Table, request: MergeBranch) -> None:
    """Refuse what can't be published by partition.

    Raises:
        UnsupportedFeatureError: a key may move between partitions. InvalidInputError: the branch's tags are asked for.
    """
    schema = main.schema()
    if schema.crosses_partitions and TableOptions(schema.options).bucket <= 0:
        raise UnsupportedFeatureError(
            f"{main.name}: its primary key lacks partition columns, so a key may have moved from one partition to "
            "another on the branch, and would be twice or not at all on main. Publish the branch without partitions "
            "(--partitions)"
        )
    if request.tags:
        raise InvalidInputError(
            f"{main.name}: tags (--tags) can't be combined with partitions (--partitions): main has no state of the "
            "branch's tags after a publish of some partitions. Leave one of them out"
        )


def check_changed(compared: Comparison) -> None:
    """Refuse partitions in which the branch has changed nothing since it was made.

    Raises:
        InvalidInputError: names them, and those that it has changed.
    """
    schema = compared.schema
    parts = [choose_partitions(schema, [text], compared.main.name) for text in compared.scope.texts]
    unknown = [part.texts[0] for part in parts if not any(map(part.holds, compared.branch_partitions))]
    if unknown:
        changed = texts_of(schema, compared.branch_partitions)
        raise InvalidInputError(
            f"{compared.branch.label} has changed nothing in {listed(unknown)} since it was made, so there is nothing "
            f"to publish there. It has changed {listed(changed) or 'no partition at all'}",
            details={"unchanged_partitions": unknown[:MAX_LISTED], "changed_partitions": changed[:MAX_LISTED]},
        )


def texts_of(schema: TableSchema, partitions: Iterable[bytes]) -> list[str]:
    """Format stored partitions for people, sorted."""
    return sorted(map(StoredPartitions(schema).text, partitions))


def part_summary(compared: Comparison) -> dict[str, Any]:
    """Say which partitions are published alone, now and before, and which stay behind."""
    out: dict[str, Any] = {}
    if earlier := compared.on_main.partitions:
        out["published_partitions"] = earlier[:MAX_LISTED]
    if not compared.scope.is_whole:
        out["only_partitions"] = list(compared.scope.texts)
        out["left_partitions"] = texts_of(compared.schema, compared.unpublished_partitions)[:MAX_LISTED]
        out["left_partition_count"] = len(compared.unpublished_partitions)
    return out


def part_properties(compared: Comparison) -> dict[str, str]:
    """Return what the snapshot of a publish of some partitions says of that."""
    if compared.scope.is_whole:
        return {}
    return {
        ONLY_PARTITIONS_PROPERTY: compared.scope.json,
        LEFT_PARTITIONS_PROPERTY: str(len(compared.unpublished_partitions)),
    }


def is_partial(publish: Snapshot) -> bool:
    """Whether a publish was of some partitions only."""
    return ONLY_PARTITIONS_PROPERTY in publish.properties


def published_partitions(publish: Snapshot) -> tuple[str, ...]:
    """Return the partitions of such a publish, for people; none if it was of all, or says it unreadably."""
    try:
        found = json.loads(publish.properties.get(ONLY_PARTITIONS_PROPERTY, "[]"))
    except ValueError:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()
