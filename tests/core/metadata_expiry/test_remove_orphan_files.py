"""remove_orphan_files: which files go, what keeps the others, and what makes it refuse."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.commit.idempotency import attempt
from airflow_paimon.core.commit.stream_batch import begin_batch
from airflow_paimon.core.errors import ConflictError, FormatError, InvalidInputError, PaimonError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.metadata_expiry.remove_orphan_files import stream_leftovers
from airflow_paimon.core.publish.undoable_publishes import last_publish
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.store import Store
from airflow_paimon.core.store.base import FileInfo
from airflow_paimon.core.streaming.replays import ReplayRecord, batch_key, record_replay, replay_path, stream_key
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_lists import read_both_manifest_lists
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.branches.test_interrupted_branches import At, forget
from tests.core.tables import append, make_table, message, names, overwrite, rewrite, run
from tests.randomness import lives, moments
from tests.soundness import named_files
from tests.stateful.paimon_expiry import expire_snapshots
from tests.stores import Crash, FaultStore, _Wrapper, delete_tree

DAY = 86_400_000
WRITER = "0d4c3f1e-5b1a-4c52-9a57-6f3f0a1b2c3d"
ORPHANS = {
    "dt=a/bucket-0/data-4b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0.parquet": "data",
    "dt=a/bucket-0/data-4b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0.parquet.index": "data",
    "dt=a/bucket-1/changelog-4b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-1.zstd.orc": "changelog",
    "dt=z/bucket-postpone/data-5b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0.avro": "data",
    "manifest/manifest-6b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0": "manifest",
    "manifest/manifest-6b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-base-0": "manifest",
    "manifest/manifest-6b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-changelog-0": "manifest",
    "manifest/manifest-list-6b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-1": "manifest",
    "manifest/index-manifest-6b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-2": "manifest",
    "manifest/.manifest-1.7b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a.tmp": "temporary",
    "snapshot/.snapshot-9.8b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a.tmp": "temporary",
    "dt=a/bucket-0/data-cb0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0.blob": "data",
    "dt=a/bucket-0/data-db0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0.vector.parquet": "data",
    "index/index-9b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0": "index",
    "statistics/stat-ab0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0": "statistics",
}
UNKNOWN = [
    "manifest/manifest-6b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0.avro.sidecar",
    "dt=a/bucket-0/data-4b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0.managed.blob",
    "dt=a/bucket-0/notes.txt",
    "index/btree-9b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0",
]
ELSEWHERE = ["README.md", "schema/backup-of-schema-0", "dt=a/_SUCCESS", "tag/old/tag-x", "_airflow_paimon/notes.json"]


class Aged(_Wrapper):
    """The storage as it would be later: every file is ``days`` older, but for the ``young`` ones."""

    def __init__(self, inner: Store, days: int = 2, young: Collection[str] = ()) -> None:
        super().__init__(inner)
        self.days, self.young = days, young

    def files(self, path: str) -> Sequence[FileInfo]:
        return [self._older(info, info.name) for info in super().files(path)]

    def list(self, path: str) -> list[FileInfo]:
        private = path.startswith(tuple(f"{PRIVATE_DIR}/{n}" for n in ("operations", "retried", "results", "streams")))
        return [self._older(info, f"{path}/{info.name}") if private else info for info in super().list(path)]

    def _older(self, info: FileInfo, path: str) -> FileInfo:
        if path in self.young or info.modified_ms is None:
            return info
        return replace(info, modified_ms=info.modified_ms - self.days * DAY)


def clean(main: Table, store: Store | None = None, **values: Any) -> OperationResult:
    """Run it two days later, or on a store of the test's."""
    values = {"warehouse": main.store.uri.rsplit("/", 2)[0], "table": "d.t", **values}
    context = open_context(build_request("remove_orphan_files", values))
    table = replace(main, store=Aged(main.store) if store is None else store)
    return perform(replace(context, table=table), context.request)


def sound(main: Table) -> None:
    """Every file that a snapshot, tag or branch refers to is there."""
    assert [f.id for f in find_all(main, int(time.time() * 1000), verify_files=True) if f.severity == "error"] == []


