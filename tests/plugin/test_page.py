"""The page as a browser gets it: who sees it, what the tabs say, and what a broken or hostile table shows."""

import csv
import html
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.publish.undo_statement import undo_statement
from airflow_paimon.plugin.runs import KnownDag
from airflow_paimon.plugin.tabs import audit as audit_tab
from airflow_paimon.runbooks.kinds import Kind
from airflow_paimon.shown.urls import TABS
from tests.airflow.processes import wait_until
from tests.core.tables import append, make_table, rewrite
from tests.core.tables import run as operate
from tests.plugin.conftest import SECRET, Get
from tests.strict_metadata import damaged_on_purpose

pytestmark = pytest.mark.airflow

T = "/paimon/lake/d/t"


def texts(page: str) -> str:
    """What people read: no tags, one blank between words."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


# -- who may see it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/paimon/", "/paimon/lake", "/paimon/lake/d", T, f"{T}?tab=files", "/paimon/x/y/z"])
def test_without_a_token_there_is_nothing(get: Get, path: str) -> None:
    answer = get(path, None)
    assert answer.status_code == 401
    assert "wrong rate" not in answer.text


@pytest.mark.parametrize("path", ["/paimon/", "/paimon/lake", "/paimon/lake/d", T, f"{T}?tab=branches"])
def test_who_may_not_read_the_connection_sees_nothing_of_it(get: Get, path: str) -> None:
    assert get(path, "op").status_code == 200
    answer = get(path, "viewer")
    assert answer.status_code == 403
    assert "wrong rate" not in answer.text


@pytest.mark.parametrize(("role", "readable"), [("op", {"lake", "not-listed"}), ("viewer", set())])
def test_connections_of_the_environment_are_asked_for_as_well(server: Any, role: str, readable: set[str]) -> None:
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    from airflow_paimon.plugin.auth import readable_connections

    user = SimpleAuthManagerUser(username="somebody", role=role)
    assert readable_connections(user, ["lake", "not-listed"]) - readable_connections(user, []) == readable


@pytest.fixture
def of_red(server: Any, lake: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An Airflow with teams, and a connection of the team red."""
    from airflow.models.connection import Connection
    from airflow.models.team import Team
    from airflow.utils.session import create_session

    with create_session() as session:
        session.add(Team(name="red"))
        session.flush()
        extra = json.dumps({"warehouse": str(lake)})
        session.add(Connection(conn_id="of_red", conn_type="paimon", extra=extra, team_name="red"))
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    yield "of_red"
    monkeypatch.undo()
    with create_session() as session:
        session.query(Connection).filter_by(conn_id="of_red").delete()
        session.query(Team).filter_by(name="red").delete()


def test_a_connection_of_a_team_is_found_by_its_team(get: Get, of_red: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    from airflow_paimon.plugin.auth import readable_connections

    assert get("/paimon/of_red/d/t", "admin").status_code == 200
    asked: list[Any] = []

    def authorize(self: Any, *, details: Any = None, **_: Any) -> bool:
        asked.append(details)
        return details.team_name == "red"

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_connection", authorize)
    assert "of_red" in readable_connections(SimpleAuthManagerUser(username="a", role="op"), ["of_red", "lake"])
    assert [(d.conn_id, d.team_name) for d in asked[-2:]] == [("of_red", "red"), ("lake", None)]


@pytest.mark.parametrize(("teams", "status"), [(["red"], 200), (["blue", "red"], 200), (["blue"], 403), ([], 403)])
def test_a_connection_of_a_team_is_open_to_its_members_only(
    server: Any, of_red: str, teams: list[str], status: int
) -> None:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="member", role="op", teams=teams))
    bearer = {"Authorization": f"Bearer {token}"}
    assert server.get("/paimon/of_red/d/t", headers=bearer).status_code == status
    assert server.get("/paimon/lake/d/t", headers=bearer).status_code == 200, "of no team: for all teams"
    assert (">of_red<" in server.get("/paimon/", headers=bearer).text) == (status == 200)


