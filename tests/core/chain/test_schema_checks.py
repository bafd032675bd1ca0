"""What Paimon checks of a chain table's schemas, and what it does not: each with an error that names the option."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_paimon.core.chain.layout import branch_problems, chain_layout, check_chain_branches, schema_problems
from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, parse_type

OPTIONS = {
    "chain-table.enabled": "true",
    "scan.fallback-snapshot-branch": "snapshot",
    "scan.fallback-delta-branch": "delta",
    "chain-table.chain-partition-keys": "dt, hour",
    "partition.timestamp-pattern": "$dt $hour:00:00",
    "partition.timestamp-formatter": "yyyyMMdd HH:mm:ss",
    "sequence.field": "seq",
    "bucket": "2",
}


def schema_of(**changed: str | None) -> TableSchema:
    """Two underscores stand for a dash, three for a dot; None removes the option."""
    options: dict[str, str] = dict(OPTIONS)
    for name, value in changed.items():
        key = name.replace("___", ".").replace("__", "-")
        options.pop(key, None)
        if value is not None:
            options[key] = value
    names = {"k": "INT NOT NULL", "seq": "INT", "region": "STRING NOT NULL", "dt": "STRING NOT NULL", "hour": "STRING"}
    return TableSchema(
        id=0,
        fields=tuple(DataField(i, n, parse_type(t)) for i, (n, t) in enumerate(names.items())),
        highest_field_id=4,
        partition_keys=("region", "dt", "hour"),
        primary_keys=("region", "dt", "hour", "k"),
        options=options,
    )


def test_a_right_schema_gives_its_layout() -> None:
    layout = chain_layout(schema_of(), "d.t")
    assert (layout.snapshot_branch, layout.delta_branch, layout.group_width) == ("snapshot", "delta", 1)
    assert layout.clock.columns == ("dt", "hour")
    assert layout.group_of(("CN", "20250810", "01")) == ("CN",)


def test_without_chain_keys_all_partition_columns_make_the_time() -> None:
    schema = schema_of(
        chain__table___chain__partition__keys=None,
        partition___timestamp__pattern="$region $dt $hour",
        partition___timestamp__formatter="yyyy MMdd HH",
    )
    layout = chain_layout(schema, "d.t")
    assert (layout.group_width, layout.clock.columns) == (0, ("region", "dt", "hour"))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            {"chain__table___enabled": "false"},
            "it is not a chain table (chain-table.enabled=true): create_chain_table makes it one",
        ),
        ({"scan___fallback__snapshot__branch": None}, "scan.fallback-snapshot-branch is missing"),
        ({"scan___fallback__delta__branch": None}, "scan.fallback-delta-branch is missing"),
        ({"scan___fallback__delta__branch": "SNAPSHOT"}, "name the same branch"),
        ({"scan___fallback__delta__branch": "Main"}, "main can't be its own"),
        ({"bucket": "-1"}, "bucket must be greater than 0"),
        ({"bucket": None}, "bucket must be greater than 0"),
        ({"sequence___field": None}, "sequence.field is required"),
        ({"sequence___field": "seq,dt"}, "sequence.field dt is a partition column"),
        ({"sequence___field": "nope"}, "sequence.field nope is not a column"),
        ({"merge__engine": "first-row"}, "merge-engine=first-row is not one of"),
        ({"merge__engine": "aggregation"}, "merge-engine=aggregation is not one of"),
        ({"changelog__producer": "lookup"}, "changelog-producer must be none or input"),
        ({"merge__engine": "partial-update", "deletion__vectors___enabled": "true"}, "need merge-engine=deduplicate"),
        (
            {"partition___expiration__time": "30 d", "partition___expiration__strategy": "update-time"},
            "partition.expiration-strategy must be values-time",
        ),
        ({"partition___timestamp__pattern": None}, "partition.timestamp-pattern is missing"),
        ({"partition___timestamp__formatter": None}, "partition.timestamp-formatter is missing"),
        ({"partition___timestamp__formatter": "yyyyMMdd"}, "does not fit partition.timestamp-formatter"),
        ({"chain__table___chain__partition__keys": "dt"}, "must be the last partition columns in their order"),
        ({"chain__table___chain__partition__keys": "hour,dt"}, "must be the last partition columns in their order"),
        ({"chain__table___chain__partition__keys": "region"}, "must be the last partition columns in their order"),
        (
            {"partition___timestamp__pattern": "$dt $hour", "partition___timestamp__formatter": "d-M-yyyy HH"},
            "partitions don't sort in the order of time",
        ),
    ],
)
def test_each_mistake_is_named(changed: dict[str, str | None], problem: str) -> None:
    problems = schema_problems(schema_of(**changed))
    assert len(problems) == 1
    assert problem in problems[0]
    with pytest.raises(InvalidInputError, match=r"d\.t can't be used as a chain table: ") as refused:
        chain_layout(schema_of(**changed), "d.t")
    assert refused.value.details["problems"] == problems


def test_a_strategy_without_expiration_and_input_changelogs_are_fine() -> None:
    assert schema_problems(schema_of(partition___expiration__strategy="update-time")) == []
    assert schema_problems(schema_of(changelog__producer="input", merge__engine="partial-update")) == []


def test_all_problems_of_the_keys_are_reported_at_once() -> None:
    without_key = replace(schema_of(), primary_keys=())
    assert schema_problems(without_key) == ["a primary key is required"]
    narrow = replace(schema_of(), primary_keys=("k",))
    assert schema_problems(narrow) == ["the primary key must include the partition columns"]
    flat = replace(schema_of(chain__table___chain__partition__keys=None, bucket="0"), partition_keys=())
    assert [p.split(",")[0] for p in schema_problems(flat)] == [
        "it must be partitioned",
        "option bucket must be greater than 0",
    ]
    fields = tuple(replace(f, type=parse_type("DOUBLE NOT NULL")) if f.name == "region" else f for f in flat.fields)
    assert "not comparable" in schema_problems(replace(schema_of(), fields=fields))[0]


def test_the_branches_must_agree() -> None:
    main = schema_of()
    assert branch_problems(main, main, schema_of(merge__engine="deduplicate")) == {}
    wider = replace(main, fields=(*main.fields, DataField(9, "more", parse_type("INT"))))
    other_key = replace(main, primary_keys=("region", "dt", "hour", "seq"))
    assert branch_problems(main, wider, main) == {
        "snapshot/columns": "branch 'snapshot' has other columns than main: apply the same ALTER to it "
        "(alter_chain_table does so)"
    }
    assert branch_problems(main, main, other_key) == {
        "delta/keys": "branch 'delta' has another primary key or other partition columns than main"
    }
    assert branch_problems(main, main, schema_of(bucket="3")) == {
        "delta/bucket": "option bucket is '3' in branch 'delta', but '2' in main: make them equal"
    }
    unset = branch_problems(main, schema_of(scan___fallback__delta__branch=None), main)
    assert list(unset.values()) == [
        "option scan.fallback-delta-branch is '' in branch 'snapshot', but 'delta' in main: make them equal"
    ]


@pytest.mark.parametrize(
    ("engine", "option", "ours"),
    [
        ("deduplicate", "ignore__delete", "true"),
        ("deduplicate", "deduplicate___ignore__delete", "true"),  # an older spelling
        ("partial-update", "partial__update___remove__record__on__delete", "true"),
    ],
)
def test_deletes_mean_the_same_in_all_branches(engine: str, option: str, ours: str) -> None:
    main, other = schema_of(merge__engine=engine), schema_of(merge__engine=engine, **{option: ours})
    problem = branch_problems(main, main, other)["delta/deletes"]
    assert "branch 'delta' handles deletes differently from main" in problem
    assert branch_problems(other, other, other) == {}
    assert branch_problems(other, schema_of(merge__engine=engine, ignore__delete="false"), other) != {}


def test_the_spelling_of_an_option_makes_no_difference() -> None:
    one, other = schema_of(ignore__delete="true"), schema_of(deduplicate___ignore__delete="TRUE")
    assert branch_problems(one, other, other) == {}


def test_a_missing_branch_is_not_found() -> None:
    main = schema_of()
    with pytest.raises(NotFoundError, match="branch 'delta' does not exist: create it"):
        check_chain_branches("d.t", main, main, None)
    with pytest.raises(InvalidInputError, match="option bucket is '1'"):
        check_chain_branches("d.t", main, schema_of(bucket="1"), main)
    assert check_chain_branches("d.t", main, main, main).label == "d.t"
