"""What a store over HTTP must do when requests fail: a backend subclasses it, with a store behind a proxy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from airflow_paimon.core.errors import AlreadyExistsError, OutcomeUnknownError, StorageError
from airflow_paimon.core.metadata_expiry.storage_clock import storage_now
from airflow_paimon.core.store import Store, base, object_store
from airflow_paimon.core.table.table import Table
from tests.s3_proxy import Proxy, Request

_HOUR_MS = 3_600_000


def assert_ages_count_by_the_servers_clock(store: Store, proxy: Proxy) -> None:
    """However wrong it goes: what is deleted by its age must have been there so long."""
    for hours in (-2, 2):
        proxy.clock_hours = hours
        store.replace("written", b"1")
        (written,) = (info.modified_ms for info in store.list("") if info.name == "written")
        assert written is not None
        assert round((written - time.time() * 1000) / _HOUR_MS) == hours
        assert abs(storage_now(Table(store, "d.t")) - written) < _HOUR_MS


def assert_no_page_is_left_out(store: Store, direct: Store, proxy: Proxy, fault: str, tries: int) -> None:
    """A listing whose second page fails is asked for again, and in the end an error: it is never a short one.

    ``proxy`` concerns itself with listings, which have several pages here.
    """
    paths = [f"m/{number}" for number in range(10)]
    for path in paths:
        direct.create(path, b"")
    calls: list[Callable[[], Any]] = [
        lambda: store.walk("m"),
        lambda: sorted(f"m/{name}" for name in store.names("m")),
        lambda: [f"m/{info.name}" for info in store.list("m")],
    ]
    for call in calls:
        for failing in range(tries):
            proxy.plan = ["", *[fault] * failing]
            assert call() == paths
            assert not proxy.plan
    for call in calls:
        proxy.plan = ["", *[fault] * tries]
        with pytest.raises(StorageError, match="m failed"):
            call()
    assert direct.walk("m") == paths


class PutFaultsContract:
    """What holds however often a client itself tries. Tests with the fixtures ``store``, ``direct`` (the same objects)
    and ``proxy``, which concerns itself with puts."""

    look: str
    """The method of looking whose object it is."""

    conditions: ClassVar[bool] = True
    """Whether the server's deletions take a condition."""

    replaces_versions: ClassVar[bool] = True
    """Whether its puts take one, beside that there is no object."""

    def test_another_object_that_comes_between_the_look_and_the_deletion_stays(
        self, store: Store, direct: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the storage can say so; elsewhere nobody is told that all went well if there was time for it."""
        store.delete_same("warm", b"")  # finds out what the server does
        direct.create("tag/tag-x", b"1")
        client = type(store._client)  # type: ignore[attr-defined]
        look = "get_version" if self.conditions else "delete"
        known = getattr(client, look)

        def stalls(self: Any, bucket: str, key: str) -> Any:
            found = known(self, bucket, key) if look == "get_version" else None
            direct.replace("tag/tag-x", b"2")
            return found if look == "get_version" else known(self, bucket, key)

        monkeypatch.setattr(client, look, stalls)
        if self.conditions:
            assert store.delete_same("tag/tag-x", b"1") is False
            assert direct.read("tag/tag-x") == b"2"
            monkeypatch.setattr(client, look, lambda *key: (known(*key), direct.delete("tag/tag-x"))[0])
            assert store.delete_same("tag/tag-x", b"2") is None, "another one has deleted it"
            return
        monkeypatch.setattr(base, "LOOK_S", 0.0)
        with pytest.raises(OutcomeUnknownError, match="tag/tag-x was deleted"):
            store.delete_same("tag/tag-x", b"1")

    def test_another_object_that_comes_between_the_look_and_the_replacement_stays(
        self, store: Store, direct: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.replace_same("warm", b"", b"")  # finds out what the server does
        direct.create("tag/tag-x", b"1")
        client = type(store._client)  # type: ignore[attr-defined]
        look = client.get_version if self.replaces_versions else base.read_if_exists
        acts = [b"theirs"]

        def stalls(*where: Any) -> Any:
            found = look(*where)
            if acts:
                direct.replace("tag/tag-x", acts.pop())
            return found

        if self.replaces_versions:
            monkeypatch.setattr(client, "get_version", stalls)
            assert store.replace_same("tag/tag-x", b"ours", b"1") is False
            assert direct.read("tag/tag-x") == b"theirs"
            return
        monkeypatch.setattr(base, "read_if_exists", stalls)
        monkeypatch.setattr(base, "LOOK_S", 0.0)
        with pytest.raises(OutcomeUnknownError, match="tag/tag-x was replaced"):
            store.replace_same("tag/tag-x", b"ours", b"1")

    def test_a_replacement_whose_answer_is_lost_is_found(self, store: Store, direct: Store, proxy: Proxy) -> None:
        if not self.replaces_versions:
            return  # nothing tells whose it is
        store.replace_same("warm", b"", b"")
        direct.create("tag/tag-x", b"1")
        proxy.plan = ["apply-reset"]
        assert store.replace_same("tag/tag-x", b"2", b"1") is True
        assert direct.read("tag/tag-x") == b"2"

    def test_equal_bytes_of_another_call_are_not_ours(self, store: Store, direct: Store, proxy: Proxy) -> None:
        direct.create("schema-1", b"{}")
        proxy.plan = ["apply-reset"]
        with pytest.raises(AlreadyExistsError, match="schema-1"):
            store.create("schema-1", b"{}")

    @pytest.mark.parametrize(("fault", "landed"), [("apply-down", True), ("down", False)])
    def test_storage_that_goes_away_during_a_create(
        self, store: Store, direct: Store, proxy: Proxy, fault: str, landed: bool
    ) -> None:
        proxy.plan = [fault]
        with pytest.raises(OutcomeUnknownError, match="snapshot-1"):
            store.create("snapshot-1", b"ours")
        assert direct.exists("snapshot-1") is landed

    def test_lost_race_that_cannot_be_looked_at_is_unknown(self, store: Store, direct: Store, proxy: Proxy) -> None:
        direct.create("snapshot-1", b"theirs")
        proxy.concerns, proxy.always = (lambda request: request.method == self.look), "403"
        with pytest.raises(OutcomeUnknownError, match="snapshot-1"):
            store.create("snapshot-1", b"ours")

    def test_ages_count_by_the_servers_clock(self, store: Store, proxy: Proxy) -> None:
        assert_ages_count_by_the_servers_clock(store, proxy)


class FaultsContract(PutFaultsContract):
    """With a ``store`` that tries everything twice."""

    put: str
    """The method of a put."""
    listing: str
    """What stands in the address of a listing."""
    page: ClassVar[tuple[Any, str]]
    """Where a client keeps how many entries it wants in a page."""

    @pytest.mark.parametrize("fault", ["apply-500", "apply-reset", "apply-503"])
    def test_a_create_whose_answer_was_lost_is_found(
        self, store: Store, direct: Store, proxy: Proxy, fault: str
    ) -> None:
        proxy.plan = [fault]
        store.create("snapshot-1", b"ours")
        assert direct.read("snapshot-1") == b"ours"
        assert [r.method for r in proxy.requests] == [self.put, self.look], "looked at, not put again"

    @pytest.mark.parametrize("fault", ["reset", "500", "503", "429"])
    def test_a_create_that_is_not_there_is_put_again_after_a_look(
        self, store: Store, direct: Store, proxy: Proxy, fault: str
    ) -> None:
        proxy.plan = [fault]
        store.create("snapshot-1", b"ours")
        assert direct.read("snapshot-1") == b"ours"
        assert [r.method for r in proxy.requests] == [self.put, self.look, self.put]

    def test_another_writer_between_two_tries_wins(self, store: Store, direct: Store, proxy: Proxy) -> None:
        is_create = proxy.concerns

        def overtaken(request: Request) -> bool:
            if is_create(request):
                direct.create("snapshot-1", b"theirs")
            return is_create(request)

        proxy.concerns, proxy.plan = overtaken, ["500"]
        with pytest.raises(AlreadyExistsError, match="snapshot-1"):
            store.create("snapshot-1", b"ours")
        assert direct.read("snapshot-1") == b"theirs"

    @pytest.mark.parametrize("fault", ["reset", "500", "429"])
    def test_a_create_that_never_lands_is_unknown(self, store: Store, direct: Store, proxy: Proxy, fault: str) -> None:
        """Absent now says nothing: a put may still be on its way."""
        proxy.always = fault
        with pytest.raises(OutcomeUnknownError, match=r"snapshot-1.*may still appear"):
            store.create("snapshot-1", b"ours")
        assert not direct.exists("snapshot-1")
        assert [r.method for r in proxy.requests] == [self.put, self.look] * object_store._CREATE_TRIES

    def test_an_answer_of_somebody_between_is_no_success(self, store: Store, direct: Store, proxy: Proxy) -> None:
        proxy.concerns, proxy.always = (lambda request: True), "302"
        calls: list[Callable[[], Any]] = [
            lambda: store.create("snapshot-1", b"ours"),
            lambda: store.replace("LATEST", b"2"),
            lambda: store.read("LATEST"),
            lambda: store.list(""),
            lambda: store.delete("LATEST"),
        ]
        for call in calls:
            with pytest.raises(StorageError, match="302"):
                call()
        assert direct.walk("") == []

    def test_refused_create_did_nothing(self, store: Store, direct: Store, proxy: Proxy) -> None:
        proxy.plan = ["403"]
        with pytest.raises(StorageError, match=r"Access denied for creating .*snapshot-1 \(403 .*storage options"):
            store.create("snapshot-1", b"ours")
        assert direct.walk("") == []
        assert len(proxy.requests) == 1

    def test_other_mutations_that_may_have_taken_effect_are_unknown(
        self, store: Store, direct: Store, proxy: Proxy
    ) -> None:
        proxy.concerns = lambda request: request.method not in ("GET", "HEAD")
        calls: list[Callable[[], Any]] = [
            lambda: store.replace("LATEST", b"2"),
            lambda: store.delete("a/x"),
        ]
        for call in calls:
            for fault in ("500", "reset"):
                direct.replace("a/x", b"1")
                proxy.plan = [fault] * 2
                with pytest.raises(OutcomeUnknownError, match="may have taken effect"):
                    call()
                proxy.plan = [fault]
                call()  # the second try gets through
            proxy.plan = ["403"]
            direct.replace("a/x", b"1")
            with pytest.raises(StorageError, match="Access denied"):
                call()

    def test_reads_are_tried_again(self, store: Store, direct: Store, proxy: Proxy) -> None:
        direct.create("m/1", b"manifest" * 1000)
        proxy.concerns = lambda request: True
        calls: list[Callable[[], Any]] = [
            lambda: store.read("m/1"),
            lambda: store.list("m"),
            lambda: store.exists("m/1"),
            lambda: store.open_input("m/1").read(),
        ]
        for call in calls:
            for fault in ("503", "429", "reset", "half"):
                proxy.plan = [fault]
                assert call()
            proxy.plan = ["503"] * 2
            with pytest.raises(StorageError, match=r".*m.*503"):
                call()

    @pytest.mark.parametrize("fault", ["503", "half"])
    def test_no_page_of_a_listing_is_left_out(
        self, store: Store, direct: Store, proxy: Proxy, fault: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(*self.page, 4)
        proxy.concerns = lambda request: request.method == "GET" and self.listing in request.path
        assert_no_page_is_left_out(store, direct, proxy, fault, tries=2)
