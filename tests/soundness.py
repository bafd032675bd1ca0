"""What must hold of a table after anything that deletes files."""

from __future__ import annotations

from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.metadata_expiry.referenced_files import read_referenced_files
from airflow_paimon.core.metadata_expiry.references import RootReferences, read_references
from airflow_paimon.core.metadata_expiry.root_values import Root
from airflow_paimon.core.metadata_expiry.roots import RootReader
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.name_digests import digests_of
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.reachability import entry_paths
from airflow_paimon.core.table.table import Table


def named_files(table: Table, *, trash: bool = True) -> dict[str, set[str]]:
    """Return the paths that each root names, by the root's path; read in full, without any pruning."""
    roots = [r for r in RootReader(table).gather().living if trash or r.trash is None]
    return {n.root.path: _paths(table, n) for n in read_references(table, roots)}


def _paths(table: Table, names: RootReferences) -> set[str]:
    schema = table.branch(MAIN).schema()
    changelog = [e for part in read_entries(table, list(names.changelog)) for e in part if e.kind == FileKind.ADD]
    data = [] if names.root.is_changelog else list(live_entries(table, names.root.snapshot).values())
    return names.metadata_paths | set(entry_paths(schema, [*data, *changelog]))


def files_on_disk(table: Table) -> set[str]:
    """Return the paths of all files but those that only listings find: snapshots, tags, schemas, private ones."""
    listed = ("snapshot/", "schema/", "tag/", "branch/", "changelog/", "consumer/", "_airflow_paimon/")
    return {path for path in table.store.walk("") if not path.startswith(listed)}


def assert_sound(table: Table, *, leaks: bool = False) -> None:
    """Every file that a root names is there; the snapshots of each branch have no gap, and no hint is above them.

    ``leaks`` False: besides, nothing is there that no root names.
    """
    there = files_on_disk(table)
    named = named_files(table)
    for root, paths in named.items():
        assert paths <= there, f"{root} has lost {sorted(paths - there)}"
    if not leaks:
        extra = there - set().union(*named.values())
        assert not extra, f"nothing names {sorted(extra)}"
    for view in (table.branch(MAIN), *(table.branch(b) for b in table.branch_names())):
        ids = view.snapshot_ids()
        assert ids == list(range(ids[0], ids[-1] + 1)) if ids else True
        if ids and table.store.exists(view.paths.earliest_hint):
            assert int(table.store.read(view.paths.earliest_hint)) <= ids[0]


def assert_indexed(table: Table) -> None:
    """The index of files names for each root what a full read of it names."""
    roots, named = RootReader(table).gather().living, named_files(table)
    index = read_referenced_files(table, roots).whole()
    for root, held in zip(roots, index.each(range(len(roots))), strict=True):
        names = [root.path, *(path.rpartition("/")[2] for path in named[root.path])]
        assert set(index.digests[held].tolist()) == set(digests_of(names).tolist()), root.label


def states(table: Table) -> dict[str, set[str]]:
    """Return the live data files of every snapshot and tag, by its path."""
    return {r.path: _live(table, r) for r in RootReader(table).gather().roots if r.trash is None and not r.is_changelog}


def _live(table: Table, root: Root) -> set[str]:
    schema = table.branch(MAIN).schema()
    return set(entry_paths(schema, live_entries(table, root.snapshot).values()))
