"""Which operation a ``CALL`` means: Paimon's procedures with their arguments, and our operations by their own names.

A procedure of Paimon's gives Paimon's result or is refused by name. To add one is a line of ``_TABLE``.
Sources: Paimon 2.2-SNAPSHOT, the procedures of its Spark and its Flink connector.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from difflib import get_close_matches
from typing import Any

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.requests.arguments import with_branch_of_table
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.sql_text.call import Call, Value
from airflow_paimon.core.table.options import parse_boolean
from airflow_paimon.core.table.partition_text import split_partitions

Convert = Callable[[Value, tzinfo | None], Mapping[str, Any]]
"""Turns an argument's value into fields of the request; the zone is that of times without an offset, None: local."""

_SESSION_FIELDS = ("warehouse", "storage_options", "operation_id")
_SEE = "docs/comparison.md shows how to run it with this package"


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of Paimon's; without ``fields`` it is ``harmless`` (why) or ``refused`` (the way out).

    Attributes:
        name: As in Spark; case and underscores don't count.
        also: Further names, those of Flink.
        fields: Fields of our request that ``convert`` sets; without it the first one gets the value.
        unless: Fields of our own beside which a required argument may be left out.
        may_be_blank: A blank text means not given, as it does in Paimon.
    """

    name: str
    also: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    convert: Convert | None = None
    required: bool = False
    unless: tuple[str, ...] = ()
    may_be_blank: bool = False
    harmless: str | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """A procedure of Paimon's: our operation, and the arguments in the order of their positions, behind the table."""

    operation: str
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """What a CALL asks for: an operation, the values of its request, and what it says that has no effect here."""

    procedure: str
    operation: str
    values: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def _time(value: Value, zone: tzinfo | None) -> Mapping[str, Any]:
    """Take a local time as Paimon does; one with an offset, or an age, as our operations do."""
    text = str(value).strip()
    try:
        moment = datetime.fromisoformat(text) if not text.isdigit() else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is not None:
        return {"older_than": text}
    return {"older_than": (moment.astimezone() if zone is None else moment.replace(tzinfo=zone)).isoformat()}


def _partitions(field: str) -> Convert:
    def convert(value: Value, _: tzinfo | None) -> Mapping[str, Any]:
        texts = value if isinstance(value, tuple) else (value,)
        return {field: tuple(part for text in texts for part in split_partitions(str(text))) or ("",)}

    return convert


ONTO = "onto"
"""Where a branch is to be published; a look-up compares it with the one that it is published onto."""


def _only_one(procedure: str, name: str) -> Convert:
    """Take a name; several in one text, which Paimon takes, are refused: they are several operations."""

    def convert(value: Value, _: tzinfo | None) -> Mapping[str, Any]:
        if isinstance(value, tuple) or "," in str(value):
            raise InvalidInputError(f"{procedure}: {name} names several, {value!r}; call {procedure} once for each")
        return {name: str(value)}

    return convert


def _strategy(value: Value, _: tzinfo | None) -> Mapping[str, Any]:
    strategy = str(value).strip().lower()
    if strategy not in ("full", "minor"):
        raise InvalidInputError(f"compact: compact_strategy is full or minor, not {value!r}")
    return {} if strategy == "full" else {"max_sorted_runs": MINOR}


MINOR = "minor"
"""Stands for the sorted runs from which on Paimon's writers compact; a look-up puts their number in its place."""


def _unordered(value: Value, _: tzinfo | None) -> Mapping[str, Any]:
    if str(value).strip().lower() not in ("none", ""):
        raise UnsupportedFeatureError(
            f"compact: order_strategy {value!r} sorts rows over files, which only Paimon's own compact does; {_SEE}"
        )
    return {}


def _options(procedure: str, known: Mapping[str, str]) -> Convert:
    """Take ``options``: table options for this call, of which ``known`` are fields here."""

    def convert(value: Value, _: tzinfo | None) -> Mapping[str, Any]:
        found = {}
        for pair in filter(None, (part.strip() for part in str(value).split(","))):
            key, equals, text = (part.strip() for part in pair.partition("="))
            if not equals:
                raise InvalidInputError(f"{procedure}: options: {pair!r} is not of the form key=value")
            if key in known:
                found[known[key]] = text
            elif not key.endswith("parallelism"):
                raise UnsupportedFeatureError(
                    f"{procedure}: options: {key} can't be set for one call here; set it on the table (ALTER TABLE, "
                    f"alter_table), or leave it out"
                )
        return found

    return convert


