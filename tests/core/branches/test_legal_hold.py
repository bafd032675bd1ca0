"""Tags under a legal hold: nothing deletes them, or the branch that has them, before the hold is released."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_paimon.core.branches import delete, tag_files, tags
from airflow_paimon.core.errors import AlreadyExistsError, ConflictError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.metadata_expiry import unreferenced
from airflow_paimon.core.plan import Delete, Replace
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.store import Store
from airflow_paimon.core.store.base import read_if_exists
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import append, make_table, run
from tests.stores import _Wrapper

pytestmark = pytest.mark.usefixtures("at_once")
HELD = r"is under a legal hold, set by legal@example\.com \(case 17\)"
LATER = "2027-11-24T00:00:00+00:00"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory deletes and replaces under a condition, so a hold need not wait for those who have looked before it."""
    monkeypatch.setattr(tags, "LOOK_S", 0.0)


@pytest.fixture
def table() -> Table:
    """Tag ``case`` is held on main, on snapshot 1; branch fix has a held tag as well."""
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    append(table, "a")
    hold(table, tag="case")
    append(table, "b")
    run(table, "create_branch", branch="fix", tag="case", retention="1 d")
    hold(table, tag="inner", branch="fix")
    return table


def hold(table: Table, **values: Any) -> Any:
    return run(table, "create_tag", hold="case 17", held_by="legal@example.com", **values)


@pytest.mark.parametrize(
    ("operation", "values"),
    [
        ("delete_tag", {"tag": "case"}),
        ("create_tag", {"tag": "case", "snapshot": 2, "if_exists": "replace"}),
        ("replace_tag", {"tag": "case", "snapshot": 2}),
        ("delete_branch", {"branch": "fix", "force": True}),
        ("create_branch", {"branch": "fix", "tag": "case", "if_exists": "replace", "force": True}),
    ],
)
def test_it_is_refused_by_name_and_nothing_changes(table: Table, operation: str, values: dict[str, Any]) -> None:
    before = {path: table.store.read(path) for path in table.store.walk("")}
    with pytest.raises(UnsafeOperationError, match=HELD) as refused:
        run(table, operation, **values)
    assert (refused.value.details["hold"], refused.value.details["held_by"]) == ("case 17", "legal@example.com")
    assert {path: table.store.read(path) for path in table.store.walk("")} == before


def test_expiries_list_what_is_held_and_keep_it(table: Table) -> None:
    asked = {"older_than": "1 d", "include_unlimited": True, "all_branches": True, "now": LATER}
    found = run(table, "expire_tags", **asked).details
    assert "case" in found["needed"]["main"] and "legal hold" in found["needed"]["main"]["case"]
    assert "inner" in found["needed"]["fix"] and "inner" in table.branch("fix").tag_names()
    found = run(table, "expire_branches", now=LATER).details
    assert [(b["branch"], "legal hold" in b["why"]) for b in found["kept"]] == [("fix", True)]
    assert table.tag("case").legal_hold == "case 17"


def test_the_hold_ends_with_its_tag_only_when_that_is_asked_for(table: Table) -> None:
    result = run(table, "delete_tag", tag="inner", branch="fix", release_hold=True)
    assert result.details["released_hold"] == "case 17"
    run(table, "delete_branch", branch="fix", force=True)
    run(table, "delete_tag", tag="case", release_hold=True)
    assert table.tag_names() == []


def test_release_hold_takes_nothing_that_a_branch_needs(table: Table) -> None:
    append(table, "c")
    hold(table, tag="airflow", branch="fix")
    with pytest.raises(UnsafeOperationError, match="delete the branch first"):
        run(table, "delete_tag", tag="airflow-paimon-branch-fix", release_hold=True)