def plant(main: Table, paths: Collection[str] = tuple(ORPHANS)) -> None:
    for path in paths:
        main.store.create(path, b"12345")


@pytest.fixture
def main() -> Table:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    for dt in "ab":
        append(table, dt)
    return table


def test_orphans_of_every_kind_go_and_nothing_else(main: Table) -> None:
    needed = set(main.store.walk(""))
    plant(main)
    plant(main, [*UNKNOWN, *ELSEWHERE])
    all_files = main.store.walk("")
    planned = clean(main, dry_run=True, now="2126-01-01T00:00:00Z")
    assert planned.changed and main.store.walk("") == all_files
    assert {a["path"] for a in planned.details["plan"]["actions"]} == set(ORPHANS)
    done = clean(main)
    assert set(main.store.walk("")) == needed | {*UNKNOWN, *ELSEWHERE}
    for result in (planned, done):
        assert (result.details["files"], result.details["bytes"]) == (len(ORPHANS), 5 * len(ORPHANS))
        assert {(f["folder"], f["kind"], f["files"]) for f in result.details["folders"]} == {
            ("dt=a", "data", 4),
            ("dt=a", "changelog", 1),
            ("dt=z", "data", 1),
            ("manifest", "manifest", 5),
            ("manifest", "temporary", 1),
            ("snapshot", "temporary", 1),
            ("index", "index", 1),
            ("statistics", "statistics", 1),
        }
        assert set(result.details["unknown"]["examples"]) == set(UNKNOWN)
    assert not clean(main).changed
    sound(main)


def test_a_file_stays_while_it_is_young_by_the_storages_clock_whatever_the_time_here(main: Table) -> None:
    plant(main)
    kept = clean(main, main.store, now="2126-01-01T00:00:00Z")
    assert not kept.changed and kept.details["young"]["files"] == len(ORPHANS)
    assert clean(main, Aged(main.store, days=1), older_than="25 h").details["files"] == 0
    assert clean(main, Aged(main.store, days=1), older_than="23 h").details["files"] == len(ORPHANS)


def test_old_files_of_a_writer_that_still_puts_files_stay(main: Table) -> None:
    old = f"dt=a/bucket-0/data-{WRITER}-0.parquet"
    young = f"dt=b/bucket-1/data-{WRITER}-7.parquet"
    plant(main, [old, young])
    result = clean(main, Aged(main.store, young={young}))
    assert not result.changed and main.store.exists(old)
    assert (result.details["kept_for_writers"]["files"], result.details["young"]["files"]) == (1, 1)
    assert clean(main).details["files"] == 2


def test_a_file_without_a_time_stays(main: Table) -> None:
    class Timeless(_Wrapper):
        def files(self, path: str) -> Sequence[FileInfo]:
            return [replace(info, modified_ms=None) for info in super().files(path)]

    plant(main)
    assert not clean(main, Timeless(main.store)).changed


@pytest.mark.parametrize(
    "values", [{"older_than": "59 min"}, {"older_than": "0 s"}, {"records_older_than": "6 d"}, {"older_than": "-1 d"}]
)
def test_an_age_that_is_too_short_is_refused(main: Table, values: dict[str, str]) -> None:
    plant(main)
    before = main.store.walk("")
    with pytest.raises(InvalidInputError, match=next(iter(values))):
        clean(main, **values)
    assert main.store.walk("") == before


def test_names_by_another_prefix_are_known_and_kept_or_cleaned(main: Table) -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh", **{"data-file.prefix": "part_"})
    plant(table, [path := f"dt=a/bucket-0/part_{WRITER}-0.parquet"])
    assert clean(table).details["files"] == 1 and not table.store.exists(path)


# -- what keeps files ----------------


def gone_from_main(main: Table) -> set[str]:
    """Replace what main held in partition a, and expire all but its newest snapshot."""
    before = names(main)
    overwrite(main, "a", seq=9)
    append(main, "b", 1, seq=10)
    expire_snapshots(main, 1)
    return before - names(main)


def held_by_tag(main: Table) -> set[str]:
    run(main, "create_tag", tag="kept")
    return gone_from_main(main)


