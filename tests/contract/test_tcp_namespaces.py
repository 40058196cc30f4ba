"""KV blocks between two hosts that share nothing but a cable."""

from collections.abc import Iterator

import pytest

from tests.contract.tcp_processes import close, copy, peer_processes
from tools.two_hosts import Host, two_hosts


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as made:
        yield made


async def test_blocks_move_between_hosts(hosts: tuple[Host, Host]) -> None:
    async with peer_processes() as processes:
        a, b = [
            await processes.start(name, host.address, 100, tuple(host.command()))
            for name, host in zip("ab", hosts, strict=True)
        ]
        await processes.introduce()
        assert a.address.startswith(f"tcp://{hosts[0].address}:")
        a.do("fill", 1)
        await copy(a, b, "a/0", 100)
        b.do("fill", 2)
        await copy(b, a, "b/0", 60)
        for peer in a, b:
            await close(peer)
