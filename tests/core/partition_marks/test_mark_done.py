"""mark_partition_done: what each action leaves, what is refused before any, and with what a mark goes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.errors import InvalidInputError, PaimonError, StorageError, UnsupportedError
from airflow_paimon.core.partition_marks.http_report import PARAMS, URL
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.partition_expiry.test_expire_partitions import OLD, days, filled
from tests.core.partition_marks.web import Web, web_server
from tests.core.tables import append, make_table, run

ACTION = "partition.mark-done-action"
MARK = "mark_partition_done"


@pytest.fixture
def web() -> Iterator[Web]:
    with web_server() as server:
        yield server


def table_with(*actions: str, **more: str) -> Table:
    options = {ACTION: ",".join(actions)} if actions else {}
    return make_table(f"memory://{uuid.uuid4()}/wh", **options, **more)


def marks(table: Table) -> list[str]:
    return [path for path in table.store.walk("") if path.endswith("/_SUCCESS")]


def test_a_success_file_says_when_a_partition_was_first_and_last_marked() -> None:
    table = table_with()
    append(table, "2026-11-25")
    result = run(table, MARK, partitions="dt=2026-11-25", now="1000")
    assert result.changed
    assert result.details == {"mark_done_actions": ["success-file"], "partitions": ["dt=2026-11-25"]}
    path = "dt=2026-11-25/_SUCCESS"
    assert table.store.read(path).decode() == '{\n  "creationTime" : 1000,\n  "modificationTime" : 1000\n}'
    run(table, MARK, partitions=["dt=2026-11-25; dt=2026-11-26"], now="2000")
    assert json.loads(table.store.read(path)) == {"creationTime": 1000, "modificationTime": 2000}
    assert marks(table) == [path, "dt=2026-11-26/_SUCCESS"], "a day without rows can be complete, too"
    assert run(table, MARK, partitions="dt='a;b' ;dt=it's;").details["partitions"] == ["dt='a;b'", "dt=it's"]


def test_the_folder_is_that_of_the_data(tmp_path: Path) -> None:
    columns = [("k", "INT"), ("day", "DATE"), ("hour", "INT"), ("city", "STRING")]
    for legacy, folder in (("true", "day=20782"), ("false", "day=2026-11-25")):
        made = create_table(
            str(tmp_path / legacy), "d.t", columns, partition_keys=["day", "hour", "city"],
            options={"partition.legacy-name": legacy, "data-file.path-directory": "data"},
        )  # fmt: skip
        run(made, MARK, partitions=["day=2026-11-25/hour=7/city=a%3Db", "day=2026-11-25"])
        assert marks(made) == [f"{folder}/_SUCCESS", f"{folder}/hour=7/city=a%3Db/_SUCCESS"]
        with pytest.raises(InvalidInputError, match="leaves out a column before another one"):
            run(made, MARK, partitions=["day=2026-11-25/city=x"])


def test_a_dry_run_marks_nothing() -> None:
    table = table_with()
    result = run(table, MARK, partitions="dt=2026-11-25", dry_run=True)
    assert [a["path"] for a in result.details["plan"]["actions"]] == ["dt=2026-11-25/_SUCCESS"]
    assert not marks(table)


def test_a_report_is_posted_before_or_after_the_file_as_the_option_says(web: Web) -> None:
    table = table_with("http-report", "success-file", **{URL: f"{web.url}/done", PARAMS: "team=a"})
    run(table, MARK, partitions=["dt=2026-11-25", "dt=2026-11-26"])
    body = {"partition": "dt=2026-11-25/", "table": "d.t", "path": table.store.uri, "params": "team=a"}
    assert web.posted == [("/done", body), ("/done", {**body, "partition": "dt=2026-11-26/"})]
    assert len(marks(table)) == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, '{"result": "FAILED"}'), "answers the result 'FAILED'"),
        ((200, "[]"), "answers the result None"),
        ((200, "<html>"), "answers no JSON"),
        ((500, "{}"), "answers 500"),
        ((302, "{}"), "answers 302"),
    ],
)
def test_a_report_that_is_not_taken_ends_the_run(web: Web, answer: tuple[int, str], message: str) -> None:
    table = table_with("http-report", "success-file", **{URL: web.url})
    web.answers = [(200, '{"result": "success"}'), answer]
    with pytest.raises(StorageError, match=message) as error:
        run(table, MARK, partitions=["dt=1", "dt=2", "dt=3"])
    assert error.value.details["done"] == ["dt=1"]
    assert marks(table) == ["dt=1/_SUCCESS"]
    assert [path for path, _ in web.posted] == ["/", "/"], "no redirect is followed"
    run(table, MARK, partitions=["dt=1", "dt=2", "dt=3"])
    assert len(marks(table)) == 3


def test_a_server_that_is_not_there_is_named() -> None:
    with web_server() as gone:
        table = table_with("http-report", **{URL: gone.url})
    with pytest.raises(StorageError, match=r"could not be reported to 127\.0\.0\.1"):
        run(table, MARK, partitions="dt=1")


def on_rest(table: Table, web: Web, **values: Any) -> Any:
    """Run the operation on a table whose catalog is a server."""
    warehouse = table.store.uri.rsplit("/", 2)[0]
    request = build_request(MARK, {"warehouse": warehouse, "table": table.name, **values})
    context = open_context(request)
    options = {"metastore": "rest", "uri": web.url, "token.provider": "bear", "token": "secret"}
    served = Table(table.store, table.name, catalog=open_catalog(f"lake-{uuid.uuid4()}", options))
    return perform(type(context)(context.request, served, context.now_ms, context.started), request)


def test_a_rest_server_is_told_as_java_tells_it(web: Web) -> None:
    table = table_with("mark-event", "done-partition", **{"metastore.partitioned-table": "true"})
    on_rest(table, web, partitions=["dt=2026-11-25"])
    assert web.posted == [
        ("/v1/databases/d/tables/t/partitions/mark", {"specs": [{"dt": "2026-11-25"}]}),
        ("/v1/databases/d/tables/t/partitions",
         {"partitionSpecs": [{"dt": "2026-11-25.done"}], "ignoreIfExists": True}),
    ]  # fmt: skip
    web.answers = [(501, '{"message": "no", "code": 501}'), (501, '{"message": "no", "code": 501}')]
    with pytest.raises(UnsupportedError, match="does not offer POST"):
        on_rest(table, web, partitions=["dt=2026-11-25"])
    assert len(web.posted) == 4, "a server without events is no error, as in Java; one without partitions is"


@pytest.mark.parametrize(
    ("actions", "more", "error", "message"),
    [
        (("success-file", "custom"), {}, UnsupportedError, "only Paimon's own mark_partition_done can load the Java"),
        (("done-partition",), {}, InvalidInputError, r"needs metastore\.partitioned-table=true"),
        (("mark-event",), {"metastore.partitioned-table": "true"}, UnsupportedError, "keeps no partitions"),
        (("http-report",), {}, InvalidInputError, r"mark-done-action\.http\.url must be the address"),
        (("http-report",), {URL: "file:///etc/passwd"}, InvalidInputError, "must be the address of a web server"),
    ],
)
def test_actions_that_can_t_be_done_are_refused_before_any_other(
    actions: tuple[str, ...], more: dict[str, str], error: type[PaimonError], message: str
) -> None:
    table = table_with("success-file", *actions, **more)
    before = table.store.walk("")
    for dry_run in (True, False):
        with pytest.raises(error, match=message):
            run(table, MARK, partitions="dt=2026-11-25", dry_run=dry_run)
    assert table.store.walk("") == before


def test_an_action_that_another_engine_has_misspelt_is_refused() -> None:
    table = table_with("success-file", "custom")
    schema = table.paths.schema(0)
    table.store.replace(schema, table.store.read(schema).replace(b",custom", b",succes-file"))
    with pytest.raises(InvalidInputError, match="'succes-file'; there are success-file, done-partition"):
        run(table, MARK, partitions="dt=2026-11-25")


def test_partitions_that_can_t_be_are_refused(tmp_path: Path) -> None:
    table = table_with()
    for partitions, message in (
        ([], "give the partitions"),
        (["day=1"], "not a partition column"),
        (["x"], "form key"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            run(table, MARK, partitions=partitions)
    plain = create_table(str(tmp_path), "d.plain", [("k", "INT")])
    with pytest.raises(InvalidInputError, match="is not partitioned"):
        run(plain, MARK, partitions="dt=1")
    assert not marks(table) and not marks(plain)


def test_a_mark_goes_with_its_partition_and_is_no_fault_before(tmp_path: Path) -> None:
    table = filled(tmp_path, "2025-01-01", "2025-02-28", "2025-03-30")
    run(table, MARK, partitions=["dt=2025-01-01", "dt=2025-03-30"])
    table.store.create("dt=2025-02-28/_SUCCESS", b"")  # as Hadoop writes it
    assert not run(table, "check_table").details["findings"]
    assert run(table, "storage_usage").details["warnings"] == []
    found = run(table, "remove_orphan_files", older_than="1 h", dry_run=True, now="2036-11-21T12:00:00+00:00").details
    assert found["unknown"]["files"] == 0, found["unknown"]
    run(table, "expire_partitions", **OLD)
    assert days(table) == ["2025-03-30"]
    assert marks(table) == ["dt=2025-02-28/_SUCCESS", "dt=2025-03-30/_SUCCESS"], "not one that we have not written"


def test_a_mark_that_is_newer_than_the_drop_stays(tmp_path: Path) -> None:
    """The partition has been written anew, and is complete again, when a retry of the expiry ends."""
    table = filled(tmp_path, "2025-01-01", "2025-03-30")
    run(table, "expire_partitions", operation_id="op", **OLD)
    append(table, "2025-01-01")
    run(table, MARK, partitions=["dt=2025-01-01"], now="2036-11-21T12:00:00+00:00")
    run(table, "expire_partitions", operation_id="op", **OLD)
    assert marks(table) == ["dt=2025-01-01/_SUCCESS"]


def test_the_expiry_of_a_branch_leaves_the_marks_of_main(tmp_path: Path) -> None:
    table = filled(tmp_path, "2025-01-01", "2025-03-30")
    run(table, MARK, partitions=["dt=2025-01-01"])
    run(table, "create_branch", branch="fix", snapshot=2)
    assert run(table, "expire_partitions", branch="fix", **OLD).changed
    assert marks(table) == ["dt=2025-01-01/_SUCCESS"]
