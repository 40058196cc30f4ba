from collections.abc import AsyncIterator

import pytest

from tests.unit.control.control_bed import Bed, bed_of
from tests.unit.control.control_support import AUTHORIZED, Both, listening


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    async with bed_of() as found:
        yield found


@pytest.fixture
async def both() -> AsyncIterator[Both]:
    """A listener and a client that has its token."""
    async with listening() as (listener, client):
        client.headers.update(AUTHORIZED)
        yield listener, client
