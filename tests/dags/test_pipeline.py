"""dags/pipeline_correction.py: a wrong unit in a raw feed, corrected, replayed into the daily totals made from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, PaimonError
from airflow_paimon.core.publish.undoable_publishes import undoable_publishes
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import ReplayBranch
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.streaming.consumers import keep_from
from airflow_paimon.core.table.inspect import inspect
from airflow_paimon.core.table.table import Table
from airflow_paimon.dags.pipeline import replays
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.operators.pipeline import ReplayTablesOperator
from airflow_paimon.runbooks import advice, leftovers, pipeline, report
from airflow_paimon.runbooks import undo as undoing
from airflow_paimon.runbooks.pipeline_plan import EXAMPLE, parse_tables
from airflow_paimon.shown.listing import size_text
from airflow_paimon.spark.jobs.replay_check import plan_replay
from airflow_paimon.task_run import commit_user_prefix
from tests.airflow.conftest import Run, set_connection
from tests.core.tables import run as operate
from tests.dags.conftest import answering, form_of, load_dag, run_dag, states
from tests.environment import REPO_ROOT
from tests.soundness import assert_sound

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]

DAG, UNDO = "pipeline_correction", "pipeline_correction_undo"
RAW, DAILY = "flights.raw", "flights.daily"
Feed = dict[str, list[tuple[str, int]]]
# Of day 2 the feed gave seconds instead of minutes.
FEED: Feed = {"1": [("AA", 5), ("AA", 6), ("UA", 7)], "2": [("AA", 60), ("AA", 120), ("UA", 180)]}
RIGHT: Feed = {**FEED, "2": [("AA", 1), ("AA", 2), ("UA", 3)]}
CORRECT = {"table": RAW, "correct": "UPDATE branch SET delay = delay / 60 WHERE dt = '2'"}
REPLAY = {
    "table": DAILY,
    "replay": "INSERT OVERWRITE branch PARTITION (dt = '2') "
    "SELECT carrier, sum(delay) FROM raw WHERE dt = '2' GROUP BY carrier",
}
CONF = {"tables": [CORRECT, REPLAY], "reason": "seconds instead of minutes"}


def load(raw: Table, feed: Feed) -> None:
    rows = [(dt, n, c, d) for dt, flights in feed.items() for n, (c, d) in enumerate(flights)]
    write_arrow(raw, columns(("dt", "id", "carrier", "delay"), rows))


def summarize(daily: Table, feed: Feed) -> None:
    write_arrow(daily, columns(("dt", "carrier", "delay"), totals_of(feed)))


def columns(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def totals_of(feed: Feed) -> list[tuple[Any, ...]]:
    """What the daily totals of a feed are: the model."""
    keys = sorted({(dt, c) for dt, flights in feed.items() for c, _ in flights})
    return [(dt, c, sum(d for carrier, d in feed[dt] if carrier == c)) for dt, c in keys]


def flights_of(feed: Feed) -> list[tuple[Any, ...]]:
    return sorted((dt, n, c, d) for dt, flights in feed.items() for n, (c, d) in enumerate(flights))


def rows(table: Table, version: str | None = None) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in read_arrow(table, version).to_pylist())


@pytest.fixture
def mains(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Table, Table]:
    """The raw feed and its daily totals, of two days."""
    days = {"partition_keys": ["dt"], "options": {"bucket": "1"}}
    raw = create_table(
        str(warehouse),
        RAW,
        [("dt", "STRING NOT NULL"), ("id", "BIGINT NOT NULL"), ("carrier", "STRING"), ("delay", "BIGINT")],
        primary_keys=["dt", "id"],
        **days,  # type: ignore[arg-type]
    )
    daily = create_table(
        str(warehouse),
        DAILY,
        [("dt", "STRING NOT NULL"), ("carrier", "STRING NOT NULL"), ("delay", "BIGINT")],
        primary_keys=["dt", "carrier"],
        **days,  # type: ignore[arg-type]
    )
    load(raw, FEED)
    summarize(daily, FEED)
    extra = {"warehouse": str(warehouse), "forms": {"functions": ["jobs.daily"]}}
    set_connection(monkeypatch, "paimon_default", "paimon", extra=extra)
    return raw, daily


def during(monkeypatch: pytest.MonkeyPatch, event: str, act: Callable[[], None]) -> None:
    """Let another job act once: ``branched``: before the replay; ``published``: when the first table is published."""
    acted: list[str] = []

    def once(operator: Any, original: Callable[..., Any], *arguments: Any) -> Any:
        result = original(operator, *arguments)
        if not acted and event == f"{operator.task_id} {operator.table}":
            acted.append(event)
            act()
        return result

    from airflow_paimon.operators._base import PaimonOperator

    original = PaimonOperator._perform
    monkeypatch.setattr(PaimonOperator, "_perform", lambda operator, *rest: once(operator, original, *rest))


def left_over(*tables: Table) -> list[str]:
    tags = [t for table in tables for t in table.tag_names() if not t.startswith("airflow-paimon-")]
    return [*tags, *(b for table in tables for b in table.branch_names())]


@pytest.mark.slow
def test_corrects_replays_publishes_both_and_undoes_both_while_both_mains_go_on(
    mains: tuple[Table, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, daily = mains
    new: Feed = {"3": [("DL", 4)]}

    def go_on() -> None:
        load(raw, new)
        summarize(daily, new)

    during(monkeypatch, f"correct {RAW}", go_on)
    with answering("Approve", DAG) as questions:
        checked = CORRECT | {"checks": [{"row_limits": {"deleted": 0}}]}
        run = run_dag(DAG, {**CONF, "tables": [checked, REPLAY], "table_set": "reports"})
    assert run.state == "success", states(run)
    got = states(run)
    assert {n for n, s in got.items() if s == "skipped"} == {"correct[1]", "rejected", "report_failure"}
    assert rows(raw) == flights_of({**RIGHT, **new})
    assert rows(daily) == totals_of({**RIGHT, **new})
    assert [tag.rpartition("-")[0] for tag in left_over(raw, daily)] == ["set-reports-1"] * 2
    assert set_rows(mains) == [flights_of({**RIGHT, **new}), totals_of({**RIGHT, **new})]
    for table in mains:
        assert_sound(table, leaks=True)
        (publish,) = undoable_publishes(table)
        assert publish.operation == "merge_branch"
        assert publish.snapshot.properties["airflow-paimon.approved-by"]
        (record,) = (r for r in read_audit(table) if r.kind == "publish")
        assert record.approved_at
        assert record.diff["total"]["changed"], "of this table's own comparison"

    (question,) = questions
    assert question["subject"] == f"Publish the correction of {RAW} and {DAILY}?"
    page = question["body"]
    assert "1 check of the branch" in page
    for said in ("seconds instead of minutes", CORRECT["correct"], REPLAY["replay"], "3 updated", "| dt=2 |"):
        assert said in " ".join(page.split()), page  # long SQL is broken into lines
    assert "Main of flights.raw has changed since this run began**, in dt=3" in page
    assert [extra["operation"] for _, extra in run.asset_events][-2:] == ["merge_branch", "merge_branch"]
    check_undo(run, raw, daily, new)


def set_rows(mains: tuple[Table, Table]) -> list[list[tuple[Any, ...]]]:
    """The rows of both tables in the newest version of the set."""
    return [rows(main, "set:reports") for main in mains]


def check_undo(run: Run, raw: Table, daily: Table, new: Feed) -> None:
    """Both go back, and what both mains got in between stays; then nothing is left to undo."""
    asked = {"tables": [RAW, DAILY], "branch": run.xcom("check_params")[0]["branch"]}
    with answering("Approve", UNDO) as questions:
        undone = run_dag(UNDO, asked)
    assert undone.state == "success", states(undone)
    body = questions[0]["body"]
    assert all(f"## {name}" in body for name in (RAW, DAILY)) and "some changed rows" in body
    assert all(f" of {name} to change: " in body for name in (RAW, DAILY))
    assert [one["table"] for one in undone.xcom("check_params")] == [DAILY, RAW]
    assert rows(raw) == flights_of({**FEED, **new})
    assert rows(daily) == totals_of({**FEED, **new})
    assert set_rows((raw, daily)) == [rows(raw), rows(daily)]
    assert [tag.rpartition("-")[0] for tag in left_over(raw, daily)] == ["set-reports-1", "set-reports-2"] * 2
    with pytest.raises(NotFoundError, match="undone already"):
        undoing.plan_undos(form(**asked))


# The same undo is proven of the operator, in tests/airflow/test_pipeline_operators.py.
@pytest.mark.thorough
@pytest.mark.slow
def test_a_table_that_is_refused_takes_the_published_ones_back(
    mains: tuple[Table, Table], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raw, daily = mains
    before = rows(raw)
    later: Feed = {"2": [("AA", 9)]}  # a key that the branch changes, too
    during(monkeypatch, f"publish {RAW}", lambda: summarize(daily, later))
    run = run_dag(DAG, {**CONF, "approval": False})
    assert run.state == "failed"
    assert states(run)["publish"] == states(run)["report_failure"] == "failed"
    assert rows(raw) == before
    assert [p.operation for p in undoable_publishes(raw)] == ["merge_branch", "rollback_to"]
    assert rows(daily) == sorted({*totals_of(FEED), ("2", "AA", 9)} - {("2", "AA", 180)}), "what the other job wrote"
    assert undoable_publishes(daily) == []
    assert left_over(raw, daily) == []
    error = run.xcom("publish", "paimon_error")
    assert error["kind"] == "conflict"
    assert f"{RAW} was published as snapshot 2 and undone by snapshot 3" in error["message"]
    assert f"{RAW}: the correction was published as snapshot 2 of main, and undone since" in caplog.text
    assert f"Main of {DAILY} is untouched by this run" in caplog.text
    for table in mains:
        assert_sound(table, leaks=True)


# -- forms and arguments, without Spark -------------------------------------------------------------------------------


def form(**conf: Any) -> dict[str, Any]:
    return form_of(DAG) | {"tables": [CORRECT, REPLAY]} | conf


REFUSED: dict[str, tuple[dict[str, Any], type[PaimonError], str]] = {
    "no table": ({"tables": []}, InvalidInputError, "Tables is empty: write what happens to each"),
    "no object": ({"tables": [RAW]}, InvalidInputError, "entry 1 is 'flights.raw', not an object"),
    "a misspelled key": ({"tables": [{"tabel": RAW}]}, InvalidInputError, "tabel (did you mean table?)"),
    "no name": ({"tables": [{"correct": "x"}]}, InvalidInputError, "entry 1 names no table"),
    "a branch": (
        {"tables": [CORRECT | {"table": "f.r$branch_b"}]},
        InvalidInputError,
        "write database.table, no branch",
    ),
    "twice": ({"tables": [CORRECT, CORRECT]}, InvalidInputError, "flights.raw occurs twice"),
    "nothing to do": ({"tables": [{"table": RAW}]}, InvalidInputError, 'flights.raw: give "correct"'),
    "both": ({"tables": [CORRECT | {"replay": "m:f"}]}, InvalidInputError, "one of the two"),
    "no source": ({"tables": [REPLAY]}, InvalidInputError, "nothing is before it"),
    "the wrong order": (
        {"tables": [REPLAY | {"sources": ["raw=flights.raw"]}, CORRECT]},
        InvalidInputError,
        "flights.daily reads flights.raw, which does not come before it: put the upstream tables first",
    ),
    "itself": ({"tables": [CORRECT, REPLAY | {"sources": [DAILY]}]}, InvalidInputError, "does not come before it"),
    "a source of a correction": (
        {"tables": [CORRECT | {"sources": [DAILY]}]},
        InvalidInputError,
        '"sources" does not go',
    ),
    "a bad source": (
        {"tables": [CORRECT, REPLAY | {"sources": ["raw="]}]},
        InvalidInputError,
        "flights.daily: sources",
    ),
    "a query": (
        {"tables": [CORRECT, REPLAY | {"replay": "SELECT 1 FROM raw"}]},
        InvalidInputError,
        'flights.daily: "replay" takes UPDATE, DELETE, MERGE and INSERT',
    ),
    "a text": ({"tables": [CORRECT | {"partitions": "dt=2"}]}, InvalidInputError, "must be a list of strings"),
    "partitions of a statement": ({"tables": [CORRECT | {"partitions": ["dt=2"]}]}, InvalidInputError, "for a SELECT"),
    "no such table": ({"tables": [CORRECT | {"table": "flights.rwa"}]}, NotFoundError, "no table flights.rwa"),
    "no such source": (
        {"tables": [CORRECT, REPLAY | {"sources": ["raw=flights.rwa"]}]},
        NotFoundError,
        "no table flights.rwa",
    ),
    "two starts": ({"start_tag": "t", "start_time": "2026-11-18T00:00:00Z"}, InvalidInputError, "are two starts"),
    "no such tag": ({"start_tag": "t"}, NotFoundError, "flights.raw has no tag 't'"),
    "a start of nothing": ({"start_snapshots": ["flights.daily=1"]}, InvalidInputError, "a name of flights.raw"),
    "no such snapshot": ({"start_snapshots": ["7"]}, NotFoundError, "flights.raw has no snapshot 7"),
    "too early": ({"start_time": "2001-01-01T00:00:00Z"}, NotFoundError, "no snapshot from before 2001"),
    "no watermark": ({"caught_up": "watermark"}, InvalidInputError, "fill in Watermark"),
    "a needless watermark": ({"watermark": "2026-11-18T00:00:00Z"}, InvalidInputError, "Ready when is watermark"),
    "streams of statements": ({"streams": True}, InvalidInputError, "the statements of flights.daily run as a batch"),
    "a bad time": ({"replay_timeout": "soon"}, InvalidInputError, "replay_timeout"),
    "a bad set": ({"table_set": "a/b"}, InvalidInputError, "Table set 'a/b': a name has letters"),
    "a bad branch name": ({"branch": "fix.1"}, InvalidInputError, "fix.1"),
    "a bad retention": ({"undo_retention": "soon"}, InvalidInputError, "undo_retention"),
    "a column that no source has": (
        {"tables": [CORRECT, {"table": DAILY, "replay": "INSERT INTO branch SELECT '1', r.carier, 2 FROM raw r"}]},
        InvalidInputError,
        "raw has no column carier (did you mean carrier?)",
    ),
    "a view that is not there": (
        {"tables": [CORRECT | {"views": ["days=dim.nope"]}, REPLAY]},
        NotFoundError,
        "view (--view) days=dim.nope",
    ),
    "no such spark connection": ({"spark_conn_id": "sprak"}, InvalidInputError, "no Airflow connection 'sprak'"),
}


def test_wrong_forms_are_refused_before_anything_is_made(mains: tuple[Table, Table]) -> None:
    for case, (conf, error, message) in REFUSED.items():
        with pytest.raises(error) as caught:
            pipeline.plan_pipeline(form(**conf), DAG, "run-1")
        assert message in caught.value.message, case
    assert left_over(*mains) == []
    with pytest.raises(NotFoundError, match="has no publish of branch 'fix' that can be undone"):
        undoing.plan_undos(form(tables=[RAW], branch="fix"))


def test_the_forms_in_the_documentation_are_taken() -> None:
    page = (REPO_ROOT / "docs" / "howto" / "pipeline-correction.md").read_text()
    tables, undo = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", page, re.DOTALL))
    assert [one.table for one in parse_tables(tables)] == [RAW, DAILY]
    assert parse_tables(json.loads(EXAMPLE)) == parse_tables(tables), "the form shows what the page shows"
    assert undo.keys() <= set(load_dag(UNDO).params)


def test_what_a_run_will_touch_is_said_of_every_table_before_anything_is_made(mains: tuple[Table, Table]) -> None:
    raw, daily = mains
    keep_from(daily, "dashboards", 1)
    two = {**REPLAY, "replay": f"{REPLAY['replay']}; DELETE FROM branch WHERE dt = '2' AND carrier = 'AA'"}
    planned = pipeline.plan_pipeline(form(tables=[CORRECT, two]), DAG, "run-1")
    lines = [f"{one['table']}: {line}" for one in planned for line in one["preview"]["lines"]]
    assert [line for line in lines if "Replaces" in line] == [
        f"{RAW}: Replaces at most 1 file with {_size(raw)} and 3 stored rows, in dt=2",
        f"{DAILY}: statement 1: Replaces at most 1 file with {_size(daily)} and 2 stored rows, in dt=2",
        f"{DAILY}: statement 2: Replaces at most 1 file with {_size(daily)} and 2 stored rows, in dt=2",
    ]
    assert any(line.startswith(f"{DAILY}: statement 1: Reads of {RAW} at most 2 files") for line in lines)
    assert planned[1]["preview"]["notice"] == ["Consumer dashboards reads snapshot 1 next, 1 behind"]
    assert left_over(raw, daily) == []


def _size(table: Table) -> str:
    sizes = {row["partition"]: row["file_size_in_bytes"] for row in inspect(table, "partitions").to_pylist()}
    return size_text(sizes["dt=2"])


def test_a_form_becomes_arguments_that_stay_the_same(mains: tuple[Table, Table]) -> None:
    raw, daily = mains
    operate(raw, "create_tag", tag="before")
    load(raw, {"3": [("DL", 4)]})
    calendar = create_table(raw.store.uri.rpartition("/flights.db")[0], "dim.days", [("dt", "STRING")])
    write_arrow(calendar, pa.table({"dt": ["1"]}))
    function = {"table": DAILY, "replay": "jobs.daily:again", "sources": [RAW, "days=dim.days"]}
    asked = form(tables=[CORRECT, function], start_snapshots=["flights.raw=1", "dim.days=1"], caught_up="main_at_start")
    first, second = pipeline.plan_pipeline(asked, DAG, "run-1")
    assert (first["base_snapshot"], second["base_snapshot"]) == (1, 1)
    assert (first["correct"]["sql"], first["replay"], first["reads"]) == (CORRECT["correct"], None, [])
    branch = first["branch"]
    replay = second["replay"]
    assert (replay["sql"], replay["function"]) == (None, "jobs.daily:again")
    assert replay["source"] == [f"raw=flights.raw$branch_{branch}", "days=dim.days"]
    assert replay["snapshot"] == ["raw=1", "days=1"]
    assert second["reads"] == [RAW]
    head = daily.latest_snapshot()
    assert head is not None and second["wait"]["reference_time"] == str(head.time_millis)
    assert pipeline.plan_pipeline(form(start_tag="before"), DAG, "run-1")[0]["base_snapshot"] == 1

    now = pipeline.plan_pipeline(form(), DAG, "run-1")
    assert [one["base_snapshot"] for one in now] == [2, 1]
    for table, one in zip(mains, now, strict=True):
        operate(table, "create_tag", tag=one["tag"], snapshot=one["base_snapshot"])
    load(raw, {"4": [("DL", 4)]})
    again = pipeline.plan_pipeline(form(), DAG, "run-1")
    assert [one | {"preview": None} for one in again] == [one | {"preview": None} for one in now]
    views = CORRECT | {"views": ["days=dim.days"], "checks": [{"sql": "SELECT * FROM days WHERE dt IS NULL"}]}
    viewed = pipeline.plan_pipeline(form(tables=[views, function]), DAG, "run-3")
    assert [one["views"] for one in viewed] == [["days=dim.days"], []]
    with pytest.raises(InvalidInputError, match="the checks have a view 'base' already"):
        pipeline.plan_pipeline(form(tables=[views | {"views": ["base=dim.days"]}, function]), DAG, "run-3")
    streams = form(tables=[CORRECT, function], streams=True, caught_up="watermark", watermark="2026-11-18T00:00:00Z")
    asked_of_streams = pipeline.plan_pipeline(streams, DAG, "run-2")[1]
    assert asked_of_streams["replay"]["until_watermark"] == asked_of_streams["wait"]["reference_time"]


def test_the_job_takes_the_arguments_of_a_replay(mains: tuple[Table, Table]) -> None:
    """From the form to where the job starts to read, but for Spark."""
    function = {"table": DAILY, "replay": "jobs.daily:again"}
    more = {"streams": True, "caught_up": "watermark", "watermark": "2026-11-18T00:00:00Z"}
    planned = pipeline.plan_pipeline(form(tables=[CORRECT, function], **more), DAG, "run-1")
    for table, one in zip(mains, planned, strict=True):
        operate(table, "create_tag", tag=one["tag"], snapshot=one["base_snapshot"])
        operate(table, "create_branch", branch=one["branch"], tag=one["tag"])
    load(mains[0].branch(planned[0]["branch"]), {"3": [("DL", 4)]})

    ti = SimpleNamespace(dag_id=DAG, run_id="run-1", task_id="replay", map_index=-1, max_tries=0)
    ti.xcom_pull = lambda task_ids: planned
    arguments = replays({"ti": ti}, None)  # type: ignore[typeddict-item]
    first, operator = ReplayTablesOperator(task_id="replay", tables=arguments)._each()
    assert (first.sql, first.function) == (None, None)
    request = operator._request(PaimonHook(), {"ti": ti})  # type: ignore[typeddict-item]
    assert isinstance(request, ReplayBranch)
    replay = plan_replay(open_context(request), request)
    assert replay.record.starts == {"raw": 1}
    assert [(s.name, s.branch_name) for s in replay.sources.values()] == [(RAW, planned[0]["branch"])]
    assert [(t.name, t.branch_name) for t in replay.targets.values()] == [(DAILY, planned[0]["branch"])]
    assert replay.streams
    assert replay.goal.watermark == 1763424000000 + 365 * 86400000


def test_branches_stay_while_one_table_is_published_and_go_when_none_is(mains: tuple[Table, Table]) -> None:
    params, owner = form(), f"{DAG}/run-1"
    planned = pipeline.plan_pipeline(params, DAG, "run-1")
    branch = planned[0]["branch"]
    for table, one in zip(mains, planned, strict=True):
        operate(table, "create_tag", tag=one["tag"], snapshot=one["base_snapshot"])
        operate(table, "create_branch", branch=branch, tag=one["tag"], owner=owner)
        user = f"{commit_user_prefix(DAG, 'correct' if one['correct'] else 'replay')}abc"
        write_arrow(table.branch(branch), read_arrow(table), operation_id=user)
    undo = operate(mains[0], "merge_branch", branch=branch, writers_stopped=True).details["undo_tag"]
    unsure = leftovers.clean_up_run(params, planned, {"publish": "outcome-unknown"})
    assert unsure == [
        f"Nothing was cleaned up: the correction was published ({RAW}), and its branch shows what main then got"
    ]
    outcome, lines = report.describe_outcome(params, planned)
    assert outcome == f"{RAW}: the correction is on main since snapshot 2; {DAILY}: main of {DAILY} is untouched"
    form_of_undo = json.loads(lines[-1])
    assert form_of_undo == {"tables": [RAW], "branch": branch}
    undone, _ = undoing.plan_undos(form(**form_of_undo, undo_retention="7 d"))
    assert [one["table"] for one in undone] == [RAW]
    first, *_ = advice.next_steps(params, planned, "publish", {"kind": "conflict"})
    assert "first undo what is published, by pipeline_correction_undo" in first
    helps = advice.next_steps(params, planned, "publish", {"kind": "outcome-unknown"})
    assert "clear task publish with its downstream" in helps[0]

    operate(mains[0], "rollback_to", tag=undo, keep_later=True)
    first, *_ = advice.next_steps(params, planned, "publish", {"kind": "conflict"})
    assert "first undo" not in first
    unsure = leftovers.clean_up_run(params, planned, {"publish": "outcome-unknown"})
    assert unsure == ["Nothing was cleaned up: publish may still succeed, and a retry searches for it on the branch"]
    assert "Cleaned up: branch" in leftovers.clean_up_run(params, planned, {"publish": "conflict"})[0]
    assert left_over(*mains) == []
