"""The figures and the score of made-up tables: what counts, and what takes points off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_paimon.core.format.manifest import EMPTY_STATS, DeletionVectorRange, IndexEntry, ManifestFile
from airflow_paimon.core.health.files_plan import FileGroup, LiveFile, count_deletions, rules_of
from airflow_paimon.core.health.health_plan import (
    ChainFigures,
    Observed,
    RetainedState,
    RetentionFigures,
    StorageFigures,
    TableHealth,
    plan_health,
    points_of,
)
from airflow_paimon.core.table.options import TableOptions

MIB = 2**20
DAY_MS = 86_400_000


def rules(*, keyed: bool = False, hides: bool = False, **options: str) -> Any:
    return rules_of(TableOptions(options), keyed=keyed, hides_level_zero=hides, min_files=5)


def group(
    sizes: Sequence[int], *, partition: str = "a", bucket: int = 0, levels: Sequence[int] = (), branch: str = "main"
) -> FileGroup:
    """Files of so many MiB, with ten rows each."""
    at = levels or [0] * len(sizes)
    files = [LiveFile(f"{partition}{bucket}-{i}", s * MIB, 10, at[i]) for i, s in enumerate(sizes)]
    return FileGroup(branch, partition.encode(), bucket, files)


def judge(groups: Sequence[FileGroup] = (), **values: Any) -> TableHealth:
    sound = Observed(
        table="d.t", now_ms=1000 * DAY_MS, snapshot=1, committed_ms=0, rules=rules(), options=TableOptions({}),
        groups=groups, index=(), manifests=(), retained=RetentionFigures(),
    )  # fmt: skip
    return plan_health(replace(sound, **values))


def reasons(health: TableHealth) -> dict[str, int]:
    return {r.id: r.points for r in health.reasons}


def test_points_grow_from_the_limit_on() -> None:
    assert [points_of(figure, 10, 40) for figure in (0, 10, 10.1, 20, 40, 10_000)] == [0, 0, 1, 20, 30, 40]
    assert points_of(1, 0, 5) == 5 and points_of(0, 0, 5) == 0


def test_small_files_count_where_compaction_would_take_them() -> None:
    four, large = group([1] * 4), group([100] * 30, partition="b")
    assert judge([four, large]).score == 100, "four small ones are left alone, and 100 MiB are not small"
    health = judge([four, large, group([1] * 20, partition="c")])
    (reason,) = health.reasons
    assert (reason.id, reason.value, reason.limit, reason.operation) == ("small-files", 20, 4, "compact")
    assert (reason.points, health.score, reason.cost_bytes) == (32, 68, 20 * MIB)
    assert health.files.waiting_rows == 200
    assert health.files.small_files == 24
    assert judge([group([80] * 20)]).score == 100, "no two of these fit into one file"
    assert judge([group([1] * 20)], rules=rules(target_file_size="1 mb", **{"target-file-size": "1 mb"})).score == 100


def test_sorted_runs_are_counted_by_the_deepest_bucket() -> None:
    keyed = rules(keyed=True)
    flat = group([1] * 9, levels=[0] * 3 + [5] * 6)
    assert judge([flat], rules=keyed).score == 100, "three runs of level 0 and one of level 5"
    deep = group([2] * 10, bucket=1, levels=[0] * 8 + [4, 5])
    health = judge([flat, deep], rules=keyed)
    assert (health.files.most_runs, health.files.deep_buckets) == (10, 1)
    assert reasons(health) == {"sorted-runs": 20} and health.cost_bytes == 20 * MIB
    assert health.files.waiting_rows == 110, "what is on level 0"
    patient = rules(keyed=True, **{"num-sorted-run.compaction-trigger": "10"})
    assert judge([deep], rules=patient).score == 100


def test_rows_that_readers_do_not_see() -> None:
    bucket = group([90] * 4, levels=[0, 5, 5, 5])
    assert judge([bucket], rules=rules(keyed=True)).files.hidden_rows == 0
    health = judge([bucket], rules=rules(keyed=True, hides=True))
    assert health.files.hidden_rows == 10 and reasons(health) == {"hidden-rows": 19}
    postponed = judge([group([90], bucket=-2)], rules=rules(keyed=True))
    assert postponed.files.hidden_rows == postponed.files.waiting_rows == 10


def test_deleted_rows_are_those_that_vectors_of_live_files_mark() -> None:
    groups = [group([90] * 10)]
    ranges = (DeletionVectorRange("a0-1", 1, 9, 8), DeletionVectorRange("a0-2", 1, 9, None), None,
              DeletionVectorRange("gone", 1, 9, 50))  # fmt: skip
    index = [IndexEntry(0, b"", 0, "DELETION_VECTORS", "index-1", 9, 2, ranges),
             IndexEntry(0, b"", 0, "HASH", "index-2", 9, 2)]  # fmt: skip
    found = count_deletions(groups, index)
    assert (found.rows, found.files, found.bytes) == (8, 2, 180 * MIB)
    assert judge(groups, index=index).score == 100, "8 percent"
    more = [index[0]._replace(deletion_vector_ranges=(DeletionVectorRange("a0-1", 1, 9, 10),
                                                      DeletionVectorRange("a0-2", 1, 9, 10)))]  # fmt: skip
    health = judge(groups, index=more)
    assert reasons(health) == {"deleted-rows": 10} and health.reasons[0].cost_bytes == 180 * MIB


@pytest.mark.parametrize(
    ("retained", "expected"),
    [
        (RetentionFigures(snapshots=40, due_snapshots=30), {"snapshots-due": 11}),
        (RetentionFigures(due_tags=1, due_branches=2), {"branches-due": 5, "tags-due": 5}),
        (RetentionFigures(snapshots=40, blocked_snapshots=20, blocked_by="c"), {"consumer-behind": 5}),
        (RetentionFigures(replaced_bytes=256 * MIB), {"replaced-files": 5}),
        (RetentionFigures(oldest=RetainedState(kind="snapshot", name="1", branch="main", since_ms=0)), {}),
        (RetentionFigures(unlimited=RetainedState(kind="tag", name="x", branch="main", since_ms=920 * DAY_MS)), {}),
        (RetentionFigures(unlimited=RetainedState(kind="tag", name="x", branch="main", since_ms=0)), {"old-state": 5}),
    ],
)
def test_what_holds_old_states(retained: RetentionFigures, expected: dict[str, int]) -> None:
    health = judge(retained=retained)
    assert reasons(health) == expected and health.score == 100 - sum(expected.values())


def test_other_reasons() -> None:
    manifest = ManifestFile("m", 1000, 1, 0, EMPTY_STATS, 0)
    assert judge(manifests=[manifest] * 60).score == 100
    health = judge(manifests=[*[manifest] * 120, manifest._replace(file_size=9 * MIB)])
    assert reasons(health) == {"manifests": 5} and (health.manifests.count, health.manifests.small) == (121, 120)
    chain = judge(chain=ChainFigures(stale=2, stale_bytes=7, longest=62, pending_bytes=9))
    assert reasons(chain) == {"stale-partitions": 30, "long-chain": 10}
    assert chain.cost_bytes == 16
    storage = StorageFigures(bytes=100, orphan_files=3, orphan_bytes=10)
    assert reasons(judge(storage=storage)) == {"orphan-files": 8}


def test_the_score_has_a_floor_and_the_worst_reason_is_first() -> None:
    health = judge(
        [group([1] * 10_000, levels=[0] * 10_000)],
        rules=rules(keyed=True, hides=True),
        chain=ChainFigures(stale=1, errors=3, longest=1000),
        retained=RetentionFigures(snapshots=1000, due_snapshots=999),
    )
    assert health.score == 0
    assert [r.points for r in health.reasons] == sorted((r.points for r in health.reasons), reverse=True)
