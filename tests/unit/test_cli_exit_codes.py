"""Exit codes: a command first says whether there is what it is about, then whether it may act."""

import shlex
from collections.abc import AsyncIterator

import pytest

from controller.api import errors
from controller.api.errors import EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_UNREACHABLE
from controller.api.state import run_state
from llumctl.app import EXITS
from tests.unit.cli_support import Cli
from tests.unit.control.control_bed import Bed, bed_of, llumctl

Captured = pytest.CaptureFixture[str]

NO_SUCH = {
    "instance 'i-9'": (
        "drain i-9",
        "drain i-0 i-9",
        "drain i-9 --remove",
        "drain i-9 --dry-run",
        "drain i-9 --yes",
        "cordon i-9",
        "uncordon i-9",
        "restart i-9",
        "restart i-9 --now",
        "restart i-9 --yes",
        "migrate r-1 --to i-9",
        "requests --instance i-9",
    ),
    "instance i-9": ("status --wait=instance/i-9=active", "status --wait=drained=i-9"),
    "request 'r-9'": (
        "migrate r-9",
        "migrate r-9 --to i-9",
        "priority r-9 high",
        "priority r-9 no-such-level",
        "abort r-9",
        "requests r-9",
        "status --wait=request/r-9=running",
    ),
    "operation 'op-9'": ("undo op-9", "undo op-9 --dry-run", "undo op-9 --yes"),
    "operation that was done": ("undo", "undo --yes"),
    "LoRA adapter sql": ("lora unload sql", "lora unload sql --dry-run"),
}
"""Commands about a thing that the cluster does not have, by the thing that the error names."""
ASKING = (
    "drain i-0",
    "drain i-0 i-1",
    "drain i-0 --remove",
    "restart i-0",
    "restart --rolling",
    "scale -1",
)
"""Commands that ask before they act."""


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    """Nothing is asked: pytest has no terminal."""
    async with bed_of(3) as found:
        yield found


@pytest.mark.usefixtures("bed")
async def test_what_there_is_not_is_said_before_anything_else(capsys: Captured) -> None:
    wrong = []
    for thing, lines in NO_SUCH.items():
        for line in lines:
            code, err = await llumctl(*shlex.split(line)), capsys.readouterr().err
            if code != EXIT_NOT_FOUND or f"error: there is no {thing}" not in err:
                wrong.append((line, code, err))
    assert not wrong


async def test_nothing_is_done_to_others_than_what_there_is_not(bed: Bed) -> None:
    assert await llumctl("cordon", "i-0", "i-9") == EXIT_NOT_FOUND
    assert bed.revision == 0
    assert await llumctl("cordon", "i-0") == 0
    assert await llumctl("uncordon", "i-0", "i-9") == EXIT_NOT_FOUND
    assert bed.revision == 1
    assert await llumctl("uncordon", "i-0", "i-1") == 0
    assert bed.revision == 2


async def test_without_a_terminal_nothing_is_done(bed: Bed, capsys: Captured) -> None:
    before = bed.revision
    for line in ASKING:
        assert await llumctl(*shlex.split(line)) == EXIT_REFUSED, line
        error, hint = capsys.readouterr().err.splitlines()
        assert error.endswith(" asks before it acts, and there is no terminal to ask on")
        assert hint.startswith(f"try:   llumctl {line}")
        assert hint.endswith(" -y")
    assert bed.revision == before


def test_a_cluster_that_does_not_run_is_said_before_all_that(cli: Cli) -> None:
    about_one = [line for lines in NO_SUCH.values() for line in lines]
    for line in (*about_one, *ASKING, "top", "set migration", "lora list"):
        err = cli(*shlex.split(line), code=EXIT_UNREACHABLE).err
        assert err.startswith("error: cluster default is not running\n"), line


def test_logs_that_there_are_not(cli: Cli) -> None:
    assert "has left no logs" in cli("logs", "i-9", code=EXIT_NOT_FOUND).err
    folder = run_state.state_dir("default") / "logs"
    folder.mkdir()
    (folder / "i-0.log").write_text("a\n")
    assert "no log of 'i-9'" in cli("logs", "i-9", "--grep", "a", code=EXIT_NOT_FOUND).err


def test_the_help_has_all_exit_codes(cli: Cli) -> None:
    assert set(EXITS) == {value for name, value in vars(errors).items() if name[:5] == "EXIT_"}
    shown = " ".join(cli.out("--help").split())
    assert shown.endswith(", ".join(f"{code} {words}" for code, words in EXITS.items()) + ".")
