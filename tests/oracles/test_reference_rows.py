"""The table "What the reference engine does" (measured on connector 2.0.0) as tests: each row that is not about chain
tables, named, and what ours does in that case, with Paimon's Java engine (O3) on the other side.

Rows about chain tables are in tests/data/chain/test_read.py and tests/core/test_chain*.py.
"""

from __future__ import annotations

import ast
import datetime as dt
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.table.inspect import inspect
from airflow_paimon.data import write_arrow
from tests.environment import REPO_ROOT
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import ALWAYS_EXPIRING, World
from tests.oracles.processes import OracleError

pytestmark = pytest.mark.oracle

HERE = "tests/oracles/test_reference_rows.py"
PUBLISH = "tests/oracles/test_interop_publish.py"
ROWS = {
    "4 JVMs x 40 single-row commits to one append table, local disk": (
        "tests/core/commit/test_other_writers.py"
        "::test_eight_processes_lose_no_commit_and_leave_no_gap_though_some_are_killed_or_stopped"
    ),
    "branch from tag; main overwritten; tag deleted; snapshots expired": f"{HERE}::test_a_branch_outlives_its_tag",
    "branch from tag, branch overwritten and expired, the branch's copy of the tag deleted": (
        f"{HERE}::test_main_outlives_what_a_branch_expires"
    ),
    "branch with tags on main and in the branch, plus a later main tag; the branch's ordinary automatic expiry": (
        f"{HERE}::test_automatic_expiry_on_a_branch_breaks_nothing"
    ),
    "`expire_tags(older_than)`": f"{HERE}::test_an_expired_protective_tag_is_found_and_put_back",
    "stream writer open on main; branch published; the writer then commits a newer row": (
        f"{PUBLISH}::test_a_writer_that_stays_open_over_a_publish_keeps_winning"
    ),
    "a session that had read main before a fast-forward": f"{HERE}::test_a_session_that_is_kept_reads_the_publish",
    "schema change on both main and the branch, then fast-forward": f"{HERE}::test_mains_column_is_never_lost",
    "fast-forward after main got a commit of its own": f"{HERE}::test_mains_own_commit_is_never_lost",
    "`VERSION AS OF 'tag'` on `t$branch_b` where the tag is the branch's own": (
        f"{HERE}::test_a_tag_of_the_branchs_own_is_read_on_the_branch"
    ),
    "a directory `branch/branch-x` without a schema (half-made branch)": f"{HERE}::test_a_half_made_branch_is_mended",
    "30 days old files under `<table>/_airflow_paimon/`": f"{HERE}::test_old_private_files_survive_orphan_cleaning",
    "timestamp partition column: `$partitions`": f"{HERE}::test_partitions_of_a_timestamp_column_can_be_listed",
}
"""Row of the table -> the test that shows ours."""

START = "x1=a x2=b y1=c"


