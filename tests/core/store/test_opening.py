import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedStorageError
from airflow_paimon.core.store import StoreSpec, open_store
from airflow_paimon.core.store.azure import AzureStore
from airflow_paimon.core.store.fsspec_store import FsspecStore
from airflow_paimon.core.store.gcs import GcsStore
from airflow_paimon.core.store.hdfs import HdfsStore
from airflow_paimon.core.store.local import LocalStore
from airflow_paimon.core.store.memory import MemoryStore
from airflow_paimon.core.store.opening import merged_options
from airflow_paimon.core.store.s3 import S3Store

OPTIONS = {"key": "access-key-id", "secret": "very-secret", "client_kwargs": {"region_name": "eu-west-1"}}


@pytest.mark.parametrize(
    ("uri", "opened", "canonical"),
    [
        ("/w/db.db/t", LocalStore, "file:///w/db.db/t"),
        ("/w/dt=12%3A00/", LocalStore, "file:///w/dt=12%3A00"),
        (Path("/w"), LocalStore, "file:///w"),
        ("file:///w/a b%20", LocalStore, "file:///w/a b%20"),
        ("file:/w", LocalStore, "file:///w"),
        ("file://localhost/w", LocalStore, "file:///w"),
        ("FILE:///w", LocalStore, "file:///w"),
        ("s3://bucket/w/%3A/", S3Store, "s3://bucket/w/%3A"),
        ("s3a://bucket", S3Store, "s3://bucket"),
        ("S3A://bucket/x", S3Store, "s3://bucket/x"),
        ("gs://bucket/w/%3A/", GcsStore, "gs://bucket/w/%3A"),
        ("GCS://bucket", GcsStore, "gs://bucket"),
        ("hdfs://name-node:8020/w/%3A/", HdfsStore, "hdfs://name-node:8020/w/%3A"),
        ("hdfs:///w", HdfsStore, "hdfs:///w"),
        ("ABFSS://c@lake.dfs.core.windows.net/w/%3A/", AzureStore, "abfss://c@lake.dfs.core.windows.net/w/%3A"),
        ("VIEWFS://lake", HdfsStore, "viewfs://lake"),
        ("memory://x/y/", MemoryStore, "memory://x/y"),
        ("memory:///x", MemoryStore, "memory://x"),
        ("https://host/w/", FsspecStore, "https://host/w"),
    ],
)
def test_who_serves_what(uri: str | Path, opened: type, canonical: str) -> None:
    store = open_store(uri)
    assert type(store) is opened
    assert store.uri == canonical
    assert type(open_store(store.uri)) is opened
    assert open_store(store.uri).uri == canonical


@pytest.mark.parametrize(
    ("uri", "one", "other"),
    [
        ("s3://b/t", "key", "s3.access-key"),
        ("s3a://b/t", "s3.access-key", "fs.s3a.access.key"),
        ("gs://b/t", "token", "fs.gs.auth.service.account.json.keyfile"),
        ("abfss://c@lake/t", "sas_token", "fs.azure.sas.fixed.token.lake.dfs.core.windows.net"),
        ("abfss://c@lake/t", "fs.azure.sas.fixed.token", "fs.azure.sas.c.lake.blob.core.windows.net"),
        ("oss://b/t", "fs.oss.accessKeyId", "fs.oss.accesskeyid"),
    ],
)
def test_two_names_of_an_option_have_one_value(uri: str, one: str, other: str) -> None:
    more = {"secret": "s", "region": "cn-hangzhou"} if uri.startswith("oss") else {}
    open_store(uri, {one: "a", other: "a", **more})
    open_store(uri, {one: "a", other: None, **more})
    with pytest.raises(InvalidInputError, match=f"{one} and {other} of .* are two names of one option") as refused:
        open_store(uri, {one: "very-secret", other: "as-secret", **more})
    assert "secret" not in str(refused.value)
    assert merged_options(uri, {one: "a", **more}, {other: "b"}) == {**more, other: "b"}


def test_a_way_to_log_in_takes_no_key_away() -> None:
    keys = {"token": "/k.json"}
    for login, left in (("APPLICATION_DEFAULT", keys), ("UNAUTHENTICATED", {})):
        assert merged_options("gs://b/t", keys, {"fs.gs.auth.type": login}) == {**left, "fs.gs.auth.type": login}


def test_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("warehouse").uri == f"file://{tmp_path}/warehouse"
    assert open_store(".").uri == f"file://{tmp_path}"
    assert open_store("a:b").uri == f"file://{tmp_path}/a:b"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "needs a path"),
        ("file://host/w", "names the host 'host'"),
        ("file://", "local folder is file:///"),
        ("s3:/bucket/w", "two slashes"),
        ("s3://", "bucket"),
        ("s3:///w", "bucket"),
        ("s3://bucket/a/../b", "without empty"),
        ("s3://bucket/a//b", "without empty"),
        ("gs:///w", "bucket"),
        ("gs://very-secret@bucket/w", "must not contain credentials"),
        ("memory://a/./b", "without empty"),
        ("s3://access-key:very-secret@bucket/w", "must not contain credentials"),
        ("s3://access-key@bucket/w", "must not contain credentials"),
        ("sftp://user:very-secret@host/w", "must not contain credentials"),
        ("https://host/w?signature=very-secret", "must not contain credentials"),
    ],
)
def test_malformed_uris(uri: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        open_store(uri)
    assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize("uri", ["nothing://x", "simplecache::s3://bucket/x", "x+y://a"])
def test_unknown_schemes(uri: str) -> None:
    with pytest.raises(UnsupportedStorageError, match=r"No storage is known for .*use a path, file://, s3://"):
        open_store(uri)


def test_options_of_object_stores_mean_nothing_to_a_folder(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    store.create("x", b"1")
    assert b"very-secret" not in pickle.dumps(store)


def test_spec_is_a_value() -> None:
    spec = StoreSpec("s3://bucket/w", OPTIONS)
    assert spec == StoreSpec("s3://bucket/w", dict(OPTIONS))
    assert hash(spec) == hash(StoreSpec("s3://bucket/w", dict(OPTIONS)))
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.open().uri == "s3://bucket/w"
    assert StoreSpec("/w").open().uri == "file:///w"
    with pytest.raises(AttributeError):
        spec.uri = "x"  # type: ignore[misc]


def test_spec_shows_names_of_options_only() -> None:
    spec = StoreSpec("s3://bucket/w", OPTIONS)
    assert repr(spec) == str(spec) == "StoreSpec('s3://bucket/w', options=['client_kwargs', 'key', 'secret'])"
    with pytest.raises(InvalidInputError) as caught:
        StoreSpec("s3://k:very-secret@bucket/w")
    assert "very-secret" not in str(caught.value)


def test_root_is_literal_on_disk(tmp_path: Path) -> None:
    (tmp_path / "a%3Ab").mkdir()
    (tmp_path / "a%3Ab/x").write_bytes(b"1")
    assert open_store(f"file://{tmp_path}/a%3Ab").read("x") == b"1"
    with pytest.raises(NotFoundError):
        open_store(f"file://{tmp_path}/a:b").read("x")


def test_opening_a_folder_loads_neither_fsspec_nor_pyarrow() -> None:
    code = """
import sys
from airflow_paimon.core.store import open_store
open_store("/tmp").read_many([])
heavy = ("fsspec", "s3fs", "requests", "google.auth", "azure.identity", "hdfs_native", "pyarrow", "airflow", "pyspark")
print([name for name in heavy if name in sys.modules])
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.strip() == "[]"
