"""Writes what is made of the table of operations: ``make functions``.

These are the Python functions (``airflow_paimon/notebook/functions.py``), their names in the package's ``__all__``, the
operators, and the scripts of the jobs. A new operation needs an example here, whose output
``tests/notebook/test_functions.py`` compares.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import airflow_paimon
from airflow_paimon.core.requests.operations import OPERATIONS, OperationSpec
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.execution import in_python
from tests import python_operators
from tests.environment import REPO_ROOT
from tests.python_operators import packed

PATH = REPO_ROOT / "airflow_paimon" / "notebook" / "functions.py"
ROOT = REPO_ROOT / "airflow_paimon" / "__init__.py"
COMMON = tuple(f.name for f in dataclasses.fields(Request))

EXAMPLES = {
    "create_branch": ('create_branch(orders, "try", tag="before_fix", owner="ana").details["base_snapshot"]', "2"),
    "alter_branch": ('alter_branch(orders, "fix", retention="14 d", protect=True).changed', "True"),
    "delete_branch": ('delete_branch(orders, "fix", if_missing="skip").changed', "True"),
    "rename_branch": ('rename_branch(orders, "fix", "fix_of_may").branch', "'fix_of_may'"),
    "rebase_branch": ('rebase_branch(orders, "fix", "fix_of_today").branch', "'fix_of_today'"),
    "create_tag": ('create_tag(orders, "end_of_may", time_retained="30 d").details["snapshot"]', "3"),
    "replace_tag": ('replace_tag(orders, "before_fix", snapshot=3).details["snapshot"]', "3"),
    "delete_tag": ('delete_tag(orders, "before_fix").details["snapshot"]', "2"),
    "rename_tag": ('rename_tag(orders, "before_fix", "before_load").changed', "True"),
    "create_table_set": ('create_table_set(orders, "nightly", member=["sales.customers"]).details["number"]', "1"),
    "reset_consumer": ('reset_consumer(orders, "dashboard", next_snapshot=3).changed', "True"),
    "clear_consumers": ('clear_consumers(orders, including="dash.*").changed', "True"),
    "alter_table": ('alter_table(orders, change=["add column note STRING"]).changed', "True"),
    "merge_branch": ('merge_branch(orders, "fix", approved_by="ben").snapshot_after', "4"),
    "fast_forward": ('fast_forward(orders, "fix", discard_main=True).snapshot_after', "4"),
    "replace_main": ('replace_main(orders, "fix", keep_old_as="before", discard_main=True).snapshot_after', "4"),
    "rollback_to": ('rollback_to(orders, tag="before_fix", reason="wrong load").snapshot_after', "4"),
    "diff_branches": ('diff_branches(orders, "fix").details["total"]["changed"]', "1"),
    "plan_correction": ('plan_correction(orders, branch="fix", sql="fix.sql").details["statement"]', "'UPDATE'"),
    "compact": ('compact(orders, processes=2).details["files_before"]', "6"),
    "compact_manifest": ('compact_manifest(orders).details["after"]["manifests"]', "1"),
    "rescale": ('rescale(orders, bucket_num=4).details["bucket_num_before"]', "[2]"),
    "expire_branches": ('expire_branches(orders, older_than="30 d").changed', "False"),
    "remove_orphan_files": ('remove_orphan_files(orders, older_than="2 d").changed', "False"),
    "check_table": ('check_table(orders).details["ok"]', "True"),
    "storage_usage": ('storage_usage(orders, limit=5).details["references"][0]["kind"]', "'branch'"),
    "find_rows": ('find_rows(orders, "id = 1").details["rows"]', "4"),
    "erase_rows": ('erase_rows(orders, "id = 1", reason="request 17", dry_run=True).changed', "True"),
    "export_audit": ('export_audit(orders, uri="audit.csv").details["records"]', "1"),
    "table_health": ('table_health("sales.*", warehouse="/data/warehouse").details["tables"][0]["score"]', "100"),
    "repair_table": ('repair_table(orders).details["repaired"]', "[]"),
    "trigger_tag_automatic_creation": ('trigger_tag_automatic_creation(customers).details["mode"]', "'process-time'"),
    "mark_partition_done": ('mark_partition_done(orders, partitions=["dt=2026-05-01"]).changed', "True"),
    "create_chain_table": (
        "create_chain_table(\n        ...     nights, "
        'timestamp_pattern="$dt", timestamp_formatter="yyyyMMdd", sequence_field=["v"]\n        ... ).changed',
        "True",
    ),
    "check_chain_table": ('check_chain_table(days).details["ok"]', "True"),
    "alter_chain_table": ('alter_chain_table(days, change=["add column note STRING"]).changed', "True"),
    "compact_chain_table": ('compact_chain_table(days, pending=True, max_chain_length=1).changed', "True"),
    "expire_partitions": (
        'expire_partitions(orders, expiration_time="7 d", now="2026-05-09T00:00:00Z").details["expired"]',
        "{'main': ['dt=2026-05-01']}",
    ),
    "expire_snapshots": ('expire_snapshots(orders, retain_max=1).changed', "True"),
    "expire_changelogs": ('expire_changelogs(orders, retain_max=1).changed', "False"),
    "expire_tags": ('expire_tags(orders, older_than="30 d").changed', "False"),
}  # fmt: skip

_HEAD = '''\
"""The operations as functions, for programs and notebooks: no Airflow, no Spark, and the same result as the job's.

