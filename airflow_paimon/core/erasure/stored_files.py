"""All data and changelog files that a table still has: those that a root names, and those that only lie in its folder.

The roots are gathered before the folder is listed: a file that is committed in between is listed and belongs to no root
yet, so it is read as well, by the column names in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.metadata_expiry.orphan_plan import (
    CHANGELOG,
    DATA,
    TEMPORARY,
    UNKNOWN,
    FileClassifier,
)
from airflow_paimon.core.metadata_expiry.referenced_files import read_referenced_files
from airflow_paimon.core.metadata_expiry.referenced_files_plan import ReferencedFiles
from airflow_paimon.core.metadata_expiry.references import RootReferences, read_references
from airflow_paimon.core.metadata_expiry.remove_orphan_files import file_prefixes
from airflow_paimon.core.metadata_expiry.root_values import SNAPSHOT, Root
from airflow_paimon.core.metadata_expiry.roots import RootReader, unfinished_warnings
from airflow_paimon.core.schema.columns_plan import ids_on_main, under_ids
from airflow_paimon.core.store.base import FileInfo, batches
from airflow_paimon.core.table.consumers import Consumer
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.name_digests import digests_of
from airflow_paimon.core.table.paths import INDEX_DIR, MAIN, PRIVATE_DIR
from airflow_paimon.core.table.table import Table

OTHER = "other"
"""Kind of a file among data files whose name no known writer gives."""
_INDEX_SUFFIX = ".index"
_WITHOUT_VALUES = frozenset({"deletion_vectors", "hash"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file that may hold rows. ``path``: below the table's folder, a URI for one outside of it.

    ``kind``: ``data``, ``changelog``, ``temporary`` or ``other``. ``number``: in the index; None if no manifest that is
    still read names it. Then it has no ``entry`` either, and no ``schema``: the one that it was written with, under
    main's ids of the columns. A file of a deleted branch may have lost its schema, and has no ``entry`` then.
    ``problem``: why it can't be read for rows.
    """

    path: str
    size: int
    modified_ms: int | None
    kind: str
    number: int | None = None
    entry: ManifestEntry | None = None
    schema: TableSchema | None = None
    problem: str | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFiles:
    """``files``: all that may hold rows; ``index``: what each of the ``roots`` names.

    ``schemas``: all versions of the columns, of all branches, under main's ids. ``indexes``: index files that hold
    values of rows, or may, as paths with what they are.
    """

    files: tuple[StoredFile, ...]
    index: ReferencedFiles
    roots: Sequence[Root]
    consumers: Sequence[Consumer]
    schemas: tuple[TableSchema, ...]
    indexes: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]

    @property
    def heads(self) -> Mapping[str, Root]:
        """The newest snapshot of each branch: the rows that readers and writers see now."""
        snapshots = sorted((r for r in self.roots if r.kind == SNAPSHOT), key=lambda r: r.snapshot.id)
        return {r.branch: r for r in snapshots}


