"""What was newest when this process last looked: read again while its folder is listed, instead of after that.

Nothing is known by a guess: the listing says what is newest, and what was guessed is used only where it says the same.
It is read anew each time, as files of a branch that was deleted and made again have the names of the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.store.base import Store, read_present, side_by_side

T = TypeVar("T")

_MOST_FOLDERS = 1024
_MOST_FILES = 16
"""Of a folder: more of them are read when it is certain that they are wanted."""

_known: dict[tuple[str, str], Sequence[int]] = {}
_long: set[tuple[str, str]] = set()


def remember(store: Store, folder: str, numbers: Sequence[int], *, is_long: bool = False) -> None:
    """Note what is newest in a folder, for the next look; only of storages where each request takes its time.

    ``is_long``: its listing was not asked for to the end, as it has too many files.
    """
    if not _guessed(store):
        return
    key = store.place, folder
    _known.pop(key, None)
    _known[key] = tuple(numbers[-_MOST_FILES:])
    (_long.add if is_long else _long.discard)(key)
    while len(_known) > _MOST_FOLDERS:
        with suppress(KeyError, StopIteration, RuntimeError):  # of another thread that does the same
            oldest = next(iter(_known))
            _known.pop(oldest)
            _long.discard(oldest)


def remembered(store: Store, folder: str) -> Sequence[int]:
    """Return what ``remember`` was given last; empty: nothing."""
    return _known.get((store.place, folder), ()) if _guessed(store) else ()


def newest_of_long(store: Store, folder: str) -> int | None:
    """Return what was newest in a folder with too many files to list; None: it isn't known, or wasn't that long."""
    numbers = remembered(store, folder)
    return numbers[-1] if numbers and (store.place, folder) in _long else None


def listed(
    store: Store, listing: Callable[[], T], path: Callable[[int], str], guess: Sequence[int]
) -> tuple[T, Mapping[int, bytes]]:
    """Make a listing, and meanwhile read the files with these numbers; give what it returns, and those that are there.

    What goes wrong with a guess doesn't matter: what is wanted is read then.
    """
    if not guess or not _guessed(store):
        return listing(), {}
    calls: list[Callable[[], Any]] = [listing, partial(_read, store, path, guess)]
    found, data = side_by_side(store, calls)
    return found, data


def _guessed(store: Store) -> bool:
    return store.remote and store.keeper is None


def _read(store: Store, path: Callable[[int], str], numbers: Sequence[int]) -> Mapping[int, bytes]:
    paths = {path(number): number for number in numbers}
    with suppress(PaimonError):
        return {paths[p]: data for p, data in read_present(store, list(paths)).items()}
    return {}
