"""What every store that can commit must do: a backend subclasses it and gives a ``store`` fixture."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from airflow_paimon.core.store import Store
from airflow_paimon.core.store.base import set_aside_path
from tests.core.store.racer import content, race
from tests.stores import delete_tree

ODD_NAMES = [
    "snapshot-1",
    "dt=2025-01-01 12%3A00%3A00/bucket-0/data-1.parquet",
    "name=a+b&c/x",
    "name=ä€😀/y",
    "a*b[c]?d#e/f",
    "100%/z",
    "_airflow_paimon/journal",
    ".hidden/file",
]
BAD_OBJECTS = ["", "/", "/etc/passwd", "..", "../x", "a/../b", "a/./b", "./a", "a//b", "a/", "a\0b"]
BAD_FOLDERS = ["/", "/a", "..", "a/../..", "a//b", "./a"]
RACERS = 4


class StoreContract:
    """Tests of :class:`~airflow_paimon.core.store.Store`."""

    keys = 40
    """How many names are raced for."""

    @pytest.fixture
    def store(self) -> Store:
        raise AssertionError("a subclass gives the store, empty at the start of each test")

    def test_is_a_store(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert store.commits_refused is None
        assert "://" in store.uri
        assert not store.uri.endswith("/")

    # Objects

    @pytest.mark.parametrize("path", ODD_NAMES)
    def test_create_and_read_back_a_literal_name(self, store: Store, path: str) -> None:
        store.create(path, b"content")
        assert store.read(path) == b"content"
        assert store.exists(path)
        assert store.walk("") == [path]
        folder, _, name = path.rpartition("/")
        assert store.names(folder) == [name]

    @pytest.mark.parametrize("size", [0, 1, 4096, 300_000, 3_000_000])
    def test_any_size_is_read_back(self, store: Store, size: int) -> None:
        data = bytes(i % 251 for i in range(size))
        store.create("a/object", data)
        assert store.read("a/object") == data
        assert [(i.name, i.size) for i in store.list("a")] == [("object", size)]

    def test_create_refuses_what_exists_and_leaves_it(self, store: Store) -> None:
        store.create("snapshot/snapshot-1", b"first")
        with pytest.raises(AlreadyExistsError, match="snapshot/snapshot-1"):
            store.create("snapshot/snapshot-1", b"second")
        with pytest.raises(AlreadyExistsError):
            store.create("snapshot/snapshot-1", b"first")  # the same bytes from another call don't win either
        assert store.read("snapshot/snapshot-1") == b"first"
        assert store.walk("") == ["snapshot/snapshot-1"]

    def test_create_after_delete(self, store: Store) -> None:
        store.create("x", b"1")
        store.delete("x")
        assert not store.exists("x")
        store.create("x", b"2")
        assert store.read("x") == b"2"

    def test_replace_creates_and_replaces(self, store: Store) -> None:
        store.replace("snapshot/LATEST", b"10")
        store.replace("snapshot/LATEST", b"9")
        assert store.read("snapshot/LATEST") == b"9"
        assert store.names("snapshot") == ["LATEST"]

    def test_new_files_are_put_together(self, store: Store) -> None:
        files = {f"manifest/m{i}": f"content {i}".encode() for i in range(5)}
        store.create_many(files)
        store.create_many({})
        assert {path: store.read(path) for path in store.walk("")} == files
        with pytest.raises(AlreadyExistsError, match="m3"):
            store.create_many({"manifest/m3": b"other"})
        assert store.read("manifest/m3") == files["manifest/m3"]

    def test_a_hint_is_replaced(self, store: Store) -> None:
        for text in (b"10", b"9"):
            store.hint("snapshot/LATEST", text)
            assert store.read("snapshot/LATEST") == text
        assert store.names_if_few("snapshot") == ["LATEST"]
        assert store.names_if_few("nothing") == []

    def test_missing_object(self, store: Store) -> None:
        store.create("folder/object", b"1")
        for path in ("nothing", "folder", "folder/nothing", "folder/object/below"):
            assert not store.exists(path)
            with pytest.raises(NotFoundError, match=path):
                store.read(path)
            with pytest.raises(NotFoundError, match=path):
                store.open_input(path)

    def test_delete(self, store: Store) -> None:
        store.create("folder/object", b"1")
        store.delete("nothing")
        store.delete("folder")  # no object of that name
        store.delete("folder/object/below")
        assert store.walk("") == ["folder/object"]
        store.delete("folder/object")
        assert store.walk("") == []
        store.delete("folder/object")

    def test_read_many_keeps_the_order(self, store: Store) -> None:
        paths = [f"manifest/m{i}" for i in range(30)]
        for path in paths:
            store.create(path, path.encode())
        wanted = [*reversed(paths), paths[3]]
        assert store.read_many(wanted) == [path.encode() for path in wanted]
        assert store.read_many([]) == []
        with pytest.raises(NotFoundError, match="manifest"):
            store.read_many([paths[0], "manifest/gone"])

    # Folders

    def test_listings(self, store: Store) -> None:
        for path in ("b/2", "a", "b/10", "b/c/d/e", "b-other", "bb/1"):
            store.create(path, path.encode())
        assert [(i.name, i.is_dir, i.size) for i in store.list("")] == [
            ("a", False, 1),
            ("b", True, 0),
            ("b-other", False, 7),
            ("bb", True, 0),
        ]
        assert [(i.name, i.is_dir) for i in store.list("b")] == [("10", False), ("2", False), ("c", True)]
        assert store.list("b/") == store.list("b")
        assert sorted(store.names("b")) == ["10", "2"]
        assert sorted(store.names("")) == ["a", "b-other"]
        assert store.walk("b") == ["b/10", "b/2", "b/c/d/e"]
        assert store.walk("") == ["a", "b-other", "b/10", "b/2", "b/c/d/e", "bb/1"]
        found = store.files("b")
        assert [info.name for info in found] == ["b/10", "b/2", "b/c/d/e"]
        assert [info.name for info in store.files("")] == store.walk("")
        listed = {f"b/{info.name}": info for info in store.list("b") if not info.is_dir}
        assert [(i.size, i.modified_ms) for i in found[:2]] == [
            (listed[i.name].size, listed[i.name].modified_ms) for i in found[:2]
        ]
        assert store.files("nothing") == []

    def test_what_is_not_a_folder_is_empty(self, store: Store) -> None:
        store.create("object", b"1")
        for path in ("nothing", "nothing/deeper", "object"):
            assert store.list(path) == []
            assert store.names(path) == []
            assert store.walk(path) == []

    def test_listing_sees_changes_at_once(self, store: Store) -> None:
        other = pickle.loads(pickle.dumps(store))
        for i in range(5):
            store.create(f"snapshot/snapshot-{i}", b"1")
            assert len(other.names("snapshot")) == i + 1
        other.delete("snapshot/snapshot-0")
        assert len(store.list("snapshot")) == 4

    def test_folders_that_are_deleted_while_they_are_listed(self, store: Store) -> None:
        """What stays is listed, whatever goes beside it."""
        for name in ("a", "z"):
            store.create(f"t/{name}/stays", b"1")
        gone = [f"t/m{number}" for number in range(6)]
        for folder in gone:
            store.create(f"{folder}/bucket-0/x", b"1")
        with ThreadPoolExecutor(1) as pool:
            deleting = pool.submit(lambda: [delete_tree(store, folder) for folder in gone])
            while not deleting.done():
                assert {"t/a/stays", "t/z/stays"} <= set(store.walk("t"))
            deleting.result()
        assert store.walk("t") == ["t/a/stays", "t/z/stays"]

    def test_modification_time(self, store: Store) -> None:
        store.create("a/x", b"1")
        (info,) = store.list("a")
        assert info.modified_ms is not None
        assert 1_700_000_000_000 < info.modified_ms < 10_000_000_000_000

    def test_delete_same(self, store: Store) -> None:
        store.create("snapshot/snapshot-1", b"1")
        assert store.delete_same("snapshot/snapshot-1", b"2") is False
        assert store.read("snapshot/snapshot-1") == b"1"
        assert store.delete_same("snapshot/snapshot-1", b"1") is True
        assert store.delete_same("snapshot/snapshot-1", b"1") is None
        assert store.delete_same("nothing/deeper", b"") is None
        store.create("snapshot/snapshot-1", b"")
        assert store.delete_same("snapshot/snapshot-1", b"") is True
        assert [name for name in store.walk("") if "probe" not in name] == []

    def test_replace_same(self, store: Store) -> None:
        store.create("tag/tag-x", b"1")
        assert store.replace_same("tag/tag-x", b"3", b"2") is False
        assert store.read("tag/tag-x") == b"1"
        assert store.replace_same("tag/tag-x", b"2", b"1") is True
        assert store.read("tag/tag-x") == b"2"
        assert store.replace_same("nothing/deeper", b"1", b"") is None
        assert [name for name in store.walk("") if "probe" not in name] == ["tag/tag-x"]

    def test_delete_empty(self, store: Store) -> None:
        for path in ("branch/branch-b/snapshot/1", "branch/branch-b/tag/x", "branch/branch-bb/x"):
            store.create(path, b"1")
        store.delete("branch/branch-b/snapshot/1")
        store.delete_empty("branch/branch-b")
        assert store.walk("") == ["branch/branch-b/tag/x", "branch/branch-bb/x"]
        assert [i.name for i in store.list("branch/branch-b")] == ["tag"]
        store.delete("branch/branch-b/tag/x")
        store.delete_empty("branch/branch-b")
        store.delete_empty("branch/branch-b")
        assert [i.name for i in store.list("branch")] == ["branch-bb"]
        with pytest.raises(InvalidInputError, match="root"):
            store.delete_empty("")

    def test_child(self, store: Store) -> None:
        child = store.child("db.db/t%3A1")
        assert child.uri == f"{store.uri}/db.db/t%3A1"
        child.create("schema/schema-0", b"{}")
        assert store.read("db.db/t%3A1/schema/schema-0") == b"{}"
        assert child.walk("") == child.walk("schema") == ["schema/schema-0"]
        assert [i.name for i in child.list("")] == ["schema"]
        assert store.child("").uri == store.uri
        assert child.child("schema").read("schema-0") == b"{}"

    def test_no_way_out_of_the_root(self, store: Store) -> None:
        store.create("a/x", b"1")
        on_object: list[Callable[[str], Any]] = [
            store.read,
            store.exists,
            store.delete,
            store.open_input,
            store.open_output,
            lambda path: store.create(path, b""),
            lambda path: store.replace(path, b""),
            lambda path: store.read_many([path]),
        ]
        on_folder: list[Callable[[str], Any]] = [store.list, store.names, store.walk, store.delete_empty, store.child]
        for calls, paths in ((on_object, BAD_OBJECTS), (on_folder, BAD_FOLDERS)):
            for call in calls:
                for path in paths:
                    with pytest.raises(InvalidInputError):
                        call(path)
        assert store.walk("") == ["a/x"]

    # Data files

    def test_streams(self, store: Store) -> None:
        with store.open_output("bucket-0/data-1") as stream:
            assert stream.write(b"abc") == 3
            stream.write(bytearray(b"def"))
            stream.write(memoryview(b"ghi"))
            assert stream.tell() == 9
        assert store.read("bucket-0/data-1") == b"abcdefghi"
        with store.open_input("bucket-0/data-1") as source:
            assert source.read(2) == b"ab"
            source.seek(-2, 2)
            assert source.tell() == 7
            assert source.read() == b"hi"
            source.seek(3)
            assert source.read(3) == b"def"
            assert source.read(100) == b"ghi"
            assert source.read(1) == b""

    def test_empty_stream(self, store: Store) -> None:
        store.open_output("empty").close()
        assert store.read("empty") == b""
        with store.open_input("empty") as source:
            assert source.read() == b""

    def test_large_stream(self, store: Store) -> None:
        block = bytes(range(256)) * 8192  # 2 MiB
        with store.open_output("large") as stream:
            for i in range(11):
                stream.write(bytes([i]) + block)
        with store.open_input("large") as source:
            for i in (7, 0, 10, 3):
                source.seek(i * (len(block) + 1))
                assert source.read(len(block) + 1) == bytes([i]) + block
        assert store.list("")[0].size == 11 * (len(block) + 1)

    def test_abandoned_output_leaves_no_object(self, store: Store) -> None:
        with pytest.raises(ZeroDivisionError), store.open_output("a/half") as stream:
            stream.write(b"x" * 100)
            raise ZeroDivisionError
        assert store.walk("") == []

    def test_output_that_is_never_closed_is_not_an_object(self, store: Store) -> None:
        stream = store.open_output("a/half")
        stream.write(b"x" * 100)
        del stream
        gc.collect()
        assert store.walk("") == []

    @pytest.mark.parametrize("rows", [0, 3, 200_000])
    def test_parquet(self, store: Store, rows: int) -> None:
        table = pa.table(
            {"k": pa.array(range(rows), pa.int64()), "v": [f"value {i * 7919 % 1000}" for i in range(rows)]}
        )
        path = "dt=2025-01-01 12%3A00/bucket-0/data.parquet"
        with store.open_output(path) as stream:
            pq.write_table(table, stream, row_group_size=50_000, compression="zstd")
        with store.open_input(path) as source:
            assert pq.read_table(source) == table
        with store.open_input(path) as source:
            file = pq.ParquetFile(source, pre_buffer=True)
            assert file.metadata.num_rows == rows
            assert file.read(["v"]) == table.select(["v"])
        with store.open_input(path) as source:
            fragment = ds.ParquetFileFormat().make_fragment(source)
            wanted = fragment.to_table(schema=table.schema, columns=["k"], filter=ds.field("k") == 2)
        assert wanted["k"].to_pylist() == ([2] if rows > 2 else [])

    def test_orc(self, store: Store) -> None:
        table = pa.table({"k": range(5000), "v": ["x"] * 5000})
        with store.open_output("data.orc") as stream:
            orc.write_table(table, stream)
        with store.open_input("data.orc") as source:
            assert orc.ORCFile(source).read().equals(table)

    # Other threads and processes

    def test_pickle(self, store: Store) -> None:
        store.create("a/x", b"1")
        for copy in (pickle.loads(pickle.dumps(store)), pickle.loads(pickle.dumps(store.child("a").child("")))):
            assert copy.uri.startswith(store.uri)
            assert copy.walk("")
        assert repr(pickle.loads(pickle.dumps(store))) == repr(store)
        assert store.uri in repr(store)

    def test_threads_race_for_a_key(self, store: Store) -> None:
        start = threading.Barrier(RACERS)

        def run(racer: int) -> list[int]:
            won = []
            for key in range(self.keys):
                start.wait(timeout=600)
                try:
                    store.create(f"snapshot/snapshot-{key}", content(racer))
                except AlreadyExistsError:
                    continue
                won.append(key)
            return won

        with ThreadPoolExecutor(RACERS) as pool:
            won_by = list(pool.map(run, range(RACERS)))
        winners = Counter(key for won in won_by for key in won)
        assert winners == dict.fromkeys(range(self.keys), 1)
        for racer, won in enumerate(won_by):
            for key in won:
                assert store.read(f"snapshot/snapshot-{key}") == content(racer)
        assert len(store.walk("")) == self.keys

    def test_what_is_being_written_is_not_visible(self, store: Store) -> None:
        """Whoever looks while objects are put sees no name without its whole content."""
        data, seen = b"x" * 2_000_000, set()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(lambda: [store.create(f"snapshot/snapshot-{i}", data) for i in range(5)])
            while not writing.done():
                infos = [info for info in store.list("snapshot") if not info.name.startswith(".")]
                seen |= {info.size for info in infos} | {
                    len(store.read(f"snapshot/{info.name}")) for info in infos[-1:]
                }
            writing.result()
        assert seen <= {len(data)}
        assert len(store.names("snapshot")) == 5

    def test_readers_never_see_half_of_a_replacement(self, store: Store) -> None:
        contents = [bytes([65 + i]) * (200_000 + i) for i in range(4)]
        store.replace("LATEST", contents[0])
        done = threading.Event()

        def write() -> None:
            for i in range(40):
                store.replace("LATEST", contents[i % 4])
            done.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            seen = set()
            while not done.is_set() and not writing.done():
                seen.add(store.read("LATEST"))
            writing.result()
        assert seen <= set(contents)
        assert store.walk("") == ["LATEST"]


class SharedStoreContract(StoreContract):
    """The same, for a store whose content other processes share."""

    def test_processes_race_for_a_key(self, store: Store) -> None:
        names = [f"snapshot/snapshot-{key}" for key in range(self.keys)]
        for name, answers in zip(names, race(store, RACERS, names), strict=True):
            assert sorted(answers) == ["lost"] * (RACERS - 1) + ["won"], (name, answers)
            assert store.read(name) == content(answers.index("won"))
        assert store.walk("") == sorted(names)

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_forked_child_uses_the_store(self, store: Store) -> None:
        store.create("from", b"parent")
        context = multiprocessing.get_context("fork")
        child = context.Process(target=_answer, args=(store,))
        child.start()
        child.join(600)
        assert child.exitcode == 0
        assert store.read("answer") == b"parent"


def _answer(store: Store) -> None:
    store.create("answer", store.read("from"))


def check_files_that_are_away(store: Store) -> None:
    """Files that somebody had renamed to delete them when he was killed: the next listing of whatever kind ends it."""
    listings: list[Callable[[str], Any]] = [store.names, store.names_if_few, store.walk, store.list]
    for number, listing in enumerate(listings):
        folder = f"f{number}"
        for name, data in (("to-go", b"old"), ("to-stay", b"new")):
            store.create(set_aside_path(f"{folder}/{name}", b"old"), data)
        found = [getattr(name, "name", name).rpartition("/")[2] for name in listing(folder)]
        assert found == ["to-stay"] and store.read(f"{folder}/to-stay") == b"new"
        assert [path.rpartition("/")[2] for path in store.walk(folder)] == found
