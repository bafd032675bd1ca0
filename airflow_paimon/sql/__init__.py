"""SELECTs over Paimon tables in this process, by DuckDB: no Spark and no JVM, for what one machine reads in a moment.

Nothing here imports Airflow; ``airflow_paimon.hooks.sql`` is what makes it a hook.
"""
