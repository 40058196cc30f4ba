"""Makes the recording of `llumctl demo`: `make demo-recording`, which takes four minutes.

A cluster of emulated instances gets the load of a storm, and the orders and faults at the moments
that `llumctl/commands/demo.py` names. What names this machine is replaced in the recording. Look at
`llumctl demo` before you commit it: on a machine that is busy with other work engines run late.
"""

import asyncio
import json
import lzma
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from llumctl.commands.demo import (
    ADDED_S,
    CALM_S,
    DRAINED,
    DRAINED_S,
    KILLED,
    KILLED_S,
    LENGTH_S,
    RECORDING,
    STORM_S,
)
from tools.cluster import free_ports

RATE, STORM_RATE = 4.0, 22.0
"""Requests per second."""
BEGUN_S = 15
"""For so long requests come before the recording begins, so that it begins in a cluster that
works."""
HIGH_SHARE = 0.12
MEAN_TOKENS, MAX_TOKENS = 260, 1400
REPLACED = {"node": "10.0.0.11", "actor": "ana@desk", "endpoint_url": "http://10.0.0.5:8000"}


class Demo:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "demo.jsonl"
        self._port, control_port = free_ports(2)
        self._ports = ("--port", str(self._port), "--control-port", str(control_port))
        self._environ = os.environ | {"LLUMCTL_CLUSTER_NAME": "demo"}
        self._environ |= {
            f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CONFIG", "STATE", "DATA")
        }
        self._dice = random.Random(7)

    def llumctl(self, *arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "llumctl", *arguments],
            env=self._environ,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def up(self) -> None:
        engine = ("--engine", "emulated", "--profile", "a10-llama-7b", "-n", "6")
        self.llumctl("up", *engine, *self._ports, "--detach", "--wait")

    async def play(self) -> None:
        """The load, the recording and the orders, each at its moment."""
        limits = httpx.Limits(max_connections=4000)
        async with httpx.AsyncClient(timeout=600.0, limits=limits) as client:
            load = asyncio.create_task(self._load(client))
            await asyncio.sleep(BEGUN_S)
            orders: Sequence[tuple[float, tuple[str, ...]]] = (
                (0, ("record", str(self.file), "--duration", f"{LENGTH_S}s")),
                (ADDED_S, ("scale", "+2")),
                (DRAINED_S, ("drain", DRAINED, "-y", "--detach", "-m", "maintenance")),
            )
            tasks = [asyncio.create_task(self._order(*each)) for each in orders]
            await asyncio.sleep(KILLED_S)
            os.kill(self._pid_of(KILLED), signal.SIGKILL)
            await asyncio.gather(*tasks)
            load.cancel()

    async def _order(self, at_s: float, arguments: Sequence[str]) -> None:
        await asyncio.sleep(at_s)
        await asyncio.to_thread(self.llumctl, *arguments)

    def _pid_of(self, instance_id: str) -> int:
        status = json.loads(self.llumctl("status", "-o", "json"))
        return next(int(each["pid"]) for each in status["instances"] if each["id"] == instance_id)

    async def _load(self, client: httpx.AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time() + BEGUN_S
        async with asyncio.TaskGroup() as requests:
            while True:
                is_storm = STORM_S <= loop.time() - begin_s < CALM_S
                await asyncio.sleep(self._dice.expovariate(STORM_RATE if is_storm else RATE))
                requests.create_task(self._request(client))

    async def _request(self, client: httpx.AsyncClient) -> None:
        level = "high" if self._dice.random() < HIGH_SHARE else "normal"
        body = {
            "model": "embedded",
            "prompt": [self._dice.randrange(10, 200) for _ in range(self._length())],
            "max_tokens": self._length(),
            "ignore_eos": True,
        }
        with suppress(httpx.HTTPError):
            await client.post(
                f"http://127.0.0.1:{self._port}/v1/completions",
                json=body,
                headers={"X-Llumctl-Priority": level},
            )

    def _length(self) -> int:
        return int(min(MAX_TOKENS, max(16, self._dice.expovariate(1 / MEAN_TOKENS))))


def nameless(value: Any) -> Any:
    """The value without what names this machine or its user."""
    if isinstance(value, dict):
        return {
            key: REPLACED.get(key, nameless(each)) if each else each for key, each in value.items()
        }
    if isinstance(value, list):
        return [nameless(each) for each in value]
    if isinstance(value, str):
        return value.replace(socket.gethostname(), "desk")
    return value


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        demo = Demo(Path(folder))
        try:
            demo.up()
            asyncio.run(demo.play())
        finally:
            demo.llumctl("down", "--now")
        lines = demo.file.read_text("utf-8").splitlines()
    written = [
        json.dumps(nameless(json.loads(line)), separators=(",", ":"), ensure_ascii=False)
        for line in lines
    ]
    text = "".join(f"{line}\n" for line in written).encode()
    RECORDING.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    size = RECORDING.stat().st_size / 1024
    sys.stdout.write(f"{RECORDING.name}: {len(written)} lines, {size:.0f} KiB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
