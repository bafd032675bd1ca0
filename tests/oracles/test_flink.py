"""Corrections beside Flink jobs that go on writing: refused while a job has a bucket open where that would be wrong,
exact once it has left the bucket alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon import (
    check_table,
    compact,
    create_branch,
    delete_branch,
    erase_rows,
    merge_branch,
    open_table,
    remove_orphan_files,
    replace_main,
    rollback_to,
)
from airflow_paimon.core.errors import ConflictError, UnsafeOperationError
from airflow_paimon.core.publish.running_writers import partition_writers
from airflow_paimon.core.publish.undoable_publishes import last_publish
from airflow_paimon.core.table.consumers import consumer_names
from airflow_paimon.core.table.open_writers_plan import ENDED_AFTER_MS, remembers_replaced_rows
from airflow_paimon.core.table.paths import UNDO_TAG_PREFIX
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import drop_partitions, read_arrow, write_arrow
from airflow_paimon.spark import sql
from tests.environment import REPO_ROOT
from tests.flink_cluster import Flink, FlinkError
from tests.oracles.drivers import SparkConnectorOracle
from tests.soundness import assert_sound
from tests.spark.test_doc_snippets import Page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

SUM = "'merge-engine'='aggregation', 'fields.v.aggregate-function'='sum'"
KINDS = {
    "pk": "",
    "pk_dynamic": "'bucket'='-1'",
    "pk_vectors": "'deletion-vectors.enabled'='true'",
    "pk_lookup": "'changelog-producer'='lookup'",
    "partial_lookup": "'merge-engine'='partial-update', 'changelog-producer'='lookup'",
    "sum_vectors": f"{SUM}, 'deletion-vectors.enabled'='true'",
    "first_row": "'merge-engine'='first-row'",
    "append": "",
}
Row = tuple[str, int, int | None, int | None]
WRONG: list[Row] = [("d0", n, n * 100, n) for n in range(1, 2001)]
LATER: list[Row] = [("d0", 1, None, 55), ("d0", 2, 5, None), ("d0", 2000, 7, 7)]


@dataclass
class World:
    """Tables of some kinds in a database of their own, and the jobs that write all of them from one source."""

    flink: Flink
    tables: dict[str, Table]
    jobs: dict[str, str]
    """The job of each table."""

    @property
    def database(self) -> str:
        return next(iter(self.tables.values())).name.partition(".")[0]

    def feed(self, *rows: Row) -> None:
        self.flink.feed(f"feed_{self.database}", rows, *set(self.jobs.values()))

    def checkpoint(self) -> None:
        made = self.flink.checkpoint(*set(self.jobs.values()))
        for kind, table in self.tables.items():
            self.flink.committed(table, made[self.jobs[kind]])

    def commit(self, *rows: Row) -> None:
        self.feed(*rows)
        self.checkpoint()

    def end(self) -> None:
        self.flink.cancel(*set(self.jobs.values()))


def start(
    flink: Flink,
    database: str,
    kinds: dict[str, str],
    *,
    one_job_each: bool = False,
    settings: Mapping[str, str] | None = None,
) -> World:
    """Make a table of each kind, and start a job that writes all of them, or one for each (``one_job_each``)."""
    flink.sql(f"CREATE DATABASE {database}")
    flink.sql(f"USE {database}")
    flink.source(f"feed_{database}", "dt STRING, id BIGINT, v BIGINT, w BIGINT")
    for name, options in kinds.items():
        key = "" if name == "append" else ", PRIMARY KEY (dt, id) NOT ENFORCED"
        bucket = "" if "bucket" in options else "'bucket'='-1'" if name == "append" else "'bucket'='1'"
        given = ", ".join(filter(None, (bucket, options)))
        flink.sql(
            f"CREATE TABLE {name} (dt STRING, id BIGINT, v BIGINT, w BIGINT{key}) PARTITIONED BY (dt) WITH ({given})"
        )
    inserts = {name: f"INSERT INTO {name} SELECT * FROM feed_{database}" for name in kinds}
    if one_job_each:
        jobs = {name: flink.insert(insert, settings) for name, insert in inserts.items()}
    else:
        together = f"EXECUTE STATEMENT SET BEGIN {'; '.join(inserts.values())}; END"
        jobs = dict.fromkeys(kinds, flink.insert(together, settings))
    return World(flink, {name: open_table(str(flink.warehouse), f"{database}.{name}") for name in kinds}, jobs)


def merged(kind: str, rows: list[Row], row: Row) -> list[Row]:
    """What a table of a kind shows once ``row`` comes after ``rows``."""
    at = [n for n, old in enumerate(rows) if old[:2] == row[:2] and kind != "append"]
    if not at:
        return [*rows, row]
    (dt, key, v, w), (_, _, new_v, new_w) = rows[at[0]], row
    new: Row = row
    if kind.startswith("partial"):
        new = (dt, key, v if new_v is None else new_v, w if new_w is None else new_w)
    elif kind.startswith(("sum", "aggregation")):
        new = (dt, key, (v or 0) + (new_v or 0), w if new_w is None else new_w)
    elif kind.startswith("first"):
        new = rows[at[0]]
    return [*rows[: at[0]], new, *rows[at[0] + 1 :]]


def right(kind: str) -> list[Row]:
    """The rows after the correction, which also deletes a key where the bucket of a key doesn't depend on others."""
    return [("d0", n, n, n) for n in range(1, 2000 + (kind == "pk_dynamic"))]


