"""What the roots of a table name: metadata files exactly, by name; data files by which roots still read them.

Names of lists, manifests, index files and statistics are read once each. Data files are looked for in the manifests
that can hold them: a manifest that all roots share says the same about all of them, so it need not be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.manifest import FileId, FileKind, IndexEntry, ManifestFile
from airflow_paimon.core.format.manifest_io import read_index_manifest
from airflow_paimon.core.metadata_expiry.root_values import Root
from airflow_paimon.core.store.base import batches
from airflow_paimon.core.table.manifest_entries import each_columns
from airflow_paimon.core.table.manifest_lists import ManifestListRef, base_list, delta_list, read_manifest_lists
from airflow_paimon.core.table.paths import INDEX_DIR, MANIFEST_DIR, STATISTICS_DIR, manifest_path
from airflow_paimon.core.table.read_cache import read_files
from airflow_paimon.core.table.table import Table

MOST_READERS = 3
"""How many of the roots that read a file are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootReferences:
    """What one root names.

    ``manifests``: of its base and delta list, in order. ``changelog``: manifests whose additions are its changelog; of
    a long-lived changelog without a changelog list, those of its delta.
    """

    root: Root
    lists: tuple[str, ...]
    manifests: tuple[ManifestFile, ...]
    changelog: tuple[ManifestFile, ...]
    index_manifest: str | None
    index: tuple[IndexEntry, ...]
    statistics: str | None

    @property
    def state(self) -> tuple[ManifestFile, ...]:
        """The manifests that determine its live files; a long-lived changelog has none."""
        return () if self.root.is_changelog else self.manifests

    @property
    def manifest_names(self) -> set[str]:
        """Names in the folder ``manifest``: lists, manifests, the index manifest."""
        names = {*self.lists, *(m.file_name for m in self.manifests), *(m.file_name for m in self.changelog)}
        return names | ({self.index_manifest} if self.index_manifest else set())

    @property
    def top_names(self) -> set[str]:
        """Of those the ones that the root itself names, so that they are known without reading any of them."""
        return {*self.lists} | ({self.index_manifest} if self.index_manifest else set())

    @property
    def metadata_paths(self) -> set[str]:
        """Paths of all it names but data and changelog files; index files outside of ``index`` are left out."""
        paths = {manifest_path(name) for name in self.manifest_names}
        paths |= {f"{INDEX_DIR}/{e.file_name}" for e in self.index if e.external_path is None}
        return paths | ({f"{STATISTICS_DIR}/{self.statistics}"} if self.statistics else set())


def read_references(table: Table, roots: Sequence[Root]) -> list[RootReferences]:
    """Read what each root names. Every list and index manifest is read once.

    Raises:
        FormatError: one is missing or unreadable; names it and its root.
    """
    named = {one.name: one for root in roots for one in (*_state_lists(root), *_changelog_list(root))}
    unkept, lists = _kept_for_nobody(roots), dict[str, tuple[ManifestFile, ...]]()
    for some in batches(list(named.values())):
        try:
            rows = read_manifest_lists(table, some)
        except FormatError:
            gone = (unkept & {one.name for one in some}) - set(table.store.names(MANIFEST_DIR))
            lists |= dict.fromkeys(gone, ())
            some = [one for one in some if one.name not in gone]
            rows = read_manifest_lists(table, some)
        lists |= {one.name: tuple(found) for one, found in zip(some, rows, strict=True)}
    index = _read_indexes(table, roots)
    return [_names_of(root, lists, index) for root in roots]


def _kept_for_nobody(roots: Sequence[Root]) -> set[str]:
    """Return the names of lists that Paimon's expiry may have deleted though a root names them.

    These are the changelog lists of a tag or of a branch's base; and, of a long-lived changelog without a changelog
    list, such as that of a compaction, its lists, in a table with a changelog producer.
    """
    of_states = {one.name for root in roots if not root.is_changelog for one in _state_lists(root)}
    unkept = {one.name for root in roots for one in (_state_lists if root.is_changelog else _changelog_list)(root)}
    return unkept - of_states


