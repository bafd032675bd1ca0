"""Stores that stand in front of another one, for tests and benchmarks: one counts, one crashes or fails on purpose."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar

from airflow_paimon.core.store.base import FileInfo, Store, join
from airflow_paimon.core.store.failures import from_os_error
from airflow_paimon.core.store.wrapper import StoreWrapper

T = TypeVar("T")
MUTATIONS = frozenset({"create", "replace", "delete", "delete_empty", "open_output"})


def delete_tree(store: Store, folder: str) -> None:
    """Delete a folder with all that is in it, as another engine does."""
    for path in store.walk(folder):
        store.delete(path)
    store.delete_empty(folder)


class Crash(BaseException):
    """The process "died" here. No ``Exception``, so that no handler but the test's swallows it."""


class _Wrapper(StoreWrapper):
    """Forward every call through ``_call(method, path, action)``."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        return action()

    def read(self, path: str) -> bytes:
        return self._call("read", path, lambda: self.inner.read(path))

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return self._call("read_many", ", ".join(paths), lambda: self.inner.read_many(paths))

    def exists(self, path: str) -> bool:
        return self._call("exists", path, lambda: self.inner.exists(path))

    def names(self, path: str) -> list[str]:
        return self._call("names", path, lambda: self.inner.names(path))

    def names_if_few(self, path: str) -> list[str] | None:
        return self._call("names", path, lambda: self.inner.names_if_few(path))

    def walk(self, path: str) -> list[str]:
        return self._call("walk", path, lambda: self.inner.walk(path))

    def files(self, path: str) -> Sequence[FileInfo]:
        return self._call("files", path, lambda: self.inner.files(path))

    def files_in_parts(self, path: str) -> Iterator[Sequence[FileInfo]]:
        if type(self).files is not _Wrapper.files:  # a test's own
            return iter([self.files(path)])
        return self._call("files", path, lambda: self.inner.files_in_parts(path))

    def divided(self, path: str) -> tuple[Sequence[str], Sequence[FileInfo]]:
        if type(self).list is not _Wrapper.list:  # a test's own
            return Store.divided(self, path)
        return self._call("list", path, lambda: self.inner.divided(path))

    def list(self, path: str) -> list[FileInfo]:
        return self._call("list", path, lambda: self.inner.list(path))

    def create(self, path: str, data: bytes) -> None:
        self._call("create", path, lambda: self.inner.create(path, data))

    def replace(self, path: str, data: bytes) -> None:
        self._call("replace", path, lambda: self.inner.replace(path, data))

    def delete(self, path: str) -> None:
        self._call("delete", path, lambda: self.inner.delete(path))

    def delete_same(self, path: str, data: bytes) -> bool | None:
        return self._call("delete", path, lambda: self.inner.delete_same(path, data))

    def replace_same(self, path: str, data: bytes, expected: bytes) -> bool | None:
        return self._call("replace", path, lambda: self.inner.replace_same(path, data, expected))

    def delete_empty(self, path: str) -> None:
        self._call("delete_empty", path, lambda: self.inner.delete_empty(path))

    def open_input(self, path: str) -> Any:
        return self._call("open_input", path, lambda: self.inner.open_input(path))

    def open_output(self, path: str) -> BinaryIO:
        return self._call("open_output", path, lambda: self.inner.open_output(path))


class Tally:
    """What a ``CountingStore`` and its children have been asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self.calls: Counter[str] = Counter()
            self.requests = 0
            self.bytes_read = 0
            self.bytes_written = 0
            self.log: list[tuple[str, str]] = []

    def add(self, method: str = "", uri: str = "", *, requests: int = 0, read: int = 0, written: int = 0) -> None:
        with self._lock:
            if method:
                self.calls[method] += 1
                self.log.append((method, uri))
            self.requests += requests
            self.bytes_read += read
            self.bytes_written += written


class CountingStore(_Wrapper):
    """Count calls by method (``tally.calls``), requests and bytes; children count into the same tally.

    ``tally.requests`` counts an object of ``read_many`` and every other call as one, so it is what a poke costs.
    Bytes include what is read and written through open files. A pickled copy starts with a tally of its own.
    """

    def __init__(self, inner: Store, tally: Tally | None = None) -> None:
        super().__init__(inner)
        self.tally = tally or Tally()

    def __reduce__(self) -> tuple[Any, ...]:
        kept = () if type(self.tally) is Tally else (self.tally,)
        return CountingStore, (self.inner, *kept)

    def child(self, path: str) -> CountingStore:
        return CountingStore(self.inner.child(path), self.tally)

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        if method != "read_many":
            self.tally.add(method, join(self.uri, path), requests=1)
        return action()

    def read(self, path: str) -> bytes:
        data = super().read(path)
        self.tally.add(read=len(data))
        return data

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        self.tally.add("read_many", join(self.uri, ", ".join(paths)), requests=len(paths))
        found = super().read_many(paths)
        self.tally.add(read=sum(map(len, found)))
        return found

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        self.tally.add(written=len(data))

    def replace(self, path: str, data: bytes) -> None:
        super().replace(path, data)
        self.tally.add(written=len(data))

    def open_input(self, path: str) -> Any:
        return _CountedInput(super().open_input(path), self.tally)

    def open_output(self, path: str) -> BinaryIO:
        return _WatchedOutput(super().open_output(path), wrote=lambda size: self.tally.add(written=size))  # type: ignore[return-value]


class Far(CountingStore):
    """A folder that is used as a remote storage is."""

    remote = True


