"""The options of merge engines: sequence groups of columns, the look-up rule, and options that name columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import TableOptions

_PREFIX, _GROUP = "fields.", ".sequence-group"
_SORT_ORDER = "sequence.field.sort-order"
_NAMING = {
    "sequence.field": "sequence.field",
    _SORT_ORDER: "sequence.field",
    "bucket-key": "bucket-key",
    "partial-update.remove-record-on-sequence-group": _GROUP,
}
"""Options that name columns, and the set that each belongs to."""


def sequence_groups(schema: TableSchema) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the sequence fields and the other columns of each group (``fields.g1,g2.sequence-group = a,b``).

    Names are divided at commas, blanks are part of them. Columns that the schema doesn't have (in an older version) are
    left out.
    """
    known = set(schema.field_names)
    for key, text in sorted(schema.options.items()):
        if _is_group(key):
            fields = tuple(_group_fields(key))
            if known.issuperset(fields):
                yield fields, tuple(c for c in text.split(",") if c in known)


def combines_rows(schema: TableSchema) -> bool:
    """Whether the merge engine makes one row of several with a key, with something of each.

    So a row may lack columns, of which the table keeps the values, and a key may come twice in a write.
    """
    return bool(schema.primary_keys) and TableOptions(schema.options).merge_engine in ("partial-update", "aggregation")


def looks_up(schema: TableSchema) -> bool:
    """Whether of a key's versions above level 0 only that on the lowest level counts: it contains those below it.

    Paimon's look-up compactions, by which a table is compacted with these options, write complete rows.
    """
    options = TableOptions(schema.options)
    producer = options.text("changelog-producer", "none").lower()
    asked = producer == "lookup" or options.deletion_vectors or options.flag("force-lookup")
    return asked and options.merge_engine != "first-row"


def options_in_older_names(latest: TableSchema, older: TableSchema) -> dict[str, str]:
    """Return the latest options, with each column named as in an older version of the schema: field ids match them.

    The sequence fields, the sequence groups and the bucket key are each replaced by the older version's if a column
    that either version names there is missing in the other one. Columns dropped since keep their own ``fields.*``.
    """
    names = {f.id: f.name for f in older.fields}
    older_name = {f.name: names[f.id] for f in latest.fields if f.id in names}
    dropped = set(names.values()).difference(older_name.values())
    others = {k: v for k, v in latest.options.items() if _set_of(k) is None}
    column_of = {k: _column_of(k, latest.field_names) for k in others}
    return {
        **{k: v for k, v in others.items() if column_of[k] is None},
        **{k: v for k, v in older.options.items() if _set_of(k) is None and _column_of(k, names.values()) in dropped},
        **{_renamed_key(k, c, older_name[c]): v for k, v in others.items() if (c := column_of[k]) in older_name},
        **{k: v for name in set(_NAMING.values()) for k, v in _one_set(name, latest, older, older_name).items()},
    }


def _one_set(name: str, latest: TableSchema, older: TableSchema, older_name: Mapping[str, str]) -> dict[str, str]:
    now, then = ({k: v for k, v in s.options.items() if _set_of(k) == name} for s in (latest, older))
    if not (_named(now) <= older_name.keys() and _named(then) <= set(older_name.values())):
        return then
    return {_renamed_group(k, older_name): _renamed_list(k, v, older_name) for k, v in now.items()}


def _set_of(key: str) -> str | None:
    return _GROUP if _is_group(key) else _NAMING.get(key)


def _is_group(key: str) -> bool:
    return key.startswith(_PREFIX) and key.endswith(_GROUP)


def _named(options: Mapping[str, str]) -> set[str]:
    """Return the columns that options of a set name, in their keys and values."""
    return {n for k, v in options.items() for n in (*_group_fields(k), *_list_of(k, v))}


def _group_fields(key: str) -> list[str]:
    return key[len(_PREFIX) : -len(_GROUP)].split(",") if _is_group(key) else []


def _list_of(key: str, text: str) -> list[str]:
    if key == _SORT_ORDER:
        return []
    return [n for part in text.split(",") if (n := part if _is_group(key) else part.strip())]


def _renamed_group(key: str, names: Mapping[str, str]) -> str:
    return f"{_PREFIX}{','.join(names[n] for n in _group_fields(key))}{_GROUP}" if _is_group(key) else key


def _renamed_list(key: str, text: str, names: Mapping[str, str]) -> str:
    return text if key == _SORT_ORDER else ",".join(names[n] for n in _list_of(key, text))


def _column_of(key: str, columns: Collection[str]) -> str | None:
    """Return the column of ``fields.<column>.<property>``; a name may have dots itself."""
    return max((c for c in columns if key.startswith(f"{_PREFIX}{c}.")), key=len, default=None)


def _renamed_key(key: str, column: str, name: str) -> str:
    return f"{_PREFIX}{name}{key[len(_PREFIX) + len(column) :]}"
