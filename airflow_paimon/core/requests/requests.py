"""Requests of the operations: one frozen dataclass per job, the single source of flags, operators and checks.

A field's metadata describes its flag: ``help``, ``choices``, ``repeat`` (a tuple of texts), ``minimum`` (of a
number), ``may_be_blank`` (a text for people: blank = not given), ``only_noted`` (an operation id stands for the same
request whatever it says), ``argument`` (its name in operators, where the field's means another thing to Airflow),
``private`` (it may name a person: Airflow masks it). A bool is a switch. The flag is the field's name with
dashes, without a trailing one (``from_`` is ``--from``). DAG files import this module, so it is cheap to import.

A request's docstring is the text about its operation: its first sentence in ``--help`` and of functions, all of it of
the operator (``make functions``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from typing import Any, ClassVar

VALUES_TIME = "values-time"
UPDATE_TIME = "update-time"
STRATEGIES = (VALUES_TIME, UPDATE_TIME)
GRAMMAR = (
    "add column NAME TYPE ['COMMENT'] [first | after NAME]",
    "drop column NAME",
    "rename column NAME to NAME",
    "alter column NAME type TYPE",
    "alter column NAME comment 'TEXT'",
    "alter column NAME first | after NAME",
    "set KEY=VALUE",
    "reset KEY",
)
"""The forms of a schema change."""
IF_EXISTS = ("fail", "skip", "replace")
IF_MISSING = ("fail", "skip")
TAG_CONFLICT = ("fail", "keep-main", "rename")
ON_OVERLAP = ("fail", "branch", "main")


def _on_overlap() -> Any:
    text = "Whose rows to take of keys that main and the branch both changed; fail is a conflict that lists them"
    return flag(text, "fail", choices=ON_OVERLAP)


def _keep_appended() -> Any:
    return switch(
        "Tables without keys: in partitions that the branch replaces, also keep the rows that main got since the "
        "branch was created"
    )


ENGINES = ("embedded", "connector")


def flag(
    help_text: str,
    default: Any = None,
    *,
    choices: tuple[str, ...] | None = None,
    repeat: bool = False,
    minimum: int | None = None,
    may_be_blank: bool = False,
    only_noted: bool = False,
    argument: str | None = None,
    private: bool = False,
) -> Any:
    """Define a field of a request."""
    more: dict[str, Any] = {"choices": choices, "repeat": repeat, "minimum": minimum, "may_be_blank": may_be_blank}
    more |= {"only_noted": only_noted, "argument": argument, "private": private}
    return field(default=default, metadata={"help": help_text, **more})


def texts(help_text: str, *, argument: str | None = None) -> Any:
    """Define a field of any number of texts, whose flag is repeated."""
    return flag(help_text, (), repeat=True, argument=argument)


def switch(help_text: str) -> Any:
    """Define a field that is off by default."""
    return flag(help_text, False)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Fields common to all operations (docs/contributing/design.md, One result)."""

    operation: ClassVar[str] = ""
    needs_table: ClassVar[bool] = True
    """False: the operation may create the table."""
    takes_patterns: ClassVar[bool] = False
    """``table`` may be names and patterns of several tables, separated by commas."""

    warehouse: str = flag("Warehouse folder or URI, e.g. s3://bucket/warehouse", "")
    table: str = flag("Table as db.table; as db.table$branch_b where an operation works on a branch", "")
    storage_options: Mapping[str, Any] | None = flag(
        "JSON file with options of storage and catalog (may contain secrets)"
    )
    operation_id: str | None = flag("Identity of this operation: a retry with the same id does not do the work twice")
    now: str | None = flag(
        "Time to use as the current time, ISO with an offset; for tests and re-runs", may_be_blank=True
    )
    dry_run: bool = switch("Print the plan, change nothing")


def argument_name(spec: Field[Any]) -> str:
    """Return the name that a field has as an argument of an operator."""
    return spec.metadata["argument"] or spec.name


def flag_name(field_name: str) -> str:
    """Return a field's flag."""
    return "--" + field_name.rstrip("_").replace("_", "-")


def _expected(head: str) -> str:
    return (
        f"Refuse (conflict) unless {head} is this snapshot: ID, or ID:IDENTITY, which excludes another snapshot that "
        f"has the same id"
    )


@dataclass(frozen=True, kw_only=True)
class CreateBranch(Request):
    """Create a branch from a tag, from a snapshot, or empty.

    The files that it shares with main are protected from expiry.
    """

    operation = "create_branch"
    branch: str = flag("Name of the new branch", "")
    tag: str | None = flag("Start from this tag of the source branch; without tag and snapshot the branch is empty")
    snapshot: int | None = flag("Start from this snapshot of the source branch")
    from_branch: str = flag("Source branch", "main")
    if_exists: str = flag(
        "What to do if the branch exists; skip accepts only one with the same base", "fail", choices=IF_EXISTS
    )
    owner: str | None = flag("Owner, recorded with the branch", may_be_blank=True, argument="branch_owner")
    reason: str | None = flag("Reason, recorded with the branch", may_be_blank=True)
    retention: str | None = flag(
        "Retention, e.g. '14 d', or 'forever'; expire_branches deletes the branch afterwards",
        may_be_blank=True,
    )
    protected: bool = switch("Refuse to delete, rename, replace or publish the branch without --force")
    force: bool = switch("With --if-exists replace: replace a protected branch too")


