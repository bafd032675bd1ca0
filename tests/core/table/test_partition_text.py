"""The one grammar for partitions, in every flag and form."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.streaming.catch_up import parse_catch_up
from airflow_paimon.core.table.inspect import inspect, live_partitions
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.partition_text import (
    DEFAULT_PARTITION,
    parse_partition_text,
    partition_text,
    quoted_partition,
    split_partitions,
)
from airflow_paimon.core.table.partition_values import partition_path, shown_partition
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.drop import drop_partitions
from tests.core.tables import partition_schema, run

BOTH = {"dt": "2026-11-18", "region": "eu"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dt=2026-11-18/region=eu", BOTH),
        ("dt=2026-11-18,region=eu", BOTH),
        (" dt = 2026-11-18 , region = eu ", BOTH),
        ("""dt="2026-11-18",region='eu'""", BOTH),
        ("dt='2026-11-18'/region=eu", BOTH),
        ("dt=/region=eu", {"dt": "", "region": "eu"}),
        ("path=a/b", {"path": "a/b"}),
        ("path=a/b/dt=1", {"path": "a/b", "dt": "1"}),
        ("size=1,5", {"size": "1,5"}),
        ("size=1,5/dt=1", {"size": "1,5", "dt": "1"}),
        ("rule=a=b", {"rule": "a=b"}),
        ("rule='a/b=c',dt=1", {"rule": "a/b=c", "dt": "1"}),
        ("rule='a,b=c'/dt=1", {"rule": "a,b=c", "dt": "1"}),
        ("rule=a%2Fb%3Dc/dt=1", {"rule": "a/b=c", "dt": "1"}),
        ("rule=a%2Fb%3Dc", {"rule": "a/b=c"}),
        ("rule=a%2Fb,dt=1", {"rule": "a%2Fb", "dt": "1"}),
        ("rule='a%2Fb'/dt=1", {"rule": "a%2Fb", "dt": "1"}),
        ("share=100%", {"share": "100%"}),
        ("share=100%/dt=1", {"share": "100%", "dt": "1"}),
        ("""a="it's, b=1",c='x''y'""", {"a": "it's, b=1", "c": "x'y"}),
    ],
)
def test_both_forms_with_every_kind_of_value(text: str, expected: dict[str, str]) -> None:
    assert parse_partition_text(text) == expected


@pytest.mark.parametrize("text", ["", " ", "dt", "=a", "2026/dt=a", "dt=a/dt=b", "dt=a,dt=b"])
def test_what_is_not_a_partition_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="key=value"):
        parse_partition_text(text)


_ODD = "a1/,=%'\"` ;2F{}é\n\t\x1b\x85\u2003\u2028[]"
_NASTY = [",", "%2C", "'q'", " a", "a%2Fb", "=", "/", "", " ", "x/y=z", "\x00\u2003", DEFAULT_PARTITION]
_VALUES = st.none() | st.sampled_from(_NASTY) | st.text(st.sampled_from(_ODD), max_size=8) | st.text(max_size=5)
_KEYS = st.sampled_from(["dt", "region", "x"]) | st.text(st.sampled_from(_ODD), min_size=1, max_size=4)


@given(st.lists(st.dictionaries(_KEYS, _VALUES, min_size=1, max_size=3), min_size=1, max_size=3))
@example([{"dt": "%2F", "x": "b=c"}])
@example([{";": "='"}, {"dt": ""}])
def test_what_results_show_is_what_requests_take(partitions: list[dict[str, str | None]]) -> None:
    for values in partitions:
        shown = partition_text(values)
        assert parse_partition_text(shown) == parse_partition_text(shown.strip()) == values
        assert parse_partition_text(quoted_partition(values)) == values
    for write in (partition_text, quoted_partition):
        assert [parse_partition_text(p) for p in split_partitions(" ; ".join(map(write, partitions)))] == partitions


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (BOTH, "dt=2026-11-18/region=eu"),
        ({"t": "2026-11-18 12:00:00+00:00", "size": "1,5"}, "t=2026-11-18 12:00:00+00:00/size=1,5"),
        ({"path": "a/b"}, "path=a/b"),
        ({"share": "100%"}, "share=100%"),
        ({"share": "a%2Fb", "dt": "1"}, "share='a%2Fb'/dt=1"),
        ({"a": None, "b": "", "c": " "}, "a=__DEFAULT_PARTITION__/b=''/c=' '"),
        ({"a": DEFAULT_PARTITION}, "a='__DEFAULT_PARTITION__'"),
        ({"a": "x\ny"}, "a=x%0Ay"),
        ({"my day": "it's", "b": "'q'"}, "`my day`=it's/b='''q'''"),
    ],
)
def test_only_what_needs_quotes_has_them(values: dict[str, str | None], text: str) -> None:
    assert partition_text(values) == text
    assert parse_partition_text(text) == values


_ASCII = st.text(st.sampled_from("a1/,=%'\" 2F{}é"), max_size=8)


@given(st.lists(_ASCII.filter(lambda v: bool(v.strip())), min_size=1, max_size=2))
def test_a_folder_name_of_paimon_names_the_partition(values: list[str]) -> None:
    if any(v != v.strip() for v in values):
        return
    from airflow_paimon.core.format.types import parse_type

    keys = ["dt", "region"][: len(values)]
    folder = partition_path(partition_schema(keys, [parse_type("STRING")] * len(values), legacy=False), values)
    assert parse_partition_text(folder.rstrip("/")) == dict(zip(keys, values, strict=True))


ODD: list[str | None] = [
    *("2026/11", "a,b=c", "x=1/y=2", "100%25", "plain", ",", "%2C", "'q'", "q", " a", "a", "a%2Fb", "a/b"),
    *("it's;b", None, "", " "),
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = create_table(
        str(tmp_path / "wh"),
        "d.t",
        [("k", "BIGINT"), ("dt", "STRING"), ("region", "STRING")],
        partition_keys=["dt", "region"],
        options={"bucket": "-1"},
    )
    rows = {"k": range(len(ODD)), "dt": ODD, "region": ["eu"] * len(ODD)}
    write_arrow(table, pa.table({n: list(v) for n, v in rows.items()}))
    return table


@pytest.mark.parametrize("write", [partition_text, quoted_partition])
def test_jobs_and_functions_find_a_partition_in_either_form(table: Table, write: object) -> None:
    for at, odd in enumerate(ODD):
        text = write({"dt": odd, "region": "eu"})  # type: ignore[operator]
        choice = choose_partitions(table.schema(), [text], "d.t")
        assert [v for v in ODD if choice.matches((v, "eu"))] == [odd]
        parse_catch_up(partitions=[text])
        fresh = pa.table({"k": [99], "dt": pa.array([odd], pa.string()), "region": ["eu"]})
        write_arrow(table, fresh, mode="overwrite", partition=text)
        got = {r["dt"]: r["k"] for r in read_arrow(table).to_pylist()}
        assert got == {v: 99 if v == odd else i for i, v in enumerate(ODD[at:], at)}
        drop_partitions(table, text)
        assert set(read_arrow(table).column("dt").to_pylist()) == set(ODD[at + 1 :])


def test_what_is_listed_means_that_partition_when_it_is_given_back(table: Table) -> None:
    """Also where another engine wrote a text that looks like the name of null."""
    values = live_partitions(table, table.latest_snapshot())
    listed = {row["partition"] for row in inspect(table, "partitions").to_pylist()}
    assert listed == {shown_partition(table.schema(), v) for v in values} and len(listed) == len(ODD)
    for text in sorted(listed):
        (spec,) = [v for v in values if choose_partitions(table.schema(), [text], "d.t").matches(v)]
        drop_partitions(table, text)
        values.remove(spec)
        assert set(live_partitions(table, table.latest_snapshot())) == set(values)
    like_null = choose_partitions(table.schema(), ["dt='__DEFAULT_PARTITION__'"], "d.t")
    assert like_null.matches((DEFAULT_PARTITION, "eu")) and not like_null.matches((None, "eu"))


def test_what_an_operation_shows_can_be_asked_for(table: Table) -> None:
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    write_arrow(fix, pa.table({"k": [99], "dt": ["100%25"], "region": ["eu"]}), mode="overwrite",
                partition={"dt": "100%25"})  # fmt: skip
    plan = run(table, "merge_branch", branch="fix", dry_run=True).details["plan"]
    (shown,) = [a["path"].rpartition("/")[0] for a in plan["actions"] if a["action"] == "ReplaceBucket"]
    assert parse_partition_text(shown) == {"dt": "100%25", "region": "eu"}


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=8), min_size=1), min_size=1, max_size=3))
def test_several_are_divided_at_semicolons_outside_of_quotes(partitions: list[dict[str, str]]) -> None:
    text = " ; ".join(map(quoted_partition, partitions)) + ";"  # type: ignore[arg-type]
    assert [parse_partition_text(part) for part in split_partitions(text)] == partitions


def test_an_apostrophe_within_a_value_is_no_quote() -> None:
    assert split_partitions("dt=it's;dt=b; ;dt='c") == ["dt=it's", "dt=b", "dt='c"]
