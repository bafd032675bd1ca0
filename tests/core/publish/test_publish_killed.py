"""Publishes and rollbacks of real rows that die at any change of the storage, or are refused: what readers see, what a
retry gives, what stays behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon import create_table, execution, open_table
from airflow_paimon.core.commit.idempotency import attempt
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    OutcomeUnknownError,
    PaimonError,
    StorageError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.publish.publish_schemas import revert_schemas
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.schema.schema_plan import AddColumn, DropColumn, SetOption, WidenColumn
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.files.arrow_types import arrow_schema
from tests.core.tables import alter_table, run
from tests.randomness import moments
from tests.stores import Crash, FaultStore

Rows = list[dict[str, Any]]
PRICE = AddColumn(name="price", type="DOUBLE")


def write(view: Table, text: str, mode: str = "append") -> None:
    """``"a1=x"``: partition a, key 1, value x; the column price, where there is one, is 2.5."""
    schema = arrow_schema(view.schema().fields)
    rows = [
        {"dt": w[0], "k": int(w[1]), "v": w[3:], "w": "w", "price": 2.5, "n": int(w[3:]) if w[3:].isdigit() else 7}
        for w in text.split()
    ]
    data = [{name: row[name] for name in schema.names} for row in rows]
    write_arrow(view, pa.Table.from_pylist(data, schema=schema), mode=mode)


def rows(view: Table) -> Rows:
    return sorted(read_arrow(view).to_pylist(), key=lambda r: (r["dt"], r["k"]))


@dataclass(frozen=True)
class Case:
    """``mend``: what the table becomes; ``keeps``: what others write to other partitions meanwhile stays."""

    operation: str
    values: dict[str, Any]
    prepare: Callable[[Table], None]
    keeps: bool = False


def _fix(table: Table, *, column: bool = True, drop: bool = False) -> Table:
    fix = table.branch("fix")
    if column:
        alter_table(fix, [PRICE])
    if drop:
        alter_table(fix, [DropColumn(name="w")])
    write(fix, "a1=fixed a3=new", "dynamic_overwrite")
    return fix


def _both(table: Table) -> None:
    """Main has a column of its own, under the id of the branch's."""
    _fix(table)
    alter_table(table, [AddColumn(name="n", type="INT")])
    write(table, "d1=1")


def _two_days(table: Table) -> Table:
    fix = _fix(table)
    write(fix, "b1=waits")
    return fix


def _published(table: Table) -> None:
    _fix(table, column=False)
    run(table, "merge_branch", branch="fix", operation_id="first", writers_stopped=True)
    write(table, "b3=later")


def _whole(table: Table) -> None:
    """A branch with rows, columns, an option and a tag; main got an option after its last commit."""
    fix = _fix(table, drop=True)
    alter_table(fix, [SetOption(key="compaction.min.file-num", value="3")])
    run(table, "create_tag", tag="day-1", branch="fix")
    alter_table(table, [SetOption(key="snapshot.num-retained.max", value="50")])


def _replaced(table: Table) -> None:
    _whole(table)
    run(table, "replace_main", keep_old_as="old", operation_id="first", **STOPPED)


