"""Start-up: what the quick commands never import, and what help and version say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from controller.api.wire.requests import RequestList
from llumctl import app
from tests.unit.cli_support import cluster, instance, remember
from tests.unit.fake_controller import FakeController
from tests.unit.test_recorded_requests import request

pytestmark = pytest.mark.process

HEAVY = ("ray", "torch", "vllm", "textual", "numpy", "transformers")
SCRIPT = """
import json, sys
from llumctl.app import run
code = run(sys.argv[1:])
print("\\n" + json.dumps([code, sorted(sys.modules)]))
"""


def modules(tmp_path: Path, *arguments: str) -> tuple[int, list[str], str]:
    environ = {
        **{key: value for key, value in os.environ.items() if not key.startswith("LLUMCTL_")},
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        env=environ,
        check=True,
    )
    code, names = json.loads(done.stdout.splitlines()[-1])
    return code, names, done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "absent"),
    [
        (("--help",), 0, ("pydantic", "httpx", "rich", "yaml", "psutil")),
        (("up", "-h"), 0, ("httpx", "rich", "yaml", "psutil")),
        (("--version",), 0, ("pydantic", "httpx", "rich")),
        (("status",), 3, ("httpx", "rich", "yaml", "psutil")),
        (("status", "--watch"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("requests",), 3, ("httpx", "rich", "yaml", "psutil")),
        (("migrate", "r-1"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("drain", "i-1"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("uncordon", "i-1"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("scale", "-1"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("priority", "r-1", "high"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("restart", "i-1", "-y"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("drain", "--remove", "i-1", "-y"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("restart", "--rolling", "-y"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("undo",), 3, ("httpx", "rich", "yaml", "psutil")),
        (("abort", "r-1"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("set",), 3, ("httpx", "rich", "yaml", "psutil")),
        (("set", "migration.max_moves=2"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("events", "--kind", "evicted"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("status", "--wait", "idle"), 3, ("httpx", "rich", "yaml", "psutil")),
        (("logs",), 4, ("httpx", "rich", "yaml", "psutil")),
        (("config", "path"), 0, ("httpx", "rich", "yaml", "psutil")),
        (("config", "show"), 0, ("httpx", "rich", "yaml", "psutil")),
        (("simulate",), 2, ("httpx", "rich", "yaml", "psutil")),
        (("simulate", "-h"), 0, ("httpx", "rich", "yaml", "psutil")),
        (("doctor",), None, ("rich", "yaml")),
        (("profile", "--rounds", "0"), 2, ("httpx", "rich", "yaml", "psutil")),
        (("up", "-n", "0"), 2, ("httpx", "rich", "yaml", "psutil")),
        (("down", "--confirm", "other"), 5, ("httpx", "rich")),
    ],
)
def test_quick_commands_import_nothing_heavy(
    tmp_path: Path, arguments: tuple[str, ...], code: int | None, absent: tuple[str, ...]
) -> None:
    found, names, _ = modules(tmp_path, *arguments)
    assert code in (None, found)
    assert sorted({*HEAVY, *absent} & set(names)) == []


def test_what_talks_to_a_controller_imports_nothing_heavy() -> None:
    """The dashboard neither: a recording is made without it."""
    names = (
        "llumctl.commands.status_table",
        "llumctl.commands.record",
        "controller.api.client",
        "controller.api.recording",
    )
    script = f"import sys, {', '.join(names)}; print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not [name for name in (*HEAVY, "tui") if f"'{name}'" in done.stdout]


def test_no_arguments_show_help(tmp_path: Path) -> None:
    code, _, out = modules(tmp_path)
    assert code == 0
    known = ("up", "down", "status", "requests", "events", "logs", "drain", "doctor", "config")
    for command in known:
        assert f"\n  {command} " in out
    panels = re.findall(r"^(\w+):$", out, re.MULTILINE)
    assert panels == ["Options", "Serve", "Look", "Steer", "Plan", "Help"]


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ("wait --for=idly --timeout 0", "status --wait=idly --timeout 0"),
        ("wait --for idly", "status --wait idly"),
        ("get no.such -o jso", "set no.such -o jso"),
        ("explain --limit 3 r-1", "requests --limit 3 r-1"),
        ("undrain", "uncordon"),
        ("evacuate i-1 --within soon", "drain --remove i-1 --within soon"),
        ("autoscale on --min many", "scale auto on --min many"),
        ("record-traffic f --for soon", "record --traffic f --duration soon"),
    ],
)
def test_a_former_name_runs_what_it_has_become(
    former: str, present: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arguments that both refuse, so that no cluster is needed."""
    name = former.split()[0]
    assert app.run(present.split()) == 2
    said = capsys.readouterr().err
    assert app.run(former.split()) == 2
    became = f"llumctl {name} is now llumctl {app.FORMER[name][0]}\n"
    assert capsys.readouterr().err == became + said


