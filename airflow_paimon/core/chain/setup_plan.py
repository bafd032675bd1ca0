"""Plans that create a chain table, convert a primary-key table into one, or alter its three branches (pure).

The order keeps every intermediate state readable and writable for Paimon, which fails when a branch of a chain table
does not exist (at each read of main) or when ``chain-table.enabled`` is set without both branch options (at each
commit). So no schema ever holds only a part of the chain options, and main's comes last: until then main is unchanged,
and the branches, which have the same columns, are not read as a chain yet. A new table exists only with main's schema:
before, no engine sees it.

No engine can alter three schema logs at once: there, too, main comes last, and an interrupted run is recognised from
the schemas: some branches have the changes already. Until all three agree, Paimon refuses to read main if columns
differ; the branches can always be read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from airflow_paimon.core.branches.branch_plan import is_protective
from airflow_paimon.core.chain.layout import branch_problems, chain_keys, chain_layout, schema_problems
from airflow_paimon.core.errors import AlreadyExistsError, InvalidInputError, NotFoundError, naming_table
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.plan import Action, HeadIs, Plan, PutNew, Replace
from airflow_paimon.core.requests.requests import CreateChainTable
from airflow_paimon.core.schema.schema_plan import RemoveOption, SchemaChange, SetOption, apply_changes
from airflow_paimon.core.table.branch_record import BranchRecord, branch_record_path
from airflow_paimon.core.table.options import READ_TOGETHER, TableOptions
from airflow_paimon.core.table.paths import MAIN, BranchPaths

OPERATION = "create_chain_table"
_ENABLED = "chain-table.enabled"
_SAMPLE = datetime(2025, 1, 2, 3, 4, 5)
_BY_ARGUMENT = {
    "scan.fallback-snapshot-branch": "snapshot_branch",
    "scan.fallback-delta-branch": "delta_branch",
    "chain-table.chain-partition-keys": "chain_partition_key",
    "partition.timestamp-pattern": "timestamp_pattern",
    "partition.timestamp-formatter": "timestamp_formatter",
    "sequence.field": "sequence_field",
}


def wanted_options(request: CreateChainTable, options: Mapping[str, str]) -> dict[str, str]:
    """Return the table options that a request asks for; arguments that are None or empty keep the table's values.

    Raises:
        InvalidInputError: ``options``, the request's own, repeat or contradict an argument.
    """
    if options.get(_ENABLED, "true").strip().lower() != "true":
        raise InvalidInputError(f"Option {_ENABLED} must be true for a chain table; leave it out")
    stated = {}
    for key, argument in _BY_ARGUMENT.items():
        if key in options:
            raise InvalidInputError(f"Give option {key} as argument {argument}, not among the options")
        if given := getattr(request, argument):
            stated[key] = given if isinstance(given, str) else ",".join(given)
    return {**options, _ENABLED: "true", **stated}


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchNow:
    """The current state of a branch: its newest schema (None: no such branch) and snapshot.

    ``shared``: its history begins with main's, so that both hold the same files.
    """

    name: str
    schema: TableSchema | None = None
    head: int | None = None
    shared: bool = False

    @property
    def has_data(self) -> bool:
        return self.head is not None

    @property
    def current(self) -> TableSchema:
        """The schema of a branch that exists."""
        assert self.schema is not None, self.name
        return self.schema


def plan_new_chain(
    table: str, schema: TableSchema, branches: Sequence[BranchNow], records: Mapping[str, BranchRecord]
) -> Plan:
    """Plan a new table: schema 0 of both branches, then main's. ``branches``: left by an interrupted run.

    Raises:
        InvalidInputError: the schema is not valid for a chain table. AlreadyExistsError: the folder holds another
        branch.
    """
    _check(table, schema, {b.name: schema for b in branches})
    for found in (b for b in branches if b.schema is not None):
        if found.has_data or not same_schema(found.current, schema):
            raise AlreadyExistsError(
                f"{table}: there is no such table, but its folder has a branch {found.name!r} with another schema, "
                f"left by an interrupted set-up; repeat that request, or remove the folder"
            )
        schema = found.current  # including its time stamp: all three are the same bytes
    actions: list[Action] = []
    for found in branches:
        if found.schema is None:
            actions.append(_record_action(records[found.name], schema.id))
            actions.append(_schema_action(found.name, schema, "the branch's schema, the same as main's"))
    actions.append(_schema_action(MAIN, schema, "main's schema, last: it makes the table visible"))
    return _plan(table, actions, (), schema)


def plan_conversion(
    table: str,
    main: BranchNow,
    branches: Sequence[BranchNow],
    wanted: Mapping[str, str],
    records: Mapping[str, BranchRecord],
    now_ms: int,
) -> tuple[Plan, TableSchema]:
    """Plan the steps to convert a table into a chain table, none if it is one; also return main's new schema.

    A new branch gets one schema version, as no older file is in it. It has one id in all three branches: Paimon caches
    how to read a file by the schema id alone.

    Raises:
        InvalidInputError: a rule is broken, or it is already a chain table with other settings.
    """
    for branch in branches:
        _check_branch(table, branch)
    target = _with_options(table, main, wanted, now_ms)
    # An existing branch gets the options that were asked for, and the chain options that main already has.
    options = {k: target.options[k] for k in (_ENABLED, *_BY_ARGUMENT) if k in target.options} | dict(wanted)
    targets = {b.name: target if b.schema is None else _with_options(table, b, options, now_ms) for b in branches}
    _check(table, target, targets)
    standing = [(b, targets[b.name]) for b in branches if b.schema is not None] + [(main, target)]
    new_id = max(b.current.id + (t is not b.schema) for b, t in standing)
    actions: list[Action] = []
    for branch in branches:
        actions += _branch_actions(branch, replace(targets[branch.name], id=new_id), records[branch.name])
    if target is not main.schema:
        reason = "main's chain options, last: with them main is read through both branches, which are ready"
        actions.append(_schema_action(MAIN, replace(target, id=new_id), reason))
    relied = tuple(
        HeadIs(branch=b.name, snapshot_id=b.head, schema_id=b.schema.id if b.schema else None)
        for b in (main, *branches)
    )
    return _plan(table, actions, relied, target), target


def same_schema(one: TableSchema, other: TableSchema) -> bool:
    """Whether two schema versions have the same columns, keys and options."""
    return one.content == other.content and one.options == other.options


def _with_options(table: str, branch: BranchNow, wanted: Mapping[str, str], now_ms: int) -> TableSchema:
    """Return the schema with all options; the same object if it already has them."""
    schema = branch.current
    missing = {k: v for k, v in wanted.items() if _said(schema, k) != v.strip()}
    if not missing:
        return schema
    label = table if branch.name == MAIN else f"{table}$branch_{branch.name}"
    other = next((k for k in missing if _said(schema, k)), None)
    if other is not None and TableOptions(schema.options).chain_table:
        raise InvalidInputError(
            f"{label} is a chain table already, with {other}={_said(schema, other)!r} instead of {wanted[other]!r}; on "
            f"a table with data that would change every read: use the existing settings, or create a new table"
        )
    changes = [SetOption(key=k, value=v) for k, v in missing.items()]
    with naming_table(label):
        return apply_changes(schema, changes, has_data=branch.has_data, now_ms=now_ms)


def _said(schema: TableSchema, key: str) -> str:
    return schema.options.get(key, "").strip()


def _check_branch(table: str, branch: BranchNow) -> None:
    if branch.shared or (branch.schema is not None and is_protective(branch.schema)):
        raise InvalidInputError(
            f"{table}: branch {branch.name!r} shares files with main, so that expiry of one would delete files of the "
            f"other; name an empty or new branch"
        )


def new_chain_problems(schema: TableSchema, table: str) -> list[str]:
    """Return the rules that the schema of a new chain table violates."""
    return [*schema_problems(schema), *set_up_problems(schema)] or _spelling_problems(schema, table)


def _check(table: str, main: TableSchema, branches: Mapping[str, TableSchema]) -> None:
    problems = new_chain_problems(main, table)
    if not problems:
        snapshot, delta = branches.values()
        problems = list(branch_problems(main, snapshot, delta).values())
    if problems:
        raise InvalidInputError(
            f"{table} can't become a chain table: {'; '.join(problems)}", details={"problems": problems}
        )


def set_up_problems(schema: TableSchema) -> list[str]:
    """Rules for new chain tables only: existing ones of another engine can be read nevertheless."""
    problems = time_column_problems(schema)
    if TableOptions(schema.options).deletion_vectors:
        problems.append(
            "option deletion-vectors.enabled must be false: every write to its branches would be refused here, as only "
            "Paimon's own compaction makes appended rows of such a table visible: reset that option"
        )
    if schema.primary_keys and set(schema.primary_keys) == set(schema.partition_keys):
        problems.append("the primary key must have a column that is not a partition column")
    for key in READ_TOGETHER:
        if schema.options.get(key, "").strip():
            problems.append(f"option {key} makes it a table with a fallback, and it can't be both: reset that option")
    return problems


def time_column_problems(schema: TableSchema) -> list[str]:
    """List time columns whose values Paimon writes in a form that its own formatter can't parse (measured)."""
    problems = []
    for name in chain_keys(schema):
        root = getattr(schema.field(name).type, "root", "") if name in schema.field_names else ""
        if root == "DATE" and TableOptions(schema.options).legacy_partition_name:
            problems.append(
                f"partition column {name} is a DATE, which Paimon writes as a number of days that "
                f"partition.timestamp-formatter can't read: use STRING, or set partition.legacy-name=false while "
                f"there is no data"
            )
        elif root in ("TIME", "TIMESTAMP", "TIMESTAMP_LTZ"):
            problems.append(f"partition column {name} is a {root}, whose text form varies: use STRING")
    return problems


