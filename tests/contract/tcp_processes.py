"""Starts and drives the processes of `tcp_peer`."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from controller.adapters.zmq.zmq_mailbox import new_secret_key

PATIENCE_S = 60.0
REPOSITORY = Path(__file__).parents[2]


class PeerProcess:
    """Output that no caller waited for is kept."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.address = ""
        self.pid = process.pid
        self._process = process
        self._said: list[list[Any]] = []

    def do(self, *what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")

    async def says(self, *start: object) -> list[Any]:
        """Waits for the next line that starts with this word; returns the rest of the line."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for said in self._said:
                    if said[: len(start)] == list(start):
                        self._said.remove(said)
                        return said[len(start) :]
                line = await self._process.stdout.readline()
                assert line, f"{self.name} has ended before it said {start}"
                self._said.append(json.loads(line))

    def said(self, *start: object) -> bool:
        """So far."""
        return any(line[: len(start)] == list(start) for line in self._said)

    def drop(self, word: str) -> None:
        """Drops the output so far with this word."""
        self._said = [line for line in self._said if line[0] != word]

    async def digest(self, num_blocks: int) -> str:
        self.do("digest", num_blocks)
        (found,) = await self.says("digest")
        return str(found)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class PeerProcesses:
    def __init__(self) -> None:
        self._secret = new_secret_key()
        self.all: list[PeerProcess] = []

    async def start(
        self, name: str, host: str, num_blocks: int, prefix: Sequence[str] = ()
    ) -> PeerProcess:
        command = [*prefix, sys.executable, "-m", "tests.contract.tcp_peer"]
        process = await asyncio.create_subprocess_exec(
            *command,
            name,
            host,
            self._secret,
            str(num_blocks),
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self.all.append(PeerProcess(name, process))
        return self.all[-1]

    async def introduce(self) -> None:
        for peer in self.all:
            if not peer.address:
                (peer.address,) = await peer.says("ready")
        for peer in self.all:
            for other in self.all:
                peer.do("meet", other.name, other.address)
                await peer.says("met", other.name)


@contextlib.asynccontextmanager
async def peer_processes() -> AsyncIterator[PeerProcesses]:
    processes = PeerProcesses()
    try:
        yield processes
    finally:
        for peer in processes.all:
            await peer.end()


async def begin(
    source: PeerProcess, destination: PeerProcess, stage_id: str, num_blocks: int
) -> None:
    destination.drop("scattering")
    destination.do("receive", source.name, stage_id, num_blocks)
    await destination.says("expecting", stage_id)
    source.do("send", destination.name, stage_id, num_blocks)


async def copy(
    source: PeerProcess, destination: PeerProcess, stage_id: str, num_blocks: int
) -> None:
    """The copy succeeds, and the bytes are right."""
    await begin(source, destination, stage_id, num_blocks)
    assert await source.says("sent", stage_id) == [num_blocks]
    assert await destination.says("received", stage_id) == [num_blocks]
    assert await source.digest(num_blocks) == await destination.digest(num_blocks)


async def close(peer: PeerProcess) -> None:
    """None of the process's threads may be left."""
    peer.do("close")
    assert await peer.says("closed") == [[]]
