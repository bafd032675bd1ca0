from collections.abc import Iterator

import pytest

from tests.s3_server import s3_server


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server(page_size=4) as endpoint:  # so that every listing has several pages
        yield endpoint
