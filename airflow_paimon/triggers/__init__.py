"""Airflow triggers: what deferred sensors wait with."""