def test_a_hold_is_the_tags_and_not_its_snapshots(table: Table) -> None:
    """What is made of a held tag is not held, and the file is a tag that every engine reads."""
    raw = json.loads(table.store.read("tag/tag-case"))
    assert raw["properties"]["airflow-paimon.legal-hold"] == "case 17"
    assert {**raw, "properties": {}} == {**json.loads(table.store.read("snapshot/snapshot-1")), "properties": {}}
    assert table.branch("fix").tag("case").legal_hold is None
    assert "legal-hold" not in table.store.read("branch/branch-fix/snapshot/snapshot-1").decode()
    run(table, "create_tag", tag="other", snapshot=1)
    assert table.tag("other").legal_hold is None
    run(table, "rename_branch", branch="fix", to_branch="moved")
    assert table.branch("moved").tag("inner").legal_hold == "case 17"


def test_a_tag_that_exists_can_be_held_and_loses_its_retention(table: Table) -> None:
    run(table, "create_tag", tag="month", time_retained="1 d")
    assert hold(table, tag="month", if_exists="skip", dry_run=True).changed and table.tag("month").legal_hold is None
    assert hold(table, tag="month", if_exists="skip").details["hold"] == "case 17"
    assert (table.tag("month").legal_hold, table.tag("month").time_retained) == ("case 17", None)
    assert not hold(table, tag="month", if_exists="skip").changed
    with pytest.raises(AlreadyExistsError, match=r"'month' is under a legal hold.*put your hold on a separate tag"):
        run(table, "create_tag", tag="month", snapshot=table.tag("month").snapshot.id, if_exists="skip", hold="case 18")
    assert table.tag("month").legal_hold == "case 17"
    assert run(table, "expire_tags", now=LATER).details["expired"] == {}


def test_a_tag_whose_snapshot_has_expired_can_be_held_and_replaced(table: Table) -> None:
    """Only the tag itself keeps the snapshot, which is gone otherwise."""
    run(table, "create_tag", tag="month", snapshot=2)
    run(table, "delete_tag", tag="inner", branch="fix", release_hold=True)
    append(table, "c")
    run(table, "delete_branch", branch="fix")
    run(table, "expire_snapshots", retain_min=1, retain_max=1, now=LATER, grace="0 s", writers_stopped=True)
    assert table.snapshot_ids() == [3]
    run(table, "replace_tag", tag="month", snapshot=2, time_retained="7 d")
    assert (table.tag("month").snapshot.id, str(table.tag("month").time_retained)) == (2, "7 days, 0:00:00")
    assert hold(table, tag="month", snapshot=2, if_exists="skip").changed
    assert (table.tag("month").legal_hold, table.tag("month").snapshot.id) == ("case 17", 2)


def test_a_tag_past_its_retention_is_not_the_only_thing_that_keeps_a_snapshot(table: Table) -> None:
    """An expiry may have taken it a moment ago."""
    run(table, "create_tag", tag="month", snapshot=2, time_retained="1 d")
    before = table.store.read("tag/tag-month")
    append(table, "c")
    table.store.delete("snapshot/snapshot-2")
    for operation, values in (
        ("replace_tag", {"time_retained": "7 d"}),
        ("create_tag", {"if_exists": "skip", "hold": "case 17"}),
    ):
        with pytest.raises(ConflictError, match="expired while it was tagged"):
            run(table, operation, tag="month", snapshot=2, now=LATER, **values)
        assert table.store.read("tag/tag-month") == before
    run(table, "delete_tag", tag="month")
    assert "month" not in table.tag_names(), "a hold that was refused comes back for nobody"


def test_what_makes_no_sense_is_refused(table: Table) -> None:
    for values in ({"hold": "case", "time_retained": "1 d"}, {"held_by": "legal"}):
        with pytest.raises(InvalidInputError, match="hold"):
            run(table, "create_tag", tag="t", **values)


def test_a_branch_that_gets_a_hold_while_it_is_deleted_stays(table: Table) -> None:
    """The look after the branch was hidden finds it, and shows the branch again."""
    run(table, "delete_tag", tag="inner", branch="fix", release_hold=True)
    looks = []

    def late(on: Table, name: str, known: Any = delete.refuse_legal_hold) -> None:
        looks.append(name)
        if len(looks) == 2:
            on.store.create("branch/branch-fix/tag/tag-late", on.store.read("tag/tag-case"))
        known(on, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delete, "refuse_legal_hold", late)
        with pytest.raises(UnsafeOperationError, match="legal hold"):
            run(table, "delete_branch", branch="fix", force=True)
    assert table.branch("fix").exists() and table.branch("fix").latest_snapshot_id() == 1


