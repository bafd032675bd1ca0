"""Bad flags of every job, in one process: each is refused before Spark starts, by name, and changes nothing."""

from __future__ import annotations

import shlex
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_paimon import create_table
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.requests.arguments import parse_arguments
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.data import write_arrow
from airflow_paimon.spark import launch

FIX = "correct_branch --branch=fix --partitions=dt=20261118 --sql=HERE/good.sql"
PLAIN = "sales.orders"
REPLAY = "replay_branch --branch=fix --source=up=sales.days --function=m:f"
CHAIN = "sales.days"
NEW_CHAIN = (
    "create_chain_table --table=sales.new --column='k INT NOT NULL' --column='dt STRING NOT NULL' --primary-key=dt "
    "--primary-key=k --partition-key=dt --option=bucket=1 --sequence-field=k"
)

REFUSED = [
    # the table, the warehouse, the storage
    ("check_table --table=sales.ordres", "not-found", "python -m airflow_paimon tables lists the tables of"),
    ("check_table --table=orders", "invalid-input", "'orders' is not of the form db.table, or db.table$branch_name"),
    ("check_table --table=sales.orders$snapshots", "invalid-input", "system table"),
    ("check_table --warehouse=", "invalid-input", "check_table needs warehouse (--warehouse)"),
    ("check_table --warehouse=lake://x", "unsupported", "No storage is known for lake://"),
    ("check_table --storage-options=", "invalid-input", "must be the path of a file with one JSON object"),
    # flags
    ("check_table --brnch=fix", "invalid-input", "there is no flag --brnch"),
    ("check_table stray words", "invalid-input", "2 unexpected arguments, the first is 'stray'"),
    ("check_table --dry-run=yes", "invalid-input", "--dry-run is a switch and takes no value"),
    ("check_table --engine=connector", "invalid-input", "there is no flag --engine"),
    ("check_table --now=yesterday", "invalid-input", "'yesterday' is not an ISO time"),
    ("check_table --operation-id=", "invalid-input", "(--operation-id) is ''"),
    # branches
    ("create_branch --branch=main", "invalid-input", "Branch name 'main' is not allowed"),
    ("create_branch --branch=7", "invalid-input", "not only digits"),
    ("create_branch --branch=a/b", "invalid-input", "use letters, digits, '_' and '-'"),
    ("create_branch --branch=fix --tag=t1", "already-exists", "if_exists=skip uses it as it is"),
    ("create_branch --branch=fix", "already-exists", "another base (created "),
    ("create_branch --branch=fix", "already-exists", "asked for: empty); choose another name, or if_exists=replace"),
    ("create_branch --branch=empty --tag=t1 --if-exists=skip", "already-exists", "from main, empty; asked for: snap"),
    ("create_branch --branch=new --tag=t1 --snapshot=1", "invalid-input", "tag or snapshot, not both"),
    ("create_branch --branch=new --from-branch=", "invalid-input", "(--from-branch) is ''"),
    ("create_branch --branch=new --from-branch=fxi", "not-found", "(its branches: main, empty, fix)"),
    ("create_branch --branch=new --tag=t2", "not-found", "(its tags: airflow-paimon-branch-fix, t1)"),
    ("create_branch --branch=new --tag=t1 --retention=14", "invalid-input", "no unit and would be milliseconds"),
    ("delete_branch --branch=fxi", "not-found", "(its branches: main, empty, fix)"),
    ("delete_branch --branch=main", "invalid-input", "main can't be deleted"),
    ("rename_branch --branch=main --to-branch=b", "invalid-input", "main keeps its name"),
    ("rename_branch --branch=fix --to-branch=fix", "invalid-input", "that is its name already"),
    ("rename_branch --branch=fix --to-branch=empty", "already-exists", "choose another name"),
    # replays
    (f"{REPLAY} --branch=main", "invalid-input", "given twice"),
    ("replay_branch --branch=main --source=up=sales.days --function=m:f", "invalid-input", "not main; create one"),
    ("replay_branch --branch=empty --source=up=sales.days --function=m:f", "unsafe", "create it from the tag"),
    ("replay_branch --branch=fix --function=m:f", "invalid-input", "in source (--source), as name=db.table"),
    ("replay_branch --branch=fix --source=up=sales.days", "invalid-input", "function (--function) module:name"),
    ("replay_branch --branch=fix --source=up=sales.days --function=f", "invalid-input", "not of the form module:name"),
    ("replay_branch --branch=fix --source=sales.days --function=m:f", "invalid-input", "form name=db.table"),
    ("replay_branch --branch=fix --source=main=sales.days --function=m:f", "invalid-input", "'main' is taken already"),
    ("replay_branch --branch=fix --source=u=sales.orders$branch_fix --function=m:f", "invalid-input", "and a target"),
    (f"{REPLAY} --target=t=sales.orders", "invalid-input", "in target (--target) as db.table$branch_b"),
    (f"{REPLAY} --source=up=sales.orders", "invalid-input", "'up' is taken already"),
    (f"{REPLAY} --tag=t1 --snapshot=1", "invalid-input", "name two starts"),
    (f"{REPLAY} --tag=none", "not-found", "none"),
    (f"{REPLAY} --snapshot=x=1", "invalid-input", "write name=ID, with a name of up"),
    (f"{REPLAY} --snapshot=a", "invalid-input", "one snapshot id for each source, such as up=7"),
    (f"{REPLAY} --snapshot=99", "not-found", "99"),
    (f"{REPLAY} --timestamp=today", "invalid-input", "'today' is not an ISO time"),
    (f"{REPLAY} --available-now --until-snapshot=1", "invalid-input", "give one of available_now"),
    (f"{REPLAY} --until-watermark=soon", "invalid-input", "'soon' is not an ISO time"),
    ("replay_branch --branch=fix --source=up=sales.days --sql=HERE/good.sql --available-now", "invalid-input", "batch"),
    # tags
    ("create_tag --tag=t1", "already-exists", "choose another name, or if_exists=replace"),
    ("create_tag --tag=x --branch=empty", "not-found", "no snapshot to tag"),
    (
        "create_tag --tag=x --time-retained=7",
        "invalid-input",
        "time_retained: '7' has no unit and would be milliseconds",
    ),
    ("create_tag --tag=x --time-retained=week", "invalid-input", "write e.g. '7 d'"),
    ("replace_tag --tag=t2", "not-found", "(its tags: airflow-paimon-branch-fix, t1)"),
    ("delete_tag --tag=t2", "not-found", "(its tags: airflow-paimon-branch-fix, t1)"),
    ("delete_tag --tag=airflow-paimon-branch-fix", "unsafe", "delete the branch first"),
    # publish and undo
    ("merge_branch --branch=fxi", "not-found", "(its branches: main, empty, fix)"),
    ("merge_branch --branch=main", "invalid-input", "onto itself"),
    ("merge_branch --branch=empty", "unsafe", "create it from a tag or snapshot of main"),
    ("merge_branch --branch=fix --undo-retention=7", "invalid-input", "undo_retention: '7' has no unit"),
    ("merge_branch --branch=fix --undo-retention=soon", "invalid-input", "undo_retention: 'soon' is not a duration"),
    ("merge_branch --branch=fix --expected-main-snapshot=", "invalid-input", "(--expected-main-snapshot) is ''"),
    ("merge_branch --branch=fix --expected-main-snapshot=9", "conflict", "main is at snapshot 1, not at 9"),
    ("fast_forward --branch=fix --expected-branch-snapshot=9", "conflict", "review the new diff and approve again"),
    ("rollback_to", "invalid-input", "one of tag, snapshot, timestamp"),
    ("rollback_to --snapshot=9", "not-found", "no snapshot 9"),
    # comparing and correcting, whose rows Spark reads
    ("diff_branches --branch=fxi", "not-found", "(its branches: main, empty, fix)"),
    ("diff_branches --branch=fix --against=fxi", "not-found", "(its branches: main, empty, fix)"),
    ("diff_branches --branch=fix --partitions=day=1", "invalid-input", "sales.orders: 'day' is not a part"),
    (
        "diff_branches --branch=fix --partitions=20261118",
        "invalid-input",
        "sales.orders: Partition '20261118' is not of the form",
    ),
    ("diff_branches --branch=empty", "unsafe", "in against (--against)"),
    (f"{FIX} --mode=merge", "invalid-input", "'overwrite', 'upsert'"),
    (f"{FIX} --function=m:f", "invalid-input", "one of the two"),
    (f"{FIX} --view=main=sales.days", "invalid-input", "'main' is taken already"),
    (f"{FIX} --view=v=sales.ordres", "not-found", "There is no table sales.ordres"),
    (f"{FIX} --view=v=sales.orders@nope", "not-found", "nope"),
    (FIX.replace("HERE/good.sql", "SELECT"), "invalid-input", "sql (--sql) takes statements, or the path of a file"),
    (FIX.replace("HERE/good.sql", "'UPDATE branch SET amonut = 1'"), "invalid-input", "branch has no column amonut"),
    (FIX.replace("HERE/good.sql", "' ; '"), "invalid-input", "sql (--sql) takes statements"),
    (FIX.replace("good.sql", "none.sql"), "invalid-input", "can't be read: No such file or directory"),
    (FIX.replace("good.sql", "binary.sql"), "invalid-input", "can't be read: it is not UTF-8 text"),
    (FIX.replace("good.sql", "empty.sql"), "invalid-input", "write one statement or SELECT into it"),
    (FIX.replace("good.sql", "drop.sql"), "invalid-input", "SQL starts with 'DROP': give one UPDATE"),
    (FIX.replace("good.sql", "column.sql"), "invalid-input", "branch has no column amonut"),
    (FIX.replace("--partitions=dt=20261118", ""), "invalid-input", "partitions (--partitions), e.g. dt=..."),
    (FIX.replace("fix", "empty"), "unsafe", "create it from a tag or a snapshot of main"),
    ("correct_branch --branch=fix", "invalid-input", "takes sql (--sql) or function (--function)"),
    ("correct_branch --branch=fix --function=module", "invalid-input", "not of the form module:name"),
    (f"{FIX} --engine=flink", "invalid-input", "'embedded', 'connector'"),
    (f"{FIX} --engine=connector", "invalid-input", "engine=connector takes one UPDATE, DELETE, MERGE or INSERT"),
    (f"{FIX} --view=prices", "invalid-input", "not of the form name=db.table"),
    (FIX.replace("dt=20261118", "day=1"), "invalid-input", "'day' is not a partition column"),
    (FIX.replace("fix", "fxi"), "not-found", "(its branches: main, empty, fix)"),
    # chain tables
    ("compact_chain_table --partition=dt=20260102", "invalid-input", "create_chain_table makes it one"),
    (f"compact_chain_table --table={CHAIN}", "invalid-input", "name what to compact"),
    (f"compact_chain_table --table={CHAIN} --max-chain-length=9", "invalid-input", "--pending"),
    (f"compact_chain_table --table={CHAIN} --partition=dt=2026-01-02", "invalid-input", "write it like dt="),
    (f"compact_chain_table --table={CHAIN} --partition=day=20260102", "invalid-input", "the partition columns are dt"),
    (f"compact_chain_table --table={CHAIN} --from=dt=20260103 --to=dt=20260102", "invalid-input", "later than to"),
    (f"merge_branch --table={CHAIN} --branch=delta", "unsafe", "compact_chain_table makes partitions full"),
    (f"delete_branch --table={CHAIN} --branch=delta", "unsafe", "unset that option first"),
    (f"alter_chain_table --table={CHAIN} --change=truncate", "invalid-input", "write one of: add column NAME TYPE"),
    (f"alter_chain_table --table={CHAIN} --change='drop column z'", "invalid-input", "there are: k, dt"),
    ("alter_chain_table --change='add column z INT'", "invalid-input", "is not a chain table"),
    ("check_chain_table --table=sales.nope", "not-found", "There is no table sales.nope"),
    ("create_chain_table --table=sales.new", "not-found", "give its columns and keys to create it"),
    (f"{NEW_CHAIN} --timestamp-pattern='$day' --timestamp-formatter=yyyyMMdd", "invalid-input", "(columns: dt)"),
    (f"{NEW_CHAIN} --timestamp-pattern='$dt' --timestamp-formatter=QQQ", "invalid-input", "pattern letter 'Q'"),
    # maintenance
    ("compact --min-files=1", "invalid-input", "at least 2"),
    ("compact --branch=nope", "not-found", "nope"),
    (f"compact --table={CHAIN}", "unsupported", "use compact_chain_table"),
    ("rescale --bucket-num=0", "invalid-input", "at least 1"),
    ("rescale --bucket-num=4 --partitions=day=1", "invalid-input", "'day' is not a partition column"),
    ("rescale --bucket-num=4 --branch=nope", "not-found", "nope"),
    (f"rescale --bucket-num=4 --table={CHAIN}", "unsupported", "chain tables"),
    ("expire_partitions", "invalid-input", "partition.expiration-time"),
    ("expire_partitions --expiration-time=month", "invalid-input", "'month' is not a duration"),
    ("expire_partitions --expiration-time='30 d' --limit=0", "invalid-input", "at least 1"),
    (
        f"expire_partitions --table={CHAIN} --expiration-time='30 d' --min-full-partitions=0",
        "invalid-input",
        "at least 1",
    ),
    ("expire_snapshots --retain-min=0", "invalid-input", "at least 1"),
    ("expire_snapshots --older-than=2099-01-01T00:00:00+00:00", "invalid-input", "is in the future"),
    ("expire_snapshots --older-than=7", "invalid-input", "'7' is neither an age with its unit (e.g. '7 d') nor a time"),
    ("expire_snapshots --older-than=²", "invalid-input", "an age (e.g. '7 d')"),
    (f"expire_snapshots --older-than={'1' * 5000}", "invalid-input", "an age (e.g. '7 d')"),
    ("expire_branches --idle-for=30", "invalid-input", "idle_for: '30' has no unit"),
    ("expire_branches --idle-for=²", "invalid-input", "'²' is not a duration"),
    (f"expire_branches --idle-for={'1' * 5000}", "invalid-input", "has no unit"),
    (f"expire_branches --idle-for={'1' * 5000}d", "invalid-input", "is not a duration"),
    ("expire_snapshots --branch=nope", "not-found", "nope"),
    ("expire_changelogs --delete-all --retain-min=3", "invalid-input", "leave older_than, retain_min"),
    ("compact_manifest --branch=nope", "not-found", "nope"),
    ("expire_tags --older-than=soon", "invalid-input", "an age (e.g. '7 d')"),
    ("repair_table --finding=nope", "invalid-input", "no finding 'nope'"),
    ("repair_table --finding=", "invalid-input", "(--finding) is ''"),
]


