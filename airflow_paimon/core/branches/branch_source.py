"""The base of a new branch: read, and checked again once a tag protects it."""

from __future__ import annotations

from airflow_paimon.core.branches.branch_plan import BranchSource, is_protective
from airflow_paimon.core.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.schema import parse_schema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import CreateBranch
from airflow_paimon.core.table.branch_state import require_ready
from airflow_paimon.core.table.features import is_chain_part
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN, manifest_path
from airflow_paimon.core.table.reachability import lost_between
from airflow_paimon.core.table.table import Table


def gather_source(context: Context, request: CreateBranch) -> BranchSource:
    """Read the base of the new branch.

    Raises:
        NotFoundError: source branch, tag or snapshot. UnsafeOperationError: the source could expire under the branch.
        ConflictError: the source is itself being created, renamed or deleted.
    """
    if request.tag is not None and request.snapshot is not None:
        raise InvalidInputError("create_branch: give tag or snapshot, not both")
    view = context.table.branch(request.from_branch)
    require_ready(view.require())
    ids = view.schema_ids()
    if request.tag is None and request.snapshot is None:
        schemas = schema_bytes(view, ids)
        latest = parse_schema(schemas[ids[-1]], f"{view.label}: schema-{ids[-1]}")
        return BranchSource(branch=request.from_branch, schemas=schemas, schema=latest, latest_schema_id=ids[-1])
    tag = view.tag(request.tag) if request.tag is not None else None
    if tag is not None:
        snapshot = tag.snapshot
    else:
        assert request.snapshot is not None
        snapshot = view.snapshot(request.snapshot)
    is_part = is_chain_part(TableOptions(view.schema().options), view.branch_name)
    if not is_part:  # a chain table's branch holds back for its own tags, of which the new branch gets one
        _check_source_branch(view, request)
    schemas = schema_bytes(view, [i for i in ids if i <= snapshot.schema_id])
    if snapshot.schema_id not in schemas:
        raise FormatError(f"{view.label}: schema {snapshot.schema_id} of snapshot {snapshot.id} is missing")
    schema = parse_schema(schemas[snapshot.schema_id], f"{view.label}: schema-{snapshot.schema_id}")
    return BranchSource(
        branch=request.from_branch,
        schemas=schemas,
        schema=schema,
        latest_schema_id=ids[-1],
        snapshot=snapshot,
        snapshot_bytes=snapshot_bytes(view, snapshot),
        tag=tag,
        is_chain_part=is_part,
    )


def _check_source_branch(view: Table, request: CreateBranch) -> None:
    """A branch of a branch shares files whose expiry main's tags don't stop, so that branch must never expire."""
    if view.branch_name != MAIN and not is_protective(view.schema()):
        raise UnsafeOperationError(
            f"{view.label} may expire its own snapshots, which would delete files that branch "
            f"{request.branch!r} shares; create it from main, or from a branch created by airflow-paimon"
        )


def schema_bytes(view: Table, ids: list[int]) -> dict[int, bytes]:
    """Read schema files by id."""
    return dict(zip(ids, view.store.read_many([view.paths.schema(i) for i in ids]), strict=True))


def snapshot_bytes(view: Table, snapshot: Snapshot) -> bytes:
    """The snapshot file byte for byte, or made from the tag if the snapshot has expired."""
    try:
        data = view.store.read(view.paths.snapshot(snapshot.id))
    except NotFoundError:
        return snapshot.to_bytes()
    from_file = view.snapshot(snapshot.id)
    return data if from_file.identity == snapshot.identity else snapshot.to_bytes()


def recheck_source(table: Table, source: BranchSource) -> None:
    """Check, once the protective tag is set, that no running expiry has deleted files of the base.

    Raises:
        ConflictError: some are gone.
    """
    snapshot, view = source.snapshot, table.branch(source.branch)
    if snapshot is None:
        return
    require_ready(view)  # an operation that deletes or renames the source from here on finds our protective tag on it
    try:
        still = view.tag(source.tag.name).snapshot if source.tag is not None else view.snapshot(snapshot.id)
        if still.identity != snapshot.identity:
            raise NotFoundError("another snapshot has its id now")
        # Not its changelog's list: Paimon's expiry keeps the state of a tagged snapshot, and not the changes.
        state = (snapshot.base_manifest_list, snapshot.delta_manifest_list)
        lost = [n for n in state if not table.store.exists(manifest_path(n))]
        if not lost and source.tag is None:
            lost = lost_between(view, snapshot)
    except NotFoundError as error:
        raise ConflictError(f"{view.label}: snapshot {snapshot.id} disappeared during the creation ({error})") from None
    if lost:
        raise ConflictError(
            f"{view.label}: snapshot {snapshot.id} is being expired: {lost[0]} is gone; branch from a later one"
        )
