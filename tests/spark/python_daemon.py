"""PySpark's daemon, with what each Python worker that it forks would otherwise import anew: two seconds of CPU each."""

import importlib
import sys
from zipimport import zipimporter

from pyspark.daemon import manager

import airflow_paimon.spark.jobs.correct_branch
import airflow_paimon.spark.jobs.diff_branches  # noqa: F401

_invalidate_caches = importlib.invalidate_caches


def _invalidate_caches_of_folders() -> None:
    """What PySpark calls at the start of each task, without reading all zip archives again: a tenth of a second."""
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[path]
    _invalidate_caches()


importlib.invalidate_caches = _invalidate_caches_of_folders

if __name__ == "__main__":
    manager()
