"""One in-memory network per test; nothing may have been refused on it at the end."""

from collections.abc import Iterator

import pytest
from fakes import FakeNetwork


@pytest.fixture
def network() -> Iterator[FakeNetwork]:
    network = FakeNetwork()
    yield network
    assert network.errors == []
