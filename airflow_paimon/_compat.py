"""All that this package knows about Airflow versions: 3.1 and later, imported from where common-compat finds it."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    Asset,
    AssetAlias,
    BaseHook,
    BaseOperator,
    BaseSensorOperator,
    BranchMixIn,
    PokeReturnValue,
    Stats,
    TaskDeferred,
    conf,
    mask_secret,
)
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowRuntimeError

WAITS_FOR_ANSWER: tuple[type[BaseException], ...] = (TaskDeferred,)
"""What Airflow's own approval raises when it has asked."""
try:
    from airflow.sdk.exceptions import TaskAwaitingInput
except ImportError:  # before Airflow 3.3
    pass
else:
    WAITS_FOR_ANSWER += (TaskAwaitingInput,)

PARTITION_KEYS = False
"""Whether an asset event may have a partition key."""
try:
    from airflow.sdk import PartitionedAssetTimetable as _PartitionedAssetTimetable  # noqa: F401
except ImportError:  # before Airflow 3.3
    pass
else:
    PARTITION_KEYS = True

__all__ = [
    "PARTITION_KEYS",
    "WAITS_FOR_ANSWER",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowRuntimeError",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "Asset",
    "AssetAlias",
    "BaseHook",
    "BaseOperator",
    "BaseSensorOperator",
    "BranchMixIn",
    "MappedOperator",
    "PokeReturnValue",
    "Stats",
    "TaskDeferred",
    "conf",
    "mask_secret",
]