def has_all_metadata(table: Table, root: Root, there: Set[str]) -> bool:
    """Whether all of a root's metadata is readable, but for what is kept for nobody; ``there``: the names in the folder
    of manifests.
    """
    needed = there | _kept_for_nobody([root])
    try:
        return read_references(table, [root])[0].manifest_names <= needed
    except FormatError:
        return False


def top_names(root: Root) -> RootReferences:
    """Return what is known of a root without reading any file."""
    rows: dict[str, tuple[ManifestFile, ...]] = {one.name: () for one in (*_state_lists(root), *_changelog_list(root))}
    return _names_of(root, rows, {root.snapshot.index_manifest or "": ()})


def _names_of(
    root: Root, rows: dict[str, tuple[ManifestFile, ...]], index: dict[str, tuple[IndexEntry, ...]]
) -> RootReferences:
    state, changelog = _state_lists(root), _changelog_list(root)
    manifest = None if root.is_changelog else root.snapshot.index_manifest
    its_changelog = changelog or (state[1:] if root.is_changelog else [])
    return RootReferences(
        root=root,
        lists=tuple(one.name for one in (*state, *changelog)),
        manifests=tuple(m for one in state for m in rows[one.name]),
        changelog=tuple(m for one in its_changelog for m in rows[one.name]),
        index_manifest=manifest,
        index=index[manifest] if manifest else (),
        statistics=None if root.is_changelog else root.snapshot.statistics,
    )


def _state_lists(root: Root) -> list[ManifestListRef]:
    """The lists that determine the live files. Of a long-lived changelog with a list of its own Paimon deletes them."""
    snapshot = root.snapshot
    if root.is_changelog and snapshot.changelog_manifest_list is not None:
        return []
    return [base_list(snapshot, root.label), delta_list(snapshot, root.label)]


def _changelog_list(root: Root) -> list[ManifestListRef]:
    name, size = root.snapshot.changelog_manifest_list, root.snapshot.changelog_manifest_list_size
    return [ManifestListRef(name, size, root.label)] if name else []


def _read_indexes(table: Table, roots: Sequence[Root]) -> dict[str, tuple[IndexEntry, ...]]:
    whose = {r.snapshot.index_manifest: r for r in reversed(roots) if r.snapshot.index_manifest and not r.is_changelog}
    found = {}
    for some in batches([name for name in whose if name]):
        try:
            blobs = read_files(table.store, [manifest_path(name) for name in some])
        except NotFoundError:
            lost = next((n for n in some if not table.store.exists(manifest_path(n))), some[0])
            raise FormatError(
                f"{table.name}: index manifest {lost} of {whose[lost].label} is missing; run check_table"
            ) from None
        for name, data in zip(some, blobs, strict=True):
            found[name] = tuple(read_index_manifest(data, name=f"{table.name}: {name}"))
    return found


_Entries = dict[str, list[tuple[int, FileId]]]
"""Entries of some files, by manifest: kind and file."""


def readers_of(
    table: Table,
    files: Set[str],
    living: Sequence[RootReferences],
    *,
    former_readers: Sequence[tuple[RootReferences, Set[FileId]]] = (),
    may_be_in: Callable[[ManifestFile], bool] = lambda _: True,
) -> dict[str, list[Root]]:
    """Return which of ``living`` read each of some data files, given by their names; at most ``MOST_READERS`` each.

    ``former_readers``: roots with what each had live, if together that was all of ``files`` but changelog files:
    manifests that they share with others then need no reading. ``may_be_in``: whether a manifest can name any of them.

    Raises:
        FormatError: a manifest is missing or unreadable.
    """
    common = _common([former for former, _ in former_readers], living)
    own = {id(r): _own(r, common) for r in (*(former for former, _ in former_readers), *living)}
    manifests = (m for some in (*(found for found, _ in own.values()), *(r.changelog for r in living)) for m in some)
    wanted = {m.file_name: m for m in manifests if may_be_in(m)}
    entries = _restricted(table, list(wanted.values()), files)
    # Files that are live by the common manifests alone: what a former reader has and doesn't add itself, or deletes
    # itself (a file that compaction only moved is deleted on one level and added on another one, under the same name).
    common_files: set[FileId] = set()
    for former, had in former_readers:
        added, deleted = _net(entries, own[id(former)][0])
        common_files |= (had - added) | deleted
    readers: dict[str, list[Root]] = {}
    for references in sorted(living, key=lambda r: r.root.snapshot.id):
        state, shares = own[id(references)]
        added, deleted = _net(entries, state)
        live = added | _net(entries, references.changelog)[0] | (common_files - deleted if shares else set())
        for name in {f.file_name for f in live}:
            if len(some := readers.setdefault(name, [])) < MOST_READERS:
                some.append(references.root)
    return readers


