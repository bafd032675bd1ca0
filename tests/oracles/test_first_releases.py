"""A table of Paimon 0.8 beside the Java engine: schemas of version 2 mean dynamic buckets where they say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_paimon.data import read_arrow, write_arrow
from tests.data.test_first_releases import old_table, rows
from tests.oracles.canonical import assert_same_rows
from tests.oracles.drivers import JavaOracle

pytestmark = pytest.mark.oracle


def test_keys_stay_in_the_buckets_of_whoever_wrote_first(java_oracle: JavaOracle, tmp_path: Path) -> None:
    table = old_table(tmp_path, 2, keyed=True)
    java_oracle.write(tmp_path, "d.t", rows(1, 2))
    write_arrow(table, rows(2, 3))
    java_oracle.write(tmp_path, "d.t", rows(3, 4))
    for found in (java_oracle.read(tmp_path, "d.t"), read_arrow(table)):
        assert_same_rows(found, rows(1, 2, 3, 4))
