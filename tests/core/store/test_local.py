import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import AlreadyExistsError, OutcomeUnknownError, StorageError, UnsafeOperationError
from airflow_paimon.core.store.local import LocalStore
from tests.core.store.contract import SharedStoreContract, check_files_that_are_away
from tests.core.store.restricted import run_restricted
from tests.stores import delete_tree

# What the contract stores is under the names of metadata, and is none.
pytestmark = pytest.mark.damages_metadata


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "ware house%3A"))


class TestLocalStore(SharedStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(str(tmp_path / "ware house%3A"))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users reach too, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="airflow-paimon-store-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_uri_is_literal(tmp_path: Path) -> None:
    assert LocalStore(f"{tmp_path}/a%3A/../b%3A/").uri == f"file://{tmp_path}/b%3A"
    assert LocalStore("//x").uri == "file:///x"
    assert LocalStore("/").child("a").uri == "file:///a"


def test_relative_root_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("warehouse")
    monkeypatch.chdir("/")
    store.create("x", b"1")
    assert (tmp_path / "warehouse/x").read_bytes() == b"1"


def test_files_are_readable_by_other_engines(store: LocalStore, tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        store.create("a", b"1")
        store.replace("b", b"1")
        store.open_output("c").close()
    finally:
        os.umask(umask)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "ware house%3A").iterdir()}
    assert modes == {0o644}


def test_longest_names(store: LocalStore) -> None:
    for name in ("n" * 255, "ä" * 127, "😀" * 63):
        store.create(name, b"1")
        with pytest.raises(AlreadyExistsError):
            store.create(name, b"2")
        store.replace(name, b"3")
        assert store.read(name) == b"3"
    assert len(store.walk("")) == 3
    with pytest.raises(StorageError, match="name"):
        store.create("n" * 256, b"1")


def test_streams_are_exclusive(store: LocalStore) -> None:
    store.create("data", b"1")
    with pytest.raises(AlreadyExistsError, match="data"):
        store.open_output("data")
    assert store.read("data") == b"1"


def test_a_folder_is_never_replaced(store: LocalStore) -> None:
    store.create("a/x", b"1")
    with pytest.raises(AlreadyExistsError):
        store.create("a", b"2")
    with pytest.raises(StorageError, match="folder"):
        store.replace("a", b"2")
    assert store.walk("") == ["a/x"]


def test_a_file_where_a_folder_should_be(store: LocalStore) -> None:
    store.create("a", b"1")
    for call in (
        lambda: store.create("a/x", b"2"),
        lambda: store.replace("a/x", b"2"),
        lambda: store.open_output("a/x"),
    ):
        with pytest.raises((StorageError, LookupError), match="a/x"):
            call()
    assert store.walk("") == ["a"]


def test_a_file_that_can_not_be_looked_at_is_an_error_of_the_storage(store: LocalStore, tmp_path: Path) -> None:
    store.create("table/x", b"1")
    loop = tmp_path / "ware house%3A/table/loop"
    loop.symlink_to(loop)
    with pytest.raises(StorageError, match="table"):
        store.files("table")
    with pytest.raises(StorageError, match="table"):
        list(store.files_in_parts("table"))


def test_links_out_of_the_table_are_not_followed_by_deletion(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"1")
    store.create("table/x", b"1")
    root = tmp_path / "ware house%3A"
    (root / "table/link").symlink_to(outside)
    (root / "table/broken").symlink_to(tmp_path / "nowhere")
    assert store.walk("table") == ["table/broken", "table/x"]
    assert [i.name for i in store.list("table")] == ["link", "x"]
    delete_tree(store, "table")
    assert (outside / "precious").read_bytes() == b"1"
    assert store.walk("") == []


