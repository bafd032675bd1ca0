"""reset_consumer and clear_consumers: what they set and delete, what they refuse, and what an expiry takes then."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.streaming.consumers import keep_from
from airflow_paimon.core.table.consumers import find_consumer, read_consumers
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, run

LATER = "2036-11-21T12:00:00+00:00"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three snapshots, and consumers that read 1, 2 and the next one."""
    made = make_table(tmp_path / "wh")
    for day in ("a", "b", "c"):
        append(made, day)
    for name, position in (("copy", 1), ("copy-2", 2), ("sum", 4)):
        keep_from(made, name, position)
    return made


def positions(table: Table) -> dict[str, int]:
    return {c.name: c.next_snapshot for c in read_consumers(table)}


def test_a_position_is_set_and_deleted(table: Table) -> None:
    moved = run(table, "reset_consumer", consumer="copy", next_snapshot=3)
    assert moved.changed
    assert moved.details == {"consumer": "copy", "next_snapshot": 3, "previous_snapshot": 1}
    assert find_consumer(table, "copy") == 3
    assert not run(table, "reset_consumer", consumer="copy", next_snapshot=3).changed
    run(table, "reset_consumer", consumer="new", next_snapshot=2)
    run(table, "reset_consumer", consumer="copy-2")
    assert positions(table) == {"copy": 3, "new": 2, "sum": 4}
    assert not run(table, "reset_consumer", consumer="copy-2", if_missing="skip").changed


def test_a_dry_run_changes_nothing(table: Table) -> None:
    before = positions(table)
    run(table, "reset_consumer", consumer="copy", dry_run=True)
    assert len(run(table, "clear_consumers", dry_run=True).details["deleted"]) == 3
    assert positions(table) == before


def test_what_a_reader_could_not_go_on_from_is_refused(table: Table) -> None:
    for wanted in (0, 5):
        with pytest.raises(InvalidInputError, match=r"from 1 to 4 \(the next commit\)"):
            run(table, "reset_consumer", consumer="copy", next_snapshot=wanted)
    with pytest.raises(InvalidInputError, match="consumer-id"):
        run(table, "reset_consumer", consumer="../x", next_snapshot=1)
    with pytest.raises(NotFoundError, match="no consumer 'nope' \\(its consumers: copy, copy-2, sum\\)"):
        run(table, "reset_consumer", consumer="nope")
    for _ in range(2):  # with consumers, and without any
        for wrong in ({"including": "("}, {"excluding": "["}):
            with pytest.raises(InvalidInputError, match="is not a regular expression"):
                run(table, "clear_consumers", **wrong)
        with pytest.raises(InvalidInputError, match="idle_for: 'week' is not a duration"):
            run(table, "clear_consumers", idle_for="week")
        run(table, "clear_consumers")


def test_consumers_that_fit_are_deleted_and_the_others_keep_their_snapshots(table: Table) -> None:
    result = run(table, "clear_consumers", including="copy.*", excluding="copy-.*")
    assert result.details["deleted"] == [{"consumer": "copy", "next_snapshot": 1}]
    assert positions(table) == {"copy-2": 2, "sum": 4}
    run(table, "expire_snapshots", retain_max=1, retain_min=1, now=LATER)
    assert table.snapshot_ids() == [2, 3]
    assert not run(table, "clear_consumers", idle_for="1 h").changed
    assert len(run(table, "clear_consumers", idle_for="1 h", now=LATER).details["deleted"]) == 2
    assert not positions(table)


def test_a_branch_has_consumers_of_its_own(table: Table) -> None:
    run(table, "create_branch", branch="fix", snapshot=3)
    run(table, "reset_consumer", consumer="copy", branch="fix", next_snapshot=3)
    assert run(table, "clear_consumers", branch="fix").changed
    assert len(positions(table)) == 3
