"""alter_chain_table: the three branches together or none; a crash in between is finished by the same request."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.errors import ConflictError, InvalidInputError, NotFoundError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, open_context
from airflow_paimon.core.schema.schema_plan import AddColumn, SetOption
from airflow_paimon.core.schema.text import parse_change
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.chain.tables import add, alter_alone, make_chain
from tests.core.tables import alter_table, run
from tests.stores import Crash, FaultStore, delete_tree

ENDS = ("main", "snapshot", "delta")
CHANGES = ["add column w INT", "rename column v to value", "set target-file-size=64 mb"]


def fresh(data: bool = True) -> Table:
    table = make_chain(f"memory://{uuid.uuid4()}/wh")
    if data:
        add(table.branch("snapshot"), "20250101")
        add(table.branch("delta"), "20250102")
    return table


@pytest.fixture
def table() -> Table:
    return fresh()


def shape(table: Table) -> dict[str, list[Any]]:
    return {n: [(s.id, s.content, dict(s.options)) for s in table.branch(n).schemas()] for n in ENDS}


def alter(table: Table, *changes: str, **more: Any) -> Any:
    return run(table, "alter_chain_table", change=list(changes), **more)


def test_one_change_for_the_three_branches(table: Table) -> None:
    result = alter(table, *CHANGES)
    assert result.changed
    assert result.details == {"branches": ["snapshot", "delta", "main"], "schema_id": 1}
    schemas = shape(table)
    assert schemas["main"] == schemas["snapshot"] == schemas["delta"]
    assert table.schema().field_names == ("k", "s", "value", "dt", "w")
    gather_chain(table)
    assert not alter(table, *CHANGES).changed, "they have it"
    assert table.schema_ids() == [0, 1]


def test_a_branch_is_altered_through_main(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="works on the whole table"):
        alter(replace(table, name=f"{table.name}$branch_delta"), "set a=b")


def test_other_differences_of_options_stay(table: Table) -> None:
    alter_table(table.branch("delta"), [SetOption(key="snapshot.num-retained.max", value="50")])
    alter(table, "set target-file-size=64 mb")
    assert table.branch("delta").schema().options["snapshot.num-retained.max"] == "50"
    assert "snapshot.num-retained.max" not in table.schema().options
    assert {table.branch(n).schema_ids()[-1] for n in ENDS} == {2}, "one number for all"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("set bucket=4", "partitions with different numbers of buckets"),
        ("reset bucket", "partitions with different numbers of buckets"),
        ("set chain-table.chain-partition-keys=dt", "other chains"),
        ("set partition.timestamp-formatter=yyyyDDD", "another partition time"),
        ("set merge-engine=partial-update", "determines how existing files are read"),
        ("set sequence.field=v", "determines how existing files are read"),
        ("set chain-table.enabled=false", "main would be read alone"),
        ("reset scan.fallback-delta-branch", "through other data"),
        ("set changelog-producer=lookup", "changelog-producer must be none or input"),
        ("set partition.expiration-strategy=update-time", None),
        ("drop column s", "named by a table option"),
        ("drop column k", "key column"),
        ("drop column x", "no column"),
        ("add column v INT", "empty or taken"),
        ("add column w INT NOT NULL", "must be nullable"),
        ("alter column s type INT", "orders rows"),
        ("rename column dt to day", "partition column"),
        ("alter the table", "is not understood"),
    ],
)
def test_what_is_refused_changes_nothing(table: Table, change: str, message: str | None) -> None:
    before = shape(table)
    if message is None:
        alter(table, change)
        change, message = "set partition.expiration-time=30 d", "must be values-time"
        before = shape(table)
    with pytest.raises(InvalidInputError, match=message):
        alter(table, "add column fine INT", change, operation_id="op")
    assert shape(table) == before
    assert table.store.walk("_airflow_paimon") == []


def test_an_empty_chain_table_may_change_more() -> None:
    table = fresh(data=False)
    alter(table, "set bucket=4", "set merge-engine=partial-update")
    assert gather_chain(table).main.schema.options["bucket"] == "4"
    with pytest.raises(InvalidInputError, match="through other data"):
        alter(table, "set scan.fallback-delta-branch=other")


def test_a_branch_that_cannot_take_it(table: Table) -> None:
    alter_alone(table.branch("delta"), AddColumn(name="mine", type="INT"))
    before = shape(table)
    with pytest.raises(InvalidInputError, match="branch 'delta' has other columns or keys than main"):
        alter(table, "add column w INT")
    assert shape(table) == before
    with pytest.raises(InvalidInputError, match=r"is not a chain table .*alter_table"):
        alter(make_chain(f"memory://{uuid.uuid4()}/wh", options={}), "set a=b")
    delete_tree(table.store, "branch/branch-snapshot")
    with pytest.raises(NotFoundError, match="'snapshot' does not exist"):
        alter(table, "add column w INT")


def test_a_branch_whose_own_options_forbid_it() -> None:
    table = fresh(data=False)
    alter_table(table.branch("delta"), [SetOption(key="fields.v.ignore-retract", value="true")])
    before = shape(table)
    with pytest.raises(InvalidInputError, match="branch 'delta' refuses the change, so nothing was changed"):
        alter(table, "drop column v")
    assert shape(table) == before


@pytest.mark.parametrize("altered", [["main"], ["delta"], ["main", "snapshot"]])
def test_what_another_engine_altered_is_brought_to_the_others(table: Table, altered: Sequence[str]) -> None:
    for name in altered:
        alter_alone(table.branch(name), AddColumn(name="w", type="INT"))
    result = alter(table, "add column w INT")
    assert set(result.details["branches"]) == set(ENDS) - set(altered)
    gather_chain(table)


def test_one_branch_alone_is_not_altered(table: Table) -> None:
    for name in ENDS:
        with pytest.raises(InvalidInputError, match="use alter_chain_table"):
            alter_table(table.branch(name), [AddColumn(name="w", type="INT")])
    run(table, "create_branch", branch="other")
    alter_table(table.branch("other"), [AddColumn(name="w", type="INT")])


@pytest.mark.parametrize(
    ("branch", "change", "message"),
    [
        ("main", "set chain-table.enabled=false", "is not a chain table"),
        ("main", "reset chain-table.enabled", "is not a chain table"),
        ("delta", "set chain-table.enabled=false", "is not a chain table"),
        ("main", "reset scan.fallback-delta-branch", "scan.fallback-delta-branch is missing"),
        ("main", "set scan.fallback-delta-branch=nope", "branch 'nope' does not exist"),
        ("main", "set scan.fallback-delta-branch=other", "is 'delta' in branch 'other', but 'other' in main"),
        ("snapshot", "reset scan.fallback-snapshot-branch", "scan.fallback-snapshot-branch is missing"),
        ("delta", "set bucket=5", "option bucket is '5' in branch 'delta', but '2' in main"),
        ("main", "set bucket=5", "option bucket is '2' in branch 'snapshot', but '5' in main"),
        ("main", "set partition.timestamp-formatter=yyyyDDD", "partition.timestamp-formatter is 'yyyyMMdd' in branch"),
        ("delta", "set chain-table.chain-partition-keys=dt", "chain-table.chain-partition-keys is 'dt' in branch"),
        ("delta", "set ignore-delete=true", "handles deletes differently"),
        ("delta", "set changelog-producer=lookup", "changelog-producer must be none or input"),
    ],
)
@pytest.mark.parametrize("has_data", [True, False])
def test_no_option_of_one_branch_breaks_the_chain(branch: str, change: str, message: str, has_data: bool) -> None:
    table = fresh(has_data)
    other = table.branch("other")
    other.store.create(other.paths.schema(0), table.store.read(table.paths.schema(0)))
    before = shape(table)
    with pytest.raises(InvalidInputError, match=message):
        run(table, "alter_table", branch=branch, change=[change], operation_id="op")
    with pytest.raises(InvalidInputError, match=message):
        alter_table(table.branch(branch), [parse_change(change)])
    assert shape(table) == before
    assert read_state(table)


def test_what_another_engine_altered_alone_can_be_altered_back(table: Table) -> None:
    alter_alone(table.branch("delta"), SetOption(key="partition.timestamp-formatter", value="yyyyDDD"))
    with pytest.raises(InvalidInputError, match="make them equal"):
        gather_chain(table)
    run(table, "alter_table", branch="delta", change=["set partition.timestamp-formatter=yyyyMMdd"])
    assert read_state(table)


def read_state(table: Table) -> int:
    """Main is read through both branches, which agree."""
    return len(gather_chain(table).layout.partition_keys)


def faulty(table: Table, values: Mapping[str, Any], fault: FaultStore) -> Any:
    folder = table.store.uri.rsplit("/", 2)[0]
    request = build_request("alter_chain_table", {"warehouse": folder, "table": table.name, **values})
    context = open_context(request)
    return perform(Context(context.request, Table(fault, table.name), context.now_ms, context.started), request)


@pytest.mark.parametrize("operation_id", [None, "op"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("changes", [CHANGES, ["set target-file-size=64 mb"], ["alter column v comment 'x'"]])
def test_killed_between_any_two_store_calls(changes: list[str], after: bool, operation_id: str | None) -> None:
    values = {"change": changes, **({"operation_id": operation_id} if operation_id else {})}
    whole = fresh()
    probe = FaultStore(whole.store)
    faulty(whole, values, probe)
    assert len(probe.mutations) == (5 if operation_id else 3)
    for step in range(1, len(probe.mutations) + 1):
        table = fresh()
        with pytest.raises(Crash):
            faulty(table, values, FaultStore(table.store, step, after=after))
        for name in ENDS:  # each branch can be read; main together with them, or it says what to run again
            plan_scan(table.branch(name))
        try:
            gather_chain(table)
        except InvalidInputError as error:
            assert "alter_chain_table" in error.message, "no way out"
        assert run(table, "alter_chain_table", **values).changed or operation_id is None
        assert shape(table) == shape(whole)
        assert [table.branch(n).schema().fields for n in ENDS] == [whole.schema().fields] * 3
        assert run(table, "check_chain_table").details["errors"] == 0
        gather_chain(table)


def test_somebody_else_alters_a_branch_at_the_same_moment(table: Table) -> None:
    def compete(method: str, path: str) -> None:
        if path == "schema/schema-1":
            alter_table(table, [SetOption(key="target-file-size", value="1 gb")])

    with pytest.raises(ConflictError):
        faulty(table, {"change": ["add column w INT"]}, FaultStore(table.store, on_mutation=compete))
    alter(table, "add column w INT")
    gather_chain(table)
    assert table.schema().options["target-file-size"] == "1 gb"


def test_a_dry_run(table: Table) -> None:
    result = alter(table, "add column w INT", dry_run=True)
    assert result.changed
    assert [a["path"].rsplit("/", 1)[-1] for a in result.details["plan"]["actions"]] == ["schema-1"] * 3
    assert table.schema_ids() == [0]
