"""Row operations of an engine that is not built are refused by name, before Spark is asked for anything."""

import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.operations.request import build_request
from airflow_paimon.spark.operations import run_spark_operation


@pytest.mark.parametrize("operation", ["correct_branch", "diff_branches"])
def test_the_connector_engine_is_refused_by_name(operation: str) -> None:
    request = build_request(operation, {"warehouse": "w", "table": "d.t", "branch": "fix", "engine": "connector"})
    with pytest.raises(UnsupportedFeatureError, match="engine='embedded'"):
        run_spark_operation(None, request)  # type: ignore[arg-type]
