"""Oracle O4: Paimon's Spark connector 0.9.0 on PySpark 3.5 behind JSON lines. Runs in the O4 environment.
drivers.SparkConnectorOracle is the other side."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from json_lines import serve
from pyspark.sql import SparkSession

Request = dict[str, Any]


def session(jar: str, scratch: str) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraClassPath", jar)
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC -XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.warehouse.dir", f"{scratch}/spark-warehouse")
        .config("spark.sql.extensions", "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions")
        .getOrCreate()
    )


class Connector:
    """One Spark session; each warehouse becomes a catalog of its own, under the name that the request asks for."""

    def __init__(self, jar: str, scratch: str) -> None:
        self.spark = session(jar, scratch)
        self.scratch = Path(scratch)
        self.catalogs: dict[str, str] = {}

    def use(self, request: Request) -> None:
        """Makes the warehouse's catalog and the database the current ones."""
        warehouse = request["warehouse"]
        if warehouse not in self.catalogs:
            name = f"paimon{len(self.catalogs)}"
            self.spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.paimon.spark.SparkCatalog")
            self.spark.conf.set(f"spark.sql.catalog.{name}.warehouse", warehouse)
            self.catalogs[warehouse] = name
        self.spark.sql(f"USE {self.catalogs[warehouse]}")
        if database := request.get("database"):
            self.spark.sql(f"CREATE DATABASE IF NOT EXISTS `{database}`")
            self.spark.sql(f"USE `{database}`")

    def sql(self, request: Request) -> dict[str, Any]:
        """Runs the statements in order; the last one's rows are the answer."""
        self.use(request)
        for name, path in request.get("views", {}).items():
            self.spark.read.parquet(path).createOrReplaceTempView(name)
        frame = None
        for statement in request["statements"]:
            frame = self.spark.sql(statement)
        if frame is None or not frame.columns:
            return {"count": 0}
        batches = frame._collect_as_arrow()
        if not batches:
            return {"count": 0}
        path = self.scratch / f"{uuid.uuid4()}.arrow"
        result = pa.Table.from_batches(batches)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, result.schema) as writer:
            writer.write_table(result)
        return {"path": str(path), "count": result.num_rows, "schema": frame.schema.simpleString()}

    def operation(self, request: Request) -> dict[str, Any]:
        """Runs an operation of ours, from the archive that a cluster gets, as a job does. A refusal is an answer."""
        if request["archive"] not in sys.path:
            sys.path.insert(0, request["archive"])
        from airflow_paimon.core.errors import PaimonError
        from airflow_paimon.core.requests.arguments import build_request
        from airflow_paimon.core.requests.context import failure_json
        from airflow_paimon.spark.jobs import run_spark_operation

        name, values = request["operation"], request["values"]
        try:
            result = run_spark_operation(self.spark, build_request(name, values)).to_json()
        except PaimonError as error:
            result = failure_json(name, values["table"], error)
        return {"result": result}


if __name__ == "__main__":
    connector = Connector(sys.argv[1], sys.argv[2])
    serve({"sql": connector.sql, "operation": connector.operation})
    connector.spark.stop()
