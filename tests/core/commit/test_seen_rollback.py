"""What attempts of one commit have read is forgotten once another engine has rolled the branch back."""

from __future__ import annotations

from pathlib import Path

from airflow_paimon.core.commit.committer import commit_at
from airflow_paimon.core.commit.conditions import HeadState
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, message, names


def roll_back_and_go_on(table: Table) -> None:
    table.store.delete(table.paths.snapshot(2))
    table.store.replace(table.paths.latest_hint, b"1")
    append(table, "a", seq=50)
    append(table, "a", seq=60)


def test_a_commit_does_not_go_on_with_files_that_were_rolled_back(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh", primary=False)
    append(table, "a")
    append(table, "a")
    new = message(table, "a", level=0)
    calls: list[int] = []

    def draft(at: HeadState) -> Draft:
        calls.append(at.head.id if at.head else 0)
        live = {e.identifier: e for e in at.live(at.stored.those([new.partition]))}
        if len(calls) == 1:
            roll_back_and_go_on(table)
        return Draft(
            kind=CommitKind.OVERWRITE, schema=at.schema,
            entries=[*(e.deleted() for e in live.values()), *new.entries()],
        )  # fmt: skip

    commit_at(table, draft)
    assert names(table) == {new.new_files[0].file_name}
