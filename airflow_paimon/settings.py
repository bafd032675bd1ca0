"""Defaults that a deployment may change: the section ``[paimon]`` of Airflow's configuration.

They are read once, when Airflow imports this module: they are defaults in the signatures of operators, sensors and
triggers. ``get_provider_info`` describes them, for ``airflow config list`` as well.
"""

from __future__ import annotations

from airflow_paimon._compat import conf
from airflow_paimon.get_provider_info import SETTINGS

__all__ = ["CONN_ID", "DEFERRABLE", "ENGINE", "POKE_INTERVAL", "POLL_INTERVAL", "SAMPLE", "SPARK_CONN_ID"]

_SECTION = "paimon"


def _default(name: str) -> str:
    # Where Airflow has not loaded the providers' metadata yet, it knows none of their defaults.
    return str(conf.get(_SECTION, name, fallback=SETTINGS[name]["default"]) or "").strip()


def _deferrable() -> bool:
    if _default("deferrable"):
        return bool(conf.getboolean(_SECTION, "deferrable"))
    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))


CONN_ID = _default("conn_id")
SPARK_CONN_ID = _default("spark_conn_id")
ENGINE = _default("engine")
DEFERRABLE = _deferrable()
POLL_INTERVAL = float(_default("poll_interval"))
POKE_INTERVAL = float(_default("poke_interval"))
SAMPLE = int(_default("sample"))
