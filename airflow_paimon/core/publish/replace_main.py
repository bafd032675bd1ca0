"""replace_main: what main becomes when a branch takes its place: rows, columns, options, comment and tags; and what
follows its snapshot: consumers, and main as it was, kept as a branch.

The snapshot's properties say what follows, so that a retry completes it. See docs/contributing/publishing.md,
Replacing main.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace

from airflow_paimon.core.branches.create import make_branch
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    FormatError,
    InvalidInputError,
    UnsafeOperationError,
    UnsupportedFeatureError,
    first_few,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import PutNew
from airflow_paimon.core.publish.branch_tags import put_each, tags_for_main, tags_property
from airflow_paimon.core.publish.bucket_merge_plan import MAX_LISTED, Sides, neutral_kinds
from airflow_paimon.core.publish.compare import Comparison
from airflow_paimon.core.publish.hold import publishes_onto
from airflow_paimon.core.publish.planners import FastForwardPlanner, used_schemas
from airflow_paimon.core.publish.publication import Publication
from airflow_paimon.core.publish.publish_schemas import has_columns_of, is_written_with
from airflow_paimon.core.publish.replace_main_plan import (
    check_window,
    columns_diff,
    comment_diff,
    options_diff,
    plan_replaced_schemas,
    replaced_options,
)
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import CreateBranch, ReplaceMain
from airflow_paimon.core.schema.text import parse_options
from airflow_paimon.core.table.branch_record import KEPT_MAIN, matching_branch_record
from airflow_paimon.core.table.consumers import consumer_names, consumer_path, find_consumer
from airflow_paimon.core.table.history import (
    branch_point,
    changed_buckets,
    difference,
    empty_snapshot,
    snapshots_between,
)
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.open_writers import streaming_users
from airflow_paimon.core.table.paths import check_branch_name
from airflow_paimon.core.table.properties import REPLACED_PROPERTY, UNDO_TAG_PROPERTY
from airflow_paimon.core.table.table import Table

_ICEBERG = "metadata.iceberg.storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What a snapshot that replaced main says has to follow it.

    ``kept_old_as``: the branch that keeps main as it was, with the columns and options of ``kept_schema``, a version of
    main's. ``consumers``: those of the branch that go on on main.
    """

    kept_old_as: str | None = None
    kept_schema: int | None = None
    consumers: tuple[str, ...] = ()

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)


def replacement_of_main(snapshot: Snapshot) -> Replacement | None:
    """Return what a snapshot says that replaced main, None for any other one.

    Raises:
        FormatError: it is not JSON.
    """
    if REPLACED_PROPERTY not in snapshot.properties:
        return None
    said = snapshot.values(REPLACED_PROPERTY, dict)  # earlier development versions said more
    return Replacement(**{f.name: said[f.name] for f in fields(Replacement) if f.name in said})


