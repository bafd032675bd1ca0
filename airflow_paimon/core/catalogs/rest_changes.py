"""A new schema version as the list of changes that a REST catalog makes it from."""

from __future__ import annotations

from typing import Any

from airflow_paimon.core.errors import UnsupportedCatalogError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataField, field_to_json, with_nullable

Change = dict[str, Any]


def schema_changes(old: TableSchema, new: TableSchema) -> list[Change]:
    """Return the changes that make ``new`` of ``old``, in the order in which they are made.

    Raises:
        UnsupportedCatalogError: there are none, such as for keys and for fields of a ROW.
    """
    if (old.partition_keys, old.primary_keys) != (new.partition_keys, new.primary_keys):
        raise UnsupportedCatalogError("A rest catalog has no change for partition keys or primary keys")
    set_options = [(k, v) for k, v in sorted(new.options.items()) if old.options.get(k) != v]
    return [
        *_column_changes(old, new),
        *({"action": "setOption", "key": k, "value": v} for k, v in set_options),
        *({"action": "removeOption", "key": k} for k in sorted(old.options) if k not in new.options),
        *([{"action": "updateComment", "comment": new.comment}] if (old.comment or "") != (new.comment or "") else ()),
    ]


def _column_changes(old: TableSchema, new: TableSchema) -> list[Change]:
    before, after = {f.id: f for f in old.fields}, {f.id: f for f in new.fields}
    changes = [_change("dropColumn", f) for f in old.fields if f.id not in after]
    kept = [(before[f.id], f) for f in new.fields if f.id in before]
    changes += _renames(kept, {f.name for f in old.fields if f.id in after})
    for was, now in kept:
        changes += _changes_of_one(was, now)
    added = sorted((f for f in new.fields if f.id not in before), key=lambda f: f.id)
    for field in added:
        data = field_to_json(field)
        changes.append(
            {**_change("addColumn", field), "dataType": data["type"], "comment": field.description, "move": None}
        )
        changes += _default_change(None, field)
    return changes + _moves([*(f.id for f in old.fields if f.id in after), *(f.id for f in added)], new)


def _change(action: str, field: DataField) -> Change:
    return {"action": action, "fieldNames": [field.name]}


def _renames(kept: list[tuple[DataField, DataField]], names: set[str]) -> list[Change]:
    renamed = [(was, now) for was, now in kept if was.name != now.name]
    if any(now.name in names for _, now in renamed):
        raise UnsupportedCatalogError("Columns that swap names can't be renamed in one change in a rest catalog")
    return [{**_change("renameColumn", was), "newName": now.name} for was, now in renamed]


def _changes_of_one(was: DataField, now: DataField) -> list[Change]:
    changes: list[Change] = []
    if with_nullable(was.type, True) != with_nullable(now.type, True):
        if not (isinstance(was.type, AtomicType) and isinstance(now.type, AtomicType)):
            raise UnsupportedCatalogError(
                f"Column {now.name}: changes inside of ROW, ARRAY and MAP are not supported in a rest catalog; make "
                f"them with ALTER TABLE in Flink or Spark"
            )
        data = field_to_json(now)["type"]
        changes.append({**_change("updateColumnType", now), "newDataType": data, "keepNullability": False})
    elif was.type.nullable != now.type.nullable:
        changes.append({**_change("updateColumnNullability", now), "newNullability": now.type.nullable})
    if was.description != now.description:
        changes.append({**_change("updateColumnComment", now), "newComment": now.description})
    return changes + _default_change(was.default_value, now)


def _default_change(was: str | None, now: DataField) -> list[Change]:
    if was == now.default_value:
        return []
    return [{**_change("updateColumnDefaultValue", now), "newDefaultValue": now.default_value}]


def _moves(order: list[int], new: TableSchema) -> list[Change]:
    names, moves = {f.id: f.name for f in new.fields}, []
    for at, wanted in enumerate(f.id for f in new.fields):
        if order[at] == wanted:
            continue
        order.remove(wanted)
        order.insert(at, wanted)
        after = None if at == 0 else names[order[at - 1]]
        move = {"fieldName": names[wanted], "referenceFieldName": after, "type": "FIRST" if at == 0 else "AFTER"}
        moves.append({"action": "updateColumnPosition", "move": move})
    return moves