@dataclass(frozen=True, kw_only=True)
class AlterBranch(Request):
    """Change a branch's owner, reason, retention or protection.

    What is left out stays.
    """

    operation = "alter_branch"
    branch: str = flag("Branch to change; only what is given changes", "")
    owner: str | None = flag("New owner", may_be_blank=True, argument="branch_owner")
    reason: str | None = flag("New reason", may_be_blank=True)
    retention: str | None = flag(
        "Retention from the branch's creation on, e.g. '14 d', or 'forever'", may_be_blank=True
    )
    protect: bool = switch("From now on refuse to delete, rename, replace or publish the branch without --force")
    protected_by: str | None = flag("Who protects it; by default its owner", may_be_blank=True)
    unprotect: bool = switch("End the protection")


@dataclass(frozen=True, kw_only=True)
class DeleteBranch(Request):
    """Delete a branch other than main.

    Its protective tag is deleted, too. Refused for branches that table options refer to.
    """

    operation = "delete_branch"
    branch: str = flag("Branch to delete", "")
    expected_branch_snapshot: int | str | None = flag(_expected("the branch's head"))
    if_missing: str = flag("What to do if the branch does not exist", "fail", choices=IF_MISSING)
    force: bool = switch("Delete a protected branch too")


@dataclass(frozen=True, kw_only=True)
class RenameBranch(Request):
    """Rename a branch."""

    operation = "rename_branch"
    branch: str = flag("Branch to rename", "")
    to_branch: str = flag("Its new name", "")
    force: bool = switch("Rename a protected branch too")


@dataclass(frozen=True, kw_only=True)
class RebaseBranch(Request):
    """Rebase a branch: put its changes on a new branch of main's head.

    The branch and main stay as they are. A key, or without keys a file, that both sides changed is a conflict, and
    no branch is created. The new branch gets the owner, the reason, the retention and the protection of the old one.
    """

    operation = "rebase_branch"
    branch: str = flag("Branch whose changes are put onto main's head; it stays as it is", "")
    to_branch: str = flag("Name of the new branch that gets them", "")
    expected_branch_snapshot: int | str | None = flag(_expected("the branch's head"))
    keep_appended: bool = _keep_appended()
    on_overlap: str = _on_overlap()


@dataclass(frozen=True, kw_only=True)
class CreateTag(Request):
    """Tag a snapshot of a branch.

    Its files stay until the tag is deleted or expires.
    """

    operation = "create_tag"
    tag: str = flag("Name of the new tag", "")
    branch: str = flag("Branch to tag", "main")
    snapshot: int | None = flag("Snapshot to tag; by default the latest")
    timestamp: str | None = flag("Tag the newest snapshot that was committed by then: an ISO time with an offset")
    time_retained: str | None = flag("Retention of the tag, e.g. '7 d'; unlimited by default", may_be_blank=True)
    if_exists: str = flag(
        "What to do if the tag exists; skip accepts only one of the same snapshot", "fail", choices=IF_EXISTS
    )
    hold: str | None = flag(
        "Put the tag under a legal hold, for this reason: nothing deletes it, or the branch that has it, until "
        "delete_tag --release-hold. With --if-exists skip a tag that exists is held, too"
    )
    held_by: str | None = flag("Who asked for the hold")


@dataclass(frozen=True, kw_only=True)
class ReplaceTag(Request):
    """Change the snapshot and the retention of a tag.

    Refused for the tags that this package sets itself, and for a tag that a branch or a table set needs or that is
    under a legal hold.
    """

    operation = "replace_tag"
    tag: str = flag("Tag that gets another snapshot and another retention", "")
    branch: str = flag("Branch that has the tag", "main")
    snapshot: int | None = flag("Its new snapshot; by default the latest")
    time_retained: str | None = flag(
        "Its new retention, from now on, e.g. '7 d'; unlimited by default", may_be_blank=True
    )


SET_KEEP, SET_RETENTION = 10, "7 d"


@dataclass(frozen=True, kw_only=True)
class CreateTableSet(Request):
    """Create the next version of a set of tables: one snapshot of each, read as one.

    Run it after the tasks that load the tables. Every table gets a tag of one name, the result's ``tag``, by which
    any engine reads that version; readers of this package also take ``set:<name>``. Expired versions are deleted with
    their tags.

    The result's ``details`` are ``{"table_set", "number", "version", "tag", "created", "operation_id", "tables",
    "expired"}``; ``version`` is ``set:<name>@<number>``, ``tables`` the snapshot ids by table.
    """

    operation = "create_table_set"
    table_set: str = flag("Name of the table set; its next version is created", "")
    member: tuple[str, ...] = texts(
        "Further table of the set, db.table[@VERSION] (repeat): its newest snapshot, or that tag or snapshot id of "
        "main. To give --table a version, name it here as well",
        argument="tables",
    )
    keep: int = flag("How many of the newest versions stay, whatever their age", SET_KEEP, minimum=1)
    retention: str = flag(
        "How long a version stays after a newer one replaced it, e.g. '7 d'",
        SET_RETENTION,
        may_be_blank=True,
    )


@dataclass(frozen=True, kw_only=True)
class RenameTag(Request):
    """Rename a tag of a branch.

    Its snapshot and retention stay. Refused for the tags that this package sets itself.
    """

    operation = "rename_tag"
    tag: str = flag("Tag to rename", "")
    to_tag: str = flag("Its new name", "")
    branch: str = flag("Branch that has the tag", "main")


@dataclass(frozen=True, kw_only=True)
class ResetConsumer(Request):
    """Set or delete the position of a streaming reader.

    Where a position moves forward, an expiry may delete what the reader has not read.
    """

    operation = "reset_consumer"
    consumer: str = flag("Consumer whose position is set, the consumer-id of a streaming reader", "")
    next_snapshot: int | None = flag("Snapshot that it reads next; without it the consumer is deleted")
    branch: str = flag("Branch that it reads", "main")
    if_missing: str = flag("What to do if the consumer to delete does not exist", "fail", choices=IF_MISSING)


