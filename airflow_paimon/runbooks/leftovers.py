"""What correction runs leave in a table: the branch of a run and the tag on its base, found again and removed.

A run owns its branch by its record: the owner is ``dag_id/run_id``, and the tag that the branch was made from
has a name that follows from the owner. Branches and tags of anybody else are left alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import ConflictError, NotFoundError, PaimonError
from airflow_paimon.core.format.snapshot import SnapshotRef
from airflow_paimon.core.table.paths import MAIN, RUN_TAG_PREFIX, is_run_tag
from airflow_paimon.runbooks.form import corrected_table, form_of_table, open_main, request_for
from airflow_paimon.runbooks.kinds import Kind, dag_for
from airflow_paimon.shown.markdown import counted
from airflow_paimon.task_run import REFUSALS, commit_user_prefix

if TYPE_CHECKING:
    from airflow_paimon.core.publish.undoable_publishes import UndoablePublish
    from airflow_paimon.core.table.branch_record import BranchRecord
    from airflow_paimon.core.table.table import Table

CORRECTING_TASKS = ("correct", "replay")
"""The tasks whose commits on a run's branch are the run's own."""
PUBLISHING_TASKS = ("merge", "fast_forward", "publish")
"""The tasks that publish: one that failed otherwise than by a refusal may still be committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A branch, a tag or both of one run. ``owner`` is None for a tag whose branch is gone.

    ``unpublished`` counts the branch's commits when they are not on main, ``foreign`` those of another job among them.
    ``protected``: who protects the branch, and why. ``base``: main, or the branch of a chain table that they are of.
    """

    owner: str | None
    branch: str | None
    tag: str | None
    head: str | None = None
    unpublished: int = 0
    foreign: int = 0
    protected: str | None = None
    base: str = MAIN

    @property
    def label(self) -> str:
        """What a person calls it."""
        named = [f"branch {self.branch}" if self.branch else "", f"tag {self.tag}" if self.tag else ""]
        return " and ".join(filter(None, named))


def run_digest(owner: str) -> str:
    """Identify a run in the names of what it makes."""
    return hashlib.sha256(owner.encode()).hexdigest()[:8]


def run_tag(owner: str) -> str:
    """Name the tag on the snapshot that a run starts from."""
    return RUN_TAG_PREFIX + run_digest(owner)


def own_branch_record(main: Table, planned: Mapping[str, Any]) -> BranchRecord | None:
    """Return the record of the branch that a run planned, if that run has made it; None if there is none or another's.

    ``planned``: what ``plan_branch`` has returned.
    """
    from airflow_paimon.core.table.branch_record import read_branch_record

    record = read_branch_record(main, planned["branch"])
    return record if record is not None and _is_owned_by(record, planned["owner"]) else None


def belongs_to_run(main: Table, branch: str) -> bool:
    """Whether a run of some DAG that corrects has made the branch."""
    from airflow_paimon.core.table.branch_record import read_branch_record

    record = read_branch_record(main, branch)
    return record is not None and record.owner is not None and _is_owned_by(record, record.owner)


def own_publishes(points: Sequence[UndoablePublish], planned: Mapping[str, Any]) -> list[UndoablePublish]:
    """Choose the publishes of a run's branch: those of another branch that had the same name are not its own."""
    return [p for p in points if p.branch == planned["branch"] and p.branch_owner == planned["owner"]]


def run_owner_of(main: Table, branch: str) -> str:
    """Say to whom a branch belongs, as the end of a sentence; empty where no record names an owner."""
    from airflow_paimon.core.table.branch_record import read_branch_record

    record = read_branch_record(main, branch)
    return f": it belongs to {record.owner}" if record is not None and record.owner else ""


def stands(main: Table, planned: Mapping[str, Any]) -> bool:
    """Whether a publish of a run's branch is on main."""
    from airflow_paimon.core.publish.undoable_publishes import publishes_still_on_main

    return bool(own_publishes(publishes_still_on_main(main), planned))


def _is_owned_by(record: BranchRecord, owner: str) -> bool:
    return record.owner == owner and record.from_tag == run_tag(owner)


def find_leftovers(main: Table) -> list[Leftover]:
    """Find what correction runs made and did not delete: of main and the branches of a chain table, or of the branch
    that is given; in the order of the branches' names, then of the tags'.
    """
    from airflow_paimon.core.table.features import is_chain_main
    from airflow_paimon.core.table.options import TableOptions

    options = TableOptions(main.schema().options)
    parts = options.chain_branches if is_chain_main(options, main.branch_name) else ()
    return [one for view in (main, *map(main.branch, parts)) for one in _leftovers_of(view)]


