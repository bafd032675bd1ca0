"""The error of a missing table says which part of its address is wrong: the warehouse, the database or the table."""

import dataclasses
from pathlib import Path

import pytest

from airflow_paimon import open_table
from airflow_paimon.core.catalogs.filesystem import FilesystemCatalog
from airflow_paimon.core.errors import NotFoundError, StorageError
from airflow_paimon.core.store.local import LocalStore
from tests.core.tables import make_table


@pytest.mark.parametrize(
    ("warehouse", "name", "says"),
    [
        (
            "lake",
            "d.none",
            "There is no table d.none at file://{}/lake/d.db/none; python -m airflow_paimon tables lists",
        ),
        ("lake", "e.t", "There is no table e.t: warehouse file://{}/lake has no database 'e' (it has d)"),
        ("lake", "e.t$branch_b", "There is no table e.t: warehouse file://{}/lake has no database 'e'"),
        ("leak", "d.t", "There is no table d.t: warehouse file://{}/leak doesn't exist or has no database; check"),
    ],
)
def test_the_wrong_part_is_named(tmp_path: Path, warehouse: str, name: str, says: str) -> None:
    make_table(tmp_path / "lake")
    with pytest.raises(NotFoundError) as raised:
        open_table(str(tmp_path / warehouse), name).require()
    assert raised.value.message.startswith(says.format(tmp_path))


class Unlistable(LocalStore):
    def list(self, path: str) -> list:  # type: ignore[type-arg]
        raise StorageError(f"Listing {path!r} failed: access denied")


def test_a_warehouse_that_may_not_be_listed_hides_nothing(tmp_path: Path) -> None:
    table = make_table(tmp_path).branch("main")
    missing = dataclasses.replace(
        table, store=LocalStore(tmp_path / "x.db/t"), catalog=FilesystemCatalog(Unlistable(tmp_path))
    )
    with pytest.raises(NotFoundError, match=r"There is no table d\.t at "):
        missing.require()
