"""What would be a conflict if a correction changed certain buckets: open branches that change them, and main itself.

It asks what a publish asks (``sides``, ``bucket_merge_plan.overlapping_buckets``), before there is anything to publish.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.publish.bucket_merge_plan import key_group, neutral_kinds, sharing_keys
from airflow_paimon.core.publish.compare import Comparison, gather_sides
from airflow_paimon.core.publish.file_merge_plan import merges_by_file
from airflow_paimon.core.row_tracking.row_ids_plan import origin_name
from airflow_paimon.core.table.features import is_chain_part
from airflow_paimon.core.table.history import branch_point, changed_buckets
from airflow_paimon.core.table.live_files import BucketKey, Difference
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import Table


def open_branches(
    main: Table, buckets: Collection[BucketKey], files: Collection[str], but: str | None
) -> dict[str, frozenset[BucketKey] | PaimonError]:
    """Return which of some buckets, in canonical form, unpublished branches change as well, by branch; of tables
    without keys those of whose ``files`` they change some. An error: why it can't be told of a branch.

    Of two such branches the one that is published second meets a conflict. ``but``: the branch to leave out.
    """
    schema, found = main.schema(), dict[str, frozenset[BucketKey] | PaimonError]()
    options = TableOptions(schema.options)
    for name in main.branch_names():
        if name == but or is_chain_part(options, name):
            continue
        try:
            compared = compare(main, main.branch(name), schema)
        except PaimonError as error:
            found[name] = error
            continue
        if compared is not None:
            sides = compared.sides
            hit = _common(sides.theirs, sides.ours, sides.theirs_changed, buckets, files, schema)
            found |= {name: hit} if hit else {}
    return found


def changed_on_main(
    main: Table, branch: Table, buckets: Collection[BucketKey], files: Collection[str]
) -> frozenset[BucketKey]:
    """Return those buckets that main has changed since the branch was made: its publish would meet a conflict."""
    schema, compared = main.schema(), compare(main, branch, main.schema())
    if compared is None:
        return frozenset()
    mine, neutral = compared.sides.ours, neutral_kinds(schema)
    near = sharing_keys(mine.buckets, set(buckets), schema)
    real = changed_buckets(main, compared.main_commits, near, neutral)
    return _common(mine, compared.sides.theirs, real, buckets, files, schema)


def compare(main: Table, branch: Table, schema: TableSchema) -> Comparison | None:
    """Return what both sides have changed; None: one is empty, or they share no snapshot."""
    head, theirs = main.latest_snapshot(), branch.latest_snapshot()
    base = None if head is None or theirs is None else branch_point(main, branch)
    if head is None or theirs is None or base is None:
        return None
    return gather_sides(main, branch, base=base, head=head, branch_snapshot=theirs, schema=schema, takes_all=False)


def _common(
    mine: Difference,
    others: Difference,
    real: Collection[BucketKey],
    buckets: Collection[BucketKey],
    files: Collection[str],
    schema: TableSchema,
) -> frozenset[BucketKey]:
    if merges_by_file(schema):
        return frozenset(b for b in mine.buckets if not _files_in(mine, others, b).isdisjoint(files))
    group_of = key_group(schema)
    groups = {group_of(b) for b in buckets}
    return frozenset(b for b in real if group_of(b) in groups and not mine.same_in(b, others))


def _files_in(mine: Difference, others: Difference, bucket: BucketKey) -> set[str]:
    """Return the files of a bucket that one side removed, or put a deletion vector on, and the other one did not."""
    gone, both = ({origin_name(f.file_name) for f in side.removed.get(bucket, ())} for side in (mine, others))
    marked = {
        origin_name(r.data_file)
        for entry in mine.index.get(bucket, ())
        for r in entry.deletion_vector_ranges or ()
        if r is not None
    }
    return (gone - both) | (marked if not mine.same_index_in(bucket, others) else set())