def expected(kind: str, *later: Row) -> list[Row]:
    rows = right(kind)
    for row in later:
        rows = merged(kind, rows, row)
    return sorted(rows, key=repr)


def rows_of(table: Table) -> list[Row]:
    return sorted((tuple(row.values()) for row in read_arrow(table).to_pylist()), key=repr)


def assert_shown(world: World, wanted: Mapping[str, list[Row]]) -> None:
    """Flink and we read these rows of each table."""
    for kind, table in world.tables.items():
        assert rows_of(table) == sorted(wanted[kind], key=repr), kind
    query = " UNION ALL ".join(f"SELECT '{kind}', * FROM {table.name}" for kind, table in world.tables.items())
    assert world.flink.query(query) == sorted(((kind, *row) for kind in wanted for row in wanted[kind]), key=repr)


def correct(table: Table) -> None:
    create_branch(table, "fix", snapshot=table.latest_snapshot_id(), if_exists="replace")
    rows = [dict(zip(("dt", "id", "v", "w"), row, strict=True)) for row in right(table.name.partition(".")[2])]
    write_arrow(table.branch("fix"), pa.Table.from_pylist(rows), mode="overwrite", partition={"dt": "d0"})


def test_a_partition_is_corrected_once_the_job_has_left_it_alone_for_three_checkpoints(flink: Flink) -> None:
    """Its later rows are merged onto the corrected ones. Before, a table that would remember the old rows refuses."""
    world = start(flink, "left_alone", KINDS)
    world.commit(*WRONG)
    for quiet in range(4):
        for table in world.tables.values():
            if quiet == 3:
                correct(table)
                merge_branch(table, "fix")
            elif remembers_replaced_rows(table.schema()):
                correct(table)
                with pytest.raises(UnsafeOperationError, match=r"dt=d0/bucket-0 open .*--writers-stopped") as refused:
                    merge_branch(table, "fix")
                (one,) = refused.value.details["open_buckets"]
                assert one["commit_user"] == table.find_snapshot(1).commit_user  # type: ignore[union-attr]
        world.commit(("d1", quiet, quiet, quiet))
    world.commit(*LATER)
    world.checkpoint()  # commits what compactions made visible of the last rows
    with pytest.raises(UnsafeOperationError, match="open"):
        rollback_to(world.tables["pk_vectors"], snapshot=1)
    world.end()
    assert_shown(world, {kind: expected(kind, *[("d1", n, n, n) for n in range(4)], *LATER) for kind in KINDS})


