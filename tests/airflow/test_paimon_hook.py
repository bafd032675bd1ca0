"""The connection: what its fields become, what it refuses, and that its secrets show nowhere."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.data import write_arrow
from airflow_paimon.hooks.paimon import PaimonHook, SparkSettings
from tests.airflow.conftest import set_connection
from tests.core.tables import append, make_table
from tests.s3_server import KEY, REGION, SECRET, make_bucket, s3_server

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


def test_local_warehouse(warehouse: Path) -> None:
    append(make_table(warehouse), "1")
    hook = PaimonHook()
    assert hook.storage_options is None
    assert hook.get_table("d.t").latest_snapshot_id() == 1
    assert hook.get_table("d.t", "fix").branch_name == "fix"
    assert hook.test_connection() == (True, f"1 database in {warehouse}: d")


def test_a_table_is_opened_for_reading_by_its_connection(warehouse: Path) -> None:
    table = make_table(warehouse)
    write_arrow(table, pa.table({"k": [1, 2], "v": ["a", "b"], "dt": ["1", "1"]}))
    hook = PaimonHook()
    assert hook.open_table("d.t").count("k > 1") == 1
    assert hook.open_table("d.t", "fix").branch_name == "fix"
    path = hook.open_table(path=table.store.uri.removeprefix("file://"))
    assert path.to_arrow(["v"]).to_pydict() == {"v": ["a", "b"]}


def test_s3_warehouse(monkeypatch: pytest.MonkeyPatch, s3_endpoint: str) -> None:
    warehouse = f"s3://{make_bucket(s3_endpoint)}/wh"
    extra = {"warehouse": warehouse, "endpoint": s3_endpoint, "region": REGION, "storage_options": '{"use_ssl": false}'}
    set_connection(monkeypatch, "s3_wh", "paimon", login=KEY, password=SECRET, extra=extra)
    hook = PaimonHook("s3_wh")
    options = {"key": KEY, "secret": SECRET, "endpoint_url": s3_endpoint, "region": REGION, "use_ssl": False}
    assert hook.storage_options == options
    assert hook.test_connection()[0] is False  # nothing there yet
    append(make_table_at(warehouse, options), "1")
    assert hook.test_connection() == (True, f"1 database in {warehouse}: d")
    assert hook.get_table("d.t").latest_snapshot_id() == 1
    assert hook.results_folder == f"{warehouse}/_airflow_paimon_results"


def make_table_at(warehouse: str, options: dict[str, Any]) -> Any:
    from airflow_paimon.core.schema.tables import create_table
    from tests.core.tables import COLUMNS

    return create_table(
        warehouse,
        "d.t",
        COLUMNS,
        partition_keys=["dt"],
        primary_keys=["dt", "k"],
        options={"bucket": "2"},
        storage_options=options,
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        pytest.param({"conn_type": "paimon"}, "names no warehouse", id="no warehouse"),
        pytest.param({"conn_type": "s3", "extra": {"warehouse": "/w"}}, "must be 'paimon'", id="another type"),
        pytest.param({"conn_type": "paimon", "extra": {"warehouse": "/w", "warehose": "/x"}}, "warehose", id="unknown"),
        pytest.param({"conn_type": "paimon", "extra": {"warehouse": "/w", "catalog_type": "glue"}}, "glue", id="type"),
        pytest.param(
            {"conn_type": "paimon", "extra": {"warehouse": "/w", "storage_options": "key=1"}}, "JSON", id="options"
        ),
    ],
)
def test_malformed_connections_are_refused(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], says: str) -> None:
    set_connection(monkeypatch, "bad", **fields)
    hook = PaimonHook("bad")
    with pytest.raises(InvalidInputError, match=says):
        hook.get_table("d.t")
    ok, message = hook.test_connection()
    assert not ok
    assert says in message


def test_spark_settings_are_the_operators_before_the_connections(
    monkeypatch: pytest.MonkeyPatch, warehouse: Path
) -> None:
    from airflow.providers.common.compat.sdk import redact

    conf = {"spark.executor.cores": "4", "spark.hadoop.fs.s3a.secret.key": "a-secret-of-spark"}
    extra = {"spark_conn_id": "own", "spark_conf": json.dumps(conf), "spark_options": {"packages": "a:b:1"}}
    set_connection(monkeypatch, "wh", "paimon", extra={"warehouse": str(warehouse), **extra})
    hook = PaimonHook("wh")
    left_out = hook.spark_settings()
    assert left_out == SparkSettings("own", conf, {"packages": "a:b:1"})
    assert hook.spark_settings("None", {}, {}) == left_out, "a template of an empty form field"
    named = hook.spark_settings("mine", {"spark.executor.cores": "8"}, {"driver_memory": "4g"})
    assert named.conn_id == "mine"
    assert named.conf == {**conf, "spark.executor.cores": "8"}
    assert named.options == {"packages": "a:b:1", "driver_memory": "4g"}
    assert redact("it is a-secret-of-spark") == "it is ***"
    assert PaimonHook().spark_settings() == SparkSettings("spark_default", {}, {})


def test_the_addressing_style_and_further_options_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"warehouse": "s3://b/wh", "addressing_style": "path", "storage_options": {"config_kwargs": {"a": 1}}}
    set_connection(monkeypatch, "wh", "paimon", extra=extra)
    assert PaimonHook("wh").storage_options == {"config_kwargs": {"s3": {"addressing_style": "path"}, "a": 1}}


def test_missing_connection() -> None:
    with pytest.raises(InvalidInputError, match="no Airflow connection 'nowhere'"):
        _ = PaimonHook("nowhere").warehouse


def test_a_table_of_a_jdbc_catalog(warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"uri": f"jdbc:sqlite:{tmp_path}/catalog.db", "catalog-key": "production"}
    extra = {"warehouse": str(warehouse), "catalog_type": "jdbc", "catalog_options": json.dumps(options)}
    set_connection(monkeypatch, "jdbc", "paimon", extra=extra)
    hook = PaimonHook("jdbc")
    table = make_table(warehouse)
    append(table, "1")
    assert hook.storage_options == {**options, "metastore": "jdbc"}
    as_in_file = {"warehouse": str(warehouse), "storage_options": hook.storage_options, "catalog_type": "filesystem"}
    set_connection(monkeypatch, "as_in_file", "paimon", extra=as_in_file)
    same = PaimonHook("as_in_file")
    assert (same.catalog_type, same.storage_options) == ("jdbc", hook.storage_options)
    set_connection(monkeypatch, "both", "paimon", extra={**as_in_file, "catalog_type": "hive"})
    with pytest.raises(InvalidInputError, match="it is hive and jdbc"):
        _ = PaimonHook("both").catalog_type
    good, message = hook.test_connection()
    assert not good
    assert "not a Paimon catalog" in message
    hook.get_catalog().register("d", "t", table.schema())
    assert hook.get_table("d.t").latest_snapshot_id() == 1
    assert hook.test_connection() == (True, f"1 database in catalog {options['uri']}, key 'production': d")
    other = hook.get_table("d.other")
    assert hook.keeping_manifests(other).missing().message == other.missing().message
    kept = hook.keeping_manifests(table)
    assert live_columns(kept, kept.latest_snapshot()) == live_columns(table, table.latest_snapshot())


_KEYFILE = {"type": "service_account", "private_key": "a-private-key"}


@pytest.mark.parametrize(
    ("warehouse", "found", "options"),
    [
        (
            "s3://b/wh",
            {"conn_type": "aws", "login": "id", "password": "key-of-aws", "extra": {"region_name": "eu-central-1"}},
            {"key": "id", "secret": "key-of-aws", "region": "eu-central-1"},
        ),
        (
            "s3://b/wh",
            {
                "conn_type": "aws",
                "extra": {
                    "aws_access_key_id": "id", "aws_secret_access_key": "s", "aws_session_token": "t",
                    "endpoint_url": "http://all", "service_config": {"s3": {"endpoint_url": "http://s3"}},
                },
            },
            {"key": "id", "secret": "s", "token": "t", "endpoint_url": "http://s3"},
        ),
        (
            "gs://b/wh",
            {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": json.dumps(_KEYFILE)}},
            {"token": _KEYFILE},
        ),
        (
            "gs://b/wh",
            {"conn_type": "google_cloud_platform", "extra": {"extra__google_cloud_platform__key_path": "/k.json"}},
            {"token": "/k.json"},
        ),
        ("gs://b/wh", {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True}}, {"token": "anon"}),
        ("gs://b/wh", {"conn_type": "google_cloud_platform"}, None),
        (
            "abfss://c@a.dfs.core.windows.net/wh",
            {"conn_type": "wasb", "login": "a", "password": "a2V5"},
            {"account_key": "a2V5"},
        ),
        (
            "abfss://c@a.dfs.core.windows.net/wh",
            {"conn_type": "adls", "login": "app", "password": "pw", "extra": {"tenant_id": "tenant"}},
            {"tenant_id": "tenant", "client_id": "app", "client_secret": "pw"},
        ),
        (
            "abfss://c@a.dfs.core.windows.net/wh",
            {"conn_type": "wasb", "login": "a", "extra": {"sas_token": "https://a.blob/?sv=1&sig=x"}},
            {"sas_token": "sv=1&sig=x"},
        ),
        (
            "oss://b/wh",
            {
                "conn_type": "oss",
                "extra": {"auth_type": "AK", "access_key_id": "id", "access_key_secret": "s", "region": "cn-hangzhou"},
            },
            {"key": "id", "secret": "s", "region": "cn-hangzhou"},
        ),
    ],
)  # fmt: skip
def test_the_keys_of_another_providers_connection(
    monkeypatch: pytest.MonkeyPatch, warehouse: str, found: dict[str, Any], options: dict[str, Any] | None
) -> None:
    from airflow_paimon.core.store import open_store

    set_connection(monkeypatch, "keys", **found)
    set_connection(monkeypatch, "wh", "paimon", extra={"warehouse": warehouse, "storage_conn_id": "keys"})
    assert PaimonHook("wh").storage_options == options
    assert open_store(warehouse, options).uri.startswith(warehouse.partition("@")[0])


def test_what_the_connection_says_itself_wins_over_the_storage_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.common.compat.sdk import redact

    set_connection(monkeypatch, "keys", conn_type="aws", login="id", password="key-of-another-provider")
    extra: dict[str, Any] = {"warehouse": "s3://b/wh", "storage_conn_id": "keys", "region": "eu-1"}
    for name in ("key", "s3.access-key"):  # an option has one of its names
        extra["storage_options"] = {name: "k"}
        set_connection(monkeypatch, "wh", "paimon", extra=extra)
        expected = {name: "k", "secret": "key-of-another-provider", "region": "eu-1"}
        assert PaimonHook("wh").storage_options == expected
    assert redact("it is key-of-another-provider") == "it is ***"


@pytest.mark.parametrize(
    ("warehouse", "found", "says"),
    [
        ("gs://b/wh", {"conn_type": "aws"}, "must be of type 'google_cloud_platform'"),
        ("/wh", {"conn_type": "aws"}, "is not needed"),
        ("s3://b/wh", {"conn_type": "aws", "extra": {"role_arn": "r"}}, "uses role_arn"),
        ("gs://b/wh", {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": "{"}}, "must be a JSON object"),
        ("s3://b/wh", None, "no Airflow connection 'keys', which the field Storage connection"),
    ],
)
def test_a_storage_connection_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, warehouse: str, found: dict[str, Any] | None, says: str
) -> None:
    if found is not None:
        set_connection(monkeypatch, "keys", **found)
    set_connection(monkeypatch, "wh", "paimon", extra={"warehouse": warehouse, "storage_conn_id": "keys"})
    with pytest.raises(InvalidInputError, match=says):
        _ = PaimonHook("wh").storage_options


@pytest.mark.parametrize("warehouse", ["lake", "gs://b/wh"])
def test_keys_that_no_storage_gets_are_refused(monkeypatch: pytest.MonkeyPatch, warehouse: str) -> None:
    """A REST catalog's warehouse is a name: nothing says that its tables are on S3."""
    rest = {"catalog_type": "rest", "catalog_options": {"uri": "http://127.0.0.1:9"}} if warehouse == "lake" else {}
    keys = {"key": "id", "secret": "s", "endpoint_url": "http://s3"}
    extra = {"warehouse": warehouse, **rest}
    set_connection(monkeypatch, "wh", "paimon", login="id", extra={**extra, "secret": "s", "endpoint": "http://s3"})
    with pytest.raises(InvalidInputError, match="key, secret, endpoint_url are read only for a warehouse at s3://"):
        _ = PaimonHook("wh").storage_options
    assert "storage_options" in PaimonHook("wh").test_connection()[1]
    set_connection(monkeypatch, "wh", "paimon", extra={**extra, "storage_options": keys})
    assert keys.items() <= (PaimonHook("wh").storage_options or {}).items()


