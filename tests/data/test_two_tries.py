"""Two living tries of one operation: one of them publishes, and both give its result."""

from __future__ import annotations

import errno
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.idempotency import REFUSALS, Attempt, attempt
from airflow_paimon.core.errors import ConflictError, InvalidInputError, OutcomeUnknownError, PaimonError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.data_file_paths import bucket_folder
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.drop import drop_partitions
from tests.core.tables import run
from tests.randomness import moments
from tests.stores import CountingStore, Crash, FaultStore

T = TypeVar("T")
ROWS = pa.table({"k": pa.array([1, 2], pa.int32())})


class _Interrupted(CountingStore):
    """Lets somebody else run right before the first snapshot is put."""

    def __init__(self, inner: Any, other: Callable[[], object]) -> None:
        super().__init__(inner)
        self._other: Callable[[], object] | None = other

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        other = self._other
        if other is not None and method == "create" and path.startswith("snapshot/"):
            self._other = None
            other()
        return super()._call(method, path, action)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return create_table(str(tmp_path / "wh"), "d.t", [("k", "INT")], options={"bucket": "-1"})


def data_files(table: Table) -> list[str]:
    return [n for n in table.store.names(bucket_folder(table.schema(), (), 0)) if n.startswith("data-")]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_try_that_comes_second_gives_the_others_commit(table: Table, mode: str) -> None:
    done: list[dict[str, Any]] = []
    slow = Table(
        _Interrupted(table.store, lambda: done.append(write_arrow(table, ROWS, mode=mode, operation_id="op"))),
        table.name,
    )
    late = write_arrow(slow, ROWS, mode=mode, operation_id="op")
    (first,) = done
    assert late["snapshot_after"] == first["snapshot_after"] == table.latest_snapshot_id() == 1
    assert sorted(read_arrow(table).column("k").to_pylist()) == [1, 2]
    assert len(data_files(table)) == 1, "the files of the slower try are gone"


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_write_that_is_killed_between_any_two_store_calls_is_done_once(mode: str, after: bool) -> None:
    for step in moments(40, 3):
        table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", [("k", "INT")], options={"bucket": "-1"})
        write_arrow(table, pa.table({"k": pa.array([0], pa.int32())}))
        faulty = Table(FaultStore(table.store, step, after=after), table.name)
        try:
            write_arrow(faulty, ROWS, mode=mode, operation_id="op")
            crashed = False
        except Crash:
            crashed = True
        wanted = [0, 1, 2] if mode == "append" else [1, 2]
        assert sorted(read_arrow(table).column("k").to_pylist()) in ([0], wanted)
        assert write_arrow(table, ROWS, mode=mode, operation_id="op")["snapshot_after"] == 2
        assert sorted(read_arrow(table).column("k").to_pylist()) == wanted
        assert table.snapshot_ids() == [1, 2]
        if not crashed:
            return
    raise AssertionError("40 steps were not enough")


def rolled_back(table: Table) -> None:
    """As another engine does it: the snapshots after the second one go."""
    for number in table.snapshot_ids()[2:]:
        table.store.delete(table.paths.snapshot(number))
    table.store.replace(table.paths.latest_hint, b"2")


def one_row(k: int) -> pa.Table:
    return pa.table({"k": pa.array([k], pa.int32())})


def write_beside_a_rollback_and_crash(table: Table) -> None:
    """Roll back while operation ``op`` writes its rows; it is killed right after its commit."""

    def meddle(method: str, path: str) -> None:
        if path.startswith("manifest/") and table.latest_snapshot_id() == 4:
            rolled_back(table)
        if method == "replace" and path.endswith("LATEST"):
            raise Crash

    with pytest.raises(Crash):
        write_arrow(Table(FaultStore(table.store, on_mutation=meddle), table.name), ROWS, operation_id="op")


@pytest.mark.parametrize("later", [0, 5], ids=["shorter", "as long again"])
def test_a_retry_finds_its_commit_below_the_head_at_which_it_began(table: Table, later: int) -> None:
    for k in range(10, 14):
        write_arrow(table, one_row(k))

    write_beside_a_rollback_and_crash(table)
    for k in range(20, 20 + later):
        write_arrow(table, one_row(k))
    assert write_arrow(table, ROWS, operation_id="op")["snapshot_after"] == 3
    assert sorted(read_arrow(table).column("k").to_pylist()) == [1, 2, 10, 11, *range(20, 20 + later)]


def test_what_came_before_a_head_that_has_expired_is_unknown(table: Table) -> None:
    """The first try's commit has got an id below it, after a rollback, and has expired as well."""
    for k in range(10, 14):
        write_arrow(table, one_row(k))

    write_beside_a_rollback_and_crash(table)
    for k in range(20, 23):
        write_arrow(table, one_row(k))
    for number in range(1, 5):
        table.store.delete(table.paths.snapshot(number))
    with pytest.raises(OutcomeUnknownError, match="snapshot 4, which would show it, has expired"):
        write_arrow(table, ROWS, operation_id="op")
    assert sorted(read_arrow(table).column("k").to_pylist()) == [1, 2, 10, 11, 20, 21, 22]


def test_a_slow_try_finds_the_others_commit_below_the_head_at_which_it_began(table: Table) -> None:
    for k in range(10, 14):
        write_arrow(table, one_row(k))

    def other() -> None:
        rolled_back(table)
        write_arrow(table, ROWS, operation_id="op")

    slow = Table(_Interrupted(table.store, other), table.name)
    assert write_arrow(slow, ROWS, operation_id="op")["snapshot_after"] == table.latest_snapshot_id() == 3
    assert sorted(read_arrow(table).column("k").to_pylist()) == [1, 2, 10, 11]


