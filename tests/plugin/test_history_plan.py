"""The layout of a history: everything is drawn once, folds only where it must, and what matters keeps its place."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.plugin.history_plan import LaneInput, Picture, lay_out
from airflow_paimon.plugin.history_svg import describe_all, draw
from airflow_paimon.plugin.sheet import folded, sheet_of, shortened, tick_texts
from airflow_paimon.shown.commit import Commit
from airflow_paimon.shown.commits import changed_rows, commit_of
from airflow_paimon.shown.listing import Listing, heads

MINUTE = 60_000


def commit(number: int, millis: int | None = None, **more: object) -> Commit:
    at = number * MINUTE if millis is None else millis
    return Commit(id=number, millis=at, identity=f"main-{number}", **({"kind": "APPEND"} | more))  # type: ignore[arg-type]


def main(count: int, **special: dict[str, object]) -> LaneInput:
    found = [commit(n, **special.get(f"s{n}", {})) for n in range(1, count + 1)]  # type: ignore[arg-type]
    return LaneInput(name="main", commits=found)


def drawn(picture: Picture, lane: int = 0) -> list[int]:
    return sorted(c.id for m in picture.marks if m.lane == lane for c in m.commits)


def test_few_commits_have_a_column_each() -> None:
    picture = lay_out([main(5)], columns=8)
    assert [(m.column, len(m.commits), m.since) for m in picture.marks] == [(n, 1, None) for n in range(5)]
    assert not picture.folded


def test_ten_thousand_commits_fit_and_none_is_lost() -> None:
    special = {f"s{n}": {"operation": "merge_branch", "source": "x"} for n in (17, 5000, 9999)}
    picture = lay_out([main(10_000, **special)], columns=64)
    assert len(picture.times) <= 64
    assert drawn(picture) == list(range(1, 10_001))
    assert picture.folded
    alone = {m.commits[0].id for m in picture.marks if len(m.commits) == 1}
    assert {17, 5000, 9999} <= alone
    assert {m.role for m in picture.marks if m.commits[0].id in (17, 5000, 9999)} == {"publish"}


def test_zooming_into_a_fold_unfolds_it() -> None:
    lanes = [main(10_000)]
    since, until, total = None, None, 10_000
    for _ in range(5):
        picture = lay_out(lanes, since, until, columns=16)
        assert picture.total == total
        if not picture.folded:
            break
        fold = max(picture.marks, key=lambda m: len(m.commits))
        since, until, total = fold.since, fold.until, len(fold.commits)
    assert not picture.folded


def test_a_branch_begins_where_it_parted_and_its_publish_leads_back() -> None:
    base = main(6, s6={"operation": "merge_branch", "source": "fix", "source_id": 4})
    own = [*base.commits[:3], commit(4, 4 * MINUTE + 1, user="own")]
    own[3] = Commit(id=4, millis=4 * MINUTE + 1, kind="OVERWRITE", identity="fix-4")
    picture = lay_out([base, LaneInput(name="fix", commits=own, parent="main", owner="me", reason="why")])
    assert drawn(picture, 1) == [4], "what it shares with main is drawn on main"
    fork, publish = sorted(picture.edges, key=lambda e: e.kind)
    assert (fork.kind, fork.start, fork.end) == ("fork", (0, 2), (1, 4))
    assert (publish.kind, publish.start, publish.end) == ("publish", (1, 4), (0, 6))
    assert picture.lanes[1].title == "branch fix\nowner: me\nreason: why"
    assert (picture.lanes[1].first, picture.lanes[1].last) == (2, 4)


def test_a_branch_without_commits_of_its_own_hangs_at_its_fork() -> None:
    base = main(6)
    picture = lay_out([base, LaneInput(name="new", commits=base.commits[:3], parent="main")])
    assert (picture.lanes[1].first, picture.lanes[1].last) == (2, 2)
    assert [e.kind for e in picture.edges] == ["fork"]


def test_a_branch_of_a_branch_parts_from_it() -> None:
    base = main(3)
    mine = [*base.commits[:2], Commit(id=3, millis=200_000, kind="APPEND", identity="a-3")]
    other = [*mine, Commit(id=4, millis=300_000, kind="APPEND", identity="b-4")]
    lanes = [base, LaneInput(name="a", commits=mine, parent="main"), LaneInput(name="b", commits=other, parent="a")]
    picture = lay_out(lanes)
    assert {(e.start[0], e.end[0]) for e in picture.edges} == {(0, 1), (1, 2)}
    assert drawn(picture, 2) == [4]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"operation": "fast_forward", "source": "fix"}, "publish of fix"),
        ({"operation": "replace_main", "source": "fix"}, "replacement of main by fix"),
        ({"operation": "rollback_to", "target": 2}, "rollback to snapshot 2"),
        ({"operation": "rollback_to", "target": 2, "undone": 3}, "undo of snapshot 3"),
        ({"operation": "correct_branch"}, "correction"),
        ({"operation": "WRITE"}, "WRITE"),
        ({}, ""),
    ],
)
def test_operations_are_shown_in_words(fields: dict[str, object], what: str) -> None:
    assert commit(1, **fields).what == what  # type: ignore[arg-type]


def test_a_statement_is_shown_by_its_kind() -> None:
    written = Snapshot(
        id=1, schema_id=0, base_manifest_list="b", delta_manifest_list="d", commit_user="u", commit_identifier=1,
        commit_kind=CommitKind.OVERWRITE, time_millis=0, operation="UPDATE",
        properties={"airflow-paimon.operation": "sql"},
    )  # fmt: skip
    assert commit_of(written).what == "UPDATE"


def test_a_rollback_points_back() -> None:
    picture = lay_out([main(5, s5={"operation": "rollback_to", "target": 2})])
    (edge,) = picture.edges
    assert (edge.kind, edge.start, edge.end) == ("rollback", (0, 1), (0, 4))
    assert picture.marks[-1].role == "rollback"


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2), st.booleans()), max_size=120), st.integers(1, 40)
)  # fmt: skip
def test_every_commit_is_drawn_once_in_order_within_the_columns(
    given_: list[tuple[int, int, bool]], columns: int
) -> None:
    lanes = []
    for lane in range(3):
        found = [
            Commit(id=i + 1, millis=at, kind="APPEND", identity=f"{lane}-{i}", undo=special)
            for i, (at, special) in enumerate(sorted((a, s) for a, where, s in given_ if where == lane))
        ]
        lanes.append(LaneInput(name=f"l{lane}", commits=found, parent=None if lane == 0 else "l0"))
    picture = lay_out(lanes, columns=columns)
    assert len(picture.times) <= columns
    for number, lane_ in enumerate(lanes):
        assert drawn(picture, number) == [c.id for c in lane_.commits]
        columns_of = [m.column for m in picture.marks if m.lane == number]
        assert columns_of == sorted(columns_of)
        ids = [c.id for m in picture.marks if m.lane == number for c in m.commits]
        assert all(a < b for a, b in itertools.pairwise(ids))
    assert list(picture.times) == sorted(picture.times)
    draw(picture, lambda branch, mark: "#")


def test_a_fold_sums_up_what_is_in_it() -> None:
    lane = LaneInput(
        name="main",
        commits=[commit(n, rows=10, user=f"u{n % 2}", tags=("t",) if n == 3 else ()) for n in range(1, 41)],
    )
    picture = lay_out([lane], columns=4)
    said = describe_all(picture.marks[0], "main")
    assert "main: 10 commits, 1 to 10" in said
    assert "stored rows: +100" in said
    assert "tags: t" in said
    assert "Open to zoom in" in said


@pytest.mark.parametrize("text", ["<b>&\"'", "</title><script>"])
def test_the_drawing_escapes_every_text(text: str) -> None:
    found = Commit(id=1, millis=0, kind=text, user=text, operation=text, approved_by=text, tags=(text,), source=text)
    lane = LaneInput(name=text, commits=[found], owner=text, reason=text)
    svg = str(draw(lay_out([lane]), lambda branch, mark: f"?{text}"))
    assert text not in svg
    assert "&lt;" in svg


def test_an_axis_has_seconds_where_minutes_would_be_alike() -> None:
    at = 1_700_000_000_000
    assert tick_texts([at, at + 3_600_000]) == ["2023-11-14 22:13", "2023-11-14 23:13"]
    assert tick_texts([at, at + 2000]) == ["2023-11-14 22:13:20", "2023-11-14 22:13:22"]


def test_long_names_are_shortened_and_whole_on_hovering() -> None:
    user = "airflow-data_correction-correct-0123456789abcdef"
    assert (shortened(user, 36).text, shortened(user, 36).title) == ("airflow-data_correction-correct-…", user)
    assert shortened("data_correction/manual__2026-11-28T10:11:12+00:00", 18).text == "data_correction/m…"
    assert (shortened("ann").text, shortened(None).text) == ("ann", "-")
    assert (folded("UPDATE branch SET v = 1 WHERE k = 1").text, folded("short").folded) == (
        "UPDATE branch SET v = 1 WHE…",
        "",
    )


def test_an_optional_column_is_left_out_where_no_row_says_anything() -> None:
    def shown(*rows: tuple[str | None, ...]) -> list[str]:
        listing = Listing(title="rows", columns=heads("a | b | n: number"), rows=[(*row, None) for row in rows])
        return [column.title for column in sheet_of(listing, 0, empty="").columns]

    assert shown(("a", None), (None, "")) == ["A", "N"]
    assert shown(("a", None), ("a", "b")) == ["A", "B", "N"]


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"diff": '{"total": {"added": 0, "changed": 6, "deleted": 1}}'}, "6 changed, 1 deleted"),
        ({"details": '{"rows_updated": 2000, "rows_inserted": 0, "rows_deleted": 0}'}, "2,000 updated"),
        ({"diff": '{"total": {"added": 0, "changed": 0, "deleted": 0}}', "details": "[]"}, ""),
        ({"diff": "{"}, ""),
    ],
)
def test_changed_rows_are_those_of_the_diff_or_of_the_statement(properties: dict[str, str], said: str) -> None:
    assert changed_rows(properties) == said
