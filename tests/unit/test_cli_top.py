"""`llumctl top` and `llumctl record`: what they refuse, and what is recorded."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.api.recording import RecordingReader
from controller.api.wire.stream import EventFrame, Frame, StatusFrame
from llumctl import output
from llumctl.app import run
from tests.unit.cli_process import ended, interrupted, llumctl
from tests.unit.cli_support import remember, stop
from tests.unit.fake_controller import FakeController, event, until

Captured = pytest.CaptureFixture[str]
FRAME_ENDS = "\x1b[?1049l"
"""With it the screen from before is there again, on which errors are told."""


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with FakeController() as fake:
        remember(fake.url)
        yield fake


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "r.jsonl"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that there is one: for what is refused before anything is drawn."""
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")


def frames(file: Path) -> list[Frame]:
    with RecordingReader(file) as reader:
        return list(reader)


def test_without_a_terminal_top_names_what_works_there(capsys: Captured) -> None:
    assert run(["top"]) == 5
    err = capsys.readouterr().err
    assert err.startswith("error: top needs a terminal, and std")
    assert err.endswith("try:   llumctl status --watch      or      llumctl record FILE\n")


@pytest.mark.usefixtures("terminal")
def test_a_terminal_that_cannot_move_its_cursor(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert run(["top"]) == 5
    assert "move its cursor" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--refresh", "0"], "--refresh: must be 0.1 to 60 seconds"),
        (["--refresh", "nan"], "--refresh: must be"),
        (["--speed", "-1", "--replay", "x"], "--speed"),
        (["--at", "soon", "--replay", "x"], "--at: 'soon' is not a duration"),
        (["--speed", "2"], "go with --replay"),
        (["--replay", "x", "--record", "y"], "neither --record nor --cluster"),
        (["--replay", "x", "--cluster", "y"], "neither --record nor --cluster"),
        (["--write"], "--write and --port go with --web"),
        (["--port", "8701"], "--write and --port go with --web"),
        (["--web", "--record", "x"], "--web goes without --record"),
        (["--web", "--write", "--readonly"], "and --write without --readonly"),
        (["--theme", "pink"], "no theme 'pink': default, light, deuteranopia, monochrome"),
        (["--replay", "no-such-file"], "no-such-file: there is no such recording"),
    ],
)
@pytest.mark.usefixtures("terminal")
def test_usage_errors_of_top(arguments: list[str], words: str, capsys: Captured) -> None:
    assert run(["top", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[keys]\n\nsrot = 'o'\n", "c.toml:3: no key does 'srot'; did you mean sort?"),
        ("[keys]\nsort = 'oo'\n", "c.toml:2: 'oo' is no key: they are as in x, X, f5,"),
        ("[keys]\nsort = 'z'\n", "c.toml:2: z is the key of pane_zoom ("),
        ("[keys]\nsort = 'o'\nfilter = 'o'\n", "c.toml:3: o is the key of sort ("),
        ("[keys]\nsort = 'ctrl+c'\n", "c.toml:2: ctrl+c always leaves the dashboard"),
        ("[keys]\nsort = 3\n", "c.toml:2: keys.sort must be a string, not 3"),
        ("\nkeys = 3\n", "c.toml:2: keys must be a table, not 3"),
    ],
)
@pytest.mark.usefixtures("terminal")
def test_keys_that_cannot_be(
    text: str, message: str, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLUMCTL_CONFIG", "c.toml")
    Path("c.toml").write_text(text)
    assert run(["top", "--replay", "none"]) == 2
    err = capsys.readouterr().err.rpartition(FRAME_ENDS)[2]
    assert err.startswith(f"error: {message}")
    assert "c.toml\n" in err.splitlines(keepends=True)[-1]


@pytest.mark.usefixtures("terminal")
def test_a_key_of_the_environment_that_cannot_be(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLUMCTL_KEYS_SORT", "oo")
    assert run(["top", "--replay", "none"]) == 2
    err = capsys.readouterr().err.rpartition(FRAME_ENDS)[2]
    assert err.startswith("error: LLUMCTL_KEYS_SORT: 'oo' is no key")
    assert err.endswith("try:   unset LLUMCTL_KEYS_SORT\n")


@pytest.mark.usefixtures("terminal")
def test_top_starts_beside_settings_that_up_would_refuse(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLUMCTL_CONFIG", "c.toml")
    monkeypatch.setenv("LLUMCTL_ENDPOINT_PORT", "x")
    Path("c.toml").write_text("[endpoint]\nprot = 1\n[keys]\nsort = 'o'\n")
    assert run(["top", "--replay", "none"]) == 2
    assert "none: there is no such recording" in capsys.readouterr().err


@pytest.mark.usefixtures("terminal")
def test_top_without_a_controller(capsys: Captured, file: Path) -> None:
    assert run(["top", "--record", str(file)]) == 3
    assert "cluster default is not running" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.usefixtures("terminal", "controller")
def test_top_overwrites_no_recording(capsys: Captured, file: Path) -> None:
    file.write_text("mine")
    assert run(["top", "--record", str(file)]) == 5
    assert "never overwritten" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_recording_for_a_while(controller: FakeController, file: Path, capsys: Captured) -> None:
    begun_s = time.monotonic()
    assert run(["record", str(file), "--duration", "0.5s", "--refresh", "0.1"]) == 0
    assert 0.4 < time.monotonic() - begun_s < 10
    captured = capsys.readouterr()
    found = frames(file)
    statuses = [frame for frame in found if isinstance(frame, StatusFrame)]
    assert statuses[0].status == controller.status
    assert captured.out == ""
    assert captured.err == (
        f"recorded {len(found)} frames in {file}\nnext:  llumctl top --replay {file}\n"
    )


@pytest.mark.process
def test_ctrl_c_ends_a_recording_well(controller: FakeController, file: Path) -> None:
    controller.events = [event("admitted")]
    with llumctl("record", str(file), "--refresh", "0.1") as process:
        until(lambda: file.exists() and file.read_text().count("\n") > 3)
        controller.events.append(event("evicted"))
        until(lambda: '"kind":"evicted"' in file.read_text())
        code, err = interrupted(process)
    assert code == 0
    assert err.endswith(f"next:  llumctl top --replay {file}\n")
    events = [frame.event.kind for frame in frames(file) if isinstance(frame, EventFrame)]
    assert events == ["evicted"]


@pytest.mark.process
def test_a_recording_goes_on_after_a_break(controller: FakeController, file: Path) -> None:
    with llumctl("record", str(file), "--refresh", "0.1") as process:
        until(lambda: file.exists() and file.read_text().count('"status"') > 2)
        controller.stop()
        before = file.read_text().count("\n")
        controller.start()
        until(lambda: file.read_text().count("\n") > before + 3)
        code, err = interrupted(process)
    assert code == 0
    assert err.count("trying again") == err.count("the controller answers again") == 1


@pytest.mark.process
def test_a_recording_ends_well_with_its_cluster(controller: FakeController, file: Path) -> None:
    """It waited for the cluster for ever, and for another one of that name."""
    with llumctl("record", str(file), "--refresh", "0.1") as process:
        until(lambda: file.exists() and file.read_text().count('"status"') > 2)
        stop("ana@head")
        controller.stop()
        code, err = ended(process)
    assert code == 0
    assert re.search(r"^cluster default was stopped at \d\d:\d\d:\d\d by ana@head$", err, re.M)
    assert err.endswith(
        f"recorded {len(frames(file))} frames in {file}\nnext:  llumctl top --replay {file}\n"
    )


@pytest.mark.process
def test_ctrl_c_before_the_first_frame_leaves_no_file(file: Path) -> None:
    class Silent(FakeController):
        def _frames(self, query: dict[str, list[str]]) -> Iterator[StatusFrame]:  # noqa: ARG002
            self._stopping.wait()
            yield from ()

    with Silent() as fake:
        remember(fake.url)
        with llumctl("record", str(file)) as process:
            fake.until_asked("/v1/watch")
            until(file.exists)
            code, err = interrupted(process)
        assert (code, err) == (130, "")
        assert not file.exists()
        with llumctl("record", str(file), "--duration", "0.3") as process:
            code, err = ended(process)
        assert code == 124
        assert "sent nothing within 0.3" in err
        assert not file.exists()


def test_record_without_a_controller(capsys: Captured, file: Path) -> None:
    assert run(["record", str(file)]) == 3
    assert "cluster default is not running" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.usefixtures("controller")
def test_record_overwrites_nothing(capsys: Captured, file: Path) -> None:
    file.write_text("mine")
    assert run(["record", str(file), "--duration", "1s"]) == 5
    assert "never overwritten" in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.usefixtures("controller")
def test_a_full_disk_is_told(capsys: Captured) -> None:
    assert run(["record", "/dev/full/x", "--duration", "1s"]) == 1
    assert "cannot write the recording" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["x", "--duration", "soon"], ["x", "--refresh", "0.01"], ["x", "y"]]
)
def test_usage_errors_of_record(arguments: list[str], capsys: Captured) -> None:
    assert run(["record", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")
