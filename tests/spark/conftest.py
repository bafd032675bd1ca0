"""Two JVMs more take a minute: the race of Spark drivers runs with ``make soak`` only."""

import os

collect_ignore = [] if os.environ.get("AIRFLOW_PAIMON_SOAK") else ["test_statement_races.py"]
