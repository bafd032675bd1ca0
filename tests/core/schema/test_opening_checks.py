"""No change of a schema, and no new table, that keeps Paimon's engines from opening the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.commit.staging import staging_schema
from airflow_paimon.core.errors import ConflictError, InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.schema.opening_rules import opening_faults
from airflow_paimon.core.schema.schema_plan import AddColumn, DropColumn, RemoveOption, RenameColumn, SetOption
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.features import check_readable
from airflow_paimon.core.table.table import Table
from tests.core.tables import alter_table, append, run

COLUMNS = [("dt", "STRING NOT NULL"), ("k", "INT NOT NULL"), ("v", "STRING"), ("n", "BIGINT"), ("g", "INT")]
KEYED: dict[str, str] = {"bucket": "2"}
OPTIONS: dict[str, dict[str, str]] = {
    "keys": KEYED,
    "first-row": {**KEYED, "merge-engine": "first-row"},
    "vectors": {**KEYED, "deletion-vectors.enabled": "true"},
    "lookup": {**KEYED, "changelog-producer": "lookup"},
    "groups": {**KEYED, "merge-engine": "partial-update", "fields.g.sequence-group": "v"},
    "expiry": {**KEYED, "record-level.expire-time": "1 d", "record-level.time-field": "n"},
    "index": {**KEYED, "file-index.bloom-filter.columns": "v"},
    "append": {"bucket": "-1"},
}
SETTINGS = [
    ("keys", "snapshot.num-retained.max", "5"), ("keys", "snapshot.num-retained.min", "0"),
    ("keys", "changelog.num-retained.max", "5"), ("append", "changelog-producer", "lookup"),
    ("append", "changelog-producer", "input"), ("vectors", "changelog-producer", "full-compaction"),
    ("first-row", "changelog-producer", "input"), ("append", "full-compaction.delta-commits", "5"),
    ("lookup", "full-compaction.delta-commits", "5"), ("append", "streaming-read-overwrite", "true"),
    ("lookup", "streaming-read-overwrite", "true"), ("keys", "record-level.time-field", "v"),
    ("keys", "record-level.time-field", "nope"),
    ("keys", "file-index.bloom-filter.columns", "nope"), ("keys", "clustering.incremental", "true"),
    ("append", "bucket", "-2"),
]  # fmt: skip
COLUMN_CHANGES: list[tuple[str, Any]] = [
    ("expiry", DropColumn(name="n")),
    ("expiry", RenameColumn(name="n", to_name="m")),
    ("groups", DropColumn(name="v")),
    ("groups", RenameColumn(name="v", to_name="w")),
    ("index", DropColumn(name="v")),
    ("index", RenameColumn(name="v", to_name="w")),
    ("keys", AddColumn(name="_SEQUENCE_NUMBER", type="BIGINT")),
    ("keys", AddColumn(name="_KEY_x", type="INT")),
    ("keys", RenameColumn(name="v", to_name="_ROW_ID")),
    ("keys", AddColumn(name="rowkind", type="STRING")),
    ("append", AddColumn(name="_LEVEL", type="INT")),
]


def make(folder: Path, kind: str, **more: str) -> Table:
    keys = [] if kind == "append" else ["dt", "k"]
    return create_table(
        str(folder), "d.t", COLUMNS, partition_keys=["dt"], primary_keys=keys, options={**OPTIONS[kind], **more}
    )


@pytest.mark.parametrize(("kind", "key", "value"), SETTINGS)
def test_options_with_which_paimon_could_not_open_the_table(tmp_path: Path, kind: str, key: str, value: str) -> None:
    with pytest.raises(InvalidInputError):
        make(tmp_path / "new", kind, **{key: value})
    table = make(tmp_path / "old", kind)
    with pytest.raises(InvalidInputError, match="Paimon could not open"):
        alter_table(table, [SetOption(key=key, value=value)])
    assert table.schema().id == 0 and not (tmp_path / "new" / "d.db").exists()


@pytest.mark.parametrize(("kind", "change"), COLUMN_CHANGES)
def test_columns_with_which_paimon_could_not_open_the_table(tmp_path: Path, kind: str, change: Any) -> None:
    table = make(tmp_path, kind)
    with pytest.raises(InvalidInputError):
        alter_table(table, [change])
    assert table.schema().id == 0


def test_both_bounds_of_a_retention_are_set_at_once(tmp_path: Path) -> None:
    table = make(tmp_path, "keys")
    alter_table(
        table,
        [SetOption(key="snapshot.num-retained.max", value="5"), SetOption(key="snapshot.num-retained.min", value="2")],
    )
    assert run(table, "check_table").details["ok"]


def test_a_table_that_has_a_fault_already_is_named_and_can_be_mended(tmp_path: Path) -> None:
    table = make(tmp_path, "keys")
    data = table.store.read("schema/schema-0").replace(b'"bucket"', b'"snapshot.num-retained.max": "5", "bucket"')
    table.store.replace("schema/schema-0", data)
    findings = [f["id"] for f in run(table, "check_table").details["findings"]]
    assert findings == ["unopenable-schema:main/snapshot.num-retained.min=10"] or len(findings) == 2
    alter_table(table, [SetOption(key="write-only", value="true")])
    alter_table(table, [SetOption(key="snapshot.num-retained.max", value="20")])
    assert run(table, "check_table").details["ok"]


def test_a_branch_opens_whatever_main_keeps_of_its_changelogs(tmp_path: Path) -> None:
    table = make(tmp_path, "keys", **{"changelog.num-retained.max": "20"})
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    assert opening_faults(table.branch("fix").schema()) == []
    assert opening_faults(staging_schema(table.schema())) == []


def test_columns_of_a_branch_that_mains_options_do_not_go_with_are_not_published(tmp_path: Path) -> None:
    table = make(tmp_path, "append")
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    alter_table(fix, [RenameColumn(name="v", to_name="w")])
    append(fix, "b")
    alter_table(table, [SetOption(key="file-index.bloom-filter.columns", value="v")])
    with pytest.raises(ConflictError, match=r"file-index\.bloom-filter\.columns names column 'v'"):
        run(table, "merge_branch", branch="fix")
    alter_table(table, [RemoveOption(key="file-index.bloom-filter.columns")])
    run(table, "merge_branch", branch="fix")
    assert "w" in table.schema().field_names


def test_keys_that_are_given_as_options(tmp_path: Path) -> None:
    given = {"primary-key": " dt , k", "partition": "dt", "bucket": "2"}
    table = create_table(str(tmp_path), "d.t", COLUMNS, options=given)
    schema = table.schema()
    assert (schema.primary_keys, schema.partition_keys, schema.options) == (("dt", "k"), ("dt",), {"bucket": "2"})
    assert not schema.field("k").type.nullable
    for more in ({"primary_keys": ["k"]}, {"partition_keys": ["dt"]}):
        with pytest.raises(InvalidInputError, match="given twice"):
            create_table(str(tmp_path), "d.twice", COLUMNS, options=given, **more)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="primary key nope must name columns"):
        create_table(str(tmp_path), "d.other", COLUMNS, options={"primary-key": "nope"})
    alter_table(table, [SetOption(key="primary-key", value="dt,k")])  # as Paimon takes it
    for key, value in (("primary-key", "k"), ("partition", "v"), ("primary-key", "nope")):
        with pytest.raises(InvalidInputError, match="of a table can't change"):
            alter_table(table, [SetOption(key=key, value=value)])
    assert table.schema().options == {"bucket": "2"}


@pytest.mark.parametrize("text", ["v, n", " v,n", "v,nope"])
def test_a_sequence_group_that_another_writer_has_stored_with_a_blank_is_not_read(tmp_path: Path, text: str) -> None:
    table = make(tmp_path, "groups")
    data = table.store.read("schema/schema-0").replace(b'-group": "v"', f'-group": "{text}"'.encode())
    table.store.replace("schema/schema-0", data)
    with pytest.raises(UnsupportedFeatureError, match=r"fields\.g\.sequence-group names .*which is not a column"):
        check_readable(table.schema(), table="d.t")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", "/tmp/x"), ("branch", "x"), ("type", "object-table"), ("scan.snapshot-id", "1"),
        ("scan.mode", "from-snapshot"),
    ],
)  # fmt: skip
def test_what_a_table_is_and_where_it_lies_is_no_option(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(InvalidInputError, match=f"Option {key}={value} can't be set"):
        make(tmp_path / "new", "keys", **{key: value})
    table = make(tmp_path, "keys", type="TABLE")
    with pytest.raises(InvalidInputError, match=f"Option {key}={value} can't be set"):
        alter_table(table, [SetOption(key=key, value=value)])


def test_a_key_that_is_stored_as_an_option_is_found_and_can_be_reset(tmp_path: Path) -> None:
    table = make(tmp_path, "append")
    append(table, "a")
    data = table.store.read("schema/schema-0").replace(b'"bucket"', b'"primary-key": "k", "bucket"')
    table.store.replace("schema/schema-0", data)
    findings = [f["id"] for f in run(table, "check_table").details["findings"]]
    assert "key-without-effect:main/primary-key" in findings
    alter_table(table, [RemoveOption(key="primary-key")])
    assert table.schema().options == {"bucket": "-1"}


def test_index_files_stay_where_they_are_in_a_table_with_data(tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.t", COLUMNS, partition_keys=["dt"], options={"bucket": "-1"})
    append(table, "a")
    with pytest.raises(InvalidInputError, match="new table"):
        alter_table(table, [SetOption(key="index-file-in-data-file-dir", value="true")])
