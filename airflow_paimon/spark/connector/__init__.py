"""The engine ``connector``: rows are read and written by Apache Paimon's own Spark connector, metadata by ``core``.

Runs on Spark 3.5 as well, and starts no Python worker.
"""
