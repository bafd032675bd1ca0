"""The button *Test* of a connection: each fault gets a message that names it and the way out, within seconds."""

import json
import os
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import StorageError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.store import open_store
from airflow_paimon.core.store.hdfs import HdfsStore
from airflow_paimon.hooks._connection_check import _with_advice, within
from airflow_paimon.hooks.paimon import PaimonHook
from tests import azure_server, gcs_server, oss_server
from tests.airflow.conftest import set_connection
from tests.airflow.test_paimon_hook import make_table_at
from tests.conftest import require
from tests.core.tables import append, make_table
from tests.s3_server import REGION, make_bucket, make_user, require_keys, s3_server

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]


class Lake:
    """An S3 server that asks for keys, with a warehouse of one table, a bucket of other things and three users."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.bucket = make_bucket(endpoint)
        self.owner = make_user(endpoint, "s3:*")
        self.stranger = make_user(endpoint, "iam:GetUser")
        options = {"endpoint_url": endpoint, "key": "k", "secret": "s", "region": REGION}
        append(make_table_at(f"s3://{self.bucket}/wh", options), "1")
        require_keys(endpoint)


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    with s3_server() as endpoint:
        yield Lake(endpoint)


def press(monkeypatch: pytest.MonkeyPatch, login: str = "", password: str = "", **extra: Any) -> tuple[bool, str]:
    """Press the button as the API server does, under a name that it makes up."""
    set_connection(monkeypatch, "madeup", "paimon", login=login, password=password, extra=extra)
    good, message = PaimonHook("madeup").test_connection()
    assert "madeup" not in message
    return good, message


def test_google_cloud_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    require(gcs_server.binary() is not None, "no fake-gcs-server for this machine")
    with gcs_server.gcs_server() as endpoint:
        uri, options = f"gs://{gcs_server.make_bucket(endpoint)}/wh", gcs_server.storage_options(endpoint)
        append(make_table_at(uri, options), "1")
        assert press(monkeypatch, warehouse=uri, storage_options=options) == (True, f"1 database in {uri}: d")
        faults = [
            ({"warehouse": "gs://no-such-bucket/wh"}, "Correct the bucket's name in Warehouse"),
            ({"storage_options": {**options, "endpoint_url": "http://127.0.0.1:1"}}, "Check the option endpoint_url"),
            ({"storage_options": {**options, "token": "/nowhere.json"}}, "Correct the option token"),
            ({"storage_options": {**options, "tokn": "x"}}, "Unknown storage option for gs://: tokn"),
        ]
        for wrong, advice in faults:
            good, message = press(monkeypatch, **{"warehouse": uri, "storage_options": options, **wrong})
            assert not good
            assert advice in message


def test_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    with azure_server.azure_server() as endpoint:
        uri, options = f"{azure_server.make_container(endpoint)}/wh", azure_server.storage_options(endpoint)
        append(make_table_at(uri, options), "1")
        assert press(monkeypatch, warehouse=uri, storage_options=options) == (True, f"1 database in {uri}: d")
        by_name = {**options, "metastore": "filesystem"}
        assert press(monkeypatch, warehouse=uri, storage_options=by_name) == (True, f"1 database in {uri}: d")
        nowhere = {"endpoint_url": "http://127.0.0.1:1", "account_key": azure_server.KEY}
        faults = [
            ({"warehouse": f"abfss://no-such@{azure_server.HOST}/wh"}, "Correct the container's name in Warehouse"),
            ({"storage_options": nowhere}, "Check the account's name in Warehouse"),
            ({"storage_options": {**options, "account_key": "b3RoZXI="}}, "Correct account_key, sas_token"),
            ({"storage_options": {**options, "acount_key": "x"}}, "Unknown storage option for Azure: acount_key"),
        ]
        for wrong, advice in faults:
            good, message = press(monkeypatch, **{"warehouse": uri, "storage_options": options, **wrong})
            assert not good
            assert advice in message
            assert azure_server.KEY not in message


def test_oss(monkeypatch: pytest.MonkeyPatch) -> None:
    with oss_server.oss_server() as server:
        uri, options = f"{server.make_bucket()}/wh", server.options()
        append(make_table_at(uri, options), "1")
        assert press(monkeypatch, warehouse=uri, storage_options=options) == (True, f"1 database in {uri}: d")
        faults = [
            ({"warehouse": "oss://no-such-bucket/wh"}, "Correct the bucket's name in Warehouse"),
            ({"storage_options": {**options, "endpoint_url": "http://127.0.0.1:1"}}, "Check Endpoint and Region"),
            ({"storage_options": {**options, "secret": "another-secret"}}, "Correct Access key and Secret key"),
            ({"storage_options": {**options, "acces_key": "x"}}, "Unknown storage option for oss://: acces_key"),
        ]
        for wrong, advice in faults:
            good, message = press(monkeypatch, **{"warehouse": uri, "storage_options": options, **wrong})
            assert not good
            assert advice in message
            assert oss_server.SECRET not in message


def test_s3_faults(monkeypatch: pytest.MonkeyPatch, lake: Lake) -> None:
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    key, secret = lake.owner
    there = {"warehouse": f"s3://{lake.bucket}/wh", "endpoint": lake.endpoint, "region": REGION}

    def says(*words: str, key: str = key, secret: str = secret, **extra: Any) -> None:
        good, message = press(monkeypatch, key, secret, **{**there, **extra})
        assert not good
        assert all(word in message for word in words), message
        assert lake.owner[1] not in message

    assert press(monkeypatch, key, secret, **there) == (True, f"1 database in s3://{lake.bucket}/wh: d")
    styled = press(monkeypatch, key, secret, **there, addressing_style="path")
    assert styled == (True, f"1 database in s3://{lake.bucket}/wh: d")
    says("doesn't know this access key", "Enter Access key", key="AKIAWRONG")
    says("secret key doesn't belong", secret="wrong")
    says("may not list the bucket", "s3:ListBucket", key=lake.stranger[0], secret=lake.stranger[1])
    says("no access key here", "environment", key="", secret="")
    says("bucket 'elsewhere'", "does not exist", "create the bucket", warehouse="s3://elsewhere/wh")
    says("There is no database", "is empty", "CREATE DATABASE", warehouse=f"s3://{lake.bucket}/hw")
    says(f"Set Warehouse to s3://{lake.bucket}/wh", warehouse=f"s3://{lake.bucket}")
    says("is a database", f"Set Warehouse to s3://{lake.bucket}/wh", warehouse=f"s3://{lake.bucket}/wh/d.db")
    says("is a table", f"Set Warehouse to s3://{lake.bucket}/wh", warehouse=f"s3://{lake.bucket}/wh/d.db/t")
    says("Check Endpoint", "127.0.0.1:9", endpoint="http://127.0.0.1:9")
    says("https://", "Endpoint", endpoint=lake.endpoint.replace("http", "https"))


def test_a_catalog_and_the_storage_of_its_tables(monkeypatch: pytest.MonkeyPatch, lake: Lake, tmp_path: Path) -> None:
    """Each of the two has advice of its own, and a catalog that answers is not enough."""
    uri = f"jdbc:sqlite:{tmp_path}/catalog.db"
    key, secret = lake.owner
    good_one: dict[str, Any] = {
        "warehouse": f"s3://{lake.bucket}/wh", "catalog_type": "jdbc", "catalog_options": {"uri": uri}, "key": key,
        "secret": secret, "endpoint": lake.endpoint, "region": REGION,
    }  # fmt: skip
    set_connection(monkeypatch, "jdbc", "paimon", extra=good_one)
    hook = PaimonHook("jdbc")
    hook.get_catalog().register("d", "t", PaimonHook("jdbc").get_table(path=f"s3://{lake.bucket}/wh/d.db/t").schema())
    assert press(monkeypatch, **good_one) == (True, f"1 database in catalog {uri}, key 'jdbc': d")
    nobody = {"uri": "jdbc:postgresql://127.0.0.1:1/x", "jdbc.user": "u", "jdbc.password": "a-password"}
    faults: list[tuple[dict[str, Any], list[str]]] = [
        ({"catalog_options": nobody}, ["127.0.0.1:1/x", "Connection refused", "Check uri in Catalog options"]),
        ({"catalog_options": {"uri": uri, "catalog-key": "other"}}, ["key 'other' answers, but has no database"]),
        ({"secret": "another"}, ["its tables can't be read: Access denied", "Enter Access key and Secret key again"]),
        ({"warehouse": "s3://no-such-bucket/wh"}, ["its tables can't be read: The bucket 'no-such-bucket'"]),
        (
            {"warehouse": f"s3://{lake.bucket}/other"},
            ["no table d.t at s3://", "correct its location or the warehouse"],
        ),
    ]
    for wrong, advice in faults:
        good, message = press(monkeypatch, **{**good_one, **wrong})
        assert not good
        assert not [words for words in advice if words not in message], message
        assert secret not in message
        assert "a-password" not in message


def test_a_name_node_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    good, message = press(monkeypatch, warehouse="hdfs://127.0.0.1:1/wh")
    assert not good
    assert "127.0.0.1:1" in message
    assert "Check the host and port in Warehouse" in message


@pytest.mark.parametrize(
    ("exception", "advice"),
    [
        ("StandbyException", "This is a standby name node: name the active one in Warehouse"),
        ("SafeModeException", "The name node is in safe mode: wait until it has left that"),
        ("RetriableException", "The name node is starting"),
        ("AccessControlException", "The user is HADOOP_USER_NAME, the Kerberos ticket's, or else"),
        ("IllegalStateException", "The name node's log shows the cause"),
    ],
)
def test_what_a_name_node_answers(exception: str, advice: str) -> None:
    answer = RuntimeError(f'RPCError("org.apache.hadoop.{exception}", "As planned")')
    store = open_store("hdfs://name-node:9000/wh")
    assert isinstance(store, HdfsStore)
    error = store.failed(answer, "listing", "")
    error.__cause__ = answer
    message = _with_advice("hdfs", error)
    assert advice in message and "Check the host" not in message, message


def test_tables_of_a_catalog_of_which_only_some_are_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    warehouse, uri = tmp_path / "wh", f"jdbc:sqlite:{tmp_path}/catalog.db"
    fields: dict[str, Any] = {"warehouse": str(warehouse), "catalog_type": "jdbc", "catalog_options": {"uri": uri}}
    schema = make_table(warehouse).schema()
    set_connection(monkeypatch, "jdbc", "paimon", extra=fields)
    catalog = PaimonHook("jdbc").get_catalog()
    catalog.register("d", "t", schema)
    (warehouse / "d.db" / "a").mkdir()
    (warehouse / "d.db" / "a" / "schema").symlink_to("schema")  # too many levels
    catalog.register("d", "a", schema)
    label = f"{uri}, key 'jdbc'"
    assert press(monkeypatch, **fields) == (True, f"1 database in catalog {label}: d"), "one of its tables can be read"

    (warehouse / "d.db" / "t").rename(warehouse / "d.db" / "elsewhere")
    good, message = press(monkeypatch, **fields)
    assert not good and "There is no table d." in message and f"catalog {label} registers it" in message, message

    with closing(sqlite3.connect(tmp_path / "catalog.db")) as database, database:
        database.execute("DELETE FROM paimon_tables")
        rows = [("jdbc", f"e{i:02}", "exists", "true") for i in range(25)]
        database.executemany("INSERT INTO paimon_database_properties VALUES (?, ?, ?, ?)", rows)
    good, message = press(monkeypatch, **fields)
    assert good and message.endswith(
        "e09 and 15 more; there is no table in the first 20 of them, and only those were checked"
    ), message


def test_what_answers_but_is_not_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    class NotS3(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>a wiki</html")

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), NotS3)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        good, message = press(monkeypatch, "k", "s", warehouse="s3://b/wh", endpoint=endpoint, region=REGION)
    finally:
        server.shutdown()
        server.server_close()
    assert not good
    assert "is not S3: check its address" in message


def test_an_endpoint_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.hooks._connection_check.PATIENCE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        good, message = press(monkeypatch, "k", "s", warehouse="s3://b/wh", endpoint=endpoint, region=REGION)
    assert not good
    assert "didn't answer within 0.5 seconds" in message
    assert "Check Endpoint" in message


def test_a_look_that_fails_or_hangs() -> None:
    gate = threading.Event()
    with pytest.raises(StorageError, match="nfs didn't answer within"):
        within(0.05, "nfs", gate.wait)
    gate.set()
    with pytest.raises(ZeroDivisionError):
        within(30, "nfs", lambda: 1 // 0)
    assert within(30, "nfs", lambda: None) is None


def test_local_faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    append(make_table(lake / "wh"), "1")
    (lake / "note.txt").write_text("x")
    (lake / "wh" / "empty.db").mkdir()
    hive = tmp_path / "hive"
    (hive / "sales.db" / "orders" / "dt=1").mkdir(parents=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    other = tmp_path / "other"
    (other / "logs" / "2026").mkdir(parents=True)

    def says(warehouse: object, *words: str) -> None:
        good, message = press(monkeypatch, warehouse=str(warehouse))
        assert not good
        assert all(word in message for word in words), message

    assert press(monkeypatch, warehouse=str(lake / "wh")) == (True, f"2 databases in {lake}/wh: d, empty")
    assert press(monkeypatch, warehouse=f"file://{lake}/wh")[0]
    says(lake / "gone" / "wh", f"There is no folder {lake}/gone/wh on this machine", f"({lake} exists)", "create")
    says(lake / "note.txt", "is a file")
    says("lake/wh", "relative path", "give the whole path")
    says(lake, "but in its folder wh", f"Set Warehouse to {lake}/wh")
    says(lake / "wh" / "d.db", "is a database", f"Set Warehouse to {lake}/wh")
    says(lake / "wh" / "d.db" / "t", "is a table", f"Set Warehouse to {lake}/wh")
    says(empty, "is empty", "CREATE DATABASE")
    says(other, "is not a Paimon warehouse", "It contains logs")
    says(hive, "1 database", "none of the 1 folders in there is a Paimon table")
    (empty / "new.db").mkdir()
    assert press(monkeypatch, warehouse=str(empty)) == (
        True, f"1 database in {empty}: new; there is no table in them yet",
    )  # fmt: skip


def test_a_folder_without_the_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The right is taken by another user's eyes: root may do everything."""
    append(make_table(tmp_path / "wh"), "1")
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.getuid() and not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    (tmp_path / "wh").chmod(0o755 if os.getuid() == 0 else 0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        good, message = press(monkeypatch, warehouse=str(tmp_path / "wh"))
        os.seteuid(user)
        (tmp_path / "wh").chmod(0o300)
        if user == 0:
            os.seteuid(65534)
        closed = press(monkeypatch, warehouse=str(tmp_path / "wh"))
    finally:
        os.seteuid(user)
        (tmp_path / "wh").chmod(0o755)
    assert good
    assert "may read it, but not write" in message
    assert closed[0] is False
    assert "Permission denied" in closed[1] and "runs as user" in closed[1]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"warehose": "/w"}, ("warehose (did you mean warehouse?)", "there are:")),
        ({"warehouse": "/w", "endpiont": "x"}, ("endpiont (did you mean endpoint?)",)),
        ({"warehouse": " "}, ("names no warehouse",)),
        ({"warehouse": "s3://b/w", "addressing_style": "paths"}, ("auto, path, virtual", "'paths'")),
        ({"warehouse": "s3://b/w", "endpoint": "minio:9000"}, ("endpoint", "http://host:port")),
        ({"warehouse": "s3://b/w", "storage_options": {"sekret": "x"}}, ("sekret", "known are")),
        ({"warehouse": "/w", "spark_conf": "spark.x=1"}, ("spark_conf must be a JSON object",)),
        ({"warehouse": "/w", "spark_options": "[1]"}, ("spark_options must be a JSON object",)),
        ({"warehouse": "/w", "spark_options": {"memory": "4g"}}, ("no memory",)),
        ({"warehouse": "/w", "notify": "oncall"}, ("notify must be a JSON object",)),
        ({"warehouse": "/w", "spark_conn_id": "sprak"}, ("no Airflow connection 'sprak'", "Spark connection")),
        (
            {"warehouse": "/w", "spark_conn_id": "paimon_default"},
            ("of type 'paimon'", "'spark' or 'spark_connect'"),
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_wrong_settings(
    monkeypatch: pytest.MonkeyPatch, warehouse: Path, extra: dict[str, Any], words: tuple[str, ...]
) -> None:
    good, message = press(monkeypatch, **extra)
    assert not good
    assert all(word in message for word in words), message


def test_a_spark_connect_server_is_a_spark_connection(monkeypatch: pytest.MonkeyPatch, warehouse: Path) -> None:
    append(make_table(warehouse), "1")
    set_connection(monkeypatch, "server", "spark_connect", host="127.0.0.1", port=15002)
    fields: dict[str, Any] = {"warehouse": str(warehouse), "spark_conn_id": "server"}
    assert press(monkeypatch, **fields, spark_options={"py_files": "a.zip"})[0]
    good, message = press(monkeypatch, **fields, spark_options={"executor_memory": "4g"})
    assert not good
    assert "takes only py_files, not executor_memory" in message


def test_a_form_that_leaves_fields_empty(monkeypatch: pytest.MonkeyPatch, warehouse: Path) -> None:
    append(make_table(warehouse), "1")
    blank = dict.fromkeys(("endpoint", "addressing_style", "spark_conn_id", "spark_conf", "spark_options", "notify"))
    assert press(monkeypatch, warehouse=str(warehouse), **blank)[0]
    assert PaimonHook("madeup").spark_settings().conn_id == "spark_default"


NOTIFIER = {"class": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", "to": "you@example.org"}


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            {"notify": {"oncall": {**NOTIFIER, "class": "nowhere.Notifier"}}},
            "class 'nowhere.Notifier' can't be imported",
        ),
        ({"notify": {"oncall": {"class": "airflow.sdk.BaseHook"}}}, "is not a notifier of Airflow's"),
        ({"masked_columns": {"d.t": ["V", "kk"]}}, "d.t has no column kk (did you mean k?)"),
        ({"masked_columns": {"d.nope": ["k"]}}, "there is no table d.nope that can be read"),
        ({"masked_columns": {"d.*": ["k", "email"]}}, "d.* has no column email"),
        ({"masked_columns": {"x.*": ["k"]}}, "there is no table x.* that can be read"),
    ],
)
def test_what_is_named_and_not_there(
    monkeypatch: pytest.MonkeyPatch, warehouse: Path, extra: dict[str, Any], message: str
) -> None:
    append(make_table(warehouse), "1")
    good, said = press(monkeypatch, warehouse=str(warehouse), **extra)
    assert not good and message in said
    good, said = press(monkeypatch, warehouse=str(warehouse), masked_columns={"d.T*": ["K"], "d.t": ["v"]})
    assert good, said


def test_a_column_of_any_table_that_a_pattern_names_is_found(monkeypatch: pytest.MonkeyPatch, warehouse: Path) -> None:
    for number in range(30):
        create_table(str(warehouse), f"d.t{number:02}", [("k" if number < 29 else "email", "INT")])
    good, said = press(monkeypatch, warehouse=str(warehouse), masked_columns={"d.*": ["email"]})
    assert good, said


def test_the_command_prints_all_of_the_message(
    monkeypatch: pytest.MonkeyPatch, warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes the message for markup, in which [s3] is a style."""
    from rich.console import Console

    monkeypatch.setitem(sys.modules, "s3fs", None)
    good, message = press(monkeypatch, warehouse="s3://lake/wh")
    Console(width=200).print(message)
    assert not good and "pip install 'airflow-paimon[ s3]'" in capsys.readouterr().out
