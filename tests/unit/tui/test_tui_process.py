"""The real `llumctl top` on a terminal, above all with a controller that hangs."""

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import BaseModel

from controller.api.recording import RecordingReader
from controller.api.wire.status import ClusterStatus
from controller.api.wire.stream import StatusFrame
from tests.unit.cli_support import remember, stop
from tests.unit.fake_controller import FakeController
from tests.unit.tui.tui_support import recorded
from tools import synthetic_cluster as synthetic
from tools.pty_process import Terminal, terminal

pytestmark = pytest.mark.process

# Calls wait 5 s for a controller that hangs. Leaving takes 0.2 to 0.6 s (docs/benchmarks.md), or
# twice as long on a busy machine.
QUIT_S = 4.0


class HangingController(FakeController):
    """A controller that answers `status`; its stream has `num_frames` frames, and then hangs, as do
    questions about requests."""

    def __init__(self, num_frames: int) -> None:
        super().__init__(status=one())
        self._num_frames = num_frames

    def _frames(self, query: dict[str, list[str]]) -> Iterator[BaseModel]:  # noqa: ARG002
        for number in range(self._num_frames):
            yield StatusFrame(time_s=synthetic.START_S + number, status=self.status)
        self.stopping.wait()

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, BaseModel]:
        if path == "/v1/requests":
            self.stopping.wait()
        return super().answer(path, query)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def one(instance_id: str = "i-0") -> ClusterStatus:
    return synthetic.cluster((synthetic.instance(instance_id),))


@contextmanager
def topped(
    fake: FakeController | None = None, *options: str
) -> Iterator[tuple[Terminal, FakeController]]:
    """`llumctl top` on a terminal, with a controller; without one given, of one instance."""
    with fake or FakeController(status=one()) as controller:
        remember(controller.url)
        with terminal("top", *options) as screen:
            yield screen, controller


def leave(screen: Terminal, key: str = "q") -> None:
    assert screen.quit_s(key) < QUIT_S
    assert screen.process.returncode == 0


def test_with_a_hung_controller_it_shows_stale_age_and_quits_at_once() -> None:
    with topped(HangingController(1)) as (screen, _):
        screen.until("i-0", "live 0.")
        screen.until("STALE 3.")
        screen.press("\r")
        screen.until("asking ...")
        leave(screen)
    with topped(HangingController(0)) as (screen, _):
        screen.until("connecting", "no instances yet")
        leave(screen, "\x03")


def test_a_controller_that_dies_and_comes_back() -> None:
    with topped(None, "--refresh", "0.2") as (screen, fake):
        place = screen.until("live 0.")
        fake.stop()
        place = screen.until("STALE", "cannot be reached", after=place)
        fake.restart()
        screen.until("live 0.", "Enter", after=place)
        assert "STOPPED" not in screen.text
        leave(screen)


def test_a_storm_of_sizes_ends_in_the_last_one() -> None:
    """Such a storm comes when a window's edge is dragged; data come meanwhile. With many signals at
    once, an older size may be reported last: one that no signal told is followed, too."""
    draw = random.Random(12)
    with topped(None, "--refresh", "0.1") as (screen, _):
        screen.until("policy llumnix")
        for _ in range(300):
            screen.resize(draw.randint(1, 300), draw.randint(1, 100))
        screen.resize(80, 24)
        place = screen.until("[2 Queue heads]", after=len(screen.text))
        screen.resize(120, 36)
        screen.until("policy llumnix", "live 0.", after=place)
        leave(screen)


@pytest.mark.parametrize(
    ("number", "num_frames"),
    [(signal.SIGTERM, 1), (signal.SIGHUP, 1), (signal.SIGQUIT, 1), (signal.SIGTERM, 0)],
    ids=["SIGTERM", "SIGHUP", "SIGQUIT", "before the dashboard"],
)
def test_a_signal_that_ends_it_gives_the_terminal_back(
    number: signal.Signals, num_frames: int
) -> None:
    with topped(HangingController(num_frames)) as (screen, _):
        before = screen.modes()
        screen.until(*(("i-0", "live 0.") if num_frames else ("connecting",)))
        screen.process.send_signal(number)
        assert screen.exit_code(QUIT_S) == 128 + number
        assert screen.modes() == before
        modes = ("1049", "1000", "1003", "2004") if num_frames else ("1049",)
        for mode in modes:
            assert screen.raw.rindex(f"[?{mode}l") > screen.raw.rindex(f"[?{mode}h")
        if num_frames:
            assert screen.raw.rindex("[?25h") > screen.raw.rindex("[?25l"), "the cursor is shown"


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN], ids=["", "under nohup"])
def test_a_hang_up_leaves_nothing_behind(handler: signal.Handlers) -> None:
    """Under nohup it comes without a signal."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with topped() as (screen, _):
            screen.until("i-0")
            screen.hang_up()
            assert screen.process.wait(5) == -signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_cluster_that_was_stopped_is_said_to_be_so_and_the_next_of_its_name_is_shown_afresh(
    tmp_path: Path,
) -> None:
    """The screen does not show it as stopping or stale for ever; its recording is complete."""
    file = tmp_path / "r.jsonl"
    with topped(None, "--record", str(file), "--refresh", "0.1") as (screen, fake):
        screen.until("[REC]", "i-0")
        stop("ana@head")
        fake.stop()
        screen.until("STOPPED", "[REC ENDED]", "cluster default was stopped at", "by ana@head")
        num_lines = file.read_text().count("\n")
        leave(screen)
    last = screen.text.splitlines()[-2:]
    assert last[0].endswith(" by ana@head")
    assert last[1] == f"recorded {num_lines - 1} frames in {file}"
    with RecordingReader(file) as reader:
        assert any(isinstance(frame, StatusFrame) for frame in reader)
    with topped(None, "--refresh", "0.1") as (screen, fake):
        screen.until("i-0", "live")
        stop("ana@head")
        fake.stop()
        place = screen.until("STOPPED")
        with FakeController(status=one("i-7")) as next_:
            remember(next_.url)
            screen.until("i-7", "live", after=place)
            leave(screen)
    assert "was stopped" not in screen.text[screen.text.rindex("i-7") :]


def test_a_replay_needs_no_cluster_and_takes_keys_and_colours_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    config = tmp_path / "config" / "llumctl" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[keys]\nquit = "X"\nhelp = "h"\n')
    path = recorded(tmp_path, synthetic.frames(30))
    arguments = ("top", "--replay", str(path), "--at", "20s", "--speed", "8", "--ascii")
    with terminal(*arguments) as screen:
        place = screen.until("prod-a", "i-15", "REPLAY", "x8", "h help", "X quit")
        assert "live" not in screen.text
        assert "●" not in screen.text
        colours = [part.split("m")[0].split(";")[:3] for part in screen.raw.split("\x1b[38;2;")[1:]]
        assert colours
        assert all(len(set(colour)) == 1 for colour in colours), "grey"
        screen.press("qh")
        screen.until("Help", after=place)
        leave(screen, "X")