def held_by_branch(main: Table) -> set[str]:
    run(main, "create_tag", tag="base")
    run(main, "create_branch", branch="fix", tag="base")
    return gone_from_main(main)


def held_by_branch_of_another_engine(main: Table) -> set[str]:
    for name in ("schema/schema-0", "snapshot/snapshot-2"):
        main.store.create(f"branch/branch-theirs/{name}", main.store.read(name))
    before = names(main)
    overwrite(main, "a", seq=9)
    return before - names(main)


def held_by_commit_of_branch(main: Table) -> set[str]:
    run(main, "create_branch", branch="fix", snapshot=2)
    append(main.branch("fix"), "c", seq=3)
    return names(main.branch("fix")) - names(main)


def held_by_tag_of_branch(main: Table) -> set[str]:
    found = held_by_commit_of_branch(main)
    run(main, "create_tag", tag="theirs", branch="fix")
    overwrite(main.branch("fix"), "c", seq=4)
    main.store.delete("branch/branch-fix/snapshot/snapshot-3")
    return found


def held_by_undo_tag(main: Table) -> set[str]:
    run(main, "create_branch", branch="fix", snapshot=2)
    rewrite(main.branch("fix"), "a")
    before = names(main)
    run(main, "merge_branch", branch="fix")
    undo = last_publish(main).undo_tag
    run(main, "delete_branch", branch="fix")
    append(main, "b", 1, seq=10)
    expire_snapshots(main, 1)
    assert undo in main.tag_names()
    return before - names(main)


def held_by_keep_tag(main: Table) -> set[str]:
    """A file that an undo brought back, and that main has deleted again."""
    held_by_undo_tag(main)
    (undo,) = (t for t in main.tag_names() if "undo" in t)
    run(main, "rollback_to", tag=undo)
    back = names(main)
    overwrite(main, "a", seq=20)
    append(main, "b", 1, seq=21)
    expire_snapshots(main, 1)
    for tag in [t for t in main.tag_names() if "undo" in t]:
        main.store.delete(main.paths.tag(tag))
    assert [t for t in main.tag_names() if "keep" in t]
    return {n for n in back - names(main) if any(n in names_of(main, t) for t in main.tag_names())}


def names_of(main: Table, tag: str) -> set[str]:
    from airflow_paimon.core.table.live_entries import live_entries

    return {e.file.file_name for e in live_entries(main, main.tag(tag).snapshot).values()}


def held_by_changelog(main: Table) -> set[str]:
    """A long-lived changelog whose snapshot is expired; without a changelog list, its delta is what it names."""
    main.store.create("changelog/changelog-2", main.store.read("snapshot/snapshot-2"))
    found = {e for e in names(main) if e in {f.name for f in main.store.list("dt=b/bucket-0")}}
    overwrite(main, "b", seq=9)
    overwrite(main, "b", 1, seq=10)
    for number in (1, 2, 3):
        main.store.delete(main.paths.snapshot(number))
    return found


def held_by_trash(main: Table) -> set[str]:
    from airflow_paimon.core.metadata_expiry.root_values import TrashEntry

    content = main.store.read("snapshot/snapshot-2")
    entry = TrashEntry(
        branch="main", kind="snapshot", name="2", path="snapshot/snapshot-2", content=content, unlinked_ms=1
    )
    before = names(main)
    overwrite(main, "a", seq=9)
    main.store.create(entry.trash_path, entry.to_bytes())
    for number in (1, 2):
        main.store.delete(main.paths.snapshot(number))
    return before - names(main)


@pytest.mark.parametrize("reaping", [False, True])
def test_a_trash_entry_that_has_lost_files_stops_nothing(main: Table, reaping: bool) -> None:
    """An expiry is deleting them, or Paimon's orphan cleaning, which knows no trash, has deleted them."""
    lists = main.snapshot(2)
    held_by_trash(main)
    main.store.delete(f"manifest/{lists.delta_manifest_list}")
    plant(main)
    (path,) = main.store.walk("_airflow_paimon/trash")
    main.store.replace(path, json.dumps(json.loads(main.store.read(path)) | {"reaping": reaping}).encode())
    assert clean(main).details["files"] > len(ORPHANS), "the base list goes as well"
    assert not main.store.exists(f"manifest/{lists.base_manifest_list}")
    sound(main)