def test_the_page_changes_nothing(server: Any) -> None:
    from airflow_paimon.plugin.app import build_app

    methods = {m for route in build_app().routes for m in getattr(route, "methods", None) or ()}
    assert methods == {"GET"}
    assert server.post(T).status_code in (401, 405)


def test_pages_run_no_script_of_anybody_else_and_are_not_kept(get: Get) -> None:
    answer = get(T)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "no-store" in answer.headers["cache-control"]
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|\sstyle=", answer.text), "inline script or style"


# -- lists and tabs --------------------------------------------------------------------------------------------------


def test_the_lists(get: Get) -> None:
    first = get("/paimon/")
    assert 'href="/paimon/lake"' in first.text
    assert "elsewhere" not in first.text
    assert 'href="/paimon/lake/d"' in get("/paimon/lake").text
    tables = get("/paimon/lake/d").text
    assert 'href="/paimon/lake/d/t"' in tables
    assert "no_table" not in tables
    assert "t primary key dt 2 4" in texts(tables)
    assert "unreadable" in get("/paimon/lake/e").text


def test_thousands_of_tables_are_searched_and_paged_and_only_the_page_is_read(get: Get, lake: Path) -> None:
    for number in range(120):
        (lake / "many.db" / f"t{number:03}" / "schema").mkdir(parents=True)
    make_table(lake, "many.t077")
    for number in range(120):
        schema = lake / "many.db" / f"t{number:03}" / "schema" / "schema-0"
        schema.write_bytes((lake / "many.db" / "t077" / "schema" / "schema-0").read_bytes())
    page = get("/paimon/lake/many").text
    assert "Page 1 of 3" in page
    assert "/many/t000" in page
    assert "/many/t077" not in page
    assert "/many/t077" in get("/paimon/lake/many?page=2").text
    found = get("/paimon/lake/many?q=T07").text
    assert "10 found" in found
    assert "/many/t079" in found
    assert "/many/t080" not in found


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("table", ["t", "c"])
def test_every_tab_opens_and_shows_no_secret(get: Get, table: str, tab: str) -> None:
    answer = get(f"/paimon/lake/d/{table}?tab={tab}")
    assert answer.status_code == 200, answer.text
    assert f'aria-current="page">{tab.capitalize()}' in answer.text or (table, tab) == ("t", "grid")
    assert SECRET not in answer.text


def test_branches_say_whose_they_are_and_how_far_from_main(get: Get) -> None:
    shown = texts(get(f"{T}?tab=branches").text)
    far = r"1 bucket, \+30 stored rows 2 buckets, \+12 stored rows 20\d\d-\d\d-\d\d \d\d:\d\d me yes"
    assert re.search(rf"fix ready me wrong rate main before 2 .* {far}", shown), shown


def test_branches_say_what_a_publish_would_do(get: Get, lake: Path) -> None:
    table = make_table(lake, "e.states", **{"sequence.snapshot-ordering": "true", "write-only": "true"})
    append(table, "1")
    for name in ("conflicts", "fits", "same"):
        operate(table, "create_branch", branch=name, snapshot=1)
    append(table.branch("conflicts"), "2", rows=3)
    append(table.branch("fits"), "3", rows=3)
    append(table, "2", rows=3)
    page = get("/paimon/lake/e/states?tab=branches")
    shown = texts(page.text)
    assert re.search(r"conflicts conflict .* fits ready .* same nothing new ", shown)
    assert "both changed" in page.text


def test_branches_say_since_when_running_jobs_leave_main_alone(get: Get, lake: Path) -> None:
    table = make_table(lake, "e.open", **{"deletion-vectors.enabled": "true"})
    for day in "12345":
        append(table, day)
    for number in table.snapshot_ids():  # as a streaming job commits
        found = json.loads(table.store.read(table.paths.snapshot(number)))
        found |= {"commitUser": "flink", "commitIdentifier": number, "writerVersion": "1.4.2"}
        table.store.replace(table.paths.snapshot(number), json.dumps(found).encode())
    for name, day in (("newest", "5"), ("oldest", "1")):
        operate(table, "create_branch", branch=name, snapshot=5)
        rewrite(table.branch(name), day)
    shown = texts(get("/paimon/lake/e/open?tab=branches").text)
    quiet = r"20\d\d-\d\d-\d\d \d\d:\d\d"
    assert re.search(rf"newest can't be published open now .* oldest ready {quiet} ", shown), shown


