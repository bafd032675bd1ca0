"""erase_rows beside a writer that never pauses: other rows don't keep it from its end, such rows do, and it says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.table.table import Table
from tests.core.metadata_expiry.test_remove_orphan_files import sound
from tests.data.erasure.tables import keyed, plain, upsert
from tests.data.erasure.test_erase_rows import erase, shown, without


@contextmanager
def writing(table: Table, write: Callable[[int], None]) -> Iterator[list[int]]:
    """Commit to the files' own partitions again and again, in a thread."""
    over, written = threading.Event(), list[int]()

    def go_on() -> None:
        while not over.is_set():
            write(len(written))
            written.append(len(written))

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("make", [plain, keyed])
def test_other_rows_do_not_keep_it_from_its_end(tmp_path: Path, make: Callable[..., Table]) -> None:
    table = make(tmp_path)
    before = without(shown(table))
    with writing(table, lambda n: upsert(table, "a", [100 + n])) as written:
        details = erase(table).details
    assert details["branches"] == [] and [one["branch"] for one in details["erased"]] == ["main"]
    assert written and shown(table) == sorted([*before, *((100 + n, f"p{100 + n}", "a") for n in written)])
    sound(table)


def test_such_rows_do_and_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer of such rows that commits between each search and the next."""
    from airflow_paimon.data.erasure import erase_rows as module

    table, known = keyed(tmp_path), module.erase_from_branch

    def beside(view: Table, *more: object) -> object:
        done = known(view, *more)  # type: ignore[arg-type]
        upsert(table, "a", [3])
        return done

    monkeypatch.setattr(module, "erase_from_branch", beside)
    with pytest.raises(ConflictError, match=r"A writer keeps writing such rows: stop it first") as raised:
        erase(table)
    assert len(raised.value.details["done"]) == 5
    monkeypatch.undo()
    assert erase(table).details["branches"] == [] and shown(table) == without(shown(table))
