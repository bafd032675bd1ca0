"""Marks beside tags, for tables with the option ``tag.create-success-file``: ``tag/tag-success-file/<tag>_SUCCESS``."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_paimon.core.format.success_file import success_file
from airflow_paimon.core.plan import Delete, Replace
from airflow_paimon.core.store.base import read_existing
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import Table

OPTION = "tag.create-success-file"


def makes_success_files(view: Table) -> bool:
    """Whether the option is set."""
    return TableOptions(view.schema().options).flag(OPTION)


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
