"""What main takes over from the branch that replaces it, beside the rows: columns, options, comment.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_paimon.core.branches.branch_plan import DROPPED_ON_BRANCH
from airflow_paimon.core.errors import (
    ConflictError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import field_ids, with_nullable
from airflow_paimon.core.schema.mapping_plan import SchemaMapping, schemas_by_id
from airflow_paimon.core.schema.opening_rules import opening_faults
from airflow_paimon.core.schema.option_checks import check_options
from airflow_paimon.core.schema.schema_plan import check_opening, holds, is_immutable
from airflow_paimon.core.table.options import NAMES_BRANCH, OWN_OPTIONS, PROTECTIVE_OPTIONS

_OWN_OF_MAIN = frozenset({*PROTECTIVE_OPTIONS, *DROPPED_ON_BRANCH, *NAMES_BRANCH, "path", "branch"})
_CHAIN = "chain-table."
_LAYOUT = ("deletion-vectors.enabled", "chain-table.enabled")


# -- columns and options -----------------------------------------------------------------------------------------------


def replaced_options(
    table: str, main: TableSchema, branch: TableSchema, which: str, given: Mapping[str, str], branch_name: str
) -> dict[str, str]:
    """Return main's options afterwards: ``which`` side's, those about expiry, safety and other branches main's own, and
    ``given`` on top.

    Raises:
        UnsupportedFeatureError: an option would change that determines how existing files are read.
        UnsafeOperationError: main refers to the branch by an option.
    """
    for key in NAMES_BRANCH:
        if main.options.get(key, "").strip().lower() == branch_name.lower():
            raise UnsafeOperationError(
                f"{table}: option {key} names branch {branch_name!r}, which main reads in addition to its own rows; "
                "change that option first"
            )

    def own(key: str) -> bool:
        return key in _OWN_OF_MAIN or key.startswith((_CHAIN, OWN_OPTIONS))

    taken = branch.options if which == "branch" else main.options
    out = {k: v for k, v in taken.items() if not own(k)} | {k: v for k, v in main.options.items() if own(k)}
    out |= given
    _check_options(table, main, branch, out)
    return out


def _check_options(table: str, main: TableSchema, branch: TableSchema, out: Mapping[str, str]) -> None:
    fixed = sorted(
        k
        for k in out.keys() | main.options.keys()
        if out.get(k) != main.options.get(k) and (is_immutable(k) or k in _LAYOUT or k in NAMES_BRANCH)
    )
    buckets = [o.get("bucket", "-1").strip() for o in (main.options, out, branch.options)]
    if buckets[0] != buckets[1] and "-1" in buckets[:2]:
        fixed.append("bucket")
    if fixed:
        raise UnsupportedFeatureError(
            f"{table}: {', '.join(fixed)} would change on main ({'; '.join(options_diff(main.options, out, fixed))}), "
            f"and files that exist are read by it. Make the options equal on both sides, or copy the rows to a new "
            f"table"
        )
    if buckets[1] != buckets[2]:
        raise UnsupportedFeatureError(
            f"{table}: the branch has bucket={buckets[2]}, and its files are in these buckets; main can't have "
            f"bucket={buckets[1]} with them. Use options=branch (--options)"
        )
    after = replace(branch, options=out)
    check_options(after)
    check_opening(after, {*opening_faults(main), *opening_faults(branch)})


def options_diff(before: Mapping[str, str], after: Mapping[str, str], only: Collection[str] | None = None) -> list[str]:
    """Return one line for each option that differs, such as ``bucket: 4 -> 8``."""
    keys = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    return [
        f"{k}: {before.get(k, '(not set)')} -> {after.get(k, '(not set)')}" for k in keys if only is None or k in only
    ]


def comment_diff(before: str | None, after: str | None) -> list[str]:
    return [] if before == after else [f"(comment): {before or '(none)'} -> {after or '(none)'}"]


def columns_diff(before: TableSchema, after: TableSchema) -> list[str]:
    """Return one line for each column that differs, by field id, such as ``price: (none) -> DOUBLE``."""
    old, new = ({f.id: f for f in s.fields} for s in (before, after))
    out = [f"{f.name}: {f.type} -> (dropped)" for i, f in old.items() if i not in new]
    out += [f"{f.name}: (none) -> {f.type}" for i, f in new.items() if i not in old]
    both = [(f, new[i]) for i, f in old.items() if i in new]
    out += [
        f"{a.name}: {a.type} -> {'' if a.name == b.name else b.name + ' '}{b.type}"
        for a, b in both
        if (a.name, a.type) != (b.name, b.type)
    ]
    return out


def plan_replaced_schemas(
    table: str,
    base: TableSchema,
    main: Sequence[TableSchema],
    branch: Sequence[TableSchema],
    used: set[int],
    options: Mapping[str, str],
    comment: str | None,
    now_ms: int,
) -> SchemaMapping:
    """Make the branch's newest columns, with these options, main's newest version, and map the schema ids of its files.

    Both logs are ascending and not empty; ``base``: the schema at the branch point. Main gets the branch's versions
    after its own newest under their ids: a Flink job that is resumed on main from a savepoint of the branch commits
    files that name them.

    Raises:
        ConflictError: main gave the field id of a column of the branch to another one. FormatError: a file names a
            schema that is missing. UnsupportedFeatureError: the keys differ.
    """
    mine, theirs, by_id = main[-1], branch[-1], schemas_by_id(table, branch, used)
    if _key_ids(mine) != _key_ids(theirs):
        raise UnsupportedFeatureError(
            f"{table}: main and the branch have different primary or partition keys; copy the rows to a new table"
        )
    known = {repr(s.content): s.id for s in main}
    _check_field_ids(table, base, main, branch)
    top = max(mine.highest_field_id, theirs.highest_field_id)
    version = replace(mine, highest_field_id=top, time_millis=now_ms, version=mine.next_version)
    last = replace(with_columns_of(version, theirs), options=dict(options), comment=comment)
    later = [s for s in branch if s.id > mine.id] if used or not last.means_same(mine) else []
    if [s.id for s in later] != [mine.id + at for at in range(1, len(later) + 1)]:
        later = []
    new = [with_columns_of(replace(version, id=s.id), s) for s in later]
    there = {*known, *(repr(s.content) for s in (*new, theirs))}
    wanted = {repr(by_id[i].content): by_id[i] for i in sorted(used) if repr(by_id[i].content) not in there}.values()
    new += [with_columns_of(replace(version, id=mine.id + at), s) for at, s in enumerate(wanted, len(new) + 1)]
    if later and not wanted:
        new[-1] = replace(last, id=new[-1].id)
    elif new or not last.means_same(mine):
        new.append(replace(last, id=mine.id + len(new) + 1))
    known = {repr(s.content): s.id for s in new} | known
    return SchemaMapping({i: known[repr(by_id[i].content)] for i in used}, tuple(new), new[-1] if new else mine)


def with_columns_of(version: TableSchema, other: TableSchema) -> TableSchema:
    """Return a version with the columns and keys of another one."""
    return replace(version, fields=other.fields, partition_keys=other.partition_keys, primary_keys=other.primary_keys)


def _key_ids(schema: TableSchema) -> tuple[list[int], list[int]]:
    partition, primary = ([schema.field(k).id for k in keys] for keys in (schema.partition_keys, schema.primary_keys))
    return partition, sorted(primary)


def _check_field_ids(table: str, base: TableSchema, main: Sequence[TableSchema], branch: Sequence[TableSchema]) -> None:
    """A writer with main's previous schema may still commit: by field id, its column would be read as the branch's."""
    theirs = {repr(s.content) for s in branch}
    shared = {i for s in main if repr(s.content) in theirs for i in field_ids(s.fields)} | set(field_ids(base.fields))
    used = range(base.highest_field_id + 1, main[-1].highest_field_id + 1)
    own = {i for s in branch if s.id > base.id for i in field_ids(s.fields)}
    taken = sorted(i for i in own - shared if i in used)
    if taken:
        raise ConflictError(
            f"{table}: columns of the branch have field ids ({taken[0]}) that main gave to other columns since the "
            f"branch point; create a new branch from main's head and add the columns there"
        )


def check_window(table: str, main: TableSchema, new: Sequence[TableSchema]) -> None:
    """Refuse columns under which main's present rows can't be read: they come one put before the snapshot.

    Raises:
        UnsafeOperationError: a column gets a narrower type, or a new one takes no null.
    """
    faults = []
    before = {f.id: f for f in main.fields}
    for schema in new:
        for field in schema.fields:
            old = before.get(field.id)
            if old is None and not field.type.nullable:
                faults.append(f"{field.name} is NOT NULL, and rows of main have no value for it")
            elif old is not None and not _fits(field.type, old.type):
                faults.append(f"{field.name} is {field.type}, and on main {old.type}")
        before |= {f.id: f for f in schema.fields}
    if faults:
        raise UnsafeOperationError(
            f"{table}: {'; '.join(dict.fromkeys(faults))}: between the columns and the snapshot that brings the rows, "
            "readers of main would fail or see wrong values. Stop them and use readers_stopped (--readers-stopped)",
            details={"columns": list(dict.fromkeys(faults))},
        )


def _fits(new: Any, old: Any) -> bool:
    same = with_nullable(new, True) == with_nullable(old, True)
    return (same or holds(with_nullable(new, True), with_nullable(old, True))) and (new.nullable or not old.nullable)
