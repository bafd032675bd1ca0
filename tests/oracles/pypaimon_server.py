"""Oracle O1: pypaimon behind JSON lines. Runs in the O1 environment; tables travel as Arrow IPC files.
drivers.PypaimonOracle is the other side."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from json_lines import identifier, serve
from pypaimon import CatalogFactory, Schema
from pypaimon.schema.data_types import DataField, DataTypeParser
from pypaimon.schema.schema_change import SchemaChange

Request = dict[str, Any]


def catalog(request: Request) -> Any:
    return CatalogFactory.create({"warehouse": request["warehouse"], **request.get("catalog_options", {})})


def table(request: Request) -> Any:
    found = catalog(request).get_table(identifier(request))
    options = dict(request.get("options", {}))
    if "snapshot" in request:
        options["scan.snapshot-id"] = str(request["snapshot"])
    if "tag" in request:
        options["scan.tag-name"] = request["tag"]
    return found.copy(options) if options else found


def store(result: pa.Table, request: Request) -> dict[str, Any]:
    path = Path(request["scratch"]) / f"{uuid.uuid4()}.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, result.schema) as writer:
        writer.write_table(result)
    return {"path": str(path), "count": result.num_rows}


def load(path: str) -> pa.Table:
    with pa.OSFile(path, "rb") as source:
        return pa.ipc.open_file(source).read_all()


def create_table(request: Request) -> dict[str, Any]:
    where = catalog(request)
    where.create_database(request["table"].split(".")[0], True)
    fields = [
        DataField(at, column["name"], DataTypeParser.parse_data_type(column["type"]), column.get("comment"))
        for at, column in enumerate(request["columns"])
    ]
    keys = request.get("partition_keys", []), request.get("primary_keys", [])
    schema = Schema(fields, *keys, request.get("options", {}), request.get("comment"))
    where.create_table(request["table"], schema, False)
    return {}


def change(request: Request) -> SchemaChange:
    name, kind = request.get("name"), request["change"]
    if kind == "add_column":
        return SchemaChange.add_column(name, DataTypeParser.parse_data_type(request["type"]), request.get("comment"))
    if kind == "update_column_type":
        return SchemaChange.update_column_type(name, DataTypeParser.parse_data_type(request["type"]))
    if kind == "drop_column":
        return SchemaChange.drop_column(name)
    return {
        "rename_column": SchemaChange.rename_column,
        "set_option": SchemaChange.set_option,
        "update_column_comment": SchemaChange.update_column_comment,
    }[kind](name, request["value"])


def alter_table(request: Request) -> dict[str, Any]:
    changes = [change(one) for one in request["changes"]]
    catalog(request).alter_table(identifier(request), changes, False)
    return {}


def write(request: Request) -> dict[str, Any]:
    target = table(request)
    mode = request.get("mode", "append")
    if mode != "append":
        target = target.copy({"dynamic-partition-overwrite": str(mode == "dynamic_overwrite").lower()})
    builder = target.new_batch_write_builder()
    if mode != "append":
        builder.overwrite(request.get("partition", {}))
    writer, committer = builder.new_write(), builder.new_commit()
    try:
        writer.write_arrow(load(request["path"]))
        committer.commit(writer.prepare_commit())
    finally:
        writer.close()
        committer.close()
    return {}


def update(request: Request) -> dict[str, Any]:
    """Change or delete rows by `_ROW_ID`: `path` has it and the new values, without `path` the `row_ids` go."""
    builder = table(request).new_batch_write_builder()
    change, committer = builder.new_update(), builder.new_commit()
    try:
        if "path" in request:
            rows = load(request["path"])
            names = [n for n in rows.column_names if n != "_ROW_ID"]
            messages = change.with_update_type(names).update_by_arrow_with_row_id(rows)
        else:
            messages = change.delete_by_row_id(request["row_ids"])
        committer.commit(messages)
    finally:
        committer.close()
    return {}


def index(request: Request) -> dict[str, Any]:
    """Build a global index of a column."""
    return {"files": table(request).create_global_index(request["column"], index_type=request["type"])}


def equal(request: Request, projected: Any) -> Any:
    """A typed value, which JSON can't carry, is the first of an Arrow file's column. `where_of` "projection" asks the
    projected builder for the predicate: its column numbers are then those of the projection, also for statistics."""
    name, path = request["where"]
    builder = projected if request.get("where_of") == "projection" else table(request).new_read_builder()
    return builder.new_predicate_builder().equal(name, load(path).column("value")[0].as_py())


def read(request: Request) -> dict[str, Any]:
    builder = table(request).new_read_builder()
    if "columns" in request:
        builder = builder.with_projection(request["columns"])
    for name, operator, value in request.get("filters", []):
        predicates = builder.new_predicate_builder()
        method = {"=": predicates.equal, "<": predicates.less_than, ">": predicates.greater_than}[operator]
        builder = builder.with_filter(method(name, value))
    if "where" in request:
        builder = builder.with_filter(equal(request, builder))
    plan = builder.new_scan().plan()
    return {**store(builder.new_read().to_arrow(plan.splits()), request), "splits": len(plan.splits())}


def manage(request: Request) -> dict[str, Any]:
    target, name = table({k: v for k, v in request.items() if k not in ("tag", "snapshot")}), request["name"]
    op = request["op"]
    if op == "create_branch":
        target.branch_manager().create_branch(name, request.get("tag"))
    elif op == "delete_branch":
        target.branch_manager().drop_branch(name)
    elif op == "fast_forward":
        target.branch_manager().fast_forward(name)
    elif op == "create_tag":
        target.create_tag(name, request.get("snapshot"), time_retained=request.get("time_retained"))
    else:
        target.delete_tag(name)
    return {}


def listing(request: Request) -> dict[str, Any]:
    target = table(request)
    latest = target.snapshot_manager().get_latest_snapshot()
    return {
        "branches": list(target.branch_manager().branches()),
        "tags": list(target.list_tags()),
        "latest_snapshot": None if latest is None else latest.id,
    }


if __name__ == "__main__":
    managed = ("create_branch", "delete_branch", "fast_forward", "create_tag", "delete_tag")
    serve(
        {
            "create_table": create_table,
            "alter_table": alter_table,
            "write": write,
            "update": update,
            "index": index,
            "read": read,
            "list": listing,
            **dict.fromkeys(managed, manage),
        }
    )
