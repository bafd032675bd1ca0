"""check_table finds what a crash or another engine left; repair_table mends it, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.check.check_files import file_findings
from airflow_paimon.core.check.live_states import LiveStates
from airflow_paimon.core.check.row_checks import RowChecks
from airflow_paimon.core.commit.draft import CommitIdentity, CommitOptions
from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import ConflictError, FormatError, InvalidInputError, NotFoundError
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.records import RecordKind
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.health.gather import read_health
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.schema_plan import AddColumn, SetOption
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.store import Store
from airflow_paimon.core.table import record_kinds
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.execution import perform
from tests.core.tables import alter_table, append, files, make_table, message, rewrite, run
from tests.stores import CountingStore, _Wrapper, delete_tree


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = make_table(tmp_path / "wh")
    append(table, "a")
    append(table, "b")
    return table


def found(table: Table) -> dict[str, dict]:
    return {f["id"]: f for f in run(table, "check_table").details["findings"]}


def test_a_sound_table_has_no_findings(table: Table) -> None:
    run(table, "create_tag", tag="t")
    run(table, "create_branch", branch="fix", tag="t", operation_id="op")
    result = run(table, "check_table")
    assert result.details == {"ok": True, "findings": [], "errors": 0, "warnings": 0}
    assert not run(table, "repair_table").changed


def test_a_branch_without_schema(table: Table) -> None:
    table.store.create("branch/branch-x/tag/tag-t", table.store.read("snapshot/snapshot-1"))
    assert "remove_orphan_files" in found(table)["branch-without-schema:x"]["at_risk"]
    run(table, "repair_table")
    assert table.branch_names() == ["x"], "a create_branch of another engine may be under way: only when asked by name"
    run(table, "repair_table", finding=["branch-without-schema:x"])
    assert table.branch_names() == []
    assert found(table) == {}


def test_a_branch_that_paimon_was_making(table: Table) -> None:
    """Paimon's create_branch copies the tag, the snapshot, then the schemas: killed before the last it leaves this."""
    for name in ("tag/tag-t", "snapshot/snapshot-1"):
        table.store.create(f"branch/branch-x/{name}", table.store.read("snapshot/snapshot-1"))
    run(table, "repair_table", finding=["branch-without-schema:x"])
    assert table.branch_names() == []


def test_a_branch_with_commits_of_its_own_is_never_deleted(table: Table) -> None:
    run(table, "create_branch", branch="x", snapshot=2)
    append(table.branch("x"), "b", seq=50)
    for name in table.store.walk("branch/branch-x/schema"):
        table.store.delete(name)
    finding = found(table)["branch-without-schema:x"]
    assert "snapshots 3 are perhaps its own" in finding["message"]
    with pytest.raises(InvalidInputError, match="branch-without-schema:x"):
        run(table, "repair_table", finding=["branch-without-schema:x"])
    assert table.branch("x").snapshot_ids() == [2, 3]


def test_a_lost_protective_tag(table: Table) -> None:
    run(table, "create_branch", branch="fix", snapshot=2)
    table.store.delete("tag/tag-airflow-paimon-branch-fix")
    assert found(table)["unprotected-branch:fix"]["severity"] == "warning"
    dry = run(table, "repair_table", dry_run=True)
    assert dry.changed
    assert table.tag_names() == []
    run(table, "repair_table", finding=["unprotected-branch:fix"])
    assert table.tag("airflow-paimon-branch-fix").snapshot.id == 2


def test_a_branch_of_another_engine_is_unprotected(table: Table) -> None:
    for name in ("schema/schema-0", "snapshot/snapshot-1"):
        table.store.create(f"branch/branch-java/{name}", table.store.read(name))
    assert "unprotected-branch:java" in found(table)
    run(table, "repair_table")
    assert found(table) == {}


