"""The audit log on a disk that fills up: an operation that cannot be recorded is not done."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.api.errors import LlumctlError
from controller.api.state.audit import AuditLog


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path)


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A disk that takes only this many bytes of a write."""
    write = os.write

    def takes(num_bytes: int) -> None:
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:num_bytes]))

    return takes


def note(log: AuditLog, action: str, actor: str = "me") -> None:
    log.write(actor=actor, action=action, target="i-0", outcome="begun", cause_id="op-1")


def test_an_entry_is_a_short_line_that_only_its_owner_reads(log: AuditLog) -> None:
    note(log, "x" * 5000, "ana\n{}\x1b[2J")
    note(log, "undrain i-0")
    found = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [entry["action"] for entry in found] == ["x" * 200, "undrain i-0"]
    assert found[0]["actor"] == "ana?{}?[2J"
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_an_entry_that_was_cut_is_a_failure_and_spoils_no_other(
    log: AuditLog, cut: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    note(log, "drain i-0")
    cut(20)
    with pytest.raises(LlumctlError, match="No space left on device"):
        note(log, "drain i-1")
    monkeypatch.undo()
    note(log, "drain i-2")
    first, torn, last = log.path.read_text().splitlines()
    assert json.loads(first)["action"] == "drain i-0"
    assert len(torn) == 20
    assert json.loads(last)["action"] == "drain i-2"
