"""The deletion and replacement of a tag's file as it was read: one that was set anew meanwhile stays; and the marks of
tags for tables that ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.snapshot import Tag, parse_tag
from airflow_paimon.core.plan import Delete, PutNew, Replace
from airflow_paimon.core.store.base import read_existing, read_if_exists
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.success_files import success_file
from airflow_paimon.core.table.table import Table

_OPTION = "tag.create-success-file"
"""Of tables with it: a mark beside each tag, ``tag/tag-success-file/<tag>_SUCCESS``."""


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


# -- marks beside tags -------------------------------------------------------------------------------------------------


def makes_success_files(view: Table) -> bool:
    """Whether the option is set."""
    return TableOptions(view.schema().options).flag(_OPTION)


def plan_success_file(view: Table, tag: str, now_ms: int) -> Replace:
    """Mark a tag that has just been set."""
    path = _path(view, tag)
    before = read_existing(view.store, [path]).get(path)
    return Replace(path=path, data=success_file(before, now_ms, path), reason=f"tag {tag!r} is set")


def plan_deletions(view: Table, tags: Iterable[str]) -> list[Delete]:
    """Return the deletions of the marks of tags that go, as far as they exist."""
    names = set(view.store.names(_folder(view)))
    marks = {path: tag for tag in tags for path in [_path(view, tag)] if path.rpartition("/")[2] in names}
    there = read_existing(view.store, list(marks))
    return [Delete(path=p, expected=data, reason=f"tag {marks[p]!r} was deleted") for p, data in there.items()]


def _folder(view: Table) -> str:
    return f"{view.paths.tag_dir}/tag-success-file"


def _path(view: Table, tag: str) -> str:
    return f"{_folder(view)}/{tag}_SUCCESS"
