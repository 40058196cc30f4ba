"""When a cluster was stopped, and by whom, by the audit log, whatever else is in that file."""

import json
import os
from datetime import UTC
from pathlib import Path

import pytest

from controller.api.state import run_state
from controller.api.state.audit import AuditLog, last_stop, last_stop_words
from controller.api.text.quantities import moment
from controller.main import down
from tests.unit.cli_support import remember


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def audit() -> AuditLog:
    return AuditLog(run_state.state_dir("default"))


def write(action: str, actor: str = "ana@head") -> None:
    audit().write(actor=actor, action=action, target="", outcome="done", cause_id="x")


def test_the_last_down_counts_whatever_was_done_since() -> None:
    assert last_stop("default") is None
    assert last_stop_words("default") == "cluster default was stopped"
    write("scale +1")
    assert last_stop("default") is None
    write("down: now", "bob@head")
    write("down: drain", "ana@head")
    write("scale +1", "eve@head")
    found = last_stop("default")
    assert found is not None
    assert found.actor == "ana@head"
    assert last_stop_words("default") == f"cluster default was stopped at {found.words()}"


@pytest.mark.parametrize(
    "junk",
    [
        b"{",
        b"[]\n",
        b'{"action": "down: x", "time_s": "soon", "actor": "a"}\n',
        b'{"action": "down: x", "time_s": 1, "actor": 5}\n',
    ],
)
def test_lines_that_are_no_entries_are_passed_over(junk: bytes) -> None:
    write("down: drain")
    with audit().path.open("ab") as file:
        file.write(junk)
    found = last_stop("default")
    assert found is not None
    assert found.actor == "ana@head"


def test_a_pipe_in_place_of_the_log_holds_nobody_up() -> None:
    os.mkfifo(audit().path)
    assert last_stop("default") is None


def test_what_an_actor_calls_itself_drives_no_terminal() -> None:
    write("down: now")
    line = audit().path.read_text().replace("ana@head", "\\u001b[2Jana")
    audit().path.write_text(line)
    found = last_stop("default")
    assert found is not None
    assert found.actor == "?[2Jana"


def test_down_leaves_its_end_on_the_record_before_the_run_state_goes() -> None:
    state = remember("http://127.0.0.1:1")
    assert down.run(state.cluster, drain=False, timeout_s=0.1, progress=lambda _: None)
    entries = [json.loads(line) for line in audit().path.read_text().splitlines()]
    assert [(each["action"], each["outcome"]) for each in entries] == [
        ("down: now", "begun"),
        ("down: now", "done"),
    ]
    found = last_stop("default")
    assert found is not None
    assert found.time_s == entries[1]["time_s"]


def test_moments_of_another_day_have_their_date() -> None:
    noon_s = 1_767_268_800.0
    assert moment(noon_s, noon_s + 60, UTC) == "12:00:00"
    assert moment(noon_s, noon_s + 86_400, UTC) == "2026-01-01 12:00:00"
    assert moment(float("inf"), noon_s, UTC) == "--:--:--"
