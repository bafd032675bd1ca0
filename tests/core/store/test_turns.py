"""Turns of processes at one name: who has none goes on all the same."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_paimon.core.store import turns
from airflow_paimon.core.store.turns import Awaited, Turn, turn_at
from tests.conftest import REPO_ROOT

_HOLDER = """
import sys
from airflow_paimon.core.store.turns import turn_at
with turn_at("a") as turn:
    turn.leave(b"from the other process")
    print("mine", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"airflow-paimon-{os.getuid()}"


def names(folder: Path) -> list[Path]:
    """The files of names, beside the one that says when it was looked for old ones."""
    return [path for path in folder.iterdir() if path.name != "looked"]


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """A process that has the turn at "a"."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", _HOLDER], stdin=pipe, stdout=pipe, text=True, cwd=REPO_ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("end", ["it ends", "it is killed"])
def test_who_waits_gets_the_turn_and_the_note(
    holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(turns, "WAIT_S", 60)
    asked, found = threading.Event(), []

    def wait() -> None:
        asked.set()
        with turn_at("a") as turn:
            found.append((turn is not None, turn and turn.note()))

    waiting = threading.Thread(target=wait)
    waiting.start()
    asked.wait()
    with turn_at("b") as other:
        assert other is not None and not other.waited, "another name has turns of its own"
    assert found == []
    if end == "it is killed":
        holder.kill()
    else:
        holder.communicate("\n")
    waiting.join()
    assert found == [(True, b"from the other process")]


def test_nobody_waits_for_long(holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(turns, "WAIT_S", 0.01)
    with turn_at("a") as turn:
        assert turn is None
    monkeypatch.setattr(turns, "WAIT_S", 3600)
    (file,) = names(folder)
    for since in (0, time.time() + 7200):  # for very long, or before the clock was set back: nobody waits any more
        os.utime(file, (since, since))
        with turn_at("a") as turn:
            assert turn is None
    holder.communicate("\n")
    with turn_at("a") as turn:
        assert turn is not None


def test_who_waits_doesnt_give_up_while_others_go_on(
    holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """However long the queue is: only who shows nothing is not waited for."""
    monkeypatch.setattr(turns, "WAIT_S", 0.3)
    (file,) = names(folder)
    found: list[bool] = []

    def wait() -> None:
        os.utime(file)
        with turn_at("a") as turn:
            found.append(turn is not None)

    waiting = threading.Thread(target=wait)
    waiting.start()
    for _ in range(50):
        os.utime(file)
        waiting.join(0.01)
    assert found == []
    holder.communicate("\n")
    waiting.join()
    assert found == [True]


@pytest.mark.parametrize("done", [True, False])
def test_what_is_announced_is_waited_for(done: bool) -> None:
    with turn_at("a") as turn:
        assert turn is not None
        mine = turn.announce()
        assert mine is not None
        turn.leave(mine.name.encode())
        turn.end()
        with turn_at("a") as nested:
            assert nested is None, "what this thread has announced would never come"
        found: list[Awaited] = []

        def follow() -> None:
            with turn_at("a") as then:
                assert then is not None
                before = then.announced(then.note().decode())
                assert before.is_pending()
                then.leave(b"")
                before.remove()
                found.append(before)

        other = threading.Thread(target=follow)
        other.start()
        other.join()
        (before,) = found
        mine.end(done=done)
        mine.end(done=not done)
    assert before.wait(lambda: None) == done
    assert not before.is_pending()
    before.close()


def test_what_was_announced_and_is_gone_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with turn_at("a") as turn:
        assert turn is not None
        assert turn.announced("0").wait(lambda: None)
        monkeypatch.setattr(turns, "WAIT_S", 0.01)
        mine = turn.announce()
        assert mine is not None
        hangs = turn.announced(mine.name)
        assert not hangs.wait(lambda: None), "it shows nothing"
        mine.end(done=True)
        assert not hangs.wait(lambda: None), "said once"
        hangs.close()


def test_a_file_that_can_be_neither_read_nor_locked_tells_nothing(tmp_path: Path) -> None:
    file = tmp_path / "note"
    file.write_bytes(b"done")
    turn = Turn(str(file), os.open(file, os.O_PATH), waited=False)
    assert turn.note() == b""
    turn.end()
    awaited = Awaited(str(file), os.open(file, os.O_PATH))
    assert not awaited.wait(lambda: None)
    awaited.close()


def test_a_thread_that_has_the_turn_waits_for_no_second_one() -> None:
    with turn_at("a") as first:
        assert first is not None
        with turn_at("a") as second:
            assert second is None
    with turn_at("a") as third:
        assert third is not None


def test_a_forked_process_doesnt_keep_the_turn() -> None:
    with turn_at("a"):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.read(read, 1)
            os._exit(0)
    try:
        with turn_at("a") as turn:
            assert turn is not None and not turn.waited
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:33],
        lambda data: bytes(len(data)),
        lambda data: b"x" * len(data),
        lambda data: data[:36] + b"S" + data[37:],
        lambda data: data[:35] + b"\4" + data[36:],
        lambda data: data[:35] + b"\6" + data[36:] + b"x",
    ],
)
def test_a_note_that_is_not_whole_is_none(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    with turn_at("a") as turn:
        assert turn is not None and turn.note() == b""
        turn.leave(b"note" * 20)
        assert turn.note() == b"note" * 20
        turn.leave(b"short")
        assert turn.note() == b"short"
    (file,) = names(folder)
    file.write_bytes(damage(file.read_bytes()[: 36 + len(b"short")]))
    with turn_at("a") as turn:
        assert turn is not None and turn.note() == b""


def test_who_dies_while_it_leaves_a_note_leaves_none(folder: Path) -> None:
    """The beginning of the new one, and the old one after it."""
    old, new = b"old" * 5000, b"new" * 4000
    for part in (1, 20, 33, 36, 37, 4096, 12000):
        with turn_at("a") as turn:
            assert turn is not None
            turn.leave(new)
            (file,) = names(folder)
            begun = file.read_bytes()[:part]
            turn.leave(old)
        with file.open("r+b") as stream:
            stream.write(begun)
        with turn_at("a") as turn:
            assert turn is not None and turn.note() == b""


def test_a_folder_that_others_can_write_is_not_used(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with turn_at("a") as turn:
        assert turn is None
    folder.rmdir()
    folder.symlink_to(folder.parent)
    with turn_at("a") as turn:
        assert turn is None


def test_files_of_names_that_nobody_uses_any_more_go(folder: Path) -> None:
    for name in ("old", "used"):
        with turn_at(name):
            pass
    (old,) = (p for p in names(folder) if p.name == turns.hashlib.sha256(b"old").hexdigest()[:32])
    os.utime(old, (0, 0))
    with turn_at("new"):
        assert old.exists(), "it was looked for today"
    os.utime(folder / "looked", (0, 0))
    with turn_at("used"):
        assert old.exists(), "nothing is looked for where nothing is new"
    with turn_at("newer"):
        pass
    assert not old.exists()
    assert len(names(folder)) == 3