STOPPED = {"branch": "fix", "writers_stopped": True}
CASES = {
    "merge": Case("merge_branch", STOPPED, lambda t: _fix(t, column=False) and None, keeps=True),
    "merge-column": Case("merge_branch", STOPPED, lambda t: _fix(t) and None, keeps=True),
    "merge-columns": Case("merge_branch", STOPPED, lambda t: _fix(t, drop=True) and None, keeps=True),
    "merge-both": Case("merge_branch", STOPPED, lambda t: _both(t), keeps=True),
    "part-column": Case(
        "merge_branch", {**STOPPED, "partitions": ["dt=a"]}, lambda t: _two_days(t) and None, keeps=True
    ),
    "forward-column": Case("fast_forward", STOPPED, lambda t: _fix(t) and None),
    "replace": Case("replace_main", {**STOPPED, "keep_old_as": "old"}, _whole),
    "replace-back": Case("replace_main", {"branch": "old", "writers_stopped": True}, _replaced),
    "rollback": Case("rollback_to", {"tag": "base"}, _published),
    "undo": Case("rollback_to", {"tag": "airflow-paimon-undo-first", "keep_later": True}, _published, keeps=True),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse whose table has partitions a, b, a tag ``base`` and a branch ``fix``; copied for each life."""
    warehouse = tmp_path_factory.mktemp("template")
    columns = [("dt", "STRING NOT NULL"), ("k", "INT NOT NULL"), ("v", "STRING"), ("w", "STRING")]
    table = create_table(str(warehouse), "d.t", columns, partition_keys=["dt"], primary_keys=["dt", "k"],
                         options={"bucket": "1"})  # fmt: skip
    write(table, "a1=x a2=y b1=z")
    run(table, "create_tag", tag="base")
    run(table, "create_branch", branch="fix", tag="base")
    run(table, "create_branch", branch="other", tag="base")
    return warehouse


def copied(source: Path, target: Path) -> Table:
    shutil.copytree(source, target)
    return open_table(str(target), "d.t")


def dies(table: Table, case: Case, step: int, *, after: bool) -> bool:
    """Run the operation until its n-th change of the storage; False = it has fewer."""
    faulty = FaultStore(table.store, fail_at=step, error=Crash(), after=after)
    try:
        perform(table, faulty, case.operation, operation_id="op", **case.values)
    except Crash:
        return True
    return False


def perform(table: Table, store: Any, operation: str, **values: Any) -> OperationResult:
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    context = open_context(build_request(operation, {"warehouse": warehouse, "table": table.name, **values}))
    context = type(context)(context.request, Table(store, table.name), context.now_ms, context.started)
    return execution.perform(context, context.request)


def killed_at(table: Table, path: str, operation: str, *, after: bool = False, **values: Any) -> None:
    """Run an operation that dies right before it puts a file, or at its first change of the storage after that."""
    reached: list[str] = []

    def die(method: str, uri: str) -> None:
        if uri == path or reached:
            reached.append(uri)
        if len(reached) > after:
            raise Crash

    with pytest.raises(Crash):
        perform(table, FaultStore(table.store, on_mutation=die), operation, writers_stopped=True, **values)


def lives(template: Path, tmp_path: Path, name: str) -> Iterator[tuple[Path, Rows, Rows, str]]:
    """The warehouse after each death of a case's operation, with main's rows before it and after it.

    A death before a change is one after the change before it, so only the last one is followed by a death as well.
    """
    case = CASES[name]
    start = copied(template, tmp_path / "start")
    case.prepare(start)
    before = rows(start)
    done = copied(tmp_path / "start", tmp_path / "done")
    probe = FaultStore(done.store)
    perform(done, probe, case.operation, operation_id="op", **case.values)
    after = rows(open_table(str(tmp_path / "done"), "d.t"))
    assert before != after
    steps = len(probe.mutations)
    assert 10 < steps < 60
    for step in moments(steps + 1, 5):
        folder = tmp_path / str(step)
        assert dies(copied(tmp_path / "start", folder), case, step, after=False)
        yield folder, before, after, f"{name}, before change {step}"
    assert dies(copied(tmp_path / "start", tmp_path / "last"), case, steps, after=True)
    yield tmp_path / "last", before, after, f"{name}, after change {steps}"


def outward(table: Table) -> tuple[Any, ...]:
    """What there is of a table beside its rows."""
    schemas = {name: table.branch(name).schema() for name in ("main", *table.branch_names())}
    shapes = {name: (s.field_names, s.options, s.comment) for name, s in schemas.items()}
    return shapes, {t.name: t.snapshot.id for t in table.tags()}


def kept_value(row: dict[str, Any], after: Rows, name: str) -> Any:
    """The value of a column that comes back: a file that both states share has it still."""
    twins = [r for r in after if all(r[n] == v for n, v in row.items() if n in r)]
    return twins[0].get(name) if twins else None


def sound(table: Table) -> bool:
    details = run(table, "check_table").details
    assert details["ok"], details["findings"]
    return True


@pytest.mark.parametrize("name", CASES)
def test_a_reader_never_meets_a_mixture_and_a_retry_gives_the_result(template: Path, tmp_path: Path, name: str) -> None:
    """Between columns and snapshot the old rows show under the new columns: null, or without a dropped one; with the
    values of one that comes back, where their file has them."""
    case = CASES[name]
    for folder, before, after, where in lives(template, tmp_path, name):
        table = open_table(str(folder), "d.t")
        head = table.latest_snapshot_id()
        names = table.schema().field_names
        under_new = [{n: r.get(n, kept_value(r, after, n)) for n in names} for r in before]
        assert rows(table) in (before, after, under_new), where
        committed = rows(table) == after
        if case.keeps:
            write(table, "c1=meanwhile")
        done = outward(open_table(str(tmp_path / "done"), "d.t"))
        expected = len(table.snapshot_ids()) + (0 if committed else 1)
        assert run(table, case.operation, operation_id="op", **case.values).changed, where
        mine = [r for r in rows(table) if r["dt"] != "c"]
        assert mine == after, where
        assert len(rows(table)) == len(after) + case.keeps, where
        assert len(table.snapshot_ids()) == expected, where
        assert table.snapshot(head or 0).id == head, where
        assert case.keeps or outward(table) == done, where
        assert sound(table)
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["merge-column", "merge-columns", "merge-both"])
def test_what_a_killed_publish_has_brought_is_in_no_other_ones_way(template: Path, tmp_path: Path, name: str) -> None:
    """Its columns stay as ordinary ones: another branch is published beside them, and the branch by another operation.
    A branch of main's head with the former columns gives those back."""
    for folder, before, after, where in lives(template, tmp_path, name):
        table = open_table(str(folder), "d.t")
        committed = rows(table) == after
        run(table, "repair_table")
        assert sound(table)
        if not committed:
            former = copied(folder, folder.with_name(f"{folder.name}-former"))
            run(former, "create_branch", branch="former", snapshot=former.latest_snapshot_id())
            run(former, "replace_main", branch="former", writers_stopped=True, readers_stopped=True)
            assert rows(former) == before, where
        write(table.branch("other"), "b1=else", "dynamic_overwrite")
        run(table, "merge_branch", branch="other", writers_stopped=True)
        assert [r["v"] for r in rows(table) if r["dt"] == "b"] == ["else"], where
        result = run(table, "merge_branch", operation_id="another", **STOPPED)
        assert result.changed is not committed, where
        assert [r for r in rows(table) if r["dt"] == "a"] == after[:2], where
        assert sound(table)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("name", "branch"),
    [("merge-columns", "fix"), ("replace", "fix"), ("merge-columns", "other"), ("merge-both", "other")],
)
def test_main_is_kept_with_the_columns_that_it_had_before_a_killed_publish(
    template: Path, tmp_path: Path, name: str, branch: str
) -> None:
    case, table = CASES[name], copied(template, tmp_path / "main")
    case.prepare(table)
    before = rows(table)
    probe = FaultStore(copied(tmp_path / "main", tmp_path / "done").store)
    perform(open_table(str(tmp_path / "done"), "d.t"), probe, case.operation, operation_id="op", **case.values)
    put = f"/t/snapshot/snapshot-{(table.latest_snapshot_id() or 0) + 1}"
    [step] = [at for at, (_, uri) in enumerate(probe.mutations, 1) if uri.endswith(put)]
    assert dies(table, case, step, after=False) and "price" in table.schema().field_names
    values = {**STOPPED, "branch": branch, "discard_main": name == "merge-both"}
    write(table.branch("other"), "b1=else")
    run(table, "replace_main", keep_old_as="kept", operation_id="another", readers_stopped=True, **values)
    assert rows(table.branch("kept")) == before and sound(table)