@dataclass(frozen=True, kw_only=True)
class ClearConsumers(Request):
    """Delete positions of streaming readers, which then retain no snapshots.

    This concerns all readers of a branch, or those that fit every condition.
    """

    operation = "clear_consumers"
    including: str | None = flag("Only consumers whose whole name matches this regular expression")
    excluding: str | None = flag("Not consumers whose whole name matches this regular expression")
    idle_for: str | None = flag("Only consumers whose position has not changed for this long, e.g. '7 d'")
    branch: str = flag("Branch that they read", "main")


@dataclass(frozen=True, kw_only=True)
class DeleteTag(Request):
    """Delete a tag of a branch.

    Refused for the tag that protects a branch, and for one under a legal hold.
    """

    operation = "delete_tag"
    tag: str = flag("Tag to delete", "")
    branch: str = flag("Branch that has the tag", "main")
    if_missing: str = flag("What to do if the tag does not exist", "fail", choices=IF_MISSING)
    release_hold: bool = switch("Delete a tag that is under a legal hold, too: the hold ends with it")


@dataclass(frozen=True, kw_only=True)
class AlterTable(Request):
    """Change columns and options of a table's branch, all changes as one schema version.

    Data files stay as they are. Changes that the newest version already has are left out.
    ``details["publish"]`` shows for each open branch whether it can still be published. Chain tables are altered by
    ``alter_chain_table``.
    """

    operation = "alter_table"
    branch: str = flag("Branch to alter", "main")
    change: tuple[str, ...] = texts(f"Schema change (repeat): {'; '.join(GRAMMAR)}")


@dataclass(frozen=True, kw_only=True)
class Approved(Request):
    """Fields of what brings rows to main or takes rows from it, which may need an approval and checks."""

    approved_by: str | None = flag("Who approved, recorded in the snapshot's properties", may_be_blank=True)
    requested_by: str | None = flag("Who asked for it, recorded in the snapshot's properties", may_be_blank=True)
    four_eyes: bool = switch("Refuse unless another person than --requested-by approved (--approved-by)")
    skip_checks: bool = switch(
        "Continue although a check that the table requires is missing or failed; the snapshot's properties record it"
    )


@dataclass(frozen=True, kw_only=True)
class Publish(Approved):
    """Fields common to all publishes: compare-and-swap, undo tag, approval."""

    expected_main_snapshot: int | str | None = flag(_expected("main's head"))
    undo_retention: str = flag("Retention of the undo tag on main's previous head, e.g. '7 d', or 'forever'", "7 d")
    approved_at: str | None = flag(
        "When it was approved, ISO with an offset, recorded in the snapshot's properties",
        may_be_blank=True,
        only_noted=True,
    )
    reason: str | None = flag(
        "Reason, recorded in the snapshot's properties, in addition to the branch's own reason",
        may_be_blank=True,
        only_noted=True,
    )
    changelog: str = flag(
        "Tables with a changelog-producer: auto emits the changes to streaming readers, and reads the replaced buckets "
        "and their replacements for it; none emits nothing",
        "auto",
        choices=("auto", "none"),
    )


@dataclass(frozen=True, kw_only=True)
class PublishBranch(Publish):
    branch: str = flag("Branch to publish onto main", "")
    expected_branch_snapshot: int | str | None = flag(_expected("the branch's head"))
    approved_main_snapshot: int | str | None = flag(
        "Main's head as the approver saw it, ID or ID:IDENTITY: refuse (conflict) if main has since changed what this "
        "publish replaces"
    )
    diff: str | None = flag(
        "Path of a JSON file with the result of diff_branches: the audit keeps its totals. The diff of "
        "another snapshot of the branch is left out, with a warning",
        only_noted=True,
    )
    writers_stopped: bool = switch(
        "Confirm that no writer stays open during the publish, so that high sequence numbers are harmless"
    )
    force: bool = switch("Publish a protected branch too")
    tag_conflict: str = flag(
        "What to do if main has a tag of the same name on another snapshot; rename renames main's to NAME.main-DATE",
        "fail",
        choices=TAG_CONFLICT,
    )


def _discard_main() -> Any:
    return switch("Continue if main changed since the branch was created: main loses those changes")


def _tags() -> Any:
    return switch("Copy the branch's own tags to main, those on a state that main then has")


@dataclass(frozen=True, kw_only=True)
class MergeBranch(PublishBranch):
    """Publish a branch onto main as one snapshot, and keep what main got since.

    Buckets that both sides changed are merged by key (tables without keys: by file); a key that both sides changed is a
    conflict.
    """

    operation = "merge_branch"
    partitions: tuple[str, ...] = texts(
        "Publish only these partitions of the branch, e.g. dt=2025-01-01; the others stay on it (repeat)"
    )
    tags: bool = _tags()
    revert_compaction: bool = switch(
        "Tables without keys: revert a compaction of main that has merged files that the branch changed"
    )
    keep_appended: bool = _keep_appended()
    on_overlap: str = _on_overlap()


@dataclass(frozen=True, kw_only=True)
class FastForward(PublishBranch):
    """Publish a branch onto main; refused if main changed since the branch was created."""

    operation = "fast_forward"
    discard_main: bool = _discard_main()
    tags: bool = _tags()


