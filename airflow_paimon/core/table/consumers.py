"""Reads Paimon's consumer files: the positions of streaming readers (docs/contributing/format.md, Folders)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.snapshot import load_json_object
from airflow_paimon.core.store.base import read_existing
from airflow_paimon.core.table.paths import CONSUMER_PREFIX
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A streaming reader's position: it needs ``next_snapshot`` and everything later of its branch.

    ``modified_ms``: when it was written last, by the storage's clock; None where that isn't known. ``data``: its file.
    """

    branch: str
    name: str
    next_snapshot: int
    modified_ms: int | None = field(default=None, compare=False, repr=False)
    data: bytes = field(default=b"", compare=False, repr=False)


def consumer_path(view: Table, name: str) -> str:
    """Return where a consumer of the branch lies."""
    return f"{view.paths.consumer_dir}/{CONSUMER_PREFIX}{name}"


def consumer_names(view: Table) -> list[str]:
    """Return the names of a branch's consumers, also of those whose file is unreadable."""
    files = (f for f in view.store.names(view.paths.consumer_dir) if f.startswith(CONSUMER_PREFIX))
    return sorted(f.removeprefix(CONSUMER_PREFIX) for f in files)


def read_consumers(view: Table) -> Iterator[Consumer]:
    """Read the consumers of a branch; one that is deleted meanwhile is left out.

    Raises:
        FormatError: one is unreadable; names it.
    """
    infos = [i for i in view.store.list(view.paths.consumer_dir) if i.name.startswith(CONSUMER_PREFIX)]
    names = {consumer_path(view, name): (name, i) for i in infos for name in [i.name.removeprefix(CONSUMER_PREFIX)]}
    for path, data in read_existing(view.store, list(names)).items():
        name, info = names[path]
        position = _next_snapshot(view, path, data)
        modified_ms = info.modified_ms
        yield Consumer(branch=view.branch_name, name=name, next_snapshot=position, modified_ms=modified_ms, data=data)


def find_consumer(view: Table, name: str) -> int | None:
    """Return the snapshot that a consumer of the branch reads next, None without such a consumer."""
    path = consumer_path(view, name)
    try:
        return _next_snapshot(view, path, view.store.read(path))
    except NotFoundError:
        return None


def _next_snapshot(view: Table, path: str, data: bytes) -> int:
    where = f"{view.name}: {path}"
    following = load_json_object(data, where).get("nextSnapshot")
    if not isinstance(following, int) or isinstance(following, bool) or not 0 <= following < 2**63:
        raise FormatError(f"{where} has no nextSnapshot; restore it, or delete the consumer")
    return following
