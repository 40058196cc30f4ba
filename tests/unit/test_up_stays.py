"""`up` in the foreground, when its cluster ends without it."""

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from controller.api.errors import LlumctlError
from controller.api.interrupts import (
    AGAIN_S,
    interrupts_arrive,
    no_interrupts,
    stops_interrupt,
)
from controller.api.state import run_state
from controller.api.state.run_state import RunState
from controller.main import up
from controller.main.machine.service_manager import ServiceManager
from tools.synthetic_cluster import run_state_of

pytestmark = pytest.mark.process


@pytest.fixture
def head() -> subprocess.Popen[bytes]:
    """The head process of Ray, which has ended."""
    head = subprocess.Popen([sys.executable, "-c", "raise SystemExit(15)"])
    head.wait()
    return head


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunState:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(up, "STAY_POLL_S", 0.01)
    state = replace(
        run_state_of("http://127.0.0.1:9", "secret", "c1"),
        ray_head_pid=2**22,
        ray_head_started_s=0.0,
        temp_dir=str(tmp_path / "none"),
    )
    run_state.save(state)
    return state


def test_a_head_that_a_down_has_just_ended_is_no_failure(
    head: subprocess.Popen[bytes], state: RunState
) -> None:
    told: list[object] = []
    ended = threading.Event()

    def stay() -> None:
        up.stay(head, state, told.append, ServiceManager())
        ended.set()

    staying = threading.Thread(target=stay, daemon=True)
    with run_state.lock("c1"):
        staying.start()
        assert not ended.wait(0.2), "it waits for the down that is at work"
        run_state.remove("c1")
    assert ended.wait(10)
    assert told == ["cluster c1 was stopped"]


def test_a_head_that_died_is_told_and_cleared(
    head: subprocess.Popen[bytes], state: RunState
) -> None:
    with pytest.raises(LlumctlError, match="its head process ended with 15"):
        up.stay(head, state, lambda _: None, ServiceManager())
    assert run_state.load("c1") is None


# A signal may come while httpx connects: the socket that it has just made is left to the collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_whatever_ends_up_stops_its_cluster(
    state: RunState, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that hung up used to leave a cluster that ran on without an owner."""
    told: list[object] = []
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind(f"\0llumctl-{os.getpid()}")
    systemd.settimeout(5.0)
    monkeypatch.setenv("NOTIFY_SOCKET", f"@llumctl-{os.getpid()}")
    before = signal.signal(number, signal.SIG_DFL)  # these tests may run under nohup
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as head,
        stops_interrupt(),
        systemd,
    ):
        threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
        up.stay(head, state, told.append, ServiceManager())
        head.kill()
        assert systemd.recv(4096) == b"STOPPING=1\nSTATUS=live requests may finish"
    signal.signal(number, before)
    assert run_state.load("c1") is None
    assert told[-1] == "cluster c1 has stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_that_python_drops_comes_again(number: signal.Signals) -> None:
    """It was lost if it came while the callback of a weak reference ran."""

    class Referred:
        pass

    referred = Referred()
    reference = weakref.ref(referred, lambda _: signal.raise_signal(number))
    with stops_interrupt():
        del referred
        assert reference() is None, "the handler ran, and Python has dropped what it raised"
        with pytest.raises(KeyboardInterrupt):
            threading.Event().wait(10)


def test_an_interrupt_that_python_drops_does_not_come_while_interrupts_are_ignored() -> None:
    class Ending:
        def __del__(self) -> None:
            raise SystemExit(143)

    with interrupts_arrive():
        Ending()
        with no_interrupts():
            threading.Event().wait(10 * AGAIN_S)


def test_a_hang_up_that_is_ignored_stays_so() -> None:
    """A hang-up is ignored under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stops_interrupt():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
