"""OpenLineage: what an operation read and wrote. Imported only where ``apache-airflow-providers-openlineage`` is."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attr
from airflow.providers.common.compat.openlineage.facet import (
    Dataset,
    DatasetFacet,
    InputDataset,
    OutputDataset,
    OutputStatisticsOutputDatasetFacet,
    RunFacet,
    SchemaDatasetFacet,
    SchemaDatasetFacetFields,
    SQLJobFacet,
    SymlinksDatasetFacet,
)
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    symlinks_dataset,
)

from airflow_paimon._compat import AirflowException
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.table.paths import MAIN, parse_identifier
from airflow_paimon.core.table.table import resolve_version, split_version
from airflow_paimon.lineage.branches import branches_to_read, branches_written
from airflow_paimon.lineage.datasets import dataset_of

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from airflow_paimon.hooks.paimon import PaimonHook

__all__ = ["OPERATION_FACET", "OperationFacet", "convert_asset", "lineage_of", "lineage_of_several"]

log = logging.getLogger(__name__)

OPERATION_FACET = "paimon_operation"
_DIFF = ("total", "buckets", "partitions_differing", "partitions_unchanged", "different")
_READ_VERSION = {
    "diff_branches": ("branch_snapshot", "against_snapshot"),
    "correct_branch": ("branch_snapshot", "main_snapshot"),
    "check_branch_data": ("branch_snapshot",),
}
"""Where the details of a result say which snapshots were read, in the order of the branches that are."""


@attr.define
class OperationFacet(RunFacet):
    """What the operation did, in the words of its result; of a diff the counts, of a failure the error object."""

    operation: str
    table: str
    branch: str | None = attr.field(default=None)
    changed: bool | None = attr.field(default=None)
    dryRun: bool | None = attr.field(default=None)
    planId: str | None = attr.field(default=None)
    snapshotBefore: int | None = attr.field(default=None)
    snapshotAfter: int | None = attr.field(default=None)
    diff: dict[str, Any] | None = attr.field(default=None)
    error: dict[str, Any] | None = attr.field(default=None)


def lineage_of(
    operator: Any, result: Mapping[str, Any] | None, error: Mapping[str, Any] | None
) -> OperatorLineage[Any, Any]:
    """
    Say what a task read and wrote. Without a result (it failed) nothing was written, as far as anybody knows.

    A dataset is the branch's folder, as the files of a table are named everywhere: namespace ``s3://bucket`` (``file``)
    and path; its symlink is the table's name in the warehouse, ``db.table`` or ``db.table$branch_name``.
    """
    from airflow_paimon.hooks.paimon import PaimonHook

    hook = PaimonHook(operator.paimon_conn_id)
    arguments = vars(operator)
    read = [name for name in branches_to_read(operator.operation, arguments) if isinstance(name, str)]
    versions = _versions_read(result)
    inputs = [
        _dataset(hook, operator.table, name, versions[i] if i < len(versions) else None) for i, name in enumerate(read)
    ]
    if checked := _assertions(result, error):
        facet: Any = {"dataQualityAssertions": checked}
        inputs[:1] = [
            InputDataset(namespace=one.namespace, name=one.name, facets=one.facets, inputFacets=facet)
            for one in inputs[:1]
        ]
    inputs += [_dataset(hook, *viewed) for viewed in _views(hook, operator).values()]
    written = branches_written(result) if result is not None else []
    outputs = [_output(hook, operator, name, result) for name in written if result is not None]
    jobs = {"sql": SQLJobFacet(query=operator.sql)} if getattr(operator, "sql", None) else {}
    facets = {OPERATION_FACET: _operation(operator, result, error)}
    return OperatorLineage(inputs=inputs, outputs=outputs, run_facets=facets, job_facets=jobs)


def lineage_of_several(operators: Iterable[Any]) -> OperatorLineage[Any, Any]:
    """Say what a task read and wrote that runs one operator after the other; facets of the run are the last one's."""
    each = [lineage_of(one, one._result, one._error) for one in operators]
    return OperatorLineage(
        inputs=_once(one for part in each for one in part.inputs),
        outputs=_once(one for part in each for one in part.outputs),
        run_facets=each[-1].run_facets,
        job_facets=each[-1].job_facets,
    )


def _once(datasets: Iterable[Dataset]) -> list[Dataset]:
    """Of the datasets of one name, take the last."""
    return list({(one.namespace, one.name): one for one in datasets}.values())


def convert_asset(asset: Asset, lineage_context: Any) -> Dataset | None:
    """Turn an asset ``paimon://…`` into the dataset of its branch; None when its URI is not of that form."""
    from airflow_paimon.hooks.paimon import PaimonHook

    parts = urlsplit(asset.uri)
    names = [part for part in parts.path.split("/") if part]
    if len(names) not in (2, 3):
        return None
    table, branch = f"{names[0]}.{names[1]}", names[2] if len(names) == 3 else MAIN
    try:
        namespace, name = dataset_of(PaimonHook(parts.netloc).warehouse, table, branch)
    except (PaimonError, AirflowException) as error:
        log.debug("No dataset for %s: %s", asset.uri, error)
        return None
    return Dataset(namespace=namespace, name=name)


def _dataset(hook: PaimonHook, table: str, branch: str, version: int | None) -> Dataset:
    namespace, name = dataset_of(hook.warehouse, table, branch)
    return Dataset(namespace=namespace, name=name, facets=_facets(hook, table, branch, version))


