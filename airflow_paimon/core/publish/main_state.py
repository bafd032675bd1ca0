"""Which branch main is the state of, since ``replace_main``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.publish.earlier_publishes import undone_snapshots
from airflow_paimon.core.publish.replace_main import replacement_of_main
from airflow_paimon.core.table.history import existing_snapshots, find_retained
from airflow_paimon.core.table.paths import MAIN, UNDO_TAG_PREFIX, parse_protective
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    REPLACED_PROPERTY,
)
from airflow_paimon.core.table.table import Table

_NEUTRAL = (CommitKind.COMPACT, CommitKind.ANALYZE)


def main_state(table: Table) -> dict[str, Any]:
    """Say which branch main is the state of. ``is_state_of`` is None if main was not replaced, or that was undone.

    ``branch_snapshot`` of that branch is what main got with its snapshot ``since_snapshot``; ``kept_old_as`` is the
    branch with main as it was. ``diverged``: main got other commits since. ``branch_exists``: that branch still exists.

    Reads the tags that publishes leave, so it costs little on a table that was never replaced. A replacement whose
    snapshot, undo tag and branch are all gone is no longer known.
    """
    main = table.branch(MAIN).require()
    out: dict[str, Any] = {
        "branch": MAIN,
        "is_state_of": None,
        "branch_snapshot": None,
        "since_snapshot": None,
        "kept_old_as": None,
        "diverged": False,
        "branch_exists": False,
    }
    for found in _replacements(main):
        later = existing_snapshots(main, [i for i in main.snapshot_ids() if i > found.id])
        undone = undone_snapshots([found, *later])
        if found.id in undone:
            continue
        replaced, name = replacement_of_main(found), found.properties.get(BRANCH_PROPERTY, MAIN)
        assert replaced is not None
        number = found.number(BRANCH_SNAPSHOT_PROPERTY) or 0
        then = main.branch(name).find_snapshot(number, found.properties.get(BRANCH_IDENTITY_PROPERTY))
        known = {*undone, *undone.values()}
        return out | {
            "is_state_of": name,
            "branch_snapshot": number,
            "since_snapshot": found.id,
            "kept_old_as": replaced.kept_old_as,
            "diverged": any(s.commit_kind not in _NEUTRAL and s.id not in known for s in later),
            "branch_exists": then is not None,
        }
    return out


def main_state_text(table: Table) -> str | None:
    """Say it in words, such as ``the state of branch fix at snapshot 141, since snapshot 118``.

    None if main has not been replaced by a branch.
    """
    state = main_state(table)
    if state["is_state_of"] is None:
        return None
    text = f"the state of branch {state['is_state_of']} at snapshot {state['branch_snapshot']}"
    more = ", with commits of main's own since" if state["diverged"] else ""
    return f"{text}, since snapshot {state['since_snapshot']}{more}"


def _replacements(main: Table) -> Iterator[Snapshot]:
    """Main's snapshots that replaced it, the newest first."""
    numbers, main = set(), main.with_cached_tags()
    for name in main.tag_names():
        shared = parse_protective(name)
        if shared is not None and shared.published is not None:
            numbers.add(shared.published)
        elif name.startswith(UNDO_TAG_PREFIX) and (tag := main.find_tag(name)) is not None:
            numbers.add(tag.snapshot.id + 1)
    for number in sorted(numbers, reverse=True):
        found = find_retained(main, number)
        if found is not None and REPLACED_PROPERTY in found.properties:
            yield found
