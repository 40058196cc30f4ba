"""Each attack comes to an end and counts what came of it; bad outcomes are faults."""

from urllib.parse import urlsplit

import pytest

from tests.unit.fuzz.faulty_endpoint import FaultyEndpoint
from tools.attack.attacks import ATTACKS, Target


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - {"slow_clients", "kept_connections"}))
async def test_an_attack(name: str) -> None:
    with FaultyEndpoint(lambda _: None).in_thread() as endpoint:
        port = urlsplit(endpoint.url).port
        target = Target("127.0.0.1", port, (port,), scale=0.01)
        await ATTACKS[name](target)
    assert target.outcomes
    expected = {"400", "left"} if name != "strangers" else {"sent"}
    assert set(target.outcomes) <= expected
