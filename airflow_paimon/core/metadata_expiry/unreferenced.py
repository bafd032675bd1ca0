"""Deletes the files that only roots in the trash name.

Exact: a data file goes when no other root of any branch reads it, whatever its name says. Anything that can't be read
ends the run before the first deletion. Data files go before what names them, so that a run that is killed can be
repeated; the trash entries go last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, partial

from airflow_paimon.core.commit.put import delete_files, execute, require_committable
from airflow_paimon.core.errors import FormatError, NotFoundError, OutcomeUnknownError, StorageError
from airflow_paimon.core.format.manifest import FileId, FileKind, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.metadata_expiry.references import (
    RootReferences,
    read_references,
    readers_of,
    top_names,
)
from airflow_paimon.core.metadata_expiry.root_values import Root, TrashEntry
from airflow_paimon.core.metadata_expiry.unreferenced_plan import (
    UnreferencedFile,
    UnreferencedFiles,
    group_kept,
    nearest_root,
)
from airflow_paimon.core.plan import Action, Delete, Replace
from airflow_paimon.core.store.threads import map_parallel
from airflow_paimon.core.table.data_file_paths import legacy_schema
from airflow_paimon.core.table.history import files_only_in
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR, MAIN, STATISTICS_DIR, is_outside, manifest_path
from airflow_paimon.core.table.reachability import entry_paths
from airflow_paimon.core.table.table import Table

_TRIES = 3
_AT_ONCE = 16


def find_unreferenced(table: Table, expired: Sequence[Root], living: Sequence[Root]) -> UnreferencedFiles:
    """Find what only the expired roots name. ``living``: all other roots of the table.

    Raises:
        FormatError: a living root names something that is missing or unreadable.
    """
    if not expired:
        return UnreferencedFiles()
    names = read_references(table, living)
    found, unreadable = _read_expired(table, expired)
    candidates, schema_of = _Candidates(), cache(partial(_schema_of, table))
    former_readers: list[tuple[RootReferences, Set[FileId]]] = []  # the expired roots, and which candidates they had
    own, copies = _without_copies(found, names)
    for one, nearest, change in _changes(table, own, names):
        if change is None:
            if nearest is not None and any(nearest is n for n in names):
                _check_present(table, nearest)
            unreadable.append(one)
        else:
            candidates.add(schema_of(one.root.branch, one.root.snapshot.schema_id), change.values())
            former_readers.append((one, change.keys()))
    _add_changelog(table, candidates, found, names, schema_of)
    stored = StoredPartitions(table.branch(MAIN).schema())
    may_be_in = stored.manifests_with(candidates.partitions, candidates.buckets)
    files, former = set(candidates.files), () if candidates.may_be_older else former_readers
    try:
        readers = readers_of(table, files, names, former_readers=former, may_be_in=may_be_in)
    except FormatError:  # manifests of expired roots are gone: another expiry runs, or one was interrupted
        readers = readers_of(table, files, names, may_be_in=may_be_in)
    files_to_delete = _collect(candidates, readers, [*found, *(n for n in unreadable if n not in found)], names)
    lost = [n.root for n in unreadable if n.root.trash is None or not n.root.trash.reaping]
    return replace(files_to_delete, copies=tuple(sorted(copies)), unreadable=tuple(r.label for r in lost))


def delete_unreferenced(table: Table, files_to_delete: UnreferencedFiles, entries: Sequence[TrashEntry]) -> None:
    """Delete the files, then the trash entries. Before that these are marked: from then on they keep nothing.

    Raises:
        StorageError: some could not be deleted; the entries stay, so that the next run goes on.
    """
    require_committable(table)
    if any(files_to_delete.stages):
        marks = (replace(e, reaping=True) for e in entries if not e.reaping)
        execute_groups(table, [[Replace(path=m.trash_path, data=m.to_bytes(), reason="its files go")] for m in marks])
    stages = [*([f.path for f in files] for files in files_to_delete.stages), [e.trash_path for e in entries]]
    for stage in stages:
        failed = delete_files(table, stage)
        if failed:
            raise StorageError(
                f"{table.name}: {len(failed)} of {len(stage)} files that nothing needs could not be deleted, e.g. "
                f"{failed[0]}; what was to be freed waits in the trash: run it again",
                details={"failed": failed[:20]},
            )


def execute_repeatedly(
    table: Table, actions: Iterable[Action], on_action: Callable[[Action], None] | None = None
) -> None:
    """Execute replacements and deletions; one whose answer was lost is simply done again, unless it may have taken
    away what somebody else has put there.
    """
    for action in actions:
        for more in reversed(range(_TRIES)):
            try:
                execute(table, [action], on_action)
                break
            except OutcomeUnknownError:
                if not more or (isinstance(action, Delete) and action.expected is not None):
                    raise


def execute_groups(
    table: Table, groups: Iterable[Sequence[Action]], on_action: Callable[[Action], None] | None = None
) -> None:
    """Carry out groups of actions at the same time, those of a group in order; ``on_action`` is called after each, from
    several threads.

    The first error is raised once the groups that have begun have ended; no other begins then.
    """
    map_parallel(lambda actions: execute_repeatedly(table, actions, on_action), groups, _AT_ONCE)


@dataclass(slots=True)
class _Candidates:
    """Data and changelog files that expired roots named, by name.

    ``may_be_older``: some of ``changelog`` may be data files as well, which no expired root has live: what a changelog
    without a list of its own adds.
    """

    files: dict[str, list[UnreferencedFile]] = field(default_factory=dict)
    changelog: set[str] = field(default_factory=set)
    may_be_older: bool = False
    partitions: set[bytes] = field(default_factory=set)
    buckets: set[int] = field(default_factory=set)
    external: int = 0

    def add(self, schema: TableSchema, entries: Iterable[ManifestEntry]) -> None:
        for entry in entries:
            self.partitions.add(entry.partition)
            self.buckets.add(entry.bucket)
            some = self.files.setdefault(entry.file.file_name, [])
            for number, path in enumerate(_paths(schema, entry)):
                if is_outside(path):
                    self.external += 1
                elif all(path != known.path for known in some):
                    some.append(UnreferencedFile(path=path, size=0 if number else entry.file.file_size))


def _paths(schema: TableSchema, entry: ManifestEntry) -> list[str]:
    """Where a file and its extra files are, or may be: Paimon 0.9 names some partitions' folders differently."""
    other = legacy_schema(schema)
    return entry_paths(schema, [entry]) + (entry_paths(other, [entry]) if other is not None else [])


