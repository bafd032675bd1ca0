"""Differences of schemas, and the grid of a chain table: what each day is."""

from dataclasses import replace

import pytest

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.plugin.tabs.schema_diff_plan import schema_changes


def schema(*columns: tuple[int, str, str], **more: object) -> TableSchema:
    fields = tuple(DataField(i, name, parse_type(kind)) for i, name, kind in columns)
    made = TableSchema(id=0, fields=fields, highest_field_id=9)
    return replace(made, **more)  # type: ignore[arg-type]


BEFORE = schema((0, "k", "BIGINT"), (1, "v", "STRING"), options={"bucket": "2", "old": "1"}, primary_keys=("k",))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (BEFORE, []),
        (schema((0, "k", "BIGINT"), (1, "w", "STRING"), options=BEFORE.options, primary_keys=("k",)),
         [("changed", "column v is now w")]),
        (schema((0, "k", "BIGINT"), (2, "v", "STRING"), options=BEFORE.options, primary_keys=("k",)),
         [("added", "column v STRING"), ("removed", "column v STRING")]),
        (schema((1, "v", "STRING"), (0, "k", "BIGINT"), options=BEFORE.options, primary_keys=("k",)),
         [("changed", "order of columns: v, k")]),
        (schema((0, "k", "BIGINT"), (1, "v", "VARCHAR(3)"), options=BEFORE.options, primary_keys=("k",)),
         [("changed", "column v: STRING is now VARCHAR(3)")]),
        (replace(BEFORE, options={"bucket": "4", "new": "1"}, primary_keys=(), comment="c"),
         [("changed", "primary keys: k is now none"), ("changed", "comment: None is now c"),
          ("changed", "option bucket: 2 is now 4"), ("added", "option new = 1"), ("removed", "option old = 1")]),
    ],
)  # fmt: skip
def test_differences_go_by_field_ids(after: TableSchema, expected: list[tuple[str, str]]) -> None:
    assert [(c.kind, c.text) for c in schema_changes(BEFORE, after)] == expected


def test_a_first_version_is_all_new() -> None:
    assert [c.text for c in schema_changes(None, BEFORE)] == ["column k BIGINT", "column v STRING"]
