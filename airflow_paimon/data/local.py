"""Operations on rows with neither Airflow nor Spark: in this process, or in several of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Any

from airflow_paimon.core.errors import StorageError, UnsupportedError
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import Compact, CompactChainTable, DiffBranches, EraseRows, Rescale
from airflow_paimon.data.chain.compact import compact_chain_table
from airflow_paimon.data.compact import compact
from airflow_paimon.data.compaction_tasks import CompactionTask, TaskOutput, Workers
from airflow_paimon.data.diff.run_diff import small_diff
from airflow_paimon.data.erasure.erase_rows import erase_rows
from airflow_paimon.data.rescale import rescale

_TASKS = 4
"""Groups of files, or buckets, of one commit, for each process; or as many more as together are small."""
_BYTES = 256 << 20

REWRITES: Mapping[str, Callable[[Context, Any, Workers], OperationResult]] = {
    "compact": compact,
    "compact_chain_table": compact_chain_table,
    "erase_rows": erase_rows,
    "rescale": rescale,
}
"""The operations that write live files again, by their names."""


def rewrite_files(
    context: Context, request: Compact | CompactChainTable | EraseRows | Rescale, processes: int = 1
) -> OperationResult:
    """Do one of the ``REWRITES``; raises as that does."""
    workers = Workers(partial(_outputs, processes), _TASKS * processes, _BYTES * processes)
    return REWRITES[request.operation](context, request, workers)


def diff_branches(context: Context, request: DiffBranches) -> OperationResult:
    """Compare branches where what differs is little; raises as ``small_diff``.

    Raises:
        UnsupportedError: it is too much for one process.
    """
    found = small_diff(context, request)
    if found is None:
        raise UnsupportedError(
            f"{context.table.name}, branch {request.branch}: what differs is too much for a diff in this process. Name "
            f"partitions, or run the job diff_branches, which has Spark"
        )
    return found


def _run(work: CompactionTask) -> TaskOutput:
    return work.run()


def _outputs(processes: int, tasks: Sequence[CompactionTask]) -> Iterator[TaskOutput]:
    """Run tasks, in several processes. The first failure leaves out what hasn't begun.

    Processes are spawned, as threads that Arrow and storages have started don't survive a fork.

    Raises:
        StorageError: a process was killed.
    """
    if min(processes, len(tasks)) == 1 or not tasks:
        yield from map(_run, tasks)
        return
    with ProcessPoolExecutor(min(processes, len(tasks)), get_context("spawn")) as pool:
        try:
            yield from pool.map(_run, tasks)
        except BrokenProcessPool as error:
            raise StorageError(
                f"One of {processes} processes was killed (maybe for lack of memory) or could not start: a script with "
                "processes runs its work below if __name__ == '__main__'. What was committed stays; run it again with "
                "fewer processes"
            ) from error
