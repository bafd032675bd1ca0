"""The S3 store: puts whose answer got lost, races, requests per call, what other engines leave."""

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.catalogs.table_store import CatalogTableStore
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    OutcomeUnknownError,
    StorageError,
    UnsupportedStorageError,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.store import Store, object_store, open_store, put_probe
from airflow_paimon.core.store.s3 import S3Store
from tests.core.store.contract import SharedStoreContract
from tests.core.store.faults import PutFaultsContract, assert_no_page_is_left_out
from tests.s3_proxy import Proxy
from tests.s3_server import make_bucket, storage_options
from tests.stores import delete_tree


class TestS3Store(SharedStoreContract):
    keys = 10

    @pytest.fixture
    def store(self, s3_endpoint: str) -> Store:
        return open_store(f"s3a://{make_bucket(s3_endpoint)}/ware house%3A", storage_options(s3_endpoint))


# What becomes of a put whose answer gets lost


class TestFaults(PutFaultsContract):
    look = "GET"


@pytest.mark.parametrize(("fault", "methods"), [("apply-500", ["PUT", "GET"]), ("apply-reset", ["PUT", "PUT", "GET"])])
def test_a_create_whose_response_was_lost_is_found(
    store: Store, direct: Store, proxy: Proxy, fault: str, methods: list[str]
) -> None:
    """After a reset aiohttp puts a second time without telling, and that is refused because of the first."""
    proxy.plan = [fault]
    store.create("snapshot-1", b"ours")
    assert direct.read("snapshot-1") == b"ours"
    assert [r.method for r in proxy.requests] == methods


def test_the_clients_own_retry_is_not_a_lost_race(proxy: Proxy, bucket: str, direct: Store) -> None:
    """The first put lands, its answer says 500, botocore puts again: that one is refused because of the first."""
    store = open_store(f"s3://{bucket}/t", storage_options(proxy.endpoint))
    store.create("warm", b"")
    proxy.requests.clear()
    proxy.plan = ["apply-500"]
    store.create("snapshot-1", b"ours")
    assert direct.read("snapshot-1") == b"ours"
    assert [r.method for r in proxy.requests] == ["PUT", "PUT", "GET"]


def test_another_writers_object_is_not_ours(store: Store, direct: Store, proxy: Proxy) -> None:
    proxy.plan = ["foreign-500"]
    with pytest.raises(AlreadyExistsError, match="snapshot-1"):
        store.create("snapshot-1", b"ours")
    assert direct.read("snapshot-1") == b"another writer's"


def test_equal_bytes_without_a_mark_are_ours_when_the_answer_got_lost(store: Store, proxy: Proxy) -> None:
    """A storage may drop an object's metadata; what was to be written is there, so it is written."""
    proxy.plan = ["foreign-500"]
    store.create("snapshot-1", b"another writer's")


@pytest.mark.parametrize(("fault", "puts"), [("reset", 2), ("500", 1), ("503", 1)])
def test_a_create_that_is_not_there_is_put_again_after_a_look(
    store: Store, direct: Store, proxy: Proxy, fault: str, puts: int
) -> None:
    proxy.plan = [fault] * puts
    store.create("snapshot-1", b"ours")
    assert direct.read("snapshot-1") == b"ours"
    assert [r.method for r in proxy.requests] == ["PUT"] * puts + ["GET", "PUT"]


@pytest.mark.parametrize("fault", ["reset", "500", "409"])
def test_a_create_that_never_lands_is_unknown(store: Store, direct: Store, proxy: Proxy, fault: str) -> None:
    """Absent now says nothing: a put may still be on its way."""
    proxy.always = fault
    with pytest.raises(OutcomeUnknownError, match=r"snapshot-1.*may still appear"):
        store.create("snapshot-1", b"ours")
    assert not direct.exists("snapshot-1")


def test_refused_create_did_nothing(store: Store, direct: Store, proxy: Proxy) -> None:
    proxy.plan = ["403"]
    with pytest.raises(
        StorageError, match=r"Access denied for creating s3://.*snapshot-1 \(AccessDenied: As planned\)"
    ):
        store.create("snapshot-1", b"ours")
    assert direct.walk("") == []


def test_conflicting_request_under_way_is_tried_again(store: Store, direct: Store, proxy: Proxy) -> None:
    proxy.plan = ["409", "409"]
    store.create("snapshot-1", b"ours")
    assert direct.read("snapshot-1") == b"ours"
    direct.create("snapshot-2", b"theirs")
    proxy.plan = ["409"]
    with pytest.raises(AlreadyExistsError):
        store.create("snapshot-2", b"ours")


