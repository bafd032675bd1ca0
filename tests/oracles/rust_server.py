"""Oracle O2: pypaimon-rust behind JSON lines. Runs in the O2 environment; tables travel as Arrow IPC files.
drivers.RustOracle is the other side.

Two commits at once lose rows in 0.4.0, so nothing else may write while this one does.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from json_lines import identifier, serve
from pypaimon_rust.datafusion import PaimonCatalog, SQLContext

Request = dict[str, Any]


def table(request: Request) -> Any:
    return PaimonCatalog({"warehouse": request["warehouse"]}).get_table(identifier(request))


def store(result: pa.Table, request: Request) -> dict[str, Any]:
    path = Path(request["scratch"]) / f"{uuid.uuid4()}.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, result.schema) as writer:
        writer.write_table(result)
    return {"path": str(path), "count": result.num_rows}


def load(path: str) -> pa.Table:
    with pa.OSFile(path, "rb") as source:
        return pa.ipc.open_file(source).read_all()


def read(request: Request) -> dict[str, Any]:
    options = dict(request.get("options", {}))
    if "snapshot" in request:
        options["scan.snapshot-id"] = str(request["snapshot"])
    if "tag" in request:
        options["scan.tag-name"] = request["tag"]
    builder = table(request).new_read_builder(options)
    if "columns" in request:
        builder = builder.with_projection(request["columns"])
    splits = builder.new_scan().plan().splits()
    batches = builder.new_read().read(splits) if splits else []
    if not batches:
        return {"count": 0, "splits": len(splits)}
    return {**store(pa.Table.from_batches(batches), request), "splits": len(splits)}


def write(request: Request) -> dict[str, Any]:
    builder = table(request).new_batch_write_builder()
    mode = request.get("mode", "append")
    if mode != "append":
        builder = builder.with_overwrite(request.get("partition", {}))
    writer, committer = builder.new_write(), builder.new_commit()
    for batch in load(request["path"]).to_batches():
        writer.write_arrow(batch)
    committer.commit(writer.prepare_commit())
    writer.close()
    committer.close()
    return {}


def sql(request: Request) -> dict[str, Any]:
    """One statement against the catalog `paimon`; its rows, if it has any."""
    context = SQLContext()
    context.register_catalog("paimon", {"warehouse": request["warehouse"]})
    context.set_current_catalog("paimon")
    batches = context.sql(request["statement"])
    return store(pa.Table.from_batches(batches), request) if batches else {"count": 0}


def listing(request: Request) -> dict[str, Any]:
    target = table(request)
    return {
        "snapshots": [snapshot.id() for snapshot in target.list_snapshots()],
        "tags": {tag.name(): tag.snapshot_id() for tag in target.list_tags()},
    }


if __name__ == "__main__":
    serve({"read": read, "write": write, "sql": sql, "list": listing})
