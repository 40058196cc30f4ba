"""What may be typed wrong or stand wrong in a file: each case ends with exit 2 (or the code that
it names), the essential words on stderr, nothing on stdout, and no traceback anywhere.

Kinds of wrong settings are in test_cli_settings.py; here are whole command lines, each command's
options, and files as editors and other programs leave them.
"""

import itertools
import os
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from controller.api.errors import LlumctlError
from controller.api.recording import RecordingReader
from controller.api.state import run_state
from llumctl.app import app, run

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be started or stopped: what gets so far was not refused."""
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it was not refused")

    for module in ("up", "down", "doctor.doctor"):
        monkeypatch.setattr(f"controller.main.{module}.run", refuse)


def refused(arguments: list[str], capsys: Captured, code: int = 2) -> str:
    """What stands on stderr."""
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    assert not (run_state.state_root() / "errors.log").exists()
    assert all(char.isprintable() or char == "\n" for char in captured.err)
    return captured.err


COMMAND_LINES = {
    "no such command": ("statsu", "No such command 'statsu'. Did you mean 'status', 'restart'?"),
    "no such global option": ("--verison", "No such option: --verison"),
    "no such option": ("status --clustr x", "No such option: --clustr (Possible options: --clus"),
    "an option without its value": ("up --port", "Option '--port' requires an argument."),
    "a setting of no form at the start": ("up --set x", "--set: 'x' is not of the form KEY=VALUE"),
    "a setting that there is not": ("up --set a.b=1", "--set: unknown key a.b"),
    "a setting by two flags": ("up --port 1 --set endpoint.port=2", "port is also set by --port"),
    "two models": ("up a b", "Got unexpected extra argument"),
    "an empty model": ("up ''", "MODEL: cluster.model is empty"),
    "a model folder that is not there": ("up ./none", "MODEL: there is no model folder "),
    "no instances": ("up -n 0", "--instances: cluster.instances must be at least 1, not 0"),
    "a negative number": ("up -n -3", "must be at least 1, not -3"),
    "too many instances": ("up -n 1025", "must be at most 1024, not 1025"),
    "a number with a fraction": ("up -n 1.5", "Invalid value for '-n' / '--instances'"),
    "a word for a number": ("up --frontends two", "Invalid value for '--frontends'"),
    "a port out of range": ("up --port 65536", "--port: endpoint.port must be at most 65535"),
    "port zero": ("up --control-port 0", "--control-port: control.port must be at least 1"),
    "the same port twice": ("up --port 8700", "control.port and endpoint.port are both 8700"),
    "an open address": ("up --host 0.0.0.0", "open to other machines"),
    "an empty address": ("up --host ''", "open to other machines"),
    "an unknown engine": ("up --engine vlm", "must be 'vllm' or 'emulated', not 'vlm'"),
    "an engine argument of no form": ("up --engine-arg x", "'x' is not of the form key=value"),
    "an argument of the other engine": (
        "up --engine emulated --engine-arg seed=1",
        "--engine-arg: engine.seed is an argument of vLLM's engine",
    ),
    "a model that is not emulated": ("up --engine emulated Q/Q", "MODEL: an emulated engine"),
    "a profile of a real engine": ("up --profile x", "only emulated engines have a profile"),
    "an empty profile": ("up --engine emulated --profile ''", "emulated.profile is empty"),
    "an absent profile": ("up --engine emulated --profile ./p.toml", "there is no profile file"),
    "no rounds of a profile": ("profile --rounds 0", "--rounds: must be at least 1, not 0"),
    "a figure of no form": ("profile --set x", "--set: 'x' is not of the form key=value"),
    "an unknown figure": ("profile --set block_siez=3", "did you mean block_size?"),
    "a profile of another ending": ("profile -o p.txt", "-o: p.txt does not end in .toml"),
    "an upper-case cluster": ("up --cluster Prod", "--cluster: cluster.name 'Prod' does not match"),
    "a cluster that climbs out": ("down --cluster ../x", "--cluster: '../x' is not a cluster name"),
    "a config file that is absent": ("up --config none.toml", "none.toml: there is no such config"),
    "a config file that is a folder": ("config show --config .", "Is a directory"),
    "a config file without a name": ("up --config ''", "Is a directory"),
    "a config file of a long name": (f"up --config {'x' * 5000}", "File name too long"),
    "a state that there is not": ("status --wait instance/i-0=actve", "did you mean active?"),
    "a request without glyphs": ("migrate ''", "REQUEST: '' is not an id"),
    "no request to move": ("migrate", "Missing argument 'REQUEST'"),
    "a destination without glyphs": ("migrate r-1 --to ''", "--to: '' is not an id"),
    "a move that may take a day": ("migrate r-1 --timeout 86400", "--timeout: must be at most 600"),
    "a long reason": (f"migrate r-1 -m {'x' * 201}", "--reason: one line of up to 200"),
    "a setting without a value": ("set migration.max_moves 2", "is not of the form KEY=VALUE"),
    "a setting of nothing": ("set =3", "'=3' is not of the form KEY=VALUE"),
    "a setting to nothing": ("set migration.max_moves=", "is not of the form KEY=VALUE"),
    "a setting twice": ("set a.b=1 a.b=2", "KEY=VALUE: a.b is given twice"),
    "a setting without glyphs": ("set ''", "KEY: '' is not an id"),
    "an id without glyphs": ("requests ''", "REQUEST: '' is not an id"),
    "nothing to drain": ("drain", "Missing argument 'ID...'"),
    "an instance without glyphs": ("drain i-1 ''", "ID: '' is not an id"),
    "a deadline of no time": ("drain i-1 --deadline 0", "--deadline: must be more than zero"),
    "a deadline in the past": ("drain i-1 --deadline -5", "--deadline: '-5' is not a duration"),
    "a deadline that is too far": ("drain i-1 --deadline 8d", "--deadline: must be at most 7d"),
    "a scale-in that may take weeks": ("scale 1 --deadline 8d", "--deadline: must be at most 7d"),
    "a deadline in words": ("scale 3 --deadline soon", "--deadline: 'soon' is not a duration"),
    "an end that there is not": (
        "drain i-1 --deadline 5 --on-deadline kepe",
        "--on-deadline: 'kepe' is not an action at the deadline; did you mean keep?",
    ),
    "an end without a deadline": ("drain i-1 --on-deadline abort", "only with --deadline"),
    "a drain that is and is not followed": ("drain i-1 --detach=1", "does not take a value"),
    "a negative revision": ("drain i-1 --if-revision -1", "--if-revision: must be at least 0"),
    "a revision in words": ("uncordon i-1 --if-revision last", "Invalid value for '--if-revision'"),
    "a reason of two lines": ("uncordon i-1 -m 'a\nb'", "--reason: one line of up to 200"),
    "nothing to scale to": ("scale", "Missing argument 'N|+N|-N|auto'"),
    "two numbers": ("scale 3 4", "is not one of 'off'"),
    "a fraction of an instance": ("scale 1.5", "N|+N|-N: '1.5' is not a number of instances"),
    "no number of instances": ("scale up", "N|+N|-N: 'up' is not a number of instances"),
    "two signs": ("scale +-1", "N|+N|-N: '+-1' is not a number of instances"),
    "no instance at all": ("scale 0", "N|+N|-N: 0 would leave no instance, or change none"),
    "no change at all": ("scale -0", "N|+N|-N: -0 would leave no instance, or change none"),
    "far too many instances": ("scale 99999", "N|+N|-N: must be at most 1024, not 99999"),
    "far too few instances": ("scale -99999", "N|+N|-N: must be at most 1024, not 99999"),
    "a request without a level": ("priority r-1", "Missing argument 'LEVEL'"),
    "a level without glyphs": ("priority r-1 '\x07'", "LEVEL: '\\x07' is not an id"),
    "a level for nobody": ("priority '' high", "REQUEST: '' is not an id"),
    "a drain to wait for that is none": ("status --wait drained=", "--wait: '' is not an id"),
    "a condition that there is not": ("status --wait draind=i-1", "did you mean drained=ID?"),
}


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_command_line(name: str, capsys: Captured) -> None:
    line, words = COMMAND_LINES[name]
    assert words in refused(shlex.split(line), capsys)


@pytest.mark.parametrize("prefix", [["up"], ["requests"], ["logs"], ["status", "--wait"], []])
def test_arguments_that_are_not_text(prefix: list[str], capsys: Captured) -> None:
    """As Python hands over bytes that are not UTF-8."""
    assert "'a\\udcff' is not UTF-8" in refused([*prefix, "a\udcff"], capsys)


@pytest.mark.parametrize(
    "line", ["requests 'a\x1b[2Jb'", "status --wait 'request/\x07=running'", "status -o '\x1b[2J'"]
)
def test_what_is_repeated_does_not_drive_the_terminal(line: str, capsys: Captured) -> None:
    assert "\\x" in refused(shlex.split(line), capsys)


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
}
"""What a command wants before it looks at anything else."""
WANTS_TERMINAL = ("top",)


def having(option: str) -> list[tuple[str, ...]]:
    found = [p for p, options in commands() if option in options and p != WANTS_TERMINAL]
    assert found
    return found


def every(paths: list[tuple[str, ...]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=" ".join)


@every([path for path, _ in commands()])
def test_every_command_refuses_an_unknown_option(path: tuple[str, ...], capsys: Captured) -> None:
    err = refused([*path, "--no-such-option"], capsys)
    assert "No such option: --no-such-option" in err
    assert err.endswith(f"try:   llumctl {' '.join(path)} --help\n")


@every(having("--cluster"))
def test_every_command_refuses_what_is_no_cluster_name(
    path: tuple[str, ...], capsys: Captured
) -> None:
    arguments = [*path, *NEEDED.get(path[0], []), "--cluster", "No!"]
    assert "--cluster: " in refused(arguments, capsys)


@every(having("--timeout"))
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "soon"])
def test_every_timeout_is_a_number_of_seconds(
    path: tuple[str, ...], value: str, capsys: Captured
) -> None:
    arguments = [*path, *NEEDED.get(path[0], []), "--timeout", value]
    assert "--timeout" in refused(arguments, capsys)


@every(having("--output"))
def test_every_format_is_one_that_there_is(path: tuple[str, ...], capsys: Captured) -> None:
    err = refused([*path, *NEEDED.get(path[0], []), "-o", "xml"], capsys)
    assert err.startswith("error: Invalid value for '-o' / '--output'")
    assert "'json'" in err


@every(having("--config"))
def test_every_config_file_must_be_there(path: tuple[str, ...], capsys: Captured) -> None:
    needed = NEEDED.get(path[0], [])
    err = refused([*path, *needed, "--config", "none.toml"], capsys)
    assert err == "error: none.toml: there is no such config file (--config)\n"


FILES: dict[str, tuple[bytes, str]] = {
    "another encoding": ("# café\n".encode("latin-1"), ":1: not UTF-8 (byte 0xe9)"),
    "UTF-16 from an editor": ("port = 1\n".encode("utf-16"), ":1: not UTF-8 (byte 0xff)"),
    "a program": (b"\x7fELF\x02\x01", ":1: not valid TOML"),
    "a NUL": (b"[endpoint]\nport = 1\0\n", ":2: not valid TOML"),
    "YAML": (b"endpoint:\n  port: 1\n", ":1: not valid TOML: Expected '=' after a key"),
    "JSON": (b'{"endpoint": {"port": 1}}\n', ":1: not valid TOML"),
    "INI without quotes": (b"[cluster]\nname = prod\n", ":2: not valid TOML: Invalid value"),
    "no equals sign": (b"[endpoint]\nport 1\n", ":2: not valid TOML"),
    "an open header": (b"[endpoint\nport = 1\n", ":1: not valid TOML"),
    "an open string": (b"[cluster]\n\nname = 'a\n", ":3: not valid TOML"),
    "a bad escape": (b'[cluster]\nmodel = "C:\\models"\n', ":2: not valid TOML"),
    "a table said twice": (b"endpoint.port = 1\n[endpoint]\n", ":2: not valid TOML"),
    "a number of 5000 digits": (
        b"# c\n[endpoint]\nport = " + b"9" * 5000 + b"\n",
        ":3: a number of too many digits",
    ),
    "a number too large": (b"[endpoint]\nport = 1" + b"0" * 99, ":2: endpoint.port must be at mos"),
    "an infinite time": (b"[scheduler]\ngrace_s = 1e999\n", ":2: scheduler.grace_s must be a fin"),
    "a date": (b"[endpoint]\nport = 2026-01-31\n", ":2: endpoint.port must be an integer"),
    "a table as an array": (b"[[endpoint]]\nport = 1\n", ":1: endpoint must be a table"),
    "an empty array": (b"endpoint = []\n", ":1: endpoint must be a table, not []"),
    "no levels": (b"priority = []\n", ":1: priority is refused: one priority level must have"),
    "a level that is a number": (b"priority = [1]\n", ":1: priority must be a table, not 1"),
    "two levels of one rank": (
        b"[[priority]]\nname = 'a'\nrank = 0\n[[priority]]\nname = 'b'\nrank = 0\n",
        ":1: priority is refused: two priority levels have the same rank",
    ),
    "a level in capitals": (b"[[priority]]\nname = 'A'\nrank = 0\n", ":2: priority.name 'A' does"),
    "a table below a level": (
        b"[[priority]]\nname = 'a'\nrank = 0\n[priority.x]\ny = 1\n",
        ":4: unknown key priority.x",
    ),
    "a negative count": (b"[cluster]\ninstances = -2\n", ":2: cluster.instances must be at least"),
    "an unknown word": (b"[emulated]\nmode = 'chunk'\n", ":2: emulated.mode must be 'chunked' or"),
    "yes for true": (b"[emulated]\nprefix_caching = 'yes'\n", ":2: emulated.prefix_caching must"),
    "a speed of zero": (b"[emulated]\nspeed = 0\n", ":2: emulated.speed must be greater than 0"),
    "an absent profile": (
        b"[cluster]\nengine = 'emulated'\n\n[emulated]\nprofile = './p.toml'\n",
        ":5: there is no profile file ",
    ),
    "engine arguments of no engine": (
        b"[cluster]\nengine = 'emulated'\n[engine]\nseed = 1\n",
        ":4: engine.seed is an argument of vLLM's engine",
    ),
    "a key that drives the terminal": (
        b'[endpoint]\n"por\\u001b[2J" = 1\n',
        ":2: unknown key endpoint.por\\x1b[2J",
    ),
    "a value that drives the terminal": (
        b'[endpoint]\nhost = "\\u001b[2J"\n',
        ":2: endpoint.host '\\x1b[2J' is open",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_config_file(name: str, capsys: Captured) -> None:
    """`up` and `config show` say the same of it, `doctor` too."""
    raw, words = FILES[name]
    Path("c.toml").write_bytes(raw)
    told = {
        refused([*command, "--config", "c.toml"], capsys)
        for command in (["up"], ["config", "show"], ["doctor"])
    }
    (err,) = told
    assert err.startswith(f"error: c.toml{words}")


def test_the_default_file_is_checked_by_every_command(tmp_path: Path, capsys: Captured) -> None:
    """By all that need no more than the cluster's name, too: but only as far as that."""
    path = tmp_path / "config" / "llumctl" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("[cluster]\nname = 'No!'\n")
    for line in ("up", "status", "down", "events", "logs", "requests", "status --wait=ready"):
        assert refused(shlex.split(line), capsys).startswith(f"error: {path}:2: ")
    path.write_text("[endpoint]\nport = 0\n")
    assert "cluster default is not running" in refused(["status"], capsys, code=3)


