"""Tables of any storage, copied to a disk and read there as strictly as Paimon's newest Java reads them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_paimon.core.store import open_store
from airflow_paimon.core.table.table import Table, open_table
from tests.soundness import assert_sound
from tests.strict_metadata import findings


@contextmanager
def local_copy(table: Table) -> Iterator[Table]:
    with tempfile.TemporaryDirectory(prefix="table-") as folder:
        store = open_store(f"{folder}/d.db/t")
        paths = table.store.walk("")
        for path, data in zip(paths, table.store.read_many(paths), strict=True):
            store.create(path, data)
        yield open_table(folder, "d.t")


def assert_readable(table: Table) -> None:
    """Check that nothing that is referred to is missing, and that all metadata is what Paimon reads."""
    with local_copy(table) as copy:
        assert_sound(copy, leaks=True)
        assert not list(findings(Path(copy.store.uri.removeprefix("file://"))))