def test_branches_say_which_checks_are_missing(get: Get, lake: Path) -> None:
    table = make_table(lake, "e.checked", **{"airflow-paimon.required-checks": '[{"not_null": ["k"]}]'})
    append(table, "1")
    operate(table, "create_branch", branch="fix", snapshot=1)
    append(table.branch("fix"), "2", rows=3)
    assert "fix checks missing 1 missing" in texts(get("/paimon/lake/e/checked?tab=branches").text)


def test_tags_say_what_they_are_for(get: Get) -> None:
    shown = texts(get(f"{T}?tab=tags").text)
    assert "protects branch fix" in shown
    assert "airflow-paimon-undo-publish-1 undo tag 2" in shown


def test_the_audit_says_who_approved_and_can_be_downloaded(get: Get) -> None:
    page = get(f"{T}?tab=audit").text
    for word in ("publish", "done", "ann", "wrong day"):
        assert word in texts(page)
    (href,) = re.findall(r'href="(\?[^"]*download=csv[^"]*)"', page)
    answer = get(T + html.unescape(href))
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''d.t-audit.csv"
    assert answer.headers["content-type"].startswith("text/csv")
    (record,) = csv.DictReader(io.StringIO(answer.text))
    assert (record["kind"], record["approved_by"], record["from_branch"]) == ("publish", "ann", "done")
    assert json.loads(get(f"{T}?tab=audit&download=json").text)[0]["reason"] == "wrong day"
    assert get(f"{T}?tab=audit&download=exe").status_code == 404
    assert get(f"{T}?tab=files&download=csv").status_code == 404
    assert get(f"{T}?tab=audit&download=csv", "viewer").status_code == 403


