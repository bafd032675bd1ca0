"""Branches whose names other engines make with a dot, beside others whose names they begin with."""

from __future__ import annotations

import time
import uuid

import pytest

from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.table.paths import parse_protective, protective_tag, protects, published_tag
from airflow_paimon.core.table.table import Table, resolve_version
from tests.core.tables import append, make_table, run
from tests.soundness import assert_sound


@pytest.mark.parametrize("name", ["a", "a.b", "a.5", "a%2E5", "%", ".", "a b", "ü", "a-1f", "a.5-1f", "x\ny"])
def test_a_protective_tag_names_its_branch_and_no_other(name: str) -> None:
    assert protects(protective_tag(name)) == protects(published_tag(name, 7)) == name
    for tag, number in ((protective_tag(name), None), (published_tag(name, 7), 7), (f"{published_tag(name, 7)}-0a", 7)):
        found = parse_protective(tag)
        assert found is not None and (found.branch, found.published) == (name, number)
        assert protects(f"{tag}.x") is None and protects(f"{tag}.1.2") is None
    assert protects("airflow-paimon-branch-a%2") is None and protects("airflow-paimon-branch-") is None


def by_another_engine(table: Table, name: str, tag: str) -> None:
    """As Paimon's create_branch makes it."""
    store, folder = table.store, f"branch/branch-{name}"
    store.create(f"{folder}/tag/tag-{tag}", store.read(f"tag/tag-{tag}"))
    store.create(f"{folder}/snapshot/snapshot-1", store.read(f"tag/tag-{tag}"))
    store.create(f"{folder}/schema/schema-0", store.read("schema/schema-0"))


@pytest.fixture
def table() -> Table:
    """Branch ``a`` of ours, and ``a.b`` of another engine whose tag is gone: both start from snapshot 1."""
    table = make_table(f"memory://{uuid.uuid4()}/wh", primary=False)
    append(table, "a")
    run(table, "create_tag", tag="base")
    run(table, "create_branch", branch="a", tag="base")
    by_another_engine(table, "a.b", "base")
    table.store.delete("tag/tag-base")
    return table


def test_a_repair_protects_it_once_and_another_branch_goes_without_it(table: Table) -> None:
    assert "unprotected-branch:a.b" in [f["id"] for f in run(table, "check_table").details["findings"]]
    run(table, "repair_table")
    assert sorted(filter(None, map(protects, table.tag_names()))) == ["a", "a.b"]
    for _ in range(2):
        assert not run(table, "repair_table").changed
    append(table.branch("a"), "b")
    with pytest.raises(UnsafeOperationError, match=r"keeps files that branch 'a\.b' shares"):
        run(table, "delete_tag", tag=protective_tag("a.b"))
    run(table, "delete_branch", branch="a", force=True)
    assert [protects(name) for name in table.tag_names()] == ["a.b"]
    run(table, "repair_table")
    assert [protects(name) for name in table.tag_names()] == ["a.b"]
    run(table, "rename_branch", branch="a.b", to_branch="c")
    assert [protects(name) for name in table.tag_names()] == ["c"]
    assert_sound(table, leaks=True)


def test_the_rest_of_a_branch_that_another_engine_dropped_goes_without_it(table: Table) -> None:
    """Ours had a protective tag on the snapshot from which the other engine's branch starts as well."""
    for path in table.store.walk("branch/branch-a"):
        table.store.delete(path)
    run(table, "delete_branch", branch="a", if_missing="skip")
    assert [protects(name) for name in table.tag_names()] == ["a.b"]


def test_tags_that_expire_together_leave_one_to_a_branch(table: Table) -> None:
    """Each of the two keeps its files as long as the other one goes alone."""
    run(table, "delete_branch", branch="a", force=True)
    table.store.delete(f"tag/tag-{protective_tag('a.b')}")
    for name in ("one", "two"):
        run(table, "create_tag", tag=name, snapshot=1)
    later = str(int(time.time() * 1000) + 3_600_000)
    run(table, "expire_tags", include_unlimited=True, older_than="0 s", now=later)
    assert len(table.tag_names()) == 1


def test_a_version_that_two_branches_can_mean_says_how_to_name_one(table: Table) -> None:
    run(table, "create_tag", branch="a", tag="b.x", snapshot=1)
    run(table, "create_tag", branch="a.b", tag="x", snapshot=1)
    with pytest.raises(InvalidInputError, match=r"ambiguous.*Read the branch itself, as d\.t\$branch_a@b\.x"):
        resolve_version(table, "a.b.x")
