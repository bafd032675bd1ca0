"""A program that copies a branch of a table into another table as a stream, until it is killed. Its one argument names
a JSON file: the options of the reader, of the writer, and a folder of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.environment import REPO_ROOT
from tests.stream_kills import session


def start(source: dict[str, str], target: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    told = folder / "copying.json"
    told.write_text(json.dumps({"source": source, "target": target, "folder": str(folder)}))
    command = [sys.executable, "-m", __name__, str(told)]
    log = (folder / "copying.txt").open("a")
    with log:
        return subprocess.Popen(command, cwd=REPO_ROOT, process_group=0, stdout=log, stderr=log)


def main(told: dict[str, Any]) -> None:
    spark = session(Path(told["folder"]) / "warehouse")
    rows = spark.readStream.format("airflow_paimon").options(**told["source"]).load()
    writer = rows.writeStream.format("airflow_paimon").options(**told["target"])
    writer = writer.option("checkpointLocation", f"{told['folder']}/checkpoint")
    query = writer.trigger(processingTime="0 seconds").start()
    query.awaitTermination()
    time.sleep(3600)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