@dataclass(frozen=True, kw_only=True)
class ReplaceMain(PublishBranch):
    """Replace the whole state of main by that of a branch: rows, columns, options, and the branch's tags.

    The branch and its jobs stay as they are. Another ``replace_main`` with the branch that ``keep_old_as`` names
    undoes it: rows, columns and options. A ``rollback_to`` to the undo tag restores the rows only.
    """

    operation = "replace_main"
    discard_main: bool = _discard_main()
    keep_old_as: str | None = flag("Keep main as it was, rows, columns and options, as a branch of this name")
    options: str = flag(
        "Whose table options and comment main gets; main keeps its own options of expiry",
        "branch",
        choices=("branch", "main"),
    )
    option: tuple[str, ...] = texts("Further table option for main, e.g. bucket=8 (repeat)")
    move_consumer: tuple[str, ...] = texts(
        "Consumer of the branch that continues on main after this publish; it must have read everything (repeat)"
    )
    readers_stopped: bool = switch(
        "Confirm that main has no readers during the publish: columns may get narrower types shortly before their rows"
    )


@dataclass(frozen=True, kw_only=True)
class RollbackTo(Publish):
    """Roll a branch back to the live files of an earlier snapshot or tag, as a new snapshot.

    To undo a publish, give ``tag="airflow-paimon-undo-..."`` (the publish's ``details`` name it) and ``keep_later``.
    """

    operation = "rollback_to"
    branch: str = flag("Branch to roll back", "main")
    tag: str | None = flag("Roll back to the live files of this tag")
    snapshot: int | None = flag("Roll back to the live files of this snapshot")
    timestamp: str | None = flag(
        "Roll back to the newest snapshot that was committed by then: an ISO time with an offset"
    )
    watermark: str | None = flag(
        "Roll back to the newest snapshot whose watermark is not later: an ISO time with an offset"
    )
    keep_later: bool = switch(
        "Undo a publish: restore only what it changed, and keep later changes, also of other keys; refuse (conflict) "
        "if the same keys (tables without keys: files) have changed again"
    )
    writers_stopped: bool = switch(
        "Confirm that no writer stays open during the rollback, so that dynamic buckets may lose or regain keys"
    )


@dataclass(frozen=True, kw_only=True)
class DiffBranches(Request):
    """Compare the rows of two branches, or of a branch and its base.

    ``details`` have counts and samples per partition.
    """

    operation = "diff_branches"
    branch: str = flag("Branch to compare, or a version of one: BRANCH@VERSION", "")
    against: str = flag(
        "Branch to compare with, 'base' for the branch point, or a version of a branch: BRANCH@VERSION (a tag or a "
        "snapshot id of it)",
        "base",
    )
    partitions: tuple[str, ...] = texts("Only these partitions, e.g. dt=2025-01-01 (repeat)")
    sample: int = flag("Sample rows per partition and kind of change", 5, minimum=0)
    mask: tuple[str, ...] = texts(
        "Column whose values no sample shows (repeat), in addition to the table option airflow-paimon.masked-columns"
    )


@dataclass(frozen=True, kw_only=True)
class CheckBranchData(Request):
    """Check the rows of a branch against rules.

    A broken rule fails the operation, unless its severity is ``warn``. The results are stored for the branch's newest
    snapshot. A publish of a table with the option ``airflow-paimon.required-checks`` requires them.
    """

    operation = "check_branch_data"
    branch: str = flag("Branch to check", "")
    rules: str | None = flag(
        "Path of a JSON file with rules, in addition to the table option airflow-paimon.required-checks"
    )
    against: str = flag(
        "What the branch is compared with: its base, or main as it is now, which is what a publish with --discard-main "
        "replaces; a branch that was created empty is always compared with main. With --version: base is the snapshot "
        "after it, main the branch as it is now",
        "base",
        choices=("base", "main"),
    )
    version: str | None = flag(
        "Tag or snapshot id of the branch to check instead of its newest snapshot, before rollback_to goes back to it: "
        "an undo is compared with base, any other rollback with main"
    )
    view: tuple[str, ...] = texts(
        "Additional input table for rules that are SQL, name=db.table[$branch_b][@VERSION] (repeat)"
    )
    restricted_sql: bool = switch(
        "Refuse rules of --rules that reach beyond the tables, as rules of the table option always are: paths of "
        "files, calls of Java, scripts, variables of the environment, functions that are not Spark's own"
    )
    allow_module: tuple[str, ...] = texts("Module whose functions rules of the table option may call (repeat)")
    sample: int = flag("Sample rows of each rule that is broken", 5, minimum=0)
    mask: tuple[str, ...] = texts(
        "Column whose values no sample shows (repeat), or db.table:column of another table that rules read (* is a "
        "wildcard), in addition to the table option airflow-paimon.masked-columns"
    )


@dataclass(frozen=True, kw_only=True)
class CorrectBranch(Request):
    """Correct a branch by UPDATE, DELETE, MERGE or INSERT statements, or by the rows of a query or a function."""

    operation = "correct_branch"
    branch: str = flag("Branch to write", "")
    sql: str | None = flag(
        "UPDATE, DELETE, MERGE or INSERT statements on the view branch, separated by semicolons and committed "
        "together, or one SELECT, or the path of a file with them; they see the views branch, main and those of --view"
    )
    function: str | None = flag("module:name, called as name(spark, views) and returning a DataFrame")
    view: tuple[str, ...] = texts("Additional input table for the SQL, name=db.table[$branch_b][@VERSION] (repeat)")
    restricted_sql: bool = switch(
        "Refuse SQL that reaches beyond the tables: paths of files, calls of Java, scripts, variables of the "
        "environment, functions that are not Spark's own"
    )
    all_rows: bool = switch("Confirm an UPDATE or DELETE without WHERE, or an INSERT OVERWRITE of the whole table")
    mode: str = flag(
        "For a SELECT: overwrite replaces the partitions with its rows; upsert inserts or updates rows by primary key",
        "overwrite",
        choices=("overwrite", "upsert"),
    )
    partitions: tuple[str, ...] = texts("For a SELECT: partition to overwrite, e.g. dt=2025-01-01 (repeat)")
    engine: str = flag(
        "Who runs the statement: this package, or Paimon's own Spark connector, which takes one UPDATE, DELETE, MERGE "
        "or INSERT",
        "embedded",
        choices=ENGINES,
    )