def _read_expired(table: Table, expired: Sequence[Root]) -> tuple[list[RootReferences], list[RootReferences]]:
    """What expired roots name, newest first; and of those that can't be read any more, what they name themselves."""
    expired = sorted(expired, key=lambda r: (r.branch, -r.snapshot.id, r.path))
    try:
        return read_references(table, expired), []
    except FormatError:
        found, unreadable = [], []
        for root in expired:
            try:
                found += read_references(table, [root])
            except FormatError:
                unreadable.append(top_names(root))
        return found, unreadable


def _without_copies(
    found: Sequence[RootReferences], living: Sequence[RootReferences]
) -> tuple[list[RootReferences], list[tuple[str, str]]]:
    """Divide expired roots: those whose lists no other root has, and those that a living one copies, with that."""
    whose = {n.lists: n.root.label for n in living if not n.root.is_changelog}
    own: dict[tuple[str, ...], RootReferences] = {}
    copies = []
    for one in found:
        if one.root.is_changelog:
            continue
        if one.lists in whose:
            copies.append((one.root.label, whose[one.lists]))
        else:
            own.setdefault(one.lists, one)
    return list(own.values()), copies


def _changes(
    table: Table, own: Sequence[RootReferences], living: Sequence[RootReferences]
) -> list[tuple[RootReferences, RootReferences | None, dict[FileId, ManifestEntry] | None]]:
    """For each expired root the nearest other root, and the data files that only the former has; None: something is
    unreadable.

    Several at a time: few manifests tell two neighbours apart, and each is a request.
    """
    every = {id(n.root): n for n in (*living, *own)}
    roots = [n.root for n in every.values()]

    def change(
        position: int,
    ) -> tuple[RootReferences, RootReferences | None, dict[FileId, ManifestEntry] | None]:
        one = own[position]
        root = nearest_root(one.root, roots[: len(living) + position])
        nearest = None if root is None else every[id(root)]
        try:
            return one, nearest, files_only_in(table, one.state, nearest.state if nearest else ())
        except FormatError:
            return one, nearest, None

    return map_parallel(change, range(len(own)), _AT_ONCE)


