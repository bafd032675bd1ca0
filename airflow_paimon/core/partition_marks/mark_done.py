"""mark_partition_done: the actions of the option ``partition.mark-done-action`` for partitions that are complete."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from airflow_paimon.core.catalogs.base import PartitionCatalog
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import execute, require_committable
from airflow_paimon.core.errors import (
    InvalidInputError,
    PaimonError,
    UnsupportedCatalogError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.partition_marks.http_report import PARAMS, URL, check_url, report
from airflow_paimon.core.plan import Plan, Replace
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import MarkPartitionDone
from airflow_paimon.core.table.option_values import MARK_ACTIONS
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_text import split_partitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.success_files import PartitionToMark, partition_to_mark, plan_success_files
from airflow_paimon.core.table.table import Table

OPTION = "partition.mark-done-action"
SUCCESS_FILE, DONE_PARTITION, MARK_EVENT, HTTP_REPORT, CUSTOM = MARK_ACTIONS


def mark_partition_done(context: Context, request: MarkPartitionDone) -> OperationResult:
    """Mark partitions of main as complete. A partition that has no rows can be marked as well; again is harmless.

    Raises:
        InvalidInputError: no partition, one that can't be one, or an option without a sense. UnsupportedError: an
            action that needs Java, or a catalog that keeps partitions. Nothing was done then. StorageError: a server
            doesn't answer, or not as it should; ``details.done`` lists the partitions that are marked.
    """
    table = context.table
    schema = table.schema()
    options = TableOptions(schema.options)
    marked = _partitions(schema, request.partitions, table.name)
    actions = _actions(options, table.name)
    steps = {action: _step(context, action, options) for action in actions}
    files = plan_success_files(table, [m.folder for m in marked], context.now_ms) if SUCCESS_FILE in actions else []
    summary = {"mark_done_actions": actions, "partitions": [m.text for m in marked]}
    plan = Plan(operation=request.operation, table=table.name, actions=tuple(files), summary=summary)
    with attempt_of(context, MAIN, commits=False):
        if not request.dry_run:
            _mark(table, marked, steps, {f.path.rpartition("/")[0]: f for f in files})
    head = table.latest_snapshot_id()
    return context.result(plan, branch=MAIN, changed=True, before=head, after=head, details=summary)


def _partitions(schema: TableSchema, texts: Sequence[str], table: str) -> list[PartitionToMark]:
    found = [partition_to_mark(schema, text, table) for given in texts for text in split_partitions(given)]
    if not found:
        raise InvalidInputError(f"{table}: give the partitions (--partitions), such as dt=2026-11-25")
    return list({m.folder: m for m in found}.values())


def _actions(options: TableOptions, table: str) -> list[str]:
    names = [name.lower().replace("_", "-") for name in options.split_names(OPTION) or (SUCCESS_FILE,)]
    for name in names:
        if name not in MARK_ACTIONS:
            raise InvalidInputError(f"{table}: table option {OPTION} has {name!r}; there are {', '.join(MARK_ACTIONS)}")
    return list(dict.fromkeys(names))


Step = Callable[[PartitionToMark], object]


def _step(context: Context, action: str, options: TableOptions) -> Step:
    """Check that an action can be done, and return what does it for one partition."""
    table = context.table
    if action == SUCCESS_FILE:
        require_committable(table)
        return lambda _: None
    if action == HTTP_REPORT:
        url, params = check_url(options.text(URL), table.name), options.given(PARAMS)
        location = re.sub("^file:///", "file:/", table.store.uri)  # as Hadoop writes a path
        return lambda marked: report(url, table.name, location, f"{marked.folder}/", params)
    if action == CUSTOM:
        raise UnsupportedFeatureError(
            f"{table.name}: {OPTION} has custom: only Paimon's own mark_partition_done can load the Java class of "
            f"{OPTION}.custom.class"
        )
    if options.text("metastore.partitioned-table").lower() != "true":
        raise InvalidInputError(f"{table.name}: {OPTION} has {action}, which needs metastore.partitioned-table=true")
    catalog, (database, name) = table.catalog, table.name.split(".", 1)
    if not isinstance(catalog, PartitionCatalog):
        raise UnsupportedCatalogError(
            f"{table.name}: {OPTION} has {action}, and {_label(table)} keeps no partitions for this package; use "
            f"success-file or http-report, or Paimon's own mark_partition_done"
        )
    if action == MARK_EVENT:
        return lambda marked: catalog.mark_done(database, name, marked.spec)
    return lambda marked: catalog.add_partition(database, name, _done_spec(marked.spec))


def _label(table: Table) -> str:
    return table.store.uri if table.catalog is None else table.catalog.label


def _done_spec(spec: Mapping[str, str]) -> dict[str, str]:
    """Name the partition that Paimon's ``done-partition`` adds: ``dt=2026-11-25.done``."""
    last = list(spec)[-1]
    return {**spec, last: f"{spec[last]}.done"}


def _mark(
    table: Table, marked: Sequence[PartitionToMark], steps: Mapping[str, Step], files: Mapping[str, Replace]
) -> None:
    """Mark one partition after the other, each with all actions, in the order of the option."""
    done: list[str] = []
    for one in marked:
        try:
            for action, step in steps.items():
                step(one) if action != SUCCESS_FILE else execute(table, [files[one.folder]])
        except PaimonError as error:
            error.details["done"] = done
            raise
        done.append(one.text)