HOLDERS = [value for name, value in sorted(globals().items()) if name.startswith("held_by_")]


@pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__.removeprefix("held_by_"))
def test_what_any_root_names_stays(main: Table, hold: Callable[[Table], set[str]]) -> None:
    held = hold(main)
    assert held
    plant(main)
    assert clean(main).details["files"] >= len(ORPHANS)
    left = {path.rpartition("/")[2] for path in main.store.walk("")}
    assert held <= left
    sound(main)


def test_extra_files_of_data_files_and_statistics_stay(main: Table) -> None:
    from airflow_paimon.core.commit.files import commit_append

    made = message(main, "a", seq=50)
    (file,) = made.new_files
    extra, statistics = f"dt=a/bucket-0/{file.file_name}.index", f"statistics/stat-{uuid.uuid4()}-0"
    plant(main, [extra, statistics])
    named = file._replace(extra_files=(extra.rpartition("/")[2],))
    commit_append(main, [replace(made, new_files=(named,))], planned_on=main.latest_snapshot())
    path = main.paths.snapshot(main.latest_snapshot_id() or 0)
    raw = json.loads(main.store.read(path)) | {"statistics": statistics.rpartition("/")[2]}
    main.store.replace(path, json.dumps(raw).encode())
    assert not clean(main).changed
    assert main.store.exists(extra) and main.store.exists(statistics)


def test_a_file_that_is_live_on_a_level_by_a_broken_state_stays(main: Table) -> None:
    """It was moved to another level, and deleted twice on the first one: Java reads it."""
    entry = next(iter(live_entries(main, main.latest_snapshot()).values()))
    for some in ([entry.deleted(), entry._replace(file=entry.file._replace(level=1))], [entry.deleted()]):
        draft = Draft(kind=CommitKind.OVERWRITE, entries=some, schema=main.schema())
        commit(main, lambda _, draft=draft: draft)
    for number in main.snapshot_ids()[:-1]:
        main.store.delete(main.paths.snapshot(number))
    plant(main)
    planned, cleaned = clean(main, dry_run=True).details, clean(main).details
    assert main.store.exists(f"dt=a/bucket-0/{entry.file.file_name}")
    assert planned["files"] == cleaned["files"] == len(planned["plan"]["actions"])


def test_the_files_of_a_deleted_branch_go(main: Table) -> None:
    held = held_by_commit_of_branch(main)
    run(main, "delete_branch", branch="fix")
    clean(main)
    left = {path.rpartition("/")[2] for path in main.store.walk("")}
    assert held and left.isdisjoint(held)
    sound(main)


# -- what it refuses ----------------

