"""Who is downstream of a table: of a backend's graph of lineage, and the form that corrects all of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

MOST_NODES = 100
"""Datasets and jobs of a graph that are named."""


def downstream_of(
    graph: Any, namespace: str, name: str, table_of: Callable[[str, str], str | None]
) -> dict[str, list[Any]]:
    """Walk a graph as Marquez gives it, from a dataset along its edges, the nearest first.

    :param graph: ``{"graph": [{"id", "type", "data", "inEdges": [{"origin", "destination"}], "outEdges"}]}``
    :param table_of: the table of a dataset, by namespace and name; None for one of another warehouse
    :return: ``datasets``: ``name``, ``table``, ``by`` (the job that makes it), ``steps``; ``jobs`` that make none
    :raises ValueError: it is no such graph
    """
    nodes, after = _read(graph)
    start = f"dataset:{namespace}:{name}"
    steps, by, waiting = {start: 0}, dict[str, str](), [start]
    while waiting:
        node = waiting.pop(0)
        for following in after.get(node, ()):
            if following not in steps:
                steps[following] = steps[node] + 1
                by[following] = node
                waiting.append(following)
    named = [node for node in steps if node != start][:MOST_NODES]
    datasets = [
        {"name": _name(nodes, node), "table": _table(nodes, node, table_of), "by": _name(nodes, by[node]),
         "steps": -(-steps[node] // 2)}
        for node in named if node.startswith("dataset:")
    ]  # fmt: skip
    jobs = [_name(nodes, node) for node in named if node.startswith("job:") and not after.get(node)]
    return {"datasets": datasets, "jobs": jobs}


def _read(graph: Any) -> tuple[dict[str, Mapping[str, Any]], dict[str, list[str]]]:
    found = graph.get("graph") if isinstance(graph, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(n, Mapping) and isinstance(n.get("id"), str) for n in found):
        raise ValueError("the answer is not a graph of lineage")
    after: dict[str, list[str]] = {}
    for node in found:
        for edge in (*(node.get("inEdges") or ()), *(node.get("outEdges") or ())):
            origin, destination = edge.get("origin"), edge.get("destination")
            if isinstance(origin, str) and isinstance(destination, str):
                known = after.setdefault(origin, [])
                known += [] if destination in known else [destination]
    return {node["id"]: node for node in found}, after


def _names(nodes: Mapping[str, Mapping[str, Any]], node: str) -> list[tuple[str, str]]:
    """Return namespace and name; of a node that only edges name, all that its id can mean, as both may hold colons."""
    data = nodes.get(node, {}).get("data")
    namespace, name = (data.get("namespace"), data.get("name")) if isinstance(data, Mapping) else (None, None)
    if isinstance(namespace, str) and isinstance(name, str):
        return [(namespace, name)]
    parts = node.split(":")[1:]
    return [(":".join(parts[:at]), ":".join(parts[at:])) for at in range(len(parts) - 1, 0, -1)]


def _name(nodes: Mapping[str, Mapping[str, Any]], node: str) -> str:
    found = _names(nodes, node)
    return "/".join(found[0]) if len(found) == 1 else node.partition(":")[2]


def _table(nodes: Mapping[str, Mapping[str, Any]], node: str, table_of: Callable[[str, str], str | None]) -> str | None:
    return next(filter(None, (table_of(*names) for names in _names(nodes, node))), None)


def tables_downstream(details: Mapping[str, Any], table: str, more: Sequence[str] = ()) -> list[str]:
    """Name the tables that a plan's details say are made from a table, the nearest first; ``more``: by other ways."""
    lineage = details.get("lineage") or {}
    found = [one["table"] for one in details.get("replays", ())]
    found += [one["table"] for one in lineage.get("datasets", ()) if one["table"]]
    return [name for name in dict.fromkeys((*found, *more)) if name != table]


def pipeline_form(
    table: str, correction: Mapping[str, Any], downstream: Sequence[str], conn_id: str | None
) -> dict[str, Any]:
    """Fill the form of ``pipeline_correction``: the correction, and for each table downstream a replay to be completed.

    :param correction: ``sql`` or ``function``, and ``mode``, ``partitions``, ``views``, as in the form of
        ``data_correction``
    :param conn_id: of the Paimon connection; None = the default
    """
    first: dict[str, Any] = {"table": table, "correct": correction.get("function") or correction.get("sql") or "..."}
    if correction.get("mode") == "upsert":
        first["mode"] = "upsert"
    first |= {name: list(correction[name]) for name in ("partitions", "views") if correction.get(name)}
    source = table.partition(".")[2]
    replays = [
        {"table": name, "replay": f"INSERT OVERWRITE branch PARTITION (...) SELECT ... FROM {source}",
         "sources": [f"{source}={table}"]}
        for name in downstream
    ]  # fmt: skip
    return {"tables": [first, *replays], **({"paimon_conn_id": conn_id} if conn_id else {})}
