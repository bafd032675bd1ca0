"""The time to import the operators in a DAG file, beyond `from airflow.sdk import DAG`, which every DAG file needs."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

RUNS = 7
LIMIT_S = 0.15
MODULES = (
    "airflow_paimon.operators.branch",
    "airflow_paimon.operators.maintenance",
    "airflow_paimon.sensors.snapshot",
    "airflow_paimon.assets",
)
HEAVY = ("pyspark", "pyarrow", "fsspec", "fastavro", "airflow.providers.apache.spark")

PROBE = f"""
import json, sys, time
start = time.perf_counter()
from airflow.sdk import DAG
airflow = time.perf_counter()
before_ours = set(sys.modules)
import importlib
took = {{}}
for name in {MODULES!r}:
    before = time.perf_counter(), time.process_time()
    importlib.import_module(name)
    took[name] = time.perf_counter() - before[0], time.process_time() - before[1]
print(json.dumps({{"airflow": airflow - start, "ours": took,
                  "heavy": [m for m in {HEAVY!r} if m in set(sys.modules) - before_ours]}}))
"""


def main() -> int:
    """Measure in fresh interpreters and print medians."""
    probes = [
        json.loads(subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=True, text=True).stdout)
        for _ in range(RUNS + 1)
    ][1:]  # the first one may compile
    print(f"from airflow.sdk import DAG: {statistics.median(p['airflow'] for p in probes):.3f} s")
    for name in MODULES:
        print(f"  + {name}: {statistics.median(p['ours'][name][0] for p in probes) * 1000:.1f} ms")
    wall, cpu = ([sum(took[i] for took in p["ours"].values()) for p in probes] for i in (0, 1))
    print(
        f"  all operators: median {statistics.median(wall):.3f} s, best {min(wall):.3f} s, "
        f"CPU {statistics.median(cpu):.3f} s (the limit is {LIMIT_S} s)"
    )
    print(f"  heavy modules imported: {', '.join(probes[0]['heavy']) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
