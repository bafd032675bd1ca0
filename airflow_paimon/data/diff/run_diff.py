"""Runs a planned diff in this process, with the parts that a job with tasks shares, and describes what it found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.core.branches.ownership import ownership_details
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.publish.required_checks import outcomes_of
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.table.branch_record import read_branch_record
from airflow_paimon.core.table.history import publish_target
from airflow_paimon.core.table.masking import Masks, columns_to_mask, masks_of
from airflow_paimon.core.table.open_writers import describe_writers
from airflow_paimon.core.table.partition_values import shown_partition
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.data.diff.differing_buckets import BASE, DiffPlan, DiffSide, Skipped, plan_diff
from airflow_paimon.data.diff.keyed import ComparisonUnit, KeyedComparison, RowDifferences, compare_unit
from airflow_paimon.data.diff.unkeyed import compare_rows
from airflow_paimon.data.files.arrow_types import ROW_ID, finer_than_micros
from airflow_paimon.data.memory_plan import DEFAULT_BYTES, fits
from airflow_paimon.data.read_splits import ReadSplit, TableRead, fits_in_process, plan_read

KINDS = ("added", "changed", "deleted")
_LISTED = 1000
WITH_SAMPLES = 100
_NAMED = 5


def diff_details(
    plan: DiffPlan, found: Sequence[tuple[tuple[Any, ...], RowDifferences]], request: DiffBranches, main: TableSchema
) -> dict[str, Any]:
    """Combine the findings by partition; partitions without a difference are only counted.

    ``main``: main's newest columns and options, which say what no sample shows.
    """
    schema = plan.after.scan.schema
    hidden = columns_to_mask(plan.after.scan.table.name, request.mask)
    masks = masks_of((main, plan.before.scan.schema, schema), hidden)
    by_name = by_partition(schema, found, request.sample)
    skipped = skipped_rows(plan)
    differing = sorted(n for n, f in by_name.items() if any(getattr(f, k) for k in KINDS))
    same = (by_name.keys() | skipped.keys()) - set(differing)
    partitions = [
        _partition(name, by_name[name], skipped.get(name, Skipped()), masks if at < WITH_SAMPLES else None)
        for at, name in enumerate(differing[:_LISTED])
    ]
    rest = plan.rest or Skipped()
    exact = rest.exact and all(s.exact for s in skipped.values())
    total = {kind: sum(getattr(f, kind) for f in by_name.values()) for kind in KINDS}
    unchanged = sum(f.unchanged for f in by_name.values()) + rest.rows + sum(s.rows for s in skipped.values())
    return {
        "branch": request.branch,
        "against": request.against,
        "branch_snapshot": _id(plan.after),
        "branch_identity": plan.after.scan.snapshot.identity if plan.after.scan.snapshot is not None else None,
        "against_snapshot": _id(plan.before),
        "main_snapshot": plan.main_head.id if plan.main_head is not None else None,
        "main_identity": plan.main_head.identity if plan.main_head is not None else None,
        "different": bool(differing or plan.hidden_before.files or plan.hidden_after.files),
        "key": [ROW_ID] if plan.shared_row_ids else list(plan.keys),
        "columns": list(plan.columns),
        "columns_only_in_branch": list(plan.columns_after_only),
        "columns_only_in_against": list(plan.columns_before_only),
        "total": {**total, "unchanged": unchanged, "unchanged_exact": exact},
        "partitions": partitions,
        "partitions_differing": len(differing),
        "partitions_unchanged": len(same) if plan.rest is None else None,
        "buckets": {
            "compared": len({(s.partition, s.bucket) for p in (plan.before, plan.after) for s in p.scan.splits}),
            "skipped": plan.skipped_buckets,
        },
        "files_not_visible": {"branch": plan.hidden_after.files, "against": plan.hidden_before.files},
        **({"appended_on_main": plan.appended_on_main} if plan.appended_on_main else {}),
        "notes": _notes(plan, masks, exact, len(differing)),
    }


def by_partition(
    schema: TableSchema, found: Sequence[tuple[tuple[Any, ...], RowDifferences]], sample: int
) -> dict[str, RowDifferences]:
    """Add up findings by the partition's name."""
    by_name: dict[str, RowDifferences] = {}
    for values, findings in found:
        by_name.setdefault(shown_partition(schema, values), RowDifferences()).add(findings, sample)
    return by_name


def skipped_rows(plan: DiffPlan) -> dict[str, Skipped]:
    """Return what was not read, by the partition's name."""
    schema = plan.after.scan.schema
    values_of = StoredPartitions(schema).values
    return {shown_partition(schema, values_of(stored)): s for stored, s in plan.skipped.items()}


