"""What may be typed wrong or stand wrong in a file: each case ends with exit 2 (or the code that
it names), the essential words on stderr, nothing on stdout, and no traceback anywhere.

Kinds of wrong settings are in test_cli_settings.py; here are whole command lines, each command's
options, and files as other programs leave them.
"""

import itertools
import os
import re
import shlex
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from controller.api.errors import LlumctlError
from controller.api.recording import RecordingReader
from controller.api.state import run_state
from llumctl.app import app
from tests.unit.cli_support import Cli


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be started or stopped: what gets so far was not refused."""
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it was not refused")

    for module in ("up", "down", "doctor.doctor"):
        monkeypatch.setattr(f"controller.main.{module}.run", refuse)


def refused(arguments: list[str], cli: Cli, code: int = 2) -> str:
    """What stands on stderr."""
    captured = cli(*arguments, code=code)
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    assert not (run_state.state_root() / "errors.log").exists()
    assert all(char.isprintable() or char == "\n" for char in captured.err)
    return captured.err


COMMAND_LINES = [
    ("statsu", "COMMAND: 'statsu' is not a command of llumctl; did you mean status?"),
    ("lora lod", "COMMAND: 'lod' is not a command of llumctl lora; did you mean load?"),
    ("help statsu", "COMMAND: 'statsu' is not a command of llumctl; did you mean status?"),
    ("help lora lod", "did you mean load?\ntry:   llumctl lora --help"),
    ("lora", "COMMAND: must be one of list, load, unload\ntry:   llumctl lora --help"),
    ("config", "COMMAND: must be one of path, show, schema"),
    ("priority r-1", "LEVEL: must be given\ntry:   llumctl priority --help"),
    ("drain", "ID: must be given\ntry:   llumctl drain --help"),
    ("simulate knee", "--workload: must be given\ntry:   llumctl simulate knee --help"),
    ("drain i-1 --within", "--within: needs a value\ntry:   llumctl drain --help"),
    ("status --watch=1", "--watch: takes no value\ntry:   llumctl status --help"),
    ("undo a b c", "b c: more than the command takes\ntry:   llumctl undo --help"),
    ("logs -n few", "--lines: must be an integer, not 'few'\ntry:   llumctl logs --help"),
    ("bench --rate few", "--rate: must be a number, not 'few'"),
    ("simulate --host-cache -1", "--host-cache: must be at least 0, not -1"),
    ("simulate --mode chunkd", "--mode: 'chunkd' is not one of chunked, prefill-first; did you"),
    ("status --clustr x", "--clustr: no such option; did you mean --cluster?"),
    ("up --port 1 --set endpoint.port=2", "port is also set by --port"),
    ("up ./none", "MODEL: there is no model folder "),
    ("up -n 0", "--instances: a cluster has at least one instance"),
    ("up --engine emulated --engine-arg seed=1", "--engine-arg: engine.seed is an argument of v"),
    ("down --cluster ../x", "--cluster: '../x' is not a cluster name"),
    (f"up --config {'x' * 5000}", "File name too long"),
    ("profile --rounds 0", "--rounds: must be at least 1, not 0"),
    ("profile --set block_siez=3", "did you mean block_size?"),
    ("status --wait=ready -w", "--watch: not with --wait"),
    (f"status --wait=ready --timeout {'9' * 400}", "--timeout: '9999"),
    ("status --every 5", "llumctl status --watch --every 5"),
    ("status -w -o json", "-o json: cannot be watched"),
    ("events --kind evictd", "; did you mean evicted?\ntry:   llumctl events --help"),
    ("events --since 5x", "--since: '5x' is neither a duration nor a time"),
    ("events --after 7", "--after: '7' is not the position of an event"),
    ("events -f -o json", "llumctl events --follow -o jsonl"),
    ("requests ''", "REQUEST: '' is not an id"),
    ("requests --state runing", "--state: 'runing' is not a state of a request (dispatching, "),
    ("requests r-1 --state running", "--state: only for the list, not for one request"),
    ("migrate ''", "REQUEST: '' is not an id"),
    ("migrate r-1 --timeout 86400", "--timeout: must be at most 600"),
    (f"migrate r-1 -m {'x' * 201}", "--reason: one line of up to 200"),
    ("priority r-1 '\x07'", "LEVEL: '\\x07' is not an id"),
    ("set migration.max_moves 2", "is not of the form KEY=VALUE"),
    ("set a.b=1 a.b=2", "KEY=VALUE: a.b is given twice"),
    ("set --save", "--save: only with KEY=VALUE"),
    ("set --config there.toml", "--config: only with --toml or --save"),
    ("drain i-1 --deadline 8d", "--deadline: must be at most 7d"),
    ("drain i-1 --if-revision -1", "--if-revision: must be at least 0"),
    ("drain i-1 --remove --within 8d", "--within: must be at most 7d"),
    ("restart i-1 --now --deadline 5", "--now: not with --deadline"),
    ("restart --rolling --at-once 0", "'0' is neither a number of instances nor max"),
    ("restart --rolling --start-timeout 8d", "--start-timeout: must be at most 7d"),
    ("scale auto --min 0", "--min: must be at least 1, not 0"),
    ("events -n -1", "--limit: must be at least 0, not -1\ntry:   llumctl events --help"),
    ("requests -n 0", "--limit: must be at least 1, not 0"),
    ("scale 1025", "N|+N|-N: must be at most 1024, not 1025"),
    ("drain i-1 --deadline 0", "--deadline: must be greater than 0"),
    (
        "drain i-1 --deadline 5 --on-deadline kepe",
        "an action at the deadline (keep, abort); did you mean keep?",
    ),
    ("drain i-1 --on-deadline abort", "only with --deadline"),
    ("drain i-1 --within 30s", "--within: only with --remove"),
    ("drain i-1 --warm 30s", "--warm: only with --remove"),
    ("drain i-1 --remove --warm 2h", "--warm: must be at most 1h"),
    ("restart i-1 --now --warm 10s", "--now: not with --warm"),
    ("scale auto --warm 10s", "--warm: not with auto"),
    ("drain i-1 --remove i-2", "--remove: one instance at a time"),
    ("drain i-1 --remove --deadline 5m", "--deadline: not with --remove"),
    ("uncordon i-1 -m 'a\nb'", "--reason: one line of up to 200"),
    ("restart", "ID: give one of ID, --rolling, --stop and --dismiss"),
    ("restart --stop --force", "--force: not with --stop"),
    ("restart --rolling --engine-arg a=1 --engine-arg a=2", "a is given twice"),
    ("scale 3 4", "'4' is not one of off, dry-run, on"),
    ("scale 1.5", "N|+N|-N: '1.5' is not a number of instances"),
    ("scale 0", "N|+N|-N: 0 would leave no instance, or change none"),
    ("scale +1 --timeout 5m", "--timeout: only with --wait"),
    ("scale 3 --min 2", "--min: only with auto"),
    ("scale auto --dry-run", "there is nothing to change"),
    (
        "lora load 'a b' /models/sql",
        "NAME: 'a b' is not a name (up to 128 letters, digits and . _ : / -)",
    ),
    ("lora unload -- -a", "NAME: '-a' is not a name (up to 128"),
    ("lora load sql /models/sql --if-revision -1", "--if-revision: must be at least 0"),
    ("logs -n -1", "--lines: must be at least 0, not -1"),
    ("logs --all i-0", "--all: not with ID; 'i-0' is one of all"),
    ("record x --refresh 0.01", "--refresh: must be "),
]


@pytest.mark.parametrize(("line", "words"), COMMAND_LINES)
def test_command_line(line: str, words: str, cli: Cli) -> None:
    Path("there.toml").touch()
    told = refused(shlex.split(line), cli)
    assert words in told
    assert re.fullmatch(r"error: [^:]+: .+\ntry:   .+\n", told, re.DOTALL), "one voice"


def test_arguments_that_are_not_text(cli: Cli) -> None:
    """Python hands over bytes that are not UTF-8 like this."""
    for prefix in ([], ["up"], ["status", "--wait"]):
        assert "'a\\udcff' is not UTF-8" in refused([*prefix, "a\udcff"], cli)


@pytest.mark.parametrize("line", ["requests 'a\x1b[2Jb'", "status -o '\x1b[2J'"])
def test_what_is_repeated_does_not_drive_the_terminal(line: str, cli: Cli) -> None:
    assert "\\x" in refused(shlex.split(line), cli)


# -- each command that has an option ------------------------------------------------------


def commands() -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """The path and the options of every command that there is."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], set[str]]]:
        inner = getattr(command, "commands", {})
        for name, below in inner.items():
            yield from walk(below, (*path, name))
        if path and not inner:
            options = itertools.chain.from_iterable(item.opts for item in command.params)
            yield path, {option for option in options if option.startswith("-")}

    return walk(typer.main.get_command(app), ())


