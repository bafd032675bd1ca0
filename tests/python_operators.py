"""Writes the operators that are one operation each from their requests, and the list of all: ``make functions``.

A new operation needs its operator's name here, in the module that it is imported from.
"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.core.requests.requests import PublishBranch, argument_name
from airflow_paimon.operators._arguments import APPROVAL, own_fields
from tests.environment import REPO_ROOT

FOLDER = REPO_ROOT / "airflow_paimon" / "operators"
MADE = "Made by ``make functions`` of the requests and of tests/python_operators.py: change those."

MODULES: dict[str, tuple[str, dict[str, str]]] = {
    "audit": ("Operators that keep what auditors ask for outside of the tables it is about", {
        "export_audit": "ExportAuditOperator",
    }),
    "branch": ("Operators for branches and tags: create, delete, rename, correct, compare, publish, roll back", {
        "create_branch": "CreateBranchOperator",
        "alter_branch": "AlterBranchOperator",
        "delete_branch": "DeleteBranchOperator",
        "rebase_branch": "RebaseBranchOperator",
        "rename_branch": "RenameBranchOperator",
        "create_tag": "CreateTagOperator",
        "replace_tag": "ReplaceTagOperator",
        "rename_tag": "RenameTagOperator",
        "delete_tag": "DeleteTagOperator",
        "merge_branch": "MergeBranchOperator",
        "fast_forward": "FastForwardOperator",
        "replace_main": "ReplaceMainOperator",
        "rollback_to": "RollbackOperator",
        "diff_branches": "DiffBranchesOperator",
        "plan_correction": "PlanCorrectionOperator",
        "correct_branch": "CorrectBranchOperator",
    }),
    "chain": ("Operators for chain tables: compact, set up, check, alter", {
        "compact_chain_table": "ChainCompactOperator",
        "alter_chain_table": "AlterChainTableOperator",
        "check_chain_table": "CheckChainTableOperator",
        "create_chain_table": "CreateChainTableOperator",
    }),
    "check": ("Operators that check the rows of a branch before anybody is asked", {
        "check_branch_data": "CheckBranchOperator",
    }),
    "erasure": ("Operators about rows that are to be gone for good", {
        "find_rows": "FindRowsOperator",
        "erase_rows": "EraseRowsOperator",
    }),
    "maintenance": ("Operators that look after a table: alter, check, repair, compact it, expire what is old", {
        "alter_table": "AlterTableOperator",
        "expire_branches": "BranchExpireOperator",
        "check_table": "CheckTableOperator",
        "remove_orphan_files": "RemoveOrphanFilesOperator",
        "repair_table": "RepairTableOperator",
        "storage_usage": "StorageUsageOperator",
        "table_health": "TableHealthOperator",
        "compact": "CompactOperator",
        "rescale": "RescaleOperator",
        "expire_partitions": "PartitionExpireOperator",
        "compact_manifest": "CompactManifestOperator",
        "expire_snapshots": "SnapshotExpireOperator",
        "expire_changelogs": "ChangelogExpireOperator",
        "expire_tags": "TagExpireOperator",
        "mark_partition_done": "MarkPartitionDoneOperator",
        "trigger_tag_automatic_creation": "TagAutomaticCreationOperator",
        "reset_consumer": "ResetConsumerOperator",
        "clear_consumers": "ClearConsumersOperator",
    }),
    "replay": ("Operators that replay upstream changes into branches of downstream tables", {
        "replay_branch": "ReplayBranchOperator",
    }),
    "table_set": ("Operators that make versions of table sets", {
        "create_table_set": "CreateTableSetOperator",
    }),
}  # fmt: skip
BY_HAND = ("correction", "flink", "pipeline")
"""Modules whose operators are more than one operation each."""

BASES = {
    "check_branch_data": ("_checks", "CheckingOperator"),
    "correct_branch": ("_corrections", "CorrectingOperator"),
    "create_table_set": ("_table_set", "TableSetOperator"),
    "fast_forward": ("_publish", "PublishingOperator"),
    "merge_branch": ("_publish", "MergingOperator"),
    "plan_correction": ("_corrections", "PlanningOperator"),
    "replace_main": ("_publish", "PublishingOperator"),
    "replay_branch": ("_corrections", "SqlOrFunctionOperator"),
}
"""Where an operation's operator does more than to build its request, the class that does it."""

TYPES = {
    "diff": "Mapping[str, Any] | str | None",
    "rules": "Sequence[Mapping[str, Any]] | str | None",
    "restricted_sql": "bool | str | None",
}
DEFAULTS = {"restricted_sql": "None", "sample": "SAMPLE"}


def files() -> dict[Path, str]:
    """Return all files that are made, with their text."""
    made = {FOLDER / f"{name}.py": _module(title, named) for name, (title, named) in MODULES.items()}
    return {**made, FOLDER / "__init__.py": _package()}


