"""The statement that takes a publish back row by row, where later commits have changed the same buckets (pure).

``rollback_to --keep-later`` works by bucket, and a bucket that changed again is a conflict. A MERGE on a branch
restores each row that still is as the publish left it, and leaves the others to whoever changed them since.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import ArrayType, DataType, MapType, RowType

BEFORE, PUBLISHED = "before", "published"
"""The views that the statement reads: the table before the publish, and right after it."""


def undo_statement(schema: TableSchema, table: str = "the table") -> str:
    """Return a MERGE on the view ``branch``, for ``correct_branch --sql`` with ``--view before=db.t@<undo tag>`` and
    ``--view published=db.t@<the publish's snapshot>``.

    A row that the publish changed gets its values from before, one that it added goes, one that it deleted comes back:
    each only if the branch has it as the publish left it.

    Raises:
        UnsupportedFeatureError: the table has no primary key, one without the partition columns, or a column that
            Spark can't compare.
    """
    keys = schema.primary_keys
    _check(schema, table)
    names = {f.name: _quoted(f.name) for f in schema.fields}
    values = [name for name in names if name not in keys]
    on = " AND ".join(f"b.{names[k]} = p.{names[k]}" for k in keys)
    same = _all(f"b.{names[v]} <=> p.{names[v]}" for v in values)
    is_there, was_there = f"p.{names[keys[0]]} IS NOT NULL", f"b.{names[keys[0]]} IS NOT NULL"
    unchanged = _all(f"branch.{names[v]} <=> u.p.{names[v]}" for v in values)
    restored = [
        f"WHEN MATCHED AND u.is_there AND u.was_there AND {unchanged}",
        f"  THEN UPDATE SET {', '.join(f'{names[v]} = u.b.{names[v]}' for v in values)}",
    ]
    inserted = ", ".join(f"u.b.{name}" for name in names.values())
    return "\n".join(
        [
            "MERGE INTO branch USING (",
            f"  SELECT {', '.join(f'coalesce(b.{names[k]}, p.{names[k]}) AS {names[k]}' for k in keys)},",
            f"    {was_there} AS was_there, {is_there} AS is_there, struct(b.*) AS b, struct(p.*) AS p",
            f"  FROM {BEFORE} b FULL OUTER JOIN {PUBLISHED} p ON {on}",
            f"  WHERE b.{names[keys[0]]} IS NULL OR p.{names[keys[0]]} IS NULL OR NOT ({same})",
            f") u ON {' AND '.join(f'branch.{names[k]} = u.{names[k]}' for k in keys)}",
            *(restored if values else ()),
            f"WHEN MATCHED AND u.is_there AND NOT u.was_there AND {unchanged} THEN DELETE",
            "WHEN NOT MATCHED AND u.was_there AND NOT u.is_there",
            f"  THEN INSERT ({', '.join(names.values())}) VALUES ({inserted})",
            "",
        ]
    )


def _check(schema: TableSchema, table: str) -> None:
    if not schema.primary_keys:
        raise UnsupportedFeatureError(
            f"{table} has no primary key, so its rows can't be distinguished; rollback_to with keep_later "
            "(--keep-later) undoes a publish of such a table by file, and keeps what was appended since"
        )
    for field in schema.fields:
        if _has_map(field.type):
            raise UnsupportedFeatureError(
                f"{table}: column {field.name!r} has a map, which Spark can't compare; write the undo statement "
                "yourself"
            )
    outside = [k for k in schema.partition_keys if k not in schema.primary_keys]
    if outside:
        raise UnsupportedFeatureError(
            f"{table}: the primary key lacks the partition column {outside[0]!r}, so a row may have moved to another "
            f"partition since; undo by a statement of your own"
        )


def _all(conditions: Iterable[str]) -> str:
    return " AND ".join(conditions) or "true"


def _quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _has_map(data_type: DataType) -> bool:
    if isinstance(data_type, MapType):
        return True
    if isinstance(data_type, ArrayType):
        return _has_map(data_type.element)
    return isinstance(data_type, RowType) and any(_has_map(f.type) for f in data_type.fields)
