"""How the DAGs of this package are made, and what a DAG's author may change about them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from airflow.sdk import DAG, Param

from airflow_paimon.runbooks.pages import with_links

_HERE = str(Path(__file__).parent)


class Changes(TypedDict, total=False):
    """What every factory takes besides ``dag_id``."""

    schedule: Any
    tags: Sequence[str]
    description: str
    default_args: Mapping[str, Any]
    defaults: Mapping[str, Any]


def make_dag(
    dag_id: str,
    add_tasks: Callable[[], None],
    changes: Changes,
    *,
    params: Mapping[str, Param],
    default_args: Mapping[str, Any],
    description: str,
    doc: str | None,
) -> DAG:
    """Make a DAG whose tasks ``add_tasks`` adds."""
    with DAG(
        dag_id,
        schedule=changes.get("schedule"),
        catchup=False,
        params=_changed(params, changes.get("defaults", {})),
        tags=list(changes.get("tags", ("paimon",))),
        description=changes.get("description", description),
        doc_md=with_links(doc),
        default_args={**default_args, **changes.get("default_args", {})},
    ) as dag:
        dag.fileloc = _calling_file()
        add_tasks()
    return dag


def _changed(params: Mapping[str, Param], defaults: Mapping[str, Any]) -> dict[str, Param]:
    given = {name: defaults.get(name, param.value) for name, param in params.items()}
    return {name: Param(given[name], param.description, **param.schema) for name, param in params.items()}


def _calling_file() -> str:
    """Return the file that calls the factory: Airflow looks for a DAG's templates beside it."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame.f_code.co_filename
