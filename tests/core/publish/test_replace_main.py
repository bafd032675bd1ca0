"""replace_main: what main takes over beside the rows, what is refused, how to go back, what main is the state of."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon import create_table, main_state
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    PaimonError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.publish.replace_main import replacement_of_main
from airflow_paimon.core.schema.schema_plan import AddColumn, DropColumn, RenameColumn, SetOption, WidenColumn
from airflow_paimon.core.store.failures import from_os_error
from airflow_paimon.core.table.options import PROTECTIVE_OPTIONS
from airflow_paimon.core.table.paths import STAGED_TAG_PREFIX
from airflow_paimon.core.table.properties import REPLACED_PROPERTY
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.publish.test_publish_killed import killed_at, perform
from tests.core.tables import alter_table, append, copied, files, rewrite, run
from tests.stores import Crash, FaultStore

OPTION = SetOption(key="compaction.min.file-num", value="3")


def replaced(table: Table, branch: str = "fix", **values: Any) -> Any:
    return run(table, "replace_main", branch=branch, writers_stopped=True, **values)


def shape(view: Table) -> tuple[Any, ...]:
    schema = view.schema()
    return schema.fields, dict(schema.options), schema.comment


def content(view: Table, folder: str) -> dict[str, bytes]:
    return {p: view.store.read(p) for p in view.store.walk(folder)}


def changed(fix: Table) -> None:
    alter_table(fix, [AddColumn(name="price", type="DOUBLE"), DropColumn(name="v"), OPTION])
    rewrite(fix, "a")
    append(fix, "z", seq=9)


def test_main_takes_rows_columns_and_options_and_keeps_its_own_about_expiry(table: Table, fix: Table) -> None:
    changed(fix)
    alter_table(table, [SetOption(key="snapshot.time-retained", value="2 h")])
    before, history, folder = shape(table), content(table, "snapshot"), content(table, "branch/branch-fix")
    state = files(table)
    planned = replaced(table, keep_old_as="old", dry_run=True)
    assert (planned.changed, table.branch_names()) == (True, ["fix"])
    assert planned.details["options"] == ["compaction.min.file-num: (not set) -> 3"]
    assert planned.details["columns"] == ["v: STRING -> (dropped)", "price: (none) -> DOUBLE"]
    done = replaced(table, keep_old_as="old")
    assert files(table) == files(fix)
    assert table.schema().fields == fix.schema().fields
    assert table.schema().options == before[1] | {"compaction.min.file-num": "3"}
    assert done.snapshot_after == 4
    assert table.latest_snapshot().commit_kind is CommitKind.OVERWRITE
    assert history.items() <= content(table, "snapshot").items() | {("snapshot/LATEST", history["snapshot/LATEST"])}
    assert content(table, "branch/branch-fix") == folder
    old = table.branch("old")
    assert files(old) == state
    assert (old.schema().fields, old.schema().comment) == (before[0], before[2])
    assert old.schema().options == before[1] | PROTECTIVE_OPTIONS
    assert run(table, "check_table").details["ok"]


def test_the_kept_branch_gives_rows_columns_and_options_back(table: Table, fix: Table) -> None:
    changed(fix)
    state, before = files(table), shape(table)
    replaced(table, keep_old_as="old")
    now = files(table)
    assert replaced(table, "old", keep_old_as="again").changed
    assert (files(table), shape(table)) == (state, before)
    assert files(table.branch("again")) == now
    assert main_state(table)["is_state_of"] == "old"
    assert replaced(table, "again").changed
    assert files(table) == now
    assert table.snapshot_ids() == [1, 2, 3, 4, 5, 6]
    assert run(table, "check_table").details["ok"]


def test_the_kept_branch_does_not_drop_what_main_got_since(table: Table, fix: Table) -> None:
    changed(fix)
    state = files(table)
    replaced(table, keep_old_as="old")
    append(table, "new")
    with pytest.raises(UnsafeOperationError, match=r"main changed dt=new/bucket-0 since .* replacing it would"):
        replaced(table, "old")
    assert replaced(table, "old", discard_main=True).changed
    assert files(table) == state


def test_the_undo_tag_gives_the_rows_back(table: Table, fix: Table) -> None:
    changed(fix)
    state = files(table)
    done = replaced(table)
    run(table, "rollback_to", tag=done.details["undo_tag"], keep_later=True)
    assert files(table) == state
    assert table.schema().fields == fix.schema().fields
    assert main_state(table)["is_state_of"] is None


def test_main_is_not_replaced_over_its_own_commits_unless_they_may_go(table: Table, fix: Table) -> None:
    changed(fix)
    append(table, "mine")
    with pytest.raises(UnsafeOperationError, match="main changed dt=mine/bucket-0"):
        replaced(table, keep_old_as="old")
    assert table.branch_names() == ["fix"]
    replaced(table, keep_old_as="old", discard_main=True)
    assert files(table) == files(fix)


def test_options_of_main_and_given_ones(table: Table, fix: Table) -> None:
    changed(fix)
    before = dict(table.schema().options)
    done = replaced(table, options="main", option=["file.compression=zstd", "manifest.merge-min-count = 9"])
    assert table.schema().options == before | {"file.compression": "zstd", "manifest.merge-min-count": "9"}
    assert done.details["options"] == [
        "file.compression: (not set) -> zstd",
        "manifest.merge-min-count: (not set) -> 9",
    ]


def test_options_alone_are_a_change_and_a_second_run_is_none(table: Table, fix: Table) -> None:
    alter_table(fix, [OPTION])
    assert replaced(table).changed
    assert table.schema().options["compaction.min.file-num"] == "3"
    assert not replaced(table).changed
    assert table.schema_ids() == fix.schema_ids() == [0, 1, 2]


def test_the_versions_of_the_branch_have_their_columns_on_main(table: Table, fix: Table) -> None:
    """A job that is resumed on main commits files that name any of them."""
    for change in (AddColumn(name="w", type="STRING"), RenameColumn(name="v", to_name="vv"),
                   RenameColumn(name="w", to_name="ww")):  # fmt: skip
        alter_table(fix, [change])
    replaced(table)
    assert [(s.id, s.content) for s in table.schemas()] == [(s.id, s.content) for s in fix.schemas()]


REFUSED: dict[str, tuple[list[Any], dict[str, Any], type[PaimonError], str]] = {
    "form": ([], {"option": ["bucket"]}, InvalidInputError, "not of the form key=value"),
    "value": ([], {"option": ["write-only=perhaps"]}, InvalidInputError, "write-only"),
    "engine": ([], {"option": ["merge-engine=first-row"]}, UnsupportedFeatureError, "merge-engine would change"),
    "vectors": ([], {"option": ["deletion-vectors.enabled=true"]}, UnsupportedFeatureError, "deletion-vectors.enabled"),
    "buckets": ([SetOption(key="bucket", value="4")], {"options": "main"}, UnsupportedFeatureError, "bucket=4"),
    "iceberg": ([SetOption(key="metadata.iceberg.storage", value="table-location")], {}, UnsupportedFeatureError,
                "Iceberg"),
    "itself": ([], {"keep_old_as": "fix"}, InvalidInputError, "which replaces it"),
    "name": ([], {"keep_old_as": "a b"}, InvalidInputError, "not allowed"),
    "taken": ([], {"keep_old_as": "other"}, AlreadyExistsError, "branch 'other' exists"),
    "snapshot": ([], {"expected_main_snapshot": 2}, ConflictError, "not at 2"),
    "consumer": ([], {"move_consumer": ["c"]}, InvalidInputError, "no consumer 'c'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_changes_nothing(table: Table, fix: Table, case: str) -> None:
    alters, values, error, message = REFUSED[case]
    run(table, "create_branch", branch="other", snapshot=1)
    rewrite(fix, "a")
    if alters:
        alter_table(fix, alters)
    before = content(table, "")
    with pytest.raises(error, match=message):
        replaced(table, **{"keep_old_as": "old", **values})
    assert content(table, "") == before


def test_a_branch_that_main_reads_beside_itself_can_not_replace_it(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    alter_table(table, [SetOption(key="scan.fallback-branch", value="fix")])
    with pytest.raises(UnsafeOperationError, match=r"scan\.fallback-branch names branch 'fix'"):
        replaced(table)


def test_columns_under_which_main_s_rows_can_not_be_read_need_a_word(table: Table, fix: Table) -> None:
    alter_table(table, [AddColumn(name="n", type="INT")])
    append(table, "m")
    run(table, "create_branch", branch="wide", snapshot=4)
    wide = table.branch("wide")
    alter_table(wide, [WidenColumn(name="n", type="BIGINT")])
    rewrite(wide, "m")
    replaced(table, "wide", keep_old_as="old")  # INT under BIGINT reads well
    with pytest.raises(UnsafeOperationError, match=r"n is INT, and on main BIGINT.*--readers-stopped"):
        replaced(table, "old")
    replaced(table, "old", readers_stopped=True)
    assert str(table.schema().field("n").type) == "INT"


def test_a_field_id_that_main_gave_to_another_column_is_refused(table: Table, fix: Table) -> None:
    changed(fix)
    alter_table(table, [AddColumn(name="mine", type="STRING")])
    with pytest.raises(ConflictError, match="field ids"):
        replaced(table, discard_main=True)


@pytest.mark.parametrize("operation", ["merge_branch", "replace_main"])
def test_a_renamed_key_comes_along(table: Table, fix: Table, operation: str) -> None:
    rewrite(fix, "a")
    alter_table(fix, [RenameColumn(name="k", to_name="id")])
    run(table, operation, branch="fix")
    assert table.schema().primary_keys == ("dt", "id")
    assert files(table) == files(fix)


def test_tags_of_the_branch_s_head_and_of_shared_snapshots_come_along(table: Table, fix: Table) -> None:
    run(fix.branch("main"), "create_tag", tag="shared", branch="fix", snapshot=fix.snapshot_ids()[0])
    rewrite(fix, "a")
    run(table, "create_tag", tag="between", branch="fix")
    rewrite(fix, "a")
    run(table, "create_tag", tag="day-1", branch="fix", time_retained="7 d", now="2026-01-01T00:00:00Z")
    done = replaced(table, now="2026-01-03T00:00:00Z")
    assert (done.details["tags"], done.details["tags_kept"]) == (["shared", "day-1"], ["between"])
    assert table.tag("shared").snapshot.identity == fix.tag("shared").snapshot.identity
    day = table.tag("day-1")
    assert day.snapshot.identity == table.latest_snapshot().identity
    assert day.time_retained == timedelta(days=5)
    assert day.expires_at() == fix.tag("day-1").expires_at()
    assert table.find_tag("between") is None
    assert not replaced(table).changed, "the tags that are there are no conflict"


def test_a_tag_name_that_both_have(table: Table, fix: Table) -> None:
    run(table, "create_tag", tag="day", snapshot=1)
    rewrite(fix, "a")
    run(table, "create_tag", tag="day", branch="fix")
    with pytest.raises(AlreadyExistsError, match="--tag-conflict"):
        replaced(table)
    replaced(table, tag_conflict="rename")
    assert table.tag("day").snapshot.id == 4
    assert table.tag(f"day.main-{datetime.now():%Y-%m-%d}").snapshot.id == 1
    rewrite(fix, "a")
    run(table, "create_tag", tag="day", branch="fix", if_exists="replace")
    replaced(table, tag_conflict="keep-main")
    assert table.tag("day").snapshot.id == 4


def test_a_consumer_that_has_read_all_of_the_branch_goes_on_on_main(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    head = fix.latest_snapshot_id()
    path = f"{fix.paths.consumer_dir}/consumer-etl"
    table.store.create(path, json.dumps({"nextSnapshot": head}).encode())
    table.store.create("consumer/consumer-bi", b'{"nextSnapshot": 3}')
    with pytest.raises(UnsafeOperationError, match="has not read"):
        replaced(table, move_consumer=["etl"])
    table.store.replace(path, json.dumps({"nextSnapshot": head + 1}).encode())
    done = replaced(table, move_consumer=["etl"])
    assert json.loads(table.store.read("consumer/consumer-etl")) == {"nextSnapshot": 5}
    assert "bi" in done.details["warnings"][0]


def test_the_branch_and_main_go_on_and_the_branch_is_published_again(table: Table, fix: Table) -> None:
    changed(fix)
    replaced(table)
    append(table, "mine")
    rewrite(fix, "z")
    assert main_state(table) == {
        "branch": "main",
        "is_state_of": "fix",
        "branch_snapshot": 5,
        "since_snapshot": 4,
        "kept_old_as": None,
        "diverged": True,
        "branch_exists": True,
    }
    assert run(table, "merge_branch", branch="fix", writers_stopped=True).changed
    wanted = files(fix) | {k: v for k, v in files(table).items() if b"mine" in k[0]}
    assert files(table) == wanted


def test_what_main_is_the_state_of_outlives_the_branch_and_an_undone_undo(table: Table, fix: Table) -> None:
    assert main_state(table)["is_state_of"] is None
    changed(fix)
    done = replaced(table)
    undone = run(table, "rollback_to", tag=done.details["undo_tag"])
    assert main_state(table)["is_state_of"] is None
    run(table, "rollback_to", tag=undone.details["undo_tag"])
    state = main_state(table.branch("fix"))
    assert (state["is_state_of"], state["since_snapshot"], state["diverged"]) == ("fix", 4, False)
    run(table, "delete_branch", branch="fix")
    assert main_state(table) == state | {"branch_exists": False}


def test_a_head_that_moved_before_the_put_is_the_one_that_is_kept(table: Table, fix: Table) -> None:
    """The kept branch is made of the head that the snapshot replaces, not of one that a writer has passed; it has the
    columns that main had before the first attempt put the branch's.
    """
    changed(fix)
    columns, moved = table.schema().fields, list[int]()

    def compete(method: str, path: str) -> None:
        if path == table.paths.snapshot(4) and not moved:
            moved.append(1)
            append(table, "late")

    done = perform(table, FaultStore(table.store, on_mutation=compete), "replace_main", branch="fix",
                   keep_old_as="old", writers_stopped=True, discard_main=True)  # fmt: skip
    assert moved
    assert done.details["columns"] == ["v: STRING -> (dropped)", "price: (none) -> DOUBLE"]
    assert done.details["new_schemas"] == [s for s in table.schema_ids() if s > 0]
    assert table.branch("old").latest_snapshot_id() == 4
    assert table.branch("old").schema().fields == columns
    assert files(table) == files(fix)
    assert replaced(table, "old").changed
    assert any(b"late" in k[0] for k in files(table))


@pytest.mark.parametrize("other", ["op", "other"])
def test_a_refused_try_leaves_what_another_one_has_made(table: Table, fix: Table, other: str) -> None:
    """While a try that the storage refuses deletes what it holds, another try, or operation, of the same name lands."""
    changed(fix)
    values = {"branch": "fix", "keep_old_as": "old", "writers_stopped": True}
    tries: list[str] = []

    def compete(method: str, path: str) -> None:
        if path == table.paths.snapshot(4) and not tries:
            tries.append("refused")
            raise from_os_error(OSError("no space left"), "creating", path, applied=False)
        if tries == ["refused"] and method == "delete" and STAGED_TAG_PREFIX in path:
            tries.append("landed")
            run(table, "replace_main", operation_id=other, **values)

    with pytest.raises(PaimonError):
        perform(table, FaultStore(table.store, on_mutation=compete), "replace_main", operation_id="op", **values)
    assert tries == ["refused", "landed"]
    assert main_state(table)["kept_old_as"] == "old"
    assert files(table) == files(fix)
    assert table.branch("old").latest_snapshot_id() == 3
    assert run(table, "check_table").details["findings"] == []


def test_a_name_that_is_taken_right_after_main_was_replaced(table: Table, fix: Table) -> None:
    """The snapshot is there, so the result says what keeps main as it was instead."""
    changed(fix)

    def compete(method: str, path: str) -> None:
        if path.startswith("tag/tag-airflow-paimon-undo"):
            run(table, "create_branch", branch="old", snapshot=1)

    values = {"branch": "fix", "keep_old_as": "old", "writers_stopped": True}
    done = perform(table, FaultStore(table.store, on_mutation=compete), "replace_main", **values)
    assert done.details["warnings"][-1].startswith("another process created branch 'old' in the meantime")
    assert table.tag(done.details["undo_tag"]).snapshot.id == 3
    assert table.branch("old").latest_snapshot_id() == 1 and files(table) == files(fix)


def test_tags_of_a_branch_that_is_deleted_before_they_are_set(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    run(table, "create_tag", tag="day", branch="fix")

    def compete(method: str, path: str) -> None:
        if path.startswith("tag/tag-airflow-paimon-undo"):
            run(table, "delete_branch", branch="fix", force=True)

    store = FaultStore(table.store, on_mutation=compete)
    done = perform(table, store, "replace_main", branch="fix", writers_stopped=True)
    assert done.details["tags"] == ["day"] and "day" not in table.tag_names()
    assert done.details["warnings"][-1].startswith("the branch was deleted or renamed since")


def test_a_retry_sets_the_tags_that_a_killed_try_has_left(table: Table, fix: Table) -> None:
    """One is on the publish, one on a snapshot of both, and one gets the name of main's own."""
    run(table, "create_tag", tag="shared", branch="fix", snapshot=fix.snapshot_ids()[0])
    rewrite(fix, "a")
    for name in ("day", "base"):
        run(table, "create_tag", tag=name, branch="fix", if_exists="replace")
    own = table.tag("base").snapshot.id
    values = {"branch": "fix", "writers_stopped": True, "tag_conflict": "rename", "operation_id": "op"}
    for step in range(1, 60):
        life = copied(table)
        try:
            perform(life, FaultStore(life.store, fail_at=step, error=Crash(), after=True), "replace_main", **values)
        except Crash:
            pass
        else:
            break
        run(life, "replace_main", **values)
        tags = {t.name: t.snapshot.id for t in life.tags() if not t.name.startswith("airflow-paimon-")}
        renamed = [tags.pop(name) for name in list(tags) if name.startswith("base.main-")]
        assert (tags, renamed) == ({"shared": 3, "day": 4, "base": 4}, [own]), step
    assert step > 20