def test_other_mutations_that_may_have_taken_effect_are_unknown(store: Store, direct: Store, proxy: Proxy) -> None:
    proxy.concerns = lambda request: request.method in ("PUT", "DELETE", "POST")
    calls: list[Callable[[], Any]] = [
        lambda: store.replace("LATEST", b"2"),
        lambda: store.delete("a/x"),
    ]
    for call in calls:
        for fault, attempts in (("apply-500", 1), ("reset", 2)):
            direct.replace("a/x", b"1")
            proxy.plan = [fault] * attempts
            with pytest.raises(OutcomeUnknownError, match="may have taken effect"):
                call()
        proxy.plan = ["403"]
        direct.replace("a/x", b"1")
        with pytest.raises(StorageError, match="Access denied"):
            call()


# Storages that don't keep the promise


@pytest.mark.parametrize("fault", ["unconditional", "501"])
def test_storage_without_conditional_put_is_refused(proxy: Proxy, s3_endpoint: str, fault: str) -> None:
    proxy.always = fault
    bucket = make_bucket(s3_endpoint, is_known=False)
    direct = open_store(f"s3://{bucket}/t", storage_options(s3_endpoint))
    direct.create("snapshot-1", b"theirs")
    store = open_store(f"s3://{bucket}/t", storage_options(proxy.endpoint))
    for _ in range(2):
        with pytest.raises(UnsupportedStorageError, match="If-None-Match"):
            store.create("snapshot-1", b"ours")
    assert direct.walk("") == ["snapshot-1"]
    assert direct.read("snapshot-1") == b"theirs"


def test_a_storage_that_looks_and_then_puts_is_refused(proxy: Proxy, s3_endpoint: str) -> None:
    """It refuses the second of two puts one after the other, but not of two at once."""
    proxy.always = "check-then-put"
    bucket = make_bucket(s3_endpoint, is_known=False)
    store = open_store(f"s3://{bucket}/t", storage_options(proxy.endpoint))
    for _ in range(2):
        with pytest.raises(UnsupportedStorageError, match=r"s3://.*/t lets several puts with If-None-Match succeed"):
            store.create("snapshot-1", b"ours")
    assert open_store(f"s3://{bucket}", storage_options(s3_endpoint)).walk("") == []


def test_no_lock_of_a_catalog_is_held_while_a_storage_is_probed(proxy: Proxy, s3_endpoint: str) -> None:
    """It takes seconds, and a lock that is held long is lost."""
    during: list[int] = []

    class Watching:
        @contextmanager
        def hold(self, object_name: str) -> Iterator[None]:
            before = len(proxy.requests)
            yield
            during.append(len(proxy.requests) - before)

        def check(self, schema: TableSchema) -> None: ...

        def schema_changed(self, schema: TableSchema) -> None: ...

        def lag(self, schema: TableSchema) -> list[str]:
            return []

    bucket = make_bucket(s3_endpoint, is_known=False)
    store = CatalogTableStore(open_store(f"s3://{bucket}/t", storage_options(proxy.endpoint)), "t", Watching())
    store.create("snapshot/snapshot-1", b"{}")
    assert during == [1]
    assert len(proxy.requests) > put_probe._ROUNDS


@pytest.mark.parametrize("fault", ["apply-500", "reset", "409"])
@pytest.mark.every(3, first=2)
def test_an_answer_lost_while_probing_is_no_fault(proxy: Proxy, s3_endpoint: str, fault: str) -> None:
    proxy.plan = [fault] * 2
    bucket = make_bucket(s3_endpoint, is_known=False)
    open_store(f"s3://{bucket}/t", storage_options(proxy.endpoint)).create("snapshot-1", b"ours")
    assert open_store(f"s3://{bucket}/t", storage_options(s3_endpoint)).read("snapshot-1") == b"ours"


