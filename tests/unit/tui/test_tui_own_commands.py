"""The operator's own commands: hostile ids, bad configuration, where they are off, how they end."""

import asyncio
import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import UsageError
from controller.api.operations.order import Kind
from controller.api.settings.settings import OwnCommandTable
from llumctl import output
from llumctl.app import run
from llumctl.config import settings
from tests.unit.fake_controller import until as wait
from tests.unit.tui.tui_support import acting
from tools import synthetic_cluster as synthetic
from tui import own_commands
from tui.app import Dashboard
from tui.own_commands import OwnCommand, OwnCommandError, Program, filled
from tui.screens.dashboard import DashboardScreen
from tui.screens.details import OutputScreen
from tui.screens.dialogs import ConfirmScreen
from tui.widgets import TableView

ECHO = shutil.which("echo") or "echo"
SHELL = shutil.which("sh") or "sh"
HOSTILE = ["; reboot", "$(reboot)", "`id`", "a b", "'\"", "{id}", "*", "~", "|x", "\n", "é\x1b[2J"]


def of_request(*run: str, **more: Any) -> OwnCommand:
    return OwnCommand("mine", run, Kind.REQUEST, **more)


@pytest.mark.parametrize("id_", HOSTILE)
def test_an_id_is_one_argument_whatever_it_says(id_: str) -> None:
    command = of_request("p", "{id}", "--request={id}", "{instance}", "{ not a field }", "-v={id}")
    found = filled(command, {"id": id_, "instance": "i-1"})
    wanted = ("p", id_, f"--request={id_}", "i-1", "{ not a field }", f"-v={id_}")
    assert found.arguments == wanted
    assert found.environment == {"ROW_ID": id_, "ROW_INSTANCE": "i-1"}


@pytest.mark.parametrize(
    ("run", "id_", "words"),
    [
        (("p", "{id}"), "-rf", 'begins with a dash and would be read as an option: put "--"'),
        (("p", "{id}", "--"), "--help", "begins with a dash"),
        (("less", "{id}"), "+!reboot", "begins with a plus"),
        (("p", "--", "{id}"), "-rf", ""),
        (("p", "--id={id}"), "-rf", ""),
        (("p", "--id={id}"), "\0", "contains a NUL"),
        (("p",), "a\0b", "contains a NUL"),
        (("p", "{id}"), "\ud800", "is no text"),
        (("p", "{instance}"), "r1", "this row has no instance"),
    ],
)
def test_what_no_program_is_given(run: tuple[str, ...], id_: str, words: str) -> None:
    if not words:
        assert filled(of_request(*run), {"id": id_}).arguments[-1].endswith(id_)
        return
    with pytest.raises(UsageError) as caught:
        filled(of_request(*run), {"id": id_})
    assert words in caught.value.message


def test_a_long_id_hides_no_argument_behind_it() -> None:
    plan = filled(of_request("p", "--", "{id}", "last"), {"id": "x" * 10_000}).plan(None)
    assert [line[:3] for line in plan.lines] == ["0  ", "1  ", "2  ", "3  "]
    assert plan.lines[2].endswith("x... (10000 characters)")
    assert sum(map(len, plan.lines)) < 400


@pytest.mark.parametrize(
    ("name", "run", "field", "words"),
    [
        ("Mine", ["p"], "", "'Mine' is no name"),
        ("drain", ["p"], "", "drain is a command already"),
        ("mine", ["{id}"], "run", "the program must be named"),
        ("mine", ["sh", "-c", "echo {id}"], "run", "where a shell could read it"),
        ("mine", ["p", "x{id}"], "run", "use the variable ROW_ID"),
        ("mine", ["p", "{pid}"], "run", "no value of a row about a request: {id}, {instance}"),
        ("mine", ["p", "a\0"], "run", "contains a NUL"),
    ],
)
def test_bad_commands(name: str, run: list[str], field: str, words: str) -> None:
    with pytest.raises(OwnCommandError) as caught:
        own_commands.checked_commands({name: OwnCommandTable(run=run, at="request")})
    assert (caught.value.name, caught.value.field) == (name, field)
    assert words in str(caught.value)


CONFIG_ERRORS = {
    "run = ['p']\nkey = 'd'": "c.toml:3: d is the key of drain",
    "run = ['sh', '-c', 'x {id}']": "c.toml:2: {id} stands inside an argument",
    "rn = ['p']": "c.toml:2: unknown key commands.mine.rn",
    "key = 'f5'": "commands.mine needs the key run",
    "run = ['p', '{id}']\nkey = 'P'\n[keys]\npicture = 'f9'": "none: there is no such recording",
}