def test_main_is_kept_with_columns_that_another_publish_has_brought_since_a_try_was_killed(
    template: Path, tmp_path: Path
) -> None:
    """The first try is cut off once it holds the branch; a merge brings the column and its values; then the retry."""
    table = copied(template, tmp_path / "wh")
    _fix(table)
    values = {**STOPPED, "keep_old_as": "kept", "discard_main": True, "readers_stopped": True}
    probe = FaultStore(copied(tmp_path / "wh", tmp_path / "done").store)
    perform(open_table(str(tmp_path / "done"), "d.t"), probe, "replace_main", operation_id="op", **values)
    step = next(at for at, (_, uri) in enumerate(probe.mutations, 1) if "/_airflow_paimon/holds/" in uri)
    with pytest.raises(Crash):
        perform(table, FaultStore(table.store, step, after=True), "replace_main", operation_id="op", **values)
    run(table, "merge_branch", **STOPPED)
    before = rows(table)
    assert any(r["price"] is not None for r in before)
    run(table, "replace_main", operation_id="op", **values)
    assert rows(table.branch("kept")) == before and sound(table)


@pytest.mark.parametrize("same_bucket", [True, False])
@pytest.mark.parametrize("fits_both", [True, False])
def test_columns_of_a_publish_that_ends_in_a_conflict_are_taken_back_unless_used(
    template: Path, tmp_path: Path, same_bucket: bool, fits_both: bool
) -> None:
    """A writer commits between the columns and the snapshot: by the old columns, or with a value in the new one."""
    table = copied(template, tmp_path / "wh")
    _fix(table)
    schemas, tags = table.schema(), table.tag_names()
    rival = {"done": False}
    writer = copied(template, tmp_path / "elsewhere") if fits_both else table

    def compete(method: str, path: str) -> None:
        if path == table.paths.snapshot(2) and not rival["done"]:
            rival["done"] = True
            assert table.schema().field_names == (*schemas.field_names, "price")
            write(writer, "a9=rival" if same_bucket else "c9=rival")
            if fits_both:  # as a writer does that has loaded the table before
                shutil.copytree(
                    tmp_path / "elsewhere" / "d.db" / "t", tmp_path / "wh" / "d.db" / "t", dirs_exist_ok=True
                )

    store = FaultStore(table.store, on_mutation=compete)
    if same_bucket:
        with pytest.raises(ConflictError):
            perform(table, store, "merge_branch", **STOPPED)
        assert table.schema().field_names == (*schemas.field_names, *(() if fits_both else ("price",)))
        assert table.schema().highest_field_id == schemas.highest_field_id + 1
        assert table.tag_names() == tags
    else:
        perform(table, store, "merge_branch", **STOPPED)
        assert table.schema().field_names[-1] == "price"
    assert rival["done"]
    found = [(r["v"], r.get("price")) for r in rows(table) if r["k"] == 9]
    assert found == [("rival", None if fits_both else 2.5)]
    assert sound(table)