def test_a_byte_order_mark_is_no_fault(capsys: Captured) -> None:
    Path("c.toml").write_bytes(b"\xef\xbb\xbf[endpoint]\r\nport = 9001\r\n")
    assert run(["config", "show", "--config", "c.toml"]) == 0
    assert "port = 9001\n" in capsys.readouterr().out


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_secrets_that_others_can_read(mode: int, capsys: Captured) -> None:
    """Named by variable or by file; the key itself is never repeated."""
    keys = Path("keys")
    keys.write_text("s3cret\n")
    keys.chmod(mode)
    Path("c.toml").write_text("[endpoint]\napi_key_file = 'keys'\n")
    err = refused(["up", "--config", "c.toml"], capsys)
    assert err.startswith("error: c.toml:2: endpoint.api_key_file: ")
    assert f"keys is open to other users (mode {mode:04o})" in err
    assert err.endswith(f"try:   chmod 600 {keys.absolute()}\n")
    assert "s3cret" not in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("s3cret-1\ns3cret-2 high,urgent\n", "line 2: what follows the key is no list of priority"),
        (
            "s3cret-1 s3cret-2\n",
            "line 1: what follows the key is no list of priority levels (normal",
        ),
        ("s3cret-1 live_requests=-1\n", "line 1: what follows the key is no list of priority"),
        ("s3cret-1 live_requests=\n", "line 1: what follows the key is no list of priority"),
        ("s3cret-1 requests=4\n", "line 1: what follows the key is no list of priority"),
        ("s3cret-1\ns3cret-1 high\n", "line 2: the same key as in line 1"),
    ],
)
def test_a_key_file_with_what_is_no_level(text: str, says: str, capsys: Captured) -> None:
    keys = Path("keys")
    keys.write_text(text)
    keys.chmod(0o600)
    Path("c.toml").write_text("[endpoint]\napi_key_file = 'keys'\n")
    err = refused(["up", "--config", "c.toml"], capsys)
    assert err.startswith(f"error: c.toml:2: endpoint.api_key_file: {keys.absolute()}: {says}")
    assert "s3cret" not in err
    assert "urgent" not in err