NEEDED = {
    "record": ["file"],
    "migrate": ["r-1"],
    "set": ["migration.max_moves=1"],
    "drain": ["i-1", "-y"],
    "cordon": ["i-1"],
    "uncordon": ["i-1"],
    "scale": ["3"],
    "priority": ["r-1", "high"],
    "abort": ["r-1"],
    "restart": ["i-1", "-y"],
    "attach": ["http://127.0.0.1:9"],
    "detach": ["i-2"],
    "lora load": ["sql", "/models/sql"],
    "lora unload": ["sql"],
}
"""What a command wants before it looks at anything else."""
WANTS_TERMINAL = ("top",)
NEEDS_NO_CONTROLLER = {
    "up",
    "batches",
    "down",
    "logs",
    "config",
    "doctor",
    "profile",
    "bench",
    "simulate",
}


def having(option: str) -> list[tuple[str, ...]]:
    found = [p for p, options in commands() if option in options and p != WANTS_TERMINAL]
    assert found
    return found


def words(path: tuple[str, ...], *options: str) -> list[str]:
    return [*path, *NEEDED.get(" ".join(path), []), *options]


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_every_command_refuses_an_unknown_option(path: tuple[str, ...], cli: Cli) -> None:
    err = refused([*path, "--no-such-option"], cli)
    assert err.startswith("error: --no-such-option: no such option")
    assert err.endswith(f"try:   llumctl {' '.join(path)} --help\n")


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--cluster", "No!", "--cluster: "),
        ("--timeout", "-1", "--timeout"),
        ("--timeout", "nan", "--timeout"),
        ("--output", "xml", "error: --output: 'xml' is not one of t"),
        ("--config", "none.toml", "error: none.toml: there is no such config file (--config)\n"),
    ],
)
def test_every_command_with_an_option_refuses_a_wrong_value(
    option: str, value: str, told: str, cli: Cli
) -> None:
    for path in having(option):
        assert told in refused(words(path, option, value), cli), path


