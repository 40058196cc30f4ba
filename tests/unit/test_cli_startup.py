"""Start-up: what the quick commands never import, and what help and version say."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.api.wire.requests import RequestList, RequestStatus
from llumctl import app
from tests.unit.cli_support import cluster, remember
from tests.unit.fake_controller import FakeController, request_fields
from tools import synthetic_cluster as synthetic
from tools.synthetic_cluster import instance

pytestmark = pytest.mark.process

HEAVY = ("ray", "torch", "vllm", "textual", "numpy", "transformers")
QUICK = ("httpx", "rich", "yaml", "psutil")
SCRIPT = """
import json, sys
from llumctl.app import run
for line in sys.argv[1:]:
    code = run(line.split())
    print("\\n" + json.dumps([line, code, sorted(sys.modules)]))
"""
PYTHON = (sys.executable, "-W", "error")
LLUMCTL = (*PYTHON, "-m", "llumctl")


def ran(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": False}
    return subprocess.run(command, env={**os.environ, **environ}, **options)


@pytest.mark.parametrize(
    ("lines", "code", "absent"),
    [
        (("--help", "--version"), 0, ("pydantic", *QUICK)),
        (("up -h", "config show"), 0, QUICK),
        (("up -n 0", "simulate", "profile --rounds 0"), 2, QUICK),
        (("bench --requests 0",), 2, (*QUICK, "msgspec", "uvloop")),
        (("status", "status --wait idle", "requests", "events --kind evicted"), 3, QUICK),
        (("migrate r-1", "priority r-1 high", "drain i-1", "uncordon i-1", "undo"), 3, QUICK),
        (("scale -1", "restart i-1 -y", "restart --rolling -y", "set", "set a.b=2"), 3, QUICK),
        (("logs",), 4, QUICK),
        (("down --confirm other",), 5, ("httpx", "rich")),
        (("doctor",), None, ("rich", "yaml")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_quick_commands_import_nothing_heavy(
    lines: tuple[str, ...], code: int | None, absent: tuple[str, ...]
) -> None:
    """The commands of a row run one after the other in one process."""
    done = ran(*PYTHON, "-c", SCRIPT, *lines)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert [command for command, *_ in told] == list(lines)
    for command, found, names in told:
        assert code in (None, found), command
        assert sorted({*HEAVY, *absent} & set(names)) == [], command


def test_what_talks_to_a_controller_imports_nothing_heavy() -> None:
    """The dashboard neither: a recording is made without it."""
    names = (
        "llumctl.commands.status_table",
        "llumctl.commands.record",
        "controller.api.client",
        "controller.api.recording",
    )
    done = ran(*PYTHON, "-c", f"import sys, {', '.join(names)}; print(sorted(sys.modules))")
    assert not [name for name in (*HEAVY, "tui") if f"'{name}'" in done.stdout]
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ("wait --for=idly --timeout 0", "status --wait=idly --timeout 0"),
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


def test_a_stranger_named_like_a_package_of_ours_is_not_imported(tmp_path: Path) -> None:
    for name in ("controller", "tui"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('the other {name}')\n")
    program = str(Path(sys.executable).with_name("llumctl"))
    done = ran(program, "status", "--cluster", "none", PYTHONPATH=str(tmp_path))
    assert done.returncode == 3
    assert done.stderr.startswith("error: cluster none is not running\n")


CLOSED = """
import os, sys
from llumctl import __main__, app

def run(_):
    file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
    found = [file, *(os.readlink(f"/proc/self/fd/{number}") for number in range(3))]
    os.write(file, str(found).encode())
    return 0

app.run = run
for number in range(3):
    os.close(number)
__main__.main()
"""


def test_closed_standard_streams_get_their_numbers_back(tmp_path: Path) -> None:
    """A socket of ours with one of these numbers was overwritten where a process was started."""
    out = tmp_path / "out"
    subprocess.run([sys.executable, "-c", CLOSED, str(out)], check=True)
    assert out.read_text() == "[3, '/dev/null', '/dev/null', '/dev/null']"


def completed(words: str) -> list[str]:
    """The completions of a line, in words that the shell splits."""
    place = str(len(words.split(" ")) - 1)
    done = ran(*LLUMCTL, _LLUMCTL_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_commands_options_and_ids_are_completed() -> None:
    """Without a controller, in silence."""
    assert completed("llumctl eve") == ["events"]
    assert completed("llumctl status --wai") == ["--wait"]
    assert completed("llumctl drain ") == []
    assert completed("llumctl help dra") == ["drain"]
    assert completed("llumctl help lora ") == ["list", "load", "unload"]
    there = cluster(instance("i-0"), instance("i-1"), instance("i-10"))
    live = tuple(RequestStatus(**request_fields(name)) for name in ("a-1", "b-2"))
    with FakeController(status=there) as fake:
        fake.requests = RequestList(requests=live, num_matching=len(live))
        remember(fake.url)
        assert completed("llumctl migrate a-1 --to i-1") == ["i-1", "i-10"]
        assert completed("llumctl requests b") == ["b-2"]
        fake.status = synthetic.two_models()
        assert completed("llumctl scale --model s") == ["small"]
    assert completed("llumctl drain ") == [], "it is gone"
