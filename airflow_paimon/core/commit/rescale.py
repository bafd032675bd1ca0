"""The commit of a rescale: all files of some partitions go, those of other buckets come, in one OVERWRITE."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_paimon.core.commit.committer import commit_at
from airflow_paimon.core.commit.conditions import BucketsAreClosed, HeadState, SchemaIs, file_and_level
from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions, Draft, Receipt
from airflow_paimon.core.format.manifest import IndexEntry, ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind, Operation
from airflow_paimon.core.table.partitions import Selection
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table


def commit_rescale(
    table: Table,
    messages: Sequence[CommitMessage],
    options: CommitOptions,
    *,
    read: ScanPlan,
    chosen: Selection,
    bucket_num: int,
    tells: bool,
) -> Receipt:
    """Put the files of the messages in place of all that the partitions of ``read`` hold, deletion vectors too.

    After it, every chosen partition has ``bucket_num`` buckets. The rows stay the same, so streaming readers are told
    nothing but what the messages' changelogs hold: what no compaction had told them yet. ``tells``: the table has a
    changelog, in which an empty one says so.

    Raises:
        ConflictError: another commit has changed one of the partitions, or the table was altered, or a chosen partition
            has come meanwhile that has another number of buckets: plan again. Commits to other partitions don't matter.
    """
    added = [e for m in messages for e in m.entries()]
    changelog = [e for m in messages for e in m.changelog_entries()]

    def draft(at: HeadState) -> Draft | None:
        rewritten = at.stored.those(s.partition for s in read.splits)
        live = list(at.live(chosen))
        gone = [e for e in live if rewritten(e.partition)]
        _check_files(at, read, gone)
        _check_vectors(at, read.index_entries, rewritten)
        for entry in live:
            if entry.total_buckets != bucket_num and not rewritten(entry.partition):
                raise at.conflict(
                    f"partition {at.stored.text(entry.partition) or '()'} was written meanwhile, in "
                    f"{entry.total_buckets} buckets; run it again"
                )
        return Draft(
            kind=CommitKind.OVERWRITE,
            only_new=True,
            entries=[*(e.deleted() for e in gone), *added],
            changelog=changelog if tells else None,
            index_entries=at.index_without(rewritten),
            schema=at.schema,
            operation=Operation.OVERWRITE,
            conditions=(
                SchemaIs(schema=read.schema, why="the table was altered while it was rescaled"),
                BucketsAreClosed(replaced=gone, stopped=options.writers_stopped),
            ),
        )

    return commit_at(table, draft, options)


def _check_files(at: HeadState, read: ScanPlan, live: Sequence[ManifestEntry]) -> None:
    then = {(*at.stored.bucket(s), *file_and_level(f)) for s in read.splits for f in s.files}
    now = {(*at.stored.bucket(e), *file_and_level(e.file)) for e in live}
    for partition, *_ in then ^ now:
        where = at.stored.text(partition) or "()"
        raise at.conflict(f"another commit changed partition {where} while it was rescaled; run it again")


def _check_vectors(at: HeadState, then: Sequence[IndexEntry], rewritten: Selection) -> None:
    def names(entries: Sequence[IndexEntry]) -> set[tuple[object, ...]]:
        marked = (i for i in entries if i.deletion_vector_ranges and rewritten(i.partition))
        return {(*at.stored.bucket(i), i.file_name) for i in marked}

    if names(then) != names(at.index):
        raise at.conflict("another commit deleted rows of a partition while it was rescaled; run it again")
