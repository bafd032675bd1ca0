"""Paimon tables in Spark: a plan becomes tasks, tasks return commit messages, the driver commits once."""
