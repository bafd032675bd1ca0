"""Which operation a ``CALL`` means: Paimon's procedures with their arguments, and our operations by their own names.

A procedure of Paimon's gives Paimon's result or is refused by name. To add one is one entry of ``PROCEDURES``.
Sources: Paimon 2.2-SNAPSHOT, the procedures of its Spark and its Flink connector.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
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
_SEE = "docs/comparison.md says how to run it beside this package"


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
    """A procedure of Paimon's: our operation, and the arguments in the order of their positions, behind the table.

    ``look_up``: ``module:function`` below ``airflow_paimon``, called as ``function(table, values)``: returns the
    request's values with what only the table can tell.
    """

    operation: str
    arguments: tuple[Argument, ...] = ()
    look_up: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a CALL asks for: an operation, the values of its request, and what it says that has no effect here."""

    procedure: str
    operation: str
    values: Mapping[str, Any]
    look_up: str | None = None
    notes: tuple[str, ...] = ()


def _needs(name: str, field: str | None = None, also: tuple[str, ...] = ()) -> Argument:
    return Argument(name=name, also=also, fields=(field or name,), required=True)


def _may(name: str, field: str | None = None, also: tuple[str, ...] = (), **more: Any) -> Argument:
    return Argument(name=name, also=also, fields=(field or name,), **more)


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


def _tags_older_than(value: Value, zone: tzinfo | None) -> Mapping[str, Any]:
    return {**_time(value, zone), "include_unlimited": True}


def _partitions(field: str) -> Convert:
    def convert(value: Value, _: tzinfo | None) -> Mapping[str, Any]:
        texts = value if isinstance(value, tuple) else (value,)
        return {field: tuple(part for text in texts for part in split_partitions(str(text))) or ("",)}

    return convert


def _version(value: Value, _: tzinfo | None) -> Mapping[str, Any]:
    text = str(value).strip()
    return {"snapshot" if text.isdigit() else "tag": text}


def _skip_existing(value: Value, _: tzinfo | None) -> Mapping[str, Any]:
    return {"if_exists": "skip" if parse_boolean(value, "create_branch: ignoreIfExists") else "fail"}


def _onto(value: Value, _: tzinfo | None) -> Mapping[str, Any]:
    return {ONTO: str(value).strip()}


ONTO = "onto"
"""Where a branch is to be published; a look-up compares it with the one that it is published onto."""


def _only_one(procedure: str, name: str) -> Argument:
    """A name; several in one text, which Paimon takes, are refused: they are several operations."""

    def convert(value: Value, _: tzinfo | None) -> Mapping[str, Any]:
        if isinstance(value, tuple) or "," in str(value):
            raise InvalidInputError(f"{procedure}: {name} names several, {value!r}; call {procedure} once for each")
        return {name: str(value)}

    return Argument(name=name, fields=(name,), required=True, convert=convert)


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


def _sorted(value: Value, _: tzinfo | None) -> Mapping[str, Any]:
    """Take TRUE; FALSE is the default, but for tables with the option, whose manifests are sorted."""
    return {"manifest_sort_enabled": True} if parse_boolean(value, "compact_manifest: manifest_sort_enabled") else {}


def _options(procedure: str, known: Mapping[str, str]) -> Argument:
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

    return Argument(name="options", fields=tuple(dict.fromkeys(known.values())), convert=convert)


_SNAPSHOT = _may("snapshot", also=("snapshot_id",))
_SNAPSHOT_OPTIONS = {
    "snapshot.num-retained.max": "retain_max",
    "snapshot.num-retained.min": "retain_min",
    "snapshot.time-retained": "older_than",
    "snapshot.expire.limit": "max_deletes",
}
_PARTITION_OPTIONS = {
    "partition.expiration-time": "expiration_time",
    "partition.expiration-strategy": "strategy",
    "partition.timestamp-pattern": "timestamp_pattern",
    "partition.timestamp-formatter": "timestamp_formatter",
    "partition.expiration-max-num": "limit",
}
_OLDER_THAN = _may("older_than", convert=_time)
_OWN_PARALLELISM = "the work is divided by this package"
_ROLLBACK = (_may("tag"), _SNAPSHOT)
_ALL_PARTITIONS = _may("partitions", convert=_partitions("partitions"))
_BY_PARTITIONS = "give the partitions by name: partitions => 'dt=2025-01-01;dt=2025-01-02'"
_LOOK_UPS = "core.requests.call_look_ups"