DAMAGES: dict[str, Callable[[Table], None]] = {
    "tag": lambda t: t.store.replace("tag/tag-base", b"{"),
    "snapshot": lambda t: t.store.replace("snapshot/snapshot-1", b"{}"),
    "branch snapshot": lambda t: t.store.replace("branch/branch-fix/snapshot/snapshot-2", b"?"),
    "changelog": lambda t: t.store.create("changelog/changelog-1", b"?"),
    "consumer": lambda t: t.store.create("consumer/consumer-etl", b"{}"),
    "trash": lambda t: t.store.create("_airflow_paimon/trash/main/snapshot-1-x.json", b"{}"),
    "manifest list": lambda t: t.store.delete(f"manifest/{t.snapshot(1).delta_manifest_list}"),
    "manifest": lambda t: t.store.delete(f"manifest/{read_both_manifest_lists(t, t.snapshot(2))[1][0].file_name}"),
    "garbled manifest": lambda t: t.store.replace(
        f"manifest/{read_both_manifest_lists(t, t.snapshot(2))[1][0].file_name}", b"??"
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_nothing_is_deleted_while_something_cannot_be_read(main: Table, damage: Callable[[Table], None]) -> None:
    run(main, "create_tag", tag="base")
    run(main, "create_branch", branch="fix", tag="base")
    plant(main)
    damage(main)
    store = FaultStore(Aged(main.store))
    with pytest.raises(FormatError) as refused:
        clean(main, store)
    assert "d.t" in refused.value.message
    deleted = [where for method, where in store.mutations if method.startswith("delete") and "/clock/" not in where]
    assert deleted == []


INCOMPLETE: dict[str, Callable[[Table], None]] = {
    "branch without a schema": lambda t: delete_tree(t.store, "branch/branch-fix/schema"),
    "branch half made": lambda t: t.store.replace(
        "_airflow_paimon/branches/fix.json",
        json.dumps({**json.loads(t.store.read("_airflow_paimon/branches/fix.json")), "state": "creating"}).encode(),
    ),
}


@pytest.mark.parametrize("cut_off", INCOMPLETE.values(), ids=INCOMPLETE.keys())
def test_an_incomplete_branch_keeps_its_files_and_stops_nobody(main: Table, cut_off: Callable[[Table], None]) -> None:
    held = held_by_commit_of_branch(main)
    plant(main)
    cut_off(main)
    warned = clean(main).details["warnings"]
    assert "branch 'fix'" in warned[0] and "check_table" in warned[0]
    left = {path.rpartition("/")[2] for path in main.store.walk("")}
    assert held <= left
    assert left.isdisjoint(path.rpartition("/")[2] for path in ORPHANS)


# -- kills and others at work ----------------


def test_a_kill_anywhere_and_another_run() -> None:
    for step in moments(100):
        main = make_table(f"memory://{uuid.uuid4()}/wh")
        append(main, "a")
        run(main, "create_branch", branch="gone", snapshot=1)
        append(main.branch("gone"), "b", seq=1)
        run(main, "delete_branch", branch="gone", operation_id="first")
        plant(main)
        before = names(main)
        try:
            clean(main, FaultStore(Aged(main.store, days=60), fail_at=step, error=Crash(), after=step % 2 == 0))
        except Crash:
            clean(main, Aged(main.store, days=60))
        else:
            assert step > len(ORPHANS)
            return
        assert names(main) == before, f"killed at change {step}"
        assert not set(ORPHANS) & set(main.store.walk("")), f"killed at change {step}"
        assert not main.store.walk("_airflow_paimon/operations") and not main.store.walk("_airflow_paimon/retried")
        sound(main)
        forget(main)
    raise AssertionError("100 changes were not enough")


def publish_and_delete(main: Table) -> None:
    run(main, "merge_branch", branch="fix")
    run(main, "delete_branch", branch="fix")


def undo(main: Table) -> None:
    run(main, "rollback_to", tag="base")


def commit_old_file(main: Table) -> None:
    """A writer whose files were written long ago commits them now."""
    from airflow_paimon.core.commit.files import commit_append

    commit_append(main, [message(main, "a", seq=50)], planned_on=main.latest_snapshot())


class AfterTheFirstLook(_Wrapper):
    """Lets somebody act once the manifests of the first look are read."""

    def __init__(self, inner: Store, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.act: Callable[[], object] | None = act

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        found = action()
        if self.act is not None and path.startswith("manifest/manifest-") and "manifest-list" not in path:
            act, self.act = self.act, None
            act()
        return found


def test_the_roots_are_looked_at_again_before_anything_is_deleted(main: Table) -> None:
    from airflow_paimon.core.commit.files import commit_append

    prepared = message(main, "a", seq=50)
    store = AfterTheFirstLook(
        Aged(main.store), lambda: commit_append(main, [prepared], planned_on=main.latest_snapshot())
    )
    result = clean(main, store)
    assert store.act is None and result.details["files"] == 0
    sound(main)


class Log(At):
    def __init__(self, inner: Store, number: int, act: Callable[[], object]) -> None:
        super().__init__(inner, number, act)
        self.calls: list[tuple[str, str]] = []

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        self.calls.append((method, path))
        return super()._call(method, path, action)


def test_a_file_that_was_written_long_ago_and_is_committed_before_the_last_look_stays() -> None:
    """Later than that only its age can tell, which is why ``older_than`` is longer than any writer takes."""
    from airflow_paimon.core.commit.files import commit_append

    kept = 0
    for number in moments(200, 5):
        main = make_table(f"memory://{uuid.uuid4()}/wh")
        append(main, "a")
        prepared = message(main, "a", seq=50)

        def commit(main: Table = main, prepared: Any = prepared) -> None:
            commit_append(main, [prepared], planned_on=main.latest_snapshot())

        store = Log(Aged(main.store), number, commit)
        clean(main, store)
        if store.left > 0:
            assert kept > lives(2, 20)
            return
        *_, last_look, _ = (i for i, call in enumerate(store.calls, 1) if call == ("list", "branch"))
        if number <= last_look:
            sound(main)
            kept += 1
        forget(main)
    raise AssertionError("200 calls were not enough")


def rename(main: Table) -> None:
    run(main, "rename_branch", branch="fix", to_branch="better")


@pytest.mark.parametrize("act", [publish_and_delete, undo, commit_old_file, rename], ids=lambda act: act.__name__)
def test_others_at_any_moment(act: Callable[[Table], None]) -> None:
    """Whatever is published, brought back, renamed or committed at any store call keeps its files."""
    for number in moments(200, 5):
        main = make_table(f"memory://{uuid.uuid4()}/wh")
        append(main, "a")
        run(main, "create_tag", tag="base")
        run(main, "create_branch", branch="fix", tag="base")
        rewrite(main.branch("fix"), "a")
        overwrite(main, "b", seq=5)
        plant(main, list(ORPHANS)[:3])
        store = At(Aged(main.store), number, lambda main=main: act(main))
        try:
            clean(main, store)
        except PaimonError as error:
            assert isinstance(error, ConflictError)
        sound(main)
        forget(main)
        if store.left > 0:
            assert number > 20
            return
    raise AssertionError("200 calls were not enough")


# -- streams and replays --------


CHECKPOINT = ("/0/t/offsets/0", ".json")
"""The files of a replay in the order in which they are deleted."""


def now() -> int:
    return int(time.time() * 1000)


def record(key_of: Table, **values: Any) -> str:
    """Record a replay by streams into a branch, with a checkpoint; returns the path without ``.json``."""
    key = values.pop("key", stream_key(key_of))
    record_replay(key_of, key, ReplayRecord(asked="x", starts={}, identities={}, **values))
    key_of.store.create(f"{replay_path(key)}/0/t/offsets/0", b"v1")
    return replay_path(key)


def test_streams_and_replays_into_deleted_branches_go(main: Table) -> None:
    for name in ("gone", "lives"):
        run(main, "create_branch", branch=name, snapshot=1)
        begin_batch(main.branch(name), f"query-{name}", 0)
    begin_batch(main, "query-main", 0)
    gone, lives = (record(main.branch(name)) for name in ("gone", "lives"))
    batch = record(main.branch("lives"), key=batch_key("op"), ends={"raw": 2})
    main.store.create(f"{PRIVATE_DIR}/replays/0123/0/t/offsets/0", b"of no record")
    run(main, "delete_branch", branch="gone")
    before = main.store.walk("_airflow_paimon/streams") + main.store.walk("_airflow_paimon/replays")
    assert clean(main, Aged(main.store, days=29)).details["stream_records"] == 0
    path = "_airflow_paimon/branches/lives.json"
    content = main.store.read(path)
    main.store.replace(path, b"{")
    assert clean(main, Aged(main.store, days=31)).details["stream_records"] == 1, "no replay: which are in use?"
    main.store.replace(path, content)
    young = Aged(main.store, days=31, young=[f"{gone}/0/t/offsets/0"])
    assert stream_leftovers(replace(main, store=young), now() - 30 * DAY) == [batch + end for end in CHECKPOINT]
    assert clean(main, young).details["stream_records"] == 2
    assert clean(main, Aged(main.store, days=31)).details["stream_records"] == 2
    left = main.store.walk("_airflow_paimon/streams") + main.store.walk("_airflow_paimon/replays")
    goes = {"_airflow_paimon/streams/query-gone.json", *(f"{p}{e}" for p in (gone, batch) for e in CHECKPOINT)}
    assert set(before) - set(left) == goes
    assert f"{lives}.json" in left
    sound(main)


# -- operation records ----------------


def test_old_operation_records_go_and_young_ones_stay(main: Table) -> None:
    run(main, "create_branch", branch="fix", snapshot=2)
    rewrite(main.branch("fix"), "a")
    first = run(main, "merge_branch", branch="fix", operation_id="once")
    assert clean(main, Aged(main.store, days=29)).details["operation_records"] == 0
    assert run(main, "merge_branch", branch="fix", operation_id="once").snapshot_after == first.snapshot_after
    assert clean(main, Aged(main.store, days=31)).details["operation_records"] == 2, "the record and its result"
    assert not run(main, "merge_branch", branch="fix", operation_id="once").changed, "it is an operation of its own now"


def test_a_repair_that_deletes_a_record_deletes_its_mark(main: Table) -> None:
    with pytest.raises(ConflictError), attempt(main, "once", "main", "request"):
        raise ConflictError("refused")
    (path,) = main.store.walk("_airflow_paimon/operations")
    main.store.replace(path, b"{")
    run(main, "repair_table", finding=[f"unreadable-record:operations/{path.rpartition('/')[2]}"])
    assert main.store.walk("_airflow_paimon/operations") == main.store.walk("_airflow_paimon/retried") == []
    for retried in (False, True):
        with attempt(main, "once", "main", "request") as tried:
            assert tried.retried == retried


def test_a_record_that_is_left_of_a_killed_pruning_still_answers_a_retry() -> None:
    """A mark of a refused try without its record would make the next record void: the work would be done twice."""
    for step in range(1, 40):
        main = make_table(f"memory://{uuid.uuid4()}/wh")
        with pytest.raises(ConflictError), attempt(main, "once", "main", "request"):
            raise ConflictError("refused")
        for retried in (False, True):
            with attempt(main, "once", "main", "request") as tried:
                assert (tried.number, tried.retried) == (1, retried)
        try:
            clean(main, FaultStore(Aged(main.store, days=60), fail_at=step, error=Crash()))
        except Crash:
            left = main.store.walk("_airflow_paimon/operations")
            with attempt(main, "once", "main", "request") as tried:
                assert tried.retried == bool(left), f"killed at change {step}, with {left}"
        else:
            assert step == 7, "the clock is put and deleted, then two marks and two records go"
            return
        forget(main)
    raise AssertionError("40 changes were not enough")


def test_it_says_what_stays_and_by_what(main: Table) -> None:
    """Counted in another way: by the files that each root names."""
    run(main, "create_tag", tag="t")
    run(main, "create_branch", branch="fix", tag="t")
    rewrite(main, "a")
    rewrite(main, "b")
    plant(main)
    kept = clean(main, main.store)
    young = kept.details["young"]
    times = [i.modified_ms for i in main.store.files("") if i.name in ORPHANS and i.modified_ms]
    until = datetime.fromtimestamp((min(times) + DAY) / 1000, UTC).isoformat(timespec="seconds")
    assert (young["files"], young["old_enough_from"]) == (len(ORPHANS), until)

    found = clean(main).details["referenced"]
    named, sizes = named_files(main), {i.name: i.size for i in main.store.files("")}
    parts = ("snapshot/", "tag/", "branch/")
    classes: dict[tuple[str, str], set[str]] = {}
    heads = {
        name: main.branch(name).paths.snapshot(main.branch(name).latest_snapshot_id() or 0) for name in ("main", "fix")
    }
    for path, files in named.items():
        branch = "fix" if path.startswith("branch/branch-fix/") else "main"
        kind = "newest" if path == heads[branch] else "tags" if "/tag-" in f"/{path}" else "snapshots"
        classes.setdefault((branch, kind), set()).update(f for f in files if not f.startswith(parts))
    said = {(one["branch"], one["kind"]): one for one in found["by"]}
    assert said.keys() == classes.keys() and {"tags", "newest", "snapshots"} <= {kind for _, kind in classes}
    for key, files in classes.items():
        alone = files - set().union(*(others for other, others in classes.items() if other != key))
        assert (said[key]["files"], said[key]["only_files"]) == (len(files), len(alone)), key
        assert said[key]["only_bytes"] == sum(sizes[f] for f in alone)
    assert found["files"] == len(set().union(*classes.values())) == sum(found["kinds"].values())