def test_a_bucket_that_a_job_writes_at_each_checkpoint_is_corrected_by_key(flink: Flink) -> None:
    """The jobs are not stopped: the publishes bring the branch's keys, and the jobs' later rows come on top."""
    alone = "'write-only'='true'"
    kinds = {"pk": "", "pk_alone": alone, "partial_alone": f"'merge-engine'='partial-update', {alone}"}
    world = start(flink, "hot", kinds | {"sum_alone": f"{SUM}, {alone}"}, one_job_each=True)
    world.commit(*WRONG)

    def commit(row: Row) -> None:
        world.feed(row)
        for _ in range(4):
            with suppress(AssertionError):  # the job that compacts restarts after a publish
                world.checkpoint()
                return

    for table in world.tables.values():
        create_branch(table, "fix", snapshot=table.latest_snapshot_id())
    rows: list[Row] = []
    for n in range(2):
        rows += [("d0", 10 + n, n, 1), ("d0", 3000 + n, n, n)]
        for table in world.tables.values():
            correction = dict(zip(("dt", "id", "v", "w"), rows[-2], strict=True))
            write_arrow(table.branch("fix"), pa.Table.from_pylist([correction]))
        commit(rows[-1])
        for table in world.tables.values():
            assert merge_branch(table, "fix").details["merged_by_key"]["changed_keys"] == 1
    rows.append(("d0", 10, 7, None))
    commit(rows[-1])
    with pytest.raises(ConflictError, match=r"1 keys, \(dt=d0, id=10\)"):
        rollback_to(world.tables["pk_alone"], tag=undo_tags(world.tables["pk_alone"])[0], keep_later=True)
    world.end()
    wanted = dict.fromkeys(world.tables, WRONG)
    for kind, row in product(wanted, rows):
        wanted[kind] = merged(kind, wanted[kind], row)
    assert_shown(world, wanted)


def undo_tags(table: Table) -> list[str]:
    """The undo tags of a table's publishes, oldest first."""
    found = [t for t in table.tags() if t.name.startswith(UNDO_TAG_PREFIX)]
    return [t.name for t in sorted(found, key=lambda t: t.snapshot.id)]


def combinations() -> dict[str, str]:
    """Every merge engine with every changelog producer, with and without deletion vectors, that Paimon takes."""
    found = {}
    engines = ("deduplicate", "partial-update", "aggregation", "first-row")
    for engine, producer, vectors in product(engines, ("none", "input", "lookup", "full-compaction"), (False, True)):
        if engine == "first-row" and (vectors or producer not in ("none", "lookup")):
            continue
        if (vectors and producer == "full-compaction") or (producer == "input" and engine != "deduplicate"):
            continue
        options = [
            SUM if engine == "aggregation" else f"'merge-engine'='{engine}'",
            f"'changelog-producer'='{producer}'",
        ]
        options += ["'deletion-vectors.enabled'='true'"] if vectors else []
        found[f"{engine}_{producer}{'_vectors' if vectors else ''}".replace("-", "_")] = ", ".join(options)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("quiet", [0, 1, 2])
def test_the_tables_that_refuse_are_those_that_would_be_wrong(flink: Flink, quiet: int) -> None:
    """Pins what Paimon 1.4.2's writers do to replaced files, with the refusal switched off by ``writers_stopped``."""
    world = start(flink, f"matrix_{quiet}", combinations(), one_job_each=True)
    world.commit(*WRONG)
    for n in range(quiet):
        world.commit(("d1", n, n, n))
    for table in world.tables.values():
        correct(table)
        merge_branch(table, "fix", writers_stopped=True)
    world.feed(*LATER)
    for _ in range(3):
        with suppress(AssertionError):  # a job that restarts fails a checkpoint
            world.checkpoint()
    rows = {kind: flink.query(f"SELECT * FROM {t.name} WHERE dt = 'd0'") for kind, t in world.tables.items()}
    world.end()
    wrong = {kind for kind in rows if rows[kind] != expected(kind, *LATER)}
    refuse = {kind for kind, table in world.tables.items() if remembers_replaced_rows(table.schema())}
    # Rows of this one are right; what its streaming readers get is not.
    assert wrong == (refuse - {"deduplicate_lookup"} if quiet < 2 else set())


