"""drop_table: a table's whole folder, in a warehouse that is its own catalog."""

from __future__ import annotations

from contextlib import suppress

from airflow_paimon.core.catalogs.filesystem import FilesystemCatalog
from airflow_paimon.core.commit.put import delete_files, execute, require_committable
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    StorageError,
    UnsafeOperationError,
    UnsupportedCatalogError,
    UnsupportedFeatureError,
    first_few,
)
from airflow_paimon.core.plan import Delete, DeleteFolders
from airflow_paimon.core.schema.drop_plan import RECORD, Dropping, DropPlan, division, plan_drop
from airflow_paimon.core.store.base import read_existing, read_if_exists
from airflow_paimon.core.table.consumers import read_consumers
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table

_EXTERNAL = "data-file.external-paths"
_SHOWN = 10
_TRIES = 3


def drop_table(table: Table) -> bool:
    """Delete a table with all its snapshots and files; nothing brings it back. False: there is none.

    It is refused as long as somebody has said that they need something of it: a branch, a tag (so a legal hold, a
    version of a table set, the undo of a publish) or a consumer. A commit that comes meanwhile is a conflict, and the
    table stays. An interrupted drop is finished by running it again.

    Raises:
        UnsafeOperationError: a branch, tag or consumer is left; the message names them. ConflictError: it was written
            meanwhile; nothing was deleted. UnsupportedCatalogError: a catalog that has to forget the table as well.
    """
    if table.catalog is None or not isinstance(table.catalog, FilesystemCatalog):
        where = table.store.uri if table.catalog is None else table.catalog.label
        raise UnsupportedCatalogError(
            f"{table.name}: DROP TABLE is not executed in {where}, which has to forget the table together with its "
            f"files; drop it with Paimon's own engines"
        )
    record = read_if_exists(table.store, RECORD)
    if record is None and not table.exists():
        return False
    require_committable(table)
    dropping = _gather(table) if record is None else Dropping.parse(record, f"{table.name}: {RECORD}")
    if dropping.removing and table.exists():  # another engine, which doesn't look for the record, has made a new one
        execute(table, [Delete(path=RECORD, expected=record, reason="of a table that was dropped")])
        record, dropping = None, _gather(table)
    plan = plan_drop(dropping)
    if not dropping.removing:
        _hide(table, dropping, plan, begun=record is not None)
        execute(table, [plan.mark])
    _remove(table, plan.mark.data)
    database, _, short = table.name.partition(".")
    folder = DeleteFolders(path=f"{database}.db/{short}", reason="the table is dropped")
    try:
        execute(Table(table.catalog.warehouse, table.name), [folder])
    except UnsafeOperationError:  # a link to the folder stays
        below = [i.name for i in table.store.list("") if i.is_dir]
        execute(table, [DeleteFolders(path=name, reason="the table is dropped") for name in below])
    return True


def _remove(table: Table, mark: bytes) -> None:
    """Delete the files of a table that is hidden. ``mark``: its record.

    What is listed before a look at the record is the dropped table's: a name that is used only once is then that
    file's for ever, and any other file goes only with the content that it had.

    Raises:
        ConflictError: another try has dropped it meanwhile, and a new table is made in its place.
    """
    for _ in range(_TRIES):
        again, once = division(table.store.walk(""))
        there = read_existing(table.store, again)
        if read_if_exists(table.store, RECORD) != mark:
            raise ConflictError(
                f"{table.name} was dropped by another process in the meantime; check whether a new one exists"
            )
        execute(table, [Delete(path=p, expected=there[p], reason="of a table that is dropped") for p in there])
        if left := delete_files(table, once):
            raise StorageError(f"{table.name}: {len(left)} of its files could not be deleted, e.g. {left[0]}; retry")
        if not again and not once:
            break
    execute(table, [Delete(path=RECORD, expected=mark, reason="the table is dropped")])


def _hide(table: Table, dropping: Dropping, plan: DropPlan, *, begun: bool) -> None:
    """Take the table from the sight of every engine, unless somebody needs or has changed it; ``begun``: by an earlier
    try, whose work is undone then.
    """
    if not begun:
        _refuse_needed(table, dropping)
    try:
        execute(table, plan.hide)
        _refuse_needed(table, dropping)
    except (ConflictError, UnsafeOperationError):
        for action in plan.undo:
            with suppress(AlreadyExistsError):  # another process has altered the table
                execute(table, [action])
        raise


def _refuse_needed(table: Table, dropping: Dropping) -> None:
    """Refuse if somebody has said that they need something of the table, or has written to it meanwhile.

    Raises:
        UnsafeOperationError: names what is left. ConflictError: it was written.
    """
    main = table.branch(MAIN)
    left = {
        "branches": main.branch_names(),
        "tags": main.tag_names(),
        "consumers": [c.name for c in read_consumers(main)],
    }
    named = [f"{what} {first_few(names, _SHOWN)}" for what, names in left.items() if names]
    if named:
        raise UnsafeOperationError(
            f"{table.name} has {' and '.join(named)}, so it is still needed and was not dropped; delete them first "
            f"with delete_branch, delete_tag and reset_consumer",
            details={what: names for what, names in left.items() if names},
        )
    newest = _newest(table)
    if newest != dropping.snapshot:
        raise ConflictError(
            f"{table.name} was written meanwhile, so it was not dropped; stop its writers and try again"
        )


def refuse_being_dropped(table: Table) -> None:
    """Refuse to create a table where another is being dropped: it would show that one's snapshots.

    Raises:
        ConflictError: says how the drop is finished.
    """
    if isinstance(table.catalog, FilesystemCatalog) and table.store.exists(RECORD):
        raise ConflictError(
            f"{table.name} is being dropped, or that was interrupted; run DROP TABLE {table.name} again to finish it"
        )


def _gather(table: Table) -> Dropping:
    schemas = table.schema_ids()
    texts = table.store.read_many([table.paths.schema(n) for n in schemas])
    if _EXTERNAL in table.schema().options:
        raise UnsupportedFeatureError(
            f"{table.name}: files lie outside of its folder ({_EXTERNAL}); drop it with Paimon's own engines"
        )
    return Dropping(schemas={n: t.decode() for n, t in zip(schemas, texts, strict=True)}, snapshot=_newest(table))


def _newest(table: Table) -> str | None:
    number = table.latest_snapshot_id()
    found = None if number is None else read_if_exists(table.store, table.paths.snapshot(number))
    return None if found is None else found.decode()
