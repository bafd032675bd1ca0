"""The table of operations: name, request, where it runs, and what it reads and writes.

Jobs, the launcher, operators and the command line look up here. What executes them is bound in ``execution.py`` and
``spark/jobs``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests import requests
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.table.paths import MAIN, is_pattern

RowsOfMain = Literal["none", "branch", "changed"]


@dataclass(frozen=True, slots=True)
class OperationSpec:
    """One row of the table.

    Attributes:
        needs_spark: Whether it reads or writes rows, by a function of ``spark/jobs``. Others can run in an Airflow
            worker.
        in_python: Of an operation on rows: whether Python does it without Spark as well. Its dry run then reads
            metadata alone.
        rows_of_main: What it does to the rows that readers of main see. ``none``: nothing; files may be written again
            with the same rows. ``branch``: it changes the rows of a branch, which is refused where four eyes are asked
            for and readers of main see that branch, too. ``changed``: it brings rows to main or takes rows from it, so
            its request is an ``Approved``, and four eyes and required checks hold for it.
        own_metadata: It rewrites or deletes metadata files, which is not possible where a server keeps them.
        reads: The branches whose rows it reads: fields of its request that name them, or ``MAIN``.
        writes: The branches whose rows or columns it may change, likewise; ``BY_TABLE``: the table's options name it.
        same_rows: What it writes has the rows that were there before.
    """

    request: type[Request]
    needs_spark: bool = False
    in_python: bool = False
    own_metadata: bool = False
    rows_of_main: RowsOfMain = field(kw_only=True)
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    same_rows: bool = False

    @property
    def summary(self) -> str:
        """What it does, in a sentence: the beginning of its request's docstring."""
        return (self.request.__doc__ or "").partition("\n\n")[0].strip()


BY_TABLE = "<by the table>"

_TABLE = (
    OperationSpec(
        requests.CreateBranch, reads=("from_branch",), writes=("branch",), same_rows=True, rows_of_main="none"
    ),
    OperationSpec(requests.AlterBranch, rows_of_main="none"),
    OperationSpec(requests.DeleteBranch, rows_of_main="none"),
    OperationSpec(
        requests.RenameBranch,
        own_metadata=True,
        reads=("branch",),
        writes=("to_branch",),
        same_rows=True,
        rows_of_main="none",
    ),
    OperationSpec(
        requests.RebaseBranch, own_metadata=True, reads=("branch", MAIN), writes=("to_branch",), rows_of_main="none"
    ),
    OperationSpec(requests.CreateTag, rows_of_main="none"),
    OperationSpec(requests.ReplaceTag, rows_of_main="none"),
    OperationSpec(requests.DeleteTag, rows_of_main="none"),
    OperationSpec(requests.RenameTag, rows_of_main="none"),
    OperationSpec(requests.CreateTableSet, rows_of_main="none"),
    OperationSpec(requests.ResetConsumer, rows_of_main="none"),
    OperationSpec(requests.ClearConsumers, rows_of_main="none"),
    OperationSpec(requests.AlterTable, reads=("branch",), writes=("branch",), same_rows=True, rows_of_main="none"),
    OperationSpec(requests.MergeBranch, reads=("branch", MAIN), writes=(MAIN,), rows_of_main="changed"),
    OperationSpec(requests.FastForward, reads=("branch", MAIN), writes=(MAIN,), rows_of_main="changed"),
    OperationSpec(
        requests.ReplaceMain, own_metadata=True, reads=("branch", MAIN), writes=(MAIN,), rows_of_main="changed"
    ),
    OperationSpec(requests.RollbackTo, reads=("branch",), writes=("branch",), rows_of_main="changed"),
    OperationSpec(
        requests.DiffBranches, needs_spark=True, in_python=True, reads=("branch", "against"), rows_of_main="none"
    ),
    OperationSpec(requests.CheckBranchData, needs_spark=True, reads=("branch", MAIN), rows_of_main="none"),
    OperationSpec(
        requests.CorrectBranch, needs_spark=True, reads=("branch", MAIN), writes=("branch",), rows_of_main="branch"
    ),
    OperationSpec(requests.PlanCorrection, rows_of_main="none"),
    OperationSpec(
        requests.ReplayBranch, needs_spark=True, reads=("branch",), writes=("branch",), rows_of_main="branch"
    ),
    OperationSpec(
        requests.Compact,
        needs_spark=True,
        in_python=True,
        reads=("branch",),
        writes=("branch",),
        same_rows=True,
        rows_of_main="none",
    ),
    OperationSpec(requests.CompactManifest, rows_of_main="none"),
    OperationSpec(
        requests.Rescale,
        needs_spark=True,
        in_python=True,
        reads=("branch",),
        writes=("branch",),
        same_rows=True,
        rows_of_main="none",
    ),
    OperationSpec(requests.ExpireBranches, rows_of_main="none"),
    OperationSpec(requests.RemoveOrphanFiles, own_metadata=True, rows_of_main="none"),
    OperationSpec(requests.CheckTable, reads=(MAIN,), rows_of_main="none"),
    OperationSpec(requests.StorageUsage, rows_of_main="none"),
    OperationSpec(requests.FindRows, reads=(MAIN,), rows_of_main="none"),
    OperationSpec(
        requests.EraseRows,
        needs_spark=True,
        in_python=True,
        own_metadata=True,
        reads=(MAIN,),
        writes=(MAIN,),
        rows_of_main="changed",
    ),
    OperationSpec(requests.ExportAudit, rows_of_main="none"),
    OperationSpec(requests.TableHealthCheck, rows_of_main="none"),
    OperationSpec(requests.RepairTable, own_metadata=True, reads=(MAIN,), rows_of_main="none"),
    OperationSpec(requests.CreateChainTable, writes=(MAIN,), rows_of_main="none"),
    OperationSpec(requests.CheckChainTable, reads=(MAIN,), rows_of_main="none"),
    OperationSpec(requests.AlterChainTable, reads=(MAIN,), writes=(MAIN,), same_rows=True, rows_of_main="none"),
    OperationSpec(
        requests.CompactChainTable,
        needs_spark=True,
        in_python=True,
        reads=(MAIN,),
        writes=(BY_TABLE,),
        rows_of_main="none",
    ),
    OperationSpec(requests.ExpirePartitions, reads=("branch",), writes=("branch",), rows_of_main="changed"),
    OperationSpec(requests.MarkPartitionDone, rows_of_main="none"),
    OperationSpec(requests.ExpireSnapshots, own_metadata=True, rows_of_main="none"),
    OperationSpec(requests.ExpireChangelogs, own_metadata=True, rows_of_main="none"),
    OperationSpec(requests.ExpireTags, own_metadata=True, rows_of_main="none"),
    OperationSpec(requests.TriggerTagAutomaticCreation, own_metadata=True, rows_of_main="none"),
)
OPERATIONS = {operation.request.operation: operation for operation in _TABLE}


def operation_of(name: str) -> OperationSpec:
    """Look an operation up.

    Raises:
        InvalidInputError: the name is unknown.
    """
    if name not in OPERATIONS:
        raise InvalidInputError(f"Unknown operation {name!r}; there are: {', '.join(sorted(OPERATIONS))}")
    return OPERATIONS[name]


def names_several(request: Request) -> bool:
    """Whether a request on rows names several tables, one of which is worked on after the other."""
    return operation_of(request.operation).needs_spark and request.takes_patterns and is_pattern(request.table)
