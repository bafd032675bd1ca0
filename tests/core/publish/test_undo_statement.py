"""The MERGE that takes a publish back row by row; that it does so is held by tests/spark/test_doc_snippets.py."""

from __future__ import annotations

import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.publish.undo_statement import undo_statement
from airflow_paimon.core.schema.schema_plan import new_schema


def test_names_are_quoted_and_a_table_of_keys_alone_restores_no_values() -> None:
    schema = new_schema([("a`b", "BIGINT NOT NULL"), ("v w", "STRING")], primary_keys=["a`b"])
    text = undo_statement(schema)
    assert "ON b.`a``b` = p.`a``b`" in text
    assert "UPDATE SET `v w` = u.b.`v w`" in text
    keys_alone = undo_statement(new_schema([("k", "BIGINT NOT NULL")], primary_keys=["k"]))
    assert "UPDATE" not in keys_alone
    assert "AND true THEN DELETE" in keys_alone


@pytest.mark.parametrize(
    ("columns", "keys", "text"),
    [
        ([("k", "BIGINT")], (), "d.t has no primary key"),
        ([("k", "BIGINT NOT NULL"), ("m", "MAP<STRING, INT>")], ("k",), "column 'm' has a map"),
        ([("k", "BIGINT NOT NULL"), ("r", "ARRAY<ROW<a MAP<STRING, INT>>>")], ("k",), "column 'r' has a map"),
    ],
)
def test_what_it_can_not_do_is_refused_by_name(
    columns: list[tuple[str, str]], keys: tuple[str, ...], text: str
) -> None:
    with pytest.raises(UnsupportedFeatureError, match=text):
        undo_statement(new_schema(columns, primary_keys=keys), "d.t")


def test_rows_that_can_move_between_partitions_are_refused() -> None:
    columns = [("k", "BIGINT NOT NULL"), ("dt", "STRING NOT NULL")]
    with pytest.raises(UnsupportedFeatureError, match="lacks the partition column 'dt'"):
        undo_statement(new_schema(columns, primary_keys=["k"], partition_keys=["dt"]))