def _leftovers_of(main: Table) -> list[Leftover]:
    from airflow_paimon.core.publish.undoable_publishes import publishes_still_on_main

    published = [p for p in publishes_still_on_main(main) if p.perhaps_undone is None]  # else the branch has to stay
    tags = set(filter(is_run_tag, main.tag_names()))
    found = [one for name in main.branch_names() if (one := _of_branch(main, name, published, tags)) is not None]
    used = {one.tag for one in found}
    return [*found, *(Leftover(owner=None, branch=None, tag=tag, base=main.branch_name) for tag in sorted(tags - used))]


def _of_branch(main: Table, name: str, published: Sequence[UndoablePublish], tags: set[str]) -> Leftover | None:
    from airflow_paimon.core.branches.branch_plan import protection_text
    from airflow_paimon.core.publish.undoable_publishes import is_fully_published
    from airflow_paimon.core.table.branch_record import matching_branch_record

    record = matching_branch_record(main, name)
    if record is None or record.owner is None or record.snapshot_id is None:
        return None
    if not _is_owned_by(record, record.owner) or record.from_branch != main.branch_name:
        return None
    tag = run_tag(record.owner)
    view = main.branch(name)
    head = view.latest_snapshot()
    later = [view.snapshot(i) for i in view.snapshot_ids() if i > record.snapshot_id]
    publishes = [p.snapshot for p in own_publishes(published, {"branch": name, "owner": record.owner})]
    base = view.find_snapshot(record.snapshot_id)
    is_on_main = bool(later) and is_fully_published(main, view, base, later[-1], publishes)
    own = tuple(commit_user_prefix(record.owner.partition("/")[0], task) for task in CORRECTING_TASKS)
    return Leftover(
        owner=record.owner,
        branch=name,
        tag=tag if tag in tags else None,
        head=None if head is None else SnapshotRef.of(head).text,
        unpublished=0 if is_on_main else len(later),
        foreign=sum(not s.commit_user.startswith(own) for s in later),
        protected=protection_text(record) if record.protected else None,
        base=main.branch_name,
    )


def reason_to_keep(leftover: Leftover, *, in_use: bool, drop_unpublished: bool) -> str | None:
    """Say why a leftover must stay; None when it may go."""
    if in_use:
        return "a run that has not ended uses it" if leftover.owner else "a correction is running, perhaps of this tag"
    if leftover.protected:
        return f"it is {leftover.protected}"
    if leftover.unpublished and not drop_unpublished:
        foreign = f" ({counted(leftover.foreign, 'commit')} of another job)" if leftover.foreign else ""
        return f"it has {counted(leftover.unpublished, 'commit')} that main doesn't have{foreign}"
    return None


# -- the clean-up of the run itself ----------------------------------------------------------------------------------


def clean_up_run(
    params: Mapping[str, Any], planned: Sequence[Mapping[str, Any]], failures: Mapping[str, str | None]
) -> list[str]:
    """Delete the branches and tags of a run that failed or was rejected, if its form asks for it.

    All of them stay when a publish of one table stands or may still be committed, and a branch that another job has
    written.

    :param planned: what ``plan_branch`` has returned of each table
    :param failures: the kind of error by failed task; None where a task left none
    """
    if not params["clean_up"]:
        return []
    if published := [corrected_table(one) for one in planned if stands(open_main(form_of_table(params, one)), one)]:
        return [
            f"Nothing was cleaned up: the correction was published ({', '.join(published)}), and its branch shows what "
            f"main then got"
        ]
    if unsure := [t for t in PUBLISHING_TASKS if t in failures and failures[t] not in REFUSALS]:
        return [f"Nothing was cleaned up: {unsure[0]} may still succeed, and a retry searches for it on the branch"]
    return [line for one in planned for line in _clean_up(form_of_table(params, one), one)]


def _clean_up(params: Mapping[str, Any], planned: Mapping[str, Any]) -> list[str]:
    main = open_main(params)
    mine = next((one for one in find_leftovers(main) if one.owner == planned["owner"]), None)
    if mine is not None and mine.protected:
        return [f"Nothing was cleaned up: branch {mine.branch} is {mine.protected}"]
    if mine is not None and mine.foreign:
        commits = counted(mine.foreign, "commit")
        return [f"Nothing was cleaned up: branch {mine.branch} has {commits} of another job"]
    tag = planned["tag"] if main.find_tag(planned["tag"]) else None
    gone = mine or Leftover(owner=planned["owner"], branch=None, tag=tag, base=main.branch_name)
    if not gone.label:
        return []
    try:
        remove(params, gone)
    except PaimonError as error:
        later = dag_for(Kind.CLEANUP, gone.owner or "")
        return [f"Not cleaned up: {gone.label}: {error.message}. Trigger {later} later"]
    return [f"Cleaned up: {gone.label} deleted"]


