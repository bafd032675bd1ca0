"""Requests of several processes, counted together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.stores import Tally


class TellingTally(Tally):
    """A tally that each process writes into one file, as work on all files is done by several."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return TellingTally, (self.path,)

    def add(self, method: str = "", uri: str = "", *, requests: int = 0, read: int = 0, written: int = 0) -> None:
        super().add(method, uri, requests=requests, read=read, written=written)
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, f"{requests} {read}\n".encode())
        os.close(file)


def told_by_all(path: str) -> tuple[int, int]:
    """Return requests and bytes read, and forget them."""
    rows = [line.split() for line in Path(path).read_text().splitlines()]
    Path(path).unlink()
    return sum(int(requests) for requests, _ in rows), sum(int(read) for _, read in rows)