def test_each_former_name_is_one_no_more() -> None:
    commands = {each.name for each in app.app.registered_commands}
    for name, (present, _) in app.FORMER.items():
        assert name not in commands
        assert present.split()[0] in commands


def test_module_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llumctl", "--version"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    assert done.returncode == 0
    assert done.stdout.startswith("llumctl ")


def test_shell_completion(tmp_path: Path) -> None:
    """Completes commands and options, in words that the shell splits."""
    for words, expected in (("llumctl eve", "events"), ("llumctl status --wai", "--wait")):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "llumctl"],
            capture_output=True,
            text=True,
            check=True,
            env={
                **os.environ,
                "XDG_STATE_HOME": str(tmp_path),
                "_LLUMCTL_COMPLETE": "complete_bash",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split()) - 1),
            },
        )
        assert done.stdout.split() == [expected]
        assert done.stderr == ""


def test_a_stranger_named_like_a_package_of_ours_is_not_imported(tmp_path: Path) -> None:
    for name in ("controller", "tui"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('the other {name}')\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("llumctl"), "status", "--cluster", "none"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        3,
        "error: cluster none is not running",
    )


def test_a_user_without_a_home_is_told_so() -> None:
    script = (
        "import os, pwd, sys\n"
        "def nobody(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = nobody\n"
        "from llumctl.app import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    names = ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "LLUMCTL_CONFIG")
    for words in (["status"], ["doctor"], ["--install-completion", "bash"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words],
            capture_output=True,
            text=True,
            check=False,
            env={k: v for k, v in os.environ.items() if k not in names},
        )
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            f"error: there is no home folder: HOME is not set, and uid {os.getuid()} has no entry"
            " in the password file",
            "try:   HOME=<a folder of yours> llumctl ...",
        ]


def test_closed_standard_streams_get_their_numbers_back(tmp_path: Path) -> None:
    """A socket of ours with one of these numbers was overwritten where a process was started."""
    script = (
        "import os, runpy, sys\n"
        "from llumctl import __main__\n"
        "for number in range(3): os.close(number)\n"
        "__main__._open_standard_streams()\n"
        f"file = os.open({str(tmp_path / 'out')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "os.write(file, str([file, *map(os.readlink, map('/proc/self/fd/{}'.format, range(3)))])"
        ".encode())\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (tmp_path / "out").read_text() == "[3, '/dev/null', '/dev/null', '/dev/null']"


def completed(words: str) -> tuple[list[str], str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "llumctl"],
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "_LLUMCTL_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
    )
    return done.stdout.split(), done.stderr


def test_ids_are_completed_and_silence_is_kept_without_a_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("LLUMCTL_CLUSTER_NAME", raising=False)
    assert completed("llumctl drain ") == ([], "")
    there = cluster(instance("i-0"), instance("i-1"), instance("i-10"))
    live = tuple(request(name, "i-0") for name in ("a-1", "b-2"))
    with FakeController(status=there) as fake:
        fake.requests = RequestList(requests=live, num_matching=len(live))
        remember(fake.url)
        for words, ids in (
            ("llumctl drain ", ["i-0", "i-1", "i-10"]),
            ("llumctl drain i-0 i-1", ["i-1", "i-10"]),
            ("llumctl migrate a-1 --to i-1", ["i-1", "i-10"]),
            ("llumctl logs hea", ["head"]),
            ("llumctl priority ", ["a-1", "b-2"]),
            ("llumctl requests b", ["b-2"]),
        ):
            assert completed(words) == (ids, "")
    assert completed("llumctl drain ") == ([], ""), "it is gone"
