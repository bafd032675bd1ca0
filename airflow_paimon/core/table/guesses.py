"""What was newest when this process last looked: read again while its folder is listed, instead of after that.

Nothing is known by a guess: the listing says what is newest, and what was guessed is used only where it says the same.
It is read anew each time, as files of a branch that was deleted and made again have the names of the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.store.base import Store, read_present, side_by_side

T = TypeVar("T")

_MOST_FOLDERS = 1024
_MOST_FILES = 16
"""Of a folder: more of them are read when it is certain that they are wanted."""


@dataclass(frozen=True, slots=True)
class _Known:
    """``moved``: it was something else at the look before, so that it will be at the next one, too."""

    numbers: Sequence[int]
    is_long: bool = False
    moved: bool = False


_known: dict[tuple[str, str], _Known] = {}


def remember(store: Store, folder: str, numbers: Sequence[int], *, is_long: bool = False, looked: bool = True) -> None:
    """Note what is newest in a folder, for the next look; only of storages where each request takes its time.

    ``is_long``: its listing was not asked for to the end, as it has too many files. ``looked``: it was looked for, not
    made.
    """
    if not _guessed(store):
        return
    key, some = (store.place, folder), tuple(numbers[-_MOST_FILES:])
    before = _known.pop(key, None)
    moved = before is not None and (before.numbers != some if looked else before.moved)
    _known[key] = _Known(some, is_long or (not looked and before is not None and before.is_long), moved)
    while len(_known) > _MOST_FOLDERS:
        with suppress(KeyError, StopIteration, RuntimeError):  # of another thread that does the same
            _known.pop(next(iter(_known)))


def guess_of(store: Store, folder: str) -> Sequence[int] | None:
    """Return what may be newest in a folder; empty: hardly what was; None: it was not looked for yet."""
    known = _known.get((store.place, folder)) if _guessed(store) else None
    return None if known is None else () if known.moved else known.numbers


def newest_of_long(store: Store, folder: str) -> int | None:
    """Return what was newest in a folder with too many files to list; None: it isn't known, or wasn't that long."""
    known = _known.get((store.place, folder)) if _guessed(store) else None
    return known.numbers[-1] if known is not None and known.is_long and known.numbers else None


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