OVERWRITES = "'streaming-read-overwrite'='true'"
CONSUMER = "'consumer.expiration-time'='1 d', 'consumer-id'="
READERS = {
    "changes": ("pk_lookup", ""),
    "skips": ("pk", ""),
    "overwrites": ("pk", OVERWRITES),
    "consumer": ("pk", f"{OVERWRITES}, {CONSUMER}'good', 'consumer.mode'='at-least-once'"),
    "append": ("append", "'streaming-read-append-overwrite'='true'"),
    "restarts": ("pk", f"{OVERWRITES}, {CONSUMER}'bad'"),
    "restarts_too": ("control", f"{OVERWRITES}, {CONSUMER}'bad'"),
}


def reading(flink: Flink, name: str) -> str:
    """Make a table for one of READERS, and return the statement that keeps sums of what it reads there."""
    table, options = READERS[name]
    hints = ", ".join(filter(None, (options, "'continuous.discovery-interval'='100ms'")))
    columns = "dt STRING, n BIGINT, total BIGINT, PRIMARY KEY (dt) NOT ENFORCED"
    flink.sql(f"CREATE TABLE by_{name} ({columns}) WITH ('bucket'='1')")
    return f"INSERT INTO by_{name} SELECT dt, COUNT(*), SUM(v) FROM {table} /*+ OPTIONS({hints}) */ GROUP BY dt"


@pytest.mark.thorough
def test_what_streaming_readers_get_of_a_publish(flink: Flink) -> None:
    """With the control of Flink's own INSERT OVERWRITE, and what the publish says of it."""
    world = start(flink, "readers", {"pk_lookup": KINDS["pk_lookup"], "pk": "", "append": "", "control": ""})
    world.commit(*WRONG)
    for n in range(2):
        world.commit(("d1", n, 1, n))
    world.checkpoint()
    with pytest.raises(FlinkError, match="when the primary keys are not defined"):
        flink.sql(f"SELECT * FROM append /*+ OPTIONS({OVERWRITES}) */", most=1)
    steady = [name for name in READERS if not name.startswith("restarts")]
    together = "; ".join(reading(flink, name) for name in steady)
    job = flink.insert(f"EXECUTE STATEMENT SET BEGIN {together}; END")
    failing = [flink.insert(reading(flink, name)) for name in READERS if name not in steady]
    query = " UNION ALL ".join(f"SELECT '{name}', dt, n, total FROM by_{name}" for name in steady)
    wrong = ("d0", 2000, 200_100_000)
    flink.reaches(job, query, sorted((name, *row) for name in steady for row in (wrong, ("d1", 2, 2))))
    while consumer_names(world.tables["pk"]) != ["bad", "good"]:  # each is put soon after a checkpoint
        flink.checkpoint(*failing)
    notes = {}
    for kind in ("pk_lookup", "pk", "append"):
        correct(world.tables[kind])
        details = merge_branch(world.tables[kind], "fix").details
        warnings = [text for text in details.get("warnings", []) if "consumers" in text]
        notes[kind] = (details["streaming_readers"]["note"], warnings)
    assert "get the net changes" in notes["pk_lookup"][0] and not notes["pk_lookup"][1]
    assert "streaming-read-overwrite=true" in notes["pk"][0] and "consumer.mode=at-least-once" in notes["pk"][0]
    assert notes["pk"][1] == [f"readers.pk has consumers (bad, good): {notes['pk'][0]}"]
    assert "streaming-read-append-overwrite=true" in notes["append"][0] and not notes["append"][1]
    flink.batch("INSERT OVERWRITE control PARTITION (dt = 'd0') SELECT id, id, w FROM control WHERE dt = 'd0'")
    world.commit(("d1", 2, 1, 2))
    found = dict.fromkeys(steady, ("d0", 1999, 1_999_000))
    found |= {"skips": wrong, "append": ("d0", 2000 + 1999, 200_100_000 + 1_999_000)}
    if flink.paimon < "1.1":  # which knows no other changelogs than those of its compactions, nor this option
        found |= {"changes": wrong, "append": wrong}
    flink.reaches(job, query, sorted((name, *row) for name in steady for row in (found[name], ("d1", 3, 3))))
    overwritten = {"restarts": found["overwrites"], "restarts_too": ("d0", 2000, 2_001_000)}
    for one, (name, row) in zip(failing, overwritten.items(), strict=True):
        if flink.paimon < "1.1":
            flink.reaches(one, f"SELECT * FROM by_{name}", [row, ("d1", 3, 3)])
        else:
            flink.fails(one, "IncrementalSplit cannot be cast to class .*DataSplit")
    flink.cancel(job, *failing)
    world.end()