def read_stored_files(table: Table) -> StoredFiles:
    """Read all metadata of all branches, and list the folder.

    Raises:
        FormatError: something that names files is unreadable; names it.
    """
    main = table.branch(MAIN)
    reader = RootReader(main)
    roots = reader.gather()
    living, read = reader.without_vanished(roots.living, lambda some: (some, _read(main, some)))
    listed = _listed(main)
    known = _schemas(main, roots.branches)
    return StoredFiles(
        files=tuple(_files(listed, read, known)),
        index=read.index,
        roots=tuple(living),
        consumers=roots.consumers,
        schemas=tuple(s for versions in known.values() for s in versions.values()),
        indexes=tuple(_indexes(read.names, listed)),
        warnings=tuple(unfinished_warnings(roots)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """``entries``: of each file one entry of a manifest, with the branch whose schemas it refers to."""

    index: ReferencedFiles
    names: Sequence[RootReferences]
    entries: Mapping[str, tuple[str, ManifestEntry]]


def _read(main: Table, living: Sequence[Root]) -> _Read:
    index = read_referenced_files(main, living).whole()
    names = read_references(main, living)
    manifests = {m.file_name: (n.root.branch, m) for n in reversed(names) for m in (*n.state, *n.changelog)}
    entries: dict[str, tuple[str, ManifestEntry]] = {}
    for some in batches(list(manifests.values())):
        for (branch, _), found in zip(some, read_entries(main, [m for _, m in some]), strict=True):
            entries.update((entry.file.file_name, (branch, entry)) for entry in found)
    return _Read(index=index, names=names, entries=entries)


_Schemas = Mapping[str, Mapping[int, TableSchema]]
"""The schema versions of each branch, by id."""


def _listed(main: Table) -> list[tuple[FileInfo, str]]:
    """List the folder, without what this package keeps there for itself: files of known kinds, and ``OTHER`` ones."""
    classify, found = FileClassifier(file_prefixes(main)).classify, []
    for info in main.store.files(""):
        kind = None if info.name.startswith(f"{PRIVATE_DIR}/") else classify(info.name)
        if kind is not None:
            name = OTHER if kind is UNKNOWN else kind[0]
            found.append((info, name))
    return found


def _files(listed: Sequence[tuple[FileInfo, str]], read: _Read, schemas: _Schemas) -> Iterable[StoredFile]:
    def schema_of(branch: str, entry: ManifestEntry) -> TableSchema | None:
        return schemas.get(branch, {}).get(entry.file.schema_id)

    names = [file.name.rpartition("/")[2] for file, _ in listed]
    for (file, kind), name, number in zip(listed, names, _numbers(read, names), strict=True):
        if kind not in (DATA, CHANGELOG, TEMPORARY, OTHER) or not _among_rows(file):
            continue
        branch, entry = read.entries.get(name, (MAIN, None))
        schema = None if entry is None else schema_of(branch, entry)
        problem = "a file that a writer has not finished" if kind == TEMPORARY else None
        yield StoredFile(
            path=file.name,
            size=file.size,
            modified_ms=file.modified_ms,
            kind=kind,
            number=number,
            entry=None if schema is None else entry,
            schema=schema,
            problem=problem,
        )
    for branch, entry in read.entries.values():
        if entry.file.external_path is not None:
            schema = schema_of(branch, entry)
            yield StoredFile(
                path=entry.file.external_path,
                size=entry.file.file_size,
                modified_ms=None,
                kind=DATA,
                number=_numbers(read, [entry.file.file_name])[0],
                entry=entry,
                schema=schema,
                problem="the columns of its deleted branch are not known" if schema is None else None,
            )


def _numbers(read: _Read, names: Sequence[str]) -> list[int | None]:
    return [number if number >= 0 else None for number in read.index.numbers(digests_of(names)).tolist()]


def _among_rows(file: FileInfo) -> bool:
    """Whether a file lies where rows lie, and is no index of such a file."""
    parent = file.name.rpartition("/")[0].rpartition("/")[2]
    return parent.startswith("bucket-") and not file.name.endswith(_INDEX_SUFFIX)


def _schemas(main: Table, branches: Iterable[str]) -> _Schemas:
    """Read the schema versions of all branches, under main's ids."""
    own = main.schemas()
    found = {MAIN: {s.id: s for s in own}}
    for name in branches:
        try:
            versions = main.branch(name).schemas()
        except NotFoundError:  # an incomplete branch
            continue
        ids = ids_on_main(own, versions)
        found[name] = {s.id: under_ids(s, ids) for s in versions}
    return found


def _indexes(names: Sequence[RootReferences], listed: Sequence[tuple[FileInfo, str]]) -> Iterable[tuple[str, str]]:
    """Name the indexes that hold values, also those that nothing refers to: their names are not those of others."""
    found = {(e.external_path or f"{INDEX_DIR}/{e.file_name}"): e.index_type for n in names for e in n.index}
    known = [
        (path, f"an index of type {kind}, which contains values of rows")
        for path, kind in found.items()
        if kind.lower() not in _WITHOUT_VALUES
    ]
    strange = [
        (f.name, "an index that nothing refers to, of a type that may hold values of rows; delete it by hand")
        for f, kind in listed
        if kind == OTHER and f.name.startswith(f"{INDEX_DIR}/") and f.name not in found
    ]
    return sorted([*known, *strange])