@dataclass(frozen=True, slots=True)
class ReplaceMainPlanner(FastForwardPlanner):
    """Main becomes the branch: rows, columns, options, comment and tags."""

    request: ReplaceMain

    def check(self) -> None:
        _check_request(self.main, self.request)

    def _options(self, mine: TableSchema, theirs: TableSchema) -> tuple[dict[str, str], str | None]:
        """Return the options and the comment that main gets."""
        which, given = self.request.options, parse_options(self.request.option)
        options = replaced_options(self.main.name, mine, theirs, which, given, self.request.branch)
        return options, theirs.comment if which == "branch" else mine.comment

    def base(self) -> Snapshot | None:
        """Also of a branch that was created empty: all that it has comes after that, and all of main as well."""
        found = branch_point(self.main, self.branch)
        if found is not None or not self.request.discard_main:
            return found
        record = matching_branch_record(self.main, self.branch.branch_name)
        if record is None or record.snapshot_id is not None or record.schema_id is None:
            return None
        return empty_snapshot(record.schema_id)

    def _schema_before(self, compared: Comparison) -> TableSchema:
        """Return main's newest version without columns that this try has put, or an unfinished publish may have put.

        Columns that main uses stay: those of other operations that its newest snapshot has, and those of this operation
        with which a live file was written.
        """
        logs, newest = compared.logs, compared.head.schema_id
        own, by_id = self.request.operation_id, {s.id: s for s in logs.main}
        killed = list[tuple[int, list[TableSchema]]]()
        for one in publishes_onto(self.main):
            if one.schema in by_id:
                is_put = one.user == own and not is_written_with(self.main, by_id[one.schema])
                first = one.schema if is_put else max(one.schema, newest)
                killed.append((first, self.main.branch(one.branch).schemas()))
        mine = (s for s in reversed(logs.main) if s.id not in logs.put_schema_ids)
        return next(
            (s for s in mine if not any(s.id > i and has_columns_of(s, by_id[i], theirs) for i, theirs in killed)),
            logs.main[-1],
        )

    def _brings_columns(self, compared: Comparison) -> bool:
        return True  # or options, or takes main's own columns away

    def adjusted_sides(self, base: Snapshot, head: Snapshot, sides: Sides) -> Sides:
        since = _changed_since_kept(self.main, self.branch.branch_name, base, head, sides.ours.buckets)
        return sides if since is None else replace(sides, ours_changed=since)

    def plan(self, compared: Comparison) -> Publication:
        main, request, mine, logs = self.main, self.request, compared.schema, compared.logs
        before = self._schema_before(compared)
        changes = self._changes(compared, "replacing it")
        _check_name_is_free(main, request.keep_old_as, compared.head)
        options, comment = self._options(mine, logs.branch[-1])
        base, used = self._base_schema(compared), used_schemas(changes)
        schemas = plan_replaced_schemas(
            main.name, base, logs.main, logs.branch, used, options, comment, self.context.now_ms
        )
        if not request.readers_stopped:
            check_window(main.name, mine, schemas.new)
        tags = tags_for_main(self.context, request.tag_conflict, self.branch, compared.branch_snapshot, is_state=True)
        _check_consumers(main, self.branch, request.move_consumer, compared.branch_snapshot.id)
        follows = Replacement(
            kept_old_as=request.keep_old_as, kept_schema=before.id, consumers=tuple(request.move_consumer)
        )
        summary: dict[str, object] = {
            "options": [*options_diff(before.options, options), *comment_diff(before.comment, comment)],
            "columns": columns_diff(before, schemas.latest or mine),
            **tags.summary,
            "kept_old_as": request.keep_old_as,
        }
        if follows.consumers:
            summary["moved_consumers"] = list(follows.consumers)
        if users := streaming_users(self.branch, compared.base, compared.branch_snapshot):
            summary["branch_writers"] = users
            summary["warnings"] = [
                f"jobs with commit user {first_few(users, MAX_LISTED)} write branch {request.branch!r}. Do not resume "
                f"one on main from a savepoint as it is: docs/howto/replace-main.md names the settings that it needs"
            ]
        planned = self._publication(compared, changes, schemas, summary)
        return replace(
            planned,
            properties={
                **planned.properties,
                REPLACED_PROPERTY: follows.to_text(),
                **tags_property(tags),
            },
            watermark=compared.branch_snapshot.watermark,
        )


def _check_request(main: Table, request: ReplaceMain) -> None:
    """Refuse what can be seen before anything is read or written.

    Raises:
        InvalidInputError: the name to keep main under, or an option. UnsupportedFeatureError: Iceberg metadata.
    """
    parse_options(request.option)
    for view in (main, main.branch(request.branch)):
        if view.schema().options.get(_ICEBERG, "disabled").strip().lower() != "disabled":
            raise UnsupportedFeatureError(
                f"{view.label}: option {_ICEBERG} is set; its Iceberg metadata would not follow"
            )
    if request.keep_old_as is not None and check_branch_name(request.keep_old_as) == request.branch:
        raise InvalidInputError(f"{main.name}: main can't be kept as branch {request.branch!r}, which replaces it")


