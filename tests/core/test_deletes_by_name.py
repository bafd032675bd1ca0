"""A worker that stalls right before a deletion by name: what others have put under that name meanwhile stays."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import pytest

from airflow_paimon.core.errors import ConflictError, NotFoundError, OutcomeUnknownError, PaimonError
from airflow_paimon.core.format.snapshot import parse_tag
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.drop_table import drop_table
from airflow_paimon.core.store import Store, base
from airflow_paimon.core.store.wrapper import StoreWrapper
from airflow_paimon.core.table.paths import protects
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.execution import perform
from tests.clock import next_millisecond
from tests.core.tables import append, copied, make_table, names, run
from tests.soundness import assert_sound
from tests.stores import FaultStore

Act = Callable[[Table], object]


def stalled(table: Table, number: int, meanwhile: Act, act: Act) -> bool:
    """Run ``act`` on a table whose n-th deletion waits until others have done something. False: it has fewer."""
    count = itertools.count(1)

    def wait(method: str, path: str) -> None:
        if method == "delete" and next(count) == number:
            meanwhile(table)

    act(changed(table, store=FaultStore(table.store, on_mutation=wait)))
    return next(count) > number


def operation(name: str, **values: Any) -> Act:
    def act(table: Table) -> None:
        warehouse = table.store.uri.rsplit("/", 2)[0]
        context = open_context(build_request(name, {"warehouse": warehouse, "table": table.name, **values}))
        perform(changed(context, table=table), context.request)

    return act


def made_anew(table: Table, base: str = "x") -> None:
    """A branch from the same snapshot: its first files have the content of those of the earlier one."""
    run(table, "create_branch", branch="fix", tag=base)
    append(table.branch("fix"), "c")


def deleted_and_made_anew(table: Table) -> None:
    run(table, "delete_branch", branch="fix", force=True)
    next_millisecond()
    made_anew(table)


def renamed_and_made_anew(table: Table) -> None:
    run(table, "rename_branch", branch="fix", to_branch="better")
    made_anew(table)


@pytest.fixture(scope="module")
def made() -> Table:
    table = make_table(f"memory://{uuid.uuid4()}/wh", primary=False)
    for _ in range(3):
        append(table, "a")
    run(table, "create_tag", tag="x", snapshot=3)
    run(table, "create_branch", branch="fix", tag="x")
    append(table.branch("fix"), "b")
    return table


@pytest.mark.parametrize(
    ("act", "meanwhile"),
    [
        (operation("delete_branch", branch="fix", force=True), deleted_and_made_anew),
        (operation("create_branch", branch="fix", tag="x", if_exists="replace"), deleted_and_made_anew),
        (operation("rename_branch", branch="fix", to_branch="better"), renamed_and_made_anew),
    ],
    ids=["delete", "replace", "rename"],
)
def test_a_branch_that_was_made_anew_stays(made: Table, act: Act, meanwhile: Act) -> None:
    for number in itertools.count(1):
        table = copied(made)
        stands: list[set[str]] = []

        def others(table: Table = table, stands: list[set[str]] = stands) -> None:
            meanwhile(table)
            stands.append(names(table.branch("fix")))

        try:
            if not stalled(table, number, lambda _: others(), act):
                break
        except (ConflictError, NotFoundError, PaimonError):
            pass
        if not stands:  # the deletion that waited was refused
            continue
        view = table.branch("fix")
        assert (view.snapshot_ids(), names(view)) == ([3, 4], stands[0]), number
        kept = [t for t in table.tags() if protects(t.name) == "fix"]
        assert [t.snapshot.id for t in kept] == [3] and view.find_tag("x") is not None, number
        assert_sound(table, leaks=True)
    assert number > 3


def dropped_and_made_anew(table: Table) -> Table:
    if table.exists():
        drop_table(open_table(table.store.uri.rsplit("/", 2)[0], table.name))
    new = make_table(table.store.uri.rsplit("/", 2)[0], primary=False)
    append(new, "a")
    append(new, "b")
    return new


@pytest.mark.parametrize(
    "act",
    [
        operation("expire_snapshots", retain_min=3, older_than="0 s", retry_window="0 s"),
        lambda table: drop_table(changed(open_table(table.store.uri.rsplit("/", 2)[0], table.name), store=table.store)),
    ],
    ids=["expire", "drop"],
)
def test_a_table_that_was_dropped_and_made_anew_stays(act: Act) -> None:
    for number in itertools.count(1):
        table = make_table(f"memory://{uuid.uuid4()}/wh", primary=False)
        for _ in range(5):
            append(table, "a")
        next_millisecond()
        try:
            if not stalled(table, number, dropped_and_made_anew, act):
                break
        except (ConflictError, NotFoundError):
            pass
        if table.exists():
            assert table.snapshot_ids() == [1, 2], number
            assert_sound(table, leaks=True)
            assert not table.store.walk("_airflow_paimon/trash"), number
    assert number > 2


@pytest.mark.parametrize(
    "act",
    [
        operation("expire_tags", now="2999-01-01T00:00:00Z"),
        operation("delete_tag", tag="t"),
        operation("rename_tag", tag="t", to_tag="u"),
    ],
    ids=["expire", "delete", "rename"],
)
def test_a_tag_that_was_set_anew_stays(made: Table, act: Act) -> None:
    table = copied(made)
    run(table, "create_tag", tag="t", snapshot=1, time_retained="1 h")
    with suppress(ConflictError):
        assert stalled(table, 1, lambda t: run(t, "replace_tag", tag="t", snapshot=2), act)
    assert (table.tag("t").snapshot.id, table.tag("t").time_retained) == (2, None)
    assert "u" not in table.tag_names()


@pytest.mark.parametrize("name", ["clear_consumers", "reset_consumer"])
def test_a_consumer_that_has_gone_on_stays(made: Table, name: str) -> None:
    table, path = copied(made), "consumer/consumer-job"
    table.store.create(path, json.dumps({"nextSnapshot": 2}).encode())
    values = {"consumer": "job"} if name == "reset_consumer" else {}
    with pytest.raises(ConflictError, match="consumer-job was changed by another process"):
        stalled(table, 1, lambda t: t.store.replace(path, b'{"nextSnapshot": 3}'), operation(name, **values))
    assert table.store.read(path) == b'{"nextSnapshot": 3}'


@dataclass(frozen=True)
class NoConditions(StoreWrapper):
    """A storage whose deletions take no condition."""

    inner: Store

    def delete_same(self, path: str, data: bytes) -> bool | None:
        return base.Store.delete_same(self, path, data)


def test_a_storage_without_conditions_says_that_it_may_have_deleted_another_file(
    made: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stall is longer than the look and the deletion may take; no other error hides what may be lost."""
    monkeypatch.setattr(base, "LOOK_S", 0.0)
    table = copied(made)
    run(table, "create_tag", tag="t", snapshot=1)
    data = table.store.read("tag/tag-t")
    with pytest.raises(OutcomeUnknownError, match=r"tag/tag-t was deleted .* after it was read"):
        operation("delete_tag", tag="t")(changed(table, store=NoConditions(table.store)))
    assert parse_tag(data, "t").snapshot.id == 1
