"""Help: summaries that fit, and `llumctl help`."""

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from llumctl.app import app
from tests.unit.cli_support import Cli


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def groups(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", {})
    if inner:
        yield path, command
    for name, below in inner.items():
        yield from groups(below, (*path, name))


def test_summaries_are_whole_at_eighty_columns(cli: Cli) -> None:
    cut = []
    for path, group in groups(get_command(app)):
        shown = cli.out(*path, "--help").splitlines()
        for name, command in group.commands.items():
            whole = command.get_short_help_str(1000)
            if not any(line.split() == [name, *whole.split()] for line in shown):
                cut.append((*path, name))
        assert max(map(len, shown)) <= 80, path
    assert not cut


def test_help_is_the_help_of_a_command(cli: Cli) -> None:
    for path in ((), ("drain",), ("lora",), ("lora", "load"), ("simulate", "knee"), ("help",)):
        assert cli.out("help", *path) == cli.out(*path, "--help"), path
    assert cli.out("help", "drain", "i-1") == cli.out("drain", "--help")
    assert cli("help", "undrain").out == cli.out("uncordon", "--help")