def _spelling_problems(schema: TableSchema, table: str) -> list[str]:
    """Whether the chain columns' types preserve the formatter's texts: an INT drops leading zeros."""
    layout = chain_layout(schema, table)
    try:
        layout.time_of(layout.values_at((None,) * layout.group_width, _SAMPLE))
    except InvalidInputError:
        columns = ", ".join(f"{k} {t}" for k, t in zip(layout.partition_keys, layout.partition_types, strict=True))
        return [
            f"the chain columns' types ({columns}) don't preserve what partition.timestamp-formatter "
            f"{layout.clock.formatter.text!r} writes, e.g. for {_SAMPLE}: use STRING"
        ]
    return []


def _branch_actions(branch: BranchNow, target: TableSchema, record: BranchRecord) -> list[Action]:
    if branch.schema is not None:
        done = same_schema(branch.schema, target)
        return [] if done else [_schema_action(branch.name, target, "the chain options, the same as main's")]
    own = _schema_action(branch.name, target, "columns and options, the same as main's will be")
    return [_record_action(record, target.id), own]


def _record_action(record: BranchRecord, schema_id: int) -> Action:
    said = replace(record, schema_id=schema_id)
    return Replace(
        path=branch_record_path(record.branch), data=said.to_bytes(), reason="records what the branch is for"
    )