PROCEDURES: Mapping[str, Procedure] = {
    "create_branch": Procedure(
        operation="create_branch",
        arguments=(
            _needs("branch"),
            _may("tag"),
            Argument(name="ignoreIfExists", fields=("if_exists",), convert=_skip_existing),
        ),
    ),
    "delete_branch": Procedure(
        operation="delete_branch",
        arguments=(_only_one("delete_branch", "branch"),),
    ),
    "rename_branch": Procedure(
        operation="rename_branch", arguments=(_needs("from_branch", "branch"), _needs("to_branch"))
    ),
    "fast_forward": Procedure(operation="fast_forward", arguments=(_needs("branch"),)),
    "merge_branch": Procedure(
        operation="merge_branch",
        arguments=(
            _needs("source_branch", "branch", also=("branch",)),
            Argument(name="target_branch", convert=_onto),
        ),
        look_up=f"{_LOOK_UPS}:onto_its_own",
    ),
    "create_tag": Procedure(
        operation="create_tag", arguments=(_needs("tag"), _SNAPSHOT, _may("time_retained"))
    ),
    "create_tag_from_timestamp": Procedure(
        operation="create_tag",
        arguments=(_needs("tag"), _needs("timestamp"), _may("time_retained")),
        look_up=f"{_LOOK_UPS}:first_since_timestamp",
    ),
    "create_tag_from_watermark": Procedure(
        operation="create_tag",
        arguments=(_needs("tag"), _needs("watermark", "timestamp"), _may("time_retained")),
        look_up=f"{_LOOK_UPS}:first_since_watermark",
    ),
    "replace_tag": Procedure(
        operation="replace_tag", arguments=(_needs("tag"), _SNAPSHOT, _may("time_retained"))
    ),
    "rename_tag": Procedure(
        operation="rename_tag",
        arguments=(_needs("tag", also=("tagName",)), _needs("target_tag", "to_tag", also=("targetTagName", "to_tag"))),
    ),
    "delete_tag": Procedure(
        operation="delete_tag", arguments=(_only_one("delete_tag", "tag"),), look_up=f"{_LOOK_UPS}:may_be_missing"
    ),
    "trigger_tag_automatic_creation": Procedure(operation="trigger_tag_automatic_creation"),
    "rollback": Procedure(
        operation="rollback_to",
        arguments=(Argument(name="version", fields=("snapshot", "tag"), convert=_version), _SNAPSHOT, _may("tag")),
    ),
    "rollback_to": Procedure(operation="rollback_to", arguments=_ROLLBACK),
    "rollback_to_as_latest": Procedure(operation="rollback_to", arguments=_ROLLBACK),
    "rollback_to_timestamp": Procedure(operation="rollback_to", arguments=(_needs("timestamp"),)),
    "rollback_to_watermark": Procedure(operation="rollback_to", arguments=(_needs("watermark"),)),
    "expire_snapshots": Procedure(
        operation="expire_snapshots",
        arguments=(
            _may("retain_max"), _may("retain_min"), _OLDER_THAN, _may("max_deletes"),
            _options("expire_snapshots", _SNAPSHOT_OPTIONS),
        ),
    ),
    "expire_changelogs": Procedure(
        operation="expire_changelogs",
        arguments=(
            _may("retain_max"), _may("retain_min"), _OLDER_THAN, _may("max_deletes"), _may("delete_all"),
        ),
    ),
    "expire_tags": Procedure(
        operation="expire_tags",
        arguments=(
            Argument(name="older_than", fields=("older_than", "include_unlimited"), convert=_tags_older_than),
        ),
    ),
    "expire_partitions": Procedure(
        operation="expire_partitions",
        arguments=(
            _may("expiration_time"),
            _may("timestamp_formatter"),
            _may("timestamp_pattern"),
            _may("expire_strategy", "strategy"),
            _may("max_expires", "limit"),
            _options("expire_partitions", _PARTITION_OPTIONS),
        ),
    ),
    "remove_orphan_files": Procedure(
        operation="remove_orphan_files",
        arguments=(
            _OLDER_THAN,
            _may("dry_run"),
            Argument(name="parallelism", harmless=_OWN_PARALLELISM),
            Argument(name="mode", harmless=_OWN_PARALLELISM),
        ),
    ),
    "reset_consumer": Procedure(
        operation="reset_consumer",
        arguments=(_needs("consumerId", "consumer"), _may("nextSnapshotId", "next_snapshot")),
        look_up=f"{_LOOK_UPS}:may_be_missing",
    ),
    "clear_consumers": Procedure(
        operation="clear_consumers",
        arguments=(
            _may("includingConsumers", "including", may_be_blank=True),
            _may("excludingConsumers", "excluding", may_be_blank=True),
        ),
    ),
    "compact": Procedure(
        operation="compact",
        arguments=(
            _ALL_PARTITIONS,
            Argument(name="compact_strategy", fields=("max_sorted_runs",), convert=_strategy),
            Argument(name="order_strategy", convert=_unordered),
            Argument(name="order_by", may_be_blank=True, refused=f"sorting is Paimon's own compact; {_SEE}"),
            Argument(name="where", may_be_blank=True, refused=_BY_PARTITIONS),
            _options("compact", {}),
            Argument(name="partition_idle_time", may_be_blank=True, refused=_BY_PARTITIONS),
            Argument(name="buckets", may_be_blank=True, refused="buckets that are merged are left as they are anyway"),
        ),
        look_up=f"{_LOOK_UPS}:runs_of_minor",
    ),
    "compact_chain_table": Procedure(
        operation="compact_chain_table",
        arguments=(
            Argument(
                name="partition",
                fields=("partition",),
                convert=_partitions("partition"),
                required=True,
                unless=("pending", "from_", "to"),
            ),
            _may("overwrite"),
        ),
    ),
    "compact_manifest": Procedure(
        operation="compact_manifest",
        arguments=(
            _options("compact_manifest", {}),
            _may("dry_run"),
            Argument(name="manifest_sort_enabled", fields=("manifest_sort_enabled",), convert=_sorted),
            Argument(name="manifest_sort_partition_field", refused="the first partition column counts"),
            Argument(name="manifest_sort_max_rewrite_size", refused="leave it out"),
        ),
    ),
    "mark_partition_done": Procedure(
        operation="mark_partition_done",
        arguments=(
            Argument(name="partitions", fields=("partitions",), convert=_partitions("partitions"), required=True),
        ),
    ),
    "rescale": Procedure(
        operation="rescale",
        arguments=(
            _may("bucket_num"),
            _may("partitions", also=("partition",), convert=_partitions("partitions")),
            Argument(name="where", may_be_blank=True, refused=_BY_PARTITIONS),
            Argument(name="scan_parallelism", harmless=_OWN_PARALLELISM),
            Argument(name="sink_parallelism", harmless=_OWN_PARALLELISM),
        ),
    ),
}  # fmt: skip
"""Paimon's procedures that are operations here, by name."""