def test_a_value_that_only_a_wider_column_holds_outlives_the_publish_that_brought_it(
    template: Path, tmp_path: Path
) -> None:
    """The publish is cut off before its snapshot; another writer goes on; then a repair, and a retry."""
    start = copied(template, tmp_path / "wh")
    alter_table(start, [AddColumn(name="n", type="INT")])
    write(start, "b1=z")
    run(start, "create_tag", tag="with-n")
    run(start, "create_branch", branch="wide", tag="with-n")
    alter_table(start.branch("wide"), [WidenColumn(name="n", type="BIGINT")])
    write(start.branch("wide"), "a1=fixed", "dynamic_overwrite")
    case = Case("merge_branch", {"branch": "wide", "writers_stopped": True}, lambda t: None)
    for step in range(1, 60):
        table = copied(tmp_path / "wh", tmp_path / f"{step}")
        assert dies(table, case, step, after=True)
        if len(table.schema_ids()) > len(start.schema_ids()):
            break
    assert table.snapshot_ids() == start.snapshot_ids()
    write(table, "c9=2199023255552")
    run(table, "repair_table")
    assert [r["n"] for r in rows(table) if r["dt"] == "c"] == [2199023255552]
    run(table, case.operation, operation_id="op", **case.values)
    assert [(r["v"], r["n"]) for r in rows(table) if r["dt"] in "ac"] == [
        ("fixed", 7),
        ("2199023255552", 2199023255552),
    ]
    assert sound(table)