def test_missing_files_and_metadata_cannot_be_repaired_and_are_reported(table: Table) -> None:
    run(table, "create_branch", branch="fix", snapshot=1)
    entry = next(iter(files(table).items()))
    name = next(iter(entry[1]))
    table.store.delete(f"dt=a/bucket-0/{name}")
    assert "missing-files:main/head" in found(table)
    with pytest.raises(InvalidInputError, match="missing-files"):
        run(table, "repair_table", finding=["missing-files:main/head"])
    table.store.delete(f"manifest/{table.latest_snapshot().base_manifest_list}")
    findings = found(table)
    assert any("manifest list" in f["message"] for f in findings.values())
    assert "1 data files" in findings["missing-files:fix/head"]["message"]  # what main lacks says nothing of it


def test_hints_gaps_and_tags(table: Table) -> None:
    append(table, "c")
    run(table, "create_branch", branch="fix", snapshot=3, operation_id="op")
    delete_tree(table.store, "branch/branch-fix")
    table.store.delete("snapshot/snapshot-2")
    table.store.replace("snapshot/LATEST", b"17")
    ids = found(table)
    assert {"snapshot-gap:main/2", "wrong-hint:main/LATEST"} <= ids.keys()
    assert "stale-protective-tag:airflow-paimon-branch-fix" in ids
    run(table, "repair_table")
    assert table.store.read("snapshot/LATEST") == b"3"
    assert set(found(table)) == {"snapshot-gap:main/2"}


def test_unreadable_records_of_all_kinds_are_found_and_only_those_of_no_worth_are_deleted_when_named(
    table: Table,
) -> None:
    kinds = [k for k in vars(record_kinds).values() if isinstance(k, RecordKind)]
    kinds = [k for k in kinds if k not in (record_kinds.MARKS, record_kinds.DROPPING, record_kinds.SETS)]
    for kind in kinds:
        table.store.create(kind.path("x"), b"{half")
    there = found(table)
    assert there.keys() == {f"unreadable-record:{k.folder.partition('/')[2]}/x.json" for k in kinds}
    assert all(f["severity"] == "warning" and f["by_name_only"] and "; " in f["message"] for f in there.values())
    assert not run(table, "repair_table").changed
    mended = [name for name in there if name.split(":")[1].partition("/")[0] not in KEPT]
    run(table, "repair_table", finding=mended)
    assert {name.split(":")[1].partition("/")[0] for name in found(table)} == KEPT


KEPT = {"branches", "erasures", "chain"}
"""The kinds of records that say what nothing else does."""


@pytest.mark.damages_metadata
def test_truncated_files_are_named(table: Table) -> None:
    table.store.replace("snapshot/snapshot-2", b'{"version": 3,')
    message = next(f["message"] for f in found(table).values() if f["severity"] == "error")
    assert "snapshot-2" in message


def test_a_publish_whose_tag_is_missing(table: Table) -> None:
    run(table, "create_branch", branch="fix", snapshot=2)
    rewrite(table.branch("fix"), "a")
    run(table, "merge_branch", branch="fix")
    table.store.delete("tag/tag-airflow-paimon-branch-fix.3")
    assert found(table)["unprotected-publish:airflow-paimon-branch-fix.3"]["severity"] == "warning"
    run(table, "repair_table")
    assert table.tag("airflow-paimon-branch-fix.3").snapshot.id == 3
    assert found(table) == {}


