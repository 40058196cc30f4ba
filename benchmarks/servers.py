"""The two servers that are compared, each in a process session of its own."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import psutil

from benchmarks.engine_plan import EnginePlan, free_port
from benchmarks.process_groups import CpuMeter, end_session, session_members
from controller.api.client import DEFAULT_TIMEOUT_S, ControlClient
from controller.api.errors import LlumctlError
from controller.api.interrupts import no_interrupts
from controller.api.state import run_state
from controller.main.machine.processes import processes_of, sweep

START_TIMEOUT_S = 300.0
POLL_S = 0.1
WATCH_S = 0.02
DOWN_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 10.0
# In cores: an idle server that uses more disturbs the one that is measured.
IDLE_CPU_LIMIT = 0.05
RESULTS = Path(__file__).parent / "results"
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


class ServerError(Exception):
    """A server did not start; the message says where its log is."""


def control_of(cluster: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> ControlClient:
    """Raises ServerError if the cluster does not run."""
    state = run_state.load(cluster)
    if state is None:
        raise ServerError(f"{cluster} does not run")
    return ControlClient(state.control_url, state.control_token, timeout_s)


def until(condition: Callable[[], bool], what: str, patience_s: float) -> None:
    """Raises TimeoutError."""
    deadline_s = time.perf_counter() + patience_s
    while not condition():
        if time.perf_counter() > deadline_s:
            raise TimeoutError(f"waited {patience_s:.0f} s for {what}")
        time.sleep(WATCH_S)


class Server(ABC):
    """A server, which is started by `start`, serves after `wait_ready`, and is gone after
    `stop`."""

    def __init__(self, name: str, plan: EnginePlan, port: int) -> None:
        self.name = name
        self.plan = plan
        self.base_url = f"http://127.0.0.1:{port}"
        self.started_s = 0.0
        self.started_at_s = 0.0  # since the epoch, as in the logs
        self.log_file = RESULTS / "logs" / f"{name.replace(' ', '-')}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._has_served = False

    def start(self) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("wb") as log:
            self.started_s, self.started_at_s = time.perf_counter(), time.time()
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.log_file.parent,  # not the repository, whose files would shadow others
                env=os.environ | self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_first_completion(self) -> float:
        """Seconds from `start` to the end of the first completion that succeeded."""
        deadline_s = self.started_s + START_TIMEOUT_S
        with httpx.Client(base_url=self.base_url, timeout=60.0, trust_env=False) as client:
            while time.perf_counter() < deadline_s:
                if self._completes(client):
                    self._has_served = True
                    return time.perf_counter() - self.started_s
                if self._has_failed():
                    raise ServerError(f"{self.name} ended while it started; see {self.log_file}")
                time.sleep(POLL_S)
        raise ServerError(f"{self.name} was not ready in time; see {self.log_file}")

    def wait_ready(self) -> float:
        """Seconds from `start` until all its engines serve."""
        return self.wait_first_completion()

    def stop(self) -> None:
        """Leaves no process, whatever state it is in; safe to call twice."""
        if self._process is not None:
            end_session(self._process)
        if self._has_served:  # otherwise somebody needs its logs
            self._forget_plan()

    def _forget_plan(self) -> None:
        """Removes the cluster's state folder, which planning makes."""
        if run_state.load(self.plan.cluster) is None:
            shutil.rmtree(run_state.state_path(self.plan.cluster), ignore_errors=True)

    @abstractmethod
    def parts(self) -> dict[int, str]:
        """For each pid the role of the process."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _environment(self) -> dict[str, str]: ...

    def _has_failed(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _completes(self, client: httpx.Client) -> bool:
        body = {
            "model": self.plan.served_model_name,
            "prompt": [1],
            "max_tokens": 1,
            "ignore_eos": True,
        }
        try:
            return client.post("/v1/completions", json=body).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


class LlumctlServer(Server):
    """A cluster that is started by the real command line, of this checkout or of `checkout`.
    `settings`: those with which it starts. Its engines are real ones unless `emulated`."""

    def __init__(
        self,
        plan: EnginePlan,
        name: str = "llumctl",
        checkout: Path | None = None,
        *,
        settings: Mapping[str, Any] = NO_SETTINGS,
        emulated: bool = False,
    ) -> None:
        super().__init__(f"{name} {plan.num_engines}", plan, plan.port)
        self._llumctl = llumctl(checkout)
        self._settings = settings
        self._emulated = emulated

    def wait_ready(self) -> float:
        """`llumctl up --wait` has returned and a completion has succeeded since."""
        assert self._process is not None
        try:
            code = self._process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            raise ServerError(f"llumctl up ended with {code}; see {self.log_file}")
        return self.wait_first_completion()

    def stop(self) -> None:
        super().stop()  # a running `up` takes its cluster down itself
        if (state := run_state.load(self.plan.cluster)) is not None:
            self._bring_down()
            if sweep(state.nonce):
                print(f"llumctl down left processes of {state.cluster}; ended", file=sys.stderr)
        if self._has_served:
            self._forget_plan()

    def _bring_down(self) -> None:
        command = [self._llumctl, "down", "--now", "--cluster", self.plan.cluster]
        with contextlib.suppress(subprocess.TimeoutExpired), self.log_file.open("ab") as log:
            subprocess.run(
                command, stdout=log, stderr=log, start_new_session=True, timeout=DOWN_TIMEOUT_S
            )

    def parts(self) -> dict[int, str]:
        state = run_state.load(self.plan.cluster)
        if state is None:
            return {}
        members: dict[int, str] = {}
        with contextlib.suppress(LlumctlError), control_of(self.plan.cluster) as client:
            status = client.status()
            members |= {i.pid: "engine" for i in status.instances if i.pid}
            members |= {f.pid: "frontend" for f in status.frontends if f.pid}
        return {p.pid: members.get(p.pid, _ray_part(p)) for p in processes_of(state.nonce)}

    def _command(self) -> list[str]:
        engine = ("--engine", "emulated") if self._emulated else ()
        return [self._llumctl, "up", "-d", "--wait", *self.plan.llumctl_arguments(), *engine]

    def _environment(self) -> dict[str, str]:
        """The environment, with the settings as variables: `up` of an older checkout has no
        `--set`."""
        return as_variables(self._settings)

    def _has_failed(self) -> bool:
        return self._process is None or bool(self._process.poll())


def as_variables(settings: Mapping[str, Any]) -> dict[str, str]:
    """The variables for an `up` that starts with these settings."""
    return {
        f"LLUMCTL_{name.replace('.', '_').upper()}": str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for name, value in settings.items()
    }


class VllmServer(Server):
    """vLLM's own server, as its project starts it.

    By default vLLM binds the worker of every engine to core 0, so that a pair of them on two cores
    runs at half its speed. `nobind` leaves the workers to the operating system, as llumctl does.
    """

    def __init__(self, plan: EnginePlan, name: str = "vllm", arguments: Sequence[str] = ()) -> None:
        super().__init__(f"{name} {plan.num_engines}", plan, free_port())
        self.arguments = arguments
        """Further arguments; they may be changed until the server starts."""

    def terminate(self, grace_s: float) -> None:
        """Ends the server as an init system does: by SIGTERM, and by SIGKILL after `grace_s`. vLLM
        ends its engine at once, or after `--shutdown-timeout`, and then waits until clients close
        the connections of streams that get nothing any more."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        for process in session_members(self._process.pid):
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.wait(KILL_TIMEOUT_S)

    def parts(self) -> dict[int, str]:
        if self._process is None:
            return {}
        leader = self._process.pid
        return {p.pid: _vllm_part(p, leader) for p in session_members(leader)}

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-P", "-m", "vllm.entrypoints.launchers.api_server.entry"),
            *("--host", "127.0.0.1", "--port", self.base_url.rpartition(":")[2]),
            *self.plan.vllm_arguments(),
            *self.arguments,
        ]

    def _environment(self) -> dict[str, str]:
        return {
            "OMP_NUM_THREADS": str(self.plan.num_threads),
            "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }


class RoutedVllmServers(Server):
    """One vLLM server for each engine, and vllm-router (PyPI) in front of them. `router`: the path
    of its command, which has its own installation."""

    def __init__(
        self, plan: EnginePlan, router: Path, policy: str, arguments: Sequence[str] = ()
    ) -> None:
        super().__init__(f"vllm-router {policy}", plan, free_port())
        self._router, self._policy = router.resolve(), policy
        one = replace(plan, num_engines=1)
        self.servers = [
            VllmServer(one, f"vllm behind {policy} {number}", arguments)
            for number in range(plan.num_engines)
        ]

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_ready()
        super().start()

    def stop(self) -> None:
        super().stop()
        for server in self.servers:
            server.stop()

    def parts(self) -> dict[int, str]:
        parts = {pid: part for server in self.servers for pid, part in server.parts().items()}
        if self._process is not None:
            parts |= {p.pid: "router" for p in session_members(self._process.pid)}
        return parts

    def _command(self) -> list[str]:
        return [
            *(str(self._router), "--policy", self._policy, "--host", "127.0.0.1"),
            *("--port", self.base_url.rpartition(":")[2]),
            *("--prometheus-port", str(free_port())),
            *("--worker-urls", *(server.base_url for server in self.servers)),
        ]

    def _environment(self) -> dict[str, str]:
        return {}


@contextlib.contextmanager
def running(*servers: Server) -> Iterator[list[float]]:
    """Starts the servers one after the other, and yields how many seconds each took. Stops all of
    them in any case."""
    try:
        taken_s = []
        for server in servers:
            print(f"starting {server.name} ...", flush=True)
            server.start()
            taken_s.append(server.wait_ready())
        yield taken_s
    finally:
        with no_interrupts():
            for server in servers:
                server.stop()


def idle_cpu(server: Server, seconds: float) -> float:
    """The cores that a server uses without any request."""
    meter = CpuMeter(server.parts())
    time.sleep(seconds)
    return meter.used().total_s / seconds


def llumctl(checkout: Path | None = None) -> str:
    """The path of the command `llumctl` of an installed checkout, or of this one."""
    scripts = checkout / ".venv" / "bin" if checkout else Path(sys.executable).parent
    return str(scripts / "llumctl")


def _ray_part(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return "ray"
    return "controller" if "RayMember" in command else "ray"


def _vllm_part(process: psutil.Process, leader: int) -> str:
    if process.pid == leader:
        return "frontend"
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return "other"
    for mark, part in (
        ("EngineCore", "engine core"),
        ("Worker", "worker"),
        ("Coord", "coordinator"),
    ):
        if mark in command:
            return part
    return "other"