KINDS = {"invalid-input": 2, "not-found": 2, "already-exists": 2, "unsupported": 2, "conflict": 3, "unsafe": 4}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with a plain table, its branches and a chain table; some query files beside it."""
    here = tmp_path_factory.mktemp("refusals")
    (here / "good.sql").write_text("SELECT * FROM branch")
    (here / "drop.sql").write_text("DROP TABLE branch")
    (here / "column.sql").write_text("UPDATE branch SET dt = '1' WHERE amonut > 1")
    (here / "empty.sql").write_text(" ;")
    (here / "binary.sql").write_bytes(b"\xff\xfe")
    run(here, f"{NEW_CHAIN} --timestamp-pattern='$dt' --timestamp-formatter=yyyyMMdd".replace("sales.new", CHAIN))
    columns = [("k", "BIGINT NOT NULL"), ("dt", "STRING NOT NULL")]
    keys = {"primary_keys": ["dt", "k"], "partition_keys": ["dt"]}
    table = create_table(str(here / "wh"), PLAIN, columns, options={"bucket": "1"}, **keys)
    write_arrow(table, pa.table({"k": [1], "dt": ["20261118"]}))
    for line in ("create_tag --tag=t1", "create_branch --branch=fix --tag=t1", "create_branch --branch=empty"):
        run(here, line)
    return here


def run(here: Path, line: str) -> OperationResult:
    """Run a job's operation in this process, up to where a Spark session would be started."""
    operation, *words = shlex.split(line.replace("HERE", str(here)))
    given = {w.partition("=")[0] for w in words}
    common = {"--warehouse": str(here / "wh"), "--table": PLAIN}
    words += [f"{flag}={value}" for flag, value in common.items() if flag not in given]
    return launch._run_operation(parse_arguments(operation, words))


def files(here: Path) -> dict[Path, bytes]:
    return {f: f.read_bytes() for f in here.rglob("*") if f.is_file()}


@pytest.mark.parametrize(("line", "kind", "says"), REFUSED)
def test_a_bad_request_is_refused_before_spark_starts(
    here: Path, monkeypatch: pytest.MonkeyPatch, line: str, kind: str, says: str
) -> None:
    def refuse(request: Request) -> None:
        raise AssertionError("a Spark session was about to be started")

    monkeypatch.setattr(launch, "_session", refuse)
    before = files(here)
    with pytest.raises(PaimonError) as refused:
        run(here, line)
    assert says in refused.value.message
    assert (refused.value.kind, refused.value.exit_code) == (kind, KINDS[kind])
    assert "\n" not in refused.value.message
    assert files(here) == before
