"""The oracle engines as Python objects: the Java engine is in java_driver.py; prepare.py prepares them all.

A warehouse is a folder; a table is `db.name`; `branch` None or "main" is main. Rows go in as an Arrow table or as
Python mappings, and come out as an Arrow table. A column `_row_kind` (`+I -U +U -D`) in what is written says the kind
of each row. What an engine refuses is an OracleError.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.oracles import layout
from tests.oracles.java_driver import ROW_KIND, Change, JavaOracle, Rows, StreamWriter, json_changes, json_columns
from tests.oracles.paimon_types import JsonType
from tests.oracles.processes import OracleProcess

__all__ = [
    "ROW_KIND",
    "Change",
    "JavaOracle",
    "PypaimonOracle",
    "Rows",
    "RustOracle",
    "SparkConnectorOracle",
    "StreamWriter",
]


class _ArrowOracle(OracleProcess):
    """An oracle that exchanges tables as Arrow IPC files in its scratch folder."""

    def __init__(self, name: str, command: Sequence[str | Path], scratch: Path, env: Mapping[str, str] | None = None):
        scratch.mkdir(parents=True, exist_ok=True)
        self._scratch = scratch
        super().__init__(name, command, scratch / "oracle.log", env)

    def _put(self, table: pa.Table) -> str:
        path = str(self._scratch / f"{uuid.uuid4()}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return path

    def _take(self, answer: Mapping[str, Any]) -> pa.Table:
        """The table of an answer; no columns when the engine gave no batch at all."""
        if "path" not in answer:
            return pa.table({})
        path = Path(answer["path"])
        with pa.OSFile(str(path), "rb") as source:
            table = pa.ipc.open_file(source).read_all()
        path.unlink()
        return table

    def write(
        self,
        warehouse: Path | str,
        table: str,
        rows: pa.Table,
        *,
        branch: str | None = None,
        mode: str = "append",
        partition: Mapping[str, Any] | None = None,
    ) -> None:
        """One commit; the Arrow types must be those the engine expects. `mode` as JavaOracle.write."""
        path = self._put(rows)
        self.request(
            "write",
            warehouse=str(warehouse),
            table=table,
            branch=branch,
            mode=mode,
            partition=dict(partition or {}),
            path=path,
        )
        Path(path).unlink()

    def read(
        self,
        warehouse: Path | str,
        table: str,
        *,
        branch: str | None = None,
        snapshot: int | None = None,
        tag: str | None = None,
        columns: Sequence[str] | None = None,
        **more: Any,
    ) -> pa.Table:
        answer = self.request(
            "read",
            warehouse=str(warehouse),
            table=table,
            branch=branch,
            snapshot=snapshot,
            tag=tag,
            columns=None if columns is None else list(columns),
            scratch=str(self._scratch),
            **more,
        )
        return self._take(answer)

    def do(self, op: str, warehouse: Path | str, table: str, branch: str | None = None, **more: Any) -> dict[str, Any]:
        """Any other operation that the oracle's server knows."""
        return self.request(op, warehouse=str(warehouse), table=table, branch=branch, **more)


class PypaimonOracle(_ArrowOracle):
    """O1. Also do(): create_branch(name, tag=), delete_branch, create_tag(name, snapshot=, time_retained=), delete_tag,
    list.

    Its fast_forward is wrong, it reads partial rows of tables with scan.fallback-branch, and it can't read manifests of
    0.9.
    """

    def __init__(self, scratch: Path) -> None:
        server = Path(__file__).with_name("pypaimon_server.py")
        super().__init__("pypaimon", [layout.venv_python("o1"), server], scratch, {"TZ": "UTC"})

    def create_table(
        self,
        warehouse: Path | str,
        table: str,
        columns: Mapping[str, JsonType],
        *,
        partition_keys: Sequence[str] = (),
        primary_keys: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.request(
            "create_table",
            warehouse=str(warehouse),
            table=table,
            columns=json_columns(columns),
            partition_keys=list(partition_keys),
            primary_keys=list(primary_keys),
            options=dict(options or {}),
        )

    def alter_table(
        self, warehouse: Path | str, table: str, changes: Sequence[Change], branch: str | None = None
    ) -> None:
        self.request("alter_table", warehouse=str(warehouse), table=table, branch=branch, changes=json_changes(changes))

    def update_rows(self, warehouse: Path | str, table: str, rows: pa.Table) -> None:
        """Assign the columns beside `_ROW_ID` in the rows with these ids: a table with data evolution."""
        self.request("update", warehouse=str(warehouse), table=table, path=self._put(rows))

    def delete_rows(self, warehouse: Path | str, table: str, row_ids: Sequence[int]) -> None:
        """Delete rows by deletion vectors: a table with data evolution."""
        self.request("update", warehouse=str(warehouse), table=table, row_ids=list(row_ids))


class RustOracle(_ArrowOracle):
    """O2. No branch operations, no chain tables; never let it write beside another writer."""

    def __init__(self, scratch: Path) -> None:
        server = Path(__file__).with_name("rust_server.py")
        super().__init__("pypaimon-rust", [layout.venv_python("o2"), server], scratch, {"TZ": "UTC"})

    def sql(self, warehouse: Path | str, statement: str) -> pa.Table:
        """One DataFusion statement; the warehouse is the current catalog."""
        return self._take(
            self.request("sql", warehouse=str(warehouse), statement=statement, scratch=str(self._scratch))
        )


class SparkConnectorOracle(_ArrowOracle):
    """O4: Paimon's Spark connector 0.9.0 on Spark 3.5.9, driven by SQL. Its tables are of Paimon 0.9: no chain
    tables, no row tracking. It shifts dates before 1582-10-15 when it writes them.
    """

    def __init__(self, scratch: Path) -> None:
        server = Path(__file__).with_name("connector_server.py")
        java = layout.java_executable()
        env = {"TZ": "UTC", "PYSPARK_PYTHON": str(layout.venv_python("o4")), "SPARK_LOCAL_IP": "127.0.0.1"}
        if java is not None:
            env["JAVA_HOME"] = str(java.resolve().parents[1])
        command = [layout.venv_python("o4"), server, layout.CONNECTOR_JAR, scratch]
        super().__init__("Spark connector", command, scratch, env)

    def sql(
        self,
        warehouse: Path | str,
        *statements: str,
        database: str | None = None,
        views: Mapping[str, pa.Table] | None = None,
    ) -> pa.Table:
        """Runs the statements with the warehouse as the current catalog; the last one's rows. `views`: Arrow tables
        that the SQL may name."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            paths = {name: f"{folder}/{name}.parquet" for name in views or {}}
            for name, path in paths.items():
                pq.write_table((views or {})[name], path)
            answer = self.request(
                "sql",
                warehouse=str(warehouse),
                statements=list(statements),
                database=database,
                views=paths,
            )
        return self._take(answer)

    def operation(self, archive: Path, name: str, **values: Any) -> dict[str, Any]:
        """Runs an operation of ours on rows in the connector's session; gives the result JSON, of a failure as well."""
        answer = self.request("operation", archive=str(archive), operation=name, values=values)
        return dict(answer["result"])