@pytest.mark.parametrize(("text", "words"), CONFIG_ERRORS.items())
def test_bad_configuration_is_told_with_its_line(
    text: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A command can take a key that was given away."""
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    (tmp_path / "c.toml").write_text(f"[commands.mine]\n{text}\n")
    (tmp_path / "c.toml").chmod(0o644)
    monkeypatch.setenv("LLUMCTL_CONFIG", str(tmp_path / "c.toml"))
    assert run(["top", "--replay", "none"]) == 2
    assert words in capsys.readouterr().err


def loaded(path: Path) -> list[str]:
    """The names of the commands in the file."""
    return list(settings.load_commands({"LLUMCTL_CONFIG": str(path)})[0])


def test_a_file_that_others_can_change_names_no_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c d.toml"
    path.write_text("[keys]\npicture = 'f9'\n[commands.mine]\nrun = ['p']\n")
    for mode in (0o620, 0o602, 0o666):
        path.chmod(mode)
        with pytest.raises(UsageError, match="other users can change") as caught:
            loaded(path)
        assert caught.value.message.startswith(f"{path}:3: commands names programs to run")
        assert caught.value.hint == f"chmod go-w '{path}'"
    path.chmod(0o644)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    assert loaded(path) == ["mine"]
    if owner == 0:  # Files of root are trusted by everybody.
        os.chown(path, 12345, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UsageError, match="other users can change"):
        loaded(path)
    path.write_text("[keys]\npicture = 'f9'\n[commands]\n")
    assert loaded(path) == []


# On the screen

MINE = OwnCommand("mine", (ECHO, "to", "{id}"), key="f5", text="says the id")


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


@pytest.mark.process
async def test_it_runs_for_the_row_after_its_arguments_were_shown() -> None:
    about_requests = of_request("p", "{id}", key="f6")
    async with acting(own=(MINE, replace(about_requests, name="other"))) as bed:
        await bed.press("j")
        wanted = bed.cursor
        await bed.press("f5")
        await bed.sees("Run mine?", f"0  {ECHO}", "1  to", f"2  {wanted}")
        await bed.press("enter")
        assert not isinstance(bed.app.screen, OutputScreen), "the cursor is on Cancel"
        await bed.press("f5", "y")
        screen = bed.app.screen
        assert isinstance(screen, OutputScreen)
        await until(lambda: bool(screen.program.outcome) and screen.program.num_lines == 1)
        await bed.settle()
        await bed.sees("mine  exit status 0", f" to {wanted}")
        await bed.press("escape")
        await bed.type("colon", "mine")
        assert f"2  {wanted}" in await bed.shown()
        await bed.press("escape", "f6")
        assert "this row is about no request" in await bed.bottom()
        await bed.press("2", "f6")
        assert "Run other?" in await bed.shown()
        await bed.press("escape", "0", "x", "j", "x", "f5")
        assert "mine is run for one row at a time" in await bed.bottom()
        await bed.press("question_mark")
        rows = bed.app.screen.query_one(TableView).items
        assert any("says the id" in row.text for row in rows)


async def test_where_it_is_off() -> None:
    async with acting(own=(MINE,)) as bed:
        await bed.press("R", "f5")
        assert "no mine now: read-only: R allows" in await bed.bottom()
    async with acting(own=(MINE,), in_browser=True) as bed:
        await bed.press("f5")
        assert "no mine now: a browser runs no commands" in await bed.bottom()
        assert not isinstance(bed.app.screen, ConfirmScreen)


async def test_a_terminal_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are still taken meanwhile, as a recording would stop otherwise, but nothing is
    drawn."""
    told: list[object] = []
    end = asyncio.Event()

    async def run(arguments: Any, environment: Any) -> str:
        told.append((tuple(arguments), environment["ROW_ID"]))
        await end.wait()
        return "exit status 3" if len(told) == 2 else ""

    monkeypatch.setattr("tui.acting.in_terminal", run)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    command = OwnCommand("mine", ("p", "{id}"), key="f5", terminal=True)
    async with acting(own=(command,)) as bed:
        await bed.press("f5", "y")
        assert "this terminal cannot be handed over" in await bed.bottom()
        monkeypatch.setattr(
            Dashboard, "suspend", lambda app: contextlib.nullcontext(told.append(app))
        )
        await bed.press("f5")
        await bed.pilot.press("y")
        await until(lambda: not bed.app.own_programs.has_terminal)
        assert told == [bed.app, (("p", bed.cursor), bed.cursor)]
        painted: list[object] = []
        with monkeypatch.context() as patched:
            patched.setattr(DashboardScreen, "show", painted.append)
            bed.source.feed(synthetic.frames(3))
            bed.app.pump()
        assert bed.status.time_s >= synthetic.START_S + 2
        assert not painted
        end.set()
        await until(lambda: bed.app.own_programs.has_terminal)
        await bed.settle()
        assert "mine: exit status 3" in await bed.bottom()
        await bed.press("f5", "y")
        assert "mine: done" in await bed.bottom()


@pytest.mark.process
async def test_how_a_program_in_the_terminal_ended() -> None:
    for arguments, failed in (
        ([SHELL, "-c", "exit $ROW"], "exit status 3"),
        ([SHELL, "-c", "exit 0"], ""),
        (["/no/such/program"], "could not be started: "),
    ):
        told = await own_commands.in_terminal(arguments, {"ROW": "3"})
        assert told.startswith(failed)
        assert bool(told) is bool(failed)


@pytest.mark.process
async def test_the_last_line_stays_in_view_until_the_operator_moves(tmp_path: Path) -> None:
    waits = f"until [ -e {tmp_path}/$1 ]; do sleep 0.01; done"
    script = f"w() {{ {waits}; }}; seq 99; w b; seq 100 150; w c; seq 151 200"
    async with acting(own=(OwnCommand("mine", (SHELL, "-c", script), key="f5"),)) as bed:
        await bed.press("f5", "y")
        screen = bed.app.screen
        assert isinstance(screen, OutputScreen)

        async def shown(num_lines: int) -> list[str]:
            await until(lambda: screen.program.num_lines == num_lines)
            bed.app.pump()
            return [line.strip() for line in await bed.lines()]

        assert "99" in await shown(99)
        await bed.press("k")
        (tmp_path / "b").touch()
        lines = await shown(150)
        assert "98" in lines
        assert "150" not in lines
        await bed.press("G")
        (tmp_path / "c").touch()
        await until(lambda: bool(screen.program.outcome))
        assert "200" in await shown(200), "its end, too"


# The program


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def started(*arguments: str, timeout_s: float = 60.0, **more: Any) -> Program:
    program = Program(arguments, {"ROW_ID": "$(id)"}, timeout_s, **more)
    program.start()
    return program


@pytest.mark.process
def test_all_that_it_started_ends_with_it_and_many_lines_leave_room_for_keys() -> None:
    """The dashboard was once woken for each line, and then heard nothing else."""
    woken: list[None] = []
    text = "sleep 600 & echo $!; yes | head -3000; wait"
    program = started(SHELL, "-c", text, wake=lambda: woken.append(None))
    wait(lambda: program.num_lines == 3001)
    assert len(woken) < 200
    program.stop()
    wait(lambda: bool(program.outcome))
    assert program.outcome == "ended by signal 9"
    wait(lambda: gone(int(program.lines[0])))


@pytest.mark.process
def test_it_ends_when_its_time_is_over_but_may_take_some_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expire: list[Callable[[], None]] = []

    class Timer:
        def __init__(self, interval_s: float, function: Callable[[], None]) -> None:
            assert interval_s == 60
            self.start, self.cancel = lambda: expire.append(function), lambda: None

    monkeypatch.setattr(own_commands.threading, "Timer", Timer)
    text = "trap 'echo bye; exit 0' TERM; echo begun; while :; do sleep 0.01; done"
    program = started(SHELL, "-c", text)
    wait(lambda: "begun" in program.lines and bool(expire))
    expire[0]()
    wait(lambda: bool(program.outcome))
    assert program.outcome == "ended after 60 s, which is its time-out"
    wait(lambda: "bye" in program.lines)


# Tests under nohup ignore SIGHUP, and so would the programs that they start.
RUNS_ONE = """
import signal, sys, time
from tui.own_commands import Program
signal.signal(signal.SIGHUP, signal.SIG_DFL)
program = Program(["sh", "-c", "sleep 600 & echo $!; wait"], {}, 600.0)
program.start()
while not program.lines: time.sleep(0.01)
print(program.lines[0], flush=True)
time.sleep(600)
"""


@pytest.mark.process
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGHUP])
def test_it_ends_with_the_dashboard_however_that_ends(end: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", RUNS_ONE], stdout=subprocess.PIPE) as dashboard:
        assert dashboard.stdout is not None
        pid = int(dashboard.stdout.readline())
        assert not gone(pid)
        dashboard.send_signal(end)
    wait(lambda: gone(pid))


@pytest.mark.process
def test_what_it_writes_is_kept_to_the_last_lines_and_stdin_is_empty() -> None:
    program = started(SHELL, "-c", "cat; seq 1 6000; echo x$ROW_ID >&2; kill -TERM $$")
    wait(lambda: bool(program.outcome) and program.num_lines == 6001)
    assert program.outcome == "ended by signal 15"
    assert (len(program.lines), program.lines[-1]) == (5000, "x$(id)")
    program = started("/no/such/program")
    wait(lambda: bool(program.outcome))
    assert program.outcome.startswith("could not be started: ")
    program.stop()