_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "compact": {},
    "compact_manifest": {},
    "expire_partitions": {
        "partition.expiration-time": "expiration_time",
        "partition.expiration-strategy": "strategy",
        "partition.timestamp-pattern": "timestamp_pattern",
        "partition.timestamp-formatter": "timestamp_formatter",
        "partition.expiration-max-num": "limit",
    },
    "expire_snapshots": {
        "snapshot.num-retained.max": "retain_max",
        "snapshot.num-retained.min": "retain_min",
        "snapshot.time-retained": "older_than",
        "snapshot.expire.limit": "max_deletes",
    },
}
"""Table options that the argument ``options`` of a procedure may have, and the fields that they are."""
_OWN_PARALLELISM = "the work is divided by this package"
_HARMLESS = dict.fromkeys(("parallelism", "mode", "scan_parallelism", "sink_parallelism"), _OWN_PARALLELISM)
_BY_PARTITIONS = "give the partitions by name: partitions => 'dt=2025-01-01;dt=2025-01-02'"
_REFUSED = {
    "order_by": f"sorting is Paimon's own compact; {_SEE}",
    "where": _BY_PARTITIONS,
    "partition_idle_time": _BY_PARTITIONS,
    "buckets": "buckets that are merged are left as they are anyway",
    "manifest_sort_partition_field": "the first partition column counts",
    "manifest_sort_max_rewrite_size": "leave it out",
}
_CONVERT: Mapping[str, Convert] = {
    "compact.compact_strategy": _strategy,
    "compact.order_strategy": _unordered,
    "compact_chain_table.partition": _partitions("partition"),
    # FALSE is the default, but for tables with the option, whose manifests are sorted
    "compact_manifest.manifest_sort_enabled": lambda value, _: (
        {"manifest_sort_enabled": True} if parse_boolean(value, "compact_manifest: manifest_sort_enabled") else {}
    ),
    "create_branch.ignoreIfExists": lambda value, _: {
        "if_exists": "skip" if parse_boolean(value, "create_branch: ignoreIfExists") else "fail"
    },
    "delete_branch.branch": _only_one("delete_branch", "branch"),
    "delete_tag.tag": _only_one("delete_tag", "tag"),
    "expire_tags.older_than": lambda value, zone: {**_time(value, zone), "include_unlimited": True},
    "merge_branch.target_branch": lambda value, _: {ONTO: str(value).strip()},
    "older_than": _time,
    "partitions": _partitions("partitions"),
    "rollback.version": lambda value, _: {"snapshot" if str(value).strip().isdigit() else "tag": str(value).strip()},
    **{f"{name}.options": _options(name, known) for name, known in _OPTIONS.items()},
}
"""By ``procedure.argument``, or by an argument of any procedure: those whose values need more than another name."""
_UNLESS = {"compact_chain_table.partition": ("pending", "from_", "to")}
_MAY_BE_BLANK = {"order_by", "where", "partition_idle_time", "buckets", "includingConsumers", "excludingConsumers"}
_TABLE = """\
clear_consumers: includingConsumers=including excludingConsumers=excluding
compact: partitions compact_strategy=max_sorted_runs order_strategy= order_by where options= partition_idle_time buckets
compact_chain_table: partition! overwrite
compact_manifest: options= dry_run manifest_sort_enabled manifest_sort_partition_field manifest_sort_max_rewrite_size
create_branch: branch! tag ignoreIfExists=if_exists
create_tag: tag! snapshot|snapshot_id time_retained
create_tag_from_timestamp > create_tag: tag! timestamp! time_retained
create_tag_from_watermark > create_tag: tag! watermark=timestamp! time_retained
delete_branch: branch!
delete_tag: tag!
expire_changelogs: retain_max retain_min older_than max_deletes delete_all
expire_partitions: expiration_time timestamp_formatter timestamp_pattern expire_strategy=strategy max_expires=limit \
    options=
expire_snapshots: retain_max retain_min older_than max_deletes options=
expire_tags: older_than
fast_forward: branch!
mark_partition_done: partitions!
merge_branch: source_branch|branch=branch! target_branch=
remove_orphan_files: older_than dry_run parallelism mode
rename_branch: from_branch=branch! to_branch!
rename_tag: tag|tagName=tag! target_tag|targetTagName|to_tag=to_tag!
replace_tag: tag! snapshot|snapshot_id time_retained
rescale: bucket_num partitions|partition where scan_parallelism sink_parallelism
reset_consumer: consumerId=consumer! nextSnapshotId=next_snapshot
rollback > rollback_to: version=snapshot snapshot|snapshot_id tag
rollback_to: tag snapshot|snapshot_id
rollback_to_as_latest > rollback_to: tag snapshot|snapshot_id
rollback_to_timestamp > rollback_to: timestamp!
rollback_to_watermark > rollback_to: watermark!
trigger_tag_automatic_creation:
"""
"""A procedure a line, ``>`` before our operation where that has another name; then its arguments in the order of their
positions: ``name|further names=our field``, with ``!`` where it is required, and nothing behind ``=`` where its value
becomes no field.
"""


