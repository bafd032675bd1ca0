"""Metadata of Apache Paimon tables: snapshots, schemas, tags, branches, manifests, plans and commits.

Imports neither Airflow nor Spark, so that a worker, a trigger, a Spark driver and an executor can all use it.
"""

from airflow_paimon.core.commit.guard import register_guard

register_guard("airflow_paimon.core.chain.guard:check_commit")
"""The guard of every commit, whatever was imported."""