def test_the_audit_previews_what_an_undo_would_keep(get: Get, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dags = [
        KnownDag(dag_id=f"own_{kind}", kind=kind, stale=False, form={}, locked=())
        for kind in (Kind.CORRECTION, Kind.UNDO)
    ]
    monkeypatch.setattr(audit_tab, "visible_dags", lambda context: dags)
    page = get(f"{T}?tab=audit").text
    assert "Undo publish" not in page
    (href,) = re.findall(r'href="(\?[^"]*at=main%3A3[^"]*)#undo"', page)
    page = get(T + html.unescape(href)).text
    shown = texts(page)
    assert "Undo publish 3 of branch done 1 partition of main gets back what it held before: 1 file with" in shown
    assert "1 later commit stays." in shown
    assert "What came later, and stays" in shown
    form = json.loads(html.unescape(re.findall(r'<pre id="form-1">(.*?)</pre>', page, re.DOTALL)[0]))
    assert form == {"table": "d.t", "paimon_conn_id": "lake", "tag": "airflow-paimon-undo-publish-1",
                    "keep_later": True}  # fmt: skip
    assert "Open own_data_correction_undo" in shown
    assert get(T + html.unescape(href), "viewer").status_code == 403

    table = make_table(lake, "e.again")
    append(table, "1")
    operate(table, "create_branch", branch="fix", snapshot=1)
    rewrite(table.branch("fix"), "1")
    operate(table, "merge_branch", branch="fix", operation_id="two", writers_stopped=True)
    append(table, "1", seq=2)
    page = get("/paimon/lake/e/again?tab=audit&at=main:2").text
    assert "By key: dt=1/bucket-0 changed again after it" in texts(page)
    found = re.findall(r'<pre id="form-\d">(.*?)</pre>', page, re.DOTALL)
    by_key, form = (json.loads(html.unescape(text)) for text in found)
    assert by_key["tag"] == "airflow-paimon-undo-two"
    assert form["sql"] == undo_statement(table.schema())
    assert form["views"] == ["before=e.again@airflow-paimon-undo-two", "published=e.again@2"]
    assert 'id="undo"' not in get("/paimon/lake/e/again?tab=audit&at=main:99").text


def test_storage_says_what_would_become_free(get: Get) -> None:
    shown = texts(get(f"{T}?tab=storage").text)
    assert re.search(
        r"branch fix \d+ [\d.]+ KiB [\d.]+ KiB \d+ delete_branch --branch fix, then remove_orphan_files", shown
    )
    assert "main's newest state: " in shown or "main&#39;s newest state" in shown
    assert "branch fix" not in texts(get(f"{T}?tab=storage&q=undo").text).split("found")[1]


def test_health_says_why_and_what_mends_it(get: Get, lake: Path) -> None:
    shown = texts(get("/paimon/lake/d/c?tab=health").text)
    assert re.search(r"stale-partitions 30 1 0 partitions compact_chain_table 11 B 1 full partitions", shown)
    assert "Score 70: " in shown
    assert "Nothing takes points off" in texts(get(f"{T}?tab=health").text)


def test_tables_are_listed_by_health_the_worst_first(get: Get, lake: Path) -> None:
    """A database of its own: other tests change the tables of theirs."""
    for name, files in (("fine", 2), ("sick", 9)):
        table = make_table(lake, f"health.{name}", primary=False)
        for _ in range(files):
            append(table, "1")
    broken = make_table(lake, "health.broken")
    append(broken, "1")
    broken.store.replace("snapshot/snapshot-1", b"{")
    damaged_on_purpose(lake / "health.db" / "broken")
    assert 'href="?sort=health"' in get("/paimon/lake/health").text
    address = "/paimon/lake/health?sort=health"
    page = wait_until(lambda: (text := get(address).text) * ("found" in text), "all are read", 30)
    shown = texts(page)
    health = r"broken (- ){6}unreadable: .* sick 78 9 99 B 9 0 99 B small-files -22 fine 100 2 22 B"
    assert re.search(health, shown), shown
    assert 'href="/paimon/lake/health/sick?tab=health"' in page
    assert "sick" not in texts(get("/paimon/lake/health?sort=health&q=fine").text).split("found")[1]


def test_history_has_a_lane_a_branch_and_tells_who_approved(get: Get) -> None:
    page = get(T).text
    assert "done parted from main at snapshot 2" in page
    assert "publish of done, snapshot 3, as snapshot 3" in page
    assert "approved by: ann" in page
    assert "undo tag" in page
    assert "owner: me" in page
    detail = texts(get(f"{T}?at=main:3").text)
    assert "airflow-paimon.approved-by ann" in detail
    assert "has no snapshot 99" in get(f"{T}?at=main:99").text
    assert "has no snapshot" in get(f"{T}?at=../x:1").text


def test_a_table_says_what_main_is_the_state_of(get: Get, lake: Path) -> None:
    table = make_table(lake, "e.replaced")
    append(table, "1")
    operate(table, "create_branch", branch="fix", snapshot=1)
    append(table.branch("fix"), "2", seq=0)
    assert "main is" not in texts(get(T).text)
    operate(table, "replace_main", branch="fix", writers_stopped=True)
    page = texts(get("/paimon/lake/e/replaced").text)
    assert "main is the state of branch fix at snapshot 2, since snapshot 2" in page


def test_partitions_sum_up_their_files(get: Get) -> None:
    shown = texts(get(f"{T}?tab=partitions").text)
    assert "dt=1 1,207 2 22 B 11 B" in shown
    only = texts(get(f"{T}?tab=partitions&branch=fix&q=dt%3D1").text)
    assert "dt=1 1,230 2" in only
    assert "dt=2" not in only.split("found")[1]


def test_many_small_files_are_pointed_out(get: Get, lake: Path) -> None:
    table = make_table(lake, "e.small")
    for _ in range(10):
        append(table, "1")
    append(table, "2")
    page = get("/paimon/lake/e/small?tab=partitions").text
    assert "1 of 2 partitions have many small files" in texts(page)
    assert '<td class="number warn">10</td>' in page


def test_schemas_show_what_changed(get: Get, lake: Path) -> None:
    table = make_table(lake, "e.evolved")
    raw = json.loads(table.store.read("schema/schema-0"))
    raw["options"] |= {"merge-engin": "first-row", "snapshot.num-retained.max": "7", "fs.s3a.secret.key": "abcdefgh"}
    raw["fields"][1] |= {"name": "w", "type": "VARCHAR(5)"}
    table.store.create("schema/schema-1", json.dumps(raw | {"id": 1}).encode())
    shown = texts(get("/paimon/lake/e/evolved?tab=schemas").text)
    assert "+ option snapshot.num-retained.max = 7" in shown
    assert "~ column v is now w ~ column w: STRING is now VARCHAR(5)" in shown
    options = get("/paimon/lake/e/evolved?tab=options").text
    assert "abcdefgh" not in shown + options
    assert "***" in options
    assert "unknown: did you mean merge-engine?" in texts(options)


@pytest.mark.parametrize(
    ("path", "says", "back"),
    [
        ("/paimon/lake/d/none", "There is no table d.none", "/paimon/lake/d"),
        (f"{T}?branch=none", "has no branch 'none'", T),
        ("/paimon/lake/none", "has no database 'none'", "/paimon/lake"),
        ("/paimon/lake/none?sort=health", "has no database 'none'", "/paimon/lake"),
        (f"{T}?tab=none", "There is no tab 'none'; there are history, ", T),
    ],
)
def test_what_is_not_there_says_so_and_leads_back(get: Get, path: str, says: str, back: str) -> None:
    answer = get(path)
    assert answer.status_code == 404
    assert says in html.unescape(answer.text)
    assert f'<a href="{back}">{back.rpartition("/")[2]}</a>' in answer.text.partition("Go back to")[2]
    assert 'href="/paimon/lake"' in answer.text, "the trail"


def test_the_grid_of_a_chain_table(get: Get) -> None:
    page = get("/paimon/lake/d/c?tab=grid").text
    line = re.search(r">region=CN</th>(.*?)</tr>", page, re.DOTALL)
    assert line is not None
    assert re.findall(r'class="(\w+)"', line[1]) == [
        "delta", "stale", "delta", "gap", "gap", "delta", "delta", "gap", "delta"
    ]  # fmt: skip
    assert "stale-partition" in page
    assert "is not a chain table" in get(f"{T}?tab=grid").text


# -- broken and hostile tables ---------------------------------------------------------------------------------------


def test_a_broken_table_shows_what_check_table_says(get: Get) -> None:
    assert get("/paimon/lake/e/broken").text.count(">unreadable-metadata:main<") == 1, "each finding once"
    answer = get("/paimon/lake/e/broken")
    assert "snapshot-1 is truncated or not JSON" in texts(answer.text)
    assert "unreadable-metadata:main" in answer.text


def test_one_unreadable_snapshot_does_not_hide_the_others(get: Get, lake: Path) -> None:
    table = make_table(lake, "e.torn")
    for day in "123":
        append(table, day)
    table.store.replace("snapshot/snapshot-2", b"{")
    page = get("/paimon/lake/e/torn").text
    assert "main 2: UNREADABLE" in page
    assert "main 3: APPEND" in page


@pytest.mark.parametrize(
    "path",
    [
        "/paimon/lake/d/nothing",
        "/paimon/lake/%2e%2e/t",
        "/paimon/lake/d/%2e%2e",
        "/paimon/lake/d/..%2f..%2fe.db%2fbroken",
        "/paimon/lake/d/t$branch_fix",
        "/paimon/lake/d/t%24snapshots",
        "/paimon/lake/d/t%00",
        "/paimon/lake/d/..\\t",
        "/paimon/lake/..%5c..%5cetc",
        "/paimon/lake/d/t?branch=../../../e.db/broken",
        "/paimon/lake/d/t?branch=nothing",
        "/paimon/nothing/d/t",
        "/paimon/elsewhere/d/t",
        "/paimon/lake/d/t?tab=nothing",
        "/paimon/lake/d/t?page=0",
        "/paimon/_static/../app.py",
        "/paimon/_static/%2e%2e/app.py",
    ],
)
def test_addresses_that_lead_out_of_the_warehouse_or_nowhere_are_refused(get: Get, path: str) -> None:
    answer = get(path)
    assert answer.status_code in (400, 404, 422), answer.text
    assert "unreadable-metadata" not in answer.text
    assert "build_app" not in answer.text


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def test_no_text_of_a_table_becomes_markup(get: Get, lake: Path) -> None:
    """Names, comments, reasons, commit users, tags and options that another engine or a user wrote."""
    table = make_table(lake, "e.hostile")
    append(table, HOSTILE.replace("/", "|"))
    operate(table, "create_tag", tag="before")
    operate(table, "create_branch", branch="fix", tag="before", owner=HOSTILE, reason=HOSTILE)
    for path in ("snapshot/snapshot-1", "schema/schema-0"):
        raw = json.loads(table.store.read(path))
        raw |= {"commitUser": HOSTILE, "properties": {"airflow-paimon.approved-by": HOSTILE, HOSTILE: HOSTILE}}
        if path.startswith("schema"):
            raw |= {"comment": HOSTILE, "options": {**raw["options"], HOSTILE: HOSTILE}}
            raw["fields"][0] |= {"description": HOSTILE}
        table.store.replace(path, json.dumps(raw).encode())
    (lake / "e.db" / "hostile" / "tag" / "tag-<b>x").write_bytes(table.store.read("snapshot/snapshot-1"))
    (lake / "e.db" / "hostile" / "branch" / "branch-<i>y").mkdir()
    (lake / "e.db" / "<u>z" / "schema").mkdir(parents=True)
    (lake / "e.db" / "<u>z" / "schema" / "schema-0").write_bytes(b"<script>")
    paths = [f"/paimon/lake/e/hostile?tab={tab}" for tab in TABS]
    paths += ["/paimon/lake/e", "/paimon/lake/e/hostile?at=main:1", f"/paimon/lake/e/hostile?q={HOSTILE}&tab=files",
              f"/paimon/lake/e/hostile?branch={HOSTILE}", f"/paimon/lake/{HOSTILE}", f"/paimon/{HOSTILE}",
              f"/paimon/lake/e/hostile?at={HOSTILE}:1", "/paimon/lake/e/%3Cu%3Ez"]  # fmt: skip
    seen = 0
    for path in paths:
        page = get(path).text
        for tag in ("<script>alert", "<img", "<b>x", "<i>y", "<u>z"):
            assert tag not in page, path
        assert not re.search(r"<[^>]*\sonerror=", re.sub(r'"[^"]*"', '""', page)), path
        seen += "&lt;script&gt;alert(1)" in page
    assert seen >= 8, "the texts were shown nowhere"


def test_errors_of_a_storage_carry_no_secret(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"warehouse": f"file:///nowhere/{SECRET}", "storage_options": "{"}
    value = {"conn_type": "paimon", "password": SECRET, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_WRONG", json.dumps(value))
    answer = get("/paimon/wrong/d/t")
    assert answer.status_code >= 400
    assert "storage_options must be a JSON object" in texts(answer.text)
    value["extra"] = {"warehouse": f"/nowhere/{SECRET}"}
    monkeypatch.setenv("AIRFLOW_CONN_WRONG", json.dumps(value))
    for path in ("/paimon/wrong/d/t", "/paimon/wrong/d", "/paimon/wrong"):
        assert SECRET not in get(path).text, path
    assert "There is no table d.t: " in texts(get("/paimon/wrong/d/t").text)
