"""Requests to S3 that are sent without the client of s3fs: what becomes of them when an answer is not a plain one."""

import base64
import zlib

import pytest

from airflow_paimon.core.errors import AlreadyExistsError, NotFoundError, OutcomeUnknownError, StorageError
from airflow_paimon.core.store import Store, object_client, open_store, s3_client, s3_direct
from airflow_paimon.core.store.http_client import Answer
from airflow_paimon.core.store.s3 import S3Store
from tests.s3_proxy import Proxy
from tests.s3_server import storage_options

KEPT = "a b%3A+ü"


@pytest.fixture
def warm(proxy: Proxy, bucket: str, direct: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that has made each kind of request once, beside an object."""
    monkeypatch.setattr(object_client, "_PAUSE", 0.01)
    s3_client._client_of.cache_clear()
    store = open_store(f"s3://{bucket}/t", storage_options(proxy.endpoint))
    direct.create(KEPT, b"kept")
    store.create("new", b"")
    assert (store.read(KEPT), store.exists(KEPT), len(store.list(""))) == (b"kept", True, 2)
    direct.delete("new")
    proxy.requests.clear()
    proxy.concerns = lambda request: True
    return store


def sent(proxy: Proxy) -> list[str]:
    """The methods of the requests, in small letters of those that were sent directly."""
    plain = [r.method.lower() if "amz-sdk-request" not in r.headers else r.method for r in proxy.requests]
    proxy.requests.clear()
    return plain


def test_plain_answers_are_taken(warm: Store, direct: Store, proxy: Proxy) -> None:
    assert warm.read(KEPT) == b"kept"
    assert [warm.exists(KEPT), warm.exists("none")] == [True, False]
    with pytest.raises(NotFoundError, match="t/none does not exist"):
        warm.read("none")
    assert isinstance(warm, S3Store)
    assert warm.read_range(KEPT, 1, 3) == b"ep"
    warm.create("x", b"1")
    warm.replace("x", b"2")
    assert sent(proxy) == ["get", "head", "head", "get", "get", "put", "put"]
    assert direct.read("x") == b"2"
    with pytest.raises(AlreadyExistsError):
        warm.create(KEPT, b"other")
    assert sent(proxy) == ["put", "GET"], "a refusal is looked at"
    for number in range(5):
        direct.create(f"m/{number}", b"")
    assert [info.name for info in warm.list("")] == [KEPT, "m", "x"]
    assert warm.walk("m") == [f"m/{number}" for number in range(5)]
    assert set(sent(proxy)) == {"get"}


@pytest.mark.parametrize(
    ("plan", "methods"),
    [
        (["apply-reset"], ["put", "PUT", "GET"]),
        (["apply-500"], ["put", "PUT", "GET"]),
        # The first may have landed, so the refusal of the second says nothing.
        (["apply-reset", "403"], ["put", "PUT", "GET"]),
        (["reset", "403"], ["put", "PUT", "GET", "put"]),
        (["409"], ["put", "PUT"]),
        (["403"], ["put", "PUT"]),
        (["302"], ["put", "PUT"]),
    ],
)
@pytest.mark.every(2)
def test_a_create_in_doubt_is_made_once(
    warm: Store, direct: Store, proxy: Proxy, plan: list[str], methods: list[str]
) -> None:
    proxy.plan = plan
    warm.create("snapshot-1", b"ours")
    assert direct.read("snapshot-1") == b"ours"
    assert sent(proxy) == methods


def test_another_writers_object_is_not_ours(warm: Store, direct: Store, proxy: Proxy) -> None:
    proxy.plan = ["foreign-500"]
    with pytest.raises(AlreadyExistsError, match="snapshot-1"):
        warm.create("snapshot-1", b"ours")
    assert direct.read("snapshot-1") == b"another writer's"


def test_a_change_in_doubt_is_unknown_and_a_refused_one_is_not(warm: Store, proxy: Proxy) -> None:
    for lost in ("apply-reset", "apply-500", "reset"):
        proxy.plan = [lost, "403"]
        with pytest.raises(OutcomeUnknownError, match="may have taken effect"):
            warm.replace("LATEST", b"2")
    proxy.plan = ["403", "403"]
    with pytest.raises(StorageError, match="Access denied"):
        warm.replace("LATEST", b"2")


@pytest.mark.parametrize("fault", ["half", "reset", "500", "503"])
@pytest.mark.every(2)
def test_what_is_not_answered_plainly_is_asked_again(warm: Store, proxy: Proxy, fault: str) -> None:
    proxy.plan = [fault]
    assert warm.read(KEPT) == b"kept"
    proxy.plan = [fault]
    assert [info.name for info in warm.list("")] == [KEPT]
    proxy.plan = [fault]
    assert warm.exists(KEPT)


def test_after_some_refusals_in_a_row_nothing_is_sent_directly(warm: Store, proxy: Proxy) -> None:
    for _ in range(s3_direct._MOST_REFUSALS):
        proxy.plan = ["403"]
        assert warm.read(KEPT) == b"kept"
        assert sent(proxy) == ["get", "GET"], "the first one is refused"
    for _ in range(2):
        assert warm.read(KEPT) == b"kept"
    assert sent(proxy) == ["GET", "GET"]


def test_a_range_beyond_the_end_is_no_refusal(warm: Store, proxy: Proxy) -> None:
    assert isinstance(warm, S3Store)
    warm.create("empty", b"")
    proxy.requests.clear()
    for _ in range(s3_direct._MOST_REFUSALS):
        assert (warm.read_range("empty", 0, 5), warm.read_range(KEPT, 4, 9)) == (b"", b"")
    assert warm.read(KEPT) == b"kept"
    assert set(sent(proxy)) == {"get"}


@pytest.mark.parametrize(
    ("extra", "header"),
    [({"Metadata": {"team": "x"}}, "x-amz-meta-team"), ({"ChecksumAlgorithm": "SHA256"}, "x-amz-checksum-sha256")],
    ids=["metadata", "checksum"],
)
def test_what_is_asked_of_each_put_is_of_each_put(
    warm: Store, bucket: str, proxy: Proxy, extra: dict[str, object], header: str
) -> None:
    store = open_store(f"s3://{bucket}/t", {**storage_options(proxy.endpoint), "s3_additional_kwargs": extra})
    for number in range(3):
        store.replace("x", b"%d" % number)
    assert [header in r.headers for r in proxy.requests] == [True] * 3


def test_the_signer_is_asked_for_again(warm: Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that expire are other ones after some time: s3fs's client has them."""
    assert isinstance(warm, S3Store)
    signer = warm._client._direct._kinds["GetObject", warm._bucket].signer
    warm.read(KEPT)
    monkeypatch.setattr(signer._credentials, "access_key", "rotated")
    warm.read(KEPT)
    monkeypatch.setattr(s3_direct, "_SIGNER_S", 0)
    warm.read(KEPT)
    used = [r.headers["authorization"].partition("Credential=")[2].partition("/")[0] for r in proxy.requests]
    assert [used[0] == used[1], used[2]] == [True, "rotated"]


def test_a_body_must_be_what_its_headers_say() -> None:
    crc = base64.b64encode(zlib.crc32(b"1234").to_bytes(4, "big")).decode()
    for headers, whole in [
        ({}, True),
        ({"Content-Length": "4"}, True),
        ({"Content-Length": "5"}, False),
        ({"x-amz-checksum-crc32": crc}, True),
        ({"x-amz-checksum-crc32": crc[::-1]}, False),
        ({"x-amz-checksum-sha256": "AAAA"}, False),
        ({"x-amz-checksum-sha1": "of-parts-3"}, True),
    ]:
        assert s3_direct._is_whole(Answer(200, headers, b"1234")) is whole
