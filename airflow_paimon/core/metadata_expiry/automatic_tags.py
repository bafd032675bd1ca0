"""trigger_tag_automatic_creation: what Paimon's committer does about tags after a commit, for all commits since.

Commits of this package make no tags by themselves: a commit stands whatever becomes of tags, and as a snapshot's
own time or watermark decides, the tags are the same when this runs later, as long as the snapshots are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from airflow_paimon.core.branches.tag_files import makes_success_files, plan_success_file
from airflow_paimon.core.branches.tags import (
    TagChange,
    check_deletable,
    plan_tag,
    refuse_own_name,
    refuse_tag_of_set,
    set_tag,
)
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.metadata_expiry.automatic_tags_plan import (
    NewTags,
    TimedSnapshot,
    batch_tag_name,
    beyond_most,
    newest_automatic,
    plan_new_tags,
)
from airflow_paimon.core.metadata_expiry.expire_snapshots_and_tags import TOO_OLD_OR_MANY, due_tags, select_tags
from airflow_paimon.core.metadata_expiry.expiry_run import ExpiryOutcome, ExpirySelection, expire
from airflow_paimon.core.metadata_expiry.metadata_expiry_plan import TagRule
from airflow_paimon.core.metadata_expiry.root_values import TAG, Roots
from airflow_paimon.core.plan import Plan
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import ExpireTags, TriggerTagAutomaticCreation
from airflow_paimon.core.table.history import existing_snapshots
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN, check_tag_name
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.tag_periods import BATCH, NONE, WATERMARK, TagRules, local_time, tag_rules

_TO_PARTITION = "metastore.tag-to-partition"


def trigger_tag_automatic_creation(context: Context, request: TriggerTagAutomaticCreation) -> OperationResult:
    """Set main's automatic tags that are due, and expire those that are too many or whose retention has passed.

    Raises:
        InvalidInputError: an option has no value that Paimon would take. UnsupportedFeatureError: the tags would be
            partitions of a metastore as well. ConflictError: a snapshot expired meanwhile; ``details.done`` lists the
            tags that are set.
    """
    view = context.table
    rules = automatic_tag_rules(TableOptions(view.schema().options), view.name)
    with attempt_of(context, MAIN, commits=False):
        new = _batch_tag(view, rules) if rules.mode == BATCH else _period_tags(view, rules)
        puts = [_planned(context, view, rules, name, snapshot) for name, snapshot in new.tags]
        marks = [plan_success_file(view, p.tag.name, context.now_ms) for p in puts if makes_success_files(view)]
        made = puts if request.dry_run else _set(context, puts)
        if not request.dry_run:
            execute(view, [mark for put, mark in zip(puts, marks, strict=False) if put in made])
        expired = _expire(context, rules, puts)
    actions = (*(p.action for p in puts), *marks, *expired.plan.actions)
    details = {
        "mode": rules.mode,
        "created": [{"tag": p.tag.name, "snapshot": p.tag.snapshot.id} for p in made],
        "skipped": dict(new.skipped),
        "next": None if new.following is None or rules.periods is None else rules.periods.name_of(new.following),
        **expired.details,
    }
    plan = Plan(operation=request.operation, table=view.name, actions=actions, summary={"mode": rules.mode})
    head = view.latest_snapshot_id()
    changed = bool(made) or expired.changed
    return context.result(plan, branch=MAIN, changed=changed, before=head, after=head, details=details)


def automatic_tag_rules(options: TableOptions, table: str) -> TagRules:
    """Read what a table's options say about automatic tags.

    Raises:
        InvalidInputError, UnsupportedFeatureError: as ``trigger_tag_automatic_creation``.
    """
    rules = tag_rules(options, table)
    if rules.mode != NONE and options.text(_TO_PARTITION):
        raise UnsupportedFeatureError(
            f"{table}: the table option {_TO_PARTITION} makes a partition of the metastore of each automatic tag, "
            f"which only Paimon's own committer does; let that make the tags, or reset the option"
        )
    return rules


def makes_automatic_tags(options: TableOptions, table: str) -> bool:
    """Whether a table's options ask for automatic tags, as this package can make them."""
    try:
        return automatic_tag_rules(options, table).mode != NONE
    except (InvalidInputError, UnsupportedFeatureError):
        return False


