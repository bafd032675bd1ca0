"""Wait for a version of a table set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_paimon.arguments import as_list, keeps_arguments
from airflow_paimon.core.table_sets.wait import SetCondition, awaited_version, parse_set_condition
from airflow_paimon.sensors._deferred import DeferrableSensor, not_blank

if TYPE_CHECKING:
    from airflow_paimon.hooks.paimon import PaimonHook

__all__ = ["TableSetSensor"]


def check_version(hook: PaimonHook, **condition: Any) -> tuple[dict[str, Any] | None, Sequence[str]]:
    """Check once, for the sensor and its trigger."""
    found, missing = awaited_version(hook.get_catalog(), SetCondition(**condition))
    return (None, [f"waiting for {missing}"]) if found is None else (found.to_json(), ())


class TableSetSensor(DeferrableSensor):
    """
    Wait for a version of a table set; all conditions that are given must hold of the newest one.

    A look costs a listing and one small read, however many tables the set has. Returns ``{"table_set", "number",
    "version", "tag", "created", "operation_id", "tables"}``: hand ``version`` on to what reads the tables, so that all
    of it reads this version, whatever is published meanwhile.

    :param table_set: name of the set (templated)
    :param paimon_conn_id: connection of type ``paimon`` (templated)
    :param after: a later version than this one: its number, or ``set:<name>@<number>`` (templated)
    :param since: a version that was made at this time or later, ISO with an offset, such as ``{{ data_interval_end }}``
        (templated)
    :param tables: the version has these tables (templated)
    :param deferrable: wait in the triggerer instead of a worker; left out, ``[paimon] deferrable``, or else
        ``[operators] default_deferrable``
    :param poke_interval: time between two polls
    """

    check = staticmethod(check_version)
    tables: Sequence[str] | str

    @keeps_arguments
    def __init__(
        self,
        *,
        table_set: str,
        after: int | str | None = None,
        since: int | str | None = None,
        tables: Sequence[str] | str = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _condition(self) -> dict[str, Any]:
        name, after, since = (not_blank(name, getattr(self, name)) for name in ("table_set", "after", "since"))
        return asdict(parse_set_condition(name, after, since, as_list("tables", self.tables)))