def test_the_tutorial(flink: Flink, spark: SparkSession) -> None:
    """Its commands, and the tables that it shows. A publish that is too early is refused; an undo arrives as well."""
    text = (REPO_ROOT / "docs" / "tutorials" / "flink.md").read_text().replace("/data/warehouse", str(flink.warehouse))
    statements = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)[0].split(";\n")[:-1]
    correction, publish = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    shown = [(day, float(total)) for day, total in re.findall(r"^\| (2026-\S+) \| (\S+) \|$", text, re.MULTILINE)]
    shell = Page(spark, flink.warehouse).shell
    flink.sql("USE CATALOG default_catalog")
    flink.source("incoming", "dt STRING, id BIGINT, amount DOUBLE, note STRING")
    for statement in statements[:-2]:
        flink.sql(statement)
    flink.sql("ALTER TABLE orders SET ('continuous.discovery-interval'='100ms')")
    jobs = [flink.insert(statement) for statement in statements[-2:]]
    table = open_table(str(flink.warehouse), "sales.orders")

    def arrives(*rows: tuple[Any, ...]) -> None:
        flink.feed("incoming", rows, jobs[0])
        flink.committed(table, flink.checkpoint(jobs[0])[jobs[0]])

    arrives(("2026-11-17", 1, 10, "a"), ("2026-11-18", 2, 1200, "b"), ("2026-11-18", 3, 800, "c"))
    arrives(("2026-11-19", 4, 3, "d"))
    shell(correction)
    with pytest.raises(UnsafeOperationError, match=r"a running job may have dt=2026-11-18/bucket-0 open"):
        shell(publish)
    for _ in range(2):
        arrives(("2026-11-19", 5, 4, "e"))
    flink.reaches(jobs[1], "SELECT * FROM daily", shown[:3])
    shell(publish)
    flink.reaches(jobs[1], "SELECT * FROM daily", shown[3:])
    rollback_to(table, tag=last_publish(table).undo_tag, keep_later=True)
    flink.reaches(jobs[1], "SELECT * FROM daily", shown[:3])
    assert not any(flink.restarts(job) for job in jobs)
    flink.cancel(*jobs)
    flink.sql("USE CATALOG p")


