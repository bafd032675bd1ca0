"""Airflow sensors.

All of them can be imported from here; a module is loaded when one of its names is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_paimon.sensors.quiet import *  # noqa: F403
    from airflow_paimon.sensors.snapshot import *  # noqa: F403
    from airflow_paimon.sensors.table_set import *  # noqa: F403

MODULES = {
    "quiet": ("BucketsQuietSensor",),
    "snapshot": ("SnapshotCatchUpSensor",),
    "table_set": ("TableSetSensor",),
}
"""The modules of this package, each with its sensors."""
_PLACES = {name: module for module, names in MODULES.items() for name in names}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