def test_a_hold_that_is_set_while_the_tag_is_renamed_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    run(table, "create_tag", tag="month", snapshot=2)
    known = tags.check_held

    def late(view: Table, tag: Tag, *more: Any) -> None:
        known(view, tag, *more)
        if tag.name == "m2":
            hold(table, tag="month", if_exists="skip")

    monkeypatch.setattr(tags, "check_held", late)
    with pytest.raises(ConflictError, match="'month' was changed while it was renamed"):
        run(table, "rename_tag", tag="month", to_tag="m2")
    assert table.tag("month").legal_hold == "case 17" and "m2" not in table.tag_names()


def test_a_hold_that_is_set_just_before_the_old_name_goes_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    run(table, "create_tag", tag="month", snapshot=2)
    known, told = tags.execute, []

    def late(view: Table, actions: Any) -> None:
        if not told and any(isinstance(a, Delete) and a.path == "tag/tag-month" for a in actions):
            told.append(hold(table, tag="month", if_exists="skip"))
        known(view, actions)

    monkeypatch.setattr(tags, "execute", late)
    with pytest.raises(ConflictError, match="'month' was changed while it was renamed"):
        run(table, "rename_tag", tag="month", to_tag="m2")
    assert told and table.tag("month").legal_hold == "case 17" and "m2" not in table.tag_names()