def test_a_retry_leaves_the_tag_of_a_name_that_main_has_got_since(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    run(table, "create_tag", tag="v1", branch="fix")
    values: dict[str, Any] = {"branch": "fix", "tags": True, "tag_conflict": "rename", "operation_id": "op"}
    killed_at(table, table.paths.snapshot(4), "merge_branch", after=True, **values)
    assert table.latest_snapshot_id() == 4 and "v1" not in table.tag_names()
    run(table, "create_tag", tag="v1", snapshot=2)
    run(table, "merge_branch", writers_stopped=True, **values)
    assert table.tag("v1").snapshot.id == 2


@pytest.mark.parametrize("branch", ["fix", "other"])
def test_the_kept_branch_has_a_column_that_main_got_after_a_publish_was_killed(
    table: Table, fix: Table, branch: str
) -> None:
    run(table, "create_branch", branch="other", tag="base")
    for name in {"fix", branch}:
        rewrite(table.branch(name), "a")
    killed_at(table, table.paths.snapshot(4), "merge_branch", branch=branch, operation_id="killed")
    alter_table(table, [AddColumn(name="x", type="DOUBLE")])
    done = replaced(table, keep_old_as="old")
    assert "x" in table.branch("old").schema().field_names
    assert any("x" in line for line in done.details["columns"])


def test_the_kept_branch_lacks_the_options_that_a_killed_replacement_brought(table: Table, fix: Table) -> None:
    run(table, "create_branch", branch="other", tag="base")
    other, option = table.branch("other"), "compaction.min.file-num"
    alter_table(other, [SetOption(key=option, value="3")])
    for view in (fix, other):
        rewrite(view, "a")
    killed_at(table, table.paths.snapshot(4), "replace_main", branch="other", operation_id="killed")
    assert table.schema().options[option] == "3" and table.latest_snapshot_id() == 3
    replaced(table, keep_old_as="old")
    assert option not in table.branch("old").schema().options


def test_a_replacement_by_an_earlier_development_version_is_read(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    replaced(table, keep_old_as="old")
    head = table.require().latest_snapshot()
    assert head is not None
    now = replacement_of_main(head)
    said = json.dumps({**json.loads(head.properties[REPLACED_PROPERTY]), "branch": "fix", "tags": []})
    then = {**head.properties, REPLACED_PROPERTY: said}
    assert replacement_of_main(replace(head, properties=then)) == now is not None


@pytest.mark.parametrize("when", ["tag/tag-airflow-paimon-hold", "snapshot/snapshot-4"])
def test_a_refused_operation_leaves_what_another_one_has_kept(table: Table, fix: Table, when: str) -> None:
    """Another operation keeps main under the same name, and lands, before this one has kept it or afterwards."""
    changed(fix)
    before, others = files(table), []

    def compete(method: str, path: str) -> None:
        if path.startswith(when) and not others:
            others.append(1)
            replaced(table, keep_old_as="old", operation_id="other")

    with suppress(PaimonError):  # or it finds nothing left to do
        perform(table, FaultStore(table.store, on_mutation=compete), "replace_main", branch="fix", keep_old_as="old",
                writers_stopped=True, discard_main=True, operation_id="op")  # fmt: skip
    assert others
    assert files(table.branch("old")) == before
    assert main_state(table)["kept_old_as"] == "old"


def test_a_retry_leaves_the_branch_that_another_operation_has_found(table: Table, fix: Table) -> None:
    """The first try was killed after it had kept main; another operation landed with that branch."""
    changed(fix)
    before = files(table)

    def die(method: str, path: str) -> None:
        if path == table.paths.snapshot(4):
            raise Crash

    values = {"branch": "fix", "keep_old_as": "old", "writers_stopped": True, "discard_main": True}
    with pytest.raises(Crash):
        perform(table, FaultStore(table.store, on_mutation=die), "replace_main", operation_id="op", **values)
    run(table, "replace_main", operation_id="other", **values)
    append(table, "late")
    with pytest.raises(AlreadyExistsError, match="choose another name"):
        run(table, "replace_main", operation_id="op", **values)
    assert files(table.branch("old")) == before


def test_a_schema_that_main_gets_meanwhile_does_not_stay_its_newest(table: Table, fix: Table) -> None:
    """Nothing of the columns changes, so the put of a schema can't find out."""
    rewrite(fix, "a")
    altered: list[int] = []

    def compete(method: str, path: str) -> None:
        if path.startswith("manifest/manifest-list") and not altered:
            altered.append(1)
            alter_table(table, [OPTION])

    perform(table, FaultStore(table.store, on_mutation=compete), "replace_main", branch="fix")
    assert altered
    assert "compaction.min.file-num" not in table.schema().options
    assert table.latest_snapshot().schema_id == table.schema().id == 2


def test_row_ids_of_the_branch_are_shifted_past_main_s(tmp_path: Path) -> None:
    """Both sides gave the same ids to different rows; after it every row has an id of its own, and the kept branch its
    old ones."""
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    table = create_table(str(tmp_path / "wh"), "d.t", [("v", "STRING")], options=options)

    def write(view: Table, *values: str) -> None:
        write_arrow(view, pa.table({"v": list(values)}))

    def ids(view: Table) -> dict[str, int]:
        found = read_arrow(view, columns=["v", "_ROW_ID"]).to_pylist()
        return {row["v"]: row["_ROW_ID"] for row in found}

    write(table, "a", "b")
    run(table, "create_branch", branch="fix", snapshot=1)
    write(table.branch("fix"), "fixed", "more")
    write(table, "main", "also", "third")
    before = ids(table)
    replaced(table, keep_old_as="old", discard_main=True)
    assert ids(table) == {"a": 0, "b": 1, "fixed": 5, "more": 6}
    assert ids(table.branch("old")) == before
    write(table, "next")
    assert ids(table)["next"] == 7
    replaced(table, "old", discard_main=True)
    assert ids(table) == before
    write(table, "last")
    assert ids(table)["last"] == 8
    assert run(table, "check_table").details["ok"]


@pytest.mark.parametrize("kind", ["keyed", "append", "tracked"])
def test_a_table_that_was_rebuilt_in_an_empty_branch_replaces_main(tmp_path: Path, kind: str) -> None:
    columns = [("k", "INT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")]
    options = {"keyed": {"bucket": "2"}, "append": {}, "tracked": {"row-tracking.enabled": "true"}}[kind]
    keys = {"primary_keys": ["dt", "k"] if kind == "keyed" else [], "partition_keys": ["dt"]}
    main = create_table(str(tmp_path), "d.t", columns, options=options, **keys)

    def put(view: Table, name: str, *numbers: int, **more: Any) -> None:
        rows = [{"k": k, "v": f"{name}{k}", "dt": "ab"[k % 2], **more} for k in numbers]
        write_arrow(view, pa.Table.from_pylist(rows, read_arrow(view).schema))

    put(main, "old", 1, 2, 3)
    run(main, "create_branch", branch="rebuilt")
    rebuilt = main.branch("rebuilt")
    alter_table(rebuilt, [AddColumn(name="price", type="INT")])
    put(rebuilt, "new", 2, 3, price=7)
    put(rebuilt, "new", 4, price=8)
    put(main, "late", 5)
    before = read_arrow(main).sort_by("k")
    with pytest.raises(UnsafeOperationError, match="replace_main --discard-main if it was created empty"):
        replaced(main, "rebuilt")
    for operation in ("merge_branch", "fast_forward"):
        with pytest.raises(UnsafeOperationError, match="shares no snapshot"):
            run(main, operation, branch="rebuilt", writers_stopped=True)
    assert replaced(main, "rebuilt", discard_main=True, dry_run=True).changed
    done = replaced(main, "rebuilt", discard_main=True, keep_old_as="old")
    assert read_arrow(main).sort_by("k").to_pylist() == read_arrow(rebuilt).sort_by("k").to_pylist()
    assert read_arrow(main.branch("old")).sort_by("k") == before
    assert main_state(main)["is_state_of"] == "rebuilt"
    put(main, "after", 9, price=1)
    put(rebuilt, "again", 6, price=9)
    replaced(main, "rebuilt", discard_main=True)
    assert sorted(read_arrow(main).column("k").to_pylist()) == [2, 3, 4, 6]
    if kind == "tracked":
        ids = read_arrow(main, columns=["_ROW_ID"]).column(0).to_pylist()
        old = read_arrow(main.branch("old"), columns=["_ROW_ID"]).column(0).to_pylist()
        assert len(set(ids)) == 4 and not set(ids) & set(old)
    run(main, "rollback_to", tag=done.details["undo_tag"], writers_stopped=True)
    assert read_arrow(main).select(before.column_names).sort_by("k").to_pylist() == before.to_pylist()
    assert run(main, "check_table").details["ok"]


def test_merge_and_fast_forward_bring_the_tags_of_states_that_main_has_then(table: Table, fix: Table) -> None:
    run(table, "create_tag", tag="early", branch="fix")
    rewrite(fix, "a")
    run(table, "create_tag", tag="between", branch="fix")
    append(fix, "z", seq=9)
    run(table, "create_tag", tag="done", branch="fix", time_retained="2 d")
    append(table, "c", seq=4)
    # main has a commit of its own: none of its states is the branch's
    merged = run(table, "merge_branch", branch="fix", tags=True, writers_stopped=True)
    assert (merged.details["tags"], merged.details["tags_kept"]) == (["early"], ["between", "done"])
    assert set(table.tag_names()) >= {"early"} and "done" not in table.tag_names()
    done = run(table, "fast_forward", branch="fix", tags=True, discard_main=True, writers_stopped=True)
    assert (done.details["tags"], done.details["tags_kept"]) == (["done"], ["between"])
    tag = table.tag("done")
    assert (tag.snapshot.id, files(table)) == (done.snapshot_after, files(fix))
    assert tag.time_retained is not None and timedelta(days=1) < tag.time_retained <= timedelta(days=2)


def test_a_merge_onto_a_main_that_stood_still_brings_the_tag_of_the_head(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    for name in ("done", "base"):
        run(table, "delete_tag", tag=name, if_missing="skip", branch="fix")
        run(table, "create_tag", tag=name, branch="fix")
    with pytest.raises(AlreadyExistsError, match="main has a tag 'base' as well"):
        run(table, "merge_branch", branch="fix", tags=True, writers_stopped=True)
    assert run(table, "merge_branch", branch="fix", writers_stopped=True, dry_run=True).details.get("tags") is None
    merged = run(table, "merge_branch", branch="fix", tags=True, tag_conflict="keep-main", writers_stopped=True)
    assert merged.details["tags"] == ["done"]
    assert table.tag("done").snapshot.id == merged.snapshot_after
    assert table.tag("base").snapshot.id == 3
