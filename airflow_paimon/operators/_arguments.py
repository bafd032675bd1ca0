"""What the arguments of an operator mean: the texts of its job's flags, as far as an operator takes the same."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from airflow_paimon.core.requests.requests import PublishBranch, Request, argument_name

_SQL_FILE = "the name of a file ending in ``.sql`` in the DAG's folder"
_ALSO = {
    "four_eyes": "the Paimon connection's ``four_eyes`` and the table's option ask for it, too",
    "mask": "and to the Paimon connection's ``masked_columns``",
    "allow_module": "in addition to ``functions`` in the Paimon connection's ``forms``",
    "requested_by": "by default the user who triggered the run",
    "function": 'ship its module with ``spark_options={"py_files": ...}``',
}
"""What an argument of an operator means besides what its flag says."""
_INSTEAD = {
    "diff": "The result of the ``DiffBranchesOperator`` that was reviewed, of which the audit keeps totals and "
    "samples; left out, that of the task upstream that compared the branch",
    "rules": "The rules, in addition to the table's: a list of dicts such as ``{'not_null': ['amount']}``, or one as "
    "YAML or JSON, or the name of a file ending in ``.yaml`` or ``.json`` in the DAG's folder",
    "restricted_sql": "Refuse SQL, in rules as well, that reaches beyond the tables, as paths of files and calls of "
    "Java do; left out, this is on for SQL that is a template or comes from a form, unless the Paimon connection's "
    "``forms`` allow more",
    "member": "Its tables, each as ``db.table``, whose newest snapshot it gets, or ``db.table@version``: a tag or a "
    "snapshot id of main",
}
"""What arguments mean that are given to an operator in another way than to a job."""
APPROVAL = "approval_task_id"
_APPROVAL = (
    "A ``PublishApprovalOperator`` upstream with ``diff_task_id``: who approved, and the snapshots that were compared, "
    "come from its answer; refused unless it has approved this branch"
)
_OF_ALL = frozenset(f.name for f in dataclasses.fields(Request))


def own_fields(request: type[Request]) -> list[dataclasses.Field[Any]]:
    """Return the fields that are arguments of this operation: the required ones, its own ones, then inherited ones."""
    own = inspect.get_annotations(request)
    found = (f for f in dataclasses.fields(request) if f.name not in _OF_ALL)
    return sorted(found, key=lambda f: (f.default != "", f.name not in own))


def text_of_operator(request: type[Request]) -> str:
    """Return the text of an operation with its operator's arguments, as ``help()`` and the reference show them."""
    names = {f.name.rstrip("_").replace("_", "-"): argument_name(f) for f in dataclasses.fields(request)}
    lines = [f":param {argument_name(one)}: {_meaning(one, names)} (templated)" for one in own_fields(request)]
    if issubclass(request, PublishBranch):
        lines.insert(1, f":param {APPROVAL}: {_APPROVAL}")
    return "\n\n".join([inspect.cleandoc(request.__doc__ or ""), "\n".join(lines)]).rstrip() + "\n"


def _meaning(spec: dataclasses.Field[Any], names: dict[str, str]) -> str:
    """Return what an argument means: the text of its flag, with arguments for flags (``names``, by flag)."""
    if spec.name in _INSTEAD:
        return _INSTEAD[spec.name]
    text = str(spec.metadata["help"]).replace(" (repeat)", "").replace("the path of a file", _SQL_FILE)
    text = re.sub(r"--([a-z-]+)", lambda m: f"``{names.get(m[1], m[1].replace('-', '_'))}``", text)
    text = re.sub(r"(?<!\w)'([^']+)'(?!\w)", r"``\1``", text)
    choices = [f"``{one}``" for one in spec.metadata["choices"] or ()]
    offered = f"{', '.join(choices[:-1])} or {choices[-1]}" if choices else None
    return "; ".join(part for part in (text, offered, _ALSO.get(spec.name)) if part)