_CONNECTOR = "it is left to Paimon's own connector"
NOT_HERE: Mapping[str, str] = {
    "alter_column_default_value": f"{_CONNECTOR}, or ALTER TABLE",
    "alter_function": _CONNECTOR,
    "alter_view_dialect": _CONNECTOR,
    "clone": _CONNECTOR,
    "compact_database": "call compact for each table, or run the nightly DAG",
    "copy": _CONNECTOR,
    "copy_files": _CONNECTOR,
    "create_function": _CONNECTOR,
    "create_global_index": _CONNECTOR,
    "data_evolution_merge_into": "MERGE INTO is a statement of airflow_paimon.spark.sql",
    "drop_function": _CONNECTOR,
    "drop_global_index": _CONNECTOR,
    "drop_partition": "DELETE FROM the partition, or call expire_partitions",
    "full_text_search": _CONNECTOR,
    "materialize_deletion_vectors": f"{_CONNECTOR}; compact writes files with deleted rows again, too",
    "merge_into": "MERGE INTO is a statement of airflow_paimon.spark.sql",
    "migrate_database": _CONNECTOR,
    "migrate_table": _CONNECTOR,
    "purge_files": f"{_CONNECTOR}: it deletes all rows and history, which branches of this package may need",
    "query_service": _CONNECTOR,
    "reassign_row_id": _CONNECTOR,
    "remove_unexisting_files": f"{_CONNECTOR}; call check_table, which finds missing files",
    "remove_unexisting_manifests": f"{_CONNECTOR}; call check_table, which finds missing files",
    "repair": f"{_CONNECTOR}; repair_table is another one: it mends what check_table finds",
    "repair_earliest_snapshot": f"{_CONNECTOR}; call check_table and repair_table",
    "rewrite_file_index": _CONNECTOR,
    "vector_search": _CONNECTOR,
}
"""Paimon's procedures that are no operation here, and what to do instead."""


def plan_call(call: Call, zone: tzinfo | None = None, database: str | None = None) -> Asked:
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
            found = _with(call, found, _converted(call, argument, value, zone))
    found = with_branch_of_table(request, found)
    for argument in procedure.arguments:
        if argument.required and not any(field in found for field in (*argument.fields, *argument.unless)):
            raise InvalidInputError(f"{call.procedure} needs {argument.name} => ...")
    return Asked(
        procedure=call.procedure,
        operation=procedure.operation,
        values={**by_options, **found},
        look_up=procedure.look_up,
        notes=tuple(notes),
    )


def _with(call: Call, values: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    for field in sorted(values.keys() & more.keys()):
        raise InvalidInputError(f"{call.procedure}: two arguments say {field}; give one of them")
    return {**values, **more}


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
        raise UnsupportedFeatureError(f"sys.{call.procedure} is no operation of this package: {instead}; {_SEE}")
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
            f"{call.procedure}: {given} is no argument of CALL; give it to airflow_paimon.spark.sql, or on the command "
            f"line as a flag"
        )
    names = sorted({"table", *(a.name for a in known)})
    near = get_close_matches(given, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(names)}"
    raise InvalidInputError(f"{call.procedure} has no argument {given}; {hint}")


def _own_argument(field: dataclasses.Field[Any]) -> Argument:
    several = _several(field.name) if field.metadata.get("repeat") else None
    return Argument(name=field.name.rstrip("_"), fields=(field.name,), convert=several)


def _several(field: str) -> Convert:
    return lambda value, _: {field: tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)}


def _converted(call: Call, argument: Argument, value: Value, zone: tzinfo | None) -> Mapping[str, Any]:
    if argument.refused is not None:
        raise UnsupportedFeatureError(f"{call.procedure}: {argument.name} is not taken here; {argument.refused}")
    if argument.convert is not None:
        return argument.convert(value, zone)
    if isinstance(value, tuple | float):
        raise InvalidInputError(f"{call.procedure}: {argument.name} takes one text, whole number or boolean")
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
