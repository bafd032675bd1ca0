"""The tab Schemas: the columns of the newest version, and what each version changed."""

from __future__ import annotations

from dataclasses import replace

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.masking import masked_option
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.sheet import moment, paged
from airflow_paimon.plugin.tabs.schema_diff_plan import schema_changes
from airflow_paimon.shown import lists

_VERSIONS = 25


def show(context: PageContext) -> Panel:
    """Show the columns, and a page of versions, the newest first."""
    schemas = context.read("schemas", context.view.branch_name, make=context.view.schemas)
    page, pages, first, last = paged(len(schemas), context.query.page, _VERSIONS)
    newest_first = list(range(len(schemas) - 1, -1, -1))[first:last]
    safe = [_without_secrets(s) for s in schemas]
    versions = [
        {
            "id": schemas[i].id,
            "when": moment(schemas[i].time_millis or None, context.now_ms),
            "changes": schema_changes(safe[i - 1] if i else None, safe[i]),
        }
        for i in newest_first
    ]
    newest = schemas[-1]
    columns = context.sheet(lists.columns(newest), empty="No columns", size=len(newest.fields), search=False)
    return Panel(
        template="schemas.html",
        sheets=[replace(columns, title=f"Columns of version {newest.id}", page=1, pages=1)],
        data={"versions": versions, "page": page, "pages": pages, "total": len(schemas)},
    )


def _without_secrets(schema: TableSchema) -> TableSchema:
    return replace(schema, options={k: masked_option(k, v) for k, v in schema.options.items()})
