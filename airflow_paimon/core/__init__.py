"""Metadata of Apache Paimon tables: snapshots, schemas, tags, branches, manifests, plans and commits.

Imports neither Airflow nor Spark, so that a worker, a trigger, a Spark driver and an executor can all use it.
"""
