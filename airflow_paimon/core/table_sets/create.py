"""``create_table_set``: a version of a set from the newest snapshots of some tables, or from given ones."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.plan import Plan, PutNew
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CreateTableSet
from airflow_paimon.core.table.table import split_version
from airflow_paimon.core.table.table_set import SetMember, TableSet, claim_file, set_tag, version_file
from airflow_paimon.core.table_sets.publish import (
    Sets,
    check_retention,
    expire,
    make_version,
    members,
    open_sets,
    pin_of,
    version_of,
)


def create_table_set(context: Context, request: CreateTableSet) -> OperationResult:
    """Make the next version of a set, and delete those that are over.

    Raises:
        NotFoundError: a table, a version of it, or any snapshot of it is missing. UnsupportedError: a table whose
            readers see several branches, or a catalog that keeps the warehouse. ConflictError: a pipeline is publishing
            tables of the set.
    """
    retained_ms = check_retention(request.keep, request.retention)
    sets = open_sets(request.warehouse, request.table_set, request.storage_options)
    named = members(request.member)
    if context.table.name not in named:
        named = {context.table.name: context.table.name, **named}
    for name in named:
        sets.member(name)
    if request.dry_run:
        return _planned(context, sets, _pins(sets, named))
    with attempt_of(context, commits=False) as tried:
        found = version_of(sets, str(request.operation_id), context.now_ms) if tried.retried else None
        if found is not None:
            return _result(context, found, [], replayed=True)
        made = make_version(
            sets, lambda _: _pins(sets, named), request.operation_id, context.now_ms, abandon=request.abandon
        )
    return _result(context, made, expire(sets, request.keep, retained_ms, context.now_ms))


def _pins(sets: Sets, named: Mapping[str, str]) -> dict[str, SetMember]:
    found = {}
    for name, text in named.items():
        table, version = split_version(text)
        if isinstance(version, str) and version.startswith("set:"):
            raise InvalidInputError(f"{text}: give a tag or a snapshot id of {table}, not a version of a table set")
        found[name] = pin_of(sets.table(table), version)
    return found


def _result(context: Context, made: TableSet, expired: list[int], *, replayed: bool = False) -> OperationResult:
    details = {**made.to_json(), "expired": expired} | ({"replayed": True} if replayed else {})
    pin = made.tables.get(context.table.name)
    at = None if pin is None else pin.snapshot_id
    return context.result(None, branch="main", changed=True, before=at, after=at, details=details)


def _planned(context: Context, sets: Sets, pins: Mapping[str, SetMember]) -> OperationResult:
    """Say which version would come next; one that others are making is not finished for that."""
    claims, ended = sets.folder.numbers()
    number = max([0, *claims, *ended]) + 1
    tag = set_tag(sets.name, number)
    tags = [PutNew(path=f"{name}: tag-{tag}", data=b"", reason=f"names snapshot {pin.snapshot_id}")
            for name, pin in pins.items()]  # fmt: skip
    claim = PutNew(path=claim_file(number), data=b"", reason="takes the number")
    version = PutNew(path=version_file(number), data=b"", reason="makes the version visible")
    made = TableSet(name=sets.name, number=number, tables=pins)
    plan = Plan(operation=context.request.operation, table=context.table.name, actions=(claim, *tags, version),
                summary={"table_set": sets.name})  # fmt: skip
    return context.result(plan, branch="main", changed=True, details={**made.to_json(), "expired": []})