def test_no_link_below_the_folder_is_followed(store: LocalStore, tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "ware house%3A"
    (outside / "deeper").mkdir(parents=True)
    for name in ("precious", "deeper/precious"):
        (outside / name).write_bytes(b"1")
    store.create("t/x", b"1")
    (root / "t/folder").symlink_to(outside)
    (root / "t/file").symlink_to(outside / "precious")
    calls: list[Callable[[str], Any]] = [
        store.read, store.exists, store.open_input, lambda p: store.read_many([p]),
    ]  # fmt: skip
    below: list[Callable[[str], Any]] = [
        store.delete, store.open_output, lambda p: store.create(p, b"2"), lambda p: store.replace(p, b"2"),
        lambda p: store.delete_same(p, b"1"), lambda p: store.create_many({p: b"2"}), lambda p: store.hint(p, b"2"),
    ]  # fmt: skip
    folders: list[Callable[[str], Any]] = [
        store.list, store.names, store.names_if_few, store.walk, store.files, store.delete_empty,
        lambda p: list(store.files_in_parts(p)), store.divided,
    ]  # fmt: skip
    tried = [(call, "t/file") for call in calls]
    tried += [(call, f"t/folder/{name}") for call in (*calls, *below) for name in ("precious", "deeper/precious", "no")]
    tried += [(call, f"t/folder{name}") for call in folders for name in ("", "/deeper")]
    for call, path in tried:
        with pytest.raises(UnsafeOperationError, match=f"{path[:4]}.* is a symbolic link"):
            call(path)
    assert store.walk("t") == ["t/file", "t/x"]
    store.replace("t/file", b"2")
    store.delete("t/folder")  # the link itself
    assert sorted(os.listdir(root / "t")) == ["file", "x"]
    assert files(outside) == ["deeper/precious", "precious"]
    assert {(outside / name).read_bytes() for name in ("precious", "deeper/precious")} == {b"1"}


def test_the_folder_itself_and_those_above_may_be_links(tmp_path: Path) -> None:
    (tmp_path / "disk/t").mkdir(parents=True)
    (tmp_path / "d.db").symlink_to(tmp_path / "disk")
    (tmp_path / "u").symlink_to(tmp_path / "disk/t")
    for store in (LocalStore(str(tmp_path)).child("d.db/t"), LocalStore(str(tmp_path / "u"))):
        store.replace("snapshot/LATEST", b"1")
        assert (store.read("snapshot/LATEST"), store.walk("")) == (b"1", ["snapshot/LATEST"])


def test_a_file_that_is_replaced_while_it_is_deleted_stays(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer comes between the look and the deletion; then a second one right after the file was moved."""
    rename, link = os.rename, os.link
    store.create("tag/tag-x", b"1")

    def late(source: str, target: str) -> None:
        store.replace("tag/tag-x", b"2")
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    assert store.delete_same("tag/tag-x", b"1") is False
    assert (store.read("tag/tag-x"), store.walk("")) == (b"2", ["tag/tag-x"])

    def later(source: str, target: str, **options: Any) -> None:
        if target.endswith("tag/tag-x"):
            (tmp_path / "ware house%3A/tag/tag-x").write_bytes(b"3")
        link(source, target, **options)

    store.replace("tag/tag-x", b"1")
    monkeypatch.setattr(os, "link", later)
    with pytest.raises(OutcomeUnknownError, match=r"If .*/tag/\.tag-x\..*\.away exists"):
        store.delete_same("tag/tag-x", b"1")
    kept = {file.read_bytes() for file in (tmp_path / "ware house%3A/tag").iterdir()}
    assert (store.read("tag/tag-x"), kept, store.names("tag")) == (b"3", {b"2", b"3"}, ["tag-x"])


def test_who_is_killed_while_deleting_takes_nothing_of_others(store: LocalStore) -> None:
    check_files_that_are_away(store)


@pytest.mark.parametrize(("error", "named"), [(errno.EPERM, True), (errno.EOPNOTSUPP, True), (errno.EACCES, False)])
def test_file_system_without_hard_links(tmp_path: Path, error: int, named: bool) -> None:
    code = f"""
store = open_store({str(tmp_path)!r})
attempt("store.create('snapshot/snapshot-1', b'x')")
attempt("store.replace('snapshot/LATEST', b'1')")
"""
    created, replaced = run_restricted(f"refuse_hard_links({error})", code).splitlines()
    if named:
        assert created.startswith("UnsupportedStorageError: The file system of file://")
        assert "no hard links" in created
    else:
        assert created.startswith("StorageError: Permission denied")
    assert "snapshot/snapshot-1" in created
    assert replaced == "ok"
    assert files(tmp_path) == ["snapshot/LATEST"]  # no temporary file, no snapshot


def test_a_link_error_of_a_network_file_system_is_resolved_by_reading_back(tmp_path: Path) -> None:
    code = f"store = open_store({str(tmp_path)!r})\nattempt(\"store.create('snapshot-1', b'x')\")"
    (line,) = run_restricted(f"refuse_hard_links({errno.EIO})", code).splitlines()
    assert line.startswith("StorageError: Creating file://")
    assert files(tmp_path) == []


def test_permission_denied(open_folder: Path) -> None:
    (open_folder / "locked").mkdir()
    (open_folder / "locked/x").write_bytes(b"1")
    (open_folder / "locked/secret").write_bytes(b"1")
    (open_folder / "locked/secret").chmod(0o600)
    (open_folder / "closed").mkdir()
    (open_folder / "closed/x").write_bytes(b"1")
    (open_folder / "locked").chmod(0o555)
    (open_folder / "closed").chmod(0o000)
    calls = {
        "store.create('locked/y', b'1')": "writing",
        "store.create('locked/folder/y', b'1')": "writing",
        "store.replace('locked/x', b'1')": "writing",
        "store.open_output('locked/y')": "writing",
        "store.delete('locked/x')": "deleting",
        "store.read('locked/secret')": "reading",
        "store.open_input('locked/secret')": "reading",
        "store.exists('closed/x')": "looking at",
        "store.list('closed')": "listing",
        "store.names('closed')": "listing",
        "store.walk('')": "listing",
    }
    attempts = "\n".join(f"attempt({call!r})" for call in calls)
    try:
        lines = run_restricted(
            "import pyarrow\nbecome_nobody()", f"store = open_store({str(open_folder)!r})\n{attempts}"
        ).splitlines()
        for (call, doing), line in zip(calls.items(), lines, strict=True):
            assert line.startswith(f"StorageError: Permission denied for {doing} file://{open_folder}"), (call, line)
    finally:
        (open_folder / "locked").chmod(0o755)
        (open_folder / "closed").chmod(0o755)
    assert files(open_folder) == ["closed/x", "locked/secret", "locked/x"]


def test_file_size_limit(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.create("LATEST", b"1")
    code = f"""
store = open_store({str(tmp_path)!r})
attempt("store.create('big', bytes(100_000))")
attempt("store.replace('LATEST', bytes(100_000))")
def stream():
    with store.open_output('data') as f:
        f.write(bytes(100_000))
attempt("stream()")
attempt("store.create('small', b'1')")
"""
    *failed, small = run_restricted("limit_file_size(4096)", code).splitlines()
    assert len(failed) == 3
    assert all(line.startswith("StorageError: No space left for writing") for line in failed), failed
    assert small == "ok"
    assert files(tmp_path) == ["LATEST", "small"]
    assert store.read("LATEST") == b"1"


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a file system of 64 KiB where this process may; else give False."""
    folder.mkdir()
    mounted = (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True).returncode
        == 0
        if os.geteuid() == 0 and shutil.which("mount")
        else False
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def test_disk_full(tmp_path: Path) -> None:
    """The file size limit above runs everywhere; this is the real thing where mounting is allowed."""
    with small_disk(tmp_path / "disk") as mounted:
        if not mounted:
            pytest.skip("mounting a small file system needs root")
        store = LocalStore(str(tmp_path / "disk"))
        store.create("LATEST", b"1")
        for call in (
            lambda: store.create("snapshot-1", bytes(200_000)),
            lambda: store.replace("LATEST", bytes(200_000)),
            lambda: store.open_output("data").write(bytes(200_000)),
        ):
            with pytest.raises(StorageError, match=r"No space left for writing file://.*nothing was published"):
                call()
            for left in store.walk(""):
                if left != "LATEST":
                    assert left == "data"  # a stream that nobody closed; its writer removes it
        store.delete("data")
        assert store.walk("") == ["LATEST"]
        store.create("snapshot-1", bytes(20_000))


KILLED = """
import os, sys, threading
from airflow_paimon.core.store import open_store
store = open_store(sys.argv[1])
store.create("warm", b"1")
print("ready", flush=True)
for i in range(100_000):
    store.create(f"snapshot/snapshot-{i}", b"x" * 50_000)
"""


def test_a_killed_writer_leaves_whole_objects_only(tmp_path: Path) -> None:
    for round_ in range(3):
        folder = tmp_path / str(round_)
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout:
            process.stdout.readline()
            store = LocalStore(str(folder))
            while len(store.names("snapshot")) < 5 + round_:
                assert process.poll() is None
            process.kill()
            process.wait()
        names = store.names("snapshot")
        snapshots = [name for name in names if name.startswith("snapshot-")]
        assert sorted(snapshots, key=lambda n: int(n[9:])) == [f"snapshot-{i}" for i in range(len(snapshots))]
        assert all(store.read(f"snapshot/{name}") == b"x" * 50_000 for name in snapshots)
        left = set(names) - set(snapshots)
        assert len(left) <= 1
        assert all(name.startswith(".snapshot-") and name.endswith(".tmp") for name in left)


def test_written_content_is_synced_before_it_gets_its_name(tmp_path: Path) -> None:
    """The order of the system calls is what survives a power failure."""
    if shutil.which("strace") is None:
        pytest.skip("following system calls needs strace")
    code = "import sys; from airflow_paimon.core.store import open_store; open_store(sys.argv[1]).create('d/x', b'1')"
    subprocess.run(
        ["strace", "-f", "-e", "trace=fsync,link,linkat", "-o", str(tmp_path / "calls"), sys.executable, "-c", code,
         str(tmp_path / "store")], check=True, timeout=600,
    )  # fmt: skip
    calls = [line.split("(")[0].split()[-1] for line in (tmp_path / "calls").read_text().splitlines() if "(" in line]
    assert calls[-3:] in (["fsync", "link", "fsync"], ["fsync", "linkat", "fsync"])


def test_new_files_are_synced_and_then_their_folder(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("following system calls needs strace")
    code = (
        "import sys; from airflow_paimon.core.store import open_store; s = open_store(sys.argv[1]);"
        "s.create('m/warm', b'1'); s.create_many({'m/a': b'1', 'm/b': b'1'})"
    )
    subprocess.run(
        ["strace", "-f", "-y", "-e", "trace=fsync,link,linkat", "-o", str(tmp_path / "calls"), sys.executable, "-c",
         code, str(tmp_path / "store")], check=True, timeout=600,
    )  # fmt: skip
    lines = [line for line in (tmp_path / "calls").read_text().splitlines() if "fsync(" in line]
    assert [line.rpartition("/store/")[2].split(">")[0] for line in lines[-3:]] == ["m/a", "m/b", "m"], lines


def test_folder_deleted_under_a_writer(store: LocalStore) -> None:
    """Deleting a folder while others write in it ends in an error or an object, never in a hang or another error."""

    def write(i: int) -> None:
        with suppress(StorageError, OutcomeUnknownError, LookupError):
            store.create(f"a/b/c/{i}", b"1")

    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(write, i) for i in range(200)]
        for _ in range(50):
            with suppress(StorageError):
                delete_tree(store, "a")
        for done in writes:
            done.result(timeout=600)
    delete_tree(store, "a")
    assert store.walk("") == []


def test_a_folder_that_can_not_be_made_is_not_a_missing_object(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match=r"Writing .* failed: its folder can't be made \(.*\); check the path"):
        LocalStore(str(tmp_path / "file" / "warehouse")).create("a/b", b"x")
    assert (tmp_path / "file").read_text() == "not a folder"
