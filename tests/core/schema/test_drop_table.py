"""drop_table: what it refuses, a commit that comes in between, and a death at every step."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from airflow_paimon.core.catalogs.filesystem import FilesystemCatalog
from airflow_paimon.core.errors import ConflictError, UnsafeOperationError, UnsupportedCatalogError
from airflow_paimon.core.schema.drop_plan import RECORD
from airflow_paimon.core.schema.drop_table import drop_table
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.store import Store, open_store
from airflow_paimon.core.table.table import Table
from tests.core.tables import alter_table, append, make_table, run
from tests.stores import Crash, FaultStore


def make() -> Table:
    """A table with two snapshots and two schemas, beside one whose name begins like its own."""
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    append(table, "a")
    alter_table(table, [SetOption(key="write-buffer-size", value="64 mb")])
    append(table, "b")
    make_table(warehouse(table).uri, "d.t2")
    return table


def warehouse(table: Table) -> Store:
    return open_store(table.store.uri.rsplit("/", 2)[0])


def seen(table: Table, **faults: Any) -> tuple[Table, FaultStore]:
    """The same table through a store that dies, or lets others come in between."""
    store = FaultStore(warehouse(table), **faults)
    catalog = FilesystemCatalog(store)
    return Table(catalog.place("d", "t"), "d.t", catalog=catalog), store


def test_a_table_goes_with_all_its_files_and_no_others() -> None:
    table = make()
    assert drop_table(table)
    store = warehouse(table)
    assert [e.name for e in store.list("d.db")] == ["t2"]
    assert not drop_table(table)
    assert make_table(store.uri).latest_snapshot() is None


@pytest.mark.parametrize("needed", ["branch", "tag", "consumer"])
def test_what_somebody_needs_is_not_dropped(needed: str) -> None:
    table = make()
    if needed == "consumer":
        table.store.create("consumer/consumer-job", b'{"nextSnapshot": 1}')
    else:
        run(table, "create_tag", tag="kept")
    if needed == "branch":
        run(table, "create_branch", branch="fix", tag="kept")
    files = table.store.walk("")
    said = {"branch": r"branches fix and tags .*delete_branch", "tag": "tags kept", "consumer": "consumers job"}
    with pytest.raises(UnsafeOperationError, match=said[needed]):
        drop_table(table)
    assert table.store.walk("") == files


def test_a_table_by_its_path_has_no_catalog_to_drop_it_from() -> None:
    table = make()
    with pytest.raises(UnsupportedCatalogError, match="Paimon's own engines"):
        drop_table(Table(table.store, table.name))


@pytest.mark.parametrize("comes", ["commit", "tag"])
def test_what_comes_while_it_is_hidden_keeps_the_table(comes: str) -> None:
    table = make()
    before = [s.to_bytes() for s in table.schemas()]
    snapshot = table.store.read(table.paths.snapshot(2))

    def other(method: str, path: str) -> None:
        if (method, path) == ("delete", table.paths.schema(1)):
            name = table.paths.tag("late") if comes == "tag" else table.paths.snapshot(3)
            table.store.create(name, snapshot.replace(b'"id": 2', b'"id": 3') if comes == "commit" else snapshot)

    dropped, _ = seen(table, on_mutation=other)
    with pytest.raises(ConflictError if comes == "commit" else UnsafeOperationError):
        drop_table(dropped)
    assert [s.to_bytes() for s in table.schemas()] == before
    assert not table.store.exists("_airflow_paimon/dropping.json")


def test_a_death_at_any_step_leaves_the_table_or_is_finished_by_the_next_try() -> None:
    steps = 1
    while True:
        table = make()
        first, store = seen(table, fail_at=steps, after=steps % 2 == 0)
        try:
            drop_table(first)
            break
        except Crash:
            pass
        if not table.exists() and table.store.exists("_airflow_paimon/dropping.json"):
            with pytest.raises(ConflictError, match=r"run DROP TABLE d\.t again"):
                make_table(warehouse(table).uri)
        assert drop_table(table) or not warehouse(table).walk("d.db/t")
        assert not warehouse(table).walk("d.db/t")
        steps += 1
    assert steps > 6, store.mutations


def test_a_table_that_another_engine_has_made_in_the_place_is_dropped_as_any_other() -> None:
    table = make()
    one, _ = seen(table, on_mutation=lambda method, path: _die((method, path) == ("delete", RECORD)))
    with pytest.raises(Crash):
        drop_table(one)
    assert (table.store.exists(RECORD), table.exists()) == (True, False)
    new = Table(table.store, "d.t", catalog=table.catalog)
    new.store.create("schema/schema-0", make_table(f"memory://{uuid.uuid4()}/wh").store.read("schema/schema-0"))
    append(new, "a")
    run(new, "create_tag", tag="kept")
    with pytest.raises(UnsafeOperationError, match="tags kept"):
        drop_table(seen(table)[0])
    assert (new.exists(), new.latest_snapshot_id(), new.store.exists(RECORD)) == (True, 1, False)
    run(new, "delete_tag", tag="kept")
    assert drop_table(seen(table)[0])
    assert [e.name for e in warehouse(table).list("d.db")] == ["t2"]


def _die(now: bool) -> None:
    if now:
        raise Crash
