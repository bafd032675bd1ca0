"""The stores that tests and benchmarks use must themselves be right: a fault that never fires proves nothing."""

import errno
import pickle
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import AlreadyExistsError, ConflictError, OutcomeUnknownError, StorageError
from airflow_paimon.core.store import Store
from airflow_paimon.core.store.memory import MemoryStore
from tests.core.store.contract import StoreContract
from tests.stores import CountingStore, Crash, FaultStore


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    store = MemoryStore(f"test-{uuid.uuid4().hex}")
    yield store
    store.clear()


class TestCountingStore(StoreContract):
    @pytest.fixture
    def store(self, memory: MemoryStore) -> Store:
        return CountingStore(memory)


class TestFaultStoreThatNeverFails(StoreContract):
    @pytest.fixture
    def store(self, memory: MemoryStore) -> Store:
        return FaultStore(memory)


def test_counts(memory: MemoryStore) -> None:
    store = CountingStore(memory)
    tally = store.tally
    store.child("a").create("x", b"12345")
    store.replace("y", b"123")
    with store.open_output("z") as stream:
        stream.write(b"12")
    assert (tally.bytes_written, tally.bytes_read, tally.requests) == (10, 0, 3)
    tally.reset()
    store.read("y")
    store.read_many(["y", "y", "a/x"])
    store.names("")
    store.list("")
    store.walk("")
    store.exists("y")
    with store.open_input("y") as source:
        source.read(2)
    assert tally.calls == dict.fromkeys(["read", "read_many", "names", "list", "walk", "exists", "open_input"], 1)
    assert (tally.bytes_written, tally.bytes_read, tally.requests) == (0, 16, 9)
    assert tally.log[0] == ("read", f"{memory.uri}/y")


def test_failed_calls_count_as_requests(memory: MemoryStore) -> None:
    store = CountingStore(memory)
    store.create("x", b"1")
    with pytest.raises(AlreadyExistsError):
        store.create("x", b"2")
    assert (store.tally.calls["create"], store.tally.bytes_written) == (2, 1)


def test_bytes_of_parquet_are_what_was_needed(memory: MemoryStore) -> None:
    store = CountingStore(memory)
    table = pa.table({"a": range(100_000), "b": range(100_000)})
    with store.open_output("data") as stream:
        pq.write_table(table, stream, compression="none", use_dictionary=False)
    size = len(memory.read("data"))
    assert store.tally.bytes_written == size
    with store.open_input("data") as source:
        pq.read_table(source, columns=["a"])
    assert size / 3 < store.tally.bytes_read < size * 2 / 3


def steps(store: Store) -> None:
    """Do one of each mutation, as a committer would: each needs the one before."""
    child = store.child("t")
    with child.open_output("data") as stream:
        stream.write(b"rows")
    child.create("snapshot-1", b"1")
    child.replace("LATEST", b"1")
    child.create("tmp/x", b"1")
    child.delete("data")
    child.delete("tmp/x")


STATES: list[list[str]] = [
    [],
    ["data"],
    ["data", "snapshot-1"],
    ["LATEST", "data", "snapshot-1"],
    ["LATEST", "data", "snapshot-1", "tmp/x"],
    ["LATEST", "snapshot-1", "tmp/x"],
    ["LATEST", "snapshot-1"],
]


def test_mutations_are_recorded(memory: MemoryStore) -> None:
    store = FaultStore(memory)
    steps(store)
    assert [method for method, _ in store.mutations] == [
        "open_output",
        "create",
        "replace",
        "create",
        "delete",
        "delete",
    ]
    assert store.mutations[1] == ("create", f"{memory.uri}/t/snapshot-1")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, len(STATES)))
def test_crash_at_every_mutation(memory: MemoryStore, at: int, after: bool) -> None:
    store = FaultStore(memory, at, after=after)
    with pytest.raises(Crash, match=f"mutation {at}"):
        steps(store)
    assert memory.child("t").walk("") == STATES[at if after else at - 1]
    assert len(store.mutations) == at


def test_a_dead_process_writes_nothing(memory: MemoryStore) -> None:
    memory.create("x", b"1")
    store = FaultStore(memory, 1)
    child = store.child("sub")
    with pytest.raises(Crash):
        store.create("y", b"1")
    calls: list[Callable[[], Any]] = [
        lambda: store.read("x"),
        lambda: store.delete("x"),
        lambda: child.list(""),
        lambda: child.create("z", b"1"),
        lambda: store.open_output("z"),
    ]
    for call in calls:
        with pytest.raises(Crash):
            call()
    assert memory.walk("") == ["x"]


def test_system_errors_are_what_a_real_store_makes_of_them_once(memory: MemoryStore) -> None:
    store = FaultStore(memory, 1, error=OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(StorageError, match=r"No space left for creating memory://.*/x"):
        store.create("x", b"1")
    store.create("x", b"1")
    denied = FaultStore(memory, 1, error=PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(StorageError, match="Permission denied for deleting"):
        denied.delete("x")
    assert memory.exists("x")
    unknown = FaultStore(memory, 1, error=TimeoutError(errno.ETIMEDOUT, "timed out"), after=True)
    with pytest.raises(OutcomeUnknownError, match="may have taken effect"):
        unknown.delete("x")
    assert not memory.exists("x")


def test_other_errors_are_raised_as_they_are(memory: MemoryStore) -> None:
    store = FaultStore(memory, 2, error=ConflictError("moved"))
    store.create("x", b"1")
    with pytest.raises(ConflictError, match="moved"):
        store.create("y", b"1")
    store.create("y", b"1")


def test_a_competing_writer_comes_in_between(memory: MemoryStore) -> None:
    def compete(method: str, path: str) -> None:
        if (method, path) == ("create", "snapshot-2"):
            memory.create("snapshot-2", b"theirs")

    store = FaultStore(memory, on_mutation=compete)
    store.create("snapshot-1", b"ours")
    with pytest.raises(AlreadyExistsError):
        store.create("snapshot-2", b"ours")
    assert memory.read("snapshot-2") == b"theirs"


def test_pickled_fault_store_still_fails(memory: MemoryStore) -> None:
    copy = pickle.loads(pickle.dumps(FaultStore(memory, 1, after=True)))
    with pytest.raises(Crash):
        copy.create("x", b"1")
    assert memory.exists("x")
