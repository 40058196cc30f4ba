"""`llumctl logs`: which file, its last lines, and what happens to it while it is followed."""

import os
from pathlib import Path

import pytest

from controller.api.state import log_tail, run_state
from controller.api.state.log_tail import LogTail, harmless
from llumctl import output
from tests.unit.cli_process import interrupted, llumctl, reader_left
from tests.unit.cli_support import Cli


@pytest.fixture
def logs() -> Path:
    """The log folder of a cluster that was stopped: it left no run state."""
    folder = run_state.state_dir("default") / "logs"
    folder.mkdir()
    return folder


def numbered(count: int) -> str:
    return "".join(f"line {n}\n" for n in range(count))


@pytest.mark.parametrize("block_bytes", [7, log_tail.BLOCK_BYTES])
def test_the_controllers_last_lines(
    logs: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(log_tail, "BLOCK_BYTES", block_bytes)
    lines = [*numbered(119).splitlines(), "a line without an end"]
    (logs / "controller.log").write_text("\n".join(lines))
    assert cli.out("logs").splitlines() == lines[-101:]
    assert cli.out("logs", "-n", "0").splitlines() == []
    for count in (1, 118, 119, 120):
        assert cli.out("logs", "-n", str(count)).splitlines() == lines[-count - 1 :]


def test_all_of_them_behind_their_names_and_no_other(logs: Path, cli: Cli) -> None:
    for name in ("i-10", "i-2", "controller"):
        (logs / f"{name}.log").write_text(f"of {name}\nmore\n")
    (logs / "plan.json").write_text("no log")
    assert cli.out("logs", "--all", "-n", "1").splitlines() == [
        "controller | more",
        "i-2        | more",
        "i-10       | more",
    ]
    for wrong in ("../logs/i-2", "i-2.log", "", "i-1"):
        assert "with one of controller, i-2, i-10" in cli("logs", wrong, code=4).err


def test_a_search_shows_the_last_lines_with_the_text(logs: Path, cli: Cli) -> None:
    lines = [f"line {n} {'Error' if n % 50 == 0 else 'fine'}" for n in range(400)]
    (logs / "controller.log").write_text("\n".join([*lines, "\x1b[31mer\x1b[0mror, no end"]))
    hits = [line for line in lines if "Error" in line]
    assert cli.out("logs", "--grep", "Error").splitlines() == hits
    assert len(cli.out("logs", "--grep", "error").splitlines()) == len(hits) + 1
    assert cli.out("logs", "--grep", "Error", "-n", "2").splitlines() == hits[-2:]
    assert cli.out("logs", "--grep", "error", "-n", "0") == ""
    for text in ("ERROR", "e.*r", "lines"):
        told = f"no line of the log of controller has {text!r} so far: {logs}/controller.log\n"
        assert cli("logs", "--grep", text) == ("", told)
    (logs / "i-0.log").write_text("of i-0\nan error\n")
    found = cli.out("logs", "--all", "--grep", "error", "-n", "1").splitlines()
    assert found[1] == "i-0        | an error"
    assert cli.out("logs", "--all", "--grep", "nowhere") == ""


def test_a_log_that_may_not_be_read(logs: Path, cli: Cli) -> None:
    (logs / "i-0.log").mkdir()
    told = f"error: cannot read {logs}/i-0.log: Is a directory"
    assert cli("logs", "i-0", code=1).err.startswith(told)


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_what_is_added_comes_line_by_line(logs: Path) -> None:
    path = logs / "i-0.log"
    path.write_text("a\nb")
    tail = LogTail(path)
    assert tail.last(5) == ["a"]
    assert tail.added() == []
    add(path, "c\nd")
    assert tail.added() == ["bc"]
    assert tail.unfinished() == ["d"]
    assert tail.unfinished() == []
    tail.close()


def test_a_log_that_is_replaced_or_truncated_is_read_from_its_start(logs: Path) -> None:
    path = logs / "i-0.log"
    tail = LogTail(path)
    assert tail.last(3) == tail.added() == [], "it is not there yet"
    path.write_text("a\n")
    assert tail.added() == ["a"]
    add(path, "last words\nunfinished")
    path.unlink()
    assert tail.added() == ["last words"]
    path.write_text("new\n")
    assert tail.added() == ["unfinished", "new"]
    os.truncate(path, 0)
    add(path, "x\n")
    assert tail.added() == ["x"]
    tail.close()


def test_a_line_without_an_end_does_not_grow_for_ever(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tail, "MAX_LINE_BYTES", 10)
    (logs / "i-0.log").write_text("x" * 11)
    tail = LogTail(logs / "i-0.log")
    assert tail.added() == ["x" * 11]
    tail.close()


def test_on_a_terminal_a_log_is_harmless() -> None:
    for line, shown in (
        ("plain\ttab 模型", "plain\ttab 模型"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("10%\r50%\r100%", "100%"),
        ("windows\r", "windows"),
    ):
        assert harmless(line) == shown


def test_only_a_terminal_is_protected(
    logs: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (logs / "i-0.log").write_bytes(b"\x1b[31mred\x1b[0m \xff\n")
    assert cli.out("logs", "i-0").splitlines() == ["\x1b[31mred\x1b[0m \\xff"]
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    assert cli.out("logs", "i-0").splitlines() == ["red \\xff"]


@pytest.mark.process
def test_following_hears_of_members_that_begin_later_until_ctrl_c(logs: Path) -> None:
    (logs / "i-0.log").write_text(numbered(3))
    with llumctl("logs", "-f", "--all", "-n", "1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "i-0 | line 2\n"
        (logs / "i-1.log").write_text("b\n")
        assert process.stdout.readline() == "i-1 | b\n"
        add(logs / "i-0.log", "more\n")
        assert process.stdout.readline() == "i-0 | more\n"
        assert interrupted(process) == (130, "")


@pytest.mark.process
def test_a_search_follows_over_a_new_file_of_the_member(logs: Path) -> None:
    path = logs / "i-0.log"
    path.write_text("fine\nan Error\n")
    with llumctl("logs", "-f", "i-0", "--grep", "error") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "an Error\n"
        add(path, "fine\nanother error\n")
        assert process.stdout.readline() == "another error\n"
        path.unlink()
        path.write_text("started anew\nERROR of the new process\n")
        assert process.stdout.readline() == "ERROR of the new process\n"
        assert interrupted(process) == (130, "")


@pytest.mark.process
def test_a_reader_that_leaves_ends_it_without_another_line(logs: Path) -> None:
    (logs / "controller.log").write_text("a\n")
    with llumctl("logs", "-f") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "a\n"
        assert reader_left(process) == (0, "")
