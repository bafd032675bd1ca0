"""Records of streams and replays that nothing can go on with: those of deleted branches, and of old batches."""

from __future__ import annotations

from airflow_paimon.core.commit.stream_batch import branch_of_stream
from airflow_paimon.core.streaming.replays import REPLAYS_DIR, find_replay, stream_key
from airflow_paimon.core.table.lineage import read_lineage, recorded_branches
from airflow_paimon.core.table.paths import MAIN, STREAMS_DIR
from airflow_paimon.core.table.table import Table


def stream_leftovers(table: Table, before_ms: int) -> list[str]:
    """Return files that were all last written before a time (epoch milliseconds), in the order in which to delete
    them: the checkpoints of a replay go before its record.

    Without effect while the record of a branch is unreadable, as then it isn't known which replays belong to it.

    Raises:
        FormatError: the record of a stream or replay is unreadable.
    """
    recorded = recorded_branches(table)
    branches = {MAIN, *table.branch_names(), *recorded}
    found = _streams(table, branches, before_ms)
    if all(read_lineage(table, name) is not None for name in recorded):
        found += _replays(table, branches, before_ms)
    return found


def _streams(table: Table, branches: set[str], before_ms: int) -> list[str]:
    old = [i.name for i in table.store.list(STREAMS_DIR) if i.modified_ms is not None and i.modified_ms < before_ms]
    queries = [n.removesuffix(".json") for n in old if n.endswith(".json") and not n.startswith(".")]
    return [f"{STREAMS_DIR}/{q}.json" for q in queries if branch_of_stream(table, q) not in branches]


def _replays(table: Table, branches: set[str], before_ms: int) -> list[str]:
    living = {stream_key(table.branch(name)) for name in branches}
    groups: dict[str, list[str]] = {}
    young: set[str] = set()
    for info in table.store.files(REPLAYS_DIR):
        key = info.name.removeprefix(f"{REPLAYS_DIR}/").partition("/")[0].removesuffix(".json")
        groups.setdefault(key, []).append(info.name)
        if info.modified_ms is None or info.modified_ms >= before_ms:
            young.add(key)
    found: list[str] = []
    for key in sorted(groups.keys() - living - young):
        record = f"{REPLAYS_DIR}/{key}.json"
        if record in groups[key] and find_replay(table, key) is not None:
            found += [*(path for path in groups[key] if path != record), record]
    return found