def _period_tags(view: Table, rules: TagRules) -> NewTags:
    if rules.periods is None:
        return NewTags()
    names = view.tag_names()
    tagged = {t.name: t.snapshot.id for t in view.tags() if rules.is_automatic(t.name)}
    newest = newest_automatic(rules.periods, (name for name in names if name in tagged))
    after = 0 if newest is None else tagged[newest]
    snapshots = existing_snapshots(view, [i for i in view.snapshot_ids() if i > after])
    return plan_new_tags(rules, tagged, newest, [_timed(rules, s) for s in snapshots])


def _timed(rules: TagRules, snapshot: Snapshot) -> TimedSnapshot:
    millis = snapshot.known_watermark if rules.mode == WATERMARK else snapshot.time_millis
    return TimedSnapshot(snapshot=snapshot, time=None if millis is None else local_time(millis, rules.zone))


def _batch_tag(view: Table, rules: TagRules) -> NewTags:
    """The tag that Paimon's Spark and Flink set, or replace, after each batch write: that of the latest snapshot."""
    head = view.latest_snapshot()
    time = None if head is None else local_time(head.time_millis, rules.zone)
    if head is None or time is None:
        return NewTags()
    name = batch_tag_name(rules, time)
    if rules.batch_name is not None:
        refuse_own_name(view, check_tag_name(name))
    existing = view.find_tag(name)
    if existing is None:
        return NewTags(tags=[(name, head)])
    if existing.snapshot.identity == head.identity:
        return NewTags()
    try:
        check_deletable(view, existing)
        refuse_tag_of_set(view, existing)
    except UnsafeOperationError as error:
        return NewTags(skipped={name: error.message})
    return NewTags(tags=[(name, head)])


def _planned(context: Context, view: Table, rules: TagRules, name: str, snapshot: Snapshot) -> TagChange:
    tag = Tag(name=name, snapshot=snapshot)
    if rules.retained is not None and rules.retained > timedelta():
        tag = replace(tag, create_time=context.now_local, time_retained=rules.retained)
    existing = view.find_tag(name) if rules.mode == BATCH else None
    if existing is None:
        return plan_tag(view, tag)
    reason = f"names snapshot {snapshot.id}, the latest (replaces the tag of snapshot {existing.snapshot.id})"
    return plan_tag(view, tag, existing, reason)


def _set(context: Context, puts: Sequence[TagChange]) -> list[TagChange]:
    """Set the tags, and return those that nobody else has set before."""
    view = context.table
    done: list[TagChange] = []
    for put in puts:
        try:
            set_tag(view, put, context.now_local)
        except AlreadyExistsError:
            continue  # Paimon's committer, or another run, was faster
        except (ConflictError, UnsafeOperationError) as error:
            error.details["done"] = [p.tag.name for p in done]
            raise
        done.append(put)
    return done


def _expire(context: Context, rules: TagRules, puts: Sequence[TagChange]) -> ExpiryOutcome:
    """Expire the tags that are too many, and those whose retention has passed, as ``expire_tags`` does."""
    request, table = context.request, context.table.with_cached_tags()
    expiry = ExpireTags(warehouse=request.warehouse, table=request.table, now=request.now, dry_run=request.dry_run)
    set_now = {put.tag.name: put.tag.snapshot.id for put in puts}

    def choose(roots: Roots) -> ExpirySelection:
        tags = roots.of(MAIN, TAG)
        many = beyond_most(rules, {**{r.name: r.snapshot.id for r in tags}, **set_now})
        due = due_tags(table, tags, TagRule(at=context.now_local)) if rules.expire else []
        return select_tags(table, [*due, *(r for r in tags if r.name in many)], TOO_OLD_OR_MANY)

    return expire(replace(context, request=expiry), choose, operations_since_ms=context.now_ms)
