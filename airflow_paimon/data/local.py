"""Operations on rows with neither Airflow nor Spark: in this process, or in several of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context

from airflow_paimon.core.errors import StorageError, UnsupportedError
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import Compact, CompactChainTable, DiffBranches, EraseRows, Rescale
from airflow_paimon.data import compact as compact_files
from airflow_paimon.data import rescale as rescale_files
from airflow_paimon.data.chain import compact as compact_chain
from airflow_paimon.data.compaction_tasks import CompactionTask, TaskOutput
from airflow_paimon.data.diff.compare import small_diff
from airflow_paimon.data.erasure import erase_rows as erasure

_TASKS = 4
"""Groups of files, or buckets, of one commit, for each process; or as many more as together are small."""
_BYTES = 256 << 20


def compact(context: Context, request: Compact, processes: int = 1) -> OperationResult:
    """Compact small files; raises as ``airflow_paimon.data.compact`` says."""
    return compact_files.compact(
        context,
        request,
        partial(_outputs, processes),
        tasks_at_once=_TASKS * processes,
        bytes_at_once=_BYTES * processes,
    )


def compact_chain_table(context: Context, request: CompactChainTable, processes: int = 1) -> OperationResult:
    """Make partitions full; raises as ``airflow_paimon.data.chain.compact`` says."""
    return compact_chain.compact_chain_table(
        context,
        request,
        partial(_outputs, processes),
        tasks_at_once=_TASKS * processes,
        bytes_at_once=_BYTES * processes,
    )


def rescale(context: Context, request: Rescale, processes: int = 1) -> OperationResult:
    """Distribute rows to another number of buckets; raises as ``airflow_paimon.data.rescale`` says."""
    return rescale_files.rescale(context, request, partial(_outputs, processes))


def erase_rows(context: Context, request: EraseRows, processes: int = 1) -> OperationResult:
    """Erase rows; raises as ``airflow_paimon.data.erasure.erase_rows`` says."""
    return erasure.erase_rows(context, request, partial(_outputs, processes))


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
