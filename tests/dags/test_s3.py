"""The whole correction with the warehouse on S3: the worker and the Spark jobs reach it by our own store."""

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_paimon.core.publish.published import last_publish
from tests.airflow.conftest import set_connection
from tests.core.tables import names
from tests.dags.conftest import CONF, RIGHT, WRONG, amounts, expected, make_orders, run_dag, states
from tests.s3_server import KEY, REGION, SECRET, make_bucket, s3_server, storage_options

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.usefixtures("airflow_home", "java_home")]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, Any]]]:
    """A bucket behind ``s3_wh``, whose credentials stand in that connection alone."""
    with s3_server() as endpoint:
        warehouse = f"s3://{make_bucket(endpoint)}/warehouse"
        extra = {"warehouse": warehouse, "endpoint": endpoint, "region": REGION}
        set_connection(monkeypatch, "s3_wh", "paimon", login=KEY, password=SECRET, extra=extra)
        set_connection(monkeypatch, "spark_default", "spark", host="local[2]")
        yield warehouse, storage_options(endpoint)


def test_corrects_a_table_on_s3_by_fast_forward(
    s3: tuple[str, dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    warehouse, options = s3
    main = make_orders(warehouse, options)
    before = names(main)
    conf = {**CONF, "paimon_conn_id": "s3_wh", "publish": "fast_forward", "approval": False, "keep_branch": True}
    run = run_dag("data_correction", conf)
    skipped = {"merge", "rejected", "how_to_go_on", "delete_branch", "delete_tag"}
    assert states(run) == {name: "skipped" if name in skipped else "success" for name in run.tasks}
    assert amounts(main, *RIGHT, *WRONG) == expected(*RIGHT, *WRONG)
    publish = last_publish(main)
    assert publish.operation == "fast_forward"
    assert "airflow-paimon.approved-by" not in publish.snapshot.properties, "nobody was asked"
    assert len(names(main) & before) == len(before) // 2
    planned = run.xcom("check_params")
    assert main.branch_names() == [planned["branch"]]
    assert planned["tag"] in main.tag_names()

    undone = run_dag("data_correction_undo", {"table": CONF["table"], "paimon_conn_id": "s3_wh", "keep_later": False})
    assert undone.state == "success"
    assert names(main) == before
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err
