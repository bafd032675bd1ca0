"""Fields that a later release has added to metadata: our operations keep them, or refuse before anything changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.table.manifest_lists import read_both_manifest_lists
from airflow_paimon.core.table.table import Table
from tests.core.format.avro_files import fastavro_records
from tests.core.later_fields import JSON, VALUES, plant
from tests.core.tables import alter_table, append, make_table, names, overwrite, rewrite, run


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Main with two snapshots, the branch ``fix`` with one more, a tag and a consumer."""
    made = make_table(tmp_path, primary=False, **{"manifest.merge-min-count": "3"})
    append(made, "a")
    append(made, "b")
    run(made, "create_tag", tag="t")
    run(made, "create_branch", branch="fix", snapshot=2)
    append(made.branch("fix"), "c")
    run(made, "reset_consumer", consumer="c", next_snapshot=2)
    return made


def kept(table: Table, planted: set[str]) -> set[str]:
    """The planted files that a branch's newest snapshot still describes with all later fields."""
    head = table.latest_snapshot()
    base, delta = read_both_manifest_lists(table, head)
    found = set()
    for row in base + delta:
        for record in fastavro_records(table.store.read(f"manifest/{row.file_name}")):
            if record["_KIND"] == 0 and record["_FILE"]["_FILE_NAME"] in planted:
                parts = [record, record["_FILE"], record["_FILE"]["_VALUE_STATS"], record["_FILE"]["_KEY_STATS"]]
                assert all(map(_has_all, parts))
                found.add(record["_FILE"]["_FILE_NAME"])
    return found & names(table)


def lists_keep(table: Table, planted: set[str]) -> None:
    head = table.latest_snapshot()
    assert head is not None
    rows = fastavro_records(table.store.read(f"manifest/{head.base_manifest_list}"))
    of_theirs = [row for row in rows if row["_FILE_NAME"] in planted]
    assert of_theirs
    assert all(_has_all(part) for row in of_theirs for part in (row, row["_PARTITION_STATS"]))


def _has_all(record: dict[str, Any]) -> bool:
    return {name: record.get(name) for name in VALUES} == VALUES


def test_manifests(table: Table) -> None:
    """One operation after the other: each file of theirs that lives on is described as they have described it."""
    theirs = names(table) | names(table.branch("fix"))
    plant(table)
    manifests = {n for n in table.store.names("manifest") if "list" not in n}
    append(table, "z")
    lists_keep(table, manifests)
    seen = {"append": kept(table, theirs)}
    run(table, "merge_branch", branch="fix")
    seen["merge_branch"] = kept(table, theirs)
    append(table, "z")
    append(table, "z")
    seen["merged manifests"] = kept(table, theirs)
    rewrite(table, "a")
    seen["copy-on-write"] = kept(table, theirs)
    run(table, "rollback_to", snapshot=2)
    seen["rollback_to"] = kept(table, theirs)
    run(table, "create_branch", branch="other", snapshot=table.latest_snapshot_id())
    overwrite(table.branch("other"), "b")
    run(table, "fast_forward", branch="other")
    seen["fast_forward"] = kept(table, theirs)
    run(table, "expire_snapshots", retain_min=1, retain_max=1, older_than="0 s")
    seen["expire_snapshots"] = kept(table, theirs)
    assert {k: len(v) for k, v in seen.items()} == {
        "append": 2, "merge_branch": 3, "merged manifests": 3, "copy-on-write": 2, "rollback_to": 2,
        "fast_forward": 1, "expire_snapshots": 1,
    }  # fmt: skip


def test_schemas(table: Table) -> None:
    """Of the schema, its columns and their types, through changes, new branches and publishes."""
    plant(table)
    run(table, "create_branch", branch="new", snapshot=2)
    alter_table(table.branch("new"), [AddColumn(name="n", type="INT")])
    append(table.branch("new"), "n")
    run(table, "merge_branch", branch="new")
    for view in (table, table.branch("new"), table.branch("fix")):
        stored = json.loads(view.store.read(view.paths.schema(view.schema().id)))
        assert stored["later"] == JSON["later"]
        with_later = {f["name"] for f in stored["fields"] if f.get("later") == JSON["later"]}
        assert with_later == {"k", "v", "dt"}


def test_snapshots_tags_and_consumers(table: Table) -> None:
    plant(table, snapshots=True)
    run(table, "rename_tag", tag="t", to_tag="u")
    run(table, "create_tag", tag="w")
    run(table, "reset_consumer", consumer="c", next_snapshot=1)
    run(table, "create_branch", branch="new", snapshot=2)
    paths = ("tag/tag-u", "tag/tag-w", "consumer/consumer-c", "snapshot/snapshot-1", "snapshot/snapshot-2",
             "branch/branch-new/snapshot/snapshot-2", "branch/branch-fix/snapshot/snapshot-3",
             "tag/tag-airflow-paimon-branch-new")  # fmt: skip
    for path in paths:
        assert json.loads(table.store.read(path))["later"] == JSON["later"], path


def test_no_commit_follows_a_snapshot_with_later_fields(table: Table) -> None:
    """One that counts up from commit to commit, as ``nextRowId`` does, would begin anew."""
    plant(table, snapshots=True)
    before = {path: table.store.read(path) for path in table.store.walk("") if not path.endswith(".parquet")}
    for change in (
        lambda: append(table, "z"),
        lambda: run(table, "merge_branch", branch="fix"),
        lambda: run(table, "rebase_branch", branch="fix", to_branch="again"),
        lambda: run(table, "rollback_to", snapshot=1),
        lambda: run(table, "rollback_to", snapshot=1, dry_run=True),
    ):
        with pytest.raises(UnsupportedFeatureError, match=r"d\.t.*: snapshot 2 has fields of a later .*\(later\)"):
            change()
    now = {path: table.store.read(path) for path in table.store.walk("") if not path.endswith(".parquet")}
    assert {p: d for p, d in now.items() if not p.startswith("_airflow")} == {
        p: d for p, d in before.items() if not p.startswith("_airflow")
    }


def test_no_publish_of_a_snapshot_with_later_fields(table: Table) -> None:
    view = table.branch("fix")
    path = view.paths.snapshot(3)
    view.store.replace(path, json.dumps({**json.loads(view.store.read(path)), "laterCount": 7}).encode())
    with pytest.raises(UnsupportedFeatureError, match=r"d\.t: snapshot 3 has fields of a later .*\(laterCount\)"):
        run(table, "merge_branch", branch="fix")
    append(table, "z")
    with pytest.raises(UnsupportedFeatureError, match=r"d\.t: snapshot 3 has fields of a later .*\(laterCount\)"):
        run(table, "rebase_branch", branch="fix", to_branch="again")
    assert (table.latest_snapshot_id(), table.branch_names()) == (3, ["fix"])


def test_columns_of_a_later_type(table: Table) -> None:
    path = table.paths.schema(0)
    data = table.store.read(path)
    stored = json.loads(data)
    for later in ("UUID NOT NULL", {"type": "QUATERNION NOT NULL", "element": "INT"}):
        stored["fields"][1]["type"] = later
        table.store.replace(path, json.dumps(stored).encode())
        message = r"schema-0: column 'v' has a type of a later .*(UUID|QUATERNION)"
        with pytest.raises(UnsupportedFeatureError, match=message):
            append(table, "a")
    table.store.replace(path, data)
