"""`llumctl top`: what it refuses before it draws anything."""

from pathlib import Path

import pytest

from llumctl import output
from tests.unit.cli_support import Cli, remember

FRAME_ENDS = "\x1b[?1049l"
"""With it the screen from before is there again, on which errors are told."""
NONE = ("--replay", "none")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pretends that there is one."""
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(tmp_path)


def test_without_a_terminal_top_names_what_works_there(cli: Cli) -> None:
    assert "is not running" in cli("top", code=3).err
    remember("http://127.0.0.1:1")
    err = cli("top", code=5).err
    assert err.startswith("error: top needs a terminal, and std")
    assert err.endswith("try:   llumctl status --watch      or      llumctl record FILE\n")


@pytest.mark.usefixtures("terminal")
def test_usage_errors(cli: Cli) -> None:
    for arguments, words in (
        (["--refresh", "0"], "--refresh: must be at least 0.1, not 0"),
        (["--speed", "-1", *NONE], "--speed"),
        (["--speed", "2"], "--speed, --at: only with --replay"),
        (["--record", "y", *NONE], "--replay: not with --record or --cluster"),
        (["--write"], "--write, --port: only with --web"),
        (["--web", "--write", "--readonly"], "and --write not with --readonly"),
        (
            ["--theme", "pink"],
            "--theme: 'pink' is not a theme (default, light, deuteranopia, monochrome)",
        ),
        (["--replay", "no-such-file"], "no-such-file: there is no such recording"),
    ):
        assert words in cli("top", *arguments, code=2).err


@pytest.mark.usefixtures("terminal")
def test_keys_that_cannot_be(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, message in (
        ("[keys]\n\nsrot = 'o'\n", "c.toml:3: no key does 'srot'; did you mean sort?"),
        ("[keys]\nsort = 'o'\nfilter = 'o'\n", "c.toml:3: o is the key of sort ("),
        ("\nkeys = 3\n", "c.toml:2: keys must be a table, not 3"),
    ):
        monkeypatch.setenv("LLUMCTL_CONFIG", "c.toml")
        Path("c.toml").write_text(text)
        err = cli("top", *NONE, code=2).err.rpartition(FRAME_ENDS)[2]
        assert err.startswith(f"error: {message}")
        assert err.endswith("c.toml\n")


@pytest.mark.usefixtures("terminal", "fake")
def test_it_overwrites_no_recording(cli: Cli) -> None:
    Path("mine").write_text("mine")
    assert "never overwritten" in cli("top", "--record", "mine", code=5).err
    assert Path("mine").read_text() == "mine"
