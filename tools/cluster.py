"""A real cluster for tests and tools: the real command line, real Ray, real vLLM engines."""

import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from controller.api.client import ControlClient
from llumctl.lab import bench_client

LLUMCTL = str(Path(sys.executable).with_name("llumctl"))
NONCE_VARIABLE = "LLUMCTL_NONCE"
READY_S = 180.0
DOWN_S = 60.0
PATIENCE_S = 60.0
"""Of clients that look at something else than how long it takes. By default they give up after 5 s,
which a machine that starts another cluster may need."""
OWN_PORTS = range(20_000 + int(os.environ.get("TESTS_LANE", "0")), 32_768, 2)
"""Above those of Ray's workers, below Linux's ip_local_port_range. Of `make test`'s other lane none
takes them: a cluster listens on its own half a minute after they were chosen."""
NOTHING_MOVES = {"LLUMCTL_MIGRATION_ENABLED": "false"}
"""By itself: for tests that say what is where."""

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, timeout_s: float = 60.0) -> T:
    """The first truthy value of `condition`; fails by name after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {timeout_s:.0f} s for: {what}")


def free_ports(count: int) -> list[int]:
    """Of those that the kernel gives to nobody who asks for any: it takes a cluster half a minute
    until it listens on its own."""
    ports: set[int] = set()
    while len(ports) < count:
        port = random.choice(OWN_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.add(port)
    return list(ports)


def hear_interrupts() -> None:
    """A shell without job control has its background jobs, tests too, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_empty(instance: dict[str, Any]) -> bool:
    """Of an instance's status: nothing runs or waits there, and every block is free."""
    num_reqs = instance["num_running_reqs"] + instance["num_waiting_reqs"]
    return bool(num_reqs == 0 and instance["num_free_blocks"] == instance["num_total_blocks"])


