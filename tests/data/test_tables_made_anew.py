"""A table that is dropped and made anew while rows are written: the drop has deleted files that were written before."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.files import commit_append, commit_buckets, commit_overwrite
from airflow_paimon.core.errors import ConflictError, FormatError, OutcomeUnknownError, PaimonError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.execution import perform
from tests.clock import next_millisecond
from tests.core.tables import alter_table, append, copied, make_table, message, names, run
from tests.soundness import assert_sound
from tests.stores import FaultStore, SteppedStore

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


@pytest.mark.every(7)
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
    with pytest.raises(ConflictError, match=r"^d\.t: the table was recreated.*repeat the write$"):
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


@pytest.mark.every(3)
@pytest.mark.parametrize("commits", [0, 2, 3, 5])
@pytest.mark.parametrize("how", COMMITS)
def test_a_commit_leaves_a_table_readable_that_is_made_anew_at_any_moment(
    warehouse: str, how: str, commits: int
) -> None:
    """Also right before its snapshot is put, and while that is read back."""
    for step in itertools.count(1):
        folder = f"{warehouse}/{step}"
        table = make_table(folder)
        for seq in range(3):
            append(table, "a", seq=seq)
        options, head = CommitOptions(written_with=table.schema()), table.latest_snapshot()
        late, there = [message(table, "late", seq=9)], set[str]()

        def anew(table: Table = table, folder: str = folder, there: set[str] = there) -> None:
            dropped(table)
            make_table(folder)
            for seq in range(commits):
                append(table, "a", seq=seq)
            there |= names(table)

        store = SteppedStore(table.store, step, anew)
        with suppress(ConflictError, FormatError, OutcomeUnknownError):
            COMMITS[how](Table(store, table.name), late, options, head)
        if not store.happened:
            break
        assert names(table) == there
        assert table.snapshot_ids() == list(range(1, commits + 1))
        assert_sound(table, leaks=True)


@pytest.mark.parametrize("how", COMMITS)
def test_a_commit_leaves_no_snapshot_in_the_place_of_a_table_that_is_being_dropped(warehouse: str, how: str) -> None:
    """The drop, which is not through with the manifests yet, doesn't delete it; a table made there would show it."""
    for step in itertools.count(1):
        table = make_table(f"{warehouse}/{step}")
        append(table, "a")
        options, head = CommitOptions(written_with=table.schema()), table.latest_snapshot()
        late = [message(table, "late", seq=9)]

        def drop(table: Table = table) -> None:
            for path in (*table.store.walk("schema"), *table.store.walk("snapshot")):
                table.store.delete(path)

        store = SteppedStore(table.store, step, drop)
        with suppress(PaimonError):
            COMMITS[how](Table(store, table.name), late, options, head)
        if not store.happened:
            break
        assert not [name for name in table.store.names("snapshot") if name.startswith("snapshot-")]


def _with_branch(warehouse: str, commits: int) -> Table:
    table = make_table(warehouse, primary=False)
    for seq in range(commits):
        append(table, "a", seq=seq)
    if commits:
        run(table, "create_tag", tag="x", snapshot=commits)
        run(table, "create_branch", branch="fix", tag="x")
        append(table.branch("fix"), "b", seq=9)
    return table


def _made_anew_at(step: int, old: Table, new: Table, operation: str, **values: Any) -> Table | None:
    """Run an operation on a copy of a table, which another one replaces before a step. None: it has no such step."""
    table = copied(old)

    def anew() -> None:
        dropped(table)
        for path in new.store.walk(""):
            table.store.create(path, new.store.read(path))

    store = SteppedStore(table.store, step, anew)
    warehouse = table.store.uri.rsplit("/", 2)[0]
    request = build_request(operation, {"warehouse": warehouse, "table": table.name, **values})
    with suppress(PaimonError):
        perform(replace(open_context(request), table=Table(store, table.name)), request)
    return table if store.happened else None


@pytest.mark.parametrize(
    ("operation", "values", "commits"),
    [
        ("compact_manifest", {}, 5),
        ("merge_branch", {"branch": "fix"}, 0),
        ("merge_branch", {"branch": "fix"}, 3),
        ("replace_tag", {"tag": "x", "snapshot": 2}, 3),
    ],
)
def test_an_operation_leaves_no_tag_or_manifest_of_the_earlier_table_in_one_that_is_made_anew(
    operation: str, values: dict[str, Any], commits: int
) -> None:
    old = _with_branch(f"memory://{uuid.uuid4()}/wh", 3)
    next_millisecond()
    new = _with_branch(f"memory://{uuid.uuid4()}/wh", commits)
    steps = itertools.count(1)
    while (table := _made_anew_at(next(steps), old, new, operation, **values)) is not None:
        assert_sound(table, leaks=True)
        assert run(table, "check_table").details["errors"] == 0


def test_an_expiry_leaves_no_hint_of_snapshots_that_a_table_made_anew_never_had() -> None:
    """A hint that is left would prove that they were lost, and the table would take no commit."""
    old = _with_branch(f"memory://{uuid.uuid4()}/wh", 3)
    new = make_table(f"memory://{uuid.uuid4()}/wh")
    left = []
    for step in itertools.count(1):
        table = _made_anew_at(step, old, new, "expire_snapshots", retain_max=1, older_than="0 s")
        if table is None:
            break
        if table.store.exists(table.paths.earliest_hint):
            left.append(step)
    assert len(left) <= 1, "right between the last look and the hint"
