"""Legal holds survive a deletion of their tag that began before: ``_airflow_paimon/legal_holds/<branch>/<tag>.json``.

Not every storage deletes a file only if nobody has changed it, and none replaces one so. So whoever holds a tag records
that before the tag gets the hold, and whoever has deleted a tag looks for such a record afterwards: either the deletion
came first, and the holder writes the tag anew, or the record is found, and the tag is put back. Whoever has replaced a
tag looks as well, and the holder looks at the tag between record and hold: of the two, the later one finds the other
and is refused.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote

from airflow_paimon.core.branches.tag_files import replacement
from airflow_paimon.core.commit.committer import execute
from airflow_paimon.core.errors import AlreadyExistsError, FormatError
from airflow_paimon.core.format.snapshot import Tag, parse_tag
from airflow_paimon.core.plan import Delete, PutNew, Replace
from airflow_paimon.core.store.base import read_present
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.table import Table

FOLDER = f"{PRIVATE_DIR}/legal_holds"


def record_hold(view: Table, tag: Tag) -> None:
    """Record a hold, before the tag gets it."""
    execute(view, [Replace(path=_path(view, tag.name), data=tag.to_bytes(), reason="survives the tag's deletion")])


def forget_hold(view: Table, name: str) -> None:
    """Forget it, before the tag goes that was released, and before another tag gets the name."""
    there = read_present(view.store, [_path(view, name)])
    execute(view, [Delete(path=p, expected=data, reason="the hold has ended") for p, data in there.items()])


def put_back_if_held(view: Table, deleted: Tag, *, instead_of: Tag | None = None) -> Tag | None:
    """Put a tag back that has got a hold while it was deleted; return it, None: it has none. Call it after that.

    ``instead_of``: the tag by which it was not deleted but replaced.
    """
    path = _path(view, deleted.name)
    data = read_present(view.store, [path]).get(path)
    if data is None:
        return None
    try:
        held = parse_tag(data, deleted.name)
    except FormatError:
        return None
    if held.hold is None or held.snapshot.identity != deleted.snapshot.identity:
        return None  # of an earlier tag of this name, which another engine has deleted
    path, reason = view.paths.tag(held.name), f"it {held.hold_text}"
    now = None if instead_of is None else view.find_tag(held.name)
    if now is not None and (now.hold is None or now == instead_of):
        execute(view, [replacement(view, now, held, reason)])
        return held
    with suppress(AlreadyExistsError):
        execute(view, [PutNew(path=path, data=held.to_bytes(), reason=reason)])
    return held


def any_hold(table: Table) -> bool:
    """Whether a hold of any branch is recorded, by one listing."""
    return bool(table.store.walk(FOLDER))


def _path(view: Table, name: str) -> str:
    return f"{FOLDER}/{quote(view.branch_name, safe='')}/{quote(name, safe='')}.json"
