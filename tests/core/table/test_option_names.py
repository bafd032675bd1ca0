"""Table options that no engine knows, and which one was meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_paimon.core.table import options
from airflow_paimon.core.table.known_options import DEFAULTS
from airflow_paimon.core.table.option_names import OWN, default_of, is_known, meant, unknown_options
from airflow_paimon.core.table.options import PROTECTIVE_OPTIONS


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ("snapshot.tme-retained", "snapshot.time-retained"),
        ("merge-engin", "merge-engine"),
        ("merge_engine", "merge-engine"),
        ("Bucket", "bucket"),
        ("deletion-vector.enabled", "deletion-vectors.enabled"),
        ("fields.total.aggregate-functon", "fields.total.aggregate-function"),
        ("airflow-paimon.four-eye", "airflow-paimon.four-eyes"),
        ("something.else.entirely", None),
        ("x", None),
    ],
)
def test_an_unknown_option_and_what_was_meant(written: str, right: str | None) -> None:
    assert (is_known(written), meant(written)) == (False, right)
    (sentence,) = unknown_options([written, "bucket"])
    assert repr(written) in sentence and (right is None) != (f"did you mean {right}?" in sentence)


@pytest.mark.parametrize("name", ["fields.a.b.sequence-group", "parquet.enable.dictionary", *OWN, *PROTECTIVE_OPTIONS])
def test_options_that_are_not_in_the_table_itself(name: str) -> None:
    assert is_known(name)


def test_every_option_of_ours_is_known() -> None:
    ours = {v for name, v in vars(options).items() if name.endswith("_OPTION") and v.startswith(options.OWN_OPTIONS)}
    assert len(ours) >= 4 and set(OWN) == ours


def test_options_of_tables_of_other_engines_are_known(golden: Callable[[str], Path]) -> None:
    names: set[str] = set()
    for archive in ("paimon-2.0.0", "paimon-0.9.0"):
        for schema in golden(archive).rglob("schema/schema-*"):
            names |= json.loads(schema.read_text())["options"].keys()
    assert len(names) > 10
    assert unknown_options(names) == []


def test_defaults_are_paimons() -> None:
    assert (default_of("merge-engine"), default_of("snapshot.num-retained.min")) == ("deduplicate", "10")
    assert default_of("sequence.field") == "" and default_of("nope") is None
    assert len(DEFAULTS) > 500 and all(name == name.strip() and " " not in name for name in DEFAULTS)
