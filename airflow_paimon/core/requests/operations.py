"""The table of operations: name, request, where it runs, and what it reads and writes.

Jobs, the launcher, operators and the command line look up here. What executes them is bound in ``execution.py`` and
``spark/jobs``.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests import requests
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.table.paths import MAIN, is_pattern


@dataclass(frozen=True, slots=True)
class OperationSpec:
    """One row of the table.

    Attributes:
        needs_spark: Whether it reads or writes rows, by a function of ``spark/jobs``. Others can run in an Airflow
            worker.
        in_python: Of an operation on rows: whether Python does it without Spark as well. Its dry run then reads
            metadata alone.
        own_metadata: It rewrites or deletes metadata files, which is not possible where a server keeps them.
        reads: The branches whose rows it reads: fields of its request that name them, or ``MAIN``.
        writes: The branches whose rows or columns it may change, likewise; ``BY_TABLE``: the table's options name it.
        same_rows: What it writes has the rows that were there before.
    """

    request: type[Request]
    needs_spark: bool = False
    in_python: bool = False
    own_metadata: bool = False
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    same_rows: bool = False

    @property
    def summary(self) -> str:
        """What it does, in a sentence: the beginning of its request's docstring."""
        return (self.request.__doc__ or "").partition("\n\n")[0].strip()


BY_TABLE = "<by the table>"

_TABLE = (
    OperationSpec(requests.CreateBranch, reads=("from_branch",), writes=("branch",), same_rows=True),
    OperationSpec(requests.AlterBranch),
    OperationSpec(requests.DeleteBranch),
    OperationSpec(requests.RenameBranch, own_metadata=True, reads=("branch",), writes=("to_branch",), same_rows=True),
    OperationSpec(requests.RebaseBranch, own_metadata=True, reads=("branch", MAIN), writes=("to_branch",)),
    OperationSpec(requests.CreateTag),
    OperationSpec(requests.ReplaceTag),
    OperationSpec(requests.DeleteTag),
    OperationSpec(requests.RenameTag),
    OperationSpec(requests.CreateTableSet),
    OperationSpec(requests.ResetConsumer),
    OperationSpec(requests.ClearConsumers),
    OperationSpec(requests.AlterTable, reads=("branch",), writes=("branch",), same_rows=True),
    OperationSpec(requests.MergeBranch, reads=("branch", MAIN), writes=(MAIN,)),
    OperationSpec(requests.FastForward, reads=("branch", MAIN), writes=(MAIN,)),
    OperationSpec(requests.ReplaceMain, own_metadata=True, reads=("branch", MAIN), writes=(MAIN,)),
    OperationSpec(requests.RollbackTo, reads=("branch",), writes=("branch",)),
    OperationSpec(requests.DiffBranches, needs_spark=True, in_python=True, reads=("branch", "against")),
    OperationSpec(requests.CheckBranchData, needs_spark=True, reads=("branch", MAIN)),
    OperationSpec(requests.CorrectBranch, needs_spark=True, reads=("branch", MAIN), writes=("branch",)),
    OperationSpec(requests.PlanCorrection),
    OperationSpec(requests.ReplayBranch, needs_spark=True, reads=("branch",), writes=("branch",)),
    OperationSpec(
        requests.Compact, needs_spark=True, in_python=True, reads=("branch",), writes=("branch",), same_rows=True
    ),
    OperationSpec(requests.CompactManifest),
    OperationSpec(
        requests.Rescale, needs_spark=True, in_python=True, reads=("branch",), writes=("branch",), same_rows=True
    ),
    OperationSpec(requests.ExpireBranches),
    OperationSpec(requests.RemoveOrphanFiles, own_metadata=True),
    OperationSpec(requests.CheckTable, reads=(MAIN,)),
    OperationSpec(requests.StorageUsage),
    OperationSpec(requests.FindRows, reads=(MAIN,)),
    OperationSpec(
        requests.EraseRows, needs_spark=True, in_python=True, own_metadata=True, reads=(MAIN,), writes=(MAIN,)
    ),
    OperationSpec(requests.ExportAudit),
    OperationSpec(requests.TableHealthCheck),
    OperationSpec(requests.RepairTable, own_metadata=True, reads=(MAIN,)),
    OperationSpec(requests.CreateChainTable, writes=(MAIN,)),
    OperationSpec(requests.CheckChainTable, reads=(MAIN,)),
    OperationSpec(requests.AlterChainTable, reads=(MAIN,), writes=(MAIN,), same_rows=True),
    OperationSpec(requests.CompactChainTable, needs_spark=True, in_python=True, reads=(MAIN,), writes=(BY_TABLE,)),
    OperationSpec(requests.ExpirePartitions, reads=("branch",), writes=("branch",)),
    OperationSpec(requests.MarkPartitionDone),
    OperationSpec(requests.ExpireSnapshots, own_metadata=True),
    OperationSpec(requests.ExpireChangelogs, own_metadata=True),
    OperationSpec(requests.ExpireTags, own_metadata=True),
    OperationSpec(requests.TriggerTagAutomaticCreation, own_metadata=True),
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
