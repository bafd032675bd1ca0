"""``python -m airflow_paimon``: what it shows, as text and as JSON, and how it fails."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.cli.main import LOOKUPS, run
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import write_arrow
from airflow_paimon.shown.listing import Listing, limited, size_text
from tests.core.chain.tables import add, as_another_engine, make_stale_chain
from tests.core.tables import append, make_table, rewrite
from tests.core.tables import run as operate
from tests.stores import delete_tree


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """d.t, an ordinary table with a branch and a tag; d.c, a chain table with a group and a stale partition."""
    folder = tmp_path_factory.mktemp("made") / "wh"
    table = make_table(folder)
    append(table, "1", rows=1200)
    append(table, "2", bucket=1)
    operate(table, "create_tag", tag="before", time_retained="7 d")
    operate(table, "create_branch", branch="fix", tag="before", owner="me", reason="wrong rate")
    make_stale_chain(folder)
    return folder


@pytest.fixture
def warehouse(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "wh"))


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run([*arguments]) == 0
    return capsys.readouterr().out.splitlines()


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.damages_metadata
def test_tables(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (warehouse / "d.db" / "no_table").mkdir()
    broken = make_table(warehouse, "e.broken")
    broken.store.replace("schema/schema-0", b"{")
    rows = data(capsys, "tables", f"--warehouse={warehouse}")
    assert [(r["table"], r["kind"].partition(":")[0], r["branches"], r["stored_rows"]) for r in rows] == [
        ("d.c", "chain", 2, None),
        ("d.t", "primary key", 1, 1201),
        ("e.broken", "unreadable", None, None),
    ]
    assert rows[1]["committed"].endswith("Z")
    lines = show(capsys, "tables", f"--warehouse={warehouse}", "--limit=1")
    assert " ".join(lines[0].split()) == (
        "TABLE KIND PARTITIONED BY BRANCHES SNAPSHOT COMMITTED (UTC) STORED ROWS STATE OF"
    )
    name, kind, *keys, branches, snapshot, day, _, count, _ = lines[1].split()
    assert (name, kind, keys, branches, snapshot, count) == ("d.c", "chain", ["region,", "dt"], "2", "8", "-")
    assert day.startswith("20"), "its branches' newest commit"
    assert lines[2] == "... and 2 more tables: --limit 0 shows all"


def on(warehouse: Path, table: str = "d.t") -> list[str]:
    return [f"--warehouse={warehouse}", f"--table={table}"]


def test_databases(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_table(warehouse, "e.t")
    (warehouse / "empty.db").mkdir()
    (warehouse / "logs").mkdir()
    rows = data(capsys, "databases", f"--warehouse={warehouse}")
    assert [tuple(row.values()) for row in rows] == [("d", 2), ("e", 1), ("empty", 0)]
    lines = show(capsys, "databases", f"--warehouse={warehouse}", "--limit=1")
    assert [line.split() for line in lines[:2]] == [["DATABASE", "TABLES"], ["d", "2"]]
    assert lines[2] == "... and 2 more databases: --limit 0 shows all"


def test_sets(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(capsys, "sets", "--warehouse", str(warehouse))[1] == "(no table sets)"
    assert run(["sets", "--warehouse", f"{warehouse}_of_another_name"]) == 2
    assert "doesn't exist or is empty" in capsys.readouterr().err
    table = open_table(str(warehouse), "d.t")
    for _ in range(2):
        operate(table, "create_table_set", table_set="nightly")
        operate(table, "create_table_set", table_set="other", member=["d.t@1"])
    newest = data(capsys, "sets", "--warehouse", str(warehouse))
    assert [(one["table_set"], one["number"], one["tables"]) for one in newest] == [
        ("nightly", 2, ["d.t@2"]), ("other", 2, ["d.t@1"])]  # fmt: skip
    assert [table.tag(one["tag"]).snapshot.id for one in newest] == [2, 1]
    assert [one["number"] for one in data(capsys, "sets", "--warehouse", str(warehouse), "--name", "other")] == [2, 1]
    assert run(["sets", "--warehouse", str(warehouse), "--name", "none"]) == 2
    assert "its sets: nightly, other" in capsys.readouterr().err


def test_branches_and_tags(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main, fix = data(capsys, "branches", *on(warehouse))
    assert (main["branch"], main["snapshot"]) == ("main", 2)
    assert {k: fix[k] for k in ("branch", "from", "tag", "base", "owner", "what_for")} == {
        "branch": "fix",
        "from": "main",
        "tag": "before",
        "base": 2,
        "owner": "me",
        "what_for": "wrong rate",
    }
    roles = {b["branch"]: b["what_for"] for b in data(capsys, "branches", *on(warehouse, "d.c"))}
    assert roles == {"main": None, "snapshot": "chain: full partitions", "delta": "chain: changes"}
    tags = {t["tag"]: t["kept"] for t in data(capsys, "tags", *on(warehouse))}
    assert tags == {"before": "7 d", "airflow-paimon-branch-fix": "for ever"}
    assert data(capsys, "tags", *on(warehouse, "d.c")) == []
    assert show(capsys, "tags", *on(warehouse, "d.c"))[-1] == "(no tags)"


def test_branches_are_listed_where_their_checks_cannot_be_read(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = open_table(str(warehouse), "d.t")
    schema = json.loads(table.store.read("schema/schema-0"))
    schema["options"]["airflow-paimon.required-checks"] = "none"
    table.store.replace("schema/schema-0", json.dumps(schema).encode())
    main, fix = data(capsys, "branches", *on(warehouse))
    assert (main["checks"], fix["checks"], fix["snapshot"]) == (None, "unreadable", 2)


@pytest.mark.damages_metadata
def test_branches_are_listed_where_one_cannot_be_read(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fix = open_table(str(warehouse), "d.t", "fix")
    fix.store.replace(fix.paths.snapshot(fix.latest_snapshot_id() or 0), b"{")
    main, broken = data(capsys, "branches", *on(warehouse))
    assert (main["snapshot"], broken["branch"], broken["checks"].partition(":")[0]) == (2, "fix", "unreadable")


def test_what_main_is_the_state_of(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = open_table(str(warehouse), "d.t")
    rewrite(table.branch("fix"), "1")
    operate(table, "replace_main", branch="fix")
    assert {r["table"]: r["state_of"] for r in data(capsys, "tables", f"--warehouse={warehouse}")} == {
        "d.c": None,
        "d.t": "fix",
    }
    main, fix = data(capsys, "branches", *on(warehouse))
    assert main["what_for"] == "the state of branch fix at snapshot 3, since snapshot 3"
    assert fix["what_for"] == "wrong rate"
    append(table, "9")
    main, _ = data(capsys, "branches", *on(warehouse))
    assert main["what_for"].endswith("since snapshot 3, with commits of main's own since")


def test_storage(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = open_table(str(warehouse), "d.t")
    rewrite(table, "1")
    found = {r["referenced_by"]: r for r in data(capsys, "storage", *on(warehouse))}
    assert set(found) == {"branch fix", "tag before", "tag before of branch fix", "all snapshots but the newest"}
    assert found["branch fix"]["frees"] > found["tag before"]["frees"] > 0
    assert found["branch fix"]["to_free_it"] == "delete_branch --branch fix, then remove_orphan_files"
    lines = show(capsys, "storage", *on(warehouse), "--limit=1")
    assert lines[0].split()[:4] == ["REFERENCED", "BY", "SNAPSHOTS", "SIZE"]
    assert lines[2].endswith("more references: --limit 0 shows all")
    assert "main's newest state: " in lines[3]


def test_plan(warehouse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "UPDATE branch SET v = 1 WHERE k > 1"
    (tmp_path / "fix.sql").write_text(sql)
    asked = [*on(warehouse), f"--sql={sql}"]
    lines = show(capsys, "plan", *asked)
    assert lines[0].startswith("Reads at most ")
    assert show(capsys, "plan", *on(warehouse), f"--sql={tmp_path}/fix.sql") == lines
    details = data(capsys, "plan", *asked)
    assert details["statement"] == "UPDATE" and details["replaces"]["files"]
    refused = {"--sql=DROP TABLE x": "SQL starts with 'DROP'", "--sql=none.sql": "can't be read",
               "--sql= ": "sql (--sql) is ' '", "": "one of the two"}  # fmt: skip
    cases = [([flag] if flag else [], says) for flag, says in refused.items()]
    for wrong, says in [*cases, ([f"--sql={sql}", "--view=v=d.no"], "no table d.no")]:
        assert run(["plan", *on(warehouse), *wrong]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.damages_metadata
def test_health(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(8):
        append(open_table(str(warehouse), "d.t"), "1")
    make_table(warehouse, "e.broken").store.replace("schema/schema-0", b"{")
    rows = data(capsys, "health", f"--warehouse={warehouse}")
    assert [r["table"] for r in rows] == ["e.broken", "d.c", "d.t"]
    assert rows[0]["score"] is None and rows[0]["why"].startswith("unreadable: ")
    assert rows[1]["why"].startswith("stale-partitions -30") and 0 < rows[2]["score"] < 100
    (reason,) = data(capsys, "health", *on(warehouse))
    assert (reason["reason"], reason["job"], reason["value"]) == ("sorted-runs", "compact", 9)
    lines = show(capsys, "health", *on(warehouse))
    assert lines[-1].startswith(f"Score {rows[2]['score']}: 10 files with ") and "1 branch;" in lines[-1]


def test_schema(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {c["column"]: c for c in data(capsys, "schema", *on(warehouse), "--branch=fix")}
    assert list(columns) == ["k", "v", "dt"]
    assert columns["dt"] == {
        "column": "dt",
        "type": "STRING",
        "nullable": "no",
        "key": "partition key 1, primary key 1",
        "comment": None,
    }
    assert (columns["v"]["nullable"], columns["v"]["key"]) == ("yes", "")


def test_jobs_run_from_the_command_line(warehouse: Path, tmp_path: Path) -> None:
    options = tmp_path / "storage.json"
    options.write_text('{"ignored-by-local-disks": "x"}')
    made = program("job", "create_tag", *on(warehouse), "--tag=made", f"--storage-options={options}", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["details"]["tag"] == "made"
    assert open_table(str(warehouse), "d.t").find_tag("made") is not None
    refused = program("job", "create_tag", *on(warehouse), "--tag=made")
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["error"]["kind"] == "already-exists"
    listed = program("job", "--help").stdout
    assert re.search(r"\n  create_branch +Create a branch from a tag, from a snapshot, or empty\.\n", listed)
    assert "\n  trigger_tag_automatic_creation  Create" in listed
    path = program("job", "--path", "merge_branch").stdout.strip()
    assert 'main("merge_branch")' in Path(path).read_text()
    for wrong in (["fly"], ["--path"], ["--path", "../x"]):
        failed = program("job", *wrong)
        assert (failed.returncode, failed.stdout) == (2, "")
        assert "The jobs are alter_branch, " in failed.stderr


def test_snapshots_partitions_and_files(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshots = data(capsys, "snapshots", *on(warehouse))
    assert [(s["snapshot"], s["kind"], s["stored_rows"], s["stored_change"]) for s in snapshots] == [
        (2, "APPEND", 1201, 1),
        (1, "APPEND", 1200, 1200),
    ]
    assert [s["snapshot"] for s in data(capsys, "snapshots", *on(warehouse), "--limit=1")] == [2]
    partitions = data(capsys, "partitions", *on(warehouse), "--branch=fix")
    assert [(p["partition"], p["stored_rows"], p["files"], p["size"]) for p in partitions] == [
        ("dt=2", 1, 1, 11),
        ("dt=1", 1200, 1, 11),
    ]
    assert "1,200" in show(capsys, "partitions", *on(warehouse))[2]
    files = data(capsys, "files", *on(warehouse))
    assert [(f["partition"], f["bucket"], f["file"].rpartition("/")[0]) for f in files] == [
        ("dt=2", 1, "dt=2/bucket-1"),
        ("dt=1", 0, "dt=1/bucket-0"),
    ]
    old = data(capsys, "partitions", *on(warehouse, "d.t@1"))
    assert [(p["partition"], p["stored_rows"]) for p in old] == [("dt=1", 1200)]
    assert [f["partition"] for f in data(capsys, "files", *on(warehouse, "d.t@1"))] == ["dt=1"]
    for version in ("2", "before", "fix.2"):
        assert data(capsys, "files", *on(warehouse, f"d.t@{version}")) == files
    assert data(capsys, "schema", *on(warehouse, "d.t@before")) == data(capsys, "schema", *on(warehouse))
    named = data(capsys, "partitions", *on(warehouse, "d.c$branch_delta"))
    assert [p["partition"] for p in named][-1] == "region=CN/dt=20250101"


@pytest.mark.parametrize("what", ["snapshots", "partitions", "files"])
def test_main_of_a_chain_table_is_not_taken_for_empty(
    warehouse: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    assert show(capsys, what, *on(warehouse, "d.c"))[-2:] == [
        f"(no {what})",
        "That is main alone. d.c is a chain table: see --branch snapshot or --branch delta, or the command chain",
    ]
    assert "main alone" not in "\n".join(show(capsys, what, *on(warehouse, "d.c"), "--branch=delta"))
    assert "main alone" not in "\n".join(show(capsys, what, *on(warehouse)))


def test_a_chain_table(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = data(capsys, "chain", *on(warehouse, "d.c"))
    assert shown["table"] == "d.c: a chain by day of dt, a group for each region"
    assert [(b["branch"], b["snapshot"]) for b in shown["branches"]] == [("main", None), ("snapshot", 1), ("delta", 8)]
    cn, us = shown["groups"]
    assert cn == {
        "group": "region=CN",
        "anchors": 1,
        "deltas": 6,
        "pending": 4,
        "newest_anchor": "dt=20250102",
        "newest_delta": "dt=20250109",
        "gaps": 3,
        "stale": 1,
    }
    assert (us["anchors"], us["pending"], us["stale"]) == (0, 1, 0)
    assert shown["gaps"] == [
        {"gaps_in": "region=CN", "from": "dt=20250104", "to": "dt=20250105", "partitions": 2},
        {"gaps_in": "region=CN", "from": "dt=20250108", "to": "dt=20250108", "partitions": 1},
    ]
    reads = {r["partition"]: r for r in shown["reads"]}
    newest = reads["region=CN/dt=20250106"]
    assert newest["made_of"] == "full dt=20250102 + 2 deltas dt=20250103 dt=20250106"
    assert newest["reason"] == "the nearest earlier snapshot partition, 2 deltas"
    assert newest["stale"].startswith("region=CN/dt=20250102: delta region=CN/dt=20250101 was changed")
    assert reads["region=CN/dt=20250102"]["read_from"] == "snapshot"
    assert reads["region=US/dt=20250101"]["stale"] is None
    assert shown["findings"][0]["finding"] == "stale-partition:region=CN/dt=20250102"
    text = show(capsys, "chain", *on(warehouse, "d.c"), "--limit=1")
    assert "... and 6 more partitions: --limit 0 shows all" in text


def test_a_chain_table_that_is_broken(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = open_table(str(warehouse), "d.c")
    as_another_engine(table, lambda: add(table.branch("delta"), "US/oops"))
    reads = data(capsys, "chain", *on(warehouse, "d.c"))["reads"]
    assert [r["partition"] for r in reads if r["read_from"] == "refused"] == ["region=US"]
    delete_tree(table.store, "branch/branch-delta")
    shown = data(capsys, "chain", *on(warehouse, "d.c"))
    assert shown["table"] == "d.c: not a sound chain table"
    assert "branch 'delta' does not exist" in shown["findings"][0]["message"]
    assert "missing-branch" in "\n".join(show(capsys, "chain", *on(warehouse, "d.c")))


def test_the_audit_of_a_warehouse_and_of_some_tables(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.one", "a.two"):
        table = make_table(warehouse, name, primary=False)
        append(table, "a")
        operate(table, "create_branch", branch="fix", snapshot=1, reason=f"for {name}")
        append(table.branch("fix"), "b")
        operate(table, "merge_branch", branch="fix", writers_stopped=True)
    assert run(["audit", "--warehouse", str(warehouse)]) == 0
    heads, *lines = capsys.readouterr().out.splitlines()
    assert heads.split()[0] == "TABLE"
    assert [line.split()[0] for line in lines] == ["a.two", "a.one"], "the newest first"
    assert all("airflow-paimon-undo-" in line for line in lines), "what rollback_to needs for an undo"
    assert run(["audit", "--warehouse", str(warehouse), "--table", "a.o*", "--format", "csv"]) == 0
    out = capsys.readouterr().out
    assert "for a.one" in out
    assert "for a.two" not in out
    assert run(["audit", "--warehouse", str(warehouse), "--table", "a.x*"]) == 2
    assert "has no table 'a.x*'" in capsys.readouterr().err


WRONG_FLAG = "invalid-input (wrong-flag):"


def test_an_audit_is_printed_in_one_form(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", *on(warehouse, "d.t"), "--json", "--format=csv"]) == 2
    assert "audit: --json and --format csv ask for two forms" in capsys.readouterr().err


@pytest.mark.damages_metadata
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["tags", "--warehouse=WH", "--table=d.none"], 2, "not-found (no-table): There is no table d.none"),
        (["files", "--warehouse=WH", "--table=d.none$branch_x"], 2, "not-found (no-table): There is no table d.none"),
        (["tags", "--warehouse=WH", "--table=d.t", "--branch=x"], 2, "not-found (no-branch): Table d.t has no branch"),
        (["tags", "--warehouse=WH", "--table=t"], 2, "invalid-input: Table name 't'"),
        (["tags", "--warehouse=WH"], 2, f"{WRONG_FLAG} tags: the following arguments are required: --table"),
        (
            ["tags", "--ware=WH", "--table=d.t"],
            2,
            f"{WRONG_FLAG} tags: there is no flag --ware; did you mean --warehouse?",
        ),
        (["tags", "--brnch=x"], 2, f"{WRONG_FLAG} tags: there is no flag --brnch; did you mean --branch?"),
        (["tags", "--paint=x"], 2, f"{WRONG_FLAG} tags: there is no flag --paint; --help lists the flags"),
        (
            ["tags", "--warehouse=WH", "--table=d.t$branch_fix", "--branch=main"],
            2,
            "invalid-input: --table d.t$branch_fix and --branch main name two different branches",
        ),
        (["databases", "--warehouse=/nowhere"], 2, "not-found: There is no database in warehouse file:///nowhere"),
        (["tables", "--warehouse=/nowhere"], 2, "not-found: There is no database in warehouse file:///nowhere"),
        (
            ["tables", "--warehouse=WH", "--limit=-1"],
            2,
            f"{WRONG_FLAG} tables: argument --limit: must be a whole number",
        ),
        (["tables", "--warehouse=WH", "--storage-options=none.json"], 2, "invalid-input: The storage options file"),
        (["chain", "--warehouse=WH", "--table=d.t"], 2, "invalid-input: d.t is not a chain table"),
        (["tags", "--warehouse=WH", "--table=d.t", "--branch="], 2, "invalid-input: d.t: --branch is empty"),
        (
            ["tags", "--warehouse=WH", "--table=d.t", "--json=yes"],
            2,
            f"{WRONG_FLAG} tags: --json is a switch and takes no",
        ),
        (["tags", "--warehouse=WH", "--table="], 2, "invalid-input: tags: --table is empty; give it as db.table"),
        (["files", "--warehouse=WH", "--table=d.t@none"], 2, "not-found: d.t has no tag 'none'"),
        (["files", "--warehouse=WH", "--table=d.t@"], 2, "invalid-input: 'd.t@' names no version"),
        (["tags", "--warehouse=WH", "--table=d.t@1"], 2, "invalid-input: --table d.t@1: tags takes no version"),
        (
            ["head", "--warehouse=WH", "--table=d.t", "--where=nope = 1"],
            2,
            "invalid-input: d.t: where 'nope = 1': there",
        ),
        (["head", "--warehouse=WH", "--table=d.t", "--columns=k,nope"], 2, "invalid-input: d.t has no column 'nope'"),
        (["tags", "--warehouse=WH", "--table=d.t", "--where=k = 1"], 2, f"{WRONG_FLAG} tags: there is no flag --where"),
        (["head", "--table=d.t", "--tag=x"], 2, f"{WRONG_FLAG} head: there is no flag --tag"),
        (["audit", "--table=d.t", "--branch=x"], 2, f"{WRONG_FLAG} audit: there is no flag --branch"),
        (
            ["audit", "--warehouse=WH", "--table=d.t", "--from=2027-01-01", "--to=2026-01-01"],
            2,
            "invalid-input: d.t: --from 2027-01-01 is not before --to 2026-01-01",
        ),
        (["audit", "--warehouse=WH", "--from=2026"], 2, "invalid-input: --from takes a date or an ISO time"),
        (["tables", "--warehouse="], 2, "invalid-input: tables: --warehouse is empty; give a path or a URI"),
        (["fly"], 2, "invalid-input: There is no command 'fly'; there are job, call, tables,"),
        (["tabels", "--warehouse=WH"], 2, "invalid-input: There is no command 'tabels'; did you mean tables?"),
        (["create_tag"], 2, "invalid-input: create_tag is a job: python -m airflow_paimon job create_tag --help"),
        (["job", "create-tag"], 2, "invalid-input: There is no job 'create-tag'; did you mean create_tag?"),
        (["job", "create_tga"], 2, "invalid-input: There is no job 'create_tga'; did you mean create_tag?"),
        (["--warehouse", "WH", "tables"], 2, "invalid-input: The command comes first, one of job, call, tables,"),
        ([], 2, "invalid-input: The command comes first, one of job, call, tables,"),
        (["snapshots", "--warehouse=WH", "--table=d.t"], 1, "corrupt: d.t: snapshot-2 is truncated"),
    ],
)
def test_failures_are_one_line(
    warehouse: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    if code == 1:
        (warehouse / "d.db" / "t" / "snapshot" / "snapshot-2").write_text("{")
    given = [a.replace("WH", str(warehouse)) for a in arguments]
    assert run(given) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert run([*given, "--json"]) == code
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == message.partition(":")[0].partition(" ")[0]


def program(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "airflow_paimon", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **more)


def test_as_a_program_without_spark_and_airflow(warehouse: Path, tmp_path: Path) -> None:
    for module in ("pyspark", "airflow"):
        (tmp_path / "poisoned" / module).mkdir(parents=True)
        (tmp_path / "poisoned" / module / "__init__.py").write_text("raise AssertionError('imported ' + __name__)")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "poisoned")}
    done = program("chain", *on(warehouse, "d.c"), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "region=CN" in done.stdout
    failed = program("tags", *on(warehouse, "d.none"), env=env)
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (2, "", 1)
    helped = program("--help", env=env)
    assert helped.returncode == 0
    assert all(name in helped.stdout for name in LOOKUPS)


def test_a_call_runs_the_job_of_its_operation(people: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    asked = ["call", f"--warehouse={people}", "--operation-id=x"]
    ran = program(
        *asked, "CALL sys.remove_orphan_files(table => 'hr.people', dry_run => true, mode => 'local')", env=env
    )
    assert (ran.returncode, json.loads(ran.stdout)["operation"]) == (0, "remove_orphan_files")
    assert "mode has no effect" in ran.stderr
    wrong = program(*asked, "CALL sys.delete_branch(table => 'hr.people', branch => 'nix')", env=env)
    assert (wrong.returncode, json.loads(wrong.stdout)["error"]["kind"]) == (2, "not-found")
    unknown = program(*asked, "CALL sys.rewrite_file_index('hr.people')", env=env)
    assert (unknown.returncode, json.loads(unknown.stdout)["error"]["kind"]) == (2, "unsupported")
    assert "Paimon's own connector" in unknown.stderr


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Three people in four stored rows; one of them has another city on the branch fix, and mails are masked."""
    columns = [("id", "INT NOT NULL"), ("Mail address", "STRING"), ("city", "STRING"), ("pay", "DECIMAL(8, 2)")]
    options = {"bucket": "1", "airflow-paimon.masked-columns": "Mail address"}
    table = create_table(str(tmp_path / "wh"), "hr.people", columns, primary_keys=["id"], options=options)
    pay = pa.array([None, Decimal("1234.50"), Decimal(3)], pa.decimal128(8, 2))
    rows = {"id": [1, 2, 1003], "Mail address": ["a@x", "b@x", "c@x"], "city": ["Rome", None, "Bern"], "pay": pay}
    write_arrow(table, pa.table(rows))
    write_arrow(table, pa.table(rows).slice(1, 1))
    operate(table, "create_tag", tag="first", snapshot=1)
    operate(table, "create_branch", branch="fix", tag="first")
    write_arrow(table.branch("fix"), pa.table({**rows, "city": ["Rome", "Oslo", "Bern"]}).slice(1, 1))
    return tmp_path / "wh"


