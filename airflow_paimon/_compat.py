"""All that this package knows about Airflow versions: 3.1 and later, imported from where common-compat finds it."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    Asset,
    AssetAlias,
    BaseHook,
    BaseOperator,
    BaseSensorOperator,
    BranchMixIn,
    PokeReturnValue,
    conf,
    mask_secret,
)
from airflow.sdk.exceptions import AirflowRuntimeError

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowRuntimeError",
    "AirflowSkipException",
    "Asset",
    "AssetAlias",
    "BaseHook",
    "BaseOperator",
    "BaseSensorOperator",
    "BranchMixIn",
    "PokeReturnValue",
    "conf",
    "mask_secret",
]