@dataclass(frozen=True, kw_only=True)
class PlanCorrection(Request):
    """Plan a correction from metadata alone: what it will read and write, and what conflicts with it.

    Takes the arguments of ``correct_branch``, and runs nothing. Fails as the correction would, where the table or the
    request make that certain. See :doc:`/howto/plan-a-correction`.
    """

    operation = "plan_correction"
    branch: str | None = flag(
        "Branch that will be corrected; if it doesn't exist yet, or none is given, --from-branch as it is now"
    )
    from_branch: str = flag("Branch that it will be made from, of a chain table the snapshot or delta branch", "main")
    sql: str | None = flag("Statements or the path of a file, as correct_branch will get them")
    function: str | None = flag("module:name that correct_branch will get; it is not called")
    view: tuple[str, ...] = texts("Additional input table for the SQL, name=db.table[$branch_b][@VERSION] (repeat)")
    mode: str = flag("For a SELECT: overwrite or upsert", "overwrite", choices=("overwrite", "upsert"))
    partitions: tuple[str, ...] = texts("For a SELECT: partition to overwrite, e.g. dt=2025-01-01 (repeat)")


@dataclass(frozen=True, kw_only=True)
class Compact(Request):
    """Merge small files and sorted runs into few, and drop deleted rows.

    Append tables: small files, up to ``target-file-size``. Primary-key tables: the files of each bucket, into one
    sorted run on the highest level. Rows keep their ids and versions, or their sequence numbers. Each commit has some
    groups of files, and a retry continues where the first attempt stopped. ``details`` count the files, bytes and
    rows, and list the snapshots.

    Several tables (``table="sales.*"``, or names with commas between) share one Spark application.
    ``details["tables"]`` has the result of each. A table that fails doesn't stop the others.
    """

    operation = "compact"
    takes_patterns = True
    branch: str = flag("Branch to compact", "main")
    partitions: tuple[str, ...] = texts("Only these partitions, e.g. dt=2025-01-01 (repeat)")
    min_files: int = flag(
        "Append tables: leave partitions with fewer small files as they are; files with deleted rows are always "
        "rewritten",
        5,
        minimum=2,
    )
    max_sorted_runs: int | None = flag(
        "Primary-key tables: merge only buckets with more sorted runs than this (each file of level 0, each higher "
        "level); by default all that are not merged completely",
        minimum=1,
    )
    writers_stopped: bool = switch(
        "Primary-key tables: also compact buckets that a running job of another engine may have open: confirm that "
        "none is running"
    )


@dataclass(frozen=True, kw_only=True)
class CompactManifest(Request):
    """Merge the manifests of a branch into few, sorted by partition, without deleted entries.

    The commit is one COMPACT snapshot of the same files; without a change there is no commit. ``details`` has
    ``before`` and ``after``, each with ``manifests``, ``bytes``, ``entries`` and ``delete_entries``, and how many
    manifests were ``rewritten``.
    """

    operation = "compact_manifest"
    branch: str = flag("Branch whose newest snapshot gets fewer manifests", "main")
    manifest_sort_enabled: bool = switch(
        "Also rewrite large manifests whose partitions overlap, so that a read of few partitions reads few of them; by "
        "default the option manifest-sort.enabled"
    )


@dataclass(frozen=True, kw_only=True)
class Rescale(Request):
    """Distribute the rows of a table with fixed buckets, or of some partitions, to another number of buckets.

    One commit, which ``rollback_to`` undoes with ``snapshot=result["snapshot_before"]``. No row changes. Partitions
    that already have that number stay as they are. Stop the writers of other engines to these partitions first; writers
    of this package detect the change and rewrite their rows.
    """

    operation = "rescale"
    branch: str = flag("Branch to rescale", "main")
    bucket_num: int | None = flag(
        "How many buckets each partition gets; by default the option bucket, which becomes this number when the whole "
        "table is rescaled",
        minimum=1,
    )
    partitions: tuple[str, ...] = texts("Only these partitions, e.g. dt=2025-01-01 (repeat); the option stays")
    writers_stopped: bool = switch("Confirm that no job of another engine writes these partitions")


@dataclass(frozen=True, kw_only=True)
class ExpireBranches(Request):
    """Delete branches whose retention has passed, unless they are protected or have unpublished commits.

    Branches that an option or another branch needs also stay. ``details`` has ``expired`` and ``kept`` with a reason
    for each, ``later`` with those whose retention has not passed, and ``expiring_soon``.
    """

    operation = "expire_branches"
    older_than: str | None = flag("Also expire branches without a retention that were created longer ago, e.g. '30 d'")
    idle_for: str | None = flag(
        "Also expire branches without a retention that got no commit for this long, e.g. '14 d'; with --older-than, "
        "both conditions apply"
    )
    owner: str | None = flag(
        "Only branches of this owner, or of this pattern of owners: 'data_correction/*'", argument="branch_owner"
    )
    drop_unpublished: bool = switch("Expire branches with commits that main doesn't have, too")
    notify_before: str | None = flag("Also list the branches that expire within this time, e.g. '3 d'")


def _whole_table_memory() -> Any:
    return flag("Approximate MiB of memory for the list of files; the rest is in a temporary file", 256, minimum=1)


