"""How a read is cut into tasks, and what is kept out of a Python worker's next call. None of it needs a JVM."""

from __future__ import annotations

import sys
import zipfile
import zipimport
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.data.merge.sections import Section
from airflow_paimon.data.read_groups import plan_of, unpacked
from airflow_paimon.data.read_splits import ReadSplit
from airflow_paimon.spark.datasource import PaimonDataSource
from airflow_paimon.spark.shares import task_shares
from airflow_paimon.spark.tasks import LEAST_TASKS, TASK_BYTES, forgetting_zip_importers
from tests.data.test_features import data_file
from tests.spark.jobs.operations import make_branch

MIB = 1024 * 1024


def split(number: int, size: int) -> ReadSplit:
    file = data_file(f"data-{number}.parquet")._replace(file_size=size)
    return ReadSplit(bucket=BucketSplit(b"", (), number, 8, ()), sections=(Section(((file,),)),))


def split_groups(splits: list[ReadSplit]) -> list[list[ReadSplit]]:
    """The splits of each task of a read."""
    read: Any = None  # what is read of them doesn't matter here
    return [unpacked(share)[1] for share in task_shares(plan_of((read, splits)))]


@pytest.mark.parametrize(
    ("sizes", "tasks"),
    [
        ([12 * MIB] * 8, 8),  # one task would read it all on one core
        ([1000] * 8, 2),  # starting a task costs more than it would read
        ([100 * MIB] * 40, 40),
        ([30 * MIB] * 400, 400 // (TASK_BYTES // (34 * MIB))),
    ],
)
def test_a_read_is_shared_out_among_cores(sizes: list[int], tasks: int) -> None:
    splits = [split(n, size) for n, size in enumerate(sizes)]
    groups = split_groups(splits)
    assert len(groups) == pytest.approx(tasks, abs=1)
    assert [f.file_name for g in groups for s in g for f in s.files] == [f.file_name for s in splits for f in s.files]


def test_a_read_of_any_size_between_has_work_for_all() -> None:
    for size in range(16, 129, 4):
        assert len(split_groups([split(n, size * MIB) for n in range(LEAST_TASKS)])) == LEAST_TASKS


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[str]:
    """A zip archive on ``sys.path`` that Python has looked into, as PySpark's own are in a worker."""
    path = str(tmp_path / "on_the_path.zip")
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("nothing.py", "")
    yield path
    sys.path_importer_cache.pop(path, None)


@pytest.mark.parametrize("call", ["schema", "partitions", "read", "writer"])
def test_a_data_source_leaves_no_archive_to_be_read_again(call: str, archive: str, tmp_path: Path) -> None:
    """Each of these ends a call of a worker, whose next one begins with ``importlib.invalidate_caches()``."""
    make_branch(tmp_path)
    source = PaimonDataSource({"warehouse": str(tmp_path), "table": "d.t"})
    schema = source.schema()
    reader: Any = source.reader(schema)
    partition = reader.partitions()[0]
    calls: dict[str, Callable[[], object]] = {
        "schema": source.schema,
        "partitions": reader.partitions,
        "read": lambda: sum(b.num_rows for b in reader.read(partition)),
        "writer": lambda: source.writer(schema, False),
    }
    sys.path_importer_cache[archive] = zipimport.zipimporter(archive)
    assert calls[call]()
    assert archive not in sys.path_importer_cache


def test_archives_are_forgotten_after_a_failure_too(archive: str) -> None:
    sys.path_importer_cache[archive] = zipimport.zipimporter(archive)
    with pytest.raises(ValueError, match="bad"), forgetting_zip_importers():
        raise ValueError("bad")
    assert archive not in sys.path_importer_cache