def test_columns_that_a_writer_uses_while_they_are_taken_back_stay(template: Path, tmp_path: Path) -> None:
    """It commits between the look at the live files and the old columns, which a conflict puts again."""
    table, elsewhere = copied(template, tmp_path / "wh"), copied(template, tmp_path / "elsewhere")
    _fix(table)
    taken_back = table.paths.schema(2)
    used: list[str] = []

    def compete(method: str, path: str) -> None:
        if method == "create" and path == table.paths.snapshot(2) and not used:
            used.append(path)
            write(elsewhere, "a9=rival")
            shutil.copytree(tmp_path / "elsewhere" / "d.db" / "t", tmp_path / "wh" / "d.db" / "t", dirs_exist_ok=True)
        elif (method, path) == ("create", taken_back) and len(used) == 1:
            used.append(path)
            write(table, "c9=late")

    with pytest.raises(ConflictError):
        perform(table, FaultStore(table.store, on_mutation=compete), "merge_branch", **STOPPED)
    assert len(used) == 2 and table.schema().id == 3
    assert [r["price"] for r in rows(table) if r["dt"] == "c"] == [2.5]


@pytest.mark.parametrize("killed", [False, True])
def test_columns_that_another_publish_took_back_at_the_commit_come_again(
    template: Path, tmp_path: Path, killed: bool
) -> None:
    table = copied(template, tmp_path / "wh")
    _fix(table)
    rival = {"done": False}

    def compete(method: str, path: str) -> None:
        if rival["done"] and killed:
            raise Crash
        if path == table.paths.snapshot(2) and not rival["done"]:
            rival["done"] = True
            revert_schemas(table, "other", table.schema(0), [table.schema()])
            assert "price" not in table.schema().field_names

    with pytest.raises(Crash) if killed else nullcontext():
        faulty = FaultStore(table.store, on_mutation=compete)
        perform(table, faulty, "merge_branch", operation_id="op", **STOPPED)
    run(table, "merge_branch", operation_id="op", **STOPPED)
    assert rival["done"]
    assert [r.get("price") for r in rows(table)] == [2.5, 2.5, None]
    assert sound(table)


def test_a_column_that_two_branches_bring_stays_if_the_first_publish_is_refused(template: Path, tmp_path: Path) -> None:
    """Neither brings rows. The second one finds the column on main, and commits a snapshot that needs it."""
    table = copied(template, tmp_path / "wh")
    run(table, "create_branch", branch="second", snapshot=1)
    for branch in ("fix", "second"):
        alter_table(table.branch(branch), [PRICE])
    done: list[OperationResult] = []

    def compete(method: str, path: str) -> None:
        if path == table.paths.snapshot(2) and not done:
            assert "price" in table.schema().field_names
            done.append(run(table, "merge_branch", branch="second", writers_stopped=True))

    with pytest.raises(ConflictError):
        faulty = FaultStore(table.store, on_mutation=compete)
        perform(table, faulty, "merge_branch", expected_main_snapshot=1, **STOPPED)
    assert done[0].changed and table.snapshot_ids() == [1, 2] and "price" in table.schema().field_names
    assert sound(table)


def test_an_id_of_a_column_that_a_killed_publish_brought_is_not_given_to_another_one(
    template: Path, tmp_path: Path
) -> None:
    table = copied(template, tmp_path / "wh")
    _fix(table)
    step = next(s for s in range(1, 60) if _dies_between(table, tmp_path, s))
    table = open_table(str(tmp_path / f"between-{step}"), "d.t")
    alter_table(table, [AddColumn(name="mine", type="STRING")])
    run(table, "merge_branch", **STOPPED)
    ids = {f.name: f.id for f in table.schema().fields}
    assert ids["price"] == table.branch("fix").schema().field("price").id == ids["mine"] - 1
    assert [(r.get("price"), r.get("mine")) for r in rows(table)] == [(2.5, None), (2.5, None), (None, None)]


def _dies_between(table: Table, tmp_path: Path, step: int) -> bool:
    """Whether main has the columns and not the snapshot after the death at this change."""
    one = copied(tmp_path / "wh", tmp_path / f"between-{step}")
    assert dies(one, CASES["merge-column"], step, after=True)
    return len(one.schema_ids()) > len(table.schema_ids()) and len(one.snapshot_ids()) == len(table.snapshot_ids())


