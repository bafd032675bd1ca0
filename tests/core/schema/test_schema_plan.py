"""Field ids, allowed changes, refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_paimon.core.errors import AlreadyExistsError, InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.format.schema import parse_schema
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.schema.schema_plan import (
    AddColumn,
    CommentColumn,
    DropColumn,
    MoveColumn,
    RemoveOption,
    RenameColumn,
    SetOption,
    WidenColumn,
    new_schema,
)
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import open_table
from tests.core.tables import alter_table, append, make_table, run

ROW = {"type": "ROW", "fields": [{"id": 0, "name": "x", "type": "INT"}, {"id": 0, "name": "y", "type": "STRING"}]}


def test_ids_count_depth_first() -> None:
    schema = new_schema([("a", "INT"), ("r", parse_type(ROW)), ("b", "INT")], primary_keys=["a"])
    row = schema.field("r").type
    assert [f.id for f in schema.fields] == [0, 1, 4]
    assert [f.id for f in row.fields] == [2, 3]
    assert schema.highest_field_id == 4
    assert not schema.field("a").type.nullable
    assert parse_schema(schema.to_bytes(), "x").to_json() == schema.to_json()


def test_a_dropped_columns_id_is_not_used_again(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh")
    alter_table(table, [AddColumn(name="x", type="INT")])
    alter_table(table, [DropColumn(name="x")])
    schema = alter_table(table, [AddColumn(name="x", type="STRING", after="", comment="again")])
    assert schema.id == 3
    assert schema.field("x").id == 4
    assert schema.field_names == ("x", "k", "v", "dt")


def test_rename_widen_comment_move_options(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh")
    schema = alter_table(
        table,
        [
            AddColumn(name="n", type="INT"),
            WidenColumn(name="n", type="BIGINT"),
            RenameColumn(name="n", to_name="amount"),
            CommentColumn(name="amount", comment="euros"),
            MoveColumn(name="amount", after="k"),
            RenameColumn(name="k", to_name="id"),
            SetOption(key="snapshot.num-retained.max", value="15"),
        ],
    )
    assert schema.field_names == ("id", "amount", "v", "dt")
    assert str(schema.field("amount").type) == "BIGINT"
    assert schema.field("amount").description == "euros"
    assert schema.primary_keys == ("dt", "id")
    assert schema.options["snapshot.num-retained.max"] == "15"
    assert (
        "snapshot.num-retained.max" not in alter_table(table, [RemoveOption(key="snapshot.num-retained.max")]).options
    )


@pytest.mark.parametrize(
    "change",
    [
        AddColumn(name="k", type="INT"),
        AddColumn(name="x", type="INT NOT NULL"),
        AddColumn(name="x", type="INT", after="nope"),
        DropColumn(name="nope"),
        DropColumn(name="k"),
        DropColumn(name="dt"),
        RenameColumn(name="dt", to_name="day"),
        RenameColumn(name="v", to_name="k"),
        WidenColumn(name="k", type="STRING"),
        WidenColumn(name="v", type="INT"),
        SetOption(key="bucket-key", value="v"),
        SetOption(key="merge-engine", value="aggregation"),
        SetOption(key="fields.v.aggregate-function", value="max"),
        SetOption(key=" ", value="x"),
    ],
)
def test_refused_changes_leave_the_schema(tmp_path: Path, change: object) -> None:
    table = make_table(tmp_path / "wh")
    append(table, "a")
    with pytest.raises(InvalidInputError):
        alter_table(table, [change])
    assert table.schema_ids() == [0]


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({"deletion-vectors.enabled": "true"}, [SetOption(key="deletion-vectors.enabled", value="false")]),
        ({"deletion-vectors.enabled": "true"}, [RemoveOption(key="deletion-vectors.enabled")]),
        ({}, [SetOption(key="deletion-vectors.enabled", value="true")]),
        ({"bucket": "2"}, [SetOption(key="bucket", value="-1")]),
        ({"bucket": "2"}, [RemoveOption(key="bucket")]),
        ({"bucket": "-1"}, [SetOption(key="bucket", value="2")]),
    ],
)
def test_files_of_a_table_keep_the_way_in_which_they_are_read(
    tmp_path: Path, options: dict[str, str], changes: list[SetOption | RemoveOption]
) -> None:
    """Else Paimon's readers show deleted rows again, and a key gets a second bucket."""
    full, empty = (make_table(tmp_path / "wh", name, **options) for name in ("d.full", "d.empty"))
    append(full, "a")
    with pytest.raises(InvalidInputError, match=changes[0].key):
        alter_table(full, changes)
    assert full.schema_ids() == [0]
    assert alter_table(empty, changes).id == 1