def _module(title: str, named: dict[str, str]) -> str:
    classes = [_class(operation, name) for operation, name in named.items()]
    text = "\n\n".join(classes)
    bases = {BASES.get(operation, ("_base", "PaimonOperator")) for operation in named}
    imports = {f"from airflow_paimon.operators.{module} import {name}" for module, name in bases}
    if "keeps_arguments" in text:
        imports.add("from airflow_paimon.operators._base import keeps_arguments")
    if "SAMPLE" in text:
        imports.add("from airflow_paimon.settings import SAMPLE")
    abstract = [name for name in ("Mapping", "Sequence") if f"{name}[" in text]
    standard = [f"from collections.abc import {', '.join(abstract)}"] * bool(abstract) + ["from typing import Any"]
    listed = "\n".join(packed([f'"{name}"' for name in sorted(named.values())]))
    return (
        f'"""{title}.\n\n{MADE}\n"""\n\n# fmt: off\nfrom __future__ import annotations\n\n'
        + "\n".join([*standard, "", *_merged(imports), "", f"__all__ = [\n{listed}\n]\n\n\n"])
        + text
    )


def _merged(imports: set[str]) -> list[str]:
    """Put the names of one module on one line."""
    by_module: dict[str, list[str]] = {}
    for line in imports:
        module, _, name = line.partition(" import ")
        by_module.setdefault(module, []).append(name)
    names = {module: sorted(found, key=lambda n: (n[0].islower(), n)) for module, found in by_module.items()}
    return [f"{module} import {', '.join(names[module])}" for module in sorted(names)]


def _class(operation: str, name: str) -> str:
    request = OPERATIONS[operation].request
    arguments = [(argument_name(f), _typed(operation, f)) for f in own_fields(request)]
    if issubclass(request, PublishBranch):
        arguments.insert(1, (APPROVAL, "str | None = None"))
    base = BASES.get(operation, ("", "PaimonOperator"))[1]
    text = f'class {name}({base}):\n    """{OPERATIONS[operation].summary}"""\n\n    operation = "{operation}"\n'
    if not arguments:
        return text
    signature = packed(["self", "*", *(f"{name}: {typed}" for name, typed in arguments), "**kwargs: Any"], 8)
    return "\n".join(
        [
            f"{text}\n    @keeps_arguments\n    def __init__(",
            *signature,
            "    ) -> None:",
            "        super().__init__(**kwargs)\n",
        ]
    )


def packed(parts: list[str], indent: int = 4) -> list[str]:
    """Put as many parameters on a line as it takes."""
    lines = [" " * (indent - 1)]
    for part in parts:
        if len(lines[-1]) + len(part) + 2 > 120:
            lines.append(" " * (indent - 1))
        lines[-1] += f" {part},"
    return lines


def _typed(operation: str, spec: dataclasses.Field[Any]) -> str:
    """Return type and default: those of the field, or the text of a template."""
    kind = str(spec.type).replace("tuple[str, ...]", "Sequence[str]")
    kinds = kind.removesuffix(" | None").split(" | ")
    typed = " | ".join(dict.fromkeys([*kinds, "str"])) + " | None" * kind.endswith(" | None")
    if spec.name == "branch" and spec.default == "" and operation != "create_branch":
        return "str | None = None"  # the table's name may carry it
    typed = TYPES.get(spec.name, typed)
    if spec.default == "":
        return typed
    quoted = f'"{spec.default}"' if isinstance(spec.default, str) else repr(spec.default)
    return f"{typed} = {DEFAULTS.get(spec.name, quoted)}"


def _package() -> str:
    modules = {name: sorted(named.values()) for name, (_, named) in MODULES.items()}
    for name in BY_HAND:
        modules[name] = [one for one in _all_of(FOLDER / f"{name}.py") if one.endswith("Operator")]
    typed = "".join(f"    from airflow_paimon.operators.{name} import *  # noqa: F403\n" for name in sorted(modules))
    listed = "".join(
        f'    "{name}": (\n' + "\n".join(packed([f'"{one}"' for one in modules[name]], 8)) + "\n    ),\n"
        for name in sorted(modules)
    )
    return _PACKAGE.format(made=MADE, typed=typed, listed=listed)


def _all_of(path: Path) -> list[str]:
    (value,) = (
        node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    )
    found: list[str] = ast.literal_eval(value)
    return found


_PACKAGE = '''\
"""Airflow operators, one per operation of the core.

All of them can be imported from here; a module is loaded when one of its names is asked for.
{made}
"""

# fmt: off
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
{typed}
MODULES = {{
{listed}}}
"""The modules of this package, each with its operators."""
_PLACES = {{name: module for module, names in MODULES.items() for name in names}}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"{{__name__}}.{{_PLACES[name]}}"), name)
    raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")


def __dir__() -> list[str]:
    return __all__
'''
