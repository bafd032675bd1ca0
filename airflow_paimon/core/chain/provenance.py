"""What each partition of a chain table's snapshot branch was built from: files under ``_airflow_paimon/chain/``.

A record is written before the commit that it describes and counts only while the partition's live files are the ones
that it names: a commit that never landed, or another engine's overwrite, leaves a record that speaks of nothing.
Files are named by a digest of their names, which never recur.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_paimon.core.chain.layout import Branch, ChainLayout, Values
from airflow_paimon.core.chain.state import ChainState, splits_by_partition
from airflow_paimon.core.commit.put import put_new
from airflow_paimon.core.errors import AlreadyExistsError, NotFoundError, PaimonError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.table.partitions import parse_partition_spec, readable_value
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.scan import BucketSplit, ScanPlan, partition_types
from airflow_paimon.core.table.table import Table

FOLDER = f"{PRIVATE_DIR}/chain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One input: a partition and the ``files_digest`` of what it held.

    ``vectors``: what identifies its deletion vectors (see ``vectors_digests``), "" without any; None: not recorded.
    """

    values: Values
    files: str
    vectors: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """``files`` is the digest of the built partition's files; ``snapshots`` the ids read, by branch name.

    ``identities``: the read snapshots' identities, by branch name: after a rollback another one may get the same id.
    ``origin``: the operation that built the partition, or ``assumed`` for one that another engine built and that was
    there, built from whatever its deltas held, when one of them was about to be overwritten.
    """

    values: Values
    files: str
    anchor: Part | None
    deltas: tuple[Part, ...]
    snapshots: Mapping[str, int | None]
    origin: str
    created_at: str
    identities: Mapping[str, str] = field(default_factory=dict)


def files_digest(splits: Iterable[BucketSplit]) -> str:
    """Identify the files of a partition."""
    return names_digest(f.file_name for s in splits for f in s.files)


def names_digest(file_names: Iterable[str]) -> str:
    """Identify files by their names, which never recur."""
    names = sorted(file_names)
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:32]


def vectors_digests(plan: ScanPlan) -> dict[Values, str]:
    """Identify the deletion vectors of each partition that has some: there rows go without any change of files."""
    types = partition_types(plan.schema)
    found: dict[Values, list[str]] = {}
    for entry in plan.index_entries:
        told = f"{entry.bucket}/{entry.index_type}/{entry.file_name}/{entry.deletion_vector_ranges}"
        found.setdefault(decode_row(entry.partition, types), []).append(told)
    return {values: names_digest(told) for values, told in found.items()}


def read_identities(state: ChainState) -> dict[str, str]:
    """Identify the snapshot that each branch is pinned at, by the branch's name."""
    plans = (state.main, state.snapshot, state.delta)
    return {p.table.branch_name: p.snapshot.identity for p in plans if p.snapshot is not None}


def state_digests(state: ChainState, branch: Branch) -> dict[Values, str]:
    """Identify what each partition of a branch holds."""
    return {v: files_digest(splits) for v, splits in splits_by_partition(state.plan(branch)).items()}


def record_provenance(table: Table, layout: ChainLayout, built: Provenance) -> None:
    """Write a record, before the commit; the same one twice is fine."""
    data = json.dumps(_to_json(layout, built), indent=2, ensure_ascii=False).encode()
    try:
        put_new(table, _path(layout, built.values, built.files), data)
    except AlreadyExistsError:
        return


def read_provenance(table: Table, layout: ChainLayout, values: Values, files: str) -> Provenance | None:
    """Read how a partition that holds these files was built; None when nobody recorded it, or it is unreadable."""
    try:
        return _parse(layout, table.store.read(_path(layout, values, files)))
    except NotFoundError:
        return None


def _parse(layout: ChainLayout, data: bytes) -> Provenance | None:
    try:
        return _from_json(layout, json.loads(data))
    except (ValueError, KeyError, TypeError, PaimonError):
        return None


def read_provenances(table: Table, layout: ChainLayout, digests: Mapping[Values, str]) -> dict[Values, Provenance]:
    """Read how partitions that hold these files were built, as far as it was recorded: one listing, and the records."""
    there = {f"{FOLDER}/{name}" for name in table.store.names(FOLDER)}
    paths = {v: _path(layout, v, files) for v, files in digests.items()}
    recorded = {v: path for v, path in paths.items() if path in there}
    try:
        contents = table.store.read_many(list(recorded.values()))
    except NotFoundError:  # somebody tidied up meanwhile
        found = {v: read_provenance(table, layout, v, digests[v]) for v in recorded}
    else:
        found = {v: _parse(layout, data) for v, data in zip(recorded, contents, strict=True)}
    return {v: built for v, built in found.items() if built is not None}


def read_earlier(table: Table, layout: ChainLayout, partitions: Collection[Values]) -> dict[Values, list[Provenance]]:
    """Read all records of partitions, whatever files they speak of; partitions without any are left out."""
    names = table.store.names(FOLDER) if partitions else []
    by_prefix: dict[str, list[str]] = {}
    for name in names:
        by_prefix.setdefault(name.partition("-")[0], []).append(f"{FOLDER}/{name}")
    out: dict[Values, list[Provenance]] = {}
    for values in partitions:
        for path in by_prefix.get(_prefix(layout, values), ()):
            try:
                record = _parse(layout, table.store.read(path))
            except NotFoundError:
                continue
            if record is not None:
                out.setdefault(values, []).append(record)
    return out


def _path(layout: ChainLayout, values: Values, files: str) -> str:
    return f"{FOLDER}/{_prefix(layout, values)}-{files}.json"


def _prefix(layout: ChainLayout, values: Values) -> str:
    return hashlib.sha256(layout.text_of(values).encode()).hexdigest()[:24]


def _to_json(layout: ChainLayout, built: Provenance) -> dict[str, Any]:
    def part(one: Part) -> dict[str, Any]:
        vectors = {} if one.vectors is None else {"vectors": one.vectors}
        return {"partition": _spec(layout, one.values), "files": one.files, **vectors}

    return {
        "partition": _spec(layout, built.values),
        "files": built.files,
        "anchor": part(built.anchor) if built.anchor else None,
        "deltas": [part(d) for d in built.deltas],
        "snapshots": dict(built.snapshots),
        "identities": dict(built.identities),
        "origin": built.origin,
        "created_at": built.created_at,
    }


def _from_json(layout: ChainLayout, raw: Mapping[str, Any]) -> Provenance:
    def part(one: Mapping[str, Any]) -> Part:
        return Part(values=_values(layout, one["partition"]), files=str(one["files"]), vectors=one.get("vectors"))

    return Provenance(
        values=_values(layout, raw["partition"]),
        files=str(raw["files"]),
        anchor=part(raw["anchor"]) if raw["anchor"] else None,
        deltas=tuple(part(d) for d in raw["deltas"]),
        snapshots=dict(raw["snapshots"]),
        origin=str(raw["origin"]),
        created_at=str(raw["created_at"]),
        identities=dict(raw.get("identities", {})),
    )


def _spec(layout: ChainLayout, values: Values) -> dict[str, str]:
    typed = zip(layout.partition_keys, values, layout.partition_types, strict=True)
    return {k: readable_value(v, t) for k, v, t in typed}


def _values(layout: ChainLayout, spec: Mapping[str, str]) -> Values:
    parsed = parse_partition_spec(spec, layout.partition_keys, layout.partition_types)
    return tuple(parsed[k] for k in layout.partition_keys)