@dataclass(frozen=True, kw_only=True)
class RemoveOrphanFiles(Request):
    """Delete old files that no snapshot, tag or changelog of any branch refers to.

    These are files of failed writers, deleted branches and rolled back snapshots, and old operation records.
    If metadata that names files is unreadable, or a branch is incomplete, nothing is deleted. ``details`` has files and
    bytes by folder, and what stays and why: ``referenced``, ``young``, ``kept_for_writers``, ``unknown``. A dry run
    plans by this machine's clock.
    """

    operation = "remove_orphan_files"
    older_than: str = flag(
        "Delete only files that are older than this, e.g. '1 d', by the storage's time, or than an ISO time "
        "with an offset; at least 1 h: longer than any writer takes from its first file to its commit",
        "1 d",
    )
    records_older_than: str = flag(
        "Delete operation records that are older, e.g. '30 d', at least 7 d: longer than any retry can come", "30 d"
    )
    memory_mb: int = _whole_table_memory()


@dataclass(frozen=True, kw_only=True)
class CheckTable(Request):
    """Find incomplete branches, missing protective tags, missing files and stale records.

    The findings are in ``details``.
    """

    operation = "check_table"
    verify_files: bool = flag("Also check that every referenced data file exists", True)
    verify_keys: bool = switch(
        "Also read the keys. Tables with dynamic buckets: compare them with the index. Tables whose readers merge "
        "nothing (deletion vectors, first-row): find duplicate keys"
    )
    memory_mb: int = _whole_table_memory()


@dataclass(frozen=True, kw_only=True)
class StorageUsage(Request):
    """Count the bytes that each branch, tag and range of snapshots retains, and what its deletion would free.

    Reads the whole folder's listing and all metadata of all branches, no data files. ``details["references"]`` begins
    with what frees the most; see :doc:`/howto/storage-usage`.
    """

    operation = "storage_usage"
    limit: int = flag(
        "How many references to list, those whose deletion frees the most first; 0 for all", 100, minimum=0
    )
    memory_mb: int = _whole_table_memory()


@dataclass(frozen=True, kw_only=True)
class FindRows(Request):
    """Find the stored files with rows of a condition, on all branches, and the snapshots and tags that need them.

    Changes nothing. Reads physical rows: also deleted ones, old versions of a key, changelogs, and files that only old
    snapshots or tags, or no snapshots, refer to. ``details["proven"]`` is true when no file contains such a row and
    every file could be checked. Results, logs and XComs contain no value of a row. See :doc:`/howto/erase-rows`.
    """

    operation = "find_rows"
    where: str = flag(
        'Condition on columns of main, e.g. "user_id = 17": comparisons with literals, [NOT] IN, '
        "[NOT] BETWEEN, [NOT] LIKE, IS [NOT] NULL, NOT, AND, OR and parentheses",
        "",
        private=True,
    )
    limit: int = flag("How many files with such rows to list, those with the most first; 0 for all", 100, minimum=0)


@dataclass(frozen=True, kw_only=True)
class EraseRows(FindRows, Approved):
    """Erase rows of a condition from main, every branch, and old snapshots and tags.

    One commit for each branch. A dry run returns the plan: what will be deleted, what stays, and what refers to it.
    ``details["complete"]`` is true when no stored file contains such a row any more; until then run it again. Refused
    where a tag under a legal hold has such rows. See :doc:`/howto/erase-rows`.
    """

    operation = "erase_rows"
    expire_tags: bool = switch("Expire the tags that still reach such rows; else they are listed")
    expire_history: bool = switch("Expire the snapshots that still reach such rows; else they are listed")
    grace: str = flag(
        "How long files stay after their snapshot or tag has expired; a run after that deletes them", "1 h"
    )
    writers_stopped: bool = switch(
        "Confirm that no process writes, reads, tags or branches: allows a shorter --grace, '0 s' for none"
    )
    orphans_older_than: str = flag("Delete files that nothing refers to once they are older, at least 1 h", "1 d")
    reason: str | None = flag(
        "Why, recorded in the snapshots' properties and the audit: name no person", may_be_blank=True
    )


@dataclass(frozen=True, kw_only=True)
class ExportAudit(Request):
    """Write who changed tables, why, and who approved it, to a file or to a table.

    A table gets each record once, and later changes of it, such as an undo. A run without new records commits
    nothing. :doc:`/howto/audit` describes the fields.
    """

    operation = "export_audit"
    takes_patterns = True
    from_: str | None = flag("Only what was committed from this date or ISO time with an offset on")
    to: str | None = flag("Only what was committed before this date or ISO time with an offset")
    uri: str | None = flag("File to write, which is replaced")
    format: str | None = flag(
        "Format of the file; by default from the end of its name, else json", choices=("json", "csv", "markdown")
    )
    to_table: str | None = flag("Paimon table that gets what it lacks, db.table; created if it is missing")
    skip_unreadable: bool = switch("Leave tables out whose audit can't be read, and list them; else nothing is written")


@dataclass(frozen=True, kw_only=True)
class TableHealthCheck(Request):
    """Score the health of tables by their files and metadata, with reasons and recommended fixes.

    ``details`` have a score from 0 to 100, and its reasons. For several tables (``table="sales.*"``, ``"*"`` for the
    whole warehouse, or names with commas between) ``details["tables"]`` has these values, the worst first. Tables that
    can't be read come before these, with their ``error``.

    Reads the manifests of the newest and the oldest snapshot, no data files. Each reason has a value and its limit,
    the operation that fixes it and the bytes that this costs; see :doc:`/howto/table-health`.
    """

    operation = "table_health"
    takes_patterns = True
    storage: bool = switch("Also list the table's folder, and count what nothing refers to")
    limit: int = flag("How many tables to list, the worst first; 0 for all", 100, minimum=0)


