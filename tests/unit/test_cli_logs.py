"""`llumctl logs`: which file, its last lines, and what happens to it while it is followed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.api.state import log_tail, run_state
from controller.api.state.log_tail import LogTail, harmless
from llumctl import output
from llumctl.app import run
from tests.unit.cli_process import interrupted, llumctl, reader_left
from tests.unit.cli_support import remember

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The log folder of a cluster that was stopped: it left no run state."""
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = run_state.state_dir("default") / "logs"
    folder.mkdir()
    return folder


def numbered(count: int) -> str:
    return "".join(f"line {n}\n" for n in range(count))


def told(capsys: Captured, *arguments: str) -> list[str]:
    assert run(["logs", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def test_the_controllers_last_lines(logs: Path, capsys: Captured) -> None:
    (logs / "controller.log").write_text(numbered(300))
    assert told(capsys) == numbered(300).splitlines()[-100:]
    assert told(capsys, "-n", "2") == ["line 298", "line 299"]
    assert told(capsys, "-n", "0") == []
    assert len(told(capsys, "-n", "1000")) == 300


def test_last_lines_of_a_file_of_many_blocks(
    logs: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tail, "BLOCK_BYTES", 7)
    (logs / "i-0.log").write_text(numbered(50))
    for count in (1, 3, 49, 50, 51):
        assert told(capsys, "i-0", "-n", str(count)) == numbered(50).splitlines()[-count:]


def test_a_last_line_without_an_end_is_shown(logs: Path, capsys: Captured) -> None:
    (logs / "i-0.log").write_text("a\nb")
    assert told(capsys, "i-0") == ["a", "b"]


@pytest.mark.parametrize("written", ["", "\n", "\n\n "])
def test_a_log_without_a_word_is_said_to_be_empty(
    logs: Path, capsys: Captured, written: str
) -> None:
    """That of an emulated instance is."""
    (logs / "i-0.log").write_text(written)
    assert run(["logs", "i-0"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"the log of i-0 is empty so far: {logs / 'i-0.log'}\n"
    assert told(capsys, "--all") == []


def test_a_running_clusters_logs_are_where_its_run_state_says(logs: Path, capsys: Captured) -> None:
    (logs / "i-0.log").write_text("left by the last one\n")
    state = remember("http://127.0.0.1:1")
    assert state.log_dir == "/l"
    assert run(["logs", "i-0"]) == 4
    assert "cluster default has left no logs" in capsys.readouterr().err


def test_all_of_them_behind_their_names(logs: Path, capsys: Captured) -> None:
    for name in ("i-10", "i-2", "controller"):
        (logs / f"{name}.log").write_text(f"of {name}\nmore\n")
    (logs / "plan.json").write_text("no log")
    assert told(capsys, "--all", "-n", "1") == [
        "controller | more",
        "i-2        | more",
        "i-10       | more",
    ]


def test_an_unknown_member(logs: Path, capsys: Captured) -> None:
    for name in ("i-10", "i-2", "controller"):
        (logs / f"{name}.log").write_text("")
    for wrong in ("i-1", "../logs/i-2", "i-2.log", ""):
        assert run(["logs", wrong]) == 4
    err = capsys.readouterr().err
    assert "error: cluster default has no log of 'i-1'\n" in err
    assert "try:   llumctl logs ID      with one of controller, i-2, i-10\n" in err


@pytest.mark.parametrize("arguments", [(), ("i-0",), ("--all",), ("-f",)])
def test_no_logs_at_all(logs: Path, arguments: tuple[str, ...], capsys: Captured) -> None:
    logs.rmdir()
    assert run(["logs", *arguments]) == 4
    assert capsys.readouterr().err == (
        "error: cluster default has left no logs\ntry:   llumctl up\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-n", "-1"), "--lines: must be 0 or more, not -1"),
        (("--all", "i-0"), "--all: not with a member; 'i-0' is one of all"),
        (("--cluster", "No!"), "--cluster: 'No!' is not a cluster name"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], message: str, capsys: Captured) -> None:
    assert run(["logs", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_log_that_may_not_be_read(
    logs: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (logs / "i-0.log").mkdir()
    assert run(["logs", "i-0"]) == 1
    assert capsys.readouterr().err.startswith(f"error: cannot read {logs}/i-0.log: Is a directory")

    def refuse(_: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert run(["logs", "i-0"]) == 1
    assert capsys.readouterr().err.startswith(f"error: cannot read {logs}: Permission denied")


def test_what_is_added_comes_line_by_line(logs: Path) -> None:
    path = logs / "i-0.log"
    path.write_text("a\nb")
    tail = LogTail(path)
    assert tail.last(5) == ["a"]
    assert tail.added() == []
    with path.open("a") as file:
        file.write("c\nd")
    assert tail.added() == ["bc"]
    assert tail.unfinished() == ["d"]
    assert tail.unfinished() == []
    tail.close()


def test_a_replaced_log_is_read_to_its_end_and_then_anew(logs: Path) -> None:
    path = logs / "i-0.log"
    path.write_text("a\n")
    tail = LogTail(path)
    assert tail.last(0) == []
    with path.open("a") as file:
        file.write("last words\nunfinished")
    path.unlink()
    assert tail.added() == ["last words"]
    path.write_text("new\n")
    assert tail.added() == ["unfinished", "new"]
    path.write_text("")
    assert tail.added() == []
    path.write_text("x\n")
    assert tail.added() == ["x"]
    tail.close()


def test_a_truncated_log_is_read_from_its_start(logs: Path) -> None:
    path = logs / "i-0.log"
    path.write_text(numbered(5))
    tail = LogTail(path)
    assert len(tail.last(9)) == 5
    os.truncate(path, 0)
    with path.open("a") as file:
        file.write("anew\n")
    assert tail.added() == ["anew"]
    tail.close()


def test_a_log_that_is_not_there_yet(logs: Path) -> None:
    tail = LogTail(logs / "i-0.log")
    assert tail.last(3) == []
    assert tail.added() == []
    (logs / "i-0.log").write_text("begins\n")
    assert tail.added() == ["begins"]
    tail.close()


def test_a_line_without_an_end_does_not_grow_for_ever(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tail, "MAX_LINE_BYTES", 10)
    (logs / "i-0.log").write_text("x" * 11)
    tail = LogTail(logs / "i-0.log")
    assert tail.added() == ["x" * 11]
    tail.close()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain\ttab 模型", "plain\ttab 模型"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("10%\r50%\r100%", "100%"),
        ("windows\r", "windows"),
        ("\u202eevil\x9b", "\\u202eevil\\x9b"),
    ],
)
def test_on_a_terminal_a_log_is_harmless(line: str, shown: str) -> None:
    assert harmless(line) == shown


def test_only_a_terminal_is_protected(
    logs: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (logs / "i-0.log").write_bytes(b"\x1b[31mred\x1b[0m \xff\n")
    assert told(capsys, "i-0") == ["\x1b[31mred\x1b[0m \\xff"]
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    assert told(capsys, "i-0") == ["red \\xff"]


@pytest.mark.process
def test_follow_until_ctrl_c(logs: Path) -> None:
    path = logs / "controller.log"
    path.write_text(numbered(3))
    with llumctl("logs", "-f", "-n", "1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "line 2\n"
        with path.open("a") as file:
            file.write("more\n")
        assert process.stdout.readline() == "more\n"
        assert interrupted(process) == (130, "")


@pytest.mark.process
def test_follow_all_hears_of_members_that_begin_later(logs: Path) -> None:
    (logs / "i-0.log").write_text("a\n")
    with llumctl("logs", "-f", "--all") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "i-0 | a\n"
        (logs / "i-1.log").write_text("b\n")
        assert process.stdout.readline() == "i-1 | b\n"
        assert interrupted(process) == (130, "")


@pytest.mark.process
def test_a_reader_that_leaves_ends_it_without_another_line(logs: Path) -> None:
    (logs / "controller.log").write_text("a\n")
    with llumctl("logs", "-f") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "a\n"
        assert reader_left(process) == (0, "")
