"""The list of branches: whose each is, where it came from, how far it is from main, and whether it can be published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_paimon.core.errors import FormatError, InvalidInputError, PaimonError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.required_checks import MISSING, outcomes_of
from airflow_paimon.core.rules.results import FAILED, PASSED, SKIPPED, WARNED
from airflow_paimon.core.table.branch_record import READY as TAKES_COMMITS
from airflow_paimon.core.table.branch_record import BranchRecord, matching_branch_record, read_branch_record
from airflow_paimon.core.table.history import branch_point, difference
from airflow_paimon.core.table.live_files import Difference
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.shown.listing import AnnotatedValue, Listing, counted, heads, utc_time
from airflow_paimon.shown.publishable import CHECKS_FAILED, CONFLICT, NOTHING_NEW, READY, Publishable

_MARKS = {READY: "good", CONFLICT: "bad", CHECKS_FAILED: "bad", NOTHING_NEW: "muted"}
_COLUMNS = (
    "branch | state* | main quiet since: utc* | checks | owner: name | what for: sentence | from: name | tag: name | "
    "base: number | created: utc* | committed: utc | snapshot: number | schema: number- | ahead of main: sentence* | "
    "behind main: sentence* | retention- | expires: utc* | protected by: name | files kept*"
)
"""``*``: only on the page, which compares with main; ``-``: only on the command line and in notebooks."""
_NOT_YET = AnnotatedValue(None, short="…", mark="muted")
_HELP = {
    "state": "Whether merge_branch would publish it onto main as both are now",
    "main quiet since": "Since when running jobs have left main's buckets alone that a publish of it replaces",
    "checks": "Check results of its newest snapshot; hover for the rules",
    "from": "The branch, the tag and the snapshot (base) that it was made from",
    "ahead of main": "Buckets that it changed since they parted, and stored rows more",
    "behind main": "Buckets that main changed since then, and stored rows more",
    "expires": "When expire_branches may delete it: its retention, counted from its creation",
    "protected by": "Who protects it: to delete, rename, replace or publish it needs force",
    "files kept": "Whether a tag on main keeps the files that the branch shares with main",
}


@dataclass(frozen=True, slots=True)
class Side:
    """What one side changed since the two parted. Rows as files count them, before any merge."""

    buckets: int
    rows: int


@dataclass(frozen=True, slots=True)
class Distance:
    """None where the two share no snapshot."""

    ahead: Side | None
    behind: Side | None


def distance(main: Table, view: Table, head: Snapshot | None, theirs: Snapshot | None) -> Distance:
    """Compare a branch with main, by files: reads only the manifests that they don't share."""
    base = branch_point(main, view)
    if base is None or head is None or theirs is None:
        return Distance(None, None)
    return Distance(_side(difference(view, base, theirs)), _side(difference(main, base, head)))


def _side(changed: Difference) -> Side:
    added, removed = (
        sum(e.file.row_count for files in part.values() for e in files.values())
        for part in (changed.added, changed.removed)
    )
    return Side(len(changed.buckets), added - removed)


@dataclass(frozen=True, slots=True)
class BranchFacts:
    """What a few small reads of a branch say. ``verified``: the record is of the branch that is there now.

    ``checks``: outcomes by the rules' names, or why they can't be read.
    """

    head: Snapshot | None
    schema_id: int | None
    record: BranchRecord | None = None
    verified: bool = False
    checks: Mapping[str, str] | str = ""

    @property
    def about(self) -> BranchRecord | None:
        """Whose it is and why; of a record of an earlier branch only the protection counts."""
        return self.record if self.verified or self.record is None or not self.record.known_origin else None


def branch_facts(main: Table, name: str) -> BranchFacts:
    """Read a branch's newest snapshot and its record."""
    branch = main.branch(name)
    ids = branch.schema_ids()
    head = branch.latest_snapshot() if ids else None
    newest = ids[-1] if ids else None
    if name == MAIN:
        return BranchFacts(head, newest)
    sure = matching_branch_record(main, name)
    checks: Mapping[str, str] | str
    try:
        checks = "" if head is None else outcomes_of(main, branch, head)
    except (InvalidInputError, FormatError) as error:
        checks = error.message
    return BranchFacts(head, newest, sure or read_branch_record(main, name), sure is not None, checks)


