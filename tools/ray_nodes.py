"""Two Ray nodes, each on a host of its own."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tools.two_hosts import Host

RAY = str(Path(sys.executable).with_name("ray"))
FEW_BYTES = ("--object-store-memory", "80000000")
QUIET = ("--disable-usage-stats",)
START_S = 90.0


class RayNodes:
    """A socket's path has 107 characters at most: the folder is in /tmp."""

    def __init__(
        self, hosts: tuple[Host, Host], port: int, env: Mapping[str, str], token: Path | None = None
    ) -> None:
        """`token`: the file of the token that the nodes ask for."""
        self.first, self.second = hosts
        self.address = f"{self.first.address}:{port}"
        self._port = port
        mode = {"RAY_AUTH_MODE": "token" if token else "disabled"}
        self.env = {**env, **mode, **({"RAY_AUTH_TOKEN_PATH": str(token)} if token else {})}
        self._folder = f"/tmp/llumctl-ray-{os.getpid()}"

    @property
    def log_dir(self) -> Path:
        """Of Ray's own files, those of both nodes."""
        return Path(self._folder) / "session_latest" / "logs"

    def start(self) -> None:
        self.start_first()
        self.start_second()

    def start_first(self) -> None:
        head = ("--head", "--port", str(self._port), "--include-dashboard", "false")
        self._start(self.first, *head, "--temp-dir", self._folder)

    def start_second(self) -> None:
        self._start(self.second, "--address", self.address)

    def end(self) -> None:
        for host in (self.second, self.first):
            kill(host)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, host: Host, *args: str) -> None:
        here = ("--node-ip-address", host.address)
        done = subprocess.run(
            host.command(RAY, "start", *args, *here, *FEW_BYTES, *QUIET),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def kill(host: Host) -> None:
    """The raylet and all else that runs there, but for this process and its parents."""
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    processes = []
    for pid in set(host.pids()) - spared:
        with suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
            os.kill(pid, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=10)