class RivalledStore(CountingStore):
    """Lets somebody else commit right before each of the first ``times`` snapshots that are put."""

    def __init__(self, inner: Any, rival: Callable[[int], object], times: int) -> None:
        super().__init__(inner)
        self._rival, self._times, self.lost = rival, times, 0
        self.requests: list[int] = []

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        if method == "create" and path.startswith("snapshot/") and self.lost < self._times:
            self.lost += 1
            self.requests.append(self.tally.requests)
            self._rival(self.lost)
        return super()._call(method, path, action)


class SteppedStore(_Wrapper):
    """Lets something happen right before the n-th call of any kind, from 1; children share the count.

    A test goes on to the next call until nothing ``happened``, as there were not so many.
    """

    def __init__(self, inner: Store, at: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._state: dict[str, Any] = {"left": at, "act": act}

    @property
    def happened(self) -> bool:
        return bool(self._state["left"] <= 0)

    def child(self, path: str) -> SteppedStore:
        other = SteppedStore(self.inner.child(path), 0, lambda: None)
        other._state = self._state
        return other

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        self._state["left"] -= 1
        if self._state["left"] == 0:
            self._state["act"]()
        return action()


class FaultStore(_Wrapper):
    """Crash or fail at the n-th mutating call, before or after it takes effect; children share the count.

    A test runs once without ``fail_at`` to learn ``mutations`` (method, path below this root's URI), and then once
    per mutation and side. After a ``Crash`` every further call crashes too: a dead process cleans nothing up.

    Args:
        fail_at: Which mutating call, from 1; None never fails. ``open_output`` counts once: "before" is when it is
            opened, "after" when it is closed.
        error: What to raise. An ``OSError`` becomes what a real store makes of it, and with ``after`` an unknown
            outcome, once; a ``Crash`` (the default) or anything else is raised as it is.
        on_mutation: Called with method and path before every mutating call: the place for a competing writer.
    """

    def __init__(
        self,
        inner: Store,
        fail_at: int | None = None,
        *,
        error: BaseException | None = None,
        after: bool = False,
        on_mutation: Callable[[str, str], None] | None = None,
        _state: _FaultState | None = None,
    ) -> None:
        super().__init__(inner)
        self._state = _state or _FaultState(fail_at, error or Crash(f"crash at mutation {fail_at}"), after, on_mutation)

    def __reduce__(self) -> tuple[Any, ...]:
        state = self._state
        return _reopen_faulty, (self.inner, state.fail_at, state.error, state.after)

    @property
    def mutations(self) -> Sequence[tuple[str, str]]:
        """What was asked for so far, the failed call included, as (method, URI)."""
        return tuple(self._state.mutations)

    def child(self, path: str) -> FaultStore:
        return FaultStore(self.inner.child(path), _state=self._state)

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        if method not in MUTATIONS:
            self._state.check_alive()
            return action()
        where = join(self.uri, path)
        fails = self._state.count(method, where, path)
        if fails and not self._state.after:
            self._state.fail(method, where)
        result = action()
        if fails and method == "open_output":
            return _WatchedOutput(result, closed=lambda: self._state.fail(method, where))  # type: ignore[arg-type,return-value]
        if fails:
            self._state.fail(method, where)
        return result


class _FaultState:
    def __init__(
        self, fail_at: int | None, error: BaseException, after: bool, on_mutation: Callable[[str, str], None] | None
    ) -> None:
        self.fail_at = fail_at
        self.error = error
        self.after = after
        self.on_mutation = on_mutation
        self.mutations: list[tuple[str, str]] = []
        self._dead = False
        self._lock = threading.Lock()

    def check_alive(self) -> None:
        if self._dead:
            raise self.error

    def count(self, method: str, where: str, path: str) -> bool:
        self.check_alive()
        if self.on_mutation is not None:
            self.on_mutation(method, path)
        with self._lock:
            self.mutations.append((method, where))
            return len(self.mutations) == self.fail_at

    def fail(self, method: str, where: str) -> None:
        if isinstance(self.error, OSError):
            doing = {"create": "creating", "delete": "deleting", "delete_empty": "deleting"}.get(method, "writing")
            raise from_os_error(self.error, doing, where, applied=self.after) from self.error
        self._dead = isinstance(self.error, Crash)
        raise self.error


def _reopen_faulty(inner: Store, fail_at: int | None, error: BaseException, after: bool) -> FaultStore:
    return FaultStore(inner, fail_at, error=error, after=after)


class _WatchedOutput(io.RawIOBase):
    """An output that reports what is written, and that it was closed."""

    def __init__(
        self, inner: BinaryIO, *, wrote: Callable[[int], None] | None = None, closed: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self._inner = inner
        self._wrote = wrote
        self._on_close = closed

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._inner.tell()

    def write(self, data: Any) -> int:
        size = self._inner.write(data)
        if self._wrote is not None:
            self._wrote(size)
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._inner.close()
            if self._on_close is not None:
                self._on_close()

    def __del__(self) -> None:
        if not self.closed:
            super().close()  # and the file inside is abandoned as well

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None or self.closed:
            self.close()
        else:
            super().close()
            self._inner.__exit__(kind, value, traceback)


class _CountedInput(io.RawIOBase):
    """Random reads that are counted. Slower than the file inside: every read passes through Python."""

    def __init__(self, inner: Any, tally: Tally) -> None:
        super().__init__()
        self._inner = inner
        self._tally = tally

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._inner.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._inner.seek(offset, whence))

    def read(self, size: int | None = -1) -> bytes:
        data: bytes = self._inner.read() if size is None or size < 0 else self._inner.read(size)
        self._tally.add(read=len(data))
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._inner.close()
