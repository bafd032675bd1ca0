"""The table of operations: complete, resolvable, and cheap to import."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module

import pytest

from airflow_paimon import execution
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.operations import OPERATIONS, operation_of
from airflow_paimon.execution import in_python, on_metadata
from airflow_paimon.spark.jobs import function_of


def test_every_function_is_there_and_takes_what_it_is_given() -> None:
    for name, operation in OPERATIONS.items():
        assert operation.request.operation == name
        if operation.needs_spark:
            assert list(inspect.signature(function_of(name)).parameters)[:3] == ["spark", "context", "request"], name
        else:
            assert list(inspect.signature(on_metadata(name)).parameters)[:2] == ["context", "request"], name
        if operation.in_python:
            assert list(inspect.signature(in_python(name)).parameters)[:2] == ["context", "request"], name


def test_every_function_that_is_named_by_its_place_is_there() -> None:
    places = re.findall(r'"((?:core|data)\.[\w.]+):(\w+)"', inspect.getsource(execution))
    assert len(places) > 40
    assert [p for p in places if not callable(getattr(import_module(f"airflow_paimon.{p[0]}"), p[1], None))] == []


def test_a_dag_file_pays_for_the_table_and_for_nothing_that_it_names() -> None:
    heavy = ("pyspark", "pyarrow", "fsspec", "airflow_paimon.core.table.table", "airflow_paimon.core.branches.create")
    code = (
        f"import sys; import airflow_paimon.core.requests.arguments; print([m for m in {heavy!r} if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="Unknown operation 'create_brunch'; there are: alter_branch, "):
        operation_of("create_brunch")