def test_a_missing_index_file_is_found(golden: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(golden("paimon-2.0.0") / "wh", tmp_path / "wh")
    table = open_table(str(tmp_path / "wh"), "d.dv")
    assert "missing-files:main/head" not in found(table)
    shutil.rmtree(tmp_path / "wh" / "d.db" / "dv" / "index")
    assert "index/" in found(table)["missing-files:main/head"]["message"]


def test_a_protective_tag_on_another_snapshot_protects_nothing(table: Table) -> None:
    run(table, "create_branch", branch="fix", snapshot=2)
    other = table.tag("airflow-paimon-branch-fix")
    table.store.replace(table.paths.tag(other.name), replace(other, snapshot=table.snapshot(1)).to_bytes())
    assert list(found(table)) == ["unprotected-branch:fix"]
    run(table, "repair_table")
    tags = {t.name: t.snapshot.id for t in table.tags()}
    assert tags == {"airflow-paimon-branch-fix": 1, "airflow-paimon-branch-fix.2": 2}
    assert found(table) == {}


def test_a_stale_protective_tag_stays_and_the_new_branch_gets_its_own(table: Table) -> None:
    run(table, "create_branch", branch="fix", snapshot=1)
    delete_tree(table.store, "branch/branch-fix")  # another engine drops it
    result = run(table, "create_branch", branch="fix", snapshot=2)
    assert result.details["protective_tag"] == "airflow-paimon-branch-fix.2"
    assert [(t.name, t.snapshot.id) for t in table.tags()] == [
        ("airflow-paimon-branch-fix", 1),
        ("airflow-paimon-branch-fix.2", 2),
    ]
    assert found(table) == {}
    run(table, "delete_branch", branch="fix")
    assert table.tag_names() == []


class _Before(_Wrapper):
    """Lets somebody else act right before the n-th call of a method."""

    def __init__(self, inner: Store, method: str, act: Callable[[], object], number: int = 1) -> None:
        super().__init__(inner)
        self.method, self.act, self.left = method, act, number

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        self.left -= method == self.method
        if method == self.method and self.left == 0:
            self.act()
        return action()


def test_tags_that_vanish_while_they_are_listed_are_left_out(table: Table) -> None:
    for name in ("one", "two"):
        run(table, "create_tag", tag=name)
    store = _Before(table.store, "read_many", lambda: table.store.delete(table.paths.tag("one")))
    assert [t.name for t in replace(table, store=store).tags()] == ["two"]


@pytest.mark.parametrize("operation", ["delete_branch", "create_branch"])
def test_a_branch_that_is_written_while_it_is_deleted_is_kept(operation: str, table: Table) -> None:
    run(table, "create_branch", branch="fix", snapshot=2)
    fix = table.branch("fix")
    values = {"warehouse": table.store.uri.rsplit("/", 2)[0], "table": "d.t", "branch": "fix"}
    anew = {"snapshot": 1, "if_exists": "replace"} if operation == "create_branch" else {}
    context = open_context(build_request(operation, values | anew))
    look = 2 if operation == "create_branch" else 1  # it looks first whether the branch is there at all
    store = _Before(table.store, "walk", lambda: append(fix, "a", seq=5), look)
    with pytest.raises(ConflictError, match="nothing was deleted"):
        perform(replace(context, table=replace(table, store=store)), context.request)
    assert fix.latest_snapshot_id() == 3 and table.find_tag("airflow-paimon-branch-fix") is not None


def test_a_table_whose_snapshots_are_gone_is_not_empty(table: Table) -> None:
    run(table, "create_tag", tag="t")
    run(table, "create_branch", branch="fix", snapshot=1)
    append(table, "c")
    shutil.rmtree(table.store.uri.removeprefix("file://") + "/snapshot")
    for act in (lambda: append(table, "d"), lambda: run(table, "rollback_to", tag="t"), table.latest_snapshot):
        with pytest.raises(FormatError, match=r"tag .* proves that it had.*check_table"):
            act()
    assert table.snapshot_ids() == [], "no commit begins again at 1"
    assert found(table)["lost-snapshots:main"]["repair"].startswith("put snapshot 2 back")
    assert not run(table, "repair_table").changed, "only when asked by name"
    run(table, "repair_table", finding=["lost-snapshots:main"])
    assert table.latest_snapshot() == table.tag("t").snapshot
    assert [f for f in found(table).values() if f["severity"] != "info"] == []
    assert append(table, "d").snapshot.id == 3


@pytest.mark.parametrize("tagged", [False, True])
def test_a_branch_whose_snapshots_are_gone_is_not_empty(table: Table, tagged: bool) -> None:
    run(table, "create_tag", tag="t")
    run(table, "create_branch", branch="fix", **({"tag": "t"} if tagged else {"snapshot": 2}))
    fix = table.branch("fix")
    before = files(fix)
    shutil.rmtree(table.store.uri.removeprefix("file://") + "/branch/branch-fix/snapshot")
    with pytest.raises(FormatError, match="check_table"):
        append(fix, "d")
    run(table, "repair_table", finding=["lost-snapshots:fix"])
    assert files(fix) == before
    assert found(table) == {}


def test_an_empty_main_whose_branch_tags_itself_is_empty(table: Table) -> None:
    """Paimon puts the automatic tags of a branch on main."""
    chain = make_table(Path(table.store.uri.removeprefix("file://")).parents[1], "d.chain")
    run(chain, "create_branch", branch="delta")
    delta = chain.branch("delta")
    append(delta, "a")
    chain.store.create("tag/tag-2026-11-20", chain.store.read("branch/branch-delta/snapshot/snapshot-1"))
    with pytest.raises(FormatError):
        chain.latest_snapshot()
    alter_table(delta, [SetOption(key="tag.automatic-creation", value="batch")])
    assert chain.latest_snapshot() is None
    assert append(chain, "a").snapshot.id == 1


def test_temporary_files_are_no_records(table: Table) -> None:
    name = f".x.json.{'0' * 32}.tmp"
    for folder in ("_airflow_paimon/operations", "snapshot", "_airflow_paimon/branches"):
        table.store.create(f"{folder}/{name}", b"{half")
    assert found(table) == {}, "a young one may be in use"
    root = Path(table.store.uri.removeprefix("file://"))
    for path in (root / "snapshot" / name, root / "_airflow_paimon/operations" / name):
        os.utime(path, (path.stat().st_mtime - 2 * 86400,) * 2)
    assert set(found(table)) == {"temporary-files:snapshot", "temporary-files:_airflow_paimon/operations"}
    run(table, "repair_table")
    assert found(table) == {}
    assert table.store.walk("_airflow_paimon") == [f"_airflow_paimon/branches/{name}"]


def test_a_tag_that_an_expiry_has_overtaken_can_be_removed(table: Table) -> None:
    append(table, "a")
    gone = json.loads(table.store.read("snapshot/snapshot-1")) | {"baseManifestList": "manifest-list-gone"}
    table.store.create("tag/tag-late", json.dumps(gone).encode())
    with pytest.raises(FormatError, match="of tag 'late' is missing"):
        expire_all(table)
    finding = found(table)["dangling-tag:main/late"]
    assert finding["by_name_only"] and finding["repair"] == "delete the tag"
    run(table, "repair_table", finding=["dangling-tag:main/late"])
    assert "late" not in table.tag_names()
    expire_all(table)


def test_a_snapshot_that_a_killed_writer_has_put_behind_the_oldest_one_goes(table: Table) -> None:
    for _ in range(4):
        append(table, "a")
    late = table.store.read("snapshot/snapshot-1")
    expire_all(table)
    oldest = table.snapshot_ids()[0]
    table.store.create("snapshot/snapshot-1", late)
    assert set(found(table)) == {"snapshot-left-behind:main/1"}
    run(table, "repair_table")
    assert table.snapshot_ids() == [oldest]
    assert (table.store.read("snapshot/EARLIEST"), found(table)) == (str(oldest).encode(), {})


def test_the_hint_of_a_commit_to_a_branch_that_was_just_deleted_goes(table: Table) -> None:
    append(table, "a")
    table.store.create("branch/branch-gone/snapshot/LATEST", b"7")
    assert not found(table)["branch-without-schema:gone"]["by_name_only"]
    run(table, "repair_table")
    assert (found(table), table.branch_names()) == ({}, [])


def test_a_commit_leaves_no_hint_in_the_folder_of_a_branch_that_was_just_deleted(table: Table) -> None:
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())

    class Late(_Wrapper):
        def replace(self, path: str, data: bytes) -> None:
            if path == "branch/branch-fix/snapshot/LATEST":
                for left in self.inner.walk("branch/branch-fix"):
                    self.inner.delete(left)
            super().replace(path, data)

    append(Table(Late(table.store), table.name, "fix"), "a", seq=9)
    assert table.store.walk("branch") == []


