"""What names files, over all branches; which roots read a file."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.manifest import FileId
from airflow_paimon.core.metadata_expiry.references import RootReferences, read_references, readers_of
from airflow_paimon.core.metadata_expiry.root_values import Roots, TrashEntry
from airflow_paimon.core.metadata_expiry.roots import RootReader
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.record_kinds import TRASH_ENTRIES
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, forget_results, make_table, overwrite, rewrite, run
from tests.stores import CountingStore, FaultStore, _Wrapper


@pytest.fixture
def table() -> Table:
    table = make_table(f"memory://{uuid.uuid4()}/wh", **{"manifest.merge-min-count": "4"})
    append(table, "a")
    append(table, "b")
    run(table, "create_tag", tag="t")
    run(table, "create_branch", branch="fix", tag="t")
    return table


def labels(roots: Roots) -> list[str]:
    return sorted(r.label for r in roots.roots)


def test_every_kind_of_root_of_every_branch(table: Table) -> None:
    raw = table.store.read("snapshot/snapshot-1")
    table.store.create("changelog/changelog-1", raw)
    table.store.create("branch/branch-half/tag/tag-x", raw)
    table.store.create("branch/branch-fix/consumer/consumer-etl", b'{"nextSnapshot": 2}')
    table.store.create("snapshot/snapshot-9.tmp", b"no root")
    entry = TrashEntry(
        branch="fix", kind="tag", name="old", path="branch/branch-fix/tag/tag-old", content=raw, unlinked_ms=5
    )
    table.store.create(entry.trash_path, entry.to_bytes())
    run(table, "create_tag", tag="second", operation_id="op-1")
    forget_results(table)
    roots = RootReader(table).gather()
    assert labels(roots) == sorted(
        ["snapshot 1", "snapshot 2", "changelog 1", "tag 't'", "tag 'second'", "tag 'airflow-paimon-branch-fix'",
         "tag 'x' of branch 'half'", "snapshot 2 of branch 'fix'", "tag 't' of branch 'fix'",
         "trash of tag 'old' of branch 'fix'"]
    )  # fmt: skip
    assert [(c.branch, c.name, c.next_snapshot) for c in roots.consumers] == [("fix", "etl", 2)]
    assert ("op-1", "main", 2) in [(o.operation_id, o.branch, o.start) for o in roots.operations]
    assert [r.trash for r in roots.roots if r.trash is not None] == [entry]
    assert roots.unfinished == (("half", "has no schema"),)


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("snapshot/snapshot-7", b"{}"),
        ("branch/branch-fix/snapshot/snapshot-7", b'{"id": 7'),
        ("branch/branch-fix/tag/tag-bad", b""),
        ("changelog/changelog-3", b"[]"),
        ("consumer/consumer-bad", b"{}"),
        ("_airflow_paimon/operations/x.json", b'{"head": "?"}'),
        ("_airflow_paimon/streams/x.json", b'{"query": "x", "head": 1}'),
        ("_airflow_paimon/trash/main/tag-x-1.json", b'{"kind": "tag"}'),
    ],
)
def test_what_is_unreadable_is_named(table: Table, path: str, data: bytes) -> None:
    table.store.create(path, data)
    with pytest.raises(FormatError, match=path.rpartition("/")[2].removeprefix("tag-")):
        RootReader(table).gather()


def test_a_snapshot_under_another_id_is_an_error(table: Table) -> None:
    table.store.create("snapshot/snapshot-7", table.store.read("snapshot/snapshot-1"))
    with pytest.raises(FormatError, match="snapshot-7 has the id 1"):
        RootReader(table).gather()


class _Meanwhile(_Wrapper):
    """Does something right before the n-th listing of a folder."""

    def __init__(self, inner: Any, folder: str, steps: list[Any]) -> None:
        super().__init__(inner)
        self.folder, self.steps = folder, steps

    def _call(self, method: str, path: str, action: Any) -> Any:
        if method in ("list", "names") and path == self.folder and self.steps:
            self.steps.pop(0)()
        return super()._call(method, path, action)


def test_a_tag_that_moves_while_it_is_looked_for_is_found(table: Table) -> None:
    """It is renamed from a folder that is yet to be read into one that has been read: one look sees neither."""
    raw = table.store.read("tag/tag-t")

    def move() -> None:
        table.store.create("tag/tag-moved", raw)
        table.store.delete("branch/branch-fix/tag/tag-t")

    roots = RootReader(Table(_Meanwhile(table.store, "branch/branch-fix/tag", [move]), table.name)).gather()
    assert "tag 'moved'" in labels(roots)


def test_what_was_there_in_any_look_is_taken_together(table: Table) -> None:
    """A snapshot that expires after the first look may be the one that somebody is just tagging."""
    gone = [lambda: None, lambda: table.store.delete("snapshot/snapshot-1")]
    roots = RootReader(Table(_Meanwhile(table.store, "snapshot", gone), table.name)).gather()
    assert "snapshot 1" in labels(roots)
    assert "snapshot 1" not in labels(RootReader(table).gather())


def test_a_root_that_is_lost_between_its_listing_and_its_reading_asks_for_another_look(table: Table) -> None:
    """In the second look: what it was moved to may be in a folder that this look has read already."""
    raw = table.store.read("tag/tag-t")

    def come() -> None:
        table.store.create("branch/branch-fix/tag/tag-here", raw)

    def move() -> None:
        table.store.create("tag/tag-there", raw)
        table.store.delete("branch/branch-fix/tag/tag-here")

    class Stopped(_Meanwhile):
        def read_many(self, paths: Sequence[str]) -> list[bytes]:
            if "branch/branch-fix/tag/tag-here" in paths:
                move()
            return super().read_many(paths)

    roots = RootReader(Table(Stopped(table.store, "tag", [lambda: None, come]), table.name)).gather()
    assert "tag 'there'" in labels(roots)


def test_roots_that_never_stop_changing_are_gathered_nevertheless(table: Table) -> None:
    steps = [lambda i=i: run(table, "create_tag", tag=f"t{i}") for i in range(20)]
    roots = RootReader(Table(_Meanwhile(table.store, "consumer", steps), table.name)).gather()
    assert "snapshot 1" in labels(roots)
    assert len(steps) > 10, "it has looked only a few times"


def _life(table: Table, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(20):
        dt = chance.choice("abc")
        branch = chance.choice([table, table.branch("fix")])
        chance.choice([append, append, overwrite, rewrite])(branch, dt, chance.choice([0, 1]))
        if number % 6 == 0:
            run(table, "create_tag", tag=f"tag{number}")
        if number % 9 == 8:
            run(table, "rollback_to", snapshot=chance.choice(table.snapshot_ids()))


def _live(table: Table, names: RootReferences) -> dict[FileId, Any]:
    return live_entries(table.branch(names.root.branch), names.root.snapshot)


@pytest.mark.parametrize("seed", range(3))
def test_readers_are_those_that_a_full_read_of_every_root_gives(table: Table, seed: int) -> None:
    _life(table, seed)
    every = read_references(table, RootReader(table).gather().roots)
    live = {id(n): {k.file_name for k in _live(table, n)} for n in every}
    files = set().union(*live.values())
    exact = {f: {n.root.path for n in every if f in live[id(n)]} for f in files}
    some = readers_of(table, files, every)
    assert some.keys() == files
    for name, readers in some.items():
        assert {r.path for r in readers} <= exact[name]
        assert len(readers) == min(3, len(exact[name]))
    for at in range(0, len(every), 5):
        expiring, living = every[at : at + 2], every[:at] + every[at + 2 :]
        former_readers = [(n, frozenset(_live(table, n))) for n in expiring]
        held = {k.file_name for _, files in former_readers for k in files}
        found = readers_of(table, held, living, former_readers=former_readers)
        assert found.keys() == {f for f in held if any(f in live[id(n)] for n in living)}


def test_a_snapshot_that_another_engine_s_rename_has_replaced_says_nothing_about_later_ones() -> None:
    """Of two commits with as many files and rows under one id, the next snapshot is based on the one that is gone."""
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    for dt in "abc":
        append(table, dt)
    late = table.store.read("snapshot/snapshot-3")
    table.store.delete("snapshot/snapshot-3")
    table.store.replace("snapshot/LATEST", b"2")
    append(table, "c")
    (mine,) = {k.file_name for k in live_entries(table, table.snapshot(3))} - {
        k.file_name for k in live_entries(table, table.snapshot(2))
    }
    append(table, "d")
    table.store.replace("snapshot/snapshot-3", late)
    readers = readers_of(table, {mine}, read_references(table, RootReader(table).gather().roots))
    assert [r.label for r in readers[mine]] == ["snapshot 4"]


def test_manifests_that_all_roots_share_are_not_read(table: Table) -> None:
    for _ in range(3):
        append(table, "c")
    counting = CountingStore(table.store)
    seen = Table(counting, table.name)
    *living, expiring = read_references(seen, RootReader(seen).gather().of("main", "snapshot"))[::-1]
    shared = {m.file_name for m in expiring.state}
    counting.tally.reset()
    readers = readers_of(seen, {"x"}, living, former_readers=[(expiring, frozenset())])
    assert readers == {}
    read = "".join(uri for _, uri in counting.tally.log)
    assert not any(name in read for name in shared)
    assert 0 < counting.tally.requests < len(living) + 2


def test_a_missing_list_or_manifest_is_an_error(table: Table) -> None:
    roots = RootReader(table).gather().roots
    snapshot = plan_scan(table).snapshot
    assert snapshot is not None
    names = read_references(table, roots)
    table.store.delete(f"manifest/{names[0].state[0].file_name}")
    with pytest.raises(FormatError, match="is missing"):
        readers_of(table, {"x"}, names)
    table.store.delete(f"manifest/{snapshot.delta_manifest_list}")
    with pytest.raises(FormatError, match=snapshot.delta_manifest_list):
        read_references(table, roots)


def test_a_changelog_names_its_list_and_what_that_adds(table: Table) -> None:
    """Paimon deletes base and delta list of an expired snapshot whose changelog lives on; so they are not asked for."""
    raw = json.loads(table.store.read("snapshot/snapshot-2"))
    delta = raw["deltaManifestList"]
    gone = raw | {"baseManifestList": "gone", "deltaManifestList": "gone", "changelogManifestList": delta, "id": 1}
    table.store.create("changelog/changelog-1", json.dumps(gone).encode())
    plain = {k: v for k, v in raw.items() if "anifestListSize" not in k} | {"id": 2}
    table.store.create("changelog/changelog-2", json.dumps(plain).encode())
    with_list, without = read_references(table, RootReader(table).gather().of("main", "changelog"))
    assert with_list.lists == (delta,)
    assert set(without.lists) == {raw["baseManifestList"], delta}
    added = {k.file_name for k in live_entries(table, table.snapshot(2))} - {
        k.file_name for k in live_entries(table, table.snapshot(1))
    }
    everything = {k.file_name for k in live_entries(table, table.snapshot(2))}
    assert len(everything) == 2
    for names in (with_list, without):
        assert readers_of(table, everything, [names]).keys() == added


def test_reading_changes_nothing(table: Table) -> None:
    store = FaultStore(table.store)
    seen = Table(store, table.name)
    readers_of(seen, {"x"}, read_references(seen, RootReader(seen).gather().roots))
    assert store.mutations == ()


@pytest.mark.parametrize("operation", ["expire_snapshots", "remove_orphan_files"])
def test_what_paimons_orphan_cleaning_took_from_the_trash_stops_nothing(tmp_path: Path, operation: str) -> None:
    """Paimon knows no trash: what only that names are orphans to it."""
    table = make_table(tmp_path / "wh")
    for _ in range(3):
        overwrite(table, "a")
    first = table.snapshot(1)
    run(table, "expire_snapshots", retain_max=2, retain_min=1, older_than="0 s", retry_window="0 s")
    assert any("snapshot-1" in p for p in table.store.walk(TRASH_ENTRIES.folder))
    table.store.delete(f"manifest/{first.base_manifest_list}")
    overwrite(table, "a")
    asked = {"retain_max": 1, "retain_min": 1, "older_than": "0 s", "retry_window": "0 s"}
    result = run(table, operation, **(asked if operation == "expire_snapshots" else {}))
    if operation == "expire_snapshots":
        assert result.changed and table.snapshot_ids() == [4]
    assert live_entries(table, table.latest_snapshot())