@dataclass(frozen=True, kw_only=True)
class RepairTable(Request):
    """Repair the findings of check_table."""

    operation = "repair_table"
    finding: tuple[str, ...] = texts(
        "Repair only these finding ids of check_table (repeat); by default all that are safe to repair"
    )


GAP_POLICIES = ("empty", "carry_forward")


@dataclass(frozen=True, kw_only=True)
class CreateChainTable(Request):
    """Create a chain table, or convert a primary-key table, with its branches and options.

    Everything is checked before the first write. The next attempt finishes an interrupted run.
    """

    operation = "create_chain_table"
    needs_table = False
    column: tuple[str, ...] = texts(
        "Column of a new table: name TYPE [NOT NULL] ['comment'] (repeat); without any, an existing table is converted"
    )
    primary_key: tuple[str, ...] = texts("Primary key column of a new table (repeat)")
    partition_key: tuple[str, ...] = texts("Partition column of a new table (repeat)")
    option: tuple[str, ...] = texts("Table option, key=value (repeat)")
    snapshot_branch: str = flag("Branch with the full partitions", "snapshot")
    delta_branch: str = flag("Branch with the changes", "delta")
    chain_partition_key: tuple[str, ...] = texts("Partition column of the partition time (repeat); by default all")
    timestamp_pattern: str | None = flag("Pattern of the partition time over the chain columns, e.g. '$dt'")
    timestamp_formatter: str | None = flag("Format of the partition time, e.g. yyyyMMdd")
    sequence_field: tuple[str, ...] = texts("Column that orders the versions of a row (repeat)")


@dataclass(frozen=True, kw_only=True)
class AlterChainTable(Request):
    """Apply one schema change to all three branches of a chain table, or to none.

    The next attempt finishes an interrupted run.
    """

    operation = "alter_chain_table"
    change: tuple[str, ...] = texts(f"Schema change for all three branches (repeat): {'; '.join(GRAMMAR)}")


@dataclass(frozen=True, kw_only=True)
class CheckChainTable(Request):
    """Find problems of a chain table: option drift, gaps, stale partitions, hidden deltas.

    The findings are in ``details``, worst first; ``details["ok"]`` is true when none is an error or a warning.
    """

    operation = "check_chain_table"


@dataclass(frozen=True, kw_only=True)
class CompactChainTable(Request):
    """Compact partitions of a chain table into full partitions of its snapshot branch.

    Specify partitions, a range, or a longest chain; ``partition`` narrows the latter two, for example to one group.
    Each partition is a separate commit. ``details["partitions"]`` has its outcome: ``compacted``, ``stale-rebuilt``,
    ``exists``, ``gap``, ``nothing-to-do``. A retry continues where the first attempt stopped.
    """

    operation = "compact_chain_table"
    partition: tuple[str, ...] = texts("Partition to compact, k=v,...; without group columns: in every group (repeat)")
    from_: str | None = flag("First partition of a range, k=v,... of the chain columns")
    to: str | None = flag("Last partition of a range")
    pending: bool = switch("Compact every chain of more than --max-chain-length deltas, and stale partitions")
    max_chain_length: int | None = flag("With --pending: the most deltas that a chain may have; default 31")
    overwrite: bool = switch("Rebuild partitions that the snapshot branch already has")
    gap_policy: str = flag("What to do for a partition without a delta", "empty", choices=GAP_POLICIES)
    task_memory_mb: int = flag(
        "Approximate MiB of rows that a task keeps in memory, whatever the size of a bucket", 256, minimum=1
    )


@dataclass(frozen=True, kw_only=True)
class ExpirePartitions(Approved):
    """Drop partitions that are too old; in a chain table, whole segments.

    Anchors that other partitions need stay. ``details`` list what expired and why, by segment. Data files are deleted
    when their snapshots expire. Where the table or the connection requires an approval, a request with another age,
    strategy or time pattern needs one; an expiry by the table's options doesn't.
    """

    operation = "expire_partitions"
    branch: str = flag("Branch to expire; chain tables always expire as a whole", "main")
    expiration_time: str | None = flag("Age, e.g. '30 d'; by default the option partition.expiration-time")
    strategy: str | None = flag(
        "values-time or update-time; by default the option partition.expiration-strategy", choices=STRATEGIES
    )
    timestamp_pattern: str | None = flag(
        "Pattern of the partition time; by default the option partition.timestamp-pattern"
    )
    timestamp_formatter: str | None = flag(
        "Format of the partition time; by default the option partition.timestamp-formatter"
    )
    min_full_partitions: int = flag("Chain tables: the least number of full partitions that each group keeps", 1)
    limit: int | None = flag(
        "The most partitions (chain tables: segments per group) to expire in one run; "
        "by default the option partition.expiration-max-num (100)"
    )

    @property
    def is_by_own_options(self) -> bool:
        """Whether the table's options alone say what is too old: its owner's decision, which needs no approval."""
        return not any(
            (self.expiration_time, self.strategy, self.timestamp_pattern, self.timestamp_formatter, self.now)
        )


GRACE, LEAST_GRACE, RETRY_WINDOW = "1 h", "10 min", "1 d"


@dataclass(frozen=True, kw_only=True)
class Expiry(Request):
    """Fields common to both: where, how old, and how long what was taken away waits in the trash."""

    branch: str = flag("Branch to expire", "main")
    all_branches: bool = switch("Expire main and every branch")
    older_than: str | None = flag("An age, e.g. '7 d', or an ISO time with an offset")
    grace: str = flag(
        "How long files stay after their snapshot or tag has expired, for readers and tags that began before; at "
        f"least {LEAST_GRACE!r}",
        GRACE,
    )
    writers_stopped: bool = switch(
        "Confirm that no process writes, reads, tags or branches: allows a shorter --grace, '0 s' for none"
    )


