"""``open_table`` of the package: the core's view of a table, with its rows, history and diffs, shown as HTML."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.table import open_table as open_core_table
from airflow_paimon.notebook.frames import RowReads
from airflow_paimon.shown.html import facts_html

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from airflow_paimon.notebook.shown import Diff
    from airflow_paimon.shown.listing import Listing


@dataclass(frozen=True, repr=False)
class ReadableTable(RowReads, Table):
    """A view of one branch of a table, whose rows can be read in this process and which a notebook shows.

    Nothing is read before it is asked for, and nothing is kept: each call sees the newest snapshot. What the reads have
    in common:

    - ``columns``: names, all by default; ``where``: a condition as text (``"amount > 10 AND dt = '2026-11-18'"``) or a
      pyarrow expression. Partitions, files and row groups that can't hold such a row are not read.
    - ``branch``: another branch than the view's; ``snapshot`` (an id), ``tag`` (a name) or ``timestamp`` (ISO with an
      offset, or epoch milliseconds): an earlier state. ``limit``: so many rows at most.
    - ``gap_policy`` and ``chain_read``, for chain tables: see ``read_arrow``.

    Rows come in no particular order. Columns of the option ``airflow-paimon.masked-columns`` are hidden in what is
    shown (``head``, ``diff``), not in what is read.

    ``place``: the warehouse and storage options by which it was opened, unless that was by path.
    """

    place: tuple[str, Mapping[str, Any] | None] | None = field(default=None, compare=False)

    # -- rows ------------------------------------------------------------------------------------------------------

    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        where: str | pc.Expression | None = None,
        *,
        branch: str | None = None,
        snapshot: int | None = None,
        tag: str | None = None,
        timestamp: int | str | datetime | None = None,
        limit: int | None = None,
        gap_policy: str = "empty",
        chain_read: str = "full",
    ) -> pa.RecordBatchReader:
        """Read as a stream of Arrow batches: the memory that it takes doesn't grow with the table.

        Raises:
            PaimonError: as ``read_arrow``.
        """
        from airflow_paimon.data.arguments import timestamp_argument
        from airflow_paimon.data.arrow_read import read_batches
        from airflow_paimon.data.where import where_argument

        view, version, moment = self._at(branch, snapshot, tag), _version(snapshot, tag), timestamp_argument(timestamp)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise InvalidInputError(f"{view.label}: limit is a number of rows from 0 on, not {limit!r}")
        condition = where_argument(view, where, version, moment)
        return read_batches(view, version, moment, columns, condition, gap_policy, chain_read, limit)

    def count(
        self,
        where: str | pc.Expression | None = None,
        *,
        branch: str | None = None,
        snapshot: int | None = None,
        tag: str | None = None,
        timestamp: int | str | datetime | None = None,
    ) -> int:
        """Count the rows as a reader sees them: merged, without deleted ones. Opens only files that need a look."""
        from airflow_paimon.data.arguments import timestamp_argument
        from airflow_paimon.data.arrow_read import count_rows
        from airflow_paimon.data.where import where_argument

        view, version, moment = self._at(branch, snapshot, tag), _version(snapshot, tag), timestamp_argument(timestamp)
        return count_rows(view, version, moment, where_argument(view, where, version, moment))

    def head(
        self,
        limit: int = 10,
        columns: Sequence[str] | None = None,
        where: str | pc.Expression | None = None,
        *,
        branch: str | None = None,
        snapshot: int | None = None,
        tag: str | None = None,
    ) -> Listing:
        """Show some rows. Values of masked columns are hidden, and long texts are cut."""
        from airflow_paimon.cli.rows import head

        view = self._at(branch, snapshot, tag)
        return head(view, limit, _version(snapshot, tag), columns=columns, where=where)

    def _at(self, branch: str | None, snapshot: int | None, tag: str | None) -> ReadableTable:
        if snapshot is not None and tag is not None:
            raise InvalidInputError(f"{self.label}: give a snapshot or a tag, not both")
        if tag is not None and not isinstance(tag, str):
            raise InvalidInputError(f"{self.label}: tag is the name of a tag, not {tag!r}")
        return self if branch is None else self.branch(branch)

    # -- what there is ---------------------------------------------------------------------------------------------

    def columns(self) -> Listing:
        """Show the columns: types, keys and comments."""
        from airflow_paimon.shown.lookups import schema

        return schema(self, 0)

    def history(self, limit: int = 50) -> Listing:
        """Show the snapshots of this branch, the newest first; 0 = all."""
        from airflow_paimon.shown.lookups import snapshots

        return snapshots(self, limit)

    def branches(self) -> Listing:
        """Show main and the branches: their heads, what they were made from, owner, reason and retention."""
        from airflow_paimon.shown.lookups import branches

        return branches(self, 0)

    def tags(self, prefix: str = "") -> list[Tag]:
        """Read the tags of this branch, by snapshot id and name; a notebook shows them as a table."""
        from airflow_paimon.notebook.shown import Tags

        return Tags(super().tags(prefix))

    def partitions(self) -> Listing:
        """Show the partitions of the newest snapshot, with their files, bytes and stored rows."""
        from airflow_paimon.shown.lookups import partitions

        return partitions(self, 0)

    @property
    def options(self) -> Mapping[str, str]:
        """The options that are set on this branch."""
        from airflow_paimon.notebook.shown import Options

        return Options(self.schema().options)

    def diff(
        self,
        branch: str,
        against: str = "base",
        *,
        partitions: Iterable[str] = (),
        sample: int = 5,
        mask: Iterable[str] = (),
        however_large: bool = False,
    ) -> Diff:
        """Compare a branch of the table with its base, or with another branch or version: counts and sample rows.

        Runs in this process. ``however_large``: also where so much has changed that the job ``diff_branches``, which
        has Spark, is the better way.

        Raises:
            NotFoundError: no such branch. InvalidInputError: the two sides have different keys.
            UnsafeOperationError: the branch shares no snapshot with main, so it has no base.
            UnsupportedError: it is too large for this process.
        """
        from airflow_paimon.notebook.shown import compare

        named = [partitions] if isinstance(partitions, str) else list(partitions)
        hidden = [mask] if isinstance(mask, str) else list(mask)
        return compare(self, branch, against, named, sample, hidden, however_large)

    # -- how it is shown -------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<Paimon table {self.name}, branch {self.branch_name}, at {self.store.uri}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: what the table is, its newest snapshot and its columns; no rows."""
        try:
            facts = self._facts()
            return facts_html(facts) + self.columns().to_html("columns() shows all")
        except PaimonError as error:
            return facts_html({"table": self.label, "unreadable": error.message})

    def _facts(self) -> dict[str, str]:
        schema, head = self.schema(), self.latest_snapshot()
        facts = {
            "table": self.name,
            "branch": self.branch_name,
            "at": self.store.uri,
            "comment": schema.comment or "",
            "primary key": ", ".join(schema.primary_keys),
            "partitioned by": ", ".join(schema.partition_keys),
            "branches": ", ".join((MAIN, *self.branch_names())),
            "newest snapshot": "none" if head is None else f"{head.id}, committed {_moment(head.time_millis)}",
        }
        return {name: value for name, value in facts.items() if value}


def open_table(
    warehouse: str | None = None,
    name: str | None = None,
    branch: str = MAIN,
    storage_options: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
) -> ReadableTable:
    """Open a table by its name in the catalog of a warehouse, or any table folder by ``path``. Nothing is read yet.

    ``name`` may carry a branch (``db.t$branch_b``); a different ``branch`` besides is an error. ``storage_options`` may
    name the catalog (``metastore``, ``uri``, ...) and hold what the storage needs to log in.

    Raises:
        InvalidInputError: both or neither of (warehouse, name) and path, or a malformed name.
    """
    found = open_core_table(warehouse, name, branch, storage_options, path=path)
    place = None if warehouse is None else (os.fspath(warehouse), storage_options)
    return ReadableTable(found.store, found.name, found.branch_name, found.catalog, place=place)


def _version(snapshot: int | None, tag: str | None) -> int | str | None:
    return tag if snapshot is None else snapshot


def _moment(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