def clean_up_unpublished(params: Mapping[str, Any], planned: Sequence[Mapping[str, Any]]) -> list[str]:
    """Delete the branches and tags of a run that has nothing to publish, unless its form keeps them."""
    return [] if params["keep_branch"] else clean_up_run({**params, "clean_up": True}, planned, {})


def remove(params: Mapping[str, Any], leftover: Leftover) -> None:
    """Delete a leftover, the branch first: if only the tag is left, a later clean-up still finds it by its name.

    Raises:
        ConflictError: the branch was written since the leftover was found; nothing was deleted.
    """
    from airflow_paimon.execution import run_operation

    if leftover.branch is not None:
        run_operation(
            request_for(
                params,
                "delete_branch",
                branch=leftover.branch,
                expected_branch_snapshot=leftover.head,
                if_missing="skip",
            )
        )
    if leftover.tag is not None:
        found = request_for(params, "delete_tag", tag=leftover.tag, branch=leftover.base, if_missing="skip")
        run_operation(found)


# -- the DAG for cleaning up -----------------------------------------------------------------------------------------

InUse = Callable[[str | None], bool]
"""Whether the run of this owner has not ended; for None: whether any correction has not."""


def list_leftovers(params: Mapping[str, Any], in_use: InUse) -> list[dict[str, Any]]:
    """List what correction runs left, each with ``keep``: why it stays, None when it goes.

    Raises:
        NotFoundError: no such table, or a branch that the form names is not the branch of a correction run.
    """
    main = open_main(params).require()
    found = find_leftovers(main)
    wanted = params["branches"] or []
    unknown = sorted(set(wanted) - {one.branch for one in found})
    if unknown:
        there = ", ".join(one.branch for one in found if one.branch) or "none"
        raise NotFoundError(
            f"{main.name}: {', '.join(unknown)}: not the branch of a correction run. Branches of such runs: {there}"
        )
    chosen = [one for one in found if not wanted or one.branch in wanted]
    return [asdict(one) | {"keep": _keep(params, one, in_use)} for one in chosen]


def _keep(params: Mapping[str, Any], one: Leftover, in_use: InUse) -> str | None:
    return reason_to_keep(one, in_use=in_use(one.owner), drop_unpublished=params["drop_unpublished"])


def describe(listed: Sequence[Mapping[str, Any]], table: str) -> list[str]:
    """Return the list as lines, a summary first."""
    going = sum(one["keep"] is None for one in listed)
    if not listed:
        return [f"{table}: correction runs left nothing behind"]
    lines = [f"{table}: {counted(len(listed), 'leftover')} of correction runs, {going:,} to remove"]
    for one in listed:
        of_run = f" of run {one['owner']}" if one["owner"] else ""
        lines.append(f"{_leftover(one).label}{of_run}: {'stays: ' + one['keep'] if one['keep'] else 'goes'}")
    return lines


def remove_leftovers(
    params: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], in_use: InUse
) -> tuple[int, list[str]]:
    """Remove what was listed to go, and is still what it was; return how many are gone, and lines, a summary first.

    Raises:
        PaimonError: the storage failed; what is removed stays removed, a second try goes on.
    """
    main = open_main(params).require()
    now = {one.label: one for one in find_leftovers(main)}
    lines, removed, gone = [], 0, 0
    for one in (_leftover(o) for o in listed if o["keep"] is None):
        current = now.get(one.label)
        if current is None:
            gone += 1
            lines.append(f"{one.label}: gone already")
        elif current != one or (keep := _keep(params, one, in_use)):
            lines.append(f"{one.label}: stays: {keep if current == one else 'it was written since it was listed'}")
        else:
            try:
                remove(params, one)
            except ConflictError as error:
                lines.append(f"{one.label}: stays: {error.message}")
                continue
            removed += 1
            lines.append(f"{one.label}: deleted")
    return removed + gone, [f"{main.name}: {counted(removed, 'leftover')} removed", *lines]


def _leftover(listed: Mapping[str, Any]) -> Leftover:
    return Leftover(**{k: v for k, v in listed.items() if k != "keep"})
