"""Data files in Arrow: read, merge, write, one bucket at a time. Needs neither Airflow nor Spark."""

from airflow_paimon.data.arrow_read import count_rows, read_arrow, read_batches, read_system_table
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.data.drop import drop_partitions
from airflow_paimon.data.row_versions import row_history

__all__ = [
    "count_rows",
    "drop_partitions",
    "read_arrow",
    "read_batches",
    "read_system_table",
    "row_history",
    "write_arrow",
]
