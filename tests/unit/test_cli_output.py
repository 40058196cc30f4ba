"""What reaches the terminal: tables, colours, closed pipes, errors, and the log of our own."""

import contextlib
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from controller.api.errors import LlumctlError, RefusedError
from llumctl import app, output
from llumctl.output import Format
from tests.unit.cli_support import cluster
from tools.synthetic_cluster import instance

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_line_up_and_are_not_cut() -> None:
    """Wide characters take two columns; what comes from afar cannot drive the terminal."""
    long = "x" * 200
    rows = [["a", "7", long], ["bcd", "1234", ""], ["模型", "-", "a\x1b[2Jb\nc"]]
    assert output.table(["ID", "N", "WHAT"], rows, colours=False).splitlines() == [
        "ID       N  WHAT",
        f"a        7  {long}",
        "bcd   1234  -",
        "模型     -  a\\x1b[2Jb c",
    ]
    assert output.table(["ID", "N"], [], colours=False) == "ID  N"
    coloured = output.table(["ID", "STATE"], [["i-0", "active"]], colours=True)
    assert coloured.endswith("i-0  \x1b[32mactive\x1b[0m")


def test_colours_only_on_a_terminal_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert output.use_colours(Terminal())
    assert not output.use_colours(io.StringIO())
    assert not output.use_colours(None)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output.use_colours(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not output.use_colours(Terminal())


def test_machine_formats_have_no_infinity_and_json_is_ascii() -> None:
    whole = cluster(
        instance(freeness_steps=float("-inf"), kv_cache_usage=float("nan"), detail="模")
    )
    for format_ in (Format.JSON, Format.JSONL, Format.YAML):
        text = output.encode(format_, whole, whole.instances)
        assert "nan" not in text.lower().replace("infinity", "")
        assert ".inf" not in text
        assert "Infinity" not in text
    text = output.encode(Format.JSONL, whole, whole.instances)
    assert text.isascii()
    row = json.loads(text)
    assert (row["freeness_steps"], row["detail"]) == (None, "模")


@pytest.mark.parametrize(
    ("answer", "is_yes"),
    [("y\n", True), (" YES \n", True), ("yep\n", False), ("\n", False), ("", False)],
)
def test_only_yes_is_yes(
    answer: str, is_yes: bool, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of input is a no."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    with contextlib.nullcontext() if is_yes else pytest.raises(RefusedError, match="was not yes"):
        output.ask("Drain i-1?")
    assert capsys.readouterr().err == "Drain i-1? [y/N] " + ("" if answer else "\n")


def run_python(script: str, stdout: int | IO[str] | None = None) -> tuple[int, str]:
    """The exit code and what was on stderr."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, text=True, check=False, stdout=stdout, stderr=subprocess.PIPE)
    return done.returncode, done.stderr


EMITS = "app.guarded(lambda: output.emit('x' * 100_000) or output.emit('x') or 0)"
HELPS = "app.run(['drain', '--help'])"


@pytest.mark.process
@pytest.mark.parametrize(("call", "code"), [(EMITS, 0), (HELPS, 1)])
def test_a_closed_pipe_is_quiet_and_a_full_disk_is_an_error(call: str, code: int) -> None:
    """The parser writes the help, past what writes all else."""
    script = f"import sys; from llumctl import app, output; sys.exit({call})"
    reader, writer = os.pipe()
    os.close(reader)
    assert run_python(script, writer) == (code, "")
    os.close(writer)
    with Path("/dev/full").open("w") as full:
        told = "error: cannot write the output: No space left on device\n"
        assert run_python(script, full) == (1, told)


def test_text_that_the_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    output.emit("aé\udc80")
    assert raw.getvalue() == b"a\\xe9\\udc80\n"


def raising(error: BaseException) -> int:
    def command() -> int:
        raise error

    return app.guarded(command)


def test_an_error_says_what_and_last_what_to_try(capsys: Captured) -> None:
    assert raising(LlumctlError("what: why", "llumctl x", 6)) == 6
    assert raising(LlumctlError("alone")) == 1
    assert raising(KeyboardInterrupt()) == 130
    told = "error: what: why\ntry:   llumctl x\nerror: alone\ninterrupted\n"
    assert capsys.readouterr() == ("", told)


def test_the_unforeseen_goes_to_a_private_log_that_starts_anew_when_large(
    capsys: Captured, tmp_path: Path
) -> None:
    assert raising(ZeroDivisionError("odd")) == 1
    log = tmp_path / "llumctl" / "errors.log"
    assert capsys.readouterr().err == (
        f"error: unexpected ZeroDivisionError: odd (traceback in {log})\n"
    )
    assert "Traceback" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    log.write_text("x" * (app.MAX_LOG_BYTES + 1))
    assert raising(ZeroDivisionError()) == 1
    assert log.stat().st_size < 10_000


def test_prose_is_wrapped_on_a_terminal_that_is_too_narrow_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [("a.b", "1", "one two three four five six"), ("a.c", "23", "seven")]

    def shown() -> list[str]:
        header = ("KEY", "VALUE", "MEANING")
        return output.table(header, rows, colours=False, ends_in_prose=True).splitlines()

    whole = shown()
    assert whole[1].endswith("one two three four five six")
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    monkeypatch.setenv("COLUMNS", "34")
    assert shown() == [
        "KEY  VALUE  MEANING",
        "a.b      1  one two three four",
        "            five six",
        "a.c     23  seven",
    ]
    for columns in ("20", "80"):  # too narrow even for that, and wide enough
        monkeypatch.setenv("COLUMNS", columns)
        assert shown() == whole


def test_ids_are_shortened_on_a_terminal_that_is_too_narrow_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [(f"cmpl-{n}d36e06fa6a667f4-0-7c3a17", "running", "i-0") for n in range(3)]
    whole = output.table(("ID", "STATE", "ON"), rows, colours=False, ids=("ID",))
    assert rows[2][0] in whole
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    for columns, first in ((80, rows[0][0]), (40, "0d36e06fa6a667f4-0-7c3a17"), (20, "0d36…3a17")):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = output.table(("ID", "STATE", "ON"), rows, colours=False, ids=("ID",)).split("\n")
        assert lines[1].split()[0] == first
        assert lines[1].split()[1:] == ["running", "i-0"]
        assert max(map(len, lines)) <= max(columns, 23)
