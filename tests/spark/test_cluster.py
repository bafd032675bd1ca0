"""A real standalone cluster of two workers, where the package arrives as ``--py-files`` and is installed nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_paimon.core.schema.tables import create_table
from tests.spark import cluster_job
from tests.spark.cluster import Cluster, start_cluster
from tests.spark.jobs.operations import make_branch, rows_of

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

COLUMNS = [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, java_home: Path) -> Iterator[Cluster]:
    with start_cluster(tmp_path_factory.mktemp("cluster"), java_home) as started:
        yield started


def test_everything_on_rows_with_a_failing_first_attempt(cluster: Cluster, tmp_path: Path) -> None:
    create_table(str(tmp_path), "d.keyed", COLUMNS, partition_keys=["dt"], primary_keys=["dt", "k"],
                 options={"bucket": "2"})  # fmt: skip
    append = create_table(str(tmp_path), "d.append", COLUMNS)
    _, fix = make_branch(tmp_path)
    (tmp_path / "query.sql").write_text("SELECT k, 'fixed' AS v, dt FROM branch WHERE dt = 'a' AND k <> 9")
    done = cluster.submit(Path(cluster_job.__file__), str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert "a disk hiccup" in done.stderr, "the first attempt did fail"
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))[6:])
    assert all(cluster.archive.name in home for home in found["homes"]), found["homes"]
    assert (found["keyed"], found["append"], found["append_rows"], found["source_same"]) == (1000, 1000, 1000, True)
    assert found["rows"] == sorted([k, "new" if k < 10 else f"v{k}", f"p{k % 3}"] for k in range(1000))
    assert rows_of(append) == sorted((k, f"v{k}", f"p{k % 3}") for k in range(1000))
    operations = found["operations"]
    assert "not among those to correct" in operations["refused"] and "not among those" not in done.stderr
    total = operations["total"]
    assert (operations["rows"], total["changed"], total["deleted"], total["added"]) == (9, 9, 1, 0)
    assert rows_of(fix)[:3] == [(0, "b0", "b"), (0, "c0", "c"), (0, "fixed", "a")]
