"""Defaults that a deployment may change: the section ``[paimon]`` of Airflow's configuration.

They are read once, when Airflow imports this module: they are defaults in the signatures of operators, sensors and
triggers. ``get_provider_info`` describes them, for ``airflow config list`` as well. An empty one is not set; one that
can't be what it should be fails the import, so that no task runs with another value than the deployment means.
"""

from __future__ import annotations

import math

from airflow_paimon._compat import conf
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.local_execution import LOCAL_EXECUTION as LOCAL
from airflow_paimon.get_provider_info import SETTINGS

_SECTION = "paimon"


def _default(name: str) -> str:
    # Where Airflow has not loaded the providers' metadata yet, it knows none of their defaults.
    default: str = SETTINGS[name]["default"]
    return str(conf.get(_SECTION, name, fallback=default) or "").strip() or default


def _deferrable() -> bool:
    if _default("deferrable"):
        return bool(conf.getboolean(_SECTION, "deferrable"))
    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))


def _refusal(name: str, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"Airflow's configuration: [{_SECTION}] {name} is {what}, not {_default(name)!r}; correct it (or the variable "
        f"AIRFLOW__{_SECTION.upper()}__{name.upper()}) and restart Airflow's processes"
    )


def _local_execution() -> str:
    if _default("local_execution") not in LOCAL:
        raise _refusal("local_execution", " or ".join(LOCAL))
    return _default("local_execution")


def _seconds(name: str) -> float:
    try:
        found = float(_default(name))
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise _refusal(name, "a number of seconds above 0")
    return found


def _number(name: str, of: str) -> int:
    text = _default(name)
    if not (text.isascii() and text.isdigit()):
        raise _refusal(name, f"a number of {of} from 0 on")
    return int(text)


CONN_ID = _default("conn_id")
LINEAGE_CONN_ID = _default("lineage_conn_id")
SPARK_CONN_ID = _default("spark_conn_id")
LOCAL_EXECUTION = _local_execution()
DEFERRABLE = _deferrable()
POLL_INTERVAL = _seconds("poll_interval")
POKE_INTERVAL = _seconds("poke_interval")
MANIFEST_CACHE_MB = _number("manifest_cache_mb", "MiB")
SAMPLE = _number("sample", "rows")