def test_secrets_named_by_a_variable(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("keys").write_text("s3cret\n")
    Path("keys").chmod(0o644)
    monkeypatch.setenv("LLUMCTL_ENDPOINT_API_KEY_FILE", "keys")
    err = refused(["up"], capsys)
    assert err.startswith("error: LLUMCTL_ENDPOINT_API_KEY_FILE: endpoint.api_key_file: ")
    assert "is open to other users (mode 0644)" in err


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path.name)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


NOT_FILES = pytest.mark.parametrize(
    ("make", "words"),
    [
        (a_pipe, "it is a pipe, not a regular file"),
        (a_socket, "No such device or address"),
        (a_device, "it is a device, not a regular file"),
    ],
    ids=["pipe", "socket", "device"],
)
Maker = Callable[[Path], None]


@NOT_FILES
@pytest.mark.timeout(30)
def test_what_is_no_file_is_not_waited_for(make: Maker, words: str, capsys: Captured) -> None:
    make(Path("odd"))
    told = refused(["up", "--config", "odd"], capsys)
    assert told.startswith(f"error: odd: cannot read the config file (--config): {words}")
    Path("keys.toml").write_text("[endpoint]\napi_key_file = 'odd'\n")
    assert words in refused(["up", "--config", "keys.toml"], capsys)
    make(Path("odd.csv"))
    assert words in refused(["bench", "--trace", "odd.csv"], capsys)
    with pytest.raises(LlumctlError, match=words):
        RecordingReader(Path("odd"))
    state = run_state.state_dir("default") / "run.json"
    state.symlink_to(Path("odd").absolute())
    assert words in refused(["status"], capsys, code=1)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "text",
    [
        "a." * 50_000 + "a = 1\n",
        "[endpoint]\nx = 1\n[" + "a." * 50_000 + "a]\n",
        "x = { " + '"a" . ' * 20_000 + "a = 1 }\n",
        "'a'." * 25_000 + "a = 1\n",
    ],
    ids=["key", "header", "inline", "quoted"],
)
def test_a_dotted_key_of_many_parts_is_refused_at_once(text: str, capsys: Captured) -> None:
    Path("deep.toml").write_text(text)
    began_s = time.monotonic()
    told = refused(["up", "--config", "deep.toml"], capsys)
    assert "a dotted key of more than 32 parts" in told
    assert time.monotonic() - began_s < 10


def test_dots_that_are_in_no_key_are_no_fault(capsys: Captured) -> None:
    dots = "a." * 100
    Path("dots.toml").write_text(f'# {dots}\n[engine]\nx = \'{dots}\'  # {dots}\ny = "\\"{dots}"\n')
    assert run(["config", "show", "--config", "dots.toml"]) == 0
    assert dots in capsys.readouterr().out
