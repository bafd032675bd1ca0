"""Values that were parsed lately, by the bytes that they were parsed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Remembers what at most ``most`` files of up to ``largest`` bytes say: a commit reads some of them several times.

    The values are shared, so they must not be changed. Of what can't be parsed nothing is remembered.
    """

    def __init__(self, most: int, largest: int) -> None:
        self._most, self._largest = most, largest
        self._known: dict[bytes, T] = {}

    def find(self, data: bytes, parse: Callable[[], T]) -> T:
        """Return what these bytes say; ``parse`` is called if that isn't known."""
        known = self._known.get(data)
        if known is None:
            known = parse()
            if len(data) <= self._largest:
                if len(self._known) >= self._most:
                    self._known.clear()
                self._known[data] = known
        return known
