"""What a DAG of this package is for: in Airflow a tag tells it, whatever id its author has given it."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """The value is the id that a DAG of this kind has if its author gives none."""

    CORRECTION = "data_correction"
    UNDO = "data_correction_undo"
    CLEANUP = "data_correction_cleanup"
    ERASURE = "row_erasure"
    PIPELINE = "pipeline_correction"
    PIPELINE_UNDO = "pipeline_correction_undo"

    @property
    def tag(self) -> str:
        """What a DAG of this kind has as a tag, beside those of its author."""
        return f"airflow-paimon:{self.name.lower().replace('_', '-')}"


CORRECTING = (Kind.CORRECTION, Kind.PIPELINE)
"""The kinds whose runs make branches and tags."""
_made: dict[str, dict[str, Kind]] = {}
"""Of each file that has called a factory: the kind of each DAG. A task asks no database, but has executed its file."""


def note(file: str, dag_id: str, kind: Kind) -> None:
    """Note a DAG that a file makes."""
    _made.setdefault(file, {})[dag_id] = kind


def beside(dag_id: str, *kinds: Kind) -> list[str]:
    """Name the DAGs of some kinds that the same file makes as this one."""
    files = [made for made in _made.values() if dag_id in made]
    return sorted({name for made in files for name, kind in made.items() if kind in kinds})


def dag_for(kind: Kind, owner: str) -> str:
    """Name the DAG of a kind to trigger after a run, given as ``dag_id/run_id``."""
    found = beside(owner.partition("/")[0], kind)
    if not found:
        return f"{kind} (the DAG with the tag {kind.tag})"
    return found[0] if len(found) == 1 else f"the one for this table of {', '.join(found)}"