@pytest.mark.parametrize("refused", ["", "/_airflow_paimon/"])
@pytest.mark.every(2, first=1)
def test_storage_is_probed_once(proxy: Proxy, s3_endpoint: str, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process finds the answer at the root of the bucket, or below its own root where that one is closed."""
    monkeypatch.setattr(put_probe, "_ROUNDS", 1)
    bucket = make_bucket(s3_endpoint, is_known=False)
    if refused:
        proxy.concerns, proxy.always = (lambda request: request.path.startswith(f"/{bucket}{refused}")), "403"
    store = open_store(f"s3://{bucket}/t", storage_options(proxy.endpoint))
    store.create("db/a", b"1")
    assert sum(r.is_create for r in proxy.requests) == put_probe._ROUNDS * (put_probe._WRITERS + 1) + 1
    whole = open_store(f"s3://{bucket}", storage_options(s3_endpoint))
    answer, written = sorted(whole.walk(""))
    assert answer.startswith("t/_airflow_paimon/probe-" if refused else "_airflow_paimon/probe-")
    assert written == "t/db/a"
    proxy.requests.clear()
    store.create("b", b"2")
    pickle.loads(pickle.dumps(store)).create("c", b"3")
    assert [r.method for r in proxy.requests] == ["PUT", "PUT"]
    for change in ({}, {"checked": 0}, {"server": "another"}, {"endpoint": "another"}):
        proxy.requests.clear()
        object_store._client_of.cache_clear()
        whole.replace(answer, json.dumps({**json.loads(whole.read(answer)), **change}).encode())
        store.create(f"d{change}", b"4")
        assert (len([r for r in proxy.requests if r.is_create]) == 1) is (not change)


# Requests


def test_create_is_one_put_whatever_the_size(store: Store, proxy: Proxy) -> None:
    """In several parts the condition would count at the end only, and a failure would leave parts behind."""
    store.create("large", bytes(24 * 2**20))
    (request,) = proxy.requests
    assert request.is_create
    assert request.path.endswith("/t/large")


def test_no_call_costs_more_requests_than_it_needs(store: Store, proxy: Proxy) -> None:
    store.create("m/1", b"1")
    expected: list[tuple[Callable[[], Any], list[str]]] = [
        (lambda: store.read("m/1"), ["GET"]),
        (lambda: store.read_many(["m/1", "m/1"]), ["GET", "GET"]),
        (lambda: store.exists("m/1"), ["HEAD"]),
        (lambda: store.exists("m/2"), ["HEAD"]),
        (lambda: store.list("m"), ["GET"]),
        (lambda: store.list("nothing"), ["GET"]),
        (lambda: store.names("m"), ["GET"]),
        (lambda: store.walk("m"), ["GET"]),
        (lambda: store.replace("LATEST", b"1"), ["PUT"]),
        (lambda: store.delete("m/2"), ["DELETE"]),
        (lambda: store.delete_empty("nothing"), ["GET", "GET"]),
    ]
    for call, methods in expected:
        proxy.requests.clear()
        call()
        assert [r.method for r in proxy.requests] == methods


def test_parquet_is_read_by_ranges(store: Store, proxy: Proxy) -> None:
    table = pa.table({f"c{i}": pa.array(range(i, 300_000 + i)) for i in range(6)})
    with store.open_output("data.parquet") as stream:
        pq.write_table(table, stream, compression="none", use_dictionary=False)
    proxy.requests.clear()
    with store.open_input("data.parquet") as source:
        assert pq.read_table(source, columns=["c1"])["c1"].to_pylist()[:2] == [1, 2]
    assert len(proxy.requests) == 2  # the footer and one column chunk
    assert all(request.headers["range"].startswith("bytes=") for request in proxy.requests)


@pytest.mark.parametrize("fault", ["503", "half"])
def test_no_page_of_a_listing_is_left_out(store: Store, direct: Store, proxy: Proxy, fault: str) -> None:
    proxy.concerns = lambda request: request.is_listing
    assert_no_page_is_left_out(store, direct, proxy, fault, tries=1)


def test_body_that_breaks_off_is_read_again(store: Store, direct: Store, proxy: Proxy) -> None:
    direct.create("m", b"manifest" * 1000)
    proxy.concerns = lambda request: request.method == "GET"
    proxy.plan = ["half", "half"]
    assert store.read("m") == b"manifest" * 1000
    proxy.always = "half"
    with pytest.raises(StorageError, match="m failed"):
        store.read("m")


def test_object_that_shrinks_under_a_reader_is_an_error(store: Store, direct: Store) -> None:
    direct.create("data", bytes(1_000_000))
    with store.open_input("data") as source:
        direct.replace("data", b"short")
        with pytest.raises(StorageError, match="data"):
            source.read(400_000)


def test_folder_marks_of_other_engines(direct: Store, s3_endpoint: str) -> None:
    import boto3

    bucket = direct.uri.split("/")[2]
    client = boto3.client("s3", endpoint_url=s3_endpoint, aws_access_key_id="x", aws_secret_access_key="x")
    for key in ("t/", "t/db/", "t/db/empty/", "t/db/x"):
        client.put_object(Bucket=bucket, Key=key, Body=b"")
    client.close()
    assert [(i.name, i.is_dir) for i in direct.list("")] == [("db", True)]
    assert [(i.name, i.is_dir) for i in direct.list("db")] == [("empty", True), ("x", False)]
    assert direct.names("db") == ["x"]
    assert direct.walk("") == ["db/x"]
    delete_tree(direct, "db")
    assert direct.list("") == []


def test_whole_bucket_as_root(s3_endpoint: str, bucket: str) -> None:
    store = open_store(f"s3://{bucket}", storage_options(s3_endpoint))
    store.create("a/x", b"1")
    assert store.uri == f"s3://{bucket}"
    assert [path for path in store.walk("") if not path.startswith("_airflow_paimon/")] == ["a/x"]
    assert store.child("a").walk("") == ["x"]


# Failures and secrets


def test_store_is_one_of_ours(direct: Store) -> None:
    assert isinstance(direct, S3Store)