def _output(hook: PaimonHook, operator: Any, branch: str, result: Mapping[str, Any]) -> OutputDataset:
    namespace, name = dataset_of(hook.warehouse, operator.table, branch)
    version = result["snapshot_after"] if branch == result["branch"] else None
    figures = _statistics(result) if branch == result["branch"] else None
    facets = _facets(hook, operator.table, branch, version)
    if sources := result["details"].get("column_sources"):
        facets["columnLineage"] = _column_lineage(hook, operator, sources)
    return OutputDataset(
        namespace=namespace,
        name=name,
        facets=facets,
        outputFacets={} if figures is None else {"outputStatistics": figures},
    )


def _facets(hook: PaimonHook, table: str, branch: str, version: int | None) -> dict[str, DatasetFacet]:
    identifier = parse_identifier(table)
    table, branch = f"{identifier.database}.{identifier.table}", identifier.branch if branch == MAIN else branch
    label = table if branch == MAIN else f"{table}$branch_{branch}"
    named = symlinks_dataset.Identifier(namespace=hook.warehouse.rstrip("/"), name=label, type="TABLE")
    facets: dict[str, DatasetFacet] = {"symlinks": SymlinksDatasetFacet(identifiers=[named])}
    if version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(version))
    try:
        fields = hook.get_table(table, branch).schema().fields
    except PaimonError as error:  # a branch that is gone, a storage that fails: the rest still counts
        log.debug("No schema of %s: %s", label, error.message)
        return facets
    columns = [SchemaDatasetFacetFields(name=f.name, type=str(f.type), description=f.description) for f in fields]
    return {**facets, "schema": SchemaDatasetFacet(fields=columns)}


def _column_lineage(
    hook: PaimonHook, operator: Any, sources: Mapping[str, list[str]]
) -> column_lineage_dataset.ColumnLineageDatasetFacet:
    """Name the columns that each written one was computed from. ``sources``: ``view.column``, by column."""
    views = {"branch": (operator.table, operator.branch), "main": (operator.table, MAIN)}
    views |= {view: (table, branch) for view, (table, branch, _) in _views(hook, operator).items()}

    def input_field(text: str) -> column_lineage_dataset.InputField:
        view, _, column = text.partition(".")
        namespace, name = dataset_of(hook.warehouse, *views[view])
        return column_lineage_dataset.InputField(namespace=namespace, name=name, field=column)

    return column_lineage_dataset.ColumnLineageDatasetFacet(
        fields={
            column: column_lineage_dataset.Fields(inputFields=[input_field(text) for text in found])
            for column, found in sources.items()
        }
    )


def _statistics(result: Mapping[str, Any]) -> OutputStatisticsOutputDatasetFacet | None:
    details = result["details"]
    if result["operation"] == "correct_branch":
        return OutputStatisticsOutputDatasetFacet(
            rowCount=details.get("rows"), size=details.get("bytes"), fileCount=details.get("files_added")
        )
    if result["operation"] == "compact_chain_table":
        done = [one for one in details.get("partitions", ()) if "rows_out" in one]
        return OutputStatisticsOutputDatasetFacet(
            rowCount=sum(one["rows_out"] for one in done), fileCount=sum(one.get("files_out", 0) for one in done)
        )
    return None


def _operation(operator: Any, result: Mapping[str, Any] | None, error: Mapping[str, Any] | None) -> OperationFacet:
    if result is None:
        return OperationFacet(operation=operator.operation, table=operator.table, error=dict(error) if error else None)
    details = result["details"]
    diff = {name: details[name] for name in _DIFF if name in details} if operator.operation == "diff_branches" else None
    return OperationFacet(
        operation=result["operation"],
        table=result["table"],
        branch=result["branch"],
        changed=result["changed"],
        dryRun=result["dry_run"],
        planId=result["plan_id"],
        snapshotBefore=result["snapshot_before"],
        snapshotAfter=result["snapshot_after"],
        diff=diff,
    )


def _assertions(
    result: Mapping[str, Any] | None, error: Mapping[str, Any] | None
) -> data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet | None:
    """Return what the rules of ``check_branch_data`` said, also where it failed for them; None for other operations."""
    rules = (result["details"] if result is not None else error or {}).get("rules")
    if not rules or (result is not None and result["operation"] != "check_branch_data"):
        return None
    known = attr.fields_dict(data_quality_assertions_dataset.Assertion)  # severity and name came later
    found = [
        {"assertion": r["name"], "name": r["name"], "success": not r["broken"],
         "severity": "warn" if r["outcome"] == "warned" else "error", "actual": r["said"]}
        for r in rules
    ]  # fmt: skip
    return data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
        assertions=[
            data_quality_assertions_dataset.Assertion(**{k: v for k, v in one.items() if k in known}) for one in found
        ]
    )


def _versions_read(result: Mapping[str, Any] | None) -> list[int | None]:
    if result is None:
        return []
    return [result["details"].get(name) for name in _READ_VERSION.get(result["operation"], ())]


def _views(hook: PaimonHook, operator: Any) -> dict[str, tuple[str, str, int | None]]:
    """Return table, branch and snapshot of the further tables of a correction's query, by view, from
    ``name=db.table[$branch_b][@VERSION]``.
    """
    from airflow_paimon.arguments import as_list

    pairs = (view.partition("=") for view in as_list("view", getattr(operator, "view", ())))
    return {name.strip(): _viewed(hook, text.strip()) for name, _, text in pairs if text.strip()}


def _viewed(hook: PaimonHook, text: str) -> tuple[str, str, int | None]:
    name, version = split_version(text)
    identifier = parse_identifier(name)
    table = f"{identifier.database}.{identifier.table}"
    if version is None:
        return table, identifier.branch, None
    try:
        view, snapshot = resolve_version(hook.get_table(table, identifier.branch), version)
    except PaimonError as error:  # a tag that is gone by now
        log.debug("No snapshot of %s: %s", text, error.message)
        return table, identifier.branch, version if isinstance(version, int) else None
    return table, view.branch_name, None if snapshot is None else snapshot.id