def test_head_and_count(people: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = on(people, "hr.people")
    rows = {row["id"]: row for row in data(capsys, "head", *asked)}
    assert sorted(rows) == [1, 2, 1003]
    assert rows[2] == {"id": 2, "Mail address": "***", "city": None, "pay": "1234.50"}
    only = ["--columns=id, city", "--where=id = 2"]
    lines = [line.split() for line in show(capsys, "head", *asked, *only)]
    assert lines == [["id", "city"], ["2", "null"]], "the names as they are, and numbers that can be copied"
    assert data(capsys, "head", *asked, *only, "--branch=fix") == [{"id": 2, "city": "Oslo"}]
    assert len(data(capsys, "head", *asked, "--limit=1")) == 1
    assert show(capsys, "head", *asked, "--where=id = 7")[-1] == "(no rows)"
    assert data(capsys, "count", *asked) == [{"rows": 3}]
    assert data(capsys, "tables", f"--warehouse={people}")[0]["stored_rows"] == 4
    assert data(capsys, "count", *on(people, "hr.people@first"), "--where=city IS NULL") == [{"rows": 1}]
    assert data(capsys, "count", *asked, "--branch=fix", "--where=city IS NULL") == [{"rows": 0}]


def test_rows_without_arrow(people: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "airflow_paimon.cli.rows", raising=False)
    monkeypatch.delattr("airflow_paimon.cli.rows", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(["head", *on(people, "hr.people")]) == 2
    assert "unsupported: head reads data files, which needs pyarrow: pip install pyarrow" in capsys.readouterr().err


def test_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = {"snapshot.tme-retained": "1 h", "snapshot.num-retained.min": "5", "s3.secret-key": "hidden", "x": "y"}
    create_table(str(tmp_path), "d.t", [("id", "INT NOT NULL")], primary_keys=["id"], options=odd)
    table = open_table(str(tmp_path), "d.t")
    operate(table, "create_branch", branch="empty")
    rows = data(capsys, "options", *on(tmp_path))
    assert [tuple(row.values()) for row in rows] == [
        ("snapshot.tme-retained", "1 h", None, "unknown: did you mean snapshot.time-retained?"),
        ("x", "y", None, "unknown"),
        ("s3.secret-key", "***", None, "not used here: for a file system or an engine, which gets it as it is"),
        ("snapshot.num-retained.min", "5", "10", None),
    ]
    assert len(data(capsys, "options", *on(tmp_path), "--branch=empty")) >= 4


def test_a_reader_that_has_seen_enough(warehouse: Path) -> None:
    command = f"{sys.executable} -m airflow_paimon files --warehouse {warehouse} --table d.t | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")


def test_listings() -> None:
    listing = Listing(
        title="things",
        columns=(("name", "text"), ("big size", "size"), ("rows", "number")),
        rows=[["a\nb", 1536, 12345], [None, 12, None]],
    )
    assert listing.to_text().splitlines() == [
        "NAME  BIG SIZE    ROWS",
        "a b    1.5 KiB  12,345",
        "-         12 B       -",
    ]
    assert listing.to_json()[0] == {"name": "a\nb", "big_size": 1536, "rows": 12345}
    assert limited([1, 2, 3], 2) == ([1, 2], 1)
    assert limited([1, 2, 3], 0) == ([1, 2, 3], 0)
    assert size_text(5 * 2**40) == "5.0 TiB"


@pytest.mark.damages_metadata
def test_what_steers_a_terminal_is_spelled_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eb"
    table = create_table(str(tmp_path), "d.t", [("k", "STRING"), ("dt", "STRING")], partition_keys=["dt"])
    write_arrow(table, pa.table({"k": [f"{evil}\n2 lines"], "dt": [evil]}))
    where = ("--warehouse", str(tmp_path), "--table", "d.t")
    wrong = (("head", *where, "--where", f"k = '{evil}' x"), ("partitions", *where, "--branch", evil))
    for command in (("partitions", *where), ("head", *where), ("files", *where), ("head", *where, "--json"), *wrong):
        run([*command])
        said = capsys.readouterr()
        assert said.out or said.err
        assert not {*said.out, *said.err} & {*"\x1b\x07\r\x9b\u202e"}, command
        if "--json" in command:
            assert json.loads(said.out)[0]["dt"] == evil
