"""Where a file that a person names lies: a result, a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.catalogs.opening import storage_only
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.store import Store, open_store


def file_place(uri: str, storage_options: Mapping[str, Any] | None, flag: str) -> tuple[Store, str]:
    """Return the store of a file's folder, and the file's name in it; ``replace`` puts it whole or not at all.

    Raises:
        InvalidInputError: it names a folder.
    """
    folder, slash, name = uri.rpartition("/")
    if not name:
        raise InvalidInputError(f"{flag} {uri!r} names a folder; it must name the file to write")
    is_local = "://" not in uri or uri.startswith("file:")
    return open_store(folder + slash or ".", None if is_local else storage_only(storage_options)), name