def _id(side: DiffSide) -> int | None:
    return side.scan.snapshot.id if side.scan.snapshot is not None else None


def _partition(name: str, found: RowDifferences, skipped: Skipped, masks: Masks | None) -> dict[str, Any]:
    """``masks``: what its samples hide; None = it has no samples."""
    out: dict[str, Any] = {
        "partition": name,
        **{kind: getattr(found, kind) for kind in KINDS},
        "unchanged": found.unchanged + skipped.rows,
        "unchanged_exact": skipped.exact,
    }
    if masks is not None:
        out["samples"] = {k: _masked(masks, k, found.samples[k]) for k in KINDS if found.samples.get(k)}
    return out


def _masked(masks: Masks, kind: str, samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [masks.pair(one) if kind == "changed" else masks.row(one) for one in samples]


def _notes(plan: DiffPlan, masks: Masks, exact: bool, differing: int) -> list[str]:
    notes = [*_appended(plan), *_not_visible(plan)]
    if masks.unknown:
        notes.append(f"columns to hide that the table doesn't have: {', '.join(masks.unknown)}")
    if plan.partitions_absent:
        shown = plan.partitions_absent[:_NAMED]
        more = ", ..." if len(plan.partitions_absent) > _NAMED else ""
        notes.append(f"neither side has partition {', '.join(shown)}{more}: check how it is written")
    if plan.rest is not None:
        notes.append("the table has so many files that partitions and buckets without a difference were not counted")
    if not exact:
        may = "some of them" if plan.rest is None else "they may"
        notes.append(
            f"unchanged is an upper bound: buckets that are the same on both sides were not read, and {may} hold "
            f"several versions of a key"
        )
    if plan.columns_after_only or plan.columns_before_only:
        notes.append("columns that only one side has, or has with another type, were not compared")
    blurred = () if plan.keys else finer_than_micros(f for f in plan.after.scan.schema.fields if f.name in plan.columns)
    if blurred:
        notes.append(f"{', '.join(blurred)}: compared to the microsecond only")
    if differing > _LISTED:
        notes.append(f"{differing - _LISTED} more partitions differ than are listed")
    if differing > WITH_SAMPLES:
        notes.append(f"samples are given for the first {WITH_SAMPLES} partitions")
    return notes


def _appended(plan: DiffPlan) -> list[str]:
    """Say which rows of main a publish would replace, although the branch was computed without them."""
    found = plan.appended_on_main
    if not found:
        return []
    rows, where = found["rows"], ", ".join(found["buckets"][:_NAMED])
    more = ", ..." if len(found["buckets"]) > _NAMED else ""
    shown = {BASE: "; this diff doesn't show them", MAIN: "; this diff shows them as deleted"}.get(plan.before.name, "")
    return [
        f"main got {rows:,} row{'s' * (rows != 1)} in {where}{more} after the branch was made, in partitions that the "
        f"branch replaces{shown}. A publish refuses that, or, with keep_appended, keeps them with the branch's rows"
    ]


def _not_visible(plan: DiffPlan) -> list[str]:
    """Warn of differing files whose rows no read shows yet: replacing their bucket would lose these."""
    notes = []
    for hidden, side, other in (
        (plan.hidden_after, plan.after, plan.before),
        (plan.hidden_before, plan.before, plan.after),
    ):
        if hidden.files:
            names = sorted(shown_partition(plan.after.scan.schema, v) for v in hidden.partitions)
            where = f" in {', '.join(names[:_NAMED])}{', ...' if len(names) > _NAMED else ''}" if names != [""] else ""
            notes.append(
                f"this diff is not complete: {hidden.files} files with {hidden.rows} rows{where}, which {side.name} "
                f"has and {other.name} lacks, wait for a compaction; until then no read shows them. Compact them "
                f"with CALL sys.compact of Paimon's Spark connector"
            )
    return notes


Found = list[tuple[tuple[Any, ...], RowDifferences]]


def small_diff(context: Context, request: DiffBranches, memory_bytes: int = DEFAULT_BYTES) -> OperationResult | None:
    """Compare a branch with another branch, or with its base, if that takes no more memory; None if it takes more.

    Raises:
        UnsafeOperationError: the branch shares no snapshot with main, so it has no base. InvalidInputError: the two
            sides have different keys, so their rows can't be compared.
    """
    plan = plan_diff(context, request)
    return (
        diff_result(context, request, plan, compare_here(plan, request.sample))
        if diff_fits(plan, memory_bytes)
        else None
    )


def diff_fits(plan: DiffPlan, memory_bytes: int = DEFAULT_BYTES) -> bool:
    """Whether one process compares the differing buckets in so much memory (``data/memory_plan.py``)."""
    return fits(
        (f for side in (plan.before, plan.after) for s in side.scan.splits for f in s.files),
        plan.after.scan.schema,
        memory_bytes,
    )


def is_small(plan: DiffPlan) -> bool:
    """Whether the differing buckets are so small that this process compares them faster than tasks would start."""
    return fits_in_process(f for side in (plan.before, plan.after) for s in side.scan.splits for f in s.files)


def compare_here(plan: DiffPlan, sample: int) -> Found:
    """Compare all differing buckets in this process, one after the other."""
    if plan.keys:
        comparison, units = plan_units(plan, sample)
        return [(unit.values, compare_unit(comparison, unit)) for unit in units]
    before, after = (plan_read(s.scan, columns=plan.read_columns) for s in (plan.before, plan.after))
    found = compare_rows(plan.after.scan.schema, before, after, sample, plan.shared_row_ids)
    return [*found, *unchanged(plan, found)]


def plan_units(plan: DiffPlan, sample: int) -> tuple[KeyedComparison, list[ComparisonUnit]]:
    """Plan the comparison by key, unit by unit. A bucket can turn out to hold no row."""
    before, old = _read(plan.before, plan)
    after, new = _read(plan.after, plan)
    units = [
        ComparisonUnit(
            values=unit.values,
            before=tuple(old[i] for i in unit.before if i in old),
            after=tuple(new[i] for i in unit.after if i in new),
        )
        for unit in plan.differing
    ]
    return KeyedComparison(keys=plan.keys, before=before, after=after, sample=sample), units


def _read(side: DiffSide, plan: DiffPlan) -> tuple[TableRead, dict[int, ReadSplit]]:
    """Plan the read of one side; returns the splits by bucket number."""
    read, splits = plan_read(side.scan, columns=plan.columns, in_key_order=True)
    number = {(s.partition, s.bucket): i for i, s in enumerate(side.scan.splits)}
    return read, {number[(s.bucket.partition, s.bucket.bucket)]: s for s in splits}


def unchanged(plan: DiffPlan, found: Sequence[tuple[tuple[Any, ...], RowDifferences]]) -> Found:
    """Count one side's rows that the other side has as well (tables without primary key)."""
    values = StoredPartitions(plan.after.scan.schema).values
    out: Found = [(values(stored), RowDifferences(unchanged=rows)) for stored, rows in plan.rows_before.items()]
    out += [(at, RowDifferences(unchanged=-f.deleted - f.changed)) for at, f in found]
    return out


def _open_writers(context: Context, plan: DiffPlan, schema: TableSchema) -> dict[str, Any]:
    """Describe who may have the differing buckets open on the branch that this one would be published onto.
    ``schema``: main's.
    """
    branch = plan.after.scan.table
    if branch.branch_name == MAIN or plan.before.name not in (MAIN, BASE):
        return {}
    target, head = publish_target(context.table, branch), plan.main_head
    if target.branch_name != MAIN:
        schema, head = target.schema(), target.latest_snapshot()
    bucket_of = StoredPartitions(plan.before.scan.schema).bucket
    buckets = {bucket_of(s) for s in plan.before.scan.splits}
    found = describe_writers(target, schema, buckets, head, context.now_ms)
    return {"open_writers": found}


def diff_result(context: Context, request: DiffBranches, plan: DiffPlan, found: Found) -> OperationResult:
    """Build the result, whose details ``shown.diff_markdown.render_markdown`` renders. A diff changes nothing."""
    record = read_branch_record(context.table, plan.after.scan.table.branch_name)
    about = {"about": ownership_details(record)} if record is not None else {}
    schema = context.table.schema()
    details = diff_details(plan, found, request, schema) | about | _open_writers(context, plan, schema)
    snapshot = plan.after.scan.snapshot
    head = snapshot.id if snapshot is not None else None
    if snapshot is not None:
        try:
            checks = outcomes_of(context.table, plan.after.scan.table, snapshot)
        except PaimonError as error:
            details["notes"] = [*details["notes"], f"its check results can't be read: {error.message}"]
        else:
            details |= {"checks": checks} if checks else {}
    return context.result(None, branch=request.branch, changed=False, before=head, after=head, details=details)
