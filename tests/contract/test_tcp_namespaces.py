"""Two network namespaces joined by a veth pair stand for two hosts: no shared loopback, and no
way between them but the addresses that were configured."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.contract.tcp_processes import close, copy, peer_processes

# Of a block that is set apart for benchmarks of networks (RFC 2544).
HOSTS = ("198.18.77.1", "198.18.77.2")


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the ip command")
    names = (f"llumctl-a-{os.getpid()}", f"llumctl-b-{os.getpid()}")
    links = (f"lla{os.getpid()}", f"llb{os.getpid()}")
    with contextlib.ExitStack() as made:
        try:
            for name in names:
                run("ip", "netns", "add", name)
                made.callback(run, "ip", "netns", "delete", name)
            run("ip", "link", "add", links[0], "type", "veth", "peer", "name", links[1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        for name, link, host in zip(names, links, HOSTS, strict=True):
            run("ip", "link", "set", link, "netns", name)
            run("ip", "-n", name, "address", "add", f"{host}/30", "dev", link)
            run("ip", "-n", name, "link", "set", link, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield names


async def test_blocks_move_between_hosts(namespaces: tuple[str, str]) -> None:
    async with peer_processes() as processes:
        a, b = [
            await processes.start(name, host, 100, ("ip", "netns", "exec", namespace))
            for name, host, namespace in zip("ab", HOSTS, namespaces, strict=True)
        ]
        await processes.introduce()
        assert a.address.startswith(f"tcp://{HOSTS[0]}:")
        a.do("fill", 1)
        await copy(a, b, "a/0", 100)
        b.do("fill", 2)
        await copy(b, a, "b/0", 60)
        for peer in a, b:
            await close(peer)