``table`` is ``db.table`` with ``warehouse`` (and ``storage_options``), or what ``airflow_paimon.open_table`` returned.
``operation_id``, ``now`` and ``dry_run`` are those of the jobs; so are all other arguments, which ``help`` lists.
Errors are those of ``airflow_paimon.core.errors``.

Made by ``make functions`` of the table of operations and of tests/python_functions.py: change those.
"""

# fmt: off
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Unpack

from airflow_paimon.notebook.operation import CommonArguments, Result, describe, perform

if TYPE_CHECKING:
    from airflow_paimon.core.table.table import Table

'''


def files() -> dict[Path, str]:
    """Return all files that are made, with their text."""
    jobs = {REPO_ROOT / "spark_jobs" / f"{name}.py": _job(name) for name in OPERATIONS}
    return {PATH: source(), ROOT: _root(), **python_operators.files(), **jobs}


def _root() -> str:
    """Return the package's own module with the names of all functions."""
    names = sorted({"__version__", *airflow_paimon._PLACES, *functions()}, key=lambda n: (n.islower(), n))
    listed = "\n".join(packed([f'"{name}"' for name in names])) + "\n"
    return re.sub(r"(?<=\n__all__ = \[  # noqa: F405\n)[^\]]*", listed, ROOT.read_text())


def _job(name: str) -> str:
    return (
        f'"""The job ``{name}``; ``--help`` says what it does. Made by ``make functions``."""\n\n'
        f"from airflow_paimon.spark.launch import main\n\n"
        f'if __name__ == "__main__":\n    main("{name}")\n'
    )


def functions() -> dict[str, OperationSpec]:
    """The operations that have a function: all but those that run SQL or functions of the user in Spark."""
    return {
        name: operation for name, operation in OPERATIONS.items() if not operation.needs_spark or operation.in_python
    }


def source() -> str:
    """Return the module."""
    names = sorted(functions())
    listed = "\n".join(packed([f'"{name}"' for name in names])) + "\n"
    made = "\n\n".join(_function(name, operation) for name, operation in functions().items())
    tail = "\n\nfor _name in __all__:\n    describe(_name, globals()[_name])\n"
    return f"{_HEAD}__all__ = [\n{listed}]\n\n\n{made}{tail}"


def _function(name: str, operation: OperationSpec) -> str:
    own = [f for f in dataclasses.fields(operation.request) if f.name not in COMMON]
    required = [_parameter(f) for f in own if f.default == ""]
    optional = [_parameter(f) for f in own if f.default != ""]
    if operation.in_python and "processes" in inspect.signature(in_python(operation.request.operation)).parameters:
        optional.append("processes: int = 1")
    example, output = EXAMPLES[name]
    by_name = ["*", *optional] if optional else []
    signature = "\n".join(packed(["table: str | Table", *required, *by_name, "**common: Unpack[CommonArguments]"]))
    return (
        f"def {name}(\n{signature}\n) -> Result:\n"
        f'    """{operation.summary}\n\n    Example:\n        >>> {example}\n        {output}\n    """\n'
        f'    return perform("{name}", locals())\n'
    )


def _parameter(spec: dataclasses.Field[Any]) -> str:
    kind = str(spec.type)
    choices = spec.metadata.get("choices")
    if choices:
        kind = f"Literal[{', '.join(map(_quoted, choices))}]" + " | None" * (spec.default is None)
    elif spec.metadata.get("repeat"):
        kind = "Iterable[str]"
    default = "" if spec.default == "" else f" = {_quoted(spec.default)}"
    return f"{spec.name}: {kind}{default}"


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
    subprocess.run([sys.executable, "-m", "ruff", "check", *map(str, files())], check=True)
