"""Keep what users of this version have, for the upgrade test of later ones: ``python -m tests.upgrade.keep [NAME]``.

Writes ``tests/upgrade/kept/<NAME, else the version>/``: a warehouse with a publish, an open branch, tags and operation
records, made by jobs as users run them; what they may rely on (`surface`); and the bundled DAGs, which people copy.
Only stable interfaces are used, so that the file also runs with an earlier package on PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa

import airflow_paimon
from airflow_paimon import create_table, open_table
from airflow_paimon.bundled import job_names
from airflow_paimon.core.requests.arguments import parse_arguments
from airflow_paimon.data import write_arrow
from airflow_paimon.get_provider_info import get_provider_info

KEPT = Path(__file__).parent / "kept"
SAME_TIME = (2020, 1, 1, 0, 0, 0)
CONNECTION = {"conn_type": "paimon", "extra": {"warehouse": "/lake", "storage_options": "{}", "four_eyes": "true"}}
PUBLISH = ("merge_branch", "--branch", "done", "--operation-id", "kept-publish", "--requested-by", "ann")


def main(name: str) -> None:
    """Write the folder of one version."""
    folder = KEPT / name
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        results = fill(Path(scratch))
        _zip(Path(scratch), folder / "warehouse.zip")
    known = {**surface(), "connection": CONNECTION, "results": results}
    (folder / "surface.json").write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def fill(warehouse: Path) -> dict[str, Any]:
    """Make the tables `sales.orders` (keys) and `sales.events` (row ids); return the result of the publish."""
    columns = [("id", "BIGINT NOT NULL"), ("dt", "STRING NOT NULL"), ("amount", "DOUBLE")]
    orders = create_table(
        str(warehouse),
        "sales.orders",
        columns,
        partition_keys=["dt"],
        primary_keys=["dt", "id"],
        options={"bucket": "2"},
    )
    write_arrow(orders, _rows([1, 2, 3], 100.0))
    job(warehouse, "sales.orders", "create_tag", "--tag", "before_fix")
    for branch in ("done", "fix"):
        job(warehouse, "sales.orders", "create_branch", "--branch", branch, "--tag", "before_fix", "--owner", "ann")
    write_arrow(open_table(str(warehouse), "sales.orders", branch="done"), _rows([1], 1.0))
    published = job(warehouse, "sales.orders", *PUBLISH)
    write_arrow(open_table(str(warehouse), "sales.orders"), _rows([4], 400.0, dt="2026-11-19"))
    fix = open_table(str(warehouse), "sales.orders", branch="fix")
    write_arrow(fix, _rows([5], 5.0, dt="2026-11-20"), operation_id="kept-write")
    options = {"row-tracking.enabled": "true"}
    events = create_table(str(warehouse), "sales.events", columns, partition_keys=["dt"], options=options)
    write_arrow(events, _rows([1, 2], 1.0))
    write_arrow(events, _rows([3], 3.0))
    job(warehouse, "sales.events", "create_branch", "--branch", "fix", "--snapshot", "2")
    return {"publish": published}


def job(warehouse: Path, table: str, name: str, *flags: str) -> Any:
    """Run a job as users do; return its result."""
    command = [sys.executable, "-m", "airflow_paimon", "job", name, "--warehouse", str(warehouse), "--table", table]
    done = subprocess.run([*command, *flags], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def surface() -> dict[str, Any]:
    """Return the names that users may rely on: flags by job, arguments by class, fields of the connection."""
    info = get_provider_info()
    modules = [m for kind in ("operators", "sensors", "triggers") for e in info[kind] for m in e["python-modules"]]
    connection_type, *_ = info["connection-types"]
    return {
        "jobs": {name: _flags(name) for name in job_names()},
        "classes": {f"{m}.{c}": _arguments(m, c) for m in modules for c in importlib.import_module(m).__all__},
        "connection_fields": sorted(connection_type["conn-fields"]),
    }


def _rows(ids: list[int], amount: float, dt: str = "2026-11-18") -> pa.Table:
    return pa.table({"id": ids, "dt": [dt] * len(ids), "amount": [amount] * len(ids)})


def _flags(job_name: str) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as usage, contextlib.suppress(SystemExit):
        parse_arguments(job_name, ["--help"])
    return sorted(set(re.findall(r"^ +(?:-h, )?(--[a-z-]+)", usage.getvalue(), re.MULTILINE)))


def _arguments(module: str, name: str) -> list[str]:
    """The arguments of a class and of what it inherits from within this package."""
    found = getattr(importlib.import_module(module), name)
    classes = [c for c in getattr(found, "__mro__", ()) if c.__module__.startswith("airflow_paimon.")]
    parameters = [
        p for c in classes if "__init__" in vars(c) for p in inspect.signature(c.__init__).parameters.values()
    ]
    return sorted({p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - {"self"})


def _zip(folder: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                archive.writestr(zipfile.ZipInfo(name, SAME_TIME), path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else airflow_paimon.__version__)