def _check_name_is_free(main: Table, name: str | None, head: Snapshot) -> None:
    """Refuse the name of a branch, or of the one that another replacement of main is about to make."""
    if name is None:
        return
    newest = replacement_of_main(head)
    if name in main.branch_names() or (newest is not None and newest.kept_old_as == name):
        raise AlreadyExistsError(
            f"{main.name}: branch {name!r} exists; choose another name in keep_old_as (--keep-old-as)"
        )


def _check_consumers(main: Table, branch: Table, wanted: Sequence[str], head: int) -> None:
    """Check the consumers of the branch that are to go on on main.

    Raises:
        InvalidInputError: the branch has no such consumer. AlreadyExistsError: main has one of that name.
        UnsafeOperationError: it has not read all of the branch, and would miss the rest.
    """
    theirs = consumer_names(branch) if wanted else []
    for name in wanted:
        if name not in theirs:
            has = ", ".join(sorted(theirs)) or "none"
            raise InvalidInputError(f"{main.name}: the branch has no consumer {name!r}; it has: {has}")
        if name in consumer_names(main):
            raise AlreadyExistsError(f"{main.name}: main has a consumer {name!r} already; reset it first")
        position = 0  # an unreadable one counts as having read nothing
        with suppress(FormatError):
            position = find_consumer(branch, name) or 0
        if position <= head:
            raise UnsafeOperationError(
                f"{main.name}: consumer {name!r} has not read the branch's snapshots from {position} to {head}, and on "
                "main it would continue after them; let it catch up first"
            )


def _changed_since_kept(
    main: Table, name: str, base: Snapshot, head: Snapshot, buckets: set[BucketKey]
) -> set[BucketKey] | None:
    """For a branch that keeps main as it was before it was replaced: which of main's buckets changed since it was.

    None: the snapshot after its base is not the one that replaced main.
    """
    after = main.find_snapshot(base.id + 1)
    replaced = None if after is None else replacement_of_main(after)
    if after is None or replaced is None or replaced.kept_old_as != name:
        return None
    since = buckets & difference(main, after, head).buckets
    neutral = neutral_kinds(main.schema())
    return changed_buckets(main, snapshots_between(main, after.id, head.id), since, neutral) if since else since


def follow_replacement(context: Context, main: Table, committed: Snapshot) -> list[str]:
    """Make the branch that keeps main as it was, and move the consumers, if a published snapshot replaced main.

    Idempotent. Returns warnings.
    """
    replaced = replacement_of_main(committed)
    if replaced is None:
        return []
    warnings = [] if replaced.kept_old_as is None else _keep_old_main(context, main, committed, replaced)
    there = set(consumer_names(main)) if replaced.consumers else set()
    data = json.dumps({"nextSnapshot": committed.id + 1}).encode()
    reason = "consumer of the branch that replaced main"
    new = [name for name in replaced.consumers if name not in there]
    put_each(main, [PutNew(path=consumer_path(main, n), data=data, same_ok=True, reason=reason) for n in new])
    return warnings


def _keep_old_main(context: Context, main: Table, committed: Snapshot, replaced: Replacement) -> list[str]:
    """Make the branch that keeps main as it was, from the snapshot before, or the undo tag on it."""
    name, undo = replaced.kept_old_as or "", committed.properties.get(UNDO_TAG_PROPERTY, "")
    before = main.find_snapshot(committed.id - 1)
    request = CreateBranch(
        warehouse=context.request.warehouse,
        table=context.request.table,
        branch=name,
        snapshot=None if before is None else before.id,
        tag=undo if before is None else None,
        if_exists="skip",
        reason=KEPT_MAIN,
        operation_id=f"{committed.commit_user}@{committed.id - 1}",
    )
    try:
        make_branch(replace(context, request=request), request, schema=main.schema(replaced.kept_schema))
    except AlreadyExistsError:
        return [f"another process created branch {name!r} in the meantime: only tag {undo!r} keeps main as it was"]
    return []
