"""The aggregate functions: each folds the records of a key into one value of a column.

See docs/format.md, Merging.
"""

from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.aggregates.choose import aggregator

__all__ = ["Aggregate", "aggregator"]
