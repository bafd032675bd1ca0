import uuid
from collections.abc import Iterator

import pytest

from airflow_paimon.core.store import open_store
from airflow_paimon.core.store.memory import MemoryStore
from tests.core.store.contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[MemoryStore]:
        store = MemoryStore(f"test-{uuid.uuid4().hex}/warehouse")
        yield store
        store.clear()

    def test_stores_of_one_uri_share_their_content(self, store: MemoryStore) -> None:
        open_store(store.uri).create("db.db/t/x", b"1")
        assert open_store(f"{store.uri}/db.db/").read("t/x") == b"1"
        assert open_store(f"{store.uri}-other").walk("") == []

    def test_clear_forgets_this_root_only(self, store: MemoryStore) -> None:
        store.create("a", b"1")
        store.child("sub").create("b", b"2")
        store.child("sub").clear()
        assert store.walk("") == ["a"]