REFUSED: dict[str, tuple[str, type[PaimonError], dict[str, Any]]] = {
    "merge-retention": ("merge", InvalidInputError, {"undo_retention": "soon"}),
    "merge-no-retention": ("merge", InvalidInputError, {"undo_retention": "0 s"}),
    "forward-retention": ("forward-column", InvalidInputError, {"undo_retention": "-1 d"}),
    "replace-option": ("replace", InvalidInputError, {"option": ["bucket"]}),
    "replace-name": ("replace", InvalidInputError, {"keep_old_as": "fix"}),
    "replace-taken": ("replace", AlreadyExistsError, {"keep_old_as": "other"}),
    "replace-buckets": ("replace", UnsupportedFeatureError, {"option": ["bucket=2"]}),
    "replace-missing-file": ("replace", FormatError, {}),
    "replace-lost": ("replace", UnsafeOperationError, {}),
    "rollback-retention": ("rollback", InvalidInputError, {"undo_retention": "soon"}),
    "merge-missing-file": ("merge-column", FormatError, {}),
    "forward-missing-file": ("forward-column", FormatError, {}),
    "rollback-missing-file": ("rollback", FormatError, {}),
    "undo-missing-file": ("undo", FormatError, {}),
    "merge-expected": ("merge", ConflictError, {"expected_main_snapshot": 9}),
    "forward-lost": ("forward-column", UnsafeOperationError, {}),
}


@pytest.mark.parametrize("operation_id", [None, "op"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_nothing(template: Path, tmp_path: Path, name: str, operation_id: str | None) -> None:
    of, error, values = REFUSED[name]
    case = CASES[of]
    table = copied(template, tmp_path / "wh")
    case.prepare(table)
    if "missing" in name:
        lose_files(table, tmp_path, case)
    if name in ("forward-lost", "replace-lost"):
        write(table, "b7=main")
    before = {p: table.store.read(p) for p in table.store.walk("")}
    with pytest.raises(error):
        run(table, case.operation, operation_id=operation_id, **(case.values | values))
    after = {p: table.store.read(p) for p in table.store.walk("")}
    new = {p.rpartition("/")[0] for p in after.keys() - before.keys()}
    assert new <= (set() if operation_id is None else {"_airflow_paimon/operations", "_airflow_paimon/retried"})
    assert {p: data for p, data in after.items() if p in before} == before
    if new:  # the record of the operation is void: its id can be used for something else
        with attempt(table, "op", "main", "something else") as again:
            assert not again.retried


def lose_files(table: Table, tmp_path: Path, case: Case) -> None:
    """Delete the data files that the operation would bring to main."""
    from airflow_paimon.core.table.live_entries import live_entries

    def live(t: Table) -> set[str]:
        return {e.file.file_name for e in live_entries(t, t.latest_snapshot()).values()}

    done = copied(tmp_path / "wh", tmp_path / "lost")
    run(done, case.operation, **case.values)
    for path in table.store.walk(""):
        if path.rpartition("/")[2] in live(done) - live(table):
            table.store.delete(path)


@pytest.mark.parametrize("name", ["merge-column", "replace", "undo"])
def test_a_storage_that_fails_at_any_change_leaves_no_columns_and_no_tags(
    template: Path, tmp_path: Path, name: str
) -> None:
    """An error, not a death: what the call has written so far is taken back, unless the outcome is unknown."""
    case = CASES[name]
    start = copied(template, tmp_path / "start")
    case.prepare(start)
    before, shapes = rows(start), outward(start)
    for step in moments(60, 3):
        table = copied(tmp_path / "start", tmp_path / str(step))
        store = FaultStore(table.store, fail_at=step, error=OSError("disk full"))
        try:
            perform(table, store, case.operation, **case.values)
        except (StorageError, OutcomeUnknownError) as error:
            assert isinstance(error, OutcomeUnknownError) == (rows(table) != before), step
            if rows(table) != before:  # it had landed: the tags on the new snapshot are for repair_table or a retry
                assert len(table.snapshot_ids()) > len(start.snapshot_ids())
                begun = [
                    f["id"] for f in run(table, "check_table").details["findings"] if f["id"] == "half-made-branch:old"
                ]
                run(table, "repair_table", finding=begun or None)
                run(table, "repair_table")
                assert sound(table)
                continue
            assert outward(table) == shapes, step
        else:
            if len(store.mutations) < step:
                return
    raise AssertionError("60 steps were not enough")
