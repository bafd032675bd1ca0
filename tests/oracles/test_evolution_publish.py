"""Tables with data evolution: pypaimon corrects a branch, we publish its column files, and pypaimon reads them."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import ConflictError, UnsupportedFeatureError
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from tests.core.metadata_expiry.test_remove_orphan_files import clean, sound
from tests.core.tables import run
from tests.oracles.drivers import PypaimonOracle
from tests.randomness import chance, lives

OPTIONS = {
    "bucket": "-1", "row-tracking.enabled": "true", "data-evolution.enabled": "true",
    "deletion-vectors.enabled": "true",
}  # fmt: skip
TYPES = {"k": pa.int64(), "a": pa.string(), "b": pa.int64()}
BESIDE: dict[str, tuple[Any, pa.DataType, dict[str, str]]] = {
    "blob": ("BLOB", pa.large_binary(), {"blob.target-file-size": "4 b"}),
    "vector": ({"type": "VECTOR", "element": "FLOAT", "length": 3}, pa.list_(pa.float32(), 3),
               {"vector.file.format": "parquet"}),
}  # fmt: skip
"""Columns in files of their own: type, values, options. Several files of blobs lie beside one data file."""
NAME = "d.t"
LEFT_BEHIND = {
    "blob": "bucket-0/data-55f8a75d-0e93-412f-9e82-f07af265efdb-0.blob",
    "vector": "bucket-0/data-55f8a75d-0e93-412f-9e82-f07af265efdb-0.vector.parquet",
}


class Evolving:
    """A table that pypaimon writes, of k, a and b, and of ``more``: blobs or vectors."""

    def __init__(self, oracle: PypaimonOracle, warehouse: Path, more: str | None = None) -> None:
        self.oracle, self.warehouse = oracle, warehouse
        columns: dict[str, Any] = {"k": "BIGINT", "a": "STRING", "b": "BIGINT"}
        options = OPTIONS
        if more is not None:
            columns["more"] = BESIDE[more][0]
            # pypaimon writes no deletion vectors beside such files
            options = {**OPTIONS, "deletion-vectors.enabled": "false", **BESIDE[more][2]}
        oracle.create_table(warehouse, NAME, columns, options=options)
        self.names, self.more = list(columns), more

    @property
    def table(self) -> Table:
        return open_table(str(self.warehouse), NAME)

    def type(self, name: str) -> pa.DataType:
        return TYPES[name] if self.more is None or name != "more" else BESIDE[self.more][1]

    def value(self, k: int) -> Any:
        return b"p" * k if self.more == "blob" else [float(k)] * 3

    def insert(self, *keys: int, branch: str | None = None) -> None:
        values = {"k": list(keys), "a": [f"a{k}" for k in keys], "b": list(keys), "more": list(map(self.value, keys))}
        rows = pa.table({n: pa.array(values[n], self.type(n)) for n in self.names})
        self.oracle.do("write", self.warehouse, NAME, branch, path=self.oracle._put(rows))

    def update(self, ids: list[int], branch: str | None = None, **values: Any) -> None:
        new = {"_ROW_ID": pa.array(ids, pa.int64()), **{n: pa.array(v, self.type(n)) for n, v in values.items()}}
        self.oracle.do("update", self.warehouse, NAME, branch, path=self.oracle._put(pa.table(new)))

    def delete(self, ids: list[int], branch: str | None = None) -> None:
        self.oracle.do("update", self.warehouse, NAME, branch, row_ids=ids)

    def branch(self, name: str = "fix") -> None:
        run(self.table, "create_branch", branch=name, snapshot=self.table.latest_snapshot_id())

    def found(self, a: str) -> list[int]:
        rows = self.oracle.read(self.warehouse, NAME, filters=[("a", "=", a)])
        return sorted(rows["k"].to_pylist())

    def rows(self) -> list[tuple[Any, ...]]:
        """As pypaimon reads them; we read the same, where we can."""
        found = self.oracle.read(self.warehouse, NAME)
        theirs = sorted(tuple(row[n] for n in self.names) for row in found.to_pylist())
        if self.more is None:
            ours = read_arrow(self.table)
            assert sorted(tuple(row[n] for n in self.names) for row in ours.to_pylist()) == theirs
        return theirs


@pytest.fixture
def evolving(pypaimon_oracle: PypaimonOracle, tmp_path: Path) -> Evolving:
    made = Evolving(pypaimon_oracle, tmp_path)
    made.insert(1, 2, 3)
    return made


def test_columns_of_both_sides_come_together(evolving: Evolving) -> None:
    """The branch's column, main's other column, and rows that both got, whose ids on the branch main has given away."""
    evolving.insert(4)
    evolving.branch()
    evolving.update([0, 2], "fix", a=["x", "z"])
    evolving.insert(7, 8, branch="fix")
    evolving.update([5], "fix", b=[80])
    evolving.update([0, 1], b=[10, 20])
    evolving.insert(9)
    run(evolving.table, "merge_branch", branch="fix")
    assert evolving.rows() == [
        (1, "x", 10), (2, "a2", 20), (3, "z", 3), (4, "a4", 4), (7, "a7", 7), (8, "a8", 80), (9, "a9", 9),
    ]  # fmt: skip
    evolving.update([0], a=["later"])  # wins over what was published
    ids = read_arrow(evolving.table, columns=["_ROW_ID"])["_ROW_ID"].to_pylist()
    assert evolving.rows()[0] == (1, "later", 10) and sorted(ids) == list(range(7))


def test_one_column_of_the_same_rows_is_a_conflict(evolving: Evolving) -> None:
    evolving.branch()
    evolving.update([0], "fix", a=["x"])
    evolving.update([2], a=["y"])  # a file holds the column of all rows of the range
    before = evolving.table.latest_snapshot_id()
    with pytest.raises(ConflictError, match=r"d\.t: both sides changed the same columns .*: a of row ids 0 to 2"):
        run(evolving.table, "merge_branch", branch="fix")
    assert evolving.table.latest_snapshot_id() == before
    with pytest.raises(ConflictError):
        run(evolving.table, "merge_branch", branch="fix", dry_run=True)


def test_other_rows_of_the_same_column(evolving: Evolving) -> None:
    evolving.insert(4, 5)
    evolving.branch()
    evolving.update([0], "fix", a=["x"])
    evolving.update([4], a=["y"])
    run(evolving.table, "merge_branch", branch="fix")
    assert [row[1] for row in evolving.rows()] == ["x", "a2", "a3", "a4", "y"]


def test_again_and_back(evolving: Evolving) -> None:
    """Each publish brings what is new; its undo takes that away, and it can come again."""
    evolving.branch()
    evolving.update([0], "fix", a=["x"])
    run(evolving.table, "merge_branch", branch="fix")
    evolving.update([0], b=[10])
    evolving.update([1], "fix", a=["y"])
    second = run(evolving.table, "merge_branch", branch="fix")
    assert evolving.rows() == [(1, "x", 10), (2, "y", 2), (3, "a3", 3)]
    assert not run(evolving.table, "merge_branch", branch="fix").changed
    run(evolving.table, "rollback_to", tag=second.details["undo_tag"])
    assert evolving.rows() == [(1, "x", 10), (2, "a2", 2), (3, "a3", 3)]


def test_what_main_changed_after_a_publish_stays_a_conflict(evolving: Evolving) -> None:
    evolving.branch()
    evolving.update([0], "fix", a=["x"])
    run(evolving.table, "merge_branch", branch="fix")
    evolving.update([0], a=["main"])
    assert not run(evolving.table, "merge_branch", branch="fix").changed
    evolving.update([0], "fix", a=["again"])
    with pytest.raises(ConflictError, match="a of row ids 0 to 2"):
        run(evolving.table, "merge_branch", branch="fix")
    assert evolving.rows()[0] == (1, "main", 1)


def test_rows_of_the_branch_that_main_changed_after_a_publish(evolving: Evolving) -> None:
    """Their ids are others on main."""
    evolving.branch()
    evolving.insert(4, 5, branch="fix")
    evolving.insert(9)
    run(evolving.table, "merge_branch", branch="fix")
    evolving.update([4], a=["main"])
    evolving.update([3], "fix", b=[40])
    run(evolving.table, "merge_branch", branch="fix")
    assert evolving.rows()[3:5] == [(4, "main", 40), (5, "a5", 5)]
    evolving.update([4], "fix", a=["branch"])
    with pytest.raises(ConflictError, match="a of row ids 4 to 5"):
        run(evolving.table, "merge_branch", branch="fix")


@pytest.mark.parametrize("operation", ["merge_branch", "fast_forward"])
def test_columns_of_rows_that_came_from_the_branch_before_its_rebase_are_refused(
    evolving: Evolving, operation: str
) -> None:
    """Their file is on main by the name that it has on the new branch, with other row ids than its ids become."""
    evolving.branch()
    evolving.insert(4, 5, branch="fix")
    run(evolving.table, "rebase_branch", branch="fix", to_branch="again")
    run(evolving.table, "merge_branch", branch="fix")
    evolving.update([0, 4], "again", b=[10, 50])
    evolving.insert(9)
    before = evolving.rows()
    with pytest.raises(ConflictError, match="came to main from another branch"):
        run(evolving.table, operation, branch="again", **({"discard_main": True} if "fast" in operation else {}))
    assert evolving.rows() == before


@pytest.mark.parametrize("kind", ["btree", "bitmap"])
def test_an_index_of_main_goes_where_the_branch_changed_rows(evolving: Evolving, kind: str) -> None:
    """Built by pypaimon, which answers by it."""
    evolving.branch()
    evolving.update([0], "fix", a=["x"])
    evolving.oracle.do("index", evolving.warehouse, NAME, column="a", type=kind)
    assert evolving.found("a1") == [1] and len(indexes(evolving.table)) == 1
    evolving.insert(6, branch="fix")
    run(evolving.table, "merge_branch", branch="fix")
    assert indexes(evolving.table) == []
    assert (evolving.found("a1"), evolving.found("x"), evolving.found("a6")) == ([], [1], [6])


def test_an_index_of_main_stays_where_rows_only_came(evolving: Evolving) -> None:
    evolving.oracle.do("index", evolving.warehouse, NAME, column="a", type="btree")
    evolving.branch()
    evolving.insert(6, branch="fix")
    run(evolving.table, "merge_branch", branch="fix")
    assert indexes(evolving.table) == ["btree"] and evolving.found("a1") == [1]


def test_several_changes_of_one_column_keep_their_order(evolving: Evolving) -> None:
    evolving.branch()
    evolving.update([0], "fix", a=["x"])
    evolving.update([0], "fix", a=["y"])
    with pytest.raises(UnsupportedFeatureError, match=r"d\.t: the branch changed columns .* in 2 commits"):
        run(evolving.table, "merge_branch", branch="fix")
    with pytest.raises(UnsupportedFeatureError, match=r"in 2 commits"):
        run(evolving.table, "rebase_branch", branch="fix", to_branch="again")
    assert evolving.table.branch_names() == ["fix"]
    evolving.insert(4)
    run(evolving.table, "merge_branch", branch="fix")
    assert [row[1] for row in evolving.rows()] == ["y", "a2", "a3", "a4"]


def test_new_rows_that_the_branch_changed_again(evolving: Evolving) -> None:
    evolving.branch()
    evolving.insert(4, 5, branch="fix")
    evolving.update([4], "fix", a=["x"])
    run(evolving.table, "merge_branch", branch="fix")
    assert [row[1] for row in evolving.rows()] == ["a1", "a2", "a3", "a4", "x"]


def test_deleted_rows_and_changed_columns(evolving: Evolving) -> None:
    """A deletion vector is of the range's first file, and changes no column."""
    evolving.branch()
    evolving.delete([1], "fix")
    evolving.update([0, 1], a=["x", "y"])
    run(evolving.table, "merge_branch", branch="fix")
    assert evolving.rows() == [(1, "x", 1), (3, "a3", 3)]