def _paimons_argument(procedure: str, text: str) -> Argument:
    names, equals, field = text.rstrip("!").partition("=")
    name, *also = names.split("|")
    key = f"{procedure}.{name}"
    return Argument(
        name=name,
        also=tuple(also),
        fields=() if (equals and not field) or name in _HARMLESS or name in _REFUSED else (field or name,),
        convert=_CONVERT.get(key, _CONVERT.get(name)),
        required=text.endswith("!"),
        unless=_UNLESS.get(key, ()),
        may_be_blank=name in _MAY_BE_BLANK,
        harmless=_HARMLESS.get(name),
        refused=_REFUSED.get(name),
    )


def _procedures() -> Iterator[tuple[str, Procedure]]:
    for line in _TABLE.strip().splitlines():
        head, _, rest = line.partition(":")
        name, _, operation = (part.strip() for part in head.partition(">"))
        arguments = tuple(_paimons_argument(name, text) for text in rest.split())
        yield name, Procedure(operation=operation or name, arguments=arguments)


PROCEDURES: Mapping[str, Procedure] = dict(_procedures())
"""Paimon's procedures that are operations here, by name."""

_CONNECTOR = "it is left to Paimon's own connector"
_LEFT_TO_CONNECTOR = """
alter_function alter_view_dialect clone copy copy_files create_function create_global_index drop_function
drop_global_index full_text_search migrate_database migrate_table query_service reassign_row_id rewrite_file_index
vector_search
"""
NOT_HERE: Mapping[str, str] = {
    **dict.fromkeys(_LEFT_TO_CONNECTOR.split(), _CONNECTOR),
    "alter_column_default_value": f"{_CONNECTOR}, or ALTER TABLE",
    "compact_database": "call compact for each table, or run the nightly DAG",
    "data_evolution_merge_into": "MERGE INTO is a statement of airflow_paimon.spark.sql",
    "drop_partition": "DELETE FROM the partition, or call expire_partitions",
    "materialize_deletion_vectors": f"{_CONNECTOR}; compact writes files with deleted rows again, too",
    "merge_into": "MERGE INTO is a statement of airflow_paimon.spark.sql",
    "purge_files": f"{_CONNECTOR}: it deletes all rows and history, which branches of this package may need",
    "remove_unexisting_files": f"{_CONNECTOR}; call check_table, which finds missing files",
    "remove_unexisting_manifests": f"{_CONNECTOR}; call check_table, which finds missing files",
    "repair": f"{_CONNECTOR}; repair_table is another one: it repairs what check_table finds",
    "repair_earliest_snapshot": f"{_CONNECTOR}; call check_table and repair_table",
}
"""Paimon's procedures that are no operation here, and what to do instead."""


def plan_call(call: Call, zone: tzinfo | None = None, database: str | None = None) -> PlannedCall:
    """Say which operation a CALL means. ``zone``: of times without an offset; by default this machine's. ``database``:
    of a table's name without one.

    Raises:
        InvalidInputError: the procedure or an argument is unknown, missing, given twice or malformed.
        UnsupportedFeatureError: Paimon has it, and it is no operation here; says what to do.
    """
    procedure = _procedure_of(call)
    request = OPERATIONS[procedure.operation].request
    own = [_own_argument(f) for f in dataclasses.fields(request) if f.name not in (*_SESSION_FIELDS, "table")]
    named = _named(call, procedure)
    table = named.pop("table", None)
    arguments = {name: _argument(call, name, procedure.arguments, own) for name in named}
    if table is None:
        raise InvalidInputError(f"{call.procedure} needs table => 'db.t'")
    found: dict[str, Any] = {"table": _table(call, request, table, database)}
    by_options: Mapping[str, Any] = {}
    notes = []
    for name, value in named.items():
        argument = arguments[name]
        if value is None or (argument.may_be_blank and isinstance(value, str) and not value.strip()):
            continue
        if argument.harmless is not None:
            notes.append(f"{argument.name} has no effect: {argument.harmless}")
        elif argument.name == "options":
            by_options = _converted(call, argument, value, zone)
        else:
            more = _converted(call, argument, value, zone)
            if twice := found.keys() & more.keys():
                raise InvalidInputError(f"{call.procedure}: two arguments specify {min(twice)}; give one of them")
            found |= more
    found = with_branch_of_table(request, found)
    for argument in procedure.arguments:
        if argument.required and not any(field in found for field in (*argument.fields, *argument.unless)):
            raise InvalidInputError(f"{call.procedure} needs {argument.name} => ...")
    return PlannedCall(
        procedure=call.procedure,
        operation=procedure.operation,
        values={**by_options, **found},
        notes=tuple(notes),
    )