def test_oss_takes_the_fields_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"warehouse": "oss://b/wh", "endpoint": "oss-cn-hangzhou.aliyuncs.com", "addressing_style": "path"}
    set_connection(monkeypatch, "wh", "paimon", login="id", password="the-secret", extra=extra)
    expected = {"key": "id", "secret": "the-secret", "endpoint_url": "oss-cn-hangzhou.aliyuncs.com"}
    assert PaimonHook("wh").storage_options == expected


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from airflow.providers.common.compat.sdk import redact

    extra = {"warehouse": "s3://b/wh", "token": "session-token-value", "storage_options": {"secret": "option-secret"}}
    set_connection(monkeypatch, "secretive", "paimon", login="access-key-id", password="very-secret", extra=extra)
    caplog.set_level(logging.DEBUG)
    hook = PaimonHook("secretive")
    assert hook.storage_options
    for secret in ("access-key-id", "option-secret", "session-token-value"):
        assert redact(f"it is {secret}!") == "it is ***!"
        assert secret not in caplog.text
        assert secret not in repr(hook.get_catalog())


def test_an_unreachable_warehouse_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"warehouse": "s3://bucket/wh", "endpoint": "http://127.0.0.1:9", "key": "k", "secret": "s"}
    set_connection(monkeypatch, "away", "paimon", extra=extra)
    ok, message = PaimonHook("away").test_connection()
    assert not ok
    assert "127.0.0.1:9" in message or "bucket" in message
