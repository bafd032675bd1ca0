"""Several processes: all results, the first error, and no process left, whoever dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_paimon.core.errors import FormatError, PaimonError, StorageError
from airflow_paimon.core.parallel import workers as workers_module
from airflow_paimon.core.parallel.processes import in_processes
from airflow_paimon.core.parallel.workers import Workers
from tests.airflow.processes import wait_until
from tests.core.parallel import pieces


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"  # it has ended, and nobody has waited for it


def test_all_pieces_are_done() -> None:
    numbers = list(range(20))
    found = in_processes(2, pieces.squares, [numbers[at : at + 3] for at in range(0, 20, 3)])
    assert sorted(found) == [(n, n * n) for n in numbers]


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (pieces.refuse_three, FormatError, "three is corrupt"),
        (pieces.fail_at_three, RuntimeError, "ZeroDivisionError"),
        (pieces.die_at_three, StorageError, r"ended early \(exit code -9\)"),
    ],
)
def test_an_error_anywhere_is_raised_here(
    function: Callable[..., object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        list(in_processes(2, function, [[1, 2], [3], [4]]))  # type: ignore[arg-type]
    if isinstance(raised.value, PaimonError) and isinstance(raised.value, FormatError):
        assert raised.value.details == {"number": 3}


def test_whoever_stops_ends_the_processes() -> None:
    running = in_processes(2, pieces.name_oneself, [[1], [2]])
    started = [next(running), next(running)]
    assert all(map(is_there, started))
    running.close()  # type: ignore[attr-defined]
    assert not any(map(is_there, started))


def test_a_killed_parent_takes_its_processes_with_it() -> None:
    with pieces.start_a_parent() as parent:
        try:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            assert is_there(child)
        finally:
            parent.kill()
    wait_until(lambda: not is_there(child), f"process {child} has ended", 10)


def test_pieces_are_of_about_one_size() -> None:
    found = workers_module._pieces("abcdefg", [5, 5, 1, 1, 1, 20, 1], 10)
    assert [("".join(p.items), p.files) for p in found] == [("ab", 10), ("cde", 3), ("f", 20), ("g", 1)]
    assert workers_module._pieces("", [], 10) == []


def test_small_work_is_done_here() -> None:
    here = Workers(processes=2, worth_it=10)
    assert list(here.each(lambda items: [os.getpid() for _ in items], [1, 2], [4, 5])) == [os.getpid()] * 2
    assert sorted(here.each(pieces.squares, [1, 2], [5, 5])) == [(1, 1), (2, 4)]