def _add_changelog(
    table: Table,
    candidates: _Candidates,
    found: Sequence[RootReferences],
    living: Sequence[RootReferences],
    schema_of: Callable[[str, int], TableSchema],
) -> None:
    """Add what changelog manifests add that no living root names.

    A changelog without a list of its own keeps the files of its delta, whose manifests are also those of later states:
    a file that they add may have been deleted in a later delta, so the readers of each are looked for.
    """
    changelogs = {m.file_name for n in living for m in n.changelog}
    states = {m.file_name for n in living for m in n.manifests}
    for one in found:
        without_list = one.root.snapshot.changelog_manifest_list is None
        named = changelogs if without_list else changelogs | states
        own = [m for m in one.changelog if m.file_name not in named]
        if not all(table.store.exists(manifest_path(m.file_name)) for m in own):
            continue
        entries = [e for part in read_entries(table, own) for e in part if e.kind == FileKind.ADD] if own else []
        new = {e.file.file_name for e in entries} - candidates.files.keys()
        candidates.changelog |= new
        candidates.may_be_older |= without_list and bool(new)
        if entries:
            candidates.add(schema_of(one.root.branch, one.root.snapshot.schema_id), entries)


def _schema_of(table: Table, branch: str, schema_id: int) -> TableSchema:
    """Read the schema by which a root's files are found; of a deleted branch, main's."""
    try:
        return table.branch(branch).schema(schema_id)
    except NotFoundError:
        return table.branch(MAIN).schema()


def _check_present(table: Table, living: RootReferences) -> None:
    """Distinguish a living root that misses a manifest, which ends the run, from an expired one.

    Raises:
        FormatError: the living root has lost a manifest.
    """
    lost = [m.file_name for m in living.state if not table.store.exists(manifest_path(m.file_name))]
    if lost:
        raise FormatError(
            f"{table.name}: manifest {lost[0]} of {living.root.label} is missing; nothing was deleted. Run check_table"
        )


def _collect(
    candidates: _Candidates,
    readers: dict[str, list[Root]],
    found: Sequence[RootReferences],
    living: Sequence[RootReferences],
) -> UnreferencedFiles:
    data: list[UnreferencedFile] = []
    changelog: list[UnreferencedFile] = []
    for name, files in sorted(candidates.files.items()):
        if name not in readers:
            (changelog if name in candidates.changelog else data).extend(files)
    sizes = {name: sum(f.size for f in files) for name, files in candidates.files.items()}
    metadata = _metadata(found, living)
    lists = {manifest_path(name) for one in found for name in one.top_names}
    aside = (f"{INDEX_DIR}/", f"{STATISTICS_DIR}/")
    return UnreferencedFiles(
        data=tuple(data),
        changelog=tuple(changelog),
        index=tuple(f for f in metadata if f.path.startswith(aside)),
        manifests=tuple(f for f in metadata if not f.path.startswith(aside) and f.path not in lists),
        lists=tuple(f for f in metadata if f.path in lists),
        kept=group_kept(sizes, readers),
        external=candidates.external,
    )


def _metadata(found: Sequence[RootReferences], living: Sequence[RootReferences]) -> list[UnreferencedFile]:
    """Lists, manifests, index files and statistics that only expired roots name."""
    named = set().union(*(n.metadata_paths for n in living))
    sizes = {manifest_path(m.file_name): m.file_size for n in found for m in (*n.manifests, *n.changelog)}
    sizes |= {f"{INDEX_DIR}/{e.file_name}": e.file_size for n in found for e in n.index}
    for snapshot in (n.root.snapshot for n in found):  # their sizes are missing in snapshots of old releases
        sizes[manifest_path(snapshot.base_manifest_list)] = snapshot.base_manifest_list_size or 0
        sizes[manifest_path(snapshot.delta_manifest_list)] = snapshot.delta_manifest_list_size or 0
        if snapshot.changelog_manifest_list is not None:
            sizes[manifest_path(snapshot.changelog_manifest_list)] = snapshot.changelog_manifest_list_size or 0
    expired = set().union(*(n.metadata_paths for n in found)) - named
    return [UnreferencedFile(path=path, size=sizes.get(path, 0)) for path in sorted(expired)]