def test_every_command_that_needs_a_controller_says_that_none_runs(cli: Cli) -> None:
    for path in having("--cluster"):
        if path[0] not in NEEDS_NO_CONTROLLER:
            err = refused(words(path), cli, code=3)
            assert err == "error: cluster default is not running\ntry:   llumctl up\n", path


# -- files --------------------------------------------------------------------------------


def test_the_default_file_is_checked_by_every_command(cli: Cli) -> None:
    """By all that need no more than the cluster's name, too: but only as far as that."""
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "llumctl" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("[cluster]\nname = 'No!'\n")
    for line in ("up", "status", "down", "events", "logs", "requests", "status --wait=ready"):
        assert refused(shlex.split(line), cli).startswith(f"error: {path}:2: ")
    path.write_text("[endpoint]\nport = 0\n")
    assert "cluster default is not running" in refused(["status"], cli, code=3)


def test_a_byte_order_mark_and_many_dots_outside_of_keys_are_no_faults(cli: Cli) -> None:
    dots = "a." * 100
    text = f'# {dots}\r\n[engine]\nx = \'{dots}\'  # {dots}\ny = "\\"{dots}"\n'
    Path("c.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert dots in cli("config", "show", "--config", "c.toml").out


@pytest.mark.timeout(30)
def test_a_dotted_key_of_many_parts_is_refused_at_once(cli: Cli) -> None:
    Path("deep.toml").write_text("[endpoint]\nx = 1\n[" + "a." * 50_000 + "a]\n")
    told = refused(["up", "--config", "deep.toml"], cli)
    assert "a dotted key of more than 32 parts" in told


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path.name)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "it is a pipe, not a regular file"),
        (a_socket, "No such device or address"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
    ],
    ids=["pipe", "socket", "device"],
)
@pytest.mark.timeout(30)
def test_what_is_no_file_is_not_waited_for(
    make: Callable[[Path], None], words: str, cli: Cli
) -> None:
    make(Path("odd"))
    told = refused(["up", "--config", "odd"], cli)
    assert told.startswith(f"error: odd: cannot read the config file (--config): {words}")
    Path("keys.toml").write_text("[endpoint]\napi_key_file = 'odd'\n")
    assert words in refused(["up", "--config", "keys.toml"], cli)
    make(Path("odd.csv"))
    assert words in refused(["bench", "--trace", "odd.csv"], cli)
    with pytest.raises(LlumctlError, match=words):
        RecordingReader(Path("odd"))
    state = run_state.state_dir("default") / "run.json"
    state.symlink_to(Path("odd").absolute())
    assert words in refused(["status"], cli, code=1)
