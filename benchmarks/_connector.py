"""Paimon's own connector 0.9.0 on Spark 3.5, in its own process and JVM, as a comparison for benchmarks.

``make oracles`` prepares its interpreter and its jar. Run as a script, this is that process: each line of stdin is a
query whose rows are all read, and acknowledged by a line on stdout.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ORACLES = Path(__file__).parent.parent / ".oracles"
JAR = ORACLES / "jars" / "paimon-spark-3.5-0.9.0.jar"
PYTHON = ORACLES / "o4" / "bin" / "python"


@contextmanager
def connector(warehouse: str, folder: str) -> Iterator[Callable[[str], None] | None]:
    """Start it and return a function that runs one query; None if it is not prepared.

    Tables are ``paimon.d.t``. Its temporary files go to ``folder``.
    """
    if not (JAR.exists() and PYTHON.exists()):
        yield None
        return
    command = [str(PYTHON), __file__, str(JAR), warehouse, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        to, answers = process.stdin, process.stdout

        def run(query: str) -> None:
            print(query, file=to, flush=True)
            if answers.readline() != "done\n":
                raise RuntimeError(f"the connector failed to read {query!r}; see its log")

        try:
            run("SELECT 1")
            yield run
        finally:
            to.close()


def _serve(jar: str, warehouse: str, folder: str) -> None:
    import os

    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "3g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", folder)
        .config("spark.jars", jar)
        .config("spark.sql.catalog.paimon", "org.apache.paimon.spark.SparkCatalog")
        .config("spark.sql.catalog.paimon.warehouse", f"file://{warehouse}")
        .config("spark.sql.extensions", "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for query in sys.stdin:
        spark.sql(query).write.format("noop").mode("overwrite").save()
        print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
