"""Symbolic links below a table's folder: nothing behind them is deleted, replaced, shown or passed over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, overwrite, run

AT_ONCE = {"older_than": "0 s", "retain_min": 1, "retry_window": "0 s", "grace": "0 s", "writers_stopped": True}


def folder(table: Table) -> Path:
    return Path(table.store.uri.removeprefix("file://"))


def content(at: Path) -> dict[Path, bytes | None]:
    return {p: None if p.is_symlink() or p.is_dir() else p.read_bytes() for p in sorted(at.rglob("*"))}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """The first file of main is to expire, and branch ``fix`` has a commit."""
    table = make_table(tmp_path / "wh", primary=False)
    append(table, "a")
    overwrite(table, "a")
    run(table, "create_tag", tag="x")
    run(table, "create_branch", branch="fix", tag="x")
    append(table.branch("fix"), "b")
    return table


@pytest.mark.damages_metadata
@pytest.mark.parametrize(
    ("link", "operation", "values"),
    [
        ("branch/branch-fix", "delete_branch", {"branch": "fix", "force": True}),
        ("branch/branch-fix/snapshot", "delete_branch", {"branch": "fix", "force": True}),
        ("branch/branch-fix/snapshot", "rename_branch", {"branch": "fix", "to_branch": "other"}),
        ("branch/branch-fix/changelog", "rename_branch", {"branch": "fix", "to_branch": "other"}),
        ("dt=a/bucket-0", "expire_snapshots", AT_ONCE),
        ("dt=a", "expire_snapshots", AT_ONCE),
        ("branch/branch-fix", "expire_snapshots", AT_ONCE),
        ("branch", "remove_orphan_files", {"dry_run": True}),
        ("snapshot/LATEST", "check_table", {}),
        ("tag/tag-x", "delete_tag", {"tag": "x"}),
    ],
)
def test_what_would_lead_through_a_link_is_refused_and_changes_nothing(
    table: Table, tmp_path: Path, link: str, operation: str, values: dict[str, object]
) -> None:
    at = folder(table) / link
    at.mkdir(exist_ok=True) if not at.exists() else None
    moved = tmp_path / "outside" / at.name
    moved.parent.mkdir()
    shutil.move(at, moved)
    if moved.is_file():
        moved.write_bytes(moved.read_bytes() if operation == "delete_tag" else b"a secret")
    at.symlink_to(moved)
    before = content(tmp_path / "outside"), content(tmp_path / "wh")
    with pytest.raises(UnsafeOperationError, match=f"{link} is a symbolic link") as refused:
        run(table, operation, **values)
    assert "secret" not in str(refused.value)
    assert (content(tmp_path / "outside"), content(tmp_path / "wh")) == before
