"""A table that is dropped and made anew while rows are written: the drop has deleted files that were written before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.files import commit_append, commit_buckets, commit_overwrite
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.clock import next_millisecond
from tests.core.tables import alter_table, append, make_table, message, names, run
from tests.stores import FaultStore

COMMITS: dict[str, Callable[..., Any]] = {
    "append": lambda table, new, options, head: commit_append(table, new, options, planned_on=head),
    "overwrite": lambda table, new, options, head: commit_overwrite(table, new, options, partitions="dynamic"),
    "buckets": lambda table, new, options, head: commit_buckets(table, new, options),
}


def dropped(table: Table) -> None:
    for path in table.store.walk(""):
        table.store.delete(path)
    next_millisecond()


@pytest.fixture(params=["local", "memory"])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "wh") if request.param == "local" else f"memory://{tmp_path.name}/wh"


@pytest.mark.parametrize("primary", [True, False])
@pytest.mark.parametrize("commits", [(0, 0), (0, 2), (2, 0), (2, 2), (1, 3)])
@pytest.mark.parametrize("how", COMMITS)
def test_files_don_t_get_into_a_table_made_anew(
    warehouse: str, primary: bool, commits: tuple[int, int], how: str
) -> None:
    table = make_table(warehouse, primary=primary)
    for _ in range(commits[0]):
        append(table, "a")
    options, head = CommitOptions(written_with=table.schema()), table.latest_snapshot()
    late = [message(table, "late", seq=9)]
    dropped(table)
    make_table(warehouse, primary=primary)
    for _ in range(commits[1]):
        append(table, "a")
    there = names(table)
    with pytest.raises(ConflictError, match=r"^d\.t: the table was made anew.*write the rows again$"):
        COMMITS[how](table, late, options, head)
    assert (names(table), table.latest_snapshot_id() or 0) == (there, commits[1])


@pytest.mark.parametrize("how", COMMITS)
def test_a_table_that_was_altered_takes_them(warehouse: str, how: str) -> None:
    table = make_table(warehouse)
    append(table, "a")
    options, head = CommitOptions(written_with=table.schema()), table.latest_snapshot()
    late = [message(table, "late", seq=9)]
    alter_table(table, [AddColumn(name="more", type="INT")])
    assert COMMITS[how](table, late, options, head).changed
    assert late[0].new_files[0].file_name in names(table)


@pytest.mark.parametrize("mode", ["append", "overwrite", "dynamic_overwrite"])
@pytest.mark.parametrize("keys", [["k"], []])
def test_the_rows_are_written_again(warehouse: str, keys: list[str], mode: str) -> None:
    """Into the table that is there now, with files of their own."""

    def made(**more: str) -> Table:
        options = {"bucket": "1" if keys else "-1", **more}
        return create_table(warehouse, "d.t", [("k", "INT NOT NULL")], primary_keys=keys, options=options)

    def anew() -> None:
        dropped(table)
        write_arrow(made(), pa.table({"k": pa.array([7], pa.int32())}))

    table = made()
    write_arrow(table, pa.table({"k": pa.array([5], pa.int32())}))
    acts = [anew]

    def meanwhile(method: str, path: str) -> None:
        if method == "create" and path.startswith("manifest/") and acts:
            acts.pop()()

    slow = Table(FaultStore(table.store, on_mutation=meanwhile), table.name)
    write_arrow(slow, pa.table({"k": pa.array([1, 2], pa.int32())}), mode=mode)
    assert not acts
    assert sorted(read_arrow(table)["k"].to_pylist()) == ([1, 2, 7] if mode == "append" else [1, 2])
    assert run(table, "check_table").details["errors"] == 0
