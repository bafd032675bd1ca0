"""Success files: Paimon's marks that a tag was made, or that a partition is complete (``_SUCCESS`` in its folder, one
for all branches, as they share the folder).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from airflow_paimon.core.errors import FormatError, InvalidInputError, naming_table
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import load_json_object
from airflow_paimon.core.plan import Delete, Replace
from airflow_paimon.core.store.base import read_existing
from airflow_paimon.core.table.partition_values import (
    format_partition,
    parse_partition_spec,
    partition_path,
    partition_path_texts,
)
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.table import Table

NAME = "_SUCCESS"
_CREATED, _MODIFIED = "creationTime", "modificationTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionToMark:
    """A partition, or all that begin with its values. ``folder``: relative to the table's; ``spec``: column to the text
    in the folder's name.
    """

    text: str
    folder: str
    spec: Mapping[str, str]


def partition_to_mark(schema: TableSchema, text: str, table: str) -> PartitionToMark:
    """Parse ``dt=2025-01-01``; the last columns may be left out. ``table``: for messages.

    Raises:
        InvalidInputError: the table has no partitions, or none that could be called so.
    """
    if not schema.partition_keys:
        raise InvalidInputError(f"{table} is not partitioned, so it has no partitions to mark")
    types = schema.partition_types
    with naming_table(table):
        spec = parse_partition_spec(text, schema.partition_keys, types)
    keys = schema.partition_keys[: len(spec)]
    if tuple(spec) != tuple(keys):
        raise InvalidInputError(
            f"{table}: partition {text!r} leaves out a column before another one; the partition columns are "
            f"{', '.join(schema.partition_keys)}, in this order"
        )
    values = [spec[key] for key in keys]
    shown = format_partition(values, keys, types[: len(keys)])
    folder, folder_texts = partition_path(schema, values), partition_path_texts(schema, values)
    return PartitionToMark(text=shown, folder=folder, spec=folder_texts)


def unmarked(table: Table, texts: Sequence[str]) -> list[str]:
    """Return those of some partitions that have no mark.

    Raises:
        InvalidInputError: see ``partition_to_mark``.
    """
    schema = table.schema()
    paths = {text: f"{partition_to_mark(schema, text, table.name).folder}/{NAME}" for text in texts}
    there = read_existing(table.store, list(paths.values()))
    return [text for text, path in paths.items() if path not in there]


def plan_success_files(table: Table, folders: Sequence[str], now_ms: int) -> list[Replace]:
    """Mark partitions; one that is marked keeps the time of its first mark."""
    paths = {folder: f"{folder}/{NAME}" for folder in folders}
    there = read_existing(table.store, list(paths.values()))
    return [
        Replace(path=path, data=success_file(there.get(path), now_ms, path), reason=f"{folder} is complete")
        for folder, path in paths.items()
    ]


def plan_unmark(view: Table, partitions: Iterable[bytes], before_ms: int) -> list[Delete]:
    """Plan the deletion of the marks of partitions that are gone; one that was set after that stays."""
    schema = view.schema()
    if not schema.partition_keys:
        return []
    values = StoredPartitions(schema).values
    # here also where data-file.path-directory has the data
    paths = [f"{partition_path(schema, values(p))}/{NAME}" for p in partitions]
    there = read_existing(view.store, paths)
    found = []
    for path, data in there.items():
        with suppress(FormatError):  # not one of Paimon's: Hadoop's are empty
            if modified_ms(data, path) <= before_ms:
                found.append(Delete(path=path, expected=data, reason="its partition was deleted"))
    return found


def success_file(before: bytes | None, now_ms: int, name: str) -> bytes:
    """Return the file as Java writes it. ``before``: what is there, whose creation time stays; ``name``: for messages.

    Raises:
        FormatError: ``before`` is no such file.
    """
    made = None if before is None else load_json_object(before, name).get(_CREATED)
    created = made if isinstance(made, int) else now_ms
    return f'{{\n  "{_CREATED}" : {created},\n  "{_MODIFIED}" : {now_ms}\n}}'.encode()


def modified_ms(data: bytes, name: str) -> int:
    """Return when the file was last written (epoch milliseconds).

    Raises:
        FormatError: it is no such file.
    """
    found = load_json_object(data, name).get(_MODIFIED)
    if not isinstance(found, int):
        raise FormatError(f"{name} is not a success file: it lacks {_MODIFIED}")
    return found