def _common(former_readers: Sequence[RootReferences], living: Sequence[RootReferences]) -> set[str]:
    """Manifests of all former readers and of almost all living roots: one that shares less than half of them is left
    out.
    """
    if not former_readers:
        return set()
    sizes = {m.file_name: m.file_size for m in former_readers[0].state}
    common = set(sizes)
    for references in former_readers:
        common &= {m.file_name for m in references.state}
    for references in living:
        shared = common & {m.file_name for m in references.state}
        if 2 * sum(sizes[n] for n in shared) >= sum(sizes[n] for n in common):
            common = shared
    return common


def _own(references: RootReferences, common: set[str]) -> tuple[list[ManifestFile], bool]:
    """The manifests of a root to be read, and whether it has all the common ones besides."""
    shares = common <= {m.file_name for m in references.state}
    return [m for m in references.state if not (shares and m.file_name in common)], shares


def referenced_among(table: Table, files: Set[str], living: Sequence[RootReferences]) -> set[str]:
    """Return which of some files, given by their names, a root names. Reads every manifest, and trusts nothing else.

    A data file is named where a state adds it on a level more often than it deletes it, or less often: such a state is
    broken.

    Raises:
        FormatError: a manifest is missing or unreadable.
    """
    manifests = {m.file_name: m for references in living for m in (*references.state, *references.changelog)}
    entries = _restricted(table, list(manifests.values()), files)
    counts, before = Counter[FileId](), set[str]()
    held, found = set[FileId](), set[str]()
    for references in living:
        found |= references.manifest_names | {e.file_name for e in references.index} | {references.statistics or ""}
        held |= {
            key for m in references.changelog for kind, key in entries.get(m.file_name, ()) if kind == FileKind.ADD
        }
        now = {m.file_name for m in references.state}
        changes = [(-1, name) for name in before - now] + [(1, name) for name in now - before]
        changed = [(by, entry) for by, name in changes for entry in entries.get(name, ())]
        for by, (kind, key) in changed:
            counts[key] += by if kind == FileKind.ADD else -by
        held |= {key for _, (_, key) in changed if counts[key]}
        before = now
    found |= {name for key in held for name in (key.file_name, *key.extra_files)}
    return found & files


def _restricted(table: Table, manifests: Sequence[ManifestFile], files: Set[str]) -> _Entries:
    """Read manifests, keeping only the entries of some files."""
    found: _Entries = {}
    for manifest, columns in each_columns(table, manifests):
        if not files.isdisjoint(chain(columns.file_names, chain.from_iterable(columns.extra_files))):
            rows = zip(columns.kinds, columns.identifiers(), strict=True)
            found[manifest.file_name] = [
                (kind, key) for kind, key in rows if not files.isdisjoint((key.file_name, *key.extra_files))
            ]
    return found


def _net(entries: _Entries, manifests: Iterable[ManifestFile]) -> tuple[set[FileId], set[FileId]]:
    """The net effect of manifests, in order: files that are live by them, and files that they delete from others."""
    added: set[FileId] = set()
    deleted: set[FileId] = set()
    for kind, key in (entry for m in manifests for entry in entries.get(m.file_name, ())):
        if kind == FileKind.ADD:
            added.add(key)
        elif key in added:
            added.discard(key)
        else:
            deleted.add(key)
    return added, deleted
