"""Load the flights of 2013 into the warehouse of ``paimon_default``, three days of them wrong: table demo.flights."""

from __future__ import annotations

import sys

from airflow_paimon.bundled import dags_folder
from airflow_paimon.core.errors import AlreadyExistsError
from airflow_paimon.data import write_arrow
from airflow_paimon.hooks.paimon import PaimonHook

sys.path.append(str(dags_folder()))
import _flights  # beside the DAGs, found by the line above


def main() -> None:
    hook = PaimonHook()
    try:
        table = _flights.create_flights(hook.warehouse, hook.storage_options)
    except AlreadyExistsError:
        sys.exit(f"{_flights.TABLE} is there already, in {hook.warehouse}")
    rows = _flights.with_wrong_days(_flights.read_flights())
    write_arrow(table, rows)
    print(f"{rows.num_rows} flights are in {_flights.TABLE}, in {hook.warehouse}; those of 8 to 10 July 2013 are wrong")


if __name__ == "__main__":
    main()
