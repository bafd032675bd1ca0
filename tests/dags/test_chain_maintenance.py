"""dags/nightly_chain_maintenance.py on real flights: carriers are the groups, days the chain."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.serialization.serialized_objects import DagSerialization

from airflow_paimon.core.commit.partition_contents import partition_contents
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, PaimonError, UnsafeOperationError
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.data.chain.compact import compact_chain_table
from airflow_paimon.execution import run_operation
from airflow_paimon.runbooks import chain_maintenance as runbook
from airflow_paimon.runbooks import maintenance_plan
from airflow_paimon.runbooks.form import request_for
from tests.airflow.conftest import Run
from tests.core.chain.tables import as_another_engine
from tests.dags.conftest import form_of, load_dag, load_program, make_orders, run_dag, states
from tests.data.chain.tables import Row, chain_table, seen

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]

DAG = "nightly_chain_maintenance"
FULL = 1
"""The day of July 2013 that every carrier has in full; what follows are deltas."""
DAYS = {"AA": range(2, 6), "UA": range(2, 6), "HA": range(2, 4)}
CONF = {"table": "d.t", "max_chain_length": 2}


def day(number: int) -> str:
    return f"201307{number:02d}"


@pytest.fixture(scope="module")
def flights() -> dict[tuple[str, int], list[Row]]:
    """Flight number, day and delay, by carrier and day: the last known delay of each flight number is the table."""
    rows = load_program("_flights").read_flights()
    found: dict[tuple[str, int], list[Row]] = {}
    for carrier, days in DAYS.items():
        own = rows.filter(pc.equal(rows["carrier"], carrier))
        for number in (FULL, *days):
            of_day = own.filter(pc.equal(own["flight_date"], date(2013, 7, number)))
            last = {r["flight"]: (r["flight"], number, str(r["dep_delay"])) for r in of_day.to_pylist()}
            found[carrier, number] = list(last.values())
    return found


@pytest.fixture
def table(warehouse: Path, flights: Mapping[tuple[str, int], list[Row]]) -> Table:
    writes = [
        ("snapshot" if number == FULL else "delta", f"{carrier}/{day(number)}", rows)
        for (carrier, number), rows in flights.items()
    ]
    return chain_table(warehouse, writes, partitions={"carrier": "STRING", "dt": "STRING"}, chain_keys="dt", buckets=1)


def held(table: Table, branch: str) -> list[str]:
    return [
        h.text.replace("carrier=", "").replace("/dt=201307", "")
        for h in partition_contents(plan_scan(table.branch(branch)))
    ]


def form(**conf: Any) -> dict[str, Any]:
    return form_of(DAG) | CONF | conf


def labels(run: Run) -> list[str]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(TaskInstance).where(TaskInstance.run_id == run.run_id, TaskInstance.task_id == "compact")
        return sorted(str(ti.rendered_map_index) for ti in session.scalars(query))


# -- the plan -----------------------------------------------------------------------------------------------------


WHY = "Nothing to compact in d.t: no full partition is stale, and no read merges more than 4 deltas (Longest chain)"


def test_the_plan_names_the_groups_that_have_something_to_do(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = runbook.plan_chain_maintenance(form())
    pending = {"pending": True, "max_chain_length": 2}
    assert planned["jobs"] == [{"partition": ["carrier='AA'", "carrier='UA'"], **pending}], "small ones share a job"
    assert "carrier=AA/dt=20130704: compact: anchor carrier=AA/dt=20130701, 3 deltas" in planned["lines"]
    assert planned["expires"] is False
    monkeypatch.setattr(maintenance_plan, "SMALL_BYTES", 0)
    alone = runbook.plan_chain_maintenance(form())["jobs"]
    assert alone == [{"partition": ["carrier='AA'"], **pending}, {"partition": ["carrier='UA'"], **pending}]
    packed = runbook.plan_chain_maintenance(form(max_jobs=1))["jobs"]
    assert packed == planned["jobs"]
    assert runbook.plan_chain_maintenance(form(max_chain_length=4, expiration_time="90 d")) == {
        "table": "d.t", "jobs": [], "expires": True, "lines": [WHY],
        "left_out": [],
    }  # fmt: skip


def test_an_own_dag_has_a_schedule_and_a_table(tmp_path: Path) -> None:
    """What docs/howto/chain-maintenance.md says of a schedule."""
    text = """
        from airflow_paimon.dags import chain_dag

        chain_dag("maintain_flights", schedule="0 3 * * *", defaults={"table": "db.flights"})
    """
    text = textwrap.dedent(text)
    (tmp_path / "maintain_flights.py").write_text(text)
    bag = BundleDagBag(dag_folder=str(tmp_path), bundle_path=tmp_path, bundle_name="copies")
    assert bag.import_errors == {}
    dag = DagSerialization.from_dict(DagSerialization.to_dict(bag.dags["maintain_flights"]))
    following = dag.next_dagrun_info(last_automated_run_info=None)
    assert following is not None
    assert following.run_after.hour == 3
    assert dag.params["table"] == "db.flights"


@pytest.mark.parametrize(
    ("groups", "label"),
    [
        ([], "all"),
        (["carrier='AA'"], "carrier=AA"),
        (["c='A'", "c='B'", "c='C'"], "c=A + c=B + c=C"),
        ([f"c='{n}'" for n in range(1000)], "c=0 + c=1 + c=2 and 997 more"),
        (["c='" + "long" * 80 + "'"] * 4, "c=" + "long" * 48 + "lon... and 1 more"),
    ],
)
def test_a_job_is_labelled_with_its_groups(groups: list[str], label: str) -> None:
    template = load_dag(DAG).get_task("compact").partial_kwargs["map_index_template"]  # type: ignore[union-attr]
    found = jinja2.Template(template).render(task=SimpleNamespace(partition=groups))
    assert found == label
    assert len(found) <= 250, "what Airflow has room for"


def test_a_date_asks_for_that_day_in_every_group(table: Table) -> None:
    spec = {"from_": "dt='20130703'", "to": "dt='20130703'"}
    jobs = runbook.plan_chain_maintenance(form(date="2013-07-03", max_chain_length=0))["jobs"]
    assert jobs == [{"partition": [f"carrier='{c}'" for c in ("AA", "HA", "UA")], **spec}]
    assert runbook.plan_chain_maintenance(form(date="2013-07-03", max_chain_length=2))["jobs"] == []
    last = form(date="2013-07-05", max_chain_length=0)
    assert [j["partition"] for j in runbook.plan_chain_maintenance(last)["jobs"]] == [["carrier='AA'", "carrier='UA'"]]
    carried = runbook.plan_chain_maintenance(last | {"gap_policy": "carry_forward"})
    assert [j["partition"] for j in carried["jobs"]] == [["carrier='AA'", "carrier='HA'", "carrier='UA'"]]


def test_a_group_that_can_not_be_planned_keeps_no_other_from_its_night(table: Table) -> None:
    row = {"k": 1, "s": 1, "v": "x", "carrier": "AA", "dt": "someday"}
    types = pa.schema([(n, pa.int32() if isinstance(v, int) else pa.string()) for n, v in row.items()])
    as_another_engine(table, lambda: write_arrow(table.branch("delta"), pa.Table.from_pylist([row], schema=types)))
    planned = runbook.plan_chain_maintenance(form())
    assert [j["partition"] for j in planned["jobs"]] == [["carrier='UA'"]]
    (why,) = planned["left_out"]
    assert why.startswith("carrier='AA' is left out: ")
    assert "dt=someday is without a partition time" in why
    assert runbook.summarize_chain_maintenance(form(), [], None)["longest_chain"] is None


@pytest.mark.parametrize(
    ("conf", "error", "says"),
    [
        ({"table": "d.nope"}, NotFoundError, "no table d.nope"),
        ({"table": "sales.orders"}, InvalidInputError, "not a chain table"),
        ({"date": "yesterday"}, InvalidInputError, "not a local date"),
        ({"date": "2013-07-03T00:00:00+00:00"}, InvalidInputError, "not a local date"),
    ],
)
def test_a_wrong_form_is_refused(table: Table, warehouse: Path, conf: Any, error: type[PaimonError], says: str) -> None:
    make_orders(str(warehouse))
    with pytest.raises(error, match=says):
        runbook.plan_chain_maintenance(form(**conf))


def test_a_forms_age_on_a_table_with_four_eyes_is_refused_before_anything_is_compacted(table: Table) -> None:
    """It dropped segments that nobody had approved; the table's own option is its owner's decision."""
    option = "set airflow-paimon.four-eyes=true"
    run_operation(request_for(form(), "alter_chain_table", change=[option]))
    with pytest.raises(
        UnsafeOperationError, match=r"nobody approved it; nothing was changed.*partition\.expiration-time"
    ):
        runbook.plan_chain_maintenance(form(expiration_time="30 d"))
    assert runbook.plan_chain_maintenance(form())["expires"] is False
    own = "set partition.expiration-time=30 d"
    run_operation(request_for(form(), "alter_chain_table", change=[own]))
    assert runbook.plan_chain_maintenance(form())["expires"] is True


# -- the night ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_dry_run_a_night_and_what_comes_too_late(table: Table) -> None:
    before = seen(table)
    early = runbook.plan_chain_maintenance(form())["jobs"]
    dry = run_dag(DAG, {**CONF, "expiration_time": "30 d", "dry_run": True})
    assert states(dry) == {"plan": "success", "compact": "skipped", "expire": "success", "metrics": "success",
                           "fail_on_skipped": "success"}  # fmt: skip
    assert dry.asset_events == []
    assert seen(table) == before

    run = run_dag(DAG, {**CONF, "expiration_time": "30 d"})
    assert set(states(run).values()) == {"success"}
    assert labels(run) == ["carrier=AA + carrier=UA"]
    assert held(table, "snapshot") == ["AA04", "HA01", "UA04"]
    assert held(table, "delta") == ["AA04", "AA05", "HA02", "HA03", "UA04", "UA05"]
    left = {(c, day(n)) for c, n in (("AA", 4), ("AA", 5), ("UA", 4), ("UA", 5), ("HA", 1), ("HA", 2), ("HA", 3))}
    assert seen(table) == [r for r in before if (r[-2], r[-1]) in left]
    figures = run.xcom("metrics")
    assert figures["compacted"] == {"compacted": 2}
    assert (figures["expired_segments"], figures["expired_partitions"]) == (2, 6)
    assert (figures["groups"], figures["longest_chain"], figures["gaps"]) == (3, 2, 0)
    assert figures["rows_written"] == sum(r[-1] == day(4) for r in before if r[-2] != "HA")
    uri = "paimon://paimon_default/d/t"
    assert [event for event in run.asset_events if event[0] == uri] == [(uri, figures)]
    # The tasks announce what they changed: groups compacted together, two branches expired.
    assert [event[0] for event in run.asset_events[:1]] == [f"{uri}/snapshot"]
    assert sorted(event[0] for event in run.asset_events[1:3]) == [f"{uri}/delta", f"{uri}/snapshot"]
    assert figures["ran_on"] == ["spark"]

    # The next run, and one that planned before this one wrote, find that there is nothing left to do.
    heads = {b: table.branch(b).latest_snapshot_id() for b in ("snapshot", "delta")}
    assert runbook.plan_chain_maintenance(form())["jobs"] == []
    for job in early:
        request = request_for(form(), "compact_chain_table", **job)
        assert compact_chain_table(open_context(request), request).changed is False  # type: ignore[arg-type]
    assert run_operation(request_for(form(), "expire_partitions", expiration_time="30 d")).changed is False
    assert {b: table.branch(b).latest_snapshot_id() for b in ("snapshot", "delta")} == heads
