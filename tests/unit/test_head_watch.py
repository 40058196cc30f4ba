"""Whether Ray's head answers and the raylet lives, and what `down` finds without either."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.adapters.ray import head_watch, ray_starts
from controller.adapters.ray.head_watch import HeadWatch
from controller.api.errors import LlumctlError
from controller.api.state.run_state import RunState
from controller.main import down
from controller.main.machine.processes import same_process
from controller.ports.processes import LauncherLoss
from tools.synthetic_cluster import run_state_of


class Machine:
    """A clock, and the parent of the watching process."""

    now_s = 100.0
    raylet = 7

    def watch(self, listening: socket.socket) -> tuple[str, HeadWatch]:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        return address, HeadWatch(address, lambda: self.now_s, lambda: self.raylet)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.delenv(head_watch.RECONNECT_VARIABLE, raising=False)
    return Machine()


def test_a_head_that_goes_and_comes(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address, watch = machine.watch(head)
        assert watch.look() is None
    what = f"Ray's head at {address} does not answer"
    assert watch.loss is None
    assert watch.look() == LauncherLoss(what, 0.0, 60.0)
    machine.now_s += 9.0
    assert watch.look() == watch.loss == LauncherLoss(what, 9.0, 60.0)
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        assert watch.look() is None
        assert watch.loss is None


def test_draining_nodes_are_known_until_the_head_says_otherwise() -> None:
    told: list[dict[str, float | None]] = [{}, {"n": 5.0}]

    def ask() -> dict[str, float | None]:
        if not told:
            raise RuntimeError("it takes too long")
        return told.pop(0)

    watch = HeadWatch("127.0.0.1:1", draining=ask)
    assert watch.draining is None
    for known in ({}, {"n": 5.0}, {"n": 5.0}):
        watch.ask_for_draining()
        assert watch.draining == known


def test_a_raylet_that_is_gone(machine: Machine) -> None:
    """Another process adopts the raylet's children. No process ends by itself then."""
    with socket.create_server(("127.0.0.1", 0)) as head:
        _, watch = machine.watch(head)
        machine.raylet = 1
        assert watch.look() == LauncherLoss(head_watch.NO_RAYLET, 0.0, None)
        machine.now_s += 5.0
    loss = watch.look()
    assert loss is not None
    assert "does not answer" in loss.what
    assert loss.for_s == 0.0


def test_how_long_processes_wait_for_a_head_and_the_last_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for given, ends_s in (("86400", 86400.0), ("soon", 60.0)):
        monkeypatch.setenv(head_watch.RECONNECT_VARIABLE, given)
        assert head_watch.reconnect_s() == ends_s
    for ends_after_s, for_s, soon in (
        (60.0, 51.0, False),
        (60.0, 52.0, True),
        (10.0, 4.0, False),
        (10.0, 5.0, True),
    ):
        assert LauncherLoss("w", for_s, ends_after_s).ends_soon(8.0) is soon
    assert not LauncherLoss("w", 1e9, None).ends_soon(8.0)


# -- down, on somebody else's Ray ---------------------------------------------------------------


@pytest.fixture
def member(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A member's process, which has noted its start."""
    note = (
        "import sys; from pathlib import Path; from controller.adapters.ray import ray_starts;"
        "ray_starts.begin(Path(sys.argv[1]), 'run'); print('noted', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", note, str(tmp_path / "i-0.log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"noted\n"
        yield process
        process.kill()


def state(folder: Path, address: str, run: str = "run") -> RunState:
    found = run_state_of("http://127.0.0.1:1", "t")
    return replace(found, ray_address=address, owns_ray=False, namespace=run, log_dir=str(folder))


@pytest.mark.process
@pytest.mark.parametrize("answers", [True, False])
def test_without_a_head_that_can_be_used_the_members_here_are_ended(
    tmp_path: Path,
    member: "subprocess.Popen[bytes]",
    answers: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_state: RunState) -> None:
        raise LlumctlError("the cluster's actors could not be ended", "ray start")

    monkeypatch.setattr(down, "_kill_actors", fails)
    said: list[str] = []
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{head.getsockname()[1]}"
        if answers:
            head.listen()
            with pytest.raises(LlumctlError, match="could not be ended"):
                down.end_actors(state(tmp_path, address), said.append)
            monkeypatch.setattr(down, "_kill_actors", lambda _: None)
            down.end_actors(state(tmp_path, address), said.append)
        else:
            down.end_actors(state(tmp_path, address, run="another"), said.append)
            assert member.poll() is None
            down.end_actors(state(tmp_path, address), said.append)
            assert said[0].startswith(f"no Ray answers at {address}: processes on other machines")
    member.wait(timeout=10)  # raises if it lives on


def test_a_note_without_a_process_names_none(tmp_path: Path) -> None:
    (tmp_path / "controller.starts").write_text('{"run": "run", "num_failed": 0, "reason": ""}')
    assert ray_starts.noted_processes(tmp_path, "run") == []
    ray_starts.begin(tmp_path / "i-0.log", "run")
    ((pid, started_s),) = ray_starts.noted_processes(tmp_path, "run")
    assert same_process(pid, started_s) is not None
    assert ray_starts.noted_processes(tmp_path, "another") == []
