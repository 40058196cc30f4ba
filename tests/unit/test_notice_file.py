"""The file on a machine that says that the machine will be taken away."""

import logging
import os
from pathlib import Path

import pytest

from controller.adapters.files.notice_file import NoticeFile


class Machine:
    def __init__(self, folder: Path) -> None:
        self.now_s = 1000.0
        self.path = folder / "leave"
        self.notice = NoticeFile(self.path, 30.0, lambda: self.now_s)

    def says(self, text: str) -> None:
        self.path.write_text(text, encoding="utf-8")
        os.utime(self.path, ns=(int(self.now_s * 1e9), int(self.now_s * 1e9)))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_file_comes_counts_down_changes_and_goes(machine: Machine) -> None:
    assert machine.notice.leaves_in_s() is None
    machine.says("")
    assert machine.notice.leaves_in_s() == 30.0
    machine.now_s += 4.0
    assert machine.notice.leaves_in_s() == 26.0
    machine.says("10")
    assert machine.notice.leaves_in_s() == 10.0
    machine.now_s += 12.0
    assert machine.notice.leaves_in_s() == -2.0
    machine.says("10")
    assert machine.notice.leaves_in_s() == 10.0, "it was written again"
    machine.says("FALSE")
    assert machine.notice.leaves_in_s() is None
    machine.says("5")
    machine.path.unlink()
    assert machine.notice.leaves_in_s() is None


@pytest.mark.parametrize("text", ["<html>", "x" * 5000, '{"a":' * 600, "\0"])
def test_what_cannot_be_understood_is_said_once_and_is_no_notice(
    machine: Machine, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    caplog.set_level(logging.WARNING)
    machine.says(text)
    assert [machine.notice.leaves_in_s() for _ in range(3)] == [None] * 3
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [
        f"{machine.path} is no notice"
    ]


def test_a_folder_or_bytes_that_are_no_text_are_no_notice(machine: Machine, tmp_path: Path) -> None:
    machine.path.write_bytes(b"\xff\xfe")
    assert machine.notice.leaves_in_s() is None
    assert NoticeFile(tmp_path, 30.0).leaves_in_s() is None
    assert NoticeFile(machine.path / "below", 30.0).leaves_in_s() is None