def roles_of(options: TableOptions, main_state: str | None = None) -> dict[str, str]:
    """Say which branches the table's options name. ``main_state``: what main is the state of."""
    roles = {
        MAIN: main_state,
        options.fallback_branch: "fallback",
        options.snapshot_branch: "chain: full partitions",
        options.delta_branch: "chain: changes",
    }
    return {name: role for name, role in roles.items() if name and role}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How branches compare with main, as far as it was read; ``guarded``: those whose files a tag on main keeps."""

    far: Mapping[str, Distance | PaimonError]
    states: Mapping[str, Publishable | PaimonError]
    guarded: frozenset[str]
    now_ms: int


def branches(
    found: Sequence[tuple[str, BranchFacts | PaimonError | None]],
    roles: Mapping[str, str],
    compared: Compared | None = None,
) -> Listing:
    """List branches; None: it is still being read. ``compared``: with columns that compare each with main."""
    columns = [one.strip() for one in _COLUMNS.split("|")]
    names = heads("|".join(one.rstrip("*-") for one in columns if not one.endswith("-" if compared else "*")))
    rows: list[list[object]] = []
    for name, facts in found:
        if facts is None or isinstance(facts, PaimonError):
            state = _NOT_YET
            if facts is not None:
                state = AnnotatedValue(
                    "unreadable" if compared else f"unreadable: {facts.message}", note=facts.message, mark="bad"
                )
            rows.append([name, state, *[None] * (len(names) - 2)])
        else:
            values = _ordinary(name, facts, roles) | ({} if compared is None else _compared(name, facts, compared))
            rows.append([values[column] for column, _ in names])
    return Listing(title="branches", columns=names, rows=rows, help=_HELP)


def _ordinary(name: str, facts: BranchFacts, roles: Mapping[str, str]) -> dict[str, object]:
    about, made, head = facts.about, facts.record, facts.head
    protected = made is not None and made.protected
    return {
        "branch": name,
        "checks": _checks(facts.checks),
        "owner": about.owner if about else None,
        "what for": roles.get(name) or (about.reason if about else None),
        "from": None if name == MAIN else _origin(facts),
        "tag": made.from_tag if made and facts.verified else None,
        "base": made.snapshot_id if made and facts.verified else None,
        "committed": utc_time(head.time_millis) if head else None,
        "snapshot": head.id if head else None,
        "schema": facts.schema_id,
        "retention": about.retention if about else None,
        "protected by": ((made.protected_by or "unknown") if made else None) if protected else None,
    }


def _origin(facts: BranchFacts) -> AnnotatedValue | str:
    made = facts.record
    if made is None or not made.known_origin:
        note = "Made by another engine: it keeps no record of where from"
        return AnnotatedValue(None, short="unknown", note=note, mark="muted")
    if not facts.verified:
        note = "The record does not fit the present branch"
        return AnnotatedValue(None, short=made.from_branch, note=note, mark="warn")
    return made.from_branch


def _compared(name: str, facts: BranchFacts, compared: Compared) -> dict[str, object]:
    made, state, far = facts.record, compared.states.get(name), compared.far.get(name)
    guarded = name in compared.guarded
    kept = (
        AnnotatedValue("yes", mark="good")
        if guarded
        else AnnotatedValue("no", mark="warn", note=_UNGUARDED)
        if made
        else None
    )
    return {
        "state": _state(made, facts.head, state),
        "main quiet since": _quiet(state),
        "created": utc_time(made.created_ms) if made else None,
        "ahead of main": _far(far, "ahead"),
        "behind main": _far(far, "behind"),
        "expires": _expires(facts.about, compared.now_ms),
        "files kept": kept,
    }


_UNGUARDED = "No tag on main keeps its files; see the tab Check"


def _expires(made: BranchRecord | None, now_ms: int) -> AnnotatedValue | None:
    end = made.expires_ms if made else None
    if made is None or end is None:
        return None
    late = end < now_ms and not made.protected
    return AnnotatedValue(utc_time(end), note=f"{made.retention} after its creation", mark="warn" if late else "")


def _far(far: Distance | PaimonError | None, which: str) -> AnnotatedValue:
    if isinstance(far, PaimonError):
        return AnnotatedValue("unreadable", note=far.message, mark="bad")
    side: Side | None = getattr(far, which, None)
    if side is None:
        return _NOT_YET if far is None else AnnotatedValue("-", mark="muted", note="They share no snapshot")
    if not side.buckets:
        return AnnotatedValue("0", note="No bucket differs")
    text = counted(side.buckets, "bucket")
    if not side.rows:
        return AnnotatedValue(text, note="As many stored rows as before: rows were changed")
    return AnnotatedValue(f"{text}, {side.rows:+,} stored rows")


def _state(made: BranchRecord | None, head: Snapshot | None, state: Publishable | PaimonError | None) -> AnnotatedValue:
    if made is not None and made.state != TAKES_COMMITS:
        return AnnotatedValue(made.state, mark="warn", note="It takes no commits; see the tab Check")
    if head is None:
        return AnnotatedValue("empty", mark="muted", note="It has no snapshot to publish")
    if isinstance(state, PaimonError):
        return AnnotatedValue("unreadable", note=state.message, mark="bad")
    if state is None:
        return _NOT_YET
    return AnnotatedValue(state.state, note=state.why, mark=_MARKS.get(state.state, "warn"))


def _quiet(state: Publishable | PaimonError | None) -> AnnotatedValue | None:
    writers = state.writers if isinstance(state, Publishable) else {}
    if writers.get("effect"):
        return AnnotatedValue(
            "open now", note=writers["note"], mark="bad" if writers["effect"] == "refused" else "warn"
        )
    if not writers.get("quiet_since"):
        return None
    since = datetime.fromisoformat(writers["quiet_since"]).timestamp()
    return AnnotatedValue(utc_time(round(since * 1000)), note=writers["note"])


def _checks(outcomes: Mapping[str, str] | str) -> AnnotatedValue | None:
    if not outcomes:
        return None
    if isinstance(outcomes, str):
        return AnnotatedValue("unreadable", note=outcomes, mark="bad")
    counts = Counter(outcomes.values())
    text = ", ".join(f"{counts[one]} {one}" for one in (FAILED, MISSING, WARNED, SKIPPED, PASSED) if counts[one])
    mark = "bad" if counts[FAILED] else "warn" if counts[MISSING] or counts[WARNED] else "good"
    return AnnotatedValue(text, note="; ".join(f"{name}: {outcome}" for name, outcome in outcomes.items()), mark=mark)