@dataclass(frozen=True, kw_only=True)
class ExpireSnapshots(Expiry):
    """Expire old snapshots, and delete the files that no branch, tag or reader needs any more.

    ``details`` has ``expired`` by branch and what each is ``retained_by``, what was ``deleted``, what was ``kept`` and
    by which tag, branch or snapshot, and what waits in the ``trash``.
    """

    operation = "expire_snapshots"
    retain_min: int | None = flag(
        "How many of the newest snapshots always stay; by default the option snapshot.num-retained.min (10)", minimum=1
    )
    retain_max: int | None = flag(
        "How many snapshots stay at most, whatever their age; by default the option snapshot.num-retained.max",
        minimum=1,
    )
    max_deletes: int | None = flag("The most snapshots of a branch that expire in one run", minimum=1)
    keep_undo: bool = flag("Keep the snapshots that the undo of a publish needs, while its undo tag lives", True)
    retry_window: str = flag(
        "Keep snapshots for this long, so that the retry of an operation, or of a stream's batch, finds its commit",
        RETRY_WINDOW,
    )


@dataclass(frozen=True, kw_only=True)
class ExpireChangelogs(Expiry):
    """Expire old long-lived changelogs, and delete the files that no branch, tag or reader needs any more.

    ``details`` are those of ``expire_snapshots``.
    """

    operation = "expire_changelogs"
    retain_min: int | None = flag(
        "How many of the newest snapshots and changelogs, counted together, always stay; by default the option "
        "changelog.num-retained.min",
        minimum=1,
    )
    retain_max: int | None = flag(
        "How many of these stay at most, whatever their age; by default the option changelog.num-retained.max",
        minimum=1,
    )
    max_deletes: int | None = flag("The most changelogs of a branch that expire in one run", minimum=1)
    delete_all: bool = switch("Expire all long-lived changelogs, the newest one too, but for what a consumer needs")


@dataclass(frozen=True, kw_only=True)
class ExpireTags(Expiry):
    """Expire old tags, and delete the files that no branch, tag or reader needs any more.

    A tag that a branch, an undo or a publish needs stays; ``details.needed`` shows what needs it.
    """

    operation = "expire_tags"
    prefix: str | None = flag("Only tags whose name begins with this")
    include_unlimited: bool = switch("With --older-than: also tags without a retention, by the age of the tag's file")


@dataclass(frozen=True, kw_only=True)
class TriggerTagAutomaticCreation(Request):
    """Create the automatic tags of main that are due, and expire old ones.

    The table's option ``tag.automatic-creation`` specifies which are due, for all commits since the last one; a table
    without it gets none. ``tag.num-retained-max`` and the tags' retention specify which expire. Tags that a branch or a
    table set needs, or that are under a legal hold, stay.
    """

    operation = "trigger_tag_automatic_creation"


@dataclass(frozen=True, kw_only=True)
class MarkPartitionDone(Request):
    """Mark partitions as done, for downstream jobs.

    The table's option ``partition.mark-done-action`` specifies how; by default by a file ``_SUCCESS`` in the
    partition's folder.
    """

    operation = "mark_partition_done"
    partitions: tuple[str, ...] = texts(
        "Complete partitions, e.g. dt=2025-01-01 (repeat, or several with semicolons); the last columns may be left out"
    )


@dataclass(frozen=True, kw_only=True)
class ReplayBranch(Request):
    """Run a function or statements over upstream tables, from a snapshot on, into branches.

    A retry continues where the first attempt stopped. A batch reads the same snapshots and doesn't repeat what has been
    committed; streams continue from their checkpoints. ``details`` has for each source where it started and how far it
    was read, and for each target batches, rows and the snapshots before and after.
    """

    operation = "replay_branch"
    branch: str = flag("Branch of the table to write", "")
    source: tuple[str, ...] = texts("Upstream table, name=db.table[$branch_b] (repeat)")
    target: tuple[str, ...] = texts("Further table to write, name=db.table$branch_b (repeat)")
    function: str | None = flag("module:name, called as name(spark, sources, targets, start)")
    sql: str | None = flag(
        "UPDATE, DELETE, MERGE or INSERT statements on the view branch, separated by semicolons, or the path of a file "
        "with them; they see the views branch, main and the sources"
    )
    restricted_sql: bool = switch(
        "Refuse SQL that reaches beyond the tables: paths of files, calls of Java, scripts, variables of the "
        "environment, functions that are not Spark's own"
    )
    all_rows: bool = switch("Confirm an UPDATE or DELETE without WHERE, or an INSERT OVERWRITE of the whole table")
    tag: str | None = flag("Start after this tag of the sources: the targets already contain its rows")
    snapshot: tuple[str, ...] = texts("Start after this snapshot: [name=]ID (repeat)")
    timestamp: str | None = flag("Start with what was committed at this time or later, ISO with an offset")
    available_now: bool = switch("Run the function's streams until nothing is new")
    until_snapshot: tuple[str, ...] = texts(
        "Run the function's streams until they have read this snapshot of a source: [name=]ID (repeat)"
    )
    until_watermark: str | None = flag(
        "Run the function's streams until every source has this watermark and is read, ISO with an offset or epoch "
        "milliseconds"
    )
    timeout: str = flag("How long streams may run, e.g. '1 h'; a re-run continues from their checkpoints", "1 h")
    checkpoint: str | None = flag(
        "Folder for checkpoints of streams, which Spark must reach; by default in the table's folder, if that is local"
    )
