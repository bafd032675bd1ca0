"""Oracle O3 as a Python object: Paimon's Java engine, kept running behind PaimonOracle.java."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.oracles import layout, wire
from tests.oracles.paimon_types import JsonType, arrow_schema, to_arrow, to_json
from tests.oracles.processes import OracleProcess

ROW_KIND = "_row_kind"
QUICK_JVM = ("-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For many small requests; give JavaOracle("-Xmx4g",) for few large ones."""
Rows = pa.Table | Sequence[Mapping[str, Any]]
Change = dict[str, Any]
"""A schema change: {"change": "add_column", "name": "c", "type": "INT", "after": "b"}, {"change": "rename_column",
"name": "a", "value": "b"}, drop_column, update_column_type, update_column_nullability (nullable),
update_column_comment, update_column_position (first | after), set_option (name, value), remove_option,
update_comment. A nested column's name is a list."""


def json_columns(columns: Mapping[str, JsonType]) -> list[dict[str, Any]]:
    return [{"name": name, "type": to_json(type_)} for name, type_ in columns.items()]


def json_changes(changes: Sequence[Change]) -> list[Change]:
    return [{**change, "type": to_json(change["type"])} if "type" in change else change for change in changes]


class JavaOracle(OracleProcess):
    """O3: Paimon's own Java engine. Each request opens the table afresh, but for those that name a session.

    Known of 1.4.2: it can't time travel to a tag that only the branch has; it reads a CHAR(n) of an ORC file without
    its padding; five level-0 files of a bucket are compacted by the next write, unless the table is `write-only`.
    """

    def __init__(self, scratch: Path, java_options: Sequence[str] = QUICK_JVM) -> None:
        java, jars = layout.java_executable(), [layout.BUNDLE_JAR, layout.POSTGRES_DRIVER_JAR, *layout.hadoop_jars()]
        options = ["-Duser.timezone=UTC", f"-Djava.io.tmpdir={scratch}", *java_options]
        source = Path(__file__).with_name("PaimonOracle.java")
        scratch.mkdir(parents=True, exist_ok=True)
        command = [str(java), *options, *layout.java_program(source, ":".join(map(str, jars)))]
        super().__init__("Paimon Java", command, scratch / "java.log")

    def create_table(
        self,
        warehouse: Path | str,
        table: str,
        columns: Mapping[str, JsonType],
        *,
        partition_keys: Sequence[str] = (),
        primary_keys: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Creates the database too; returns the table's schema file."""
        answer = self.request(
            "create_table",
            warehouse=str(warehouse),
            table=table,
            columns=json_columns(columns),
            partition_keys=list(partition_keys),
            primary_keys=list(primary_keys),
            options=dict(options or {}),
        )
        return dict(answer["schema"])

    def alter_table(
        self, warehouse: Path | str, table: str, changes: Sequence[Change], branch: str | None = None
    ) -> Any:
        """Returns the new schema file."""
        answer = self.request(
            "alter_table", warehouse=str(warehouse), table=table, branch=branch, changes=json_changes(changes)
        )
        return answer["schema"]

    def schema(self, warehouse: Path | str, table: str, branch: str | None = None) -> dict[str, Any]:
        return dict(self.request("schema", warehouse=str(warehouse), table=table, branch=branch)["schema"])

    def write(
        self,
        warehouse: Path | str,
        table: str,
        rows: Rows,
        *,
        branch: str | None = None,
        mode: str = "append",
        partition: Mapping[str, str] | None = None,
        **more: Any,
    ) -> dict[str, Any] | None:
        """One commit; returns the branch's latest snapshot file. `mode`: append, overwrite (of `partition`, or of
        everything) or dynamic_overwrite.

        `more`: session, commit_user, commit_identifier, watermark (ms), properties, ignore_empty, options (dynamic
        table options).
        """
        named = {"warehouse": str(warehouse), "table": table, "branch": branch}
        data = self._rows(rows, named)
        answer = self.request("write", **named, **data, mode=mode, partition=dict(partition or {}), **more)
        return answer["snapshot"]

    def _rows(self, rows: Rows, named: Mapping[str, Any]) -> dict[str, Any]:
        """The rows as the engine takes them; mappings are typed by the table's schema."""
        if not isinstance(rows, pa.Table):
            schema = arrow_schema(self.request("schema", **named)["schema"]["fields"])
            given = {name for row in rows for name in row}
            if unknown := given - set(schema.names) - {ROW_KIND}:
                raise ValueError(f"{named['table']} has no column {sorted(unknown)}")
            fields = [field for field in schema if field.name in given]
            fields += [pa.field(ROW_KIND, pa.string())] if ROW_KIND in given else []
            rows = pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema(fields))
        names = [name for name in rows.column_names if name != ROW_KIND]
        values = [wire.encode(rows.column(name)) for name in names]
        data: dict[str, Any] = {"columns": names, "rows": [list(row) for row in zip(*values, strict=True)]}
        if ROW_KIND in rows.column_names:
            data["kinds"] = rows.column(ROW_KIND).to_pylist()
        return data

    def read(
        self,
        warehouse: Path | str,
        table: str,
        *,
        branch: str | None = None,
        snapshot: int | None = None,
        tag: str | None = None,
        partition: Mapping[str, str] | None = None,
        filters: Sequence[Sequence[Any]] | None = None,
        columns: Sequence[str] | None = None,
        options: Mapping[str, str] | None = None,
        session: str | None = None,
        row_kinds: bool = False,
    ) -> pa.Table:
        """All rows; also of a system table (`db.t$snapshots`). `filters`: [column, operator, wire value], applied to
        each row.

        `session` reads through a catalog that open_session keeps. `row_kinds` adds the column `_row_kind`.
        """
        answer = self.request(
            "read",
            warehouse=str(warehouse),
            table=table,
            branch=branch,
            snapshot=snapshot,
            tag=tag,
            partition=None if partition is None else dict(partition),
            filters=None if filters is None else [list(one) for one in filters],
            columns=None if columns is None else list(columns),
            options=None if options is None else dict(options),
            session=session,
        )
        return _table(answer, row_kinds)

    def count(self, warehouse: Path | str, table: str, **more: Any) -> int:
        """Rows that a read gives; takes what read takes."""
        return int(self.request("count", warehouse=str(warehouse), table=table, **more)["count"])

    def plan(self, warehouse: Path | str, table: str, **more: Any) -> list[dict[str, Any]]:
        """Splits with partition, bucket and files (name, level, sequence numbers, ...); takes branch, snapshot, tag,
        partition, filters."""
        return list(self.request("plan", warehouse=str(warehouse), table=table, **more)["splits"])

    def stream_read(self, reader: str) -> tuple[pa.Table, int | None]:
        """What the open stream reader finds next, with `_row_kind`, and the snapshot it will look at then."""
        answer = self.request("stream_read", reader=reader)
        return _table(answer, True), answer["next_snapshot"]

    def open_stream_reader(
        self,
        warehouse: Path | str,
        table: str,
        reader: str,
        branch: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.request(
            "open_stream_reader",
            warehouse=str(warehouse),
            table=table,
            branch=branch,
            reader=reader,
            options=dict(options or {}),
        )

    def open_stream_writer(
        self,
        warehouse: Path | str,
        table: str,
        *,
        branch: str | None = None,
        commit_user: str = "oracle-stream",
        options: Mapping[str, str] | None = None,
    ) -> StreamWriter:
        """A writer that stays open over other commits, as a streaming job's does."""
        named = {"warehouse": str(warehouse), "table": table, "branch": branch}
        name = str(uuid.uuid4())
        self.request("open_stream_writer", **named, writer=name, commit_user=commit_user, options=dict(options or {}))
        return StreamWriter(self, named, name)

    def open_session(self, warehouse: Path | str, session: str) -> None:
        """A catalog with Paimon's caches that is kept, as an engine's session keeps it; any request may name it."""
        self.request("open_session", warehouse=str(warehouse), session=session)

    def close_session(self, session: str) -> None:
        self.request("close_session", session=session)

    def do(self, op: str, warehouse: Path | str, table: str, branch: str | None = None, **more: Any) -> dict[str, Any]:
        """Every other operation, on `branch` of `table`:

        create_branch(name, tag=), delete_branch(name), rename_branch(name, to), fast_forward(name), create_tag(name,
        snapshot=, time_retained_ms=), delete_tag(name), rollback(tag= | snapshot=), truncate(partitions=[{...}]),
        drop_table, compact(full=, options=), list, expire_snapshots(retain_max=, retain_min=, older_than_ms=,
        max_deletes=), expire_tags(older_than_ms), remove_orphans(older_than_ms, dry_run=).
        """
        return self.request(op, warehouse=str(warehouse), table=table, branch=branch, **more)


class StreamWriter:
    """An open writer of JavaOracle.open_stream_writer; a context manager that closes it."""

    def __init__(self, oracle: JavaOracle, named: dict[str, Any], name: str) -> None:
        self._oracle, self._named, self._name = oracle, named, name

    def write(self, rows: Rows) -> None:
        """Puts rows into the writer; nothing is committed yet."""
        self._oracle.request("stream_write", writer=self._name, **self._oracle._rows(rows, self._named))

    def prepare(self) -> int:
        """Flushes what was written into files; returns the commit identifier that commit() will use for them."""
        return int(self._oracle.request("stream_prepare", writer=self._name)["commit_identifier"])

    def commit(self, watermark: int | None = None) -> dict[str, Any]:
        """Commits what is prepared (or prepares first); returns the branch's latest snapshot file."""
        return dict(self._oracle.request("stream_commit", writer=self._name, watermark=watermark)["snapshot"])

    def close(self) -> None:
        self._oracle.request("close_stream_writer", writer=self._name)

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _table(answer: Mapping[str, Any], row_kinds: bool) -> pa.Table:
    """The rows of a Java answer as an Arrow table."""
    types = {column["name"]: to_arrow(column["type"]) for column in answer["columns"]}
    values = list(zip(*answer["rows"], strict=True)) or [() for _ in types]
    arrays = [wire.decode(list(column), kind) for column, kind in zip(values, types.values(), strict=True)]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(list(types.items())))
    return table.append_column(ROW_KIND, pa.array(answer["kinds"], pa.string())) if row_kinds else table
