"""``open_table_set`` of the package: the tables of one version of a set, read as they belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.table_sets import TableSet, find_set, parse_set_version
from airflow_paimon.notebook.frames import RowReads
from airflow_paimon.notebook.table import ReadableTable, open_table

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from airflow_paimon.shown.listing import Listing


@dataclass(frozen=True)
class SetTable(RowReads):
    """A table as a version of a set has it. The reads are those of ``open_table``; none takes another version.

    ``table`` is the table itself, with its history and branches, and ``version`` what other reads take as ``version``.
    """

    table: ReadableTable
    version: str
    snapshot_id: int

    @property
    def name(self) -> str:
        """The table's name."""
        return self.table.name

    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        where: str | pc.Expression | None = None,
        *,
        limit: int | None = None,
    ) -> pa.RecordBatchReader:
        """Read as a stream of Arrow batches."""
        return self.table.to_batches(columns, where, tag=self.version, limit=limit)

    def count(self, where: str | pc.Expression | None = None) -> int:
        """Count the rows as a reader sees them."""
        return self.table.count(where, tag=self.version)

    def head(
        self, limit: int = 10, columns: Sequence[str] | None = None, where: str | pc.Expression | None = None
    ) -> Listing:
        """Show some rows."""
        return self.table.head(limit, columns, where, tag=self.version)


@dataclass(frozen=True, slots=True)
class ReadableSet:
    """One version of a table set. It stays this version, whatever is published later: open the set again for a new one.

    ``found``: the version as it is recorded.
    """

    found: TableSet
    _warehouse: str
    _storage_options: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """The name of the set."""
        return self.found.name

    @property
    def number(self) -> int:
        """The number of the version: later versions have greater ones."""
        return self.found.number

    @property
    def version(self) -> str:
        """What ``read_table``, the data source and views take as version, for every table: ``set:nightly@7``."""
        return self.found.version

    @property
    def tag(self) -> str:
        """The tag that each table has on its snapshot, for other engines."""
        return self.found.tag

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables, ``db.table``."""
        return tuple(self.found.tables)

    @property
    def created(self) -> datetime:
        """When it was made."""
        return datetime.fromtimestamp(self.found.created_ms / 1000, UTC)

    def table(self, name: str) -> SetTable:
        """Return a table of the version.

        Raises:
            NotFoundError: the version doesn't have it.
        """
        pin = self.found.pin(name)
        table = open_table(self._warehouse, name, storage_options=self._storage_options)
        return SetTable(table, self.version, pin.snapshot_id)

    def __getitem__(self, name: str) -> SetTable:
        return self.table(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.found.tables)

    def __len__(self) -> int:
        return len(self.found.tables)

    def __repr__(self) -> str:
        listed = ", ".join(f"{name} at {pin.snapshot_id}" for name, pin in self.found.tables.items())
        return f"<Table set {self.name}, version {self.number} of {self.created:%Y-%m-%d %H:%M:%S} UTC: {listed}>"


def open_table_set(
    warehouse: str,
    name: str,
    version: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ReadableSet:
    """Open a version of a table set: the newest, or that of a number or of ``set:NAME@NUMBER``.

    ``storage_options``: as of ``open_table``.

    Raises:
        NotFoundError: no such set or version. UnsupportedCatalogError: the catalog's server keeps the warehouse.
    """
    number = version
    if isinstance(version, str):
        set_version = parse_set_version(version)
        if set_version is None or set_version[0] != name:
            raise InvalidInputError(f"version {version!r} is not one of table set {name!r}, such as set:{name}@7")
        number = set_version[1]
    if isinstance(number, bool) or not isinstance(number, int | None):
        raise InvalidInputError(f"version is the number of a version, or set:{name}@NUMBER, not {version!r}")
    return ReadableSet(find_set(open_catalog(warehouse, storage_options), name, number), warehouse, storage_options)