def test_a_job_that_filled_the_branch_goes_on_on_main(flink: Flink) -> None:
    """By the statements of the page. Without the names that they give to operators, the job commits its last files
    again; main has their schema.
    """
    page = (REPO_ROOT / "docs" / "howto" / "replace-main.md").read_text()
    first, second = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    given = dict(re.findall(r"SET '(.*?)' = '(.*?)';", second))
    texts = {"daily": (first, second[second.index("INSERT") :])}
    texts["plain"] = tuple(re.sub(r" /\*\+.*?\*/", "", s).replace("daily", "plain") for s in texts["daily"])  # type: ignore[assignment]
    flink.sql("CREATE DATABASE resumed")
    flink.sql("USE resumed")
    options = "'bucket'='1', 'changelog-producer'='input', 'continuous.discovery-interval'='100ms'"
    columns = "dt STRING, id INT, amount BIGINT, PRIMARY KEY (dt, id) NOT ENFORCED"
    flink.sql(f"CREATE TABLE orders ({columns}) WITH ({options})")
    flink.batch("INSERT INTO orders VALUES ('d0', 1, 1), ('d0', 2, 2)")
    tables, jobs = {}, {}
    for name in texts:
        flink.sql(f"CREATE TABLE {name} (dt STRING, total BIGINT, PRIMARY KEY (dt) NOT ENFORCED) WITH ('bucket'='1')")
        flink.batch(f"INSERT INTO {name} VALUES ('d0', 300)")
        tables[name] = open_table(str(flink.warehouse), f"resumed.{name}")
        create_branch(tables[name], "v2", snapshot=1)
        jobs[name] = flink.insert(texts[name][0])
        flink.reaches(jobs[name], f"SELECT * FROM `{name}$branch_v2`", [("d0", 3)])
    flink.batch("INSERT INTO orders VALUES ('d0', 3, 4), ('d1', 1, 10)")
    for name, table in tables.items():
        flink.has_read(jobs[name], 4)
        savepoint = flink.stop(jobs[name])
        assert rows_of(table.branch("v2")) == [("d0", 7), ("d1", 10)]
        details = replace_main(table, "v2").details
        users = {s.commit_user for s in table.branch("v2").snapshots([2, 3])}
        assert details["branch_writers"] == sorted(users) and "docs/howto/replace-main.md" in details["warnings"][0]
        jobs[name] = flink.insert(texts[name][1], {**given, "execution.state-recovery.path": savepoint})
    flink.batch("INSERT INTO orders VALUES ('d1', 2, 20)")
    flink.reaches(jobs["daily"], "SELECT * FROM daily", [("d0", 7), ("d1", 30)])
    plain = tables["plain"]
    assert plain.snapshot(3).commit_user in users
    flink.reaches(jobs["plain"], "SELECT * FROM plain", [("d0", 7), ("d1", 30)])
    (found,) = check_table(plain).details["findings"]
    assert (found["id"], found["severity"]) == ("committed-twice:3", "warning")
    assert check_table(tables["daily"]).details["ok"]
    flink.cancel(*jobs.values())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "test",
    [
        test_a_partition_is_corrected_once_the_job_has_left_it_alone_for_three_checkpoints,
        test_what_streaming_readers_get_of_a_publish,
        test_a_job_that_filled_the_branch_goes_on_on_main,
    ],
)
def test_the_same_beside_flink_1_20(flink120: Flink, test: Callable[[Flink], None]) -> None:
    test(flink120)


def test_compactions_statements_and_erasures_leave_open_buckets_alone(flink: Flink, spark: SparkSession) -> None:
    """With deletion vectors the job's next rows would be there twice. A compaction takes the other buckets."""
    world = start(flink, "open_buckets", {"pk_vectors": KINDS["pk_vectors"]})
    table = world.tables["pk_vectors"]
    world.commit(*WRONG)
    world.commit(*[("d1", n, n, n) for n in range(2000)])
    world.commit(("d2", 1, 1, 1))
    world.commit(("d2", 2, 2, 2))
    world.feed(("d1", 1, 11, 11))
    world.checkpoint()
    update = "UPDATE open_buckets.pk_vectors SET v = 0 WHERE dt = '{}' AND id = 2"
    refused = partial(pytest.raises, UnsafeOperationError, match=r"dt=d1/bucket-0 open .*writers_stopped")
    with refused():
        sql(spark, str(flink.warehouse), update.format("d1"))
    with refused():
        erase_rows(table, "dt = 'd1' AND id = 3")
    one = pa.Table.from_pylist([{"dt": "d1", "id": 1, "v": 0, "w": 0}])
    with refused():
        write_arrow(table, one, mode="dynamic_overwrite")
    with refused():
        drop_partitions(table, "dt=d1")
    for statement in (
        "INSERT OVERWRITE {0} PARTITION (dt = 'd1') VALUES (1, 0, 0)",
        "ALTER TABLE {0} DROP PARTITION (dt = 'd1')",
    ):
        with refused():
            sql(spark, str(flink.warehouse), statement.format(table.name))
    sql(spark, str(flink.warehouse), update.format("d0"))
    found = compact(table)
    assert {one["bucket"] for one in found.details["open_buckets"]} <= {"dt=d1/bucket-0", "dt=d2/bucket-0"}
    assert [w for w in found.details["warnings"] if "may have them open" in w]
    world.commit(("d0", 1, 7, 7), ("d1", 1, 12, 12))
    world.checkpoint()
    world.end()
    rows = [row for row in WRONG if row[1] > 2] + [("d0", 1, 7, 7), ("d0", 2, 0, 2)]
    rows += [("d1", n, n, n) for n in range(2000) if n != 1] + [("d1", 1, 12, 12), ("d2", 1, 1, 1), ("d2", 2, 2, 2)]
    assert rows_of(table) == sorted(rows, key=repr) == flink.query(f"SELECT * FROM {table.name}")
    sql(spark, str(flink.warehouse), update.format("d1"), writers_stopped=True)
    write_arrow(table, one, mode="overwrite", partition={"dt": "d1"}, writers_stopped=True)
    sql(spark, str(flink.warehouse), f"ALTER TABLE {table.name} DROP PARTITION (dt = 'd2')", writers_stopped=True)
    assert rows_of(table) == sorted([row for row in rows if row[0] == "d0"] + [("d1", 1, 0, 0)], key=repr)


