"""What comes to a bucket that a publish merges by key, while it is merged."""

from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.publish.key_merge import KeyMergeResult
from airflow_paimon.core.publish.publication import BucketReach
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.partitions import StoredPartitions
from tests.core.tables import append, make_table


@pytest.mark.parametrize(
    ("options", "again"),
    [({}, False), ({"changelog-producer": "lookup"}, True), ({"merge-engine": "first-row"}, True)],
)
def test_rows_of_other_keys_are_decided_on_again_where_a_writer_remembers_replaced_rows(
    tmp_path: Path, options: dict[str, Any], again: bool
) -> None:
    table = make_table(tmp_path, **options)
    append(table, "1")
    schema = table.schema()
    bucket_of = StoredPartitions(schema).bucket
    added = [e._replace(file=e.file._replace(level=0)) for e in live_entries(table, table.latest_snapshot()).values()]
    keyed = frozenset(bucket_of(e) for e in added)
    reach = BucketReach(buckets=frozenset(), keyed=keyed, merged=KeyMergeResult(files={}, meets=lambda _: False))
    assert reach.meets(added, schema) is again
