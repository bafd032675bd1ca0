"""The tab Schemas: the columns of the newest version, and what each version changed."""

from __future__ import annotations

from dataclasses import replace

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import with_nullable
from airflow_paimon.core.table.masking import shown_option
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.reading import FRESH_SECONDS
from airflow_paimon.plugin.sheet import Cell, Column, Sheet, moment, text
from airflow_paimon.plugin.tabs.schema_diff_plan import schema_changes

_VERSIONS = 25
_COLUMNS = (Column("Column"), Column("Type"), Column("Nullable"), Column("Key"), Column("Comment"))


def show(context: PageContext) -> Panel:
    """Show the columns, and a page of versions, the newest first."""
    schemas: list[TableSchema] = context.reader.get(
        (context.uri, "schemas", context.view.branch_name),
        context.view.schemas,
        until=context.until,
        fresh=FRESH_SECONDS,
    )
    page, pages, first, last = context.page_of(len(schemas), _VERSIONS)
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
    columns = Sheet(title=f"Columns of version {newest.id}", columns=_COLUMNS, rows=_columns(newest), total=0)
    return Panel(
        template="schemas.html",
        sheets=[columns],
        data={"versions": versions, "page": page, "pages": pages, "total": len(schemas)},
    )


def _without_secrets(schema: TableSchema) -> TableSchema:
    return replace(schema, options={k: shown_option(k, v) for k, v in schema.options.items()})


def _columns(schema: TableSchema) -> list[list[Cell]]:
    return [
        [
            Cell(field.name),
            Cell(str(with_nullable(field.type, True))),
            Cell("yes" if field.type.nullable else "no"),
            text(", ".join(_roles(schema, field.name))),
            text(field.description),
        ]
        for field in schema.fields
    ]


def _roles(schema: TableSchema, column: str) -> list[str]:
    keys = (("partition", schema.partition_keys), ("primary", schema.primary_keys))
    return [f"{kind} key {names.index(column) + 1}" for kind, names in keys if column in names]
