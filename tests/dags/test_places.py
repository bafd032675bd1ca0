"""The whole correction, and its undo, on each storage and through each catalog: what the worker and the Spark jobs need
to reach the table stands in the connection alone."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from airflow_paimon.core.publish.undoable_publishes import last_publish
from tests.airflow.conftest import set_connection
from tests.core.tables import names, run
from tests.dags.conftest import CONF, RIGHT, WRONG, amounts, expected, fill_orders, run_dag, states
from tests.places import EVERYTHING, PLACES, Place, Servers

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.usefixtures("airflow_home", "java_home")]

KEPT: dict[str, Any] = {"publish": "fast_forward", "keep_branch": True}
CLEANED: dict[str, Any] = {"publish": "merge", "keep_branch": False}
# A metastore's table on S3 is what all runs try: it needs a catalog, its lock, a secret and a storage of our own.
CASES = [("hive-moto", KEPT), *((name, CLEANED) for name in PLACES if EVERYTHING)]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack, tmp_path_factory.mktemp("servers"))


def connect(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    set_connection(monkeypatch, "lake", "paimon", extra={**place.connection, "local_execution": "all"})
    set_connection(monkeypatch, "spark_default", "spark", host="local[2]")


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "form"), CASES, ids=[name for name, _ in CASES])
def test_corrects_and_undoes(
    servers: Servers,
    name: str,
    form: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    place = servers.place(name)
    connect(place, monkeypatch)
    main = fill_orders(partial(place.create, "orders"))
    before = names(main)
    named = {"table": main.name, "paimon_conn_id": "lake"}
    done = run_dag("data_correction", {**CONF, **named, **form, "approval": False})
    skipped = {"rejected", "report_failure", "merge" if form["publish"] == "fast_forward" else "fast_forward"}
    if form["keep_branch"]:
        skipped |= {"delete_branch", "delete_tag"}
    assert states(done) == {name: "skipped" if name in skipped else "success" for name in done.tasks}
    assert amounts(main, *RIGHT, *WRONG) == expected(*RIGHT, *WRONG)
    publish = last_publish(main)
    assert publish.operation == ("fast_forward" if form["publish"] == "fast_forward" else "merge_branch")
    assert "airflow-paimon.approved-by" not in publish.snapshot.properties, "nobody was asked"
    assert len(names(main) & before) == len(before) // 2
    planned = done.xcom("check_params")
    assert main.branch_names() == ([planned["branch"]] if form["keep_branch"] else [])
    assert (planned["tag"] in main.tag_names()) == form["keep_branch"]

    undone = run_dag("data_correction_undo", {**named, "keep_later": False, "approval": False})
    assert undone.state == "success"
    assert names(main) == before
    assert amounts(main, *RIGHT) == expected(*RIGHT)
    assert amounts(main, *WRONG) == expected(*WRONG, factor=100)
    assert run(main, "check_table", **place.request("orders")).details["errors"] == 0
    said = capfd.readouterr()
    for secret in place.secrets:
        assert secret not in said.out + said.err
