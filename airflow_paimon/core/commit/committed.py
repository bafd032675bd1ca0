"""Whether a commit is in the table: searched for before a retry, looked at right before and after its put, and read
back when its operation ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field

from airflow_paimon.core.commit.cache import is_same
from airflow_paimon.core.commit.draft import CommitIdentity, Draft
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    FormatError,
    LostMetadataError,
    NotFoundError,
    OutcomeUnknownError,
    PaimonError,
)
from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.table.branch_record import BranchRecord, is_deleted, still_exists
from airflow_paimon.core.table.history import changed_files
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import selected_entries
from airflow_paimon.core.table.manifest_lists import all_manifests, read_both_manifest_lists, read_delta_lists
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.table import Table

_READ_AT_ONCE = 64
BEING_CHANGED = "its branch is being renamed or deleted, or was recreated"


def find_committed(
    table: Table, identity: CommitIdentity, after: SnapshotRef, head: Snapshot | None = None
) -> Snapshot | None:
    """Search the snapshots that came later than ``after`` for a commit of this identity, the newest first.

    ``head``: the newest snapshot, if the caller has read it.

    Raises:
        OutcomeUnknownError: some of them are expired or rolled back, the commit is not among the others, and another
            try of the operation may have made it (``CommitIdentity.retry_mark``).
    """
    lost: int | None = None
    oldest: Snapshot | None = None
    for snapshot_id, snapshot in later_snapshots(table, after, head):
        if snapshot is None:
            lost = snapshot_id if lost is None else lost
        elif _is_of(snapshot, identity) and not took_expired_id(table, snapshot):
            return snapshot
        oldest = snapshot
    rolled_back = oldest is not None and 1 < oldest.id <= after.id
    if rolled_back and lost is None and oldest is not None and oldest.time_millis > after.time_millis:
        lost = oldest.id - 1  # it came after the rollback as well
    if lost is None or (identity.retry_mark is not None and not table.store.exists(identity.retry_mark)):
        return None
    raise OutcomeUnknownError(
        f"{table.label}: cannot determine whether operation {identity.user} committed: snapshot {lost}, which would "
        "show it, has expired. Check the table's rows, then run it again with a new operation id"
    )


def later_snapshots(
    table: Table, after: SnapshotRef, head: Snapshot | None = None
) -> Iterator[tuple[int, Snapshot | None]]:
    """Read the snapshots that came later than ``after``, by id, the newest first; None: it has expired, and so have
    those before it. Where another engine has rolled the branch back below ``after``, all that there are: which of them
    are older can't be told. If ``after`` has expired itself, it is among them, as None: it may have been rolled back
    before that.
    """
    newest = table.latest_snapshot_id() or 0 if head is None else head.id
    known = {} if head is None else {head.id: head}
    first = max(after.id, 1)
    for stop in range(newest, first - 1, -_READ_AT_ONCE):
        ids = list(range(stop, max(stop - _READ_AT_ONCE, first - 1), -1))
        found = _read(table, ids, known)
        later = [(i, s) for i, s in zip(ids, found, strict=True) if i > after.id or (s is None and after.identity)]
        yield from later
        if any(s is None for _, s in later) or (ids[-1] == after.id and _is_kept(found[-1], after)):
            return
    if after.id:
        for number in reversed([i for i in table.snapshot_ids() if i <= min(newest, after.id)]):
            yield number, table.find_snapshot(number)


def _is_kept(snapshot: Snapshot | None, known: SnapshotRef) -> bool:
    return snapshot is None or known.is_of(snapshot)


def _is_of(snapshot: Snapshot, identity: CommitIdentity) -> bool:
    return (snapshot.commit_user, snapshot.commit_identifier) == (identity.user, identity.identifier)


def _read(table: Table, ids: list[int], known: Mapping[int, Snapshot]) -> list[Snapshot | None]:
    if all(i in known for i in ids):
        return [known[i] for i in ids]
    try:
        return list(table.snapshots(ids))
    except NotFoundError:
        return [table.find_snapshot(i) for i in ids]


def is_ours(table: Table, snapshot: Snapshot) -> bool:
    """Read back the snapshot of this id, and return whether it is ours, even if a server's release knows no uuid.

    Raises:
        NotFoundError: there is none.
    """
    now = table.snapshot(snapshot.id)
    return now.identity == snapshot.identity and now.uuid in (None, snapshot.uuid)


def is_still_there(table: Table, head: Snapshot | None, draft: Draft) -> bool:
    """Whether the head is there, and before the first snapshot the schema: the very version, as a branch that was made
    anew has others, and has lost what was written.
    """
    if head is not None:
        return head_is_unchanged(table, head)
    try:
        return table.schema(draft.schema.id) == draft.schema
    except NotFoundError:
        return False


def head_is_unchanged(table: Table, head: Snapshot | None) -> bool:
    """Whether the snapshot before one that was just put is the one that it is based on."""
    now = None if head is None else table.find_snapshot(head.id)
    return now is not None and head is not None and is_same(now, head)


def read_back(table: Table, snapshot: Snapshot, branch: BranchRecord | None, *, certain: bool) -> bool | None:
    """Read back the snapshot of this id. ``certain``: the storage refused our put, so an absent file means it lost.

    The branch is checked first: an operation that deletes or renames it later finds the snapshot. None: it was put on a
    branch that had been renamed or deleted for good, and was deleted again.
    """
    standing = still_exists(table, branch)
    try:
        committed = is_ours(table, snapshot)
    except NotFoundError:
        if certain:
            return False
        raise unknown_outcome(table, snapshot, "it is missing when it is read back") from None
    if standing or (certain and not committed):
        return committed
    if committed and _is_taken_from_gone_branch(table, snapshot, branch):
        return None
    raise unknown_outcome(table, snapshot, BEING_CHANGED)


def _is_taken_from_gone_branch(table: Table, snapshot: Snapshot, branch: BranchRecord | None) -> bool:
    """Delete a snapshot that was put after its branch was deleted for good; False: it is not certain that it goes.

    It belongs to no branch, and would bring its rows into the next branch of that name.
    """
    path, following = table.paths.snapshot(snapshot.id), table.paths.snapshot(snapshot.id + 1)
    data = snapshot.to_bytes()
    if not is_deleted(table, branch) or table.store.exists(following):
        return False
    if not table.store.delete_same(path, data):
        return False
    if table.store.exists(following):  # a writer to the recreated branch has committed on top of it
        with suppress(AlreadyExistsError):
            table.store.create(path, data)
        return False
    return True


def took_expired_id(table: Table, snapshot: Snapshot) -> bool:
    """Whether a snapshot was put under an id that an expiry had made free, so that no later one is based on it.

    Its writer was stopped right before the put, for so long that others committed and expired meanwhile. The oldest
    snapshots expire first: while the one before is there, this id was never free.

    Raises:
        OutcomeUnknownError: the snapshot expires right now.
    """
    if snapshot.id > 1 and table.store.exists(table.paths.snapshot(snapshot.id - 1)):
        return False
    if table.snapshot_ids()[-1:] <= [snapshot.id]:
        return False
    try:
        following = table.find_snapshot(snapshot.id + 1)
        if following is not None:
            return any(
                changed_files(table, all_manifests(table, snapshot), read_both_manifest_lists(table, following)[0])
            )
        table.snapshot(snapshot.id)
    except (FormatError, NotFoundError) as error:
        raise unknown_outcome(table, snapshot, f"it expires right now ({error.message})") from error
    return True


def take_back_misplaced(table: Table, snapshot: Snapshot, head: Snapshot | None, branch: BranchRecord | None) -> bool:
    """Take a snapshot back that was just put on ``head`` where it doesn't belong; False: it stands, or others are based
    on it. ``branch``: the branch's record right before the put.

    Either an expiry had made its id free; its manifests stay then, as the expiry may have seen it. Or the table is
    being dropped, or was made anew right before the put: what it names goes, so nothing can be based on it.
    Or another engine rolled the branch back then, or made it anew.

    Raises:
        OutcomeUnknownError: it can't be told, or not be deleted. Or the branch is being renamed or deleted, which looks
            the same: a rename has found the snapshot, and copied it.
    """
    expired = took_expired_id(table, snapshot)
    dropped = not expired and (_lost_its_lists(table, snapshot) or not table.exists())
    if not expired and not dropped and (head is None or not _lost_its_head(table, snapshot, head)):
        return False
    if not still_exists(table, branch):
        raise unknown_outcome(table, snapshot, BEING_CHANGED)
    path, data = table.paths.snapshot(snapshot.id), snapshot.to_bytes()
    if not table.store.delete_same(path, data) and not expired:
        raise unknown_outcome(table, snapshot, "it was put where it doesn't belong, and no longer exists")
    if expired or dropped or not table.store.exists(table.paths.snapshot(snapshot.id + 1)):
        return True
    with suppress(AlreadyExistsError):  # another one has come to be based on it
        table.store.create(path, data)
    return False


def _lost_its_head(table: Table, snapshot: Snapshot, head: Snapshot) -> bool:
    """Whether the newest snapshot is based on one that is another one now, or gone before older ones: no expiry, unless
    it has left the file of an older one, whose lists it deletes first.
    """
    ids = table.snapshot_ids()
    if ids[-1:] != [snapshot.id] or ids[0] > head.id:
        return False
    now = table.find_snapshot(head.id)
    if now is None:
        below = table.find_snapshot(ids[-2]) if ids[0] < head.id else None
        return below is not None and _has_lists(table, below)
    return not is_same(now, head) and is_ours(table, snapshot)


def _has_lists(table: Table, snapshot: Snapshot) -> bool:
    lists = (snapshot.base_manifest_list, snapshot.delta_manifest_list)
    return all(table.store.exists(manifest_path(name)) for name in lists)


def _lost_its_lists(table: Table, snapshot: Snapshot) -> bool:
    """Whether the snapshot is there and its lists are not; after a later drop, another one may have its id."""
    if _has_lists(table, snapshot):
        return False
    try:
        return is_ours(table, snapshot)
    except NotFoundError:
        return False


def unknown_outcome(table: Table, snapshot: Snapshot, why: str) -> OutcomeUnknownError:
    """Return the error for a snapshot that may or may not be in the table."""
    return OutcomeUnknownError(
        f"{table.label}: cannot determine whether snapshot {snapshot.id} (uuid {snapshot.uuid}) was committed: {why}. "
        "Nothing was cleaned up. Run it again with the same operation id: it checks first",
        details={"snapshot": snapshot.id, "uuid": snapshot.uuid, "commit_user": snapshot.commit_user},
    )


def check_not_built_upon(table: Table, draft: Draft, lost: Snapshot) -> None:
    """Refuse to repeat a commit whose files a newer snapshot already holds: our snapshot was replaced only afterwards.

    Raises:
        OutcomeUnknownError: a file that the draft adds is live, or a newer snapshot has compacted it away.
    """
    added = {e.identifier for e in draft.entries if e.kind == FileKind.ADD}
    newest = table.latest_snapshot()
    known = set(live_entries(table, newest))
    try:
        later = table.snapshots(list(range(lost.id + 1, newest.id + 1 if newest is not None else 0)))
        known |= {e.identifier for e in selected_entries(table, read_delta_lists(table, later), None)}
    except (NotFoundError, LostMetadataError):
        raise unknown_outcome(
            table, lost, "another engine's snapshot has this id, and newer ones that may hold its files are expired"
        ) from None
    if added & known:
        raise unknown_outcome(table, lost, "another engine's snapshot has this id, but a newer one has its files")


def verify_committed(table: Table, snapshot: Snapshot) -> None:
    """Check that a published snapshot is still ours: another engine's rename can overwrite it, also later.

    Raises:
        OutcomeUnknownError: the id now belongs to another commit, or can't be read. An expired snapshot is not an
            error.
    """
    try:
        ours = is_ours(table, snapshot)
    except NotFoundError:
        return
    except PaimonError as error:
        raise unknown_outcome(
            table, snapshot, f"it was committed, but could not be read back at the end ({error})"
        ) from error
    if not ours:
        raise unknown_outcome(
            table, snapshot, "another engine's commit replaced it (two engines on one local or plain S3 table)"
        )


VerifiedCommits = Sequence[tuple[Table, Snapshot]]
"""Snapshots that were published, each with the view of its branch."""


@dataclass(slots=True)
class _Unverified:
    published: list[tuple[Table, Snapshot]] = field(default_factory=list)
    then: list[Callable[[VerifiedCommits], None]] = field(default_factory=list)


_unverified: ContextVar[_Unverified | None] = ContextVar("unverified", default=None)


@contextmanager
def verified_commits(*, anew: bool = False) -> Iterator[None]:
    """Read back every snapshot that was published within the block, at its end; if nested, at the end of the outermost.

    A commit outside of such a block is read back at its own end. ``anew``: an operation of its own begins.

    Raises:
        OutcomeUnknownError: see ``verify_committed``. Not checked when the block itself fails.
    """
    if not anew and _unverified.get() is not None:
        yield
        return
    mine = _Unverified()
    token = _unverified.set(mine)
    try:
        yield
    finally:
        _unverified.reset(token)
    for table, snapshot in mine.published:
        verify_committed(table, snapshot)
    for call in mine.then:
        call(mine.published)


def once_verified(call: Callable[[VerifiedCommits], None]) -> None:
    """Call something, with what was published, when the ``verified_commits`` around this has found all of it."""
    around = _unverified.get()
    assert around is not None
    around.then.append(call)


def verify_at_end(table: Table, snapshot: Snapshot) -> None:
    """Read a published snapshot back when ``verified_commits`` ends, or at once outside of it."""
    around = _unverified.get()
    if around is None:
        verify_committed(table, snapshot)
    else:
        around.published.append((table, snapshot))
