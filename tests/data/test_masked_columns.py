"""Columns that people are not to see: in no sample of a diff, on no page made of it, in no error about a key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.masking import MASK, masked_value, masks_of
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.data.diff.run_diff import small_diff
from airflow_paimon.data.key_locations import KeyLocations
from airflow_paimon.shown.diff_markdown import render_markdown
from tests.core.tables import run

SECRETS = ("ann@old.org", "ann@new.org", "bob@x.org", "cid@x.org", "+39-06-555")
OPTION = "airflow-paimon.masked-columns"


def make(warehouse: Path, keyed: bool, **options: str) -> Table:
    """Main with ann and bob; on its branch ann has moved, bob is gone and cid has come."""
    main = create_table(
        str(warehouse),
        "hr.people",
        [("id", "INT NOT NULL"), ("Email", "STRING"), ("phone", "STRING"), ("city", "STRING")],
        primary_keys=["id"] if keyed else [],
        options={"bucket": "1" if keyed else "-1", **({} if keyed else {"row-tracking.enabled": "true"}), **options},
    )
    people = {
        "id": [1, 2],
        "Email": ["ann@old.org", "bob@x.org"],
        "phone": ["+39-06-555", "+39-06-555"],
        "city": ["Rome", "Rome"],
    }
    write_arrow(main, pa.table(people))
    run(main, "create_branch", branch="fix", snapshot=1)
    changed = {
        "id": [1, 3],
        "Email": ["ann@new.org", "cid@x.org"],
        "phone": ["+39-06-555", "+39-06-555"],
        "city": ["Bern", "Rome"],
    }
    write_arrow(main.branch("fix"), pa.table(changed), **({} if keyed else {"mode": "overwrite"}))
    return main


def diff(main: Table, **more: Any) -> dict[str, Any]:
    values = {"warehouse": main.store.uri.rpartition("/hr.db")[0], "table": main.name, "branch": "fix", **more}
    request: Any = build_request("diff_branches", values)
    found = small_diff(open_context(request), request)
    assert found is not None
    return dict(found.details)


def leaked(details: dict[str, Any]) -> set[str]:
    shown = json.dumps(details) + render_markdown(details)
    return {text for text in SECRETS if text in shown}


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append"])
def test_hidden_columns_are_in_no_sample(tmp_path: Path, keyed: bool) -> None:
    main = make(tmp_path, keyed)
    assert leaked(diff(main)) == set(SECRETS) - ({"bob@x.org"} if keyed else set())  # an upsert leaves bob alone
    hidden = diff(main, mask=["email", "PHONE"])
    assert leaked(hidden) == set()
    assert "Bern" in json.dumps(hidden)
    run(main, "alter_table", change=[f"set {OPTION}=Email, phone"])
    details = diff(main)
    assert leaked(details) == set(), "also for a branch from before the option"
    assert leaked(diff(main, sample=50, against="main")) == set()
    if keyed:
        (partition,) = details["partitions"]
        ((pair),) = partition["samples"]["changed"]
        assert pair["before"] == {"id": 1, "Email": MASK, "phone": MASK, "city": "Rome"}
        assert pair["after"] == {"id": 1, "Email": "*** (changed)", "phone": MASK, "city": "Bern"}
        assert "(changed)" in render_markdown(details)


def test_a_hidden_column_stays_hidden_when_the_branch_renames_it(tmp_path: Path) -> None:
    main = make(tmp_path, True, **{OPTION: "Email,phone,nosuch"})
    run(main, "alter_table", branch="fix", change=["rename column Email to mail"])
    moved = {"id": [1], "mail": ["ann@new.org"], "phone": ["+39-06-555"], "city": ["Oslo"]}
    write_arrow(main.branch("fix"), pa.table(moved))
    details = diff(main)
    assert leaked(details) == set()
    assert any("nosuch" in note for note in details["notes"])


def test_errors_about_keys_hide_them_too(tmp_path: Path) -> None:
    main = create_table(
        str(tmp_path), "hr.keys", [("mail", "STRING NOT NULL"), ("n", "INT NOT NULL")], primary_keys=["mail", "n"],
        options={"bucket": "-1", OPTION: "mail"},
    )  # fmt: skip
    schema = main.schema()
    assert masks_of([schema]).columns == {"mail"}
    assert (masked_value(schema, "mail", "ann@old.org"), masked_value(schema, "n", 1)) == (MASK, "1")
    rows = pa.table({"mail": ["ann@old.org"], "n": pa.array([1], pa.int32())})
    assert KeyLocations(schema, ()).text(rows, 0) == f"mail={MASK}, n=1"


@pytest.mark.parametrize(("kind", "value"), [("INT", 5123456789), ("FLOAT", 98765.43210987)])
@pytest.mark.parametrize("masked", [True, False])
def test_an_error_about_a_value_that_does_not_fit_shows_it_only_where_it_may(
    tmp_path: Path, kind: str, value: float, masked: bool
) -> None:
    options = {"bucket": "-1", **({OPTION: "Salary"} if masked else {})}
    table = create_table(str(tmp_path), "hr.pay", [("salary", kind)], options=options)
    with pytest.raises(InvalidInputError, match="salary") as refused:
        write_arrow(table, pa.table({"salary": [value]}))
    assert (str(value)[:7] in refused.value.message) is not masked
