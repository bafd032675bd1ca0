"""create_database and drop_database of a warehouse that is its own catalog; servers are tested with their catalogs."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_paimon import create_database, create_table, drop_database
from airflow_paimon.cli.main import run
from airflow_paimon.core.errors import AlreadyExistsError, UnsafeOperationError
from airflow_paimon.core.store import open_store
from tests.core.catalogs.databases import check_databases


def test_databases_of_a_local_warehouse(tmp_path: Path) -> None:
    check_databases(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["other.db"]


def test_databases_of_a_storage_of_objects() -> None:
    check_databases("memory://databases")
    assert {i.name for i in open_store("memory://databases").list("")} == {"other.db"}


def test_a_database_that_another_engine_made_is_one_and_what_is_in_it_stays(tmp_path: Path) -> None:
    (tmp_path / "d.db" / "gone").mkdir(parents=True)
    with pytest.raises(AlreadyExistsError):
        create_database(str(tmp_path), "d")
    (tmp_path / "d.db" / "notes.txt").write_text("keep")
    (tmp_path / "d.db" / "gone").rmdir()
    with pytest.raises(UnsafeOperationError, match=r"contains 1 files, such as d\.db/notes\.txt"):
        drop_database(str(tmp_path), "d")
    assert (tmp_path / "d.db" / "notes.txt").read_text() == "keep"
    (tmp_path / "d.db" / "notes.txt").unlink()
    assert drop_database(str(tmp_path), "d") and not (tmp_path / "d.db").exists()
    create_database(str(tmp_path), "d")
    create_table(str(tmp_path), "d.t", [("k", "BIGINT")])


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--warehouse", str(tmp_path)]
    assert run(["create-database", *at, "d"]) == 0
    assert run(["create-database", *at, "d"]) == 2
    assert run(["create-database", *at, "--if-exists", "skip", "d"]) == 0
    assert run(["databases", *at]) == 0
    assert run(["drop-database", *at, "d"]) == 0
    assert run(["drop-database", *at, "d"]) == 2
    assert run(["drop-database", *at, "--if-missing", "skip", "d"]) == 0
    shown = capsys.readouterr()
    assert "Database d created" in shown.out and "Database d dropped" in shown.out
    assert "already-exists" in shown.err and "not-found" in shown.err