def test_every_row_has_a_test_that_exists() -> None:
    for where in ROWS.values():
        path, name = where.split("::")
        tree = ast.parse((REPO_ROOT / path).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, where


@pytest.fixture
def world(java_oracle: JavaOracle, tmp_path: Path) -> World:
    """Partitions x and y by Java, tag ``base`` on them."""
    world = World(tmp_path, java_oracle)
    world.create()
    world.write(START)
    world.do("create_tag", name="base")
    return world


def java_expires(world: World, branch: str | None = None) -> None:
    """All but the last snapshot, by hand."""
    world.do("expire_snapshots", branch, retain_max=1, retain_min=1, older_than_ms=int(time.time() * 1000) + 60_000)


def test_a_branch_outlives_its_tag(world: World) -> None:
    """Reference: branch from tag, main overwritten, tag deleted, snapshots expired: the branch is unreadable. Ours is
    held by a tag of its own."""
    world.run("create_branch", branch="fix", tag="base")
    world.write("x9=main", mode="overwrite")
    world.do("delete_tag", name="base")
    java_expires(world)
    assert world.both("fix") == START
    assert world.both() == "x9=main"
    world.run("rename_branch", branch="fix", to_branch="mended")
    world.write("x9=later", mode="overwrite")
    java_expires(world)
    assert world.both("mended") == START
    assert world.is_sound()


def test_main_outlives_what_a_branch_expires(world: World) -> None:
    """Reference: branch overwritten and expired, its copy of the tag deleted: main is unreadable. On a branch of
    ours no engine's automatic expiry runs, and it has no copy of the tag to delete."""
    world.alter(*({"change": "set_option", "name": n, "value": v} for n, v in ALWAYS_EXPIRING.items()))
    world.run("create_branch", branch="fix", tag="base")
    for value in "123":
        world.write(f"x9={value} y9={value}", branch="fix", mode="overwrite")
    assert [snapshot["id"] for snapshot in world.snapshots("fix")] == [1, 2, 3, 4]
    world.run("delete_tag", tag="base", branch="fix", if_missing="skip")
    assert world.both() == world.both(tag="base") == START
    assert world.both("fix") == "x9=3 y9=3"
    assert world.is_sound()


def test_automatic_expiry_on_a_branch_breaks_nothing(world: World) -> None:
    """Reference: tags on main and in the branch and a later main tag; the branch's ordinary expiry makes the earlier
    tag and a sibling branch unreadable. On branches of ours it does not run."""
    world.alter(*({"change": "set_option", "name": n, "value": v} for n, v in ALWAYS_EXPIRING.items()))
    world.run("create_branch", branch="fix", tag="base")
    world.run("create_branch", branch="sibling", tag="base")
    world.write("x1=main", mode="overwrite", partition={"p": "x"})
    world.do("create_tag", name="later")
    world.do("create_tag", branch="fix", name="own")
    for value in "1234":
        world.write(f"x1={value}", branch="fix", mode="overwrite")
        world.write(f"y2={value}")
    assert world.both("fix") == "x1=4"
    assert world.both("sibling") == world.both(tag="base") == world.text("fix", snapshot=1) == START
    assert world.both(tag="later") == "x1=main y1=c"
    assert world.both() == "x1=main y1=c y2=4"
    assert world.is_sound()


def test_an_expired_protective_tag_is_found_and_put_back(world: World) -> None:
    """Reference: `expire_tags(older_than)` deletes tags that have no retention, too; our protective tag is one."""
    world.run("create_branch", branch="fix", tag="base")
    expired = world.do("expire_tags", older_than_ms=int(time.time() * 1000) + 60_000)["expired"]
    assert sorted(expired) == ["airflow-paimon-branch-fix", "base"]
    (finding,) = world.run("check_table").details["findings"]
    assert finding["id"] == "unprotected-branch:fix"
    world.run("repair_table")
    world.write("x9=main", mode="overwrite")
    java_expires(world)
    assert world.both("fix") == START
    assert world.is_sound()


def test_a_session_that_is_kept_reads_the_publish(world: World) -> None:
    """Reference: a session that had read main goes on reading the snapshot that the fast-forward replaced, also by its
    number. Ours replaces no snapshot."""
    world.run("create_branch", branch="fix", tag="base")
    world.correct("fix", "x1=A")
    world.java.open_session(world.warehouse, "open")
    assert world.text(session="open") == START
    world.run("fast_forward", branch="fix")
    assert world.text(session="open") == world.both() == "x1=A x2=b y1=c"
    assert world.text(session="open", snapshot=2) == "x1=A x2=b y1=c"
    assert world.text(session="open", snapshot=1) == START
    world.java.close_session("open")


def test_mains_column_is_never_lost(world: World) -> None:
    """Reference: schema change on both sides, then fast-forward: main's column is gone. Ours: both are there."""
    for name in ("merged", "forwarded"):
        world.run("create_branch", branch=name, tag="base")
    world.alter({"change": "add_column", "name": "mains", "type": "INT"})
    for name, value in (("merged", "A"), ("forwarded", "AA")):
        world.alter({"change": "add_column", "name": name, "type": "INT"}, branch=name)
        world.correct(name, [{"p": "x", "k": 1, "v": value, name: 1}])
    world.run("merge_branch", branch="merged")
    assert world.same(columns=["p", "k", "v", "mains", "merged"])[0] == ("x", 1, "A", None, 1)
    world.run("fast_forward", branch="forwarded", discard_main=True)
    columns = ["p", "k", "v", "mains", "merged", "forwarded"]
    assert world.same(columns=columns)[0] == ("x", 1, "AA", None, None, 1)


def test_mains_own_commit_is_never_lost(world: World) -> None:
    """Reference: fast-forward after main got a commit of its own succeeds, and the commit is gone. Ours refuses (4)."""
    world.run("create_branch", branch="fix", tag="base")
    world.correct("fix", "x1=A")
    world.write("y2=main")
    with pytest.raises(UnsafeOperationError, match=r"p=y/bucket-0") as refused:
        world.run("fast_forward", branch="fix")
    assert refused.value.exit_code == 4
    assert world.both() == "x1=a x2=b y1=c y2=main"
    world.run("merge_branch", branch="fix")
    assert world.both() == "x1=A x2=b y1=c y2=main"


def test_a_tag_of_the_branchs_own_is_read_on_the_branch(world: World) -> None:
    """Reference: `VERSION AS OF 'ft'` on `t$branch_b`, where the branch has the tag: "Tag 'ft' doesn't exist"."""
    world.run("create_branch", branch="fix", tag="base")
    world.correct("fix", "x1=A")
    world.run("create_tag", tag="ft", branch="fix")
    world.correct("fix", "x1=AA")
    with pytest.raises(OracleError, match="Tag 'ft' doesn't exist"):
        world.text("fix", tag="ft")
    assert [row[2] for row in world.our_rows("fix", "ft")] == ["A", "b", "c"]
    assert [row[2] for row in world.our_rows(None, "fix.ft")] == ["A", "b", "c"]


def test_a_half_made_branch_is_mended(world: World) -> None:
    """Reference: for a branch without a schema remove_orphan_files refuses for the whole table. This one is as a killed
    create_branch of Paimon's leaves it, which copies the schemas last."""
    stray = world.root / "branch" / "branch-x" / "snapshot"
    stray.mkdir(parents=True)
    (stray / "snapshot-1").write_bytes((world.root / "snapshot" / "snapshot-1").read_bytes())
    older = {"older_than_ms": int(time.time() * 1000) + 60_000}
    with pytest.raises(OracleError, match=r"Branches \[x\] have no schemas. Orphan files cleaning aborted"):
        world.do("remove_orphans", **older)
    (finding,) = world.run("check_table").details["findings"]
    assert finding["id"] == "branch-without-schema:x"
    world.run("repair_table", finding=[finding["id"]])
    world.do("remove_orphans", **older)
    assert world.both() == START


def test_old_private_files_survive_orphan_cleaning(world: World) -> None:
    """Reference: files of 30 days under `_airflow_paimon/` are left alone, also one named `data-1.parquet`; unknown
    files in `snapshot/`, `manifest/` and bucket folders go. So our hints and journals live there."""
    world.run("create_branch", branch="fix", tag="base", operation_id="op")
    private = world.root / "_airflow_paimon"
    (private / "data-1.parquet").write_bytes(b"x")
    strays = [world.root / "manifest" / "manifest-stray", world.root / "p=x" / "bucket-0" / "data-stray.parquet"]
    for stray in strays:
        stray.write_bytes(b"x")
    files = sorted(path for path in private.rglob("*") if path.is_file())
    assert len(files) > 1
    month = time.time() - 30 * 86_400
    for path in [*files, *strays]:
        os.utime(path, (month, month))
    world.do("remove_orphans", older_than_ms=int(time.time() * 1000) - 86_400_000)
    assert [stray for stray in strays if stray.exists()] == []
    assert sorted(path for path in private.rglob("*") if path.is_file()) == files
    assert world.both("fix") == START


def test_orphans_that_java_makes_go_and_uncommitted_files_of_its_writers_stay(world: World) -> None:
    """Reference: Java's cleaning lists the uncommitted files of a writer that is still at work; ours keeps them.

    Java deletes a branch and rolls main back, which leaves files; all files are two days old, but for one that the
    open writer has just put.
    """
    world.do("create_branch", name="gone", tag="base")
    world.write("x1=gone", branch="gone")
    world.run("create_branch", branch="fix", tag="base")
    world.write("x1=fix", branch="fix")
    world.write("y1=taken-back")
    left = world.data_files() - world.live_files("fix") - world.live_files()
    world.do("delete_branch", name="gone")
    world.do("rollback", snapshot=1)
    orphans = {p for p in world.data_files() if p not in world.live_files() | world.live_files("fix")}
    assert len(orphans) > len(left) > 0
    with world.java.open_stream_writer(world.warehouse, "d.t", commit_user="slow") as writer:
        writer.write([{"p": "x", "k": 7, "v": "slow"}])
        writer.prepare()
        two_days_ago = time.time() - 2 * 86_400
        for path in world.root.rglob("*"):
            if path.is_file():
                os.utime(path, (two_days_ago, two_days_ago))
        writer.write([{"p": "x", "k": 8, "v": "slow"}])
        writer.prepare()
        uncommitted = world.data_files() - orphans - world.live_files() - world.live_files("fix")
        assert len(uncommitted) == 2
        planned = world.run("remove_orphan_files", dry_run=True).details
        done = world.run("remove_orphan_files").details
        assert planned["files"] == done["files"] >= len(orphans)
        assert (done["kept_for_writers"]["files"], done["young"]["files"]) == (1, 1)
        assert world.data_files().isdisjoint(orphans) and uncommitted <= world.data_files()
        listed = world.do("remove_orphans", older_than_ms=int((time.time() - 86_400) * 1000), dry_run=True)["paths"]
        assert len(listed) == 1 and any(listed[0].endswith(name.rpartition("/")[2]) for name in uncommitted)
        writer.commit()
    assert world.both() == "x1=a x2=b x7=slow x8=slow y1=c"
    assert world.both("fix") == "x1=fix x2=b y1=c"
    assert world.both(tag="base") == START
    assert world.is_sound()


def test_partitions_of_a_timestamp_column_can_be_listed(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """Reference: `$partitions` of a timestamp partition column fails with a DateTimeParseException."""
    world = World(tmp_path, java_oracle)
    world.create({"p": "TIMESTAMP(3)", "k": "INT"}, primary_keys=(), bucket="-1")
    moments = [dt.datetime(2025, 8, 14), dt.datetime(2025, 8, 14, 1, 2, 3, 4000), None]
    rows = pa.table({"p": pa.array(moments, pa.timestamp("ms")), "k": pa.array([1, 2, 3], pa.int32())})
    write_arrow(world.main, rows)
    with pytest.raises(OracleError, match="DateTimeParseException"):
        java_oracle.read(tmp_path, "d.t$partitions")
    listed = inspect(world.main, "partitions")
    assert sorted(listed.column("partition").to_pylist()) == [
        "p=2025-08-14 00:00:00",
        "p=2025-08-14 01:02:03.004",
        "p=__DEFAULT_PARTITION__",
    ]
    assert listed.column("record_count").to_pylist() == [1, 1, 1]