def marked_processes(nonce: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(NONCE_VARIABLE) == nonce and process.status() != "zombie":
                found.append(process)
        except psutil.Error:
            continue
    return found


def ray_process(nonce: str, name: str) -> psutil.Process | None:
    """One of Ray's own processes, by its name. A child has the same name until it runs its own
    program, so it is the oldest one."""
    named = [process for process in marked_processes(nonce) if process.name() == name]
    return min(named, key=lambda process: process.create_time(), default=None)


@dataclass
class Cluster:
    """One cluster by name, in a state folder of the test's own."""

    env: dict[str, str]
    name: str = "e2e"
    cwd: str | None = None
    llumctl: str = LLUMCTL
    up_args: tuple[str, ...] = ("-n", "2")
    port: int = 0
    control_port: int = 0
    certificate: str = ""
    """With one, it speaks https; clients that believe in it alone have `tls`."""
    process: subprocess.Popen[bytes] | None = None
    nonce: str = ""
    temp_dir: str = ""

    def __post_init__(self) -> None:
        self.port, self.control_port = free_ports(2)

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}"

    @property
    def tls(self) -> ssl.SSLContext | bool:
        return bench_client.tls_context(self.url, self.certificate) or False

    @property
    def state_dir(self) -> Path:
        return Path(self.env["XDG_STATE_HOME"]) / "llumctl" / self.name

    def command(self, *args: str) -> list[str]:
        return [self.llumctl, *args, "--cluster", self.name]

    def run(self, *args: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*args),
            env=self.env,
            cwd=self.cwd,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """From `up` until nothing of it is left, whatever becomes of what is done meanwhile."""
        try:
            self.start()
            self.wait_ready()
            yield
        finally:
            self.clean_up()

    def start(self) -> None:
        """`up` in the foreground, in a process group of its own so that it can get Ctrl-C."""
        ports = ("--port", str(self.port), "--control-port", str(self.control_port))
        self.state_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._output("out").open("w") as out, self._output("err").open("w") as err:
            self.process = process = subprocess.Popen(
                self.command("up", *self.up_args, *ports),
                env=self.env,
                cwd=self.cwd,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=hear_interrupts,
            )
        run_file = self.state_dir / "run.json"
        wait_for(lambda: run_file.exists() or process.poll() is not None, "the run state", 30)
        assert process.poll() is None, self.read_stderr()
        state = json.loads(run_file.read_text())
        self.nonce, self.temp_dir = state["nonce"], state["temp_dir"]

    def wait_ready(self) -> None:
        """`up` prints the endpoint once everything serves."""
        process = self.process
        assert process is not None
        wait_for(lambda: self.read_stdout() or process.poll() is not None, "ready", READY_S)
        assert self.read_stdout().splitlines()[:1] == [f"{self.url}/v1"], self.read_stderr()

    def read_stdout(self) -> str:
        return self._output("out").read_text()

    def read_stderr(self) -> str:
        return self._output("err").read_text()

    def _output(self, stream: str) -> Path:
        return self.state_dir.parent / f"{self.name}.{stream}"

    def interrupt(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGINT)

    @contextmanager
    def control(self) -> Iterator[ControlClient]:
        state = json.loads((self.state_dir / "run.json").read_text())
        token = state["control_token"]
        with ControlClient(state["control_url"], token, PATIENCE_S) as client:
            yield client

    def status(self) -> dict[str, Any]:
        """What `status -o json` prints, without a process for it."""
        with self.control() as client:
            return client.status().model_dump(mode="json")

    def instance(self, instance_id: str) -> dict[str, Any]:
        return next(i for i in self.status()["instances"] if i["id"] == instance_id)

    def wait_state(self, state: str, timeout_s: float = READY_S) -> dict[str, Any]:
        return wait_for(
            lambda: (s := self.status())["state"] == state and s, f"state {state}", timeout_s
        )

    def wait_quiet(self) -> dict[str, Any]:
        """Nothing runs or waits anywhere and every block is free again."""

        def quiet() -> Any:
            status = self.status()
            return (
                status
                if all(map(is_empty, status["instances"]))
                and all(f["num_live_reqs"] == 0 for f in status["frontends"])
                else None
            )

        return wait_for(quiet, "a quiet cluster")

    @property
    def head_pid(self) -> int:
        return int(json.loads((self.state_dir / "run.json").read_text())["ray_head_pid"])

    @property
    def controller_pid(self) -> int:
        """Of the process that listens for operators. The head has the same socket, to keep it:
        psutil's list of all connections names whichever of the two has the higher pid."""
        for process in psutil.process_iter():
            if process.pid == self.head_pid:
                continue
            with suppress(psutil.Error):
                for each in process.net_connections("tcp"):
                    if each.status == "LISTEN" and each.laddr.port == self.control_port:
                        return process.pid
        raise AssertionError("no controller listens")

    @property
    def openai_options(self) -> dict[str, Any]:
        return {"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0}

    def leftovers(self) -> list[str]:
        """What a stopped cluster must not leave: processes, sockets, shared memory, files."""
        processes = [f"{p.pid} {' '.join(p.cmdline())[:120]}" for p in marked_processes(self.nonce)]
        files = [self.state_dir / "run.json", self.state_dir / "plan.json"]
        files += [Path(self.temp_dir)] if self.temp_dir else []
        ports = [
            c
            for c in psutil.net_connections("tcp")
            if c.status == "LISTEN" and c.laddr and c.laddr.port in (self.port, self.control_port)
        ]
        return [*processes, *(str(f) for f in files if f.exists()), *map(str, ports)]

    def clean_up(self) -> None:
        """After a failed test too: whatever it left is ended, also if `down` hangs or `up` was cut
        short before the test knew the nonce."""
        with suppress(OSError, ValueError):
            self.nonce = (
                self.nonce or json.loads((self.state_dir / "run.json").read_text())["nonce"]
            )
        try:
            with suppress(subprocess.TimeoutExpired):
                self.run("down", "--now", timeout_s=DOWN_S)
        finally:
            if self.process is not None:
                self.process.kill()
                self.process.wait()
            while left := marked_processes(self.nonce) if self.nonce else []:
                for process in left:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                psutil.wait_procs(left, timeout=5)


@contextmanager
def running_with(config: str, folder: Path, env: dict[str, str], name: str) -> Iterator[Cluster]:
    """A cluster with this configuration file, which is written into the folder."""
    file = folder / "c.toml"
    file.write_text(config)
    cluster = Cluster(env, name=name, up_args=("--config", str(file)))
    with cluster.running():
        yield cluster
