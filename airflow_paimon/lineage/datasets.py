"""The names that tables have as datasets of OpenLineage: a branch's folder, as files are named everywhere."""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow_paimon.core.table.paths import MAIN, BranchPaths, parse_identifier

_SCHEMES = {"s3a": "s3", "gcs": "gs"}


def dataset_of(warehouse: str, table: str, branch: str = MAIN) -> tuple[str, str]:
    """Return namespace and name: ``s3://bucket`` (``file``) and the path."""
    identifier = parse_identifier(table)
    branch = identifier.branch if branch == MAIN else branch
    namespace, folder = _place(warehouse)
    path = f"{folder}/{identifier.folder}/{BranchPaths(branch).root}".rstrip("/")
    return namespace, path if namespace == "file" else path.lstrip("/")


def table_of(warehouse: str, namespace: str, name: str) -> str | None:
    """Return the table of the warehouse, ``db.table``, that a dataset is of, or a branch of; None for any other."""
    place, folder = _place(warehouse)
    start = f"{folder}/" if place == "file" else f"{folder}/".lstrip("/")
    if namespace != place or not name.startswith(start):
        return None
    database, _, rest = name.removeprefix(start).strip("/").partition("/")
    table, _, branch = rest.partition("/")
    is_ours = database.endswith(".db") and table and (not branch or branch.startswith("branch/branch-"))
    return f"{database.removesuffix('.db')}.{table}" if is_ours else None


def _place(warehouse: str) -> tuple[str, str]:
    at = urlsplit(warehouse)
    if at.scheme in ("", "file"):
        return "file", at.path.rstrip("/")
    return f"{_SCHEMES.get(at.scheme, at.scheme)}://{at.netloc}", at.path.rstrip("/")
