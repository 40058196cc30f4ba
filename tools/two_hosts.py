"""Two network namespaces joined by a veth pair stand for two hosts: no shared loopback, and no
way between them but the addresses that were configured."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

# Of a block that is set apart for benchmarks of networks (RFC 2544).
ADDRESSES = ("198.18.77.1", "198.18.77.2")


@dataclass(frozen=True, slots=True)
class Host:
    namespace: str
    address: str
    link: str

    def command(self, *command: str) -> list[str]:
        """That command, on this host."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def cut(self) -> None:
        """Nothing comes through its cable any more, and nobody is told."""
        self._set_link("down")

    def mend(self) -> None:
        self._set_link("up")

    def pids(self) -> list[int]:
        listed = run("ip", "netns", "pids", self.namespace)
        return [int(pid) for pid in listed.split()]

    def _set_link(self, state: str) -> None:
        run("ip", "-n", self.namespace, "link", "set", self.link, state)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Skips the test where namespaces cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the ip command")
    pid = os.getpid()
    first, second = (
        Host(f"llumctl-{name}-{pid}", address, f"ll{name}{pid}")
        for name, address in zip("ab", ADDRESSES, strict=True)
    )
    with contextlib.ExitStack() as made:
        try:
            for host in (first, second):
                run("ip", "netns", "add", host.namespace)
                made.callback(run, "ip", "netns", "delete", host.namespace)
            run("ip", "link", "add", first.link, "type", "veth", "peer", "name", second.link)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        for host in (first, second):
            run("ip", "link", "set", host.link, "netns", host.namespace)
            inside = ("ip", "-n", host.namespace)
            run(*inside, "address", "add", f"{host.address}/30", "dev", host.link)
            run(*inside, "link", "set", "lo", "up")
            host.mend()
        yield first, second