def test_a_record_that_a_second_try_relies_on_stays(table: Table) -> None:
    with attempt(table, "op", "main", "asked") as first, attempt(table, "op", "main", "asked") as second:
        assert (first.retried, second.retried) == (False, True)
        first.forget()  # the first try is refused, the second one goes on
    with attempt(table, "op", "main", "asked") as third:
        assert third.retried
    with pytest.raises(InvalidInputError, match="another request"), attempt(table, "op", "main", "something else"):
        pass


def test_of_three_overlapping_tries_the_third_finds_what_the_second_commits(table: Table) -> None:
    """The second one begins at the moment at which the first one, which is refused, gives its record up."""
    others: list[Any] = []

    def begin(method: str, path: str) -> None:
        if path.startswith("_airflow_paimon/") and first.tried and not others:
            others.append(attempt(table, "op", "main", "asked"))
            first.second = others[0].__enter__()

    first = _Overlapping()
    slow = Table(FaultStore(table.store, on_mutation=begin), table.name)
    with pytest.raises(ConflictError), attempt(slow, "op", "main", "asked"):
        first.tried = True
        raise ConflictError("refused")
    assert first.second is not None
    write_arrow(table, ROWS)  # stands for the second try's commit
    with attempt(table, "op", "main", "asked") as third:
        assert (third.retried, third.head, third.number) == (True, first.second.head, first.second.number)


class _Overlapping:
    tried = False
    second: Attempt | None = None


def test_a_refusal_is_reported_although_its_record_can_not_be_given_up(table: Table) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    slow = Table(FaultStore(table.store, 2, error=full), table.name)
    with pytest.raises(ConflictError, match="refused"), attempt(slow, "op", "main", "asked"):
        raise ConflictError("refused")
    with attempt(table, "op", "main", "asked") as again:
        assert again.retried


@pytest.mark.parametrize("kind", REFUSALS)
def test_the_record_of_a_refused_first_try_goes(table: Table, kind: type[PaimonError]) -> None:
    with pytest.raises(kind), attempt(table, "op", "main", "asked"):
        raise kind("refused")
    with attempt(table, "op", "main", "something else") as again:
        assert not again.retried


@pytest.mark.parametrize("error", [OutcomeUnknownError("?"), ConflictError("", details={"done": ["dt=a"]}), Crash()])
def test_the_record_of_what_may_have_committed_stays(table: Table, error: BaseException) -> None:
    with pytest.raises(type(error)), attempt(table, "op", "main", "asked"):
        raise error
    with attempt(table, "op", "main", "asked") as again:
        assert again.retried


def test_a_record_of_an_earlier_version_is_understood(table: Table) -> None:
    """Without the digest of the rows, as it was written before there was one."""
    write_arrow(table, ROWS, operation_id="op")
    (path,) = table.store.walk("_airflow_paimon/operations")
    record = json.loads(table.store.read(path))
    del record["content"]
    table.store.replace(path, json.dumps(record).encode())
    assert write_arrow(table, ROWS, operation_id="op")["snapshot_after"] == 1


# -- the same id with other rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "overwrite", "dynamic_overwrite"])
def test_the_same_id_with_other_rows_of_the_same_shape_is_refused(table: Table, mode: str) -> None:
    write_arrow(table, ROWS, mode=mode, operation_id="op")
    with pytest.raises(InvalidInputError, match="used for other rows"):
        write_arrow(table, pa.table({"k": pa.array([3, 4], pa.int32())}), mode=mode, operation_id="op")
    assert sorted(read_arrow(table).column("k").to_pylist()) == [1, 2]
    assert write_arrow(table, ROWS, mode=mode, operation_id="op")["snapshot_after"] == 1


def test_the_same_id_with_other_row_kinds_is_refused(tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.t", [("k", "INT NOT NULL")], primary_keys=["k"], options={"bucket": "1"})
    upsert = ROWS.append_column("_row_kind", pa.array(["+I", "+I"]))
    write_arrow(table, upsert, operation_id="op")
    with pytest.raises(InvalidInputError, match="used for other rows"):
        write_arrow(table, ROWS.append_column("_row_kind", pa.array(["+I", "-D"])), operation_id="op")
    with pytest.raises(InvalidInputError, match="used for other rows"):  # of rows with one key the last wins
        write_arrow(table, upsert.take([1, 0]), operation_id="op")
    assert write_arrow(table, pa.concat_tables([upsert[:1], upsert[1:]]), operation_id="op")["snapshot_after"] == 1


@pytest.mark.parametrize("write", [write_arrow, lambda view, _, **given: drop_partitions(view, [{"p": "a"}], **given)])
def test_the_same_id_on_another_branch_is_refused(tmp_path: Path, write: Callable[..., Any]) -> None:
    """It was answered with the other branch's snapshot, and nothing was written."""
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("p", "STRING")], partition_keys=["p"])
    rows = ROWS.append_column("p", pa.array(["a", "a"]))
    write_arrow(table, rows)
    run(table, "create_tag", tag="base")
    run(table, "create_branch", branch="fix", tag="base")
    first = write(table, rows, operation_id="op")
    with pytest.raises(InvalidInputError, match="'op' was used for branch 'main'; nothing was written to branch 'fix'"):
        write(table.branch("fix"), rows, operation_id="op")
    assert read_arrow(table.branch("fix")).num_rows == 2
    assert write(table, rows, operation_id="op")["snapshot_after"] == first["snapshot_after"]
