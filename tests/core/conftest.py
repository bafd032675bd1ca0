"""Hypothesis without deadlines: how long an example takes says more about the machine's other work than about us."""

from hypothesis import settings

settings.register_profile("airflow-paimon", deadline=None)
settings.load_profile("airflow-paimon")
