"""Branches made and published by our core, with Paimon's own engines on the other side: what they read, and what a
writer that stays open over the publish ends with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import ConflictError, UnsafeOperationError
from airflow_paimon.data import write_arrow
from tests.oracles.canonical import canonical_rows
from tests.oracles.drivers import JavaOracle, PypaimonOracle, RustOracle, SparkConnectorOracle
from tests.oracles.interop import ALWAYS_EXPIRING, World, python_and_rust_rows, shown
from tests.oracles.processes import OracleError

pytestmark = pytest.mark.oracle

START = "x1=a x2=b y1=c z1=d"


@pytest.fixture
def world(java_oracle: JavaOracle, tmp_path: Path) -> World:
    """Partitions x, y, z by Java; tag ``base`` on its first snapshot; branch ``fix`` made from it by us."""
    world = World(tmp_path, java_oracle)
    world.create()
    start(world)
    return world


def start(world: World) -> None:
    world.write(START)
    world.do("create_tag", name="base")
    world.run("create_branch", branch="fix", tag="base")


def test_every_engine_reads_main_after_publish_and_rollback(
    world: World,
    pypaimon_oracle: PypaimonOracle,
    rust_oracle: RustOracle,
    connector_oracle: SparkConnectorOracle,
) -> None:
    """O1, O2, O3 (a fresh and a kept session), O4 and we read the same rows of main, branch and history."""
    java = world.java
    java.open_session(world.warehouse, "kept")
    assert world.text(session="kept") == world.text("fix", session="kept") == START
    world.correct("fix", "x1=A")
    world.write("z1=D z2=E", branch="fix")
    world.write("y2=m")

    def everyone(expected: str, branch: str | None = None) -> None:
        assert world.both(branch) == world.text(branch, session="kept") == expected
        assert shown(python_and_rust_rows(world, pypaimon_oracle, rust_oracle, branch=branch)) == expected
        name = f"`t$branch_{branch}`" if branch else "t"
        spark = connector_oracle.sql(world.warehouse, f"SELECT p, k, v FROM d.{name}")
        assert shown(canonical_rows(spark)) == expected

    published = "x1=A x2=b y1=c y2=m z1=D z2=E"
    world.run("merge_branch", branch="fix", writers_stopped=True)
    everyone(published)
    everyone("x1=A x2=b y1=c z1=D z2=E", "fix")
    before = "x1=a x2=b y1=c y2=m z1=d"
    assert world.both(snapshot=2) == world.text(snapshot=2, session="kept") == before
    world.run("rollback_to", tag="base")
    everyone(START)
    for time_travel in ({"snapshot": 3}, {"tag": "base"}):
        expected = published if "snapshot" in time_travel else START
        assert world.both(**time_travel) == expected
        for oracle in (pypaimon_oracle, rust_oracle):
            read = oracle.read(world.warehouse, "d.t", columns=["p", "k", "v"], **time_travel)
            assert shown(canonical_rows(read)) == expected
    # They go on writing on top of it; pypaimon can't read manifests of 0.9, so it is not asked any more after O4.
    world.write("z9=o3")
    everyone("x1=a x2=b y1=c z1=d z9=o3")
    connector_oracle.sql(world.warehouse, "INSERT INTO d.t VALUES (9, 'o4', 'y')")
    everything = "x1=a x2=b y1=c y9=o4 z1=d z9=o3"
    assert world.both() == world.text(session="kept") == everything
    assert shown(canonical_rows(rust_oracle.read(world.warehouse, "d.t", columns=["p", "k", "v"]))) == everything
    java.close_session("kept")
    assert world.is_sound()


def test_every_engine_goes_on_after_main_was_replaced(
    world: World,
    pypaimon_oracle: PypaimonOracle,
    rust_oracle: RustOracle,
) -> None:
    """A writer of Java stays open over it; Java adds a column and an option to the branch first, and reads and writes
    main, the branch and what was kept afterwards; then main comes back."""
    java = world.java
    java.open_session(world.warehouse, "kept")
    assert world.text(session="kept") == START
    world.alter({"change": "set_option", "name": "compaction.min.file-num", "value": "3"}, branch="fix")
    world.alter({"change": "add_column", "name": "w", "type": "INT"}, branch="fix")
    world.correct("fix", [{"p": "x", "k": 1, "v": "A", "w": 7}])
    world.run("create_tag", tag="day-1", branch="fix")
    with java.open_stream_writer(world.warehouse, "d.t", commit_user="stream") as writer:
        writer.write([{"p": "z", "k": 1, "v": "stream"}])
        world.run("replace_main", branch="fix", keep_old_as="before")
        columns = ("p", "k", "v", "w")
        assert world.same(columns=columns) == world.same("fix", columns)
        assert world.same(columns=columns)[0] == ("x", 1, "A", 7)
        assert python_and_rust_rows(world, pypaimon_oracle, rust_oracle, columns) == world.same(columns=columns)
        assert world.both("before") == world.both(snapshot=1) == START
        assert world.both(tag="day-1") == world.text(session="kept") == "x1=A x2=b y1=c z1=d"
        assert writer.commit()["commitUser"] == "stream"
    assert world.both() == "x1=A x2=b y1=c z1=stream"
    assert world.main.schema().options["compaction.min.file-num"] == "3"
    world.write([{"p": "y", "k": 2, "v": "m", "w": 1}])
    world.write([{"p": "y", "k": 3, "v": "f", "w": 2}], branch="fix")
    assert world.both("fix") == "x1=A x2=b y1=c y3=f z1=d"
    assert world.both() == "x1=A x2=b y1=c y2=m z1=stream"
    world.run("replace_main", branch="before", discard_main=True)
    assert world.both() == world.text(session="kept") == START
    world.write("y1=again")
    assert world.both() == "x1=a x2=b y1=again z1=d"
    java.close_session("kept")
    assert world.is_sound()


@pytest.mark.parametrize("operation", ["merge_branch", "fast_forward"])
def test_a_writer_that_stays_open_over_a_publish_keeps_winning(world: World, operation: str) -> None:
    """No sequence.field: internal numbers decide. The writer numbers its row before the publish, commits it after."""
    with world.java.open_stream_writer(world.warehouse, "d.t", commit_user="stream") as writer:
        for number in range(1, 4):
            world.correct("fix", f"x1=fix-{number} x3=fix-{number}")
        writer.write([{"p": "x", "k": 1, "v": "stream"}])
        world.run(operation, branch="fix")
        assert world.both() == "x1=fix-3 x2=b x3=fix-3 y1=c z1=d"
        assert writer.commit()["commitUser"] == "stream"
        assert world.both() == "x1=stream x2=b x3=fix-3 y1=c z1=d"
        writer.write([{"p": "x", "k": 3, "v": "stream"}])
        writer.commit()
    expected = "x1=stream x2=b x3=stream y1=c z1=d"
    assert world.both() == expected
    world.do("compact", full=True)
    assert world.both() == expected


def test_a_writer_that_stays_open_would_lose_to_an_upserted_branch(world: World) -> None:
    """Why a branch bucket with higher numbers is folded: published on the word ``writers_stopped``, it hides the newer
    row of a writer that had not stopped."""
    for number in range(1, 4):
        world.write(f"x1=fix-{number}", branch="fix")
    with world.java.open_stream_writer(world.warehouse, "d.t") as writer:
        writer.write([{"p": "x", "k": 1, "v": "stream"}])
        world.run("merge_branch", branch="fix", writers_stopped=True)
        writer.commit()
    assert world.both() == "x1=fix-3 x2=b y1=c z1=d"


@pytest.mark.parametrize("ours", [False, True])
def test_a_folded_branch_lets_the_open_writer_win(world: World, ours: bool) -> None:
    """What Java or we upserted into the branch is folded, deletions too, below the numbers that main may give."""
    if ours:
        rows = {"p": ["x"] * 3, "k": pa.array([1, 3, 2], pa.int32()), "v": ["fix", "fix", None]}
        write_arrow(world.branch("fix"), pa.table({**rows, "_row_kind": ["+I", "+I", "-D"]}))
    else:
        world.write("x1=fix x3=fix", branch="fix")
        world.write([{"p": "x", "k": 2, "v": None, "_row_kind": "-D"}], branch="fix")
    with world.java.open_stream_writer(world.warehouse, "d.t") as writer:
        writer.write([{"p": "x", "k": 1, "v": "stream"}])
        world.run("merge_branch", branch="fix")
        assert world.both() == world.both("fix") == "x1=fix x3=fix y1=c z1=d"
        writer.commit()
    assert world.both() == "x1=stream x3=fix y1=c z1=d"


def test_a_writers_compaction_of_replaced_files_is_refused_by_java_itself(
    java_oracle: JavaOracle, tmp_path: Path
) -> None:
    """A compaction that was prepared before the publish names files that main has no more: Java refuses the commit, the
    job starts anew and nothing is lost."""
    world = World(tmp_path, java_oracle)
    world.create(**{"num-sorted-run.compaction-trigger": "2"})
    start(world)
    world.correct("fix", "x1=A")
    with world.java.open_stream_writer(world.warehouse, "d.t", commit_user="stream") as writer:
        for number in range(3):
            writer.write([{"p": "x", "k": 1, "v": f"stream {number}"}])
            writer.prepare()
        world.run("merge_branch", branch="fix")
        with pytest.raises(OracleError, match="File deletion conflicts detected"):
            writer.commit()
    world.write("x1=again")
    assert world.both() == "x1=again x2=b y1=c z1=d"


def test_a_branch_with_five_commits_of_java_is_one_snapshot_of_main(world: World) -> None:
    for rows in ("w1=1", "w2=2", "y2=3", "y3=4", "y2=5"):
        world.write(rows, branch="fix")
    world.write("x3=main")
    published = "w1=1 w2=2 x1=a x2=b x3=main y1=c y2=5 y3=4 z1=d"
    result = world.run("merge_branch", branch="fix", writers_stopped=True, approved_by="ana")
    assert world.both() == published
    kinds = [(snapshot["id"], snapshot["commitKind"]) for snapshot in world.snapshots()]
    assert kinds == [(1, "APPEND"), (2, "APPEND"), (3, "OVERWRITE")]
    assert [snapshot["id"] for snapshot in world.snapshots("fix")] == [1, 2, 3, 4, 5, 6]
    head = world.snapshots()[-1]
    assert head["properties"]["airflow-paimon.approved-by"] == "ana"
    assert (head["totalRecordCount"], head["deltaRecordCount"]) == (10, 5)
    # What comes in elsewhere stays when the publish is undone; where the publish itself was overtaken, undo refuses.
    world.write("x4=later")
    undo: dict[str, Any] = {"tag": result.details["undo_tag"], "keep_later": True}
    world.run("rollback_to", **undo)
    assert world.both() == "x1=a x2=b x3=main x4=later y1=c z1=d"


def test_an_undo_refuses_where_java_wrote_the_same_keys_after_the_publish(world: World) -> None:
    world.correct("fix", "x1=A y1=C")
    undo = world.run("merge_branch", branch="fix").details["undo_tag"]
    world.write("y1=later")
    with pytest.raises(ConflictError, match=r"1 keys, \(p=y, k=1\)"):
        world.run("rollback_to", tag=undo, keep_later=True)
    assert world.both() == "x1=A x2=b y1=later z1=d"
    # A compaction by Java is no change of rows, so it does not stand in the way.
    world.do("compact", full=True)
    with pytest.raises(ConflictError, match=r"1 keys, \(p=y, k=1\)"):
        world.run("rollback_to", tag=undo, keep_later=True)
    world.run("rollback_to", tag=undo)
    assert world.both() == START


@pytest.mark.parametrize("options", [{}, ALWAYS_EXPIRING])
def test_an_undo_goes_through_javas_compaction_and_expiry(
    java_oracle: JavaOracle, tmp_path: Path, options: dict[str, str]
) -> None:
    world = World(tmp_path, java_oracle)
    world.create(**options)
    start(world)
    world.correct("fix", "x1=A")
    undo = world.run("merge_branch", branch="fix").details["undo_tag"]
    world.write("y2=later")
    world.do("compact", full=True)
    assert not options or world.main.find_snapshot(world.main.tag(undo).snapshot.id + 1) is None
    world.run("rollback_to", tag=undo, keep_later=True)
    assert world.both() == "x1=a x2=b y1=c y2=later z1=d"


def test_what_main_changed_meanwhile_is_merged_or_refused(world: World) -> None:
    world.correct("fix", "x1=A")
    world.write("y1=main")
    world.do("compact", full=True)  # rewrites x, too, without changing a row
    world.run("merge_branch", branch="fix")
    assert world.both() == "x1=A x2=b y1=main z1=d"
    world.correct("fix", "x1=AA")
    world.run("merge_branch", branch="fix")
    assert world.both() == "x1=AA x2=b y1=main z1=d"
    world.correct("fix", "x1=AAA")
    world.write("x2=main")
    world.run("merge_branch", branch="fix")
    assert world.both() == "x1=AAA x2=main y1=main z1=d"
    world.correct("fix", "x2=fix")
    with pytest.raises(ConflictError, match=r"1 keys, \(p=x, k=2\)"):
        world.run("merge_branch", branch="fix")
    with pytest.raises(UnsafeOperationError, match="p=x/bucket-0, p=y/bucket-0"):
        world.run("fast_forward", branch="fix")
    assert world.both() == "x1=AAA x2=main y1=main z1=d"
    world.run("fast_forward", branch="fix", discard_main=True)
    assert world.both() == "x1=AAA x2=fix y1=c z1=d"


def test_how_streaming_readers_see_a_publish(world: World) -> None:
    """An OVERWRITE is skipped unless ``streaming-read-overwrite`` is set; then all rows of the files that went come as
    -D and all rows of those that came as +I: whole buckets, unchanged rows too."""
    start_at = {"scan.mode": "from-snapshot", "scan.snapshot-id": "2"}
    readers = {"plain": {}, "overwrite": {"streaming-read-overwrite": "true"}}
    for name, options in readers.items():
        world.java.open_stream_reader(world.warehouse, "d.t", name, options=start_at | options)
    world.correct("fix", "x1=A")
    world.run("merge_branch", branch="fix")
    world.write("y2=later")
    publish = ["x1=A +I", "x1=a -D", "x2=b +I", "x2=b -D"]
    seen = {name: _everything(world, name) for name in readers}
    assert seen == {"plain": ["y2=later +I"], "overwrite": [*publish, "y2=later +I"]}


def _everything(world: World, reader: str) -> list[str]:
    rows: list[str] = []
    for _ in range(5):
        read, following = world.java.stream_read(reader)
        names = ["p", "k", "v", "_row_kind"]
        rows += [f"{p}{k}={v} {kind}" for p, k, v, kind in canonical_rows(read, names)]
        if following == 4:
            break
    return rows


def test_java_fast_forwards_a_branch_that_we_made_and_corrected(world: World) -> None:
    """Main and its history are read right afterwards, by both, and both go on writing."""
    world.correct("fix", "x1=A")
    world.do("fast_forward", name="fix")
    corrected = "x1=A x2=b y1=c z1=d"
    assert world.both() == world.both("fix") == corrected
    assert world.both(snapshot=1) == START
    world.write("y2=m")
    assert world.both() == "x1=A x2=b y1=c y2=m z1=d"
    assert world.run("check_table").details["errors"] == 0
    world.run("rollback_to", tag="base")
    assert world.both() == START


def test_every_engine_reads_columns_that_both_sides_added_under_other_ids(
    world: World,
    pypaimon_oracle: PypaimonOracle,
    rust_oracle: RustOracle,
    connector_oracle: SparkConnectorOracle,
) -> None:
    """Java alters and writes both sides; the branch's files are read by main's field ids, and compacted with main's."""
    columns = ["p", "k", "v", "n", "w", "x"]
    world.alter({"change": "add_column", "name": "x", "type": "BIGINT"})
    world.alter({"change": "add_column", "name": "n", "type": "INT"})
    world.alter({"change": "add_column", "name": "n", "type": "INT"}, branch="fix")
    world.alter({"change": "add_column", "name": "w", "type": "STRING"}, branch="fix")
    ids = [{f.name: f.id for f in view.schema().fields} for view in (world.main, world.branch("fix"))]
    assert ids[0]["n"] != ids[1]["n"] == ids[0]["x"]
    world.write([{"p": "y", "k": 2, "v": "main", "x": 2**40, "n": 5}])
    world.write([{"p": "x", "k": 1, "v": "fix", "n": 7, "w": "why"}], branch="fix")
    world.run("merge_branch", branch="fix")

    def everyone(*rows: tuple[Any, ...]) -> None:
        expected = sorted(rows, key=str)
        spark = connector_oracle.sql(world.warehouse, f"SELECT {', '.join(columns)} FROM d.t")
        assert canonical_rows(spark, columns) == expected
        assert world.same(columns=columns) == expected
        assert python_and_rust_rows(world, pypaimon_oracle, rust_oracle, columns) == expected

    start = [("x", 2, "b", *[None] * 3), ("y", 1, "c", *[None] * 3), ("z", 1, "d", *[None] * 3)]
    published, mains = ("x", 1, "fix", 7, "why", None), ("y", 2, "main", 5, None, 2**40)
    everyone(*start, published, mains)
    world.write([{"p": "x", "k": 3, "v": "late", "x": 1, "n": 6, "w": "w"}])
    world.do("compact", full=True)
    everyone(*start, published, ("x", 3, "late", 6, "w", 1), mains)