def opened(table: Table, *partitions: str, after_ms: int = 0) -> set[tuple[str, str]]:
    """Which commit users may have which partitions open, at a later time."""
    specs = [f"dt={partition}" for partition in partitions]
    found = partition_writers(table, specs, time.time_ns() // 1_000_000 + after_ms)
    assert (found["quiet_since"] is None) == bool(found["open_buckets"]) or not found["jobs"]
    return {(one["commit_user"], one["bucket"].partition("/")[0].removeprefix("dt=")) for one in found["open_buckets"]}


def last_user(table: Table) -> str:
    return table.snapshot(table.latest_snapshot_id() or 0).commit_user


@pytest.mark.thorough
def test_each_job_closes_a_bucket_by_itself_over_a_restart_too(
    flink: Flink, connector_oracle: SparkConnectorOracle
) -> None:
    """Two jobs at one bucket, one of them stopped and resumed, another one that ended, and batch writers."""
    world = start(flink, "several", {"partial_lookup": KINDS["partial_lookup"]})
    table, statement = world.tables["partial_lookup"], "INSERT INTO partial_lookup SELECT * FROM {}"
    world.commit(*WRONG)
    first = last_user(table)
    flink.source("feed_b", "dt STRING, id BIGINT, v BIGINT, w BIGINT")
    job = flink.insert(statement.format("feed_b"))

    def other(job: str, *rows: Row, feed: str = "feed_b") -> str:
        flink.feed(feed, rows, job)
        flink.committed(table, flink.checkpoint(job)[job])
        return last_user(table)

    second = other(job, ("d0", 1, 100, 1))
    assert opened(table, "d0") == {(first, "d0"), (second, "d0")}
    for n in range(3):
        world.commit(("d1", n, n, n))
    assert opened(table, "d0") == {(second, "d0")}
    path = flink.stop(job)
    correct(table)
    with pytest.raises(UnsafeOperationError, match=f"commit user {second}"):
        merge_branch(table, "fix")  # the savepoint is one commit without rows of it
    job = flink.insert(statement.format("feed_b"), {"execution.state-recovery.path": path})
    assert other(job, ("d2", 1, 1, 1)) == second
    with pytest.raises(UnsafeOperationError, match=f"commit user {second}"):
        merge_branch(table, "fix")  # the resumed job has opened it again, and its first commit closes nothing
    other(job, ("d2", 2, 2, 2))
    merge_branch(table, "fix")
    other(job, *LATER)
    flink.checkpoint(job)
    assert flink.restarts(job) == 1, "only from the savepoint"
    rows = expected("partial_lookup", *LATER)
    assert flink.query("SELECT * FROM partial_lookup WHERE dt = 'd0'") == rows

    flink.cancel(job)
    flink.source("feed_c", "dt STRING, id BIGINT, v BIGINT, w BIGINT")
    job = flink.insert(statement.format("feed_c"))
    third = other(job, ("d3", 1, 1, 1), feed="feed_c")
    assert third not in (first, second)
    assert opened(table, "d2", "d3") == {(second, "d2"), (third, "d3")}
    assert opened(table, "d2", after_ms=ENDED_AFTER_MS + 60_000) == set(), "the job has ended by then"
    world.end()
    flink.cancel(job)
    flink.batch("INSERT INTO partial_lookup VALUES ('d4', 1, 1, 1)")
    connector_oracle.sql(flink.warehouse, f"INSERT INTO {table.name} VALUES ('d5', 1, 1, 1)")
    assert opened(table, "d4", "d5") == set()


@pytest.mark.thorough
def test_a_job_that_compacts_for_others_has_their_buckets_open(flink: Flink) -> None:
    """The writers of a ``write-only`` table look nothing up; the compactor does, until it had two other commits."""
    options = "'write-only'='true', 'continuous.discovery-interval'='200 ms'"
    world = start(flink, "compacted", {"pk_vectors": f"{KINDS['pk_vectors']}, {options}"})
    table = world.tables["pk_vectors"]
    ((_, started),) = flink.sql("CALL sys.compact(`table` => 'compacted.pk_vectors')")
    compactor = started.removeprefix("JobID=")
    count = "SELECT dt, CAST(COUNT(*) AS INT) FROM pk_vectors GROUP BY dt"
    shown: list[tuple[str, int]] = [("d0", len(WRONG))]
    world.commit(*WRONG)
    flink.reaches(compactor, count, shown)
    user = last_user(table)
    assert user != table.snapshot(1).commit_user
    correct(table)
    for n in range(1, 4):
        assert opened(table, "d0") == {(user, "d0")}
        with pytest.raises(UnsafeOperationError, match=f"commit user {user}"):
            merge_branch(table, "fix")
        world.commit((f"d{n}", 1, 1, 1))
        shown.append((f"d{n}", 1))
        flink.reaches(compactor, count, shown)
    assert opened(table, "d0") == set()
    merge_branch(table, "fix")
    world.commit(*LATER)
    rows = expected("pk_vectors", *LATER)
    flink.reaches(compactor, "SELECT * FROM pk_vectors WHERE dt = 'd0'", rows)
    flink.cancel(compactor)
    world.end()
    assert check_table(table, verify_keys=True).details["findings"] == []


def test_a_job_replays_the_changes_of_a_correction_from_its_branch(flink: Flink, spark: SparkSession) -> None:
    """With the option the branch has a changelog of the statement; else its readers get nothing."""
    lookup, warehouse = "'changelog-producer'='lookup'", str(flink.warehouse)
    kinds = {"told": f"{lookup}, 'airflow-paimon.branch-changelog'='true'", "untold": lookup}
    world = start(flink, "replay", kinds)
    world.commit(("d0", 1, 100, 1), ("d0", 2, 200, 2), ("d0", 3, 300, 3))
    world.end()
    for name, table in world.tables.items():
        branch, copies = f"`{name}$branch_fix`", f"copies_{name}"
        folder = flink.warehouse / "replay.db" / name
        create_branch(table, "fix", snapshot=table.latest_snapshot_id())
        sql(spark, warehouse, f"UPDATE replay.{branch} SET v = v / 100 WHERE id < 3")
        sql(spark, warehouse, f"DELETE FROM replay.{branch} WHERE id = 3")
        made = table.branch("fix").snapshots()[1:]
        assert [bool(one.changelog_manifest_list) for one in made] == [name == "told"] * 2
        flink.sql(f"CREATE TABLE {copies} (id BIGINT, v BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
        flink.batch(f"INSERT INTO {copies} SELECT id, v FROM {name}")
        hint = f"'scan.snapshot-id'='{made[0].id}', 'continuous.discovery-interval'='100ms'"
        job = flink.insert(f"INSERT INTO {copies} SELECT id, v FROM {branch} /*+ OPTIONS({hint}) */")
        old = [(1, 100), (2, 200), (3, 300)]
        if name == "untold":
            flink.checkpoint(job)
        flink.reaches(job, f"SELECT * FROM {copies}", [(1, 1), (2, 2)] if name == "told" else old)
        flink.cancel(job)
        merge_branch(table, "fix", writers_stopped=True)
        assert flink.query(f"SELECT id, v FROM {name}") == [(1, 1), (2, 2)]
        delete_branch(table, "fix")
        for path in folder.rglob("*"):
            os.utime(path, (0, 0))
        remove_orphan_files(table)
        assert_sound(table)  # the branch's changelog is gone
        assert check_table(table).details["ok"]
