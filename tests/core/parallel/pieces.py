"""Functions of pieces that other processes import, and a stand-in for tasks."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.parallel.processes import in_processes
from airflow_paimon.core.parallel.workers import Piece

R = TypeVar("R")


def squares(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    print("a library prints something")
    for number in numbers:
        yield number, number * number


def refuse_three(numbers: Sequence[int]) -> Iterator[int]:
    for number in numbers:
        if number == 3:
            raise FormatError("three is corrupt", details={"number": 3})
        yield number


def fail_at_three(numbers: Sequence[int]) -> Iterator[int]:
    yield from (12 // (number - 3) for number in numbers)


def die_at_three(numbers: Sequence[int]) -> Iterator[int]:
    for number in numbers:
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        yield number


def name_oneself(numbers: Sequence[int]) -> Iterator[int]:
    yield os.getpid()
    time.sleep(600)


def shuffled(
    function: Callable[[Sequence[Any]], Iterable[R]], pieces: Sequence[Piece], memory_bytes: int
) -> Iterator[R]:
    """Tasks, as far as their order and their pickling go."""
    del memory_bytes
    order = [pickle.loads(pickle.dumps(piece)) for piece in pieces]
    random.Random(len(order)).shuffle(order)
    for piece in order:
        yield from pickle.loads(pickle.dumps(list(pickle.loads(pickle.dumps(function))(piece.items))))


def name_those_that_wait() -> None:
    for number in in_processes(2, name_oneself, [[1], [2]]):
        print(number, flush=True)


def start_a_parent() -> subprocess.Popen[str]:
    """Start a process that prints the ids of its own processes, and waits for them."""
    program = "from tests.core.parallel.pieces import name_those_that_wait as wait; wait()"
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
