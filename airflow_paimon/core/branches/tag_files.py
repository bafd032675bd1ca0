"""The deletion and replacement of a tag's file as it was read: one that was set anew meanwhile stays."""

from __future__ import annotations

from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.snapshot import Tag, parse_tag
from airflow_paimon.core.plan import Delete, PutNew, Replace
from airflow_paimon.core.store.base import read_if_exists
from airflow_paimon.core.table.table import Table


def deletion(view: Table, tag: Tag, reason: str) -> Delete:
    """Plan the deletion of a tag; another engine may have spelt it differently.

    Raises:
        ConflictError: it is another one now.
    """
    return Delete(path=view.paths.tag(tag.name), expected=_as_stored(view, tag), reason=reason)


def replacement(view: Table, tag: Tag, new: Tag, reason: str) -> Replace:
    """Plan another content of a tag; raises as ``deletion``."""
    return Replace(path=view.paths.tag(tag.name), data=new.to_bytes(), expected=_as_stored(view, tag), reason=reason)


def put_replacement(view: Table, action: Replace) -> None:
    """Carry a ``replacement`` out. A tag that was deleted before gets the new content as well.

    Raises:
        ConflictError: it is another one now.
    """
    try:
        execute(view, [action])
    except ConflictError:
        if view.store.exists(action.path):
            raise
        execute(view, [PutNew(path=action.path, data=action.data, same_ok=True, reason=action.reason)])


def _as_stored(view: Table, tag: Tag) -> bytes:
    data = read_if_exists(view.store, view.paths.tag(tag.name))
    if data is not None and parse_tag(data, tag.name) != tag:
        raise ConflictError(f"{view.label}: tag {tag.name!r} was changed by another process meanwhile, and stays")
    return tag.to_bytes() if data is None else data
