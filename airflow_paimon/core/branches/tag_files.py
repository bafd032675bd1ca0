"""The deletion of a tag's file as it was read: one that was set anew meanwhile stays."""

from __future__ import annotations

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.snapshot import Tag, parse_tag
from airflow_paimon.core.plan import Delete
from airflow_paimon.core.store.base import read_if_there
from airflow_paimon.core.table.table import Table


def deletion(view: Table, tag: Tag, reason: str) -> Delete:
    """Plan the deletion of a tag; another engine may have spelt it differently.

    Raises:
        ConflictError: it is another one now.
    """
    path = view.paths.tag(tag.name)
    data = read_if_there(view.store, path)
    if data is not None and parse_tag(data, tag.name) != tag:
        raise ConflictError(f"{view.label}: tag {tag.name!r} was changed by another process meanwhile, and stays")
    return Delete(path=path, expected=tag.to_bytes() if data is None else data, reason=reason)
