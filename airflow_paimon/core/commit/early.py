"""Plans of commits to a remote storage before it has answered: on what commits of this machine told of the newest
snapshot, and on the schema that this process read last. Both are looked for while the commit's files are written.

A plan counts only if these looks say the same, as it is made in vain otherwise; that the snapshot is there is seen
right before the put, as on any other plan. Neither a refusal nor that there is nothing to do counts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from airflow_paimon.core.commit.conditions import HeadState
from airflow_paimon.core.commit.relay import last_told, takes_turns
from airflow_paimon.core.commit.seen import Seen
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.guesses import newest_of_long, remember
from airflow_paimon.core.table.table import Table

_MOST = 256
_schemas: dict[tuple[str, str], TableSchema] = {}


def remember_schema(table: Table, schema: TableSchema | None) -> None:
    """Note the newest schema of a branch for the next commit of this process."""
    if schema is None or not table.store.remote or not takes_turns(table):
        return
    key = table.store.place, table.paths.schema_dir
    if key not in _schemas and len(_schemas) >= _MOST:
        _schemas.clear()
    _schemas[key] = schema


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyState:
    """A head that was told of, and a schema. ``comes``: the snapshot may still have to be put."""

    at: HeadState
    comes: bool

    def newest_id(self) -> int | None:
        """Look for the newest snapshot; among very many above the one that was told of."""
        table, head = self.at.table, self.at.head
        folder = table.paths.snapshot_dir
        if head is not None and newest_of_long(table.store, folder) is not None:
            remember(table.store, folder, [head.id - self.comes], looked=False)
        return table.latest_snapshot_id()

    def schema(self) -> TableSchema | None:
        """Read the newest schema; None: it can't be read, which the plan that is made then says."""
        with suppress(PaimonError):
            return self.at.table.schema()
        return None

    def holds(self, newest: int | None, schema: TableSchema | None) -> bool:
        """Whether what was looked for is what was planned on, or has been told of meanwhile."""
        table, head = self.at.table, self.at.head
        remember_schema(table, schema)
        if head is None or newest is None or schema != self.at.schema:
            return False
        if newest > head.id and not self._is_told(newest):
            remember(table.store, table.paths.snapshot_dir, [newest], looked=False)
            return False
        return newest >= head.id or self.comes

    def _is_told(self, newest: int) -> bool:
        told = last_told(self.at.table, Seen(self.at.table))
        return told is not None and told[0].id >= newest


def early_state(table: Table, seen: Seen) -> EarlyState | None:
    """Return what a commit may be planned on before the storage is asked; None: ask it."""
    if not table.store.remote or not takes_turns(table):
        return None
    schema = _schemas.get((table.store.place, table.paths.schema_dir))
    told = None if schema is None else last_told(table, seen)
    if schema is None or told is None or told[0].schema_id > schema.id:
        return None
    return EarlyState(at=HeadState(table, told[0], seen, schema), comes=told[1])
