"""Writes the archive of Spark's loaded classes that every JVM of the tests starts from, in two thirds of the CPU time.

``python -m tests.class_archive FILE`` runs a small application and keeps the classes that it has loaded (Java's
application class-data sharing). A JVM with another Java or another class path ignores the file.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

BARE_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def write_archive(archive: Path) -> None:
    made = archive.with_suffix(".new")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{BARE_JVM} -XX:ArchiveClassesAtExit={made}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    submit = Path(sys.executable).with_name("spark-submit")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false", __file__, "application"],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    if done.returncode or not made.exists():
        # An empty file is ignored, too: the tests then take longer, and find what the matter is.
        print(f"no archive of Spark's classes:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}", file=sys.stderr)
        made.touch()
    made.replace(archive)


def run_application() -> None:
    """Use what most tests use: files, SQL, functions over Arrow batches, RDDs."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    rows = spark.createDataFrame([(i % 3, i, str(i)) for i in range(20)], "a int, b long, c string")
    rows.write.parquet("rows")
    spark.read.parquet("rows").createOrReplaceTempView("t")
    spark.sql("SELECT a, sum(b) AS b, max(c) AS c FROM t WHERE b > 2 GROUP BY a").createOrReplaceTempView("g")
    spark.sql(
        "SELECT t.a, t.b, coalesce(g.c, t.c), row_number() OVER (PARTITION BY t.a ORDER BY t.b) FROM t LEFT JOIN g "
        "ON t.a = g.a ORDER BY t.b"
    ).collect()
    spark.sql("SELECT a FROM t UNION ALL SELECT a FROM g EXCEPT SELECT 7").toArrow()
    rows.mapInArrow(lambda batches: batches, rows.schema).join(rows, "b").count()
    rows.rdd.mapPartitions(lambda part: part).count()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:] == ["application"]:
        run_application()
    else:
        write_archive(Path(sys.argv[1]).absolute())