def _schema_action(branch: str, schema: TableSchema, reason: str) -> Action:
    return PutNew(path=BranchPaths(branch).schema(schema.id), data=schema.to_bytes(), same_ok=True, reason=reason)


def _plan(
    table: str, actions: Sequence[Action], relied: tuple[HeadIs, ...], schema: TableSchema
) -> Plan:  # fmt: skip
    options = TableOptions(schema.options)
    summary = {
        "snapshot_branch": options.snapshot_branch,
        "delta_branch": options.delta_branch,
        "chain_partition_keys": list(chain_keys(schema)),
    }
    return Plan(operation=OPERATION, table=table, preconditions=relied, actions=tuple(actions), summary=summary)


ALTER = "alter_chain_table"
_NEVER: Mapping[str, str] = {
    "chain-table.enabled": "main would be read alone from then on",
    "scan.fallback-snapshot-branch": "main would then be read through other data",
    "scan.fallback-delta-branch": "main would then be read through other data",
}
_MOVES_TIME = "the existing partitions would get another partition time, and every read other rows"
_REORDERS = "it decides which version of an existing row wins"
_WITH_DATA: Mapping[str, str] = {
    "bucket": "partitions with different numbers of buckets can't be merged into one",
    "chain-table.chain-partition-keys": "the existing partitions would form other chains",
    "partition.timestamp-pattern": _MOVES_TIME,
    "partition.timestamp-formatter": _MOVES_TIME,
    "sequence.field.sort-order": _REORDERS,
    "deletion-vectors.enabled": "existing deletes would be read in another way",
    "bucket-function.type": "existing rows would be searched in other buckets",
    "partial-update.remove-record-on-delete": _REORDERS,
    "ignore-delete": _REORDERS,
}


_Apply = Callable[[TableSchema, Sequence[SchemaChange]], TableSchema]


