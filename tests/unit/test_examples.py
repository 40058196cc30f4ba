"""The examples work as they are shipped."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from controller.api.settings.settings import Settings
from llumctl.config import settings as llumctl_settings
from tui import actions

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = EXAMPLES / "llumctl.toml"
CLIENTS = [EXAMPLES / "stream_client.py", EXAMPLES / "priority_client.py"]


def test_the_configuration_is_written_from_the_settings_and_is_the_defaults() -> None:
    from tools import example_config

    assert CONFIG.read_text() == example_config.text(), "`make reference` writes it anew"
    assert llumctl_settings.load(config=CONFIG, environ={}) == Settings()
    written = tomllib.loads(CONFIG.read_text())
    assert written == json.loads(Settings().model_dump_json(exclude_none=True)), "none is left out"


def test_configurations_of_the_page_and_with_every_key_uncommented_are_valid() -> None:
    commented = re.compile(r"^# (?=[a-z0-9_]+ = )", re.MULTILINE)
    settings = Settings.model_validate(tomllib.loads(commented.sub("", CONFIG.read_text())))
    assert settings.cluster.ray_address
    assert actions.checked_keymap(settings.keys).keys() == settings.keys.keys()
    text = (EXAMPLES.parent / "docs" / "several-machines.md").read_text()
    blocks = re.findall(r"^```\n(\[[a-z]+\]\n.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        Settings.model_validate(tomllib.loads(block))


@pytest.mark.parametrize("client", CLIENTS, ids=lambda path: path.name)
def test_a_client_says_that_nobody_listens(client: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(client), "--base-url", "http://127.0.0.1:1/v1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(r"\n?error: .*connection.*\n", done.stderr, re.IGNORECASE)


FAKE_LLUMCTL = """#!/bin/sh
echo "$1" >>"$CALLS"
case $1 in
    status) echo "$STATUS"; exit "${STATUS_CODE:-0}" ;;
    drain) exit "${DRAIN_CODE:-0}" ;;
    scale) exit "${SCALE_CODE:-0}" ;;
esac
"""


def called(folder: Path, name: str, *arguments: str, **extra: str) -> tuple[int, list[str]]:
    """The exit code of a script and the orders that it gave, with a llumctl that does nothing."""
    command, calls = folder / "llumctl", folder / "calls"
    command.write_text(FAKE_LLUMCTL)
    command.chmod(0o755)
    calls.unlink(missing_ok=True)
    instances = [{"id": "i-0", "drain": None}, {"id": "i-1", "drain": {"removes": True}}]
    environ = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "CALLS": str(calls),
        "STATUS": json.dumps({"revision": 7, "instances": instances}),
    }
    done = subprocess.run(
        [str(EXAMPLES / name), *arguments],
        env=os.environ | environ | extra,
        timeout=60,
        check=False,
        preexec_fn=_hear_hangups,
    )
    return done.returncode, calls.read_text().split()


def _hear_hangups() -> None:
    """A shell cannot trap what was ignored when it began, as under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


DRAIN = "drain-for-maintenance.sh"
SCALE = "nightly-scale.sh"


BACK = ["status", "drain", "uncordon"]


def test_a_script_orders(tmp_path: Path) -> None:
    environ: dict[str, str]
    for command, environ, code, calls in (
        ([DRAIN, "i-0", "sh", "-c", "exit 3"], {}, 3, BACK),
        ([DRAIN, "i-0", "sh", "-c", "kill -HUP $PPID"], {}, 129, BACK),
        ([DRAIN, "i-0", "true"], {"DRAIN_CODE": "124"}, 124, BACK),
        ([DRAIN, "i-0", "true"], {"DRAIN_CODE": "5"}, 5, ["status", "drain"]),
        ([DRAIN, "i-1", "true"], {}, 5, ["status"]),
        ([SCALE, "2"], {"SCALE_CODE": "6"}, 6, ["status", "scale"] * 3),
    ):
        assert called(tmp_path, *command, **environ) == (code, calls)