def test_a_hold_that_is_set_while_the_tag_is_deleted_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last look of the deletion and the deletion itself."""
    run(table, "create_tag", tag="month")
    known, told = tags.execute, []

    def late(view: Table, actions: Any) -> None:
        if not told and any(isinstance(a, Delete) and a.path == "tag/tag-month" for a in actions):
            told.append(hold(table, tag="month", if_exists="skip"))
        known(view, actions)

    monkeypatch.setattr(tags, "execute", late)
    with pytest.raises(UnsafeOperationError, match="'month' is under a legal hold"):
        run(table, "delete_tag", tag="month")
    assert told and table.tag("month").legal_hold == "case 17"
    run(table, "delete_tag", tag="month", release_hold=True)
    run(table, "create_tag", tag="month")
    run(table, "delete_tag", tag="month")
    assert "month" not in table.tag_names(), "a hold that was released comes back for no later tag"


REPLACING = [
    ("replace_tag", {"snapshot": 1}),
    ("create_tag", {"snapshot": 1, "if_exists": "replace"}),
    ("create_tag", {"snapshot": 1, "if_exists": "replace", "hold": "case 18"}),
]


@pytest.mark.parametrize(("operation", "values"), REPLACING, ids=["replace_tag", "create_tag", "with a hold"])
def test_a_hold_that_is_set_while_the_tag_is_replaced_stays(
    table: Table, monkeypatch: pytest.MonkeyPatch, operation: str, values: dict[str, Any]
) -> None:
    """Between the last look of the replacement and the replacement itself."""
    run(table, "create_tag", tag="month", snapshot=2)
    known, told = tag_files.execute, []

    def late(view: Table, actions: Any) -> None:
        if not told and any(a.path == "tag/tag-month" for a in actions):
            told.append("now")
            hold(table, tag="month", if_exists="skip")
        known(view, actions)

    monkeypatch.setattr(tag_files, "execute", late)
    with pytest.raises(UnsafeOperationError, match=HELD):
        run(table, operation, tag="month", **values)
    assert (table.tag("month").legal_hold, table.tag("month").snapshot.id) == ("case 17", 2)
    monkeypatch.undo()
    run(table, "delete_tag", tag="month", release_hold=True)
    run(table, "create_tag", tag="month", snapshot=2)
    assert run(table, operation, tag="month", **values).changed, "a hold that was released comes back for no later tag"


@pytest.mark.parametrize(("operation", "values"), REPLACING, ids=["replace_tag", "create_tag", "with a hold"])
def test_a_hold_on_a_tag_that_has_just_been_replaced_is_refused(
    table: Table, monkeypatch: pytest.MonkeyPatch, operation: str, values: dict[str, Any]
) -> None:
    """It would be on the snapshot that the tag had before, and take the replacement back."""
    run(table, "create_tag", tag="month", snapshot=2)
    known = tags.put_replacement

    def late(view: Table, action: Replace) -> None:
        monkeypatch.setattr(tags, "put_replacement", known)
        run(table, operation, tag="month", **values)
        known(view, action)

    monkeypatch.setattr(tags, "put_replacement", late)
    says = "'month' is under a legal hold" if "hold" in values else "month was changed by another process"
    with pytest.raises((ConflictError, UnsafeOperationError), match=says):
        hold(table, tag="month", if_exists="skip")
    assert (table.tag("month").legal_hold, table.tag("month").snapshot.id) == (values.get("hold"), 1)


class Unconditional(_Wrapper):
    """A storage that deletes and replaces by name: between its look and that, somebody else may act."""

    def __init__(self, inner: Store, meanwhile: Callable[[], object]) -> None:
        super().__init__(inner)
        self.meanwhile = meanwhile

    def _if_same(self, path: str, expected: bytes, act: Callable[[], None], what: str) -> bool | None:
        if read_if_exists(self.inner, path) != expected:
            return False
        if path == "tag/tag-month":
            self.meanwhile()
        act()
        return True

    def delete_same(self, path: str, data: bytes) -> bool | None:
        return self._if_same(path, data, lambda: self.inner.delete(path), "deleted")

    def replace_same(self, path: str, data: bytes, expected: bytes) -> bool | None:
        return self._if_same(path, expected, lambda: self.inner.replace(path, data), "replaced")


@pytest.mark.parametrize("operation", [("delete_tag", {}), *REPLACING[:1]], ids=["delete_tag", "replace_tag"])
def test_no_hold_is_acknowledged_that_somebody_takes_away_who_has_looked_before(
    table: Table, monkeypatch: pytest.MonkeyPatch, operation: tuple[str, dict[str, Any]]
) -> None:
    """Where a deletion or replacement takes no condition, the other one acts while the holder waits for it."""
    run(table, "create_tag", tag="month", snapshot=2)
    waiting, acted = threading.Event(), threading.Event()
    outcome: list[object] = []

    def holder() -> None:
        try:
            outcome.append(hold(table, tag="month", if_exists="skip").changed)
        except ConflictError as error:
            outcome.append(error)

    def settle(_: float) -> None:
        waiting.set()
        assert acted.wait(60)

    held = threading.Thread(target=holder)

    def meanwhile() -> None:
        held.start()
        assert waiting.wait(60)

    monkeypatch.setattr(tags, "time", SimpleNamespace(sleep=settle))
    values = {"warehouse": table.store.uri.rsplit("/", 2)[0], "table": "d.t", "tag": "month", **operation[1]}
    context = open_context(build_request(operation[0], values))
    perform(replace(context, table=replace(table, store=Unconditional(table.store, meanwhile))), context.request)
    acted.set()
    held.join(60)
    if operation[0] == "delete_tag":
        assert (outcome, table.tag("month").legal_hold) == ([True], "case 17"), "it is there again"
    else:
        assert isinstance(outcome[0], ConflictError) and table.tag("month").snapshot.id == 1


def test_a_hold_that_is_set_while_the_tag_expires_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    run(table, "create_tag", tag="month", time_retained="1 d")
    known, told = unreferenced.execute_repeatedly, []

    def late(on: Table, actions: Any, *more: Any) -> None:
        if not told and any(isinstance(a, Delete) and a.path == "tag/tag-month" for a in actions):
            told.append(hold(table, tag="month", if_exists="skip"))
        known(on, actions, *more)

    monkeypatch.setattr(unreferenced, "execute_repeatedly", late)
    result = run(table, "expire_tags", now=LATER)
    assert told and table.tag("month").legal_hold == "case 17" and result.details["expired"] == {}
