"""Each attack comes to an end and counts what came of it; bad outcomes are faults."""

from urllib.parse import urlsplit

import pytest

from tests.unit.fuzz.faulty_endpoint import FaultyEndpoint, error
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


async def test_connections_closed_without_an_answer_are_counted() -> None:
    for planted, expected in ((b"HTTP", "closed without an answer"), (error(500), "500")):
        with FaultyEndpoint(lambda _, planted=planted: planted).in_thread() as endpoint:
            target = Target("127.0.0.1", urlsplit(endpoint.url).port, scale=0.005)
            await ATTACKS["kept_connections"](target)
        assert target.outcomes[expected] >= 2