def expire_all(table: Table) -> None:
    asked = {"older_than": "0 s", "retain_min": 1, "grace": "0 s", "writers_stopped": True, "retry_window": "0 s"}
    run(table, "expire_snapshots", **asked, now=str(int(time.time() * 1000) + 1000))


def test_what_states_share_is_read_and_looked_for_once(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    for number in range(6):
        append(table, f"p{number}")
        run(table, "create_tag", tag=f"t{number}")
    store = CountingStore(table.store)
    counted = Table(store, table.name)
    assert list(file_findings(counted, LiveStates(counted))) == []
    read = [path for method, paths in store.tally.log if method == "read_many" for path in paths.split(", ")]
    manifests = [path for path in read if "/manifest-" in path and "list" not in path]
    assert len(manifests) == len(set(manifests)) == 6
    assert [path for method, path in store.tally.log if method == "files"] == [table.store.uri]
    assert not [path for _, path in store.tally.log if "bucket-" in path]


def test_the_keys_of_a_table_are_read_once_also_where_one_is_there_twice(tmp_path: Path) -> None:
    table, read = make_table(tmp_path, **{"merge-engine": "first-row"}), []
    append(table, "a")

    def keys_twice(view: Table, head: Snapshot) -> Iterator[tuple[BucketKey, str | None]]:
        read.append(head.id)
        yield BucketKey(message(table, "a").partition, 0), "k=1"

    findings = find_all(table, 0, verify_files=False, rows=RowChecks(keys_twice=keys_twice))
    assert [f.kind for f in findings] == ["keys-twice"] and read == [1]


def test_no_paths_are_made_where_no_files_are_verified(tmp_path: Path) -> None:
    """Not every value of a partition has one."""
    columns, options = (("k", "BIGINT NOT NULL"), ("p", "BYTES NOT NULL")), {"bucket": "-1"}
    table = create_table(str(tmp_path), "d.t", columns, partition_keys=["p"], primary_keys=[], options=options)
    stored = encode_row((b"x",), table.schema().partition_types)
    commit_append(
        table, [replace(message(make_table(tmp_path, "d.o", primary=False), "a"), partition=stored)], planned_on=None
    )
    assert run(table, "check_table", verify_files=False).details["ok"]


@pytest.mark.parametrize("where", ["main", "other"])
@pytest.mark.parametrize("columns", ["the same", "others", "of another job"])
def test_files_of_a_schema_that_a_branch_lacks(table: Table, where: str, columns: str) -> None:
    """A job of branch ``v2`` was resumed on another branch from its savepoint, with the last files of ``v2``."""
    for name in ("v2", "other"):
        run(table, "create_branch", branch=name, snapshot=1)
    job, view = table.branch("v2"), table.branch(where)
    rewrite(job, "a", user="job")
    change = AddColumn(name="more", type="INT") if columns == "others" else SetOption(key="a", value="b")
    written_with = alter_table(job, [change])
    alter_table(job, [SetOption(key="a", value="c")])
    rewrite(job, "b", user="job")
    before = view.latest_snapshot_id()
    lost = message(view, "a", seq=3)
    lost = replace(lost, new_files=(lost.new_files[0]._replace(schema_id=written_with.id + 1),))
    user = "job" if columns != "of another job" else "other"
    commit_append(view, [lost], planned_on=None, options=CommitOptions(identity=CommitIdentity(user=user)))
    append(view, "c")
    finding = found(table)[name := f"missing-schema:{where}"]
    assert f"--snapshot {before})" in finding["at_risk"] and (finding["repair"] is not None) == (columns == "the same")
    assert (read_health(table, 0).score == 0) == (where == "main")
    if columns == "the same":
        assert not run(table, "repair_table").changed
        run(table, "repair_table", finding=[name])
        assert view.schema().content == view.schema(0).content and view.schema().id == written_with.id + 1
        plan_read(plan_scan(view))
    else:
        with pytest.raises(NotFoundError):
            plan_read(plan_scan(view))
        run(table, "rollback_to", branch=where, snapshot=before)
    assert name not in found(table)
