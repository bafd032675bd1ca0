"""Which tests run when: ``make test``, ``make landing`` or ``make thorough``. Nothing is drawn.

``make test`` has what neither has the mark ``landing`` nor ``thorough``. ``make landing`` has what a change must pass
besides: the tests with the mark ``landing``, and those of ``LANDING``. ``make thorough`` has everything.

``every(n)``: of the cases of a test, or of the tests of a class or file, ``make test`` and ``make landing`` have every
n-th one, as they prove much the same; ``first`` is the place of the first one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.randomness import thorough

LANDING = (
    "tests/live/",
    "tests/oracles/",
    "tests/golden/",
    "tests/dags/test_demo.py",
    "tests/dags/test_ui.py",
    "tests/airflow/test_cluster_jobs.py",
    "tests/airflow/test_spark_connect.py",
    "tests/core/catalogs/test_hive.py",
    "tests/core/store/test_azure.py",
    "tests/core/store/test_gcs.py",
    "tests/core/store/test_hdfs.py",
    "tests/core/store/test_seaweed.py",
    "tests/data/test_java.py",
    "tests/data/chain/test_compact_java.py",
    "tests/data/test_first_releases.py",
    "tests/spark/test_read_golden.py",
    "tests/spark/test_sql_lives.py",
    "tests/spark/test_many_files.py",
    "tests/test_reference.py",
)
"""Other engines and their tables, servers, browsers and whole Airflows, which take long to start, and random lives in
Spark of what the tests of the built-in engine have, too.
"""


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark the tests that other tests of their folder, or other cases, stand for."""
    seen: Counter[str] = Counter()
    for item in items:
        if item.nodeid.startswith(LANDING):
            item.add_marker("landing")
        for node, found in item.iter_markers_with_node("every"):
            group = item.nodeid.partition("[")[0] if node is item else node.nodeid
            if not thorough() and seen[group] % found.args[0] != found.kwargs.get("first", 0):
                item.add_marker("thorough")
            seen[group] += 1