def _procedure_of(call: Call) -> Procedure:
    found = PROCEDURES.get(call.procedure)
    if found is not None:
        return found
    if call.procedure in OPERATIONS:
        needed = (f for f in dataclasses.fields(OPERATIONS[call.procedure].request) if f.default == "")
        named = [f for f in needed if f.name not in (*_SESSION_FIELDS, "table")]
        return Procedure(operation=call.procedure, arguments=tuple(map(_own_argument, named)))
    if call.procedure in NOT_HERE:
        instead = NOT_HERE[call.procedure]
        raise UnsupportedFeatureError(f"sys.{call.procedure} is not an operation of this package: {instead}; {_SEE}")
    names = sorted({*PROCEDURES, *OPERATIONS})
    near = get_close_matches(call.procedure, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
    raise InvalidInputError(f"There is no procedure sys.{call.procedure}; {hint}")


def _named(call: Call, procedure: Procedure) -> dict[str, Value]:
    """Return the values by plain name; arguments without a name get theirs by position: the table, then Paimon's."""
    names = ["table", *(argument.name for argument in procedure.arguments)]
    if len(call.arguments) > len(names) and call.arguments[-1].name is None:
        raise InvalidInputError(f"{call.procedure} takes {len(names)} arguments by position: {', '.join(names)}")
    found: dict[str, Value] = {}
    for at, given in enumerate(call.arguments):
        name = _plain(given.name if given.name is not None else names[at])
        if name in found:
            raise InvalidInputError(f"{call.procedure}: {given.name} is given twice")
        found[name] = given.value
    return found


def _argument(call: Call, name: str, theirs: Iterable[Argument], own: Iterable[Argument]) -> Argument:
    """Find an argument: Paimon's first, then the fields of our request by their own names."""
    known = (*theirs, *own)
    for argument in known:
        if name in map(_plain, (argument.name, *argument.also)):
            return argument
    given = next(g.name for g in call.arguments if g.name is not None and _plain(g.name) == name)
    if name in map(_plain, _SESSION_FIELDS):
        raise InvalidInputError(
            f"{call.procedure}: {given} is not an argument of CALL; give it to airflow_paimon.spark.sql, or on the "
            "command line as a flag"
        )
    names = sorted({"table", *(a.name for a in known)})
    near = get_close_matches(given, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(names)}"
    raise InvalidInputError(f"{call.procedure} has no argument {given}; {hint}")


def _own_argument(field: dataclasses.Field[Any]) -> Argument:
    name = field.name

    def several(value: Value, _: tzinfo | None) -> Mapping[str, Any]:
        return {name: tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)}

    return Argument(name=name.rstrip("_"), fields=(name,), convert=several if field.metadata.get("repeat") else None)


def _converted(call: Call, argument: Argument, value: Value, zone: tzinfo | None) -> Mapping[str, Any]:
    if argument.refused is not None:
        raise UnsupportedFeatureError(f"{call.procedure}: {argument.name} is not taken here; {argument.refused}")
    if argument.convert is not None:
        return argument.convert(value, zone)
    if isinstance(value, tuple | float):
        raise InvalidInputError(f"{call.procedure}: {argument.name} takes one string, whole number or boolean")
    return {argument.fields[0]: value}


def _table(call: Call, request: type[Request], value: Value, database: str | None) -> str:
    """Return the table's name without the catalog of the CALL, and with a database."""
    text = str(value or "").replace("`", "").strip()
    prefix = f"{call.catalog}." if call.catalog else None
    if prefix and text.lower().startswith(prefix.lower()) and text.count(".") > 1:
        text = text[len(prefix) :]
    if "*" in text and not request.takes_patterns:
        raise InvalidInputError(f"{call.procedure} takes one table, not {text}; call it for each table")
    return f"{database}.{text}" if database and text and "." not in text.partition("$")[0] else text


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
