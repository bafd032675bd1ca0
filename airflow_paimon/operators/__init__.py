"""Airflow operators, one per operation of the core."""
