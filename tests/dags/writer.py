"""A job that goes on: it commits to one partition of main until its stdin ends, and then prints what it committed.

python -m tests.dags.writer WAREHOUSE TABLE PARTITION [STORAGE_OPTIONS_JSON]
"""

import json
import select
import sys

import pyarrow as pa

from airflow_paimon import open_table
from airflow_paimon.data import write_arrow

_PAUSE_SECONDS = 0.5


def main() -> None:
    warehouse, name, partition, *options = sys.argv[1:]
    table = open_table(warehouse, name, storage_options=json.loads(options[0]) if options else None)
    snapshots = []
    while not select.select([sys.stdin], [], [], _PAUSE_SECONDS)[0]:
        number = len(snapshots)
        rows = pa.table({"dt": [partition], "id": [number], "amount": [float(number)], "note": ["live"]})
        snapshots.append(write_arrow(table, rows)["snapshot_after"])
    print(json.dumps(snapshots))


if __name__ == "__main__":
    main()
