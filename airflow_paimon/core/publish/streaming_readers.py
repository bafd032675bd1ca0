"""What streaming readers of a table see of a publish, a rollback or an undo, in the result's words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.publish.bucket_merge_plan import BucketChange
from airflow_paimon.core.streaming.stream_plan import READ_APPEND_OVERWRITE, READ_OVERWRITE
from airflow_paimon.core.table.features import check_mergeable
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import Table

CHANGES, NOTHING, OVERWRITES = "changes", "nothing", "overwrites"
_SKIP = "skip this snapshot, as any OVERWRITE, unless they read with"


def streaming_readers(
    target: Table, schema: TableSchema, changes: Sequence[BucketChange], *, writes: bool
) -> dict[str, Any]:
    """Return ``changelog_producer``, ``see`` and ``note``, a sentence for people.

    ``see``: ``changes``: the net changes, from a changelog that the snapshot gets; ``nothing``; or ``overwrites``:
    nothing, unless they read overwrites. ``writes``: whether a changelog is asked for.
    """
    producer = _producer(schema)
    if producer == "none":
        return {"changelog_producer": producer, "see": OVERWRITES, "note": _sentence(target, _of_overwrites(schema))}
    refused = not_written(target, schema) if writes else None
    if writes and refused is None:
        files = [e.file for c in changes for e in (*c.delete, *c.add)]
        megabytes = sum(f.file_size for f in files) / 1e6
        note = (
            f"get the net changes, from the changelog of this snapshot (changelog-producer={producer}; readers with a "
            f"Paimon before 1.1 skip it); for it the publish reads {len(files)} files, {megabytes:,.1f} MB (not with "
            f"changelog (--changelog) none)"
        )
        later = sum(e.file.level < _first_emitted_level(schema) for c in changes for e in c.add)
        if later:
            note += f"; rows of {later} added files follow with the next compaction"
        return {"changelog_producer": producer, "see": CHANGES, "note": _sentence(target, note)}
    return {"changelog_producer": producer, "see": NOTHING, "note": missed(target, schema, changes, refused)}


def _of_overwrites(schema: TableSchema) -> str:
    """Name the option that suits the table, and what Flink 1.4.2 needs beside it (docs/howto/flink-readers.md)."""
    options = TableOptions(schema.options)
    if not schema.primary_keys:
        name, what = READ_APPEND_OVERWRITE, "all rows of the new files, also those that they have, and no deletions"
    else:
        name, what = READ_OVERWRITE, "the changes"
    given = f"{name}=true"
    text = f"get {what} (the table has {given})" if options.flag(name) else f"{_SKIP} {given}, which gives {what}"
    if schema.primary_keys and options.text("consumer.mode") != "at-least-once":
        text += "; a Flink job with a consumer-id also needs consumer.mode=at-least-once, or it restarts without end"
    return text


def not_written(target: Table, schema: TableSchema) -> str | None:
    """Return why this engine can't compare the rows of a table, or None."""
    try:
        check_mergeable(schema, table=target.label, branch=target.branch_name)
    except UnsupportedFeatureError as error:
        return error.message
    return None


def missed(target: Table, schema: TableSchema, changes: Sequence[BucketChange], why: str | None) -> str:
    """Say what streaming readers of the target's changelog miss without a changelog of this snapshot.

    Files of level 0 that are only added are told by the next compaction, unless their writers tell (``input``).
    """
    text = f"don't get these changes, as of any overwrite without changelog (changelog-producer={_producer(schema)})"
    waiting = sum(e.file.level < _first_emitted_level(schema) for c in changes for e in c.delete)
    if waiting:
        text += (
            f"; {waiting} of the replaced files contain changes that no compaction has emitted yet: undo, compact "
            f"{target.label} and publish again if they need those"
        )
    return _sentence(target, text if why is None else f"{text}. No changelog is written: {why}")


def is_missed(schema: TableSchema, changes: Sequence[BucketChange]) -> bool:
    """Whether there are changes that no later compaction tells."""
    level = 0 if _producer(schema) == "input" else 1
    return any(c.delete or any(e.file.level >= level for e in c.add) for c in changes)


def _first_emitted_level(schema: TableSchema) -> int:
    """Return the lowest level whose rows readers of the changelog know."""
    levels = TableOptions(schema.options).num_levels
    return {"lookup": 1, "full-compaction": levels - 1}.get(_producer(schema), 0)


def _producer(schema: TableSchema) -> str:
    return TableOptions(schema.options).text("changelog-producer", "none").lower() if schema.primary_keys else "none"


def _sentence(target: Table, text: str) -> str:
    return f"streaming readers of {target.label} {text}"