def test_deletion_vectors_where_the_table_says_that_they_may_change(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh")
    append(table, "a")
    alter_table(table, [SetOption(key="deletion-vectors.modifiable", value="true")])
    new = alter_table(
        table, [SetOption(key="deletion-vectors.enabled", value="true"), SetOption(key="bucket", value="4")]
    )
    assert (new.options["deletion-vectors.enabled"], new.options["bucket"]) == ("true", "4")


@pytest.mark.parametrize(
    ("old", "new", "fine"),
    [
        ("TINYINT", "INT", True), ("INT", "SMALLINT", False), ("INT", "DOUBLE", True), ("BIGINT", "DOUBLE", False),
        ("INT", "DECIMAL(10, 0)", True), ("INT", "DECIMAL(10, 2)", False), ("FLOAT", "DOUBLE", True),
        ("DOUBLE", "FLOAT", False), ("DECIMAL(5, 2)", "DECIMAL(7, 2)", True), ("DECIMAL(5, 2)", "DECIMAL(7, 5)", False),
        ("VARCHAR(5)", "STRING", True), ("VARCHAR(5)", "VARCHAR(4)", False), ("STRING", "VARCHAR(9)", False),
        ("TIMESTAMP(3)", "TIMESTAMP(6)", True), ("TIMESTAMP(6)", "TIMESTAMP(3)", False),
        ("DATE", "TIMESTAMP(3)", False),
        ("TIMESTAMP(6)", "TIMESTAMP_LTZ(6)", False), ("VARBINARY(3)", "BYTES", True), ("BOOLEAN", "INT", False),
    ],
)  # fmt: skip
def test_only_types_that_hold_every_value_are_wider(tmp_path: Path, old: str, new: str, fine: bool) -> None:
    table = create_table(str(tmp_path), "d.t", [("a", "INT"), ("c", old)])
    if fine:
        assert str(alter_table(table, [WidenColumn(name="c", type=new)]).field("c").type) == new
    else:
        with pytest.raises(InvalidInputError, match="Column c"):
            alter_table(table, [WidenColumn(name="c", type=new)])


def test_create_table_if_exists(tmp_path: Path) -> None:
    make_table(tmp_path)
    with pytest.raises(AlreadyExistsError, match="skip"):
        make_table(tmp_path)
    create_table(str(tmp_path), "d.t", [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")],
                 partition_keys=["dt"], primary_keys=["dt", "k"], if_exists="skip")  # fmt: skip
    with pytest.raises(AlreadyExistsError, match="other columns"):
        create_table(str(tmp_path), "d.t", [("k", "INT")], if_exists="skip")
    for bad in (
        {"columns": []},
        {"columns": [("a", "INT"), ("a", "INT")]},
        {"columns": [("a", "INT")], "primary_keys": ["b"]},
    ):
        with pytest.raises(InvalidInputError):
            create_table(str(tmp_path), "d.other", **{"columns": [("a", "INT")], **bad})
    assert not open_table(str(tmp_path), "d.other").exists()
    with pytest.raises(NotFoundError, match=r"no table d\.other"):
        open_table(str(tmp_path), "d.other").schema()


def test_a_branchs_protection_cannot_be_altered_away(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh")
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    with pytest.raises(UnsafeOperationError, match="write-only"):
        alter_table(table.branch("fix"), [SetOption(key="write-only", value="false")])
    alter_table(table.branch("fix"), [SetOption(key="owner", value="ana")])
    assert "owner" not in table.schema().options


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("tag.automatic-creation", "proces-time", "one of none, process-time, watermark, batch"),
        ("tag.creation-period", "weekly", "one of daily, hourly, two-hours"),
        ("partition.mark-done-action", "success-file,nope", "some of success-file, done-partition, mark-event"),
        ("tag.creation-delay", "soon", "tag.creation-delay='soon' is not a duration"),
    ],
)
def test_values_that_no_engine_takes_are_refused_when_they_are_set(
    tmp_path: Path, key: str, value: str, allowed: str
) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(allowed)):
        create_table(str(tmp_path), "d.t", [("k", "INT")], options={key: value})
    create_table(
        str(tmp_path), "d.t", [("k", "INT")], options={"partition.mark-done-action": "SUCCESS_FILE,http-report"}
    )
