"""The run's date in the fields of a form, and what the runbooks make of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.dags import correction_dag
from airflow_paimon.runbooks import correction
from airflow_paimon.runbooks.form import form_of
from airflow_paimon.runbooks.run_date import with_run_date
from tests.airflow.conftest import set_connection
from tests.dags.conftest import TABLE, make_orders

DATE = datetime(2026, 11, 18, 3, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("dt={ds}", "dt=2026-11-18"),
        ("dt={ds_nodash}/hour={logical_date:%H}", "dt=20261118/hour=03"),
        ("{ds-1}", "2026-11-17"),
        ("{ds+1d} {ds-18}", "2026-11-19 2026-10-31"),
        ("{ds_nodash-4h}", "20261117"),
        ("{ds-1:%Y/%m}", "2026/11"),
        ("{logical_date-4h:%Y-%m-%dT%H:00:00}", "2026-11-17T23:00:00"),
        ("DELETE FROM branch WHERE dt > '{ds-1}'", "DELETE FROM branch WHERE dt > '2026-11-17'"),
        # Nothing but these: a form's text is no template.
        ("{{ ds }} {{ds}} {dss} {ds } {Ds} {logical_date}", "{{ ds }} {{ds}} {dss} {ds } {Ds} {logical_date}"),
        ("${ds:a{b} {ds.x} {ds-1}{}", "${ds:a{b} {ds.x} 2026-11-17{}"),
    ],
)  # fmt: skip
def test_the_date_is_filled_in_and_nothing_else(written: str, meant: str) -> None:
    form = {"sql": written, "partitions": [written, "x"], "table": written, "spark_conf": {"a": written}, "date": None}
    assert with_run_date(form, DATE) == {**form, "sql": meant, "partitions": [meant, "x"]}


def test_a_date_that_isnt_there_or_is_none_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"field partitions .* by \{ds-1\}, and this run has no logical date"):
        with_run_date({"partitions": ["dt={ds-1}"]}, None)
    assert with_run_date({"sql": "SELECT '{}'"}, None) == {"sql": "SELECT '{}'"}
    with pytest.raises(InvalidInputError, match=r"field date: \{ds-9999\} is not a date"):
        with_run_date({"date": "{ds-9999}"}, datetime(2, 1, 1, tzinfo=UTC))


@pytest.mark.airflow
def test_every_task_of_a_correction_sees_the_date_of_its_run(
    airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": str(tmp_path)})
    set_connection(monkeypatch, "spark_default", "spark", host="local[1]")
    make_orders(tmp_path)
    dag = correction_dag(
        "correct_each_day",
        schedule="@daily",
        locked={
            "table": TABLE,
            "sql": "SELECT * FROM branch WHERE dt = '{ds}'",
            "partitions": ["dt={ds}"],
            "reason": "late prices of {ds}",
        },
        defaults={"branch": "prices_{ds_nodash}"},
    )
    context: Any = {"params": dag.params.dump(), "logical_date": DATE}
    planned = correction.plan_correction(form_of(context), dag.dag_id, "backfill__2026-11-18")
    assert planned["branch"] == "prices_20261118"
    correct: Any = dag.get_task("correct")
    rendered = {name: getattr(correct, name)(context, None) for name in ("sql", "partitions")}
    assert rendered == {"sql": "SELECT * FROM branch WHERE dt = '2026-11-18'", "partitions": ["dt=2026-11-18"]}
    assert dag.get_task("create_branch").reason(context, None) == "late prices of 2026-11-18"