def plan_alter(
    table: str,
    main: BranchNow,
    branches: Sequence[BranchNow],
    previous: TableSchema | None,
    changes: Sequence[SchemaChange],
    now_ms: int,
) -> Plan:
    """Plan the steps until all three branches have the changes; none if they have them.

    ``previous``: the version before main's newest.

    Raises:
        InvalidInputError: a rule is broken, in any branch; nothing may be written then. NotFoundError: a branch.
    """
    if not changes:
        raise InvalidInputError(f"{table}: name at least one change")
    everyone = (*branches, main)
    has_data = any(b.has_data for b in everyone)
    for branch in everyone:
        if branch.schema is None:
            raise NotFoundError(f"{table}: branch {branch.name!r} does not exist; run check_chain_table")
    _check_options(table, changes, has_data)
    apply = partial(apply_changes, has_data=has_data, now_ms=now_ms)
    base = _find_base(table, everyone, previous, changes, apply)
    targets = {b.name: _target(table, b, base, changes, apply) for b in everyone}
    _check_targets(table, targets, main, branches)
    new_id = max(b.current.id + (targets[b.name] is not b.schema) for b in everyone)
    actions: list[Action] = [
        _schema_action(b.name, replace(targets[b.name], id=new_id), f"{len(changes)} changes; main comes last")
        for b in everyone
        if targets[b.name] is not b.schema
    ]
    relied = tuple(HeadIs(branch=b.name, snapshot_id=b.head, schema_id=b.current.id) for b in everyone)
    summary = {"branches": [b.name for b in everyone if targets[b.name] is not b.schema], "schema_id": new_id}
    return Plan(operation=ALTER, table=table, preconditions=relied, actions=tuple(actions), summary=summary)


def _check_options(table: str, changes: Sequence[SchemaChange], has_data: bool) -> None:
    reasons = {**_NEVER, **(_WITH_DATA if has_data else {})}
    for change in changes:
        if isinstance(change, SetOption | RemoveOption) and change.key in reasons:
            kind = "a chain table" if change.key in _NEVER else "a chain table with data"
            raise InvalidInputError(
                f"{table}: option {change.key} of {kind} can't be changed: {reasons[change.key]}; create a new chain "
                f"table and copy the rows"
            )


def _find_base(
    table: str,
    everyone: Sequence[BranchNow],
    previous: TableSchema | None,
    changes: Sequence[SchemaChange],
    apply: _Apply,
) -> tuple[TableSchema, TableSchema]:
    """Find the version that every branch has, unchanged or with the changes; return it without and with them.

    Raises:
        InvalidInputError: the changes break a rule, or a branch has another schema.
    """
    newest = everyone[-1].current
    candidates = [newest, *(b.current for b in everyone[:-1]), *([previous] if previous is not None else [])]
    first_error: InvalidInputError | None = None
    for before in candidates:
        try:
            after = apply(before, changes)
        except InvalidInputError as error:
            first_error = first_error or error
            continue
        if all(b.current.content in (before.content, after.content) for b in everyone):
            return before, after
    other = [b.name for b in everyone if b.current.content != newest.content]
    if first_error is not None and not other:
        raise InvalidInputError(f"{table}: {first_error.message}") from first_error
    raise InvalidInputError(
        f"{table}: branch {', '.join(map(repr, other))} has other columns or keys than main, and not those after these "
        f"changes; nothing was changed. Run check_chain_table and repair that first"
    )


def _target(
    table: str,
    branch: BranchNow,
    base: tuple[TableSchema, TableSchema],
    changes: Sequence[SchemaChange],
    apply: _Apply,
) -> TableSchema:
    """Return the branch's next version; the same object when it already has the changes."""
    schema = branch.current
    columns_done = schema.content == base[1].content != base[0].content
    left = [c for c in changes if isinstance(c, SetOption | RemoveOption)] if columns_done else list(changes)
    try:
        target = apply(schema, left)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{table}: branch {branch.name!r} refuses the change, so nothing was changed: {error.message}"
        ) from None
    before, after = ((s.fields, s.primary_keys, dict(s.options)) for s in (schema, target))
    return schema if before == after else target


def _check_targets(
    table: str, targets: Mapping[str, TableSchema], main: BranchNow, branches: Sequence[BranchNow]
) -> None:
    def problems(schemas: Mapping[str, TableSchema]) -> list[str]:
        main_schema = schemas[MAIN]
        own = schema_problems(main_schema) + set_up_problems(main_schema)
        return [*own, *branch_problems(main_schema, *(schemas[b.name] for b in branches)).values()]

    known = problems({b.name: b.current for b in (main, *branches)})
    new = [p for p in problems(targets) if p not in known]
    if new:
        raise InvalidInputError(
            f"{table}: nothing was changed, as the result would not be a valid chain table: {'; '.join(new)}",
            details={"problems": new},
        )
