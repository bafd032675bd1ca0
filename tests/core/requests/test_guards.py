"""What renders to nothing, what is too long, and what must not be shown: decided before anything else happens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.arguments import build_request, parse_arguments
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.paths import parse_identifier
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from tests.core.tables import run

COMMON = ["--warehouse=/w", "--table=d.t"]
BLANK_IS_NOT_GIVEN = {"owner", "reason", "approved_by", "approved_at", "requested_by", "protected_by", "retention",
                      "now", "time_retained"}  # fmt: skip
FIELDS = [
    (name, spec)
    for name, operation in sorted(OPERATIONS.items())
    for spec in dataclasses.fields(operation.request)
    if spec.name != "storage_options" and str(spec.type) != "bool"
]


def _values(operation: str, **more: Any) -> dict[str, Any]:
    required = {s.name: "d.t" for s in dataclasses.fields(OPERATIONS[operation].request) if s.default == ""}
    return {**required, **more}


@pytest.mark.parametrize("nothing", ["", "  ", "None", "\n"])
def test_nothing_is_not_a_value_of_a_name_a_guard_or_a_version(nothing: str) -> None:
    for operation, spec in FIELDS:
        _check_nothing(operation, spec, nothing)


def _check_nothing(operation: str, spec: Any, nothing: str) -> None:
    values = _values(operation, **{spec.name: nothing})
    if spec.name in BLANK_IS_NOT_GIVEN and (operation, spec.name) != ("expire_branches", "owner"):
        assert getattr(build_request(operation, values), spec.name) == spec.default
        return
    flag = "--" + spec.name.rstrip("_").replace("_", "-")
    with pytest.raises(InvalidInputError, match=flag):
        build_request(operation, values)


def test_an_empty_source_branch_makes_no_branch(table: Table) -> None:
    before = table.store.walk("")
    with pytest.raises(InvalidInputError, match=r"--from-branch\) is ''.*Leave it out"):
        run(table, "create_branch", branch="fix", from_branch="", tag="base")
    assert table.store.walk("") == before


@pytest.mark.parametrize(
    ("operation", "more"),
    [
        ("create_branch", {"branch": "b" * 201}),
        ("create_branch", {"branch": "ok", "from_branch": "b" * 249}),
        ("create_branch", {"branch": "ok", "tag": "t" * 252}),
        ("delete_branch", {"branch": "b" * 249}),
        ("delete_branch", {"branch": "b" * 5000, "if_missing": "skip"}),
        ("rename_branch", {"branch": "fix", "to_branch": "b" * 201}),
        ("create_tag", {"tag": "t" * 201}),
        ("delete_tag", {"tag": "t" * 300}),
        ("rollback_to", {"tag": "t" * 300}),
        ("merge_branch", {"branch": "é" * 130}),
        ("create_chain_table", {"delta_branch": "b" * 300}),
    ],
)
def test_names_that_no_storage_takes_are_invalid_input(table: Table, operation: str, more: dict[str, Any]) -> None:
    before = table.store.walk("")
    with pytest.raises(InvalidInputError, match=r"bytes long|at most 200"):
        run(table, operation, **more)
    assert table.store.walk("") == before


@pytest.mark.parametrize("name", [f"{'d' * 253}.t", f"d.{'t' * 256}", f"d.{'é' * 128}"])
def test_table_names_that_no_storage_takes(name: str) -> None:
    with pytest.raises(InvalidInputError, match="too long"):
        parse_identifier(name)


def test_the_longest_names_that_are_allowed_work(table: Table) -> None:
    """With our prefixes and endings, on a real file system: tags, record, journal, operation record."""
    branch, other = "b" * 200, "c" * 200
    run(table, "create_tag", tag="t" * 200, operation_id="o" * 5000)
    run(table, "create_branch", branch=branch, tag="t" * 200, operation_id="p" * 5000)
    run(table, "rename_branch", branch=branch, to_branch=other)
    write_path = [p for p in table.store.walk("_airflow_paimon") if other in p]
    assert write_path, "its record record"
    run(table, "merge_branch", branch=other, operation_id="q" * 5000, dry_run=True)
    run(table, "delete_branch", branch=other)


def test_a_partition_whose_folder_no_file_system_takes_is_refused_before_a_file_is_written(tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("p", "STRING")], partition_keys=["p"],
                         options={"bucket": "-1"})  # fmt: skip
    rows = {"k": pa.array([1, 2], pa.int32()), "p": ["short", "x" * 300]}
    with pytest.raises(InvalidInputError, match="'p' has a string of 300 characters"):
        write_arrow(table, pa.table(rows))
    assert [p for p in table.store.walk("") if "bucket-" in p] == []
    write_arrow(table, pa.table({"k": pa.array([1], pa.int32()), "p": ["x" * 253]}))


@pytest.mark.parametrize(
    "argv",
    [
        ["--storage-options", '{"secret": "hunter2"}'],
        ['--storage-options={"secret": "hunter2"}'],
        ["--storage-options-once", "secret=hunter2"],
        ["--storage-options", "hunter2/hunter2"],
        ["--storage-option", '{"secret": "hunter2"}'],
        ['--storage-option={"secret": "hunter2"}'],
    ],
)
def test_secrets_given_in_the_wrong_place_are_not_shown(argv: list[str]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_arguments("check_table", [*COMMON, *argv])
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None or "hunter2" not in str(caught.value.__cause__)


def test_a_misspelt_flag_names_the_right_one() -> None:
    with pytest.raises(InvalidInputError, match="no flag --brnch; did you mean --branch"):
        parse_arguments("create_branch", [*COMMON, "--branch=b", "--brnch=c"])