def test_fast_forward(evolving: Evolving) -> None:
    evolving.branch()
    evolving.update([0], "fix", a=["x"])
    evolving.insert(6, branch="fix")
    run(evolving.table, "fast_forward", branch="fix")
    assert evolving.rows() == [(1, "x", 1), (2, "a2", 2), (3, "a3", 3), (6, "a6", 6)]


def test_fast_forward_discards_columns_of_main(evolving: Evolving) -> None:
    evolving.branch()
    evolving.update([0], "fix", a=["x"])
    evolving.update([1], "fix", a=["y"])
    evolving.delete([2], "fix")
    evolving.update([0, 1], a=["main", "main"])
    evolving.insert(9)
    run(evolving.table, "fast_forward", branch="fix", discard_main=True)
    assert evolving.rows() == [(1, "x", 1), (2, "y", 2)]
    evolving.update([0], a=["later"])
    assert evolving.rows()[0] == (1, "later", 1)


@pytest.mark.parametrize("more", BESIDE)
def test_files_beside_the_data_are_published_rolled_back_and_no_orphans(
    pypaimon_oracle: PypaimonOracle, tmp_path: Path, more: str
) -> None:
    evolving = Evolving(pypaimon_oracle, tmp_path, more)
    evolving.insert(1, 2)
    if more == "blob":
        assert sum(path.endswith(".blob") for path in evolving.table.store.walk("")) == 2
    evolving.branch()
    evolving.insert(4, 5, branch="fix")
    evolving.update([0], "fix", a=["x"])
    evolving.insert(9)
    first = evolving.rows()
    published = run(evolving.table, "merge_branch", branch="fix")
    after = evolving.rows()
    value = evolving.value
    assert after == [(1, "x", 1, value(1)), *((k, f"a{k}", k, value(k)) for k in (2, 4, 5, 9))]
    run(evolving.table, "rollback_to", tag=published.details["undo_tag"])
    assert evolving.rows() == first
    run(evolving.table, "rollback_to", snapshot=published.snapshot_after)
    assert evolving.rows() == after
    left = LEFT_BEHIND[more]
    evolving.table.store.create(left, b"left by a writer")
    time.sleep(0.01)
    run(evolving.table, "expire_snapshots", retain_min=1, retain_max=1, older_than="0 s", grace="0 s",
        writers_stopped=True, keep_undo=False)  # fmt: skip
    assert clean(evolving.table).details["files"] == 1
    assert left not in evolving.table.store.walk("")
    assert evolving.rows() == after
    assert read_ids(pypaimon_oracle, tmp_path) == [0, 1, 2, 3, 4]
    sound(evolving.table)


