"""The examples work as they are shipped."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from controller.api.settings.settings import OPEN_TABLES, PriorityTable, Settings, table_model
from controller.api.settings.table import kinds
from controller.core.admission.policies import POLICIES
from llumctl.config import settings as llumctl_settings
from tui import actions

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = EXAMPLES / "llumctl.toml"
CLIENTS = [EXAMPLES / "stream_client.py", EXAMPLES / "priority_client.py"]
SCRIPTS = {"drain-for-maintenance.sh": "INSTANCE COMMAND...", "nightly-scale.sh": "INSTANCES"}

_COMMENTED_KEY = re.compile(r"^# (?=[a-z0-9_]+ = )", re.MULTILINE)
_KEY = re.compile(r"^(?:# )?([a-z0-9_]+)(?: = |: )", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """The text of each table by its name; repeated tables are joined."""
    _, *parts = re.split(r"^\[{1,2}([a-z]+)\]{1,2}\n", text, flags=re.MULTILINE)
    found: dict[str, str] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        found[name] = found.get(name, "") + body
    return found


def uncommented() -> dict[str, Any]:
    return tomllib.loads(_COMMENTED_KEY.sub("", CONFIG.read_text()))


def test_the_configuration_as_shipped_is_the_defaults() -> None:
    assert llumctl_settings.load(config=CONFIG, environ={}) == Settings()


def test_the_configuration_is_written_from_the_settings() -> None:
    from tools import example_config

    assert CONFIG.read_text() == example_config.text(), "`make reference` writes it anew"


def test_each_default_is_written_out() -> None:
    """Not merely left out: every key of the file's tables has its default's value."""
    written = tomllib.loads(CONFIG.read_text())
    assert written == json.loads(Settings().model_dump_json(exclude_none=True))


def test_every_key_of_every_table_is_there() -> None:
    found = sections(CONFIG.read_text())
    assert list(found) == list(Settings.model_fields)
    for table in found.keys() - set(OPEN_TABLES):
        assert set(_KEY.findall(found[table])) == set(kinds(table_model(table))), table


def test_the_configuration_with_every_key_uncommented_is_valid() -> None:
    data = uncommented()
    settings = Settings.model_validate(data)
    assert settings.cluster.ray_address
    assert settings.endpoint.api_key_file
    assert settings.engine
    assert actions.checked_keymap(settings.keys).keys() == settings.keys.keys()


def test_the_configuration_names_every_policy_and_level() -> None:
    found = sections(CONFIG.read_text())
    assert all(policy in found["scheduler"] for policy in POLICIES)
    assert all(isinstance(level, PriorityTable) for level in Settings().priority)


def each_client() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("client", CLIENTS, ids=lambda path: path.name)


@each_client()
def test_a_client_explains_itself(client: Path) -> None:
    compile(client.read_text(), str(client), "exec")
    done = subprocess.run(
        [sys.executable, str(client), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for option in ("--base-url", "--model"):
        assert option in done.stdout


@each_client()
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


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_it_wants(name: str) -> None:
    """Both run against a cluster in tests/e2e/test_steering.py."""
    script = EXAMPLES / name
    done = subprocess.run([str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"usage: {script} {SCRIPTS[name]}\n"


FAKE_LLUMCTL = """#!/bin/sh
echo "$1" >>"$CALLS"
case $1 in
    status) echo "$STATUS"; exit "${STATUS_CODE:-0}" ;;
    drain) exit "${DRAIN_CODE:-0}" ;;
    scale) exit "${SCALE_CODE:-0}" ;;
esac
"""


class Called:
    """A script that ran with a llumctl that does nothing but note what it is asked for."""

    def __init__(self, folder: Path, name: str, *arguments: str, **extra: str) -> None:
        command, calls = folder / "llumctl", folder / "calls"
        command.write_text(FAKE_LLUMCTL)
        command.chmod(0o755)
        instances = [{"id": "i-0", "drain": None}, {"id": "i-1", "drain": {"removes": True}}]
        done = subprocess.run(
            [str(EXAMPLES / name), *arguments],
            env=os.environ
            | {
                "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
                "CALLS": str(calls),
                "STATUS": json.dumps({"revision": 7, "instances": instances}),
                **extra,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            preexec_fn=_hear_hangups,
        )
        self.code, self.stderr = done.returncode, done.stderr
        self.calls = calls.read_text().split()


def _hear_hangups() -> None:
    """A shell cannot trap what was ignored when it began, as under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


DRAIN = "drain-for-maintenance.sh"
SCALE = "nightly-scale.sh"


def test_maintenance_puts_the_instance_back(tmp_path: Path) -> None:
    found = Called(tmp_path, DRAIN, "i-0", "sh", "-c", "exit 3")
    assert (found.code, found.calls) == (3, ["status", "drain", "uncordon"])


def test_maintenance_after_a_hangup_too(tmp_path: Path) -> None:
    found = Called(tmp_path, DRAIN, "i-0", "sh", "-c", "kill -HUP $PPID")
    assert (found.code, found.calls) == (129, ["status", "drain", "uncordon"])


def test_maintenance_leaves_the_drain_of_another_alone(tmp_path: Path) -> None:
    found = Called(tmp_path, DRAIN, "i-1", "true")
    assert (found.code, found.calls) == (5, ["status"])
    assert "i-1 is being drained already" in found.stderr


@pytest.mark.parametrize("code", [4, 5, 6])
def test_maintenance_undoes_no_drain_that_was_refused(tmp_path: Path, code: int) -> None:
    found = Called(tmp_path, DRAIN, "i-0", "true", DRAIN_CODE=str(code))
    assert (found.code, found.calls) == (code, ["status", "drain"])


def test_maintenance_undoes_a_drain_that_took_too_long(tmp_path: Path) -> None:
    found = Called(tmp_path, DRAIN, "i-0", "true", DRAIN_CODE="124")
    assert (found.code, found.calls) == (124, ["status", "drain", "uncordon"])


@pytest.mark.parametrize(("name", "arguments"), [(DRAIN, ("i-0", "true")), (SCALE, ("2",))])
def test_a_script_ends_as_status_did(tmp_path: Path, name: str, arguments: tuple[str, ...]) -> None:
    found = Called(tmp_path, name, *arguments, STATUS_CODE="3")
    assert (found.code, found.calls) == (3, ["status"])


def test_the_night_looks_again_if_the_cluster_changed(tmp_path: Path) -> None:
    found = Called(tmp_path, SCALE, "2", SCALE_CODE="6")
    assert (found.code, found.calls) == (6, ["status", "scale"] * 3)


def test_configurations_in_the_texts_are_valid() -> None:
    text = (EXAMPLES.parent / "docs" / "several-machines.md").read_text()
    blocks = re.findall(r"^```\n(\[[a-z]+\]\n.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        Settings.model_validate(tomllib.loads(block))
