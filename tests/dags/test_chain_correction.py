"""Corrections of a chain table: the DAG of docs/howto/chain-corrections.md, and bundled DAGs on its delta branch."""

import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.publish.undoable_publishes import undoable_publishes
from airflow_paimon.core.table.table import Table
from airflow_paimon.runbooks.correction import plan_correction
from tests.dags.conftest import answering, load_dag, run_dag, run_made, states
from tests.data.chain.compactions import compact
from tests.data.chain.tables import Row, chain_table, seen
from tests.environment import REPO_ROOT
from tests.spark.jobs.operations import run

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

_SNIPPET = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def make(warehouse: Path) -> Table:
    """Cents instead of euros in the delta of the 11th, from which the full partition of that day was built."""
    main = chain_table(
        warehouse,
        [
            ("snapshot", "20250810", [(1, 1, 1), (2, 1, 2), (3, 1, 3)]),
            ("delta", "20250811", [(1, 2, 200), (2, 2, 0, "-D"), (4, 1, 400)]),
            ("delta", "20250812", [(4, 2, 5)]),
        ],
        values={"amount": "INT"},
    )
    compact(main, "dt=20250811")
    return main


def day(main: Table, of: str) -> list[Row]:
    return [row[:3] for row in seen(main) if row[-1] == of]


WRONG, RIGHT = [(1, 2, 200), (3, 1, 3), (4, 1, 400)], [(1, 2, 2), (3, 1, 3), (4, 1, 4)]


def printed_dag() -> DAG:
    (text,) = _SNIPPET.findall((REPO_ROOT / "docs" / "howto" / "chain-corrections.md").read_text())[:1]
    with DAG("printed", schedule=None, default_args={"retries": 0}) as dag:
        exec(text.replace("sales.days", "d.t").replace("20261117", "20250811"), {"__name__": "printed"})
    return dag


@pytest.mark.thorough
def test_the_dag_that_the_docs_print(warehouse: Path, airflow_home: Path) -> None:
    main = make(warehouse)
    assert day(main, "20250811") == WRONG
    with answering("Approve", "printed") as questions:
        done = run_made(printed_dag(), {})
    assert (done.state, set(states(done).values())) == ("success", {"success"})
    assert len(questions) == 1
    assert day(main, "20250811") == RIGHT
    assert day(main, "20250812") == [(1, 2, 2), (3, 1, 3), (4, 2, 5)]
    assert run(warehouse, "check_chain_table").details["stale"] == []


FORM: dict[str, Any] = {
    "table": "d.t$branch_delta",
    "sql": "UPDATE branch SET amount = amount / 100 WHERE dt = '20250811'",
}


@pytest.mark.thorough
def test_data_correction_its_undo_and_its_cleanup_on_a_branch_of_a_chain_table(
    warehouse: Path, airflow_home: Path
) -> None:
    main = make(warehouse)
    delta, before = main.branch("delta"), seen(main.branch("delta"))
    with answering("Approve") as questions:
        done = run_dag("data_correction", {**FORM, "keep_branch": True})
    assert done.state == "success", states(done)
    assert "d.t$branch_delta" in questions[0]["subject"]
    assert [r[2] for r in seen(delta)] == [2, 4, 5]
    assert day(main, "20250811") == WRONG, "the full partition is built by the nightly DAG"
    assert any("dt=20250811" in line and "stale" in line for line in done.xcom("verify")["lines"])
    with answering("Approve", "data_correction_undo") as questions:
        undone = run_dag("data_correction_undo", {"table": "d.t$branch_delta"})
    assert " changed, 0 deleted" in questions[0]["body"]
    assert undone.state == "success", states(undone)
    assert seen(delta) == before
    assert (len(main.branch_names()), [p.branch is None for p in undoable_publishes(delta)]) == (3, [False, True])
    cleaned = run_dag("data_correction_cleanup", {"table": "d.t", "drop_unpublished": True})
    assert cleaned.state == "success", states(cleaned)
    assert main.branch_names() == ["delta", "snapshot"]
    assert [t for t in delta.tag_names() if t.startswith("before_")] == []


def test_a_chain_table_is_corrected_on_one_of_its_branches(warehouse: Path, airflow_home: Path) -> None:
    make(warehouse)
    run(warehouse, "create_branch", branch="other", from_branch="delta", snapshot=1)
    form = {**load_dag("data_correction").params.dump(), "sql": FORM["sql"]}
    for table, branch, says in (
        ("d.t", None, r"delta \(changes\) or snapshot"),
        ("d.t$branch_other", None, "name the table d.t"),
        ("d.t$branch_delta", "snapshot", "give it once"),
        ("d.t", "nope", "no branch 'nope'"),
    ):
        with pytest.raises((InvalidInputError, LookupError), match=says):
            plan_correction({**form, "table": table, "chain_branch": branch}, "data_correction", "run")
    planned = plan_correction({**form, "table": "d.t", "chain_branch": "delta"}, "data_correction", "run")
    assert (planned["table"], planned["from_branch"], planned["base_snapshot"]) == ("d.t", "delta", 2)