def indexes(table: Table) -> list[str]:
    return [e.index_type for e in read_index_entries(table, table.latest_snapshot())]


def read_ids(oracle: PypaimonOracle, warehouse: Path) -> list[int]:
    return sorted(oracle.read(warehouse, NAME, columns=["k", "_ROW_ID"])["_ROW_ID"].to_pylist())


Rows = dict[int, dict[str, Any]]


class Life:
    """Both sides change rows; each publish is expected to bring what the branch changed since the one before."""

    def __init__(self, evolving: Evolving, chance: random.Random) -> None:
        self.evolving, self.chance = evolving, chance
        self.following = 1
        self.rows: dict[str | None, Rows] = {None: {}}
        self.insert(None)
        self.insert(None)
        evolving.branch()
        self.rows["fix"] = {k: dict(row) for k, row in self.rows[None].items()}
        self.published = {k: dict(row) for k, row in self.rows[None].items()}

    def step(self) -> None:
        branch = self.chance.choice([None, "fix"])
        what = self.chance.choice(["insert", "update", "update", "update", "delete"])
        ids = self.ids(branch)
        if what == "insert" or len(ids) < 2:
            self.insert(branch)
            return
        keys = sorted(self.chance.sample(sorted(ids), self.chance.randint(1, 2)))
        if what == "delete":
            self.evolving.delete([ids[k] for k in keys], branch)
            for k in keys:
                del self.rows[branch][k]
            return
        column = self.chance.choice(["a", "b"])
        number = self.chance.randrange(10_000)
        values = [number + i if column == "b" else f"v{number + i}" for i in range(len(keys))]
        self.evolving.update([ids[k] for k in keys], branch, **{column: values})
        for k, value in zip(keys, values, strict=True):
            self.rows[branch][k][column] = value

    def insert(self, branch: str | None) -> None:
        keys = list(range(self.following, self.following + self.chance.randint(1, 3)))
        self.following += len(keys)
        self.evolving.insert(*keys, branch=branch)
        self.rows[branch] |= {k: {"k": k, "a": f"a{k}", "b": k} for k in keys}

    def ids(self, branch: str | None) -> dict[int, int]:
        view = self.evolving.table.branch(branch or "main")
        found = read_arrow(view, columns=["k", "_ROW_ID"]).to_pylist()
        return {row["k"]: row["_ROW_ID"] for row in found}

    def publish(self) -> bool:
        """Return whether it was not refused; a refusal changes nothing."""
        try:
            run(self.evolving.table, "merge_branch", branch="fix")
        except (ConflictError, UnsupportedFeatureError):
            self.check()
            return False
        main, fix, before = self.rows[None], self.rows["fix"], self.published
        for k, row in fix.items():
            if k not in before:
                main[k] = dict(row)
            elif k in main:
                main[k] |= {n: value for n, value in row.items() if value != before[k][n]}
        for k in before.keys() - fix.keys():
            main.pop(k, None)
        self.published = {k: dict(row) for k, row in fix.items()}
        self.check()
        return True

    def check(self) -> None:
        assert self.evolving.rows() == sorted(tuple(row.values()) for row in self.rows[None].values())
        ids = self.ids(None)
        assert len(set(ids.values())) == len(ids) == len(self.rows[None])


@pytest.mark.random
def test_random_lives(pypaimon_oracle: PypaimonOracle, tmp_path: Path) -> None:
    for number in range(lives(2, 20)):
        life = Life(Evolving(pypaimon_oracle, tmp_path / str(number)), chance(number))
        for _ in range(4):
            for _ in range(life.chance.randint(1, 3)):
                life.step()
            if not life.publish():
                break
