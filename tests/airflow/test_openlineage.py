"""What the operators tell OpenLineage, as Airflow's own provider writes it to a file."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.data import write_arrow
from airflow_paimon.operators.check import CheckBranchOperator
from tests.core.tables import append, make_table, rewrite, run
from tests.environment import REPO_ROOT

pytestmark = pytest.mark.airflow

# In a process of its own: the provider reads its settings once, and its listener stays.
DAG = """
    import os
    from datetime import UTC, datetime

    from airflow.sdk import DAG, Asset

    from airflow_paimon.operators.branch import (
        CorrectBranchOperator, CreateBranchOperator, MergeBranchOperator, RollbackOperator
    )
    from airflow_paimon.operators.pipeline import UndoTablesOperator
    from tests.airflow.conftest import register

    with DAG("lineage", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        named = {"table": "{{ 'd.t' }}"}
        create = CreateBranchOperator(task_id="create", branch="later", snapshot=1, **named)
        merge = MergeBranchOperator(task_id="merge", branch="fix", **named)
        plan = RollbackOperator(task_id="plan", snapshot=1, dry_run=True, **named)
        failed = RollbackOperator(task_id="failed", snapshot=77, **named)
        correct = CorrectBranchOperator(
            task_id="correct",
            table="d.real",
            branch="fix",
            sql="SELECT b.k, concat(b.v, r.v) AS v, b.dt FROM branch b JOIN rates r ON b.k = r.k WHERE b.dt = 'a'",
            view=["rates=d.real@1", "fixed=d.real$branch_fix", "base=d.real@fix.1"],
            partitions=["dt=a"],
        )
        several = UndoTablesOperator(
            task_id="several", tables=[{"table": "d.t", "snapshot": 1}, {"table": "d.real", "snapshot": 77}]
        )
        create >> merge >> plan >> correct >> [failed, several]
    register(dag)
    dag.test()
"""


@pytest.fixture
def events(
    airflow_home: Path, warehouse: Path, tmp_path: Path, java_home: Path
) -> dict[tuple[str, str], dict[str, Any]]:
    """The last event of each kind of each task."""
    import airflow.providers.openlineage as provider  # of the extra openlineage

    assert provider.__version__
    table = make_table(warehouse)
    append(table, "1")
    run(table, "create_branch", branch="fix", snapshot=1)
    rewrite(table.branch("fix"), "1")
    real = make_table(warehouse, "d.real")
    write_arrow(real, pa.table({"k": [1, 2], "v": ["x", "y"], "dt": ["a", "a"]}))
    run(real, "create_branch", branch="fix", snapshot=1)
    log = tmp_path / "lineage.jsonl"
    transport = {"type": "file", "log_file_path": str(log), "append": True}
    environment = {
        **os.environ,
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "tests",
        "AIRFLOW__OPENLINEAGE__DISABLED": "False",
    }
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DAG)], env=environment, cwd=REPO_ROOT, check=True, capture_output=True
    )
    found = [json.loads(line) for line in log.read_text().splitlines()]
    return {(e["job"]["name"], e["eventType"]): e for e in found}


def datasets(found: list[dict[str, Any]]) -> list[tuple[str, str, str | None, str]]:
    """Namespace, name, version and the name in the warehouse."""
    return [
        (
            d["namespace"],
            d["name"],
            d["facets"].get("version", {}).get("datasetVersion"),
            d["facets"]["symlinks"]["identifiers"][0]["name"],
        )
        for d in found
    ]


@pytest.mark.thorough
def test_what_each_task_read_and_wrote_and_why_one_failed(
    events: dict[tuple[str, str], dict[str, Any]], warehouse: Path
) -> None:
    main, fix = f"{warehouse}/d.db/t", f"{warehouse}/d.db/t/branch/branch-fix"
    created = events["lineage.create", "COMPLETE"]
    assert datasets(created["inputs"]) == [("file", main, None, "d.t")]
    assert datasets(created["outputs"]) == [
        ("file", f"{warehouse}/d.db/t/branch/branch-later", "1", "d.t$branch_later")
    ]

    merged = events["lineage.merge", "COMPLETE"]
    assert datasets(merged["inputs"]) == [("file", fix, None, "d.t$branch_fix"), ("file", main, None, "d.t")]
    assert datasets(merged["outputs"]) == [("file", main, "2", "d.t")]
    assert [(f["name"], f["type"]) for f in merged["outputs"][0]["facets"]["schema"]["fields"]] == [
        ("k", "BIGINT NOT NULL"),
        ("v", "STRING"),
        ("dt", "STRING NOT NULL"),
    ]
    did = merged["run"]["facets"]["paimon_operation"]
    assert (did["operation"], did["changed"], did["snapshotBefore"], did["snapshotAfter"]) == (
        "merge_branch",
        True,
        1,
        2,
    )

    planned = events["lineage.plan", "COMPLETE"]
    assert planned["outputs"] == []
    assert planned["run"]["facets"]["paimon_operation"]["dryRun"] is True

    corrected = events["lineage.correct", "COMPLETE"]
    real = f"{warehouse}/d.db/real"
    on_fix = ("file", f"{real}/branch/branch-fix")
    assert datasets(corrected["inputs"]) == [
        (*on_fix, "1", "d.real$branch_fix"),
        ("file", real, "1", "d.real"),
        ("file", real, "1", "d.real"),
        (*on_fix, None, "d.real$branch_fix"),
        (*on_fix, "1", "d.real$branch_fix"),
    ]
    (written,) = corrected["outputs"]
    assert written["name"] == f"{real}/branch/branch-fix"
    came_from = {
        column: [(f["namespace"], f["name"].removeprefix(real), f["field"]) for f in fields["inputFields"]]
        for column, fields in written["facets"]["columnLineage"]["fields"].items()
    }
    assert came_from == {
        "k": [("file", "/branch/branch-fix", "k")],
        "v": [("file", "/branch/branch-fix", "v"), ("file", "", "v")],
        "dt": [("file", "/branch/branch-fix", "dt")],
    }

    failed = events["lineage.failed", "FAIL"]
    assert datasets(failed["inputs"]) == [("file", main, None, "d.t")]
    several = events["lineage.several", "FAIL"]
    assert [table for *_, table in datasets(several["inputs"])] == ["d.t", "d.real"]
    assert datasets(several["outputs"]) == [("file", main, "3", "d.t")], "of the table that was done before one failed"
    assert failed["outputs"] == []
    did = failed["run"]["facets"]["paimon_operation"]
    assert (did["operation"], did["error"]["kind"]) == ("rollback_to", "not-found")


def test_an_asset_is_the_dataset_of_its_branch(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.openlineage.utils.utils import translate_airflow_asset
    from airflow.sdk import Asset

    from tests.airflow.conftest import set_connection

    set_connection(monkeypatch, "lake", "paimon", extra={"warehouse": "s3a://bucket/warehouse/"})
    found = {
        uri: (d.namespace, d.name) if (d := translate_airflow_asset(Asset(uri), None)) is not None else None
        for uri in ("paimon://paimon_default/d/t", "paimon://lake/d/t/fix", "paimon://nowhere/d/t", "paimon://lake/d")
    }
    assert found == {
        "paimon://paimon_default/d/t": ("file", f"{warehouse}/d.db/t"),
        "paimon://lake/d/t/fix": ("s3://bucket", "warehouse/d.db/t/branch/branch-fix"),
        "paimon://nowhere/d/t": None,
        "paimon://lake/d": None,
    }


def test_checks_are_assertions_about_the_branch(warehouse: Path) -> None:
    """Also those of a task that failed for them."""
    from airflow_paimon.lineage.openlineage import lineage_of

    main = make_table(warehouse)
    append(main, "a")
    run(main, "create_branch", branch="fix", snapshot=1)
    rules = [{"row_limits": {"deleted": 0}}, {"name": "few", "row_limits": {"added": 5}, "severity": "warn"}]
    operator = CheckBranchOperator(task_id="check", table="d.t", branch="fix", rules=rules)
    said = [{"name": "not_null v", "outcome": "failed", "broken": 2, "said": "2 rows break it"},
            {"name": "few", "outcome": "warned", "broken": 1, "said": "1 case"}]  # fmt: skip
    found = lineage_of(operator, None, {"kind": "unsafe", "rules": said})
    facet = found.inputs[0].inputFacets["dataQualityAssertions"]
    assert [(a.assertion, a.success, a.severity) for a in facet.assertions] == [
        ("not_null v", False, "error"),
        ("few", False, "warn"),
    ]
    assert found.inputs[0].name.endswith("/branch/branch-fix") and not found.outputs


def test_figures_of_a_correction_a_compaction_and_a_diff() -> None:
    from airflow_paimon.lineage import openlineage

    rows = {"rows": 40, "bytes": 900, "files_added": 2, "branch_snapshot": 3, "main_snapshot": 2}
    corrected = {"operation": "correct_branch", "details": rows}
    figures = openlineage._statistics(corrected)
    assert figures is not None
    assert (figures.rowCount, figures.size, figures.fileCount) == (40, 900, 2)
    assert openlineage._versions_read(corrected) == [3, 2]
    parts = [{"rows_out": 5, "files_out": 1}, {"outcome": "gap"}, {"rows_out": 7, "files_out": 2}]
    compacted = openlineage._statistics({"operation": "compact_chain_table", "details": {"partitions": parts}})
    assert compacted is not None
    assert (compacted.rowCount, compacted.fileCount) == (12, 3)
    assert openlineage._statistics({"operation": "merge_branch", "details": {}}) is None
