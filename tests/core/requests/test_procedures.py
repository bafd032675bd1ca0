"""CALL: what it parses to, that every procedure of Paimon's has an answer, and that its result is Paimon's."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.requests.call import read_call
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.core.requests.procedures import NOT_HERE, PROCEDURES, plan_call
from airflow_paimon.core.sql_text.call import Call, Given, is_call, parse_call
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import run_operation
from tests.clock import next_millisecond
from tests.core.tables import append, commit_time, make_table, overwrite, run
from tests.environment import REPO_ROOT

PAIMONS = frozenset(
    """
alter_column_default_value alter_function alter_view_dialect clear_consumers clone compact compact_chain_table
compact_database compact_manifest copy copy_files create_branch create_function create_global_index create_tag
create_tag_from_timestamp create_tag_from_watermark data_evolution_merge_into delete_branch delete_tag drop_function
drop_global_index drop_partition expire_changelogs expire_partitions expire_snapshots expire_tags fast_forward
full_text_search mark_partition_done materialize_deletion_vectors merge_branch merge_into migrate_database
migrate_table purge_files query_service reassign_row_id remove_orphan_files remove_unexisting_files
remove_unexisting_manifests rename_branch rename_tag repair repair_earliest_snapshot replace_tag rescale
reset_consumer rewrite_file_index rollback rollback_to rollback_to_as_latest rollback_to_timestamp
rollback_to_watermark trigger_tag_automatic_creation vector_search
""".split()  # noqa: SIM905
)
"""All procedures of Paimon 2.2-SNAPSHOT (August 2026), of its Spark and its Flink connector."""


def asked(text: str, zone: str = "UTC") -> tuple[str, dict[str, Any]]:
    plan = plan_call(parse_call(text), ZoneInfo(zone))
    return plan.operation, {k: v for k, v in plan.values.items() if k != "table"}


def test_every_procedure_of_paimons_is_an_operation_or_says_what_to_do_instead() -> None:
    assert {*PROCEDURES} | {*NOT_HERE} == {*PAIMONS}
    assert not {*PROCEDURES} & {*NOT_HERE}
    page = (REPO_ROOT / "docs" / "comparison.md").read_text()
    assert [name for name in PAIMONS if f"`{name}`" not in page] == []


def test_every_operation_can_be_called_and_one_with_paimons_name_has_paimons_arguments() -> None:
    for name in OPERATIONS:
        assert name not in PAIMONS or PROCEDURES[name].operation == name
        _can_be_called(name)


def _can_be_called(name: str) -> None:
    values = {f.name.rstrip("_"): f for f in dataclasses.fields(OPERATIONS[name].request)}
    ours = PROCEDURES.get(name)
    given = [a.name for a in ours.arguments if a.required] if ours else []
    text = ", ".join(f"{n} => 'x'" for n in given)
    assert asked(f"CALL sys.{name}(table => 'd.t'{', ' if text else ''}{text})")[0] == name
    assert "table" in values
    taken = {"table", "warehouse", "storage_options", "operation_id"}
    taken |= {f for a in ours.arguments if a.required for f in a.fields} if ours else set()
    for field in dataclasses.fields(OPERATIONS[name].request):  # each flag, by its own name
        if field.name not in taken:
            value = "true" if str(field.type) == "bool" else "'full'"
            more = f"{field.name.rstrip('_')} => {value}{', ' if text else ''}{text}"
            assert field.name in asked(f"CALL sys.{name}(table => 'd.t', {more})")[1]


def test_arguments_are_fields_of_their_operation() -> None:
    for name, procedure in PROCEDURES.items():
        known = {f.name for f in dataclasses.fields(OPERATIONS[procedure.operation].request)}
        assert {field for a in procedure.arguments for field in a.fields} <= known, name
        for argument in procedure.arguments:
            says = [argument.fields or argument.convert, argument.harmless, argument.refused]
            assert sum(map(bool, says)) == 1, (name, argument.name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'a'", "a"), ('"a"', "a"), ("'it''s'", "it's"), (r"'it\'s'", "it's"), (r"'a\\b'", r"a\b"), (r"r'a\b'", r"a\b"),
        (r"'a\tbA\101'", "a\tbAA"), ("'a' 'b'", "ab"), ("'a;--b'", "a;--b"), ("''", ""), (r"'50\%'", r"50\%"),
        ("7", 7), ("-7", -7), ("- 7", -7), ("7L", 7), ("1.5", 1.5), ("-1e3", -1000.0), (".5", 0.5),
        ("true", True), ("FALSE", False), ("null", None), ("TIMESTAMP '2026-01-01 00:00:00'", "2026-01-01 00:00:00"),
        ("array('a', 'b;')", ("a", "b;")), ("array()", ()),
    ],
)  # fmt: skip
def test_literals(text: str, value: Any) -> None:
    call = parse_call(f"-- a comment\nCALL /* another; */ sys.P(`T``x` => {text}); ;\n")
    assert call == Call("p", (Given("T`x", value),))
    assert repr(call.arguments[0].value) == repr(value)


@given(st.text(st.characters(codec="utf-8"), max_size=20), st.sampled_from("'\""))
def test_any_text_in_quotes_is_that_text(text: str, mark: str) -> None:
    quoted = text.replace("\\", "\\\\").replace(mark, f"\\{mark}")
    assert parse_call(f"CALL sys.p(a => {mark}{quoted}{mark}, b => 1)").arguments[0].value == text
    doubled = text.replace("\\", "\\\\").replace(mark, mark * 2)
    assert parse_call(f"CALL sys.p({mark}{doubled}{mark})").arguments[0].value == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CALL compact('d.t')", "called as sys.compact"),
        ("CALL a.b.sys.compact('d.t')", "called as sys.compact"),
        ("CALL sys.compact('d.t', partitions => 'dt=1')", "all arguments by name, or all by position"),
        ("CALL sys.compact('d.t'", r"expected '\)', found the end"),
        ("CALL sys.compact('d.t',)", "a literal"),
        ("CALL sys.compact('d.t') CALL", "the end of the statement"),
        ("CALL sys.compact(table => current_date())", "a literal"),
        ("CALL sys.compact(table = 'd.t')", "write table => value, not table = value"),
        ("CALL sys.compact('d.t)", "a literal"),
        ("CALL sys.compact(table => 'd.t', Table => 'd.u')", "given twice"),
        ("CALL sys.compacted(table => 'd.t')", "did you mean compact"),
        ("CALL sys.compact(table => 'd.t', partition => 'dt=1')", "no argument partition; did you mean partitions"),
        ("CALL sys.compact(partitions => 'dt=1')", "needs table"),
        ("CALL sys.create_tag(table => 'd.t')", "needs tag"),
        ("CALL sys.create_tag('d.t', 'x', 1, '1 d', 5)", "takes 4 arguments by position: table, tag, snapshot"),
        ("CALL sys.create_tag(table => 'd.t', tag => 'x', operation_id => 'y')", "give it to airflow_paimon.spark.sql"),
        ("CALL sys.create_tag(tabel => 'd.t', tag => 'x')", "no argument tabel; did you mean table"),
        ("CALL sys.create_branch(table => 'd.t', branch => 'b', ignoreIfExists => 'yes')", "must be true or false"),
        ("CALL sys.compact_manifest(table => 'd.t', manifest_sort_enabled => 'yes')", "must be true or false"),
        ("CALL sys.remove_orphan_files(table => 'd.*')", "takes one table, not d.*; call it for each table"),
        ("CALL sys.create_tag(table => 'd.t', tag => 1.5)", "one string, whole number or boolean"),
        ("CALL sys.delete_tag(table => 'd.t', tag => 'a,b')", "call delete_tag once for each"),
        ("CALL sys.delete_tag(table => 'd.t', tag => array('a', 'b'))", "call delete_tag once for each"),
        ("CALL sys.delete_branch(table => 'd.t', branch => 'a,b')", "once for each"),
        ("CALL sys.rollback(table => 'd.t', version => 'x', tag => 'y')", "two arguments specify tag"),
        ("CALL sys.merge_branch(table => 'd.t$branch_b', source_branch => 'a')", "name has branch 'b', and branch"),
        ("CALL sys.compact_chain_table('d.t$branch_delta', 'dt=1')", "the whole table: name it d.t"),
        ("CALL sys.compact_chain_table('d.t')", "needs partition"),
        ("CALL sys.compact(table => 'd.t', compact_strategy => 'some')", "full or minor"),
        ("CALL sys.expire_snapshots(table => 'd.t', options => 'x')", "form key=value"),
    ],
)
def test_what_is_wrong_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        plan_call(parse_call(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("compact(table => 'd.t', where => 'dt > 1')", "give the partitions by name"),
        ("compact(table => 'd.t', order_strategy => 'zorder', order_by => 'a')", "Paimon's own compact"),
        ("compact(table => 'd.t', partition_idle_time => '60s')", "partition_idle_time is not taken"),
        ("compact(table => 'd.t', options => 'target-file-size=1mb')", "compact: options: target-file-size can't"),
        ("expire_snapshots(table => 'd.t', options => 'snapshot.clean-empty-directories=true')", "set it on the table"),
        ("compact_database()", "call compact for each table"),
        ("migrate_table(source_type => 'hive', table => 'd.t', options_map => map('a', 'b'))", "docs/comparison.md"),
        ("rewrite_file_index(table => 'd.t')", "Paimon's own connector"),
    ],
)
def test_what_would_mean_something_else_is_refused_with_the_way_out(text: str, message: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=message):
        plan_call(parse_call(f"CALL sys.{text}"))


@pytest.mark.parametrize(
    ("text", "operation", "values"),
    [
        # the examples of Paimon's documentation
        ("expire_snapshots(table => 'd.t', retain_max => 10, options => 'snapshot.expire.limit=1')",
         "expire_snapshots", {"retain_max": 10, "max_deletes": "1"}),
        ("expire_snapshots('d.t', 10, 1, '2026-01-01 12:00:00', 5)", "expire_snapshots",
         {"retain_max": 10, "retain_min": 1, "older_than": "2026-01-01T12:00:00+00:00", "max_deletes": 5}),
        ("expire_snapshots(table => 'd.t', max_deletes => 2, options => 'snapshot.expire.limit=1')",
         "expire_snapshots", {"max_deletes": 2}),
        ("expire_partitions(table => 'd.t', expiration_time => '1 d', timestamp_formatter => 'yyyy-MM-dd', "
         "timestamp_pattern => '$dt', expire_strategy => 'values-time', max_expires => 3)", "expire_partitions",
         {"expiration_time": "1 d", "timestamp_formatter": "yyyy-MM-dd", "timestamp_pattern": "$dt",
          "strategy": "values-time", "limit": 3}),
        ("expire_tags(table => 'd.t', older_than => '2024-09-06 11:00:00')", "expire_tags",
         {"older_than": "2024-09-06T11:00:00+00:00", "include_unlimited": True}),
        ("create_branch(table => 'd.t$branch_old', branch => 'new', tag => 'x', ignoreIfExists => true)",
         "create_branch", {"from_branch": "old", "branch": "new", "tag": "x", "if_exists": "skip"}),
        ("rollback(table => 'd.t', version => 'my_tag')", "rollback_to", {"tag": "my_tag"}),
        ("rollback(table => 'd.t', version => 10)", "rollback_to", {"snapshot": "10"}),
        ("rollback_to(`table` => 'd.t', snapshot_id => 10)", "rollback_to", {"snapshot": 10}),
        ("rollback_to(table => 'd.t', tag => 'airflow-paimon-undo-x', keep_later => true)", "rollback_to",
         {"tag": "airflow-paimon-undo-x", "keep_later": True}),
        ("rollback_to_timestamp('d.t', 1730292023000)", "rollback_to", {"timestamp": 1730292023000}),
        ("merge_branch(table => 'd.t', source_branch => 'b', target_branch => 'main', skip_checks => true)",
         "merge_branch", {"branch": "b", "onto": "main", "skip_checks": True}),
        ("compact(table => 'd.t', partitions => 'dt=1,hh=08;dt=''a;b''', compact_strategy => 'full', "
         "options => 'sink.parallelism=4')", "compact", {"partitions": ("dt=1,hh=08", "dt='a;b'")}),
        ("mark_partition_done(table => 'd.t', partitions => array('dt=1;dt=2', 'dt=3'))", "mark_partition_done",
         {"partitions": ("dt=1", "dt=2", "dt=3")}),
        ("compact_chain_table(table => 'd.t', partition => 'dt=\"20250810\",hour=\"22\"')", "compact_chain_table",
         {"partition": ('dt="20250810",hour="22"',)}),
        ("clear_consumers(table => 'd.t', including_consumers => '', excludingConsumers => 'my.*')",
         "clear_consumers", {"excluding": "my.*"}),
        ("reset_consumer(table => 'd.t', consumer_id => 'a', next_snapshot_id => 10)", "reset_consumer",
         {"consumer": "a", "next_snapshot": 10}),
        ("rename_tag('d.t', 'a', 'b')", "rename_tag", {"tag": "a", "to_tag": "b"}),
        ("remove_orphan_files(table => 'd.t', older_than => '2 d', dry_run => true, parallelism => 5, mode => 'local')",
         "remove_orphan_files", {"older_than": "2 d", "dry_run": True}),
        # ours
        ("compact_chain_table(table => 'd.t', pending => true, max_chain_length => 3)", "compact_chain_table",
         {"pending": True, "max_chain_length": 3}),
        ("compact_chain_table(table => 'd.t', from => 'dt=1', to => 'dt=2')", "compact_chain_table",
         {"from_": "dt=1", "to": "dt=2"}),
        ("replace_main('d.t', 'b')", "replace_main", {"branch": "b"}),
        ("correct_branch('d.t$branch_b')", "correct_branch", {"branch": "b"}),
        ("replace_main(table => 'd.t', branch => 'b', keep_old_as => 'old')", "replace_main",
         {"branch": "b", "keep_old_as": "old"}),
        ("alter_table(table => 'd.t$branch_b', change => array('set a=1', 'drop column c'))", "alter_table",
         {"branch": "b", "change": ("set a=1", "drop column c")}),
        ("export_audit(table => 'sales.*', from => '2026-01-01')", "export_audit", {"from_": "2026-01-01"}),
    ],
)  # fmt: skip
def test_values_are_those_of_our_request(text: str, operation: str, values: dict[str, Any]) -> None:
    assert asked(f"CALL sys.{text}") == (operation, values)


def test_times_without_an_offset_are_local_as_in_paimon() -> None:
    text = "CALL sys.expire_snapshots(table => 'd.t', older_than => '{}')"
    assert asked(text.format("2026-07-01 12:00:00"), "Europe/Berlin")[1]["older_than"] == "2026-07-01T12:00:00+02:00"
    assert asked(text.format("2026-01-01"), "Europe/Berlin")[1]["older_than"] == "2026-01-01T00:00:00+01:00"
    assert asked(text.format("2026-01-01T00:00:00+05:00"), "Europe/Berlin")[1]["older_than"].endswith("+05:00")
    assert asked(text.format("7 d"))[1]["older_than"] == "7 d"


def test_the_catalog_of_the_call_may_stand_before_the_table_too() -> None:
    assert plan_call(parse_call("CALL paimon.sys.compact(table => 'paimon.d.t')")).values["table"] == "d.t"
    with pytest.raises(InvalidInputError, match="not of the form"):
        plan_call(parse_call("CALL sys.compact(table => 'paimon.d.t$branch_b')"))
    with pytest.raises(PaimonError, match=r"x\.d\.t"):
        read_call("CALL paimon.sys.compact(table => 'x.d.t', compact_strategy => 'minor')", "memory://none/wh")


def test_other_statements_are_no_call() -> None:
    assert is_call("/* x */ call sys.x()")
    assert not is_call("SELECT 'call'")
    assert not is_call(None)


def call(table: Table, text: str, **more: Any) -> OperationResult:
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    return run_operation(read_call(f"CALL sys.{text}", warehouse, **more).request)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = make_table(tmp_path / "wh")
    for dt in "abc":
        append(table, dt)
        next_millisecond()
    return table


def test_a_tag_from_a_timestamp_is_the_first_snapshot_since_as_paimons(table: Table) -> None:
    """Where ``create_tag --timestamp`` takes the newest one before."""
    times = {n: table.snapshot(n).time_millis for n in (1, 2, 3)}
    text = "create_tag_from_timestamp(table => 'd.t', tag => '{}', timestamp => {})"
    assert call(table, text.format("at", times[2])).details["snapshot"] == 2
    assert call(table, text.format("after", times[1] + 1)).details["snapshot"] == 2
    assert run(table, "create_tag", tag="before", timestamp=str(times[2] - 1)).details["snapshot"] == 1
    with pytest.raises(NotFoundError, match="or later"):
        call(table, text.format("late", times[3] + 1))
    commit_time(table, 3, times[2])
    assert call(table, text.format("twice", times[2])).details["snapshot"] == 2
    with pytest.raises(InvalidInputError, match="a time or watermark chooses it"):
        call(table, f"create_tag_from_timestamp(table => 'd.t', tag => 'x', timestamp => {times[1]}, snapshot => 1)")


def test_a_snapshot_that_only_a_tag_has_counts_as_in_paimon(table: Table) -> None:
    since = table.snapshot(1).time_millis
    run(table, "create_tag", tag="old", snapshot=1)
    call(table, "expire_snapshots(table => 'd.t', retain_max => 1, retain_min => 1, writers_stopped => true, "
         "retry_window => '0 s')")  # fmt: skip
    assert table.snapshot_ids() == [3]
    text = f"create_tag_from_timestamp(table => 'd.t', tag => 'again', timestamp => {since}, time_retained => '1 d')"
    assert call(table, text, operation_id="x").details["snapshot"] == 1
    assert call(table, text, operation_id="x").details["replayed"], "a retry finds the first try's tag"


def test_a_rollback_is_a_new_snapshot_with_the_old_state(table: Table) -> None:
    by_time = call(table, f"rollback_to_timestamp('d.t', {table.snapshot(2).time_millis})")
    assert (by_time.operation, by_time.snapshot_after) == ("rollback_to", 4)
    assert table.snapshot(4).total_record_count == 2
    assert call(table, "rollback(table => 'd.t', version => '1')", operation_id="y").snapshot_after == 5
    assert call(table, "rollback(table => 'd.t', version => '1')", operation_id="y").snapshot_after == 5
    assert table.snapshot_ids() == [1, 2, 3, 4, 5]


def test_a_tag_to_delete_may_be_missing_as_in_paimon(table: Table) -> None:
    assert not call(table, "delete_tag(table => 'd.t', tag => 'x')").changed
    with pytest.raises(NotFoundError):
        call(table, "delete_tag(table => 'd.t', tag => 'x', if_missing => 'fail')")
    with pytest.raises(PaimonError):
        call(table, "delete_branch(table => 'd.t', branch => 'x')")


def test_a_consumer_to_delete_may_be_missing_as_in_paimon(table: Table) -> None:
    assert call(table, "reset_consumer(table => 'd.t', consumerId => 'a', nextSnapshotId => 2)").changed
    assert call(table, "reset_consumer(table => 'd.t', consumerId => 'a')").changed
    assert not call(table, "reset_consumer(table => 'd.t', consumerId => 'a')").changed
    with pytest.raises(NotFoundError):
        call(table, "reset_consumer(table => 'd.t', consumerId => 'a', if_missing => 'fail')")


def test_safety_rules_hold_for_a_call(table: Table) -> None:
    run(table, "create_branch", branch="fix", snapshot=3)
    overwrite(table.branch("fix"), "a")
    append(table, "d")
    with pytest.raises(PaimonError) as refused:
        call(table, "fast_forward(table => 'd.t', branch => 'fix')")
    assert refused.value.kind == "unsafe"
    assert call(table, "merge_branch(table => 'd.t', source_branch => 'fix')").snapshot_after == 5


def test_minor_compacts_from_as_many_runs_on_as_paimons_writers(tmp_path: Path) -> None:
    def runs(*, primary: bool, **options: str) -> Any:
        folder = tmp_path / f"{primary}{len(options)}"
        make_table(folder, primary=primary, **options)
        text = "CALL sys.compact(table => 'd.t', compact_strategy => 'MINOR')"
        return getattr(read_call(text, str(folder)).request, "max_sorted_runs", "no field")

    assert runs(primary=True) == 4
    assert runs(primary=True, **{"num-sorted-run.compaction-trigger": "8"}) == 7
    assert runs(primary=False) is None


def test_orphans_are_cleaned_before_a_local_time(table: Table) -> None:
    table.store.create(f"dt=a/bucket-0/data-{uuid.uuid4()}-0.parquet", b"x")
    text = "remove_orphan_files('d.t', older_than => '{}', dry_run => true, now => '2999-01-02T00:00:00+00:00')"
    text = text.replace("'d.t'", "table => 'd.t'")
    assert call(table, text.format("2000-01-01 00:00:00")).details["files"] == 0
    assert call(table, text.format("2999-01-01 00:00:00"), zone=ZoneInfo("UTC")).details["files"] == 1
    with pytest.raises(InvalidInputError, match="must be at least 1 h"):
        call(table, text.format("2999-01-01 23:59:00"), zone=ZoneInfo("UTC"))
