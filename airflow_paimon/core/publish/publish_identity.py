"""Steps that all publishes and rollbacks share: undo tag, replay, checks of files."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from airflow_paimon.core.branches.retention_tags import try_name
from airflow_paimon.core.commit.committer import CommitIdentity
from airflow_paimon.core.commit.idempotency import Attempt, name_part
from airflow_paimon.core.errors import FormatError, InvalidInputError
from airflow_paimon.core.format.manifest import IndexEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import SetTag
from airflow_paimon.core.publish.approval import approval_properties
from airflow_paimon.core.publish.bucket_merge_plan import BucketChange
from airflow_paimon.core.publish.streaming_readers import CHANGES
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import Publish
from airflow_paimon.core.table.options import requested_retention
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import UNDO_TAG_PREFIX
from airflow_paimon.core.table.properties import (
    APPROVED_AT_PROPERTY,
    CHANGES_PROPERTY,
    DIFF_PROPERTY,
    DURATION_PROPERTY,
    FIGURES_PROPERTY,
    OPERATION_ID_PROPERTY,
    OPERATION_PROPERTY,
    REASON_PROPERTY,
    TRY_PROPERTY,
    UNDO_RETENTION_PROPERTY,
    UNDO_TAG_PROPERTY,
)
from airflow_paimon.core.table.reachability import missing_files, missing_index_files, unreadable_vectors
from airflow_paimon.core.table.table import Table, parse_timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishIdentity:
    """The commit identity of one publish, and the snapshot properties that it sets for retries and for people.

    ``name``: of this try, for what it holds under names of its own.
    """

    tried: Attempt
    name: str
    undo_tag: str
    operation: str
    four_eyes: bool

    @classmethod
    def of(cls, context: Context, tried: Attempt, *, four_eyes: bool) -> PublishIdentity:
        operation_id = context.request.operation_id
        name = uuid.uuid4().hex
        tag = UNDO_TAG_PREFIX + (name_part(operation_id) if operation_id else name)
        if operation_id:
            name = try_name(operation_id, name)
        return cls(tried=tried, name=name, undo_tag=tag, operation=context.request.operation, four_eyes=four_eyes)

    @property
    def commit_identity(self) -> CommitIdentity:
        return self.tried.identity(self.operation)

    def properties(self, context: Context) -> dict[str, str]:
        """Snapshot properties that every publish carries."""
        request = context.request
        assert isinstance(request, Publish)
        out = {
            OPERATION_PROPERTY: request.operation,
            UNDO_TAG_PROPERTY: self.undo_tag,
            UNDO_RETENTION_PROPERTY: request.undo_retention,
            TRY_PROPERTY: self.name,
            DURATION_PROPERTY: str(round((time.monotonic() - context.started) * 1000)),
        }
        if request.operation_id:
            out[OPERATION_ID_PROPERTY] = request.operation_id
        if request.approved_at:
            out[APPROVED_AT_PROPERTY] = request.approved_at
        return out | approval_properties(request, four_eyes=self.four_eyes)


_NUMBERS = frozenset(["branch_snapshot", "base_snapshot", "target_snapshot", "left_partition_count"])
_LISTS = frozenset(["only_partitions"])
_FLAGS = frozenset(["keep_later", "files_restored"])
_FOR_OTHERS = (
    TRY_PROPERTY,
    UNDO_RETENTION_PROPERTY,
    CHANGES_PROPERTY,
    DIFF_PROPERTY,
    FIGURES_PROPERTY,
    DURATION_PROPERTY,
    APPROVED_AT_PROPERTY,
    REASON_PROPERTY,
)
"""Properties that no result says."""


def result_of(context: Context, identity: PublishIdentity, committed: Snapshot) -> OperationResult:
    """Return the result of another try's commit."""
    details = dict(
        _detail(k.removeprefix("airflow-paimon.").replace("-", "_"), v)
        for k, v in committed.properties.items()
        if k not in _FOR_OTHERS
    )
    details |= {"replayed": True}
    if committed.changelog_record_count is not None:
        details["streaming_readers"] = {"see": CHANGES, "changelog_rows": committed.changelog_record_count}
    return context.result(
        None, branch=identity.tried.branch, changed=True, before=committed.id - 1, after=committed.id, details=details
    )


def _detail(key: str, text: str) -> tuple[str, object]:
    """Return a snapshot's property as the first try's result had it."""
    if key in _NUMBERS and text.isdigit():
        return key, int(text)
    if key in _LISTS:
        return key, json.loads(text)
    return key, text == "true" if key in _FLAGS else text


def undo_retention(request: Publish) -> timedelta | None:
    """Return the retention of the undo tag; None = unlimited.

    Raises:
        InvalidInputError: it is not a duration, or not longer than 0.
    """
    text = request.undo_retention
    retained = requested_retention(text, "undo_retention")
    if retained is not None and retained.total_seconds() <= 0:
        raise InvalidInputError(
            f"{request.table}: undo_retention must be greater than 0 (e.g. '7 d') or 'forever', got {text!r}"
        )
    return retained


def check_approved_at(request: Publish) -> None:
    """Refuse a time of the approval that is none.

    Raises:
        InvalidInputError: it is not ISO with an offset.
    """
    if request.approved_at is None:
        return
    try:
        parse_timestamp(request.approved_at)
    except InvalidInputError as error:
        raise InvalidInputError(f"{request.table}: approved_at: {error.message}") from None


def undo_tag_action(request: Publish, view: Table, head: Snapshot) -> SetTag:
    """Return the undo tag as an action of a plan; without an operation id its name is chosen when the tag is set."""
    name = UNDO_TAG_PREFIX + (name_part(request.operation_id) if request.operation_id else "*")
    return SetTag(
        path=view.paths.tag(name),
        snapshot_id=head.id,
        retained=request.undo_retention,
        reason=f"undo is rollback_to this tag ({request.undo_retention})",
    )


def check_files_exist(
    view: Table,
    schema: TableSchema,
    changes: Sequence[BucketChange],
    index: Sequence[IndexEntry],
    checked: set[str],
) -> None:
    """Refuse to publish a missing data or index file, or deletion vectors that can't be read.

    ``checked``: names of files that an earlier attempt found, and that tags have retained since; this attempt adds its
    own.

    Raises:
        FormatError: names the first missing or damaged file.
    """
    adds = [e for c in changes for e in c.add if e.file.file_name not in checked]
    indexes = [i for i in index if i.file_name not in checked]
    lost = missing_files(view, schema, adds) + missing_index_files(view, schema, indexes)
    if lost:
        raise FormatError(
            f"{view.name}: {len(lost)} of {len(adds) + len(indexes)} files to publish are missing, e.g. {lost[0]}: "
            f"another engine expired or cleaned them; nothing was published. Run check_table, then correct again",
            details={"missing": lost[:20]},
        )
    bucket_of, taken = StoredPartitions(schema).bucket, {c.bucket for c in changes}
    vectors = [i for i in indexes if bucket_of(i) in taken]
    for why in unreadable_vectors(view, schema, vectors):
        raise FormatError(
            f"{view.name}: deletion vectors to publish can't be read ({why}); nothing was published. Overwrite their "
            f"partition on the branch"
        )
    checked |= {e.file.file_name for e in adds} | {i.file_name for i in indexes}
