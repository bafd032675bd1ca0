"""Spark's Python data source API as the running Spark has it: stand-ins for what came later, and a refusal by name.

| Spark | data sources | admission control, ``Trigger.AvailableNow`` |
|---|---|---|
| 3.5 | no: refused | |
| 4.0, 4.1 | yes | no |
| 4.2 and later | yes | yes |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.errors import UnsupportedFeatureError

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
        WriterCommitMessage,
    )

    HAS_DATA_SOURCES = True
except ImportError:
    HAS_DATA_SOURCES = False

    class _StandIn:
        """For what this Spark doesn't have."""

        def __init__(self, value: Any = None) -> None:
            self.value = self.options = value

    DataSource = DataSourceArrowWriter = DataSourceReader = _StandIn  # type: ignore[assignment,misc]
    DataSourceStreamReader = InputPartition = WriterCommitMessage = _StandIn  # type: ignore[assignment,misc]


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:
    # Spark 4.0 hands a stream's rows over as Arrow batches if its writer is of this class, and asks for no other.
    DataSourceStreamArrowWriter = DataSourceArrowWriter  # type: ignore[assignment,misc]

try:
    from pyspark.sql.streaming.datasource import (  # type: ignore[import-not-found,unused-ignore]
        ReadAllAvailable,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A stand-in: before Spark 4.2 nobody asks for it."""

    @dataclass
    class ReadAllAvailable:  # type: ignore[no-redef]
        """All that there is."""

    @dataclass
    class ReadMaxFiles:  # type: ignore[no-redef]
        """So many files at most."""

        max_files: int


__all__ = [
    "HAS_DATA_SOURCES",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadMaxFiles",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
    "require_data_sources",
]


def require_data_sources(what: str, instead: str) -> None:
    """Refuse what needs Python data sources in a Spark without them.

    Raises:
        UnsupportedFeatureError: names the version and the way out.
    """
    if HAS_DATA_SOURCES:
        return
    import pyspark

    raise UnsupportedFeatureError(
        f"{what} needs Python data sources, which Spark {pyspark.__version__} doesn't have: {instead}, or use Spark "
        f"4.0 or newer"
    )
