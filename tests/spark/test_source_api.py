"""What the running Spark lacks is refused by name. Needs no JVM; `make spark-versions` runs it with each version."""

from __future__ import annotations

import inspect
from typing import Any

import pyspark
import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.spark import register, require_spark, source_api
from airflow_paimon.spark.streaming.source import PaimonStreamReader

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


def test_what_is_found_is_what_the_version_has() -> None:
    assert (VERSION >= (4, 0)) == source_api.HAS_DATA_SOURCES
    ours = (source_api.SupportsTriggerAvailableNow.__module__, source_api.DataSourceStreamArrowWriter.__name__)
    assert ours[0].startswith("airflow_paimon") == (VERSION < (4, 2))
    assert (ours[1] == "DataSourceStreamArrowWriter") == (VERSION >= (4, 1))


def test_a_stream_takes_what_spark_tells_it_since_4_2() -> None:
    """By this Spark decides: it calls a function without parameters as before."""
    assert len(inspect.signature(PaimonStreamReader.latestOffset).parameters) == 3
    assert issubclass(PaimonStreamReader, source_api.SupportsTriggerAvailableNow)


def test_the_format_is_refused_without_python_data_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_api, "HAS_DATA_SOURCES", False)
    session: Any = object()
    with pytest.raises(UnsupportedFeatureError, match="format airflow_paimon needs Python data sources, which Spark"):
        register(session)


def test_an_older_spark_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    require_spark()
    monkeypatch.setattr(pyspark, "__version__", "3.4.4")
    with pytest.raises(UnsupportedFeatureError, match=r"This is Spark 3\.4\.4, and airflow-paimon needs 3\.5 or newer"):
        require_spark()
