"""What an operator submits is what the job parses, and nothing sloppy gets through."""

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.arguments import build_request, parse_arguments, peek, to_arguments
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.core.requests.requests import flag_name
from airflow_paimon.core.schema.text import parse_change
from airflow_paimon.core.store.secrets import secret_values

COMMON = ["--warehouse=/w", "--table=d.t"]

# What a shell word can be: no NUL.
_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda text: text == text.strip() and text not in ("None", "--")
)


def _values(operation: str) -> st.SearchStrategy[dict[str, Any]]:
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for spec in dataclasses.fields(OPERATIONS[operation].request):
        if spec.name == "storage_options":
            continue
        if spec.metadata.get("choices"):
            values: st.SearchStrategy[Any] = st.sampled_from(spec.metadata["choices"])
        elif spec.metadata.get("repeat"):
            values = st.lists(_TEXT, max_size=3).map(tuple)
        elif isinstance(spec.default, bool):
            values = st.booleans()
        elif str(spec.type).startswith("int"):
            values = st.integers(spec.metadata["minimum"] or 0, 2**63 - 1)
        else:
            values = _TEXT
        (required if spec.default == "" else optional)[spec.name] = values
    return st.fixed_dictionaries(required, optional=optional)


@given(st.sampled_from(sorted(OPERATIONS)).flatmap(lambda name: st.tuples(st.just(name), _values(name))))
def test_flags_there_and_back(case: tuple[str, dict[str, Any]]) -> None:
    operation, values = case
    request = build_request(operation, values)
    assert parse_arguments(operation, to_arguments(request)).request == request


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        pytest.param([*COMMON, "--branch=b", "--brunch=c"], "--brunch", id="unknown"),
        pytest.param([*COMMON, "--bran=b"], "--bran", id="abbreviated"),
        pytest.param([*COMMON, "--branch=b", "--branch=c"], "twice", id="repeated"),
        pytest.param([*COMMON], "--branch", id="required"),
        pytest.param([*COMMON, "--branch="], "branch", id="empty"),
        pytest.param([*COMMON, "--branch=--"], "--branch: '--' is not a value", id="two dashes"),
        pytest.param([*COMMON, "--branch=b", "--if-exists=maybe"], "maybe", id="choice"),
        pytest.param([*COMMON, "--branch=b", "--snapshot=two"], "whole number", id="number"),
        pytest.param([*COMMON, "--branch=b", "--snapshot=--5"], "whole number", id="two signs"),
        pytest.param([*COMMON, "--branch=b", "--snapshot=²"], "whole number", id="superscript"),
        pytest.param([*COMMON, "--branch=b", "--dry-run=yes"], "dry-run", id="switch with a value"),
        pytest.param([*COMMON, "--branch=b", "stray"], "stray", id="positional"),
        pytest.param([*COMMON, "--branch=b", "--storage-options=/nowhere.json"], "/nowhere.json", id="no options file"),
    ],
)
def test_wrong_flags_are_refused(argv: list[str], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        parse_arguments("create_branch", argv)


@pytest.mark.parametrize(
    ("operation", "argv", "least"),
    [("diff_branches", ["--branch=b", "--sample=-1"], 0), ("compact_chain_table", ["--task-memory-mb=0"], 1)],
)
def test_numbers_have_a_least_value(operation: str, argv: list[str], least: int) -> None:
    with pytest.raises(InvalidInputError, match=f"at least {least}"):
        parse_arguments(operation, [*COMMON, *argv])


def test_a_switch_that_is_on_can_be_turned_off() -> None:
    assert parse_arguments("check_table", [*COMMON, "--no-verify-files"]).request.verify_files is False  # type: ignore[attr-defined]
    assert parse_arguments("check_table", COMMON).request.verify_files is True  # type: ignore[attr-defined]


def test_the_help_of_a_switch_that_is_on_says_what_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments("check_table", ["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "every referenced data file exists (the default); --no-verify-files leaves that out" in shown


def test_storage_options_come_from_a_file_and_never_show(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"key": "AK", "secret": "s3cr3t-value"}))
    parsed = parse_arguments("check_table", [*COMMON, f"--storage-options={file}"])
    assert parsed.request.storage_options == {"key": "AK", "secret": "s3cr3t-value"}
    assert file.exists()
    assert not any("s3cr3t" in word or "options" in word for word in to_arguments(parsed.request))


def test_one_time_storage_options_are_deleted_once_read(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text('{"key": "AK"}')
    parsed = parse_arguments("check_table", [*COMMON, f"--storage-options-once={file}"])
    assert parsed.request.storage_options == {"key": "AK"}
    assert not file.exists()


@pytest.mark.parametrize("content", ["", "{", "[1]", '"text"'])
def test_malformed_storage_options_are_refused_without_showing_them(tmp_path: Path, content: str) -> None:
    file = tmp_path / "options.json"
    file.write_text(content)
    with pytest.raises(InvalidInputError, match="JSON"):
        parse_arguments("check_table", [*COMMON, f"--storage-options={file}"])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--brnch", "fix"], "no flag --brnch; did you mean --branch?"),
        (["--brnch=fix"], "no flag --brnch; did you mean --branch?"),
        (["--bran", "fix"], "no flag --bran; did you mean --branch?"),
        (["-b", "fix"], "no flag -b"),
        (["--branch=fix", "--nonsense"], "no flag --nonsense"),
    ],
)
def test_an_unknown_flag_is_named_before_a_missing_one(argv: list[str], said: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_arguments("create_branch", [*COMMON, *argv])
    assert said in refused.value.message
    assert "required" not in refused.value.message


@pytest.mark.parametrize("flag", ["--from-branch", "--tag", "--operation-id"])
@pytest.mark.parametrize("form", ["two words", "one word"])
def test_an_empty_value_is_refused(flag: str, form: str) -> None:
    empty = [flag, ""] if form == "two words" else [f"{flag}="]
    with pytest.raises(InvalidInputError, match=rf"\({flag}\) is '', so a template or a variable in it was empty"):
        parse_arguments("create_branch", [*COMMON, "--branch=fix", *empty])


def test_values_that_look_like_flags_stay_values() -> None:
    argv = [*COMMON, "--branch=fix", "--reason=--brnch", "--owner", "-- a b", "--snapshot", "-1"]
    request = parse_arguments("create_branch", argv).request
    assert (getattr(request, "reason"), getattr(request, "owner")) == ("--brnch", "-- a b")  # noqa: B009


def test_an_empty_optional_value_of_an_operator_is_left_out() -> None:
    request = build_request("create_branch", {"warehouse": "/w", "table": "d.t", "branch": "fix", "owner": ""})
    assert to_arguments(request) == [*COMMON, "--branch=fix"]


def test_peek_finds_a_flag_among_malformed_ones() -> None:
    argv = ["--nonsense", "--table", "d.t", "--result-uri=/r.json", "--warehouse"]
    assert peek(argv, "table") == "d.t"
    assert peek(argv, "result_uri") == "/r.json"
    assert peek(argv, "warehouse") is None
    assert flag_name("result_uri") == "--result-uri"


def test_secret_values() -> None:
    options = {"key": "AKIA1234", "secret": "abcdefgh", "anon": False, "region": "eu-central-1", "token": "abc",
               "client_kwargs": {"aws_session_token": "abcdefgh-longer"}}  # fmt: skip
    assert secret_values(options)[0] == "abcdefgh-longer"  # the longest first, or part of it would stay
    assert set(secret_values(options)) == {"abcdefgh-longer", "AKIA1234", "abcdefgh"}
    assert secret_values(None) == []


def test_help_says_what_each_job_does(capsys: pytest.CaptureFixture[str]) -> None:
    for operation in OPERATIONS:
        with pytest.raises(SystemExit):
            parse_arguments(operation, ["--help"])
        shown = capsys.readouterr().out
        assert OPERATIONS[operation].summary in " ".join(shown.split()), operation
        _, example = re.search(rf"^example: python -m airflow_paimon job ({operation}) (.*)$", shown, re.M).groups()  # type: ignore[union-attr]
        for change in getattr(parse_arguments(operation, shlex.split(example)).request, "change", ()):
            parse_change(change)
