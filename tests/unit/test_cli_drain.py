"""`llumctl drain`, `uncordon`, `status --wait=drained=ID`: what is asked for, said, exited with."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.api.errors import LlumctlError
from controller.api.operations.on_instances import (
    CannotMove,
    CordonReport,
    DrainList,
    DrainReport,
    PlannedDeparture,
)
from controller.api.state import run_state
from controller.api.wire import ErrorBody
from llumctl.app import run
from llumctl.commands import instances
from tests.unit.cli_process import LIMIT_S, interrupted, llumctl
from tests.unit.cli_support import cluster, instance, remember
from tests.unit.fake_controller import Answer, FakeController, meanwhile, until

Captured = pytest.CaptureFixture[str]
NO_ROOM = CannotMove(
    request_id="r-3", client_id="cmpl-3", code="no_room", why="no instance has 118 free blocks"
)
PLAN = (
    PlannedDeparture(
        request_id="r-1", client_id="cmpl-1", num_tokens=70, num_blocks=5, to_instance_id="i-0"
    ),
    PlannedDeparture(
        request_id="r-3",
        client_id="cmpl-3",
        num_tokens=1888,
        num_blocks=118,
        code=NO_ROOM.code,
        why=NO_ROOM.why,
    ),
)


def report(instance_id: str = "i-1", state: str = "draining", **fields: Any) -> DrainReport:
    known: dict[str, Any] = {"drain_id": "d-1", "revision": 4, "num_requests_left": 2}
    if state in ("drained", "removed"):
        known |= {"num_requests_left": 0, "safe_to_delete": True}
    return DrainReport(instance_id=instance_id, state=state, **(known | fields))


class Bed:
    """Two instances; drains are what the test says."""

    def __init__(self, fake: FakeController) -> None:
        self.fake = fake
        fake.status = cluster(instance("i-0"), instance("i-1"))
        self.drains: list[DrainReport] = []
        self.plan = report(state="active", plan=PLAN, dry_run=True, changes=True)
        self.refusal: Answer | None = None
        fake.orders = {
            "GET /v1/drains": lambda _: (200, DrainList(drains=tuple(self.drains))),
            "POST /v1/instances/i-1/drain": self.drain,
            "POST /v1/instances/i-2/drain": self.drain,
            "POST /v1/instances/i-1/undrain": self.undrain,
            "POST /v1/instances/i-1/uncordon": self.uncordon,
        }

    def drain(self, body: dict[str, Any]) -> Answer:
        if self.refusal is not None:
            return self.refusal
        if body["dry_run"]:
            return 200, self.plan
        self.drains = self.drains or [report(num_moving=1)]
        return 200, self.drains[-1]

    def undrain(self, body: dict[str, Any]) -> Answer:
        if not self.drains:
            return refused("not_draining", 409, "i-1 is not being drained")
        dry_run = body["dry_run"]
        if not dry_run:
            self.drains = []
        state = "draining" if dry_run else "active"
        return 200, report(state=state, revision=5, dry_run=dry_run, changes=True)

    def uncordon(self, body: dict[str, Any]) -> Answer:
        """It is not cordoned."""
        closed_by = ("draining",) if self.drains else ()
        return 200, CordonReport(
            instance_id="i-1", cordoned=False, closed_by=closed_by, dry_run=body["dry_run"]
        )

    def bodies(self, name: str = "drain") -> list[dict[str, Any]]:
        return [body for path, body in self.fake.ordered if path.endswith(name)]

    def until_watched(self, times: int = 2) -> None:
        self.fake.until_asked("/v1/drains", times + self.fake.asked.count("/v1/drains"))


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("llumctl.commands.instances.POLL_S", 0.01)
    monkeypatch.setattr("llumctl.commands.waiting.DRAINS_POLL_S", 0.01)
    with FakeController() as served:
        remember(served.url)
        yield Bed(served)


def test_it_is_followed_until_it_is_safe_to_delete(bed: Bed, capsys: Captured) -> None:
    def happen() -> None:
        bed.until_watched()
        bed.drains = [report(num_requests_left=1, num_moved=1, estimate_s=14.2)]
        bed.until_watched()
        bed.drains = [report(state="drained", num_moved=2, reason="new GPU", actor="ana@head")]

    with meanwhile(happen):
        assert run(["drain", "i-1", "-y", "-m", "new GPU"]) == 0
    assert "/v1/status" not in bed.fake.asked, "the drains say it all"
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "i-1: 2 left, 1 moving, 0 moved",
        "i-1: 1 left, 0 moving, 1 moved, ~14s",
        "i-1: safe to delete (2 moved)",
    ]
    assert [line.split() for line in captured.out.splitlines()] == [
        ["ID", "STATE", "LEFT", "MOVING", "MOVED", "ESTIMATE", "DEADLINE", "SAFE-TO-DELETE"],
        ["i-1", "drained", "0", "0", "2", "-", "-", "yes"],
    ]
    (body,) = bed.bodies()
    assert body == {
        "deadline_s": None,
        "on_deadline": "keep",
        "dry_run": False,
        "force": False,
        "with_ids": [],
        "reason": "new GPU",
        "if_revision": None,
    }


def test_what_cannot_move_is_named_and_waited_for(bed: Bed, capsys: Captured) -> None:
    bed.drains = [report(cannot_move=(NO_ROOM,))]

    def happen() -> None:
        bed.until_watched()
        bed.drains = [report(state="drained")]

    with meanwhile(happen):
        assert run(["drain", "i-1", "-y"]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first.endswith("; 1 request cannot move (no instance has 118 free blocks)")


def test_a_deadline_that_passes(bed: Bed, capsys: Captured) -> None:
    late = report(cannot_move=(NO_ROOM,), deadline_s=time.time() - 1)
    bed.drains = [late]
    assert run(["drain", "i-1", "-y", "--deadline", "1m"]) == 124
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-2:] == [
        "error: drain i-1 timed out after 1m00s: 1 request cannot move (no instance has 118 free"
        " blocks); it goes on",
        "try:   llumctl scale +1      or      llumctl drain i-1 --deadline 120",
    ]
    assert "passed" in captured.out
    assert captured.out.splitlines()[-1].split()[:2] == ["r-3", "cmpl-3"]
    assert bed.bodies()[0]["deadline_s"] == 60.0


def test_a_deadline_that_ends_the_drain(bed: Bed, capsys: Captured) -> None:
    """Shortly after the deadline, when the controller has seen to it."""
    deadline_s = time.time() - 1
    bed.drains = [report(cannot_move=(NO_ROOM,), deadline_s=deadline_s, on_deadline="abort")]

    def happen() -> None:
        bed.until_watched()
        bed.drains = []

    with meanwhile(happen):
        arguments = ("--deadline", "30", "--on-deadline", "abort")
        assert run(["drain", "i-1", "-y", *arguments]) == 124
    captured = capsys.readouterr()
    assert "timed out after 30s: 1 request cannot move" in captured.err
    assert captured.err.splitlines()[-2].endswith("; it was given up")
    assert bed.bodies()[0]["on_deadline"] == "abort"


@pytest.mark.parametrize(
    ("on_deadline", "code", "words"), [("keep", 1, "was taken back"), ("abort", 124, "given up")]
)
def test_a_drain_that_is_none_any_more_after_its_deadline(
    on_deadline: str, code: int, words: str
) -> None:
    """By its deadline only one that was to be given up ends; else somebody took it back."""
    passed = report(state="active", deadline_s=time.time() - 1, on_deadline=on_deadline)
    with pytest.raises(LlumctlError, match=words) as error:
        instances.check_done((passed,), 60.0)
    assert error.value.exit_code == code


def test_a_drain_that_somebody_takes_back(bed: Bed, capsys: Captured) -> None:
    def happen() -> None:
        bed.until_watched()
        bed.drains = []

    with meanwhile(happen):
        assert run(["drain", "i-1", "-y"]) == 1
    captured = capsys.readouterr()
    assert "error: the drain of i-1 was taken back before it was over\n" in captured.err
    assert captured.out.splitlines()[1].split()[:2] == ["i-1", "active"]


def test_detached_it_returns_at_once(bed: Bed, capsys: Captured) -> None:
    assert run(["drain", "i-1", "-y", "--detach"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines()[1].split()[:5] == ["i-1", "draining", "2", "1", "0"]
    assert bed.fake.asked == []


def test_a_dry_run_shows_the_plan(bed: Bed, capsys: Captured) -> None:
    assert run(["drain", "i-1", "--dry-run"]) == 10
    captured = capsys.readouterr()
    assert captured.err == ""
    table = captured.out.split("\n\n")[1].splitlines()
    assert table[0] == "i-1:"
    assert [line.split()[:5] for line in table[1:]] == [
        ["REQUEST", "CLIENT-ID", "TOKENS", "BLOCKS", "TO"],
        ["r-1", "cmpl-1", "70", "5", "i-0"],
        ["r-3", "cmpl-3", "1888", "118", "-"],
    ]
    assert table[-1].endswith("no instance has 118 free blocks")
    assert [body["dry_run"] for body in bed.bodies()] == [True]
    bed.plan = report(dry_run=True)
    assert run(["drain", "i-1", "--dry-run"]) == 0, "it is draining already"
    bed.plan = report(dry_run=True, changes=True)
    assert run(["drain", "i-1", "--dry-run"]) == 10, "but with another deadline"


def test_the_machine_formats(bed: Bed, capsys: Captured) -> None:
    arguments = ["drain", "i-1", "--dry-run", "-o"]
    assert run([*arguments, "json"]) == 10
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(DrainList(drains=(bed.plan,)).model_dump_json())
    assert found["drains"][0]["plan"][1]["code"] == "no_room"
    assert run([*arguments, "yaml"]) == 10
    assert yaml.safe_load(capsys.readouterr().out) == found
    assert run([*arguments, "jsonl"]) == 10
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == found["drains"][0]
    assert run([*arguments, "name"]) == 10
    assert capsys.readouterr().out == "i-1\n"
    assert run([*arguments, "wide"]) == 10
    header = capsys.readouterr().out.splitlines()[0].split()
    assert header[-5:] == ["ON-DEADLINE", "THEN", "REVISION", "BY", "REASON"]


def test_a_table_lists_twenty_requests_and_wide_all(bed: Bed, capsys: Captured) -> None:
    plan = tuple(PLAN[0].model_copy(update={"request_id": f"r-{k}"}) for k in range(25))
    bed.plan = report(state="active", plan=plan, dry_run=True, changes=True)
    assert run(["drain", "i-1", "--dry-run"]) == 10
    lines = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert (len(lines), lines[-1]) == (23, "... and 5 more (-o wide)")
    assert run(["drain", "i-1", "--dry-run", "-o", "wide"]) == 10
    assert len(capsys.readouterr().out.split("\n\n")[1].splitlines()) == 27


def refused(code: str, status: int, message: str, hint: str = "llumctl status") -> Answer:
    return status, ErrorBody(code=code, message=message, hint=hint)


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (refused("last_instance", 409, "i-1 is the last one that serves"), 5, "the last one"),
        (refused("revision_conflict", 409, "the revision is 7, not 3"), 6, "revision is 7"),
        (refused("not_found", 404, "there is no instance 'i-1'"), 4, "there is no instance"),
    ],
)
def test_refusals(bed: Bed, capsys: Captured, answer: Answer, code: int, words: str) -> None:
    bed.refusal = answer
    assert run(["drain", "i-1", "-y", "--if-revision", "3"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.endswith("try:   llumctl status\n")
    assert bed.bodies()[0]["if_revision"] == 3


def test_without_a_terminal_it_does_not_act(bed: Bed, capsys: Captured) -> None:
    assert run(["drain", "i-1"]) == 5
    captured = capsys.readouterr()
    assert captured.err == (
        "error: drain asks before it acts, and there is no terminal to ask on\n"
        "try:   llumctl drain i-1 --dry-run      then      llumctl drain i-1 -y\n"
    )
    assert bed.fake.ordered == []


def test_several_one_after_the_other(bed: Bed, capsys: Captured) -> None:
    """Each on the revision that the one before left; what was begun before a refusal is said."""
    bed.drains = [report(state="drained", revision=8)]
    assert run(["drain", "i-1", "i-2", "i-1", "-y", "--detach", "--if-revision", "7"]) == 0
    assert [body["if_revision"] for body in bed.bodies()] == [7, 8]
    assert [body["with_ids"] for body in bed.bodies()] == [["i-2"], ["i-1"]]
    assert len(capsys.readouterr().out.splitlines()) == 3
    bed.fake.orders["POST /v1/instances/i-2/drain"] = lambda _: refused(
        "last_instance", 409, "i-2 is the last one"
    )
    assert run(["drain", "i-1", "i-2", "-y"]) == 5
    assert capsys.readouterr().err.startswith(
        "draining has begun: i-1 (llumctl uncordon i-1)\nerror: i-2 is the last one\n"
    )


def test_a_controller_that_is_away_is_waited_for(bed: Bed, capsys: Captured) -> None:
    def happen() -> None:
        bed.until_watched()
        bed.fake.stop()
        bed.drains = [report(state="drained")]
        bed.fake.start()

    with meanwhile(happen):
        assert run(["drain", "i-1", "-y"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "i-1: safe to delete (0 moved)"


def test_a_cluster_that_is_stopped_ends_it(bed: Bed, capsys: Captured) -> None:
    def happen() -> None:
        bed.until_watched()
        run_state.remove("default")

    with meanwhile(happen):
        assert run(["drain", "i-1", "-y"]) == 3
    assert "cluster default is not running" in capsys.readouterr().err


@pytest.mark.process
def test_ctrl_c_leaves_it_going(bed: Bed) -> None:
    with llumctl("drain", "i-1", "-y") as process:
        bed.until_watched()
        assert interrupted(process) == (
            130,
            "i-1: 2 left, 1 moving, 0 moved\n"
            "no longer watching: the drain goes on (i-1)\n"
            "try:   llumctl status --wait=drained=i-1      or      llumctl uncordon i-1\n",
        )
    assert bed.bodies("undrain") == []


class Terminal:
    """`llumctl` with stdin and stderr on a terminal, and its stdout in a pipe."""

    def __init__(self, *arguments: str) -> None:
        ours, theirs = pty.openpty()
        self._ours = ours
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "llumctl", *arguments],
            stdin=theirs,
            stderr=theirs,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TERM": "xterm"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )
        os.close(theirs)
        self.seen = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        os.close(self._ours)

    def until_seen(self, words: str) -> None:
        until(lambda: self._read() and words in self.seen)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def ended(self) -> tuple[int, str]:
        """The exit code, and what is on stdout."""
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        code = self.process.wait(LIMIT_S)
        self._read()
        return code, out

    def _read(self) -> bool:
        while select.select([self._ours], [], [], 0)[0]:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # nobody holds the other end any more
                break
            if not data:
                break
            self.seen += data.decode()
        return True


@pytest.mark.process
def test_on_a_terminal_it_asks_with_what_it_would_do(bed: Bed) -> None:
    with Terminal("drain", "i-1", "--detach") as terminal:
        terminal.until_seen("Drain i-1? [y/N] ")
        shown = terminal.seen.replace("\r", "")
        assert "i-1: 2 requests would move; 1 cannot move now\n" in shown
        assert "left: 1 of 2 serving instances, 52 of their 102 blocks free\n" in shown
        assert "cmpl-3" in shown
        terminal.type("y\n")
        code, out = terminal.ended()
    assert (code, "draining" in out) == (0, True)
    assert [(body["dry_run"], body["if_revision"]) for body in bed.bodies()] == [
        (True, None),
        (False, 4),
    ], "the answer is about what was shown"


@pytest.mark.process
def test_the_answer_is_about_the_oldest_of_the_plans(bed: Bed) -> None:
    """Something changed between the first plan and the second."""

    def second(body: dict[str, Any]) -> Answer:
        return 200, report("i-2", revision=9, dry_run=body["dry_run"], changes=True)

    bed.fake.orders["POST /v1/instances/i-2/drain"] = second
    with Terminal("drain", "i-1", "i-2", "--detach") as terminal:
        terminal.until_seen("Drain i-1, i-2? [y/N] ")
        terminal.type("y\n")
        assert terminal.ended()[0] == 0
    orders = [body for body in bed.bodies() if not body["dry_run"]]
    assert orders[0]["if_revision"] == 4


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ("n\n", 5, "error: the answer was not yes: nothing was changed"),
        ("\n", 5, "error: the answer was not yes: nothing was changed"),
        ("\x04", 5, "error: the answer was not yes: nothing was changed"),
        ("\x03", 130, "interrupted: nothing was changed"),
    ],
)
@pytest.mark.process
def test_any_other_answer_changes_nothing(bed: Bed, answer: str, code: int, words: str) -> None:
    with Terminal("drain", "i-1") as terminal:
        terminal.until_seen("[y/N] ")
        if answer == "\x03":
            terminal.process.send_signal(signal.SIGINT)
        else:
            terminal.type(answer)
        assert terminal.ended() == (code, "")
    assert words in terminal.seen
    assert [body["dry_run"] for body in bed.bodies()] == [True]


@pytest.mark.process
def test_on_a_terminal_its_progress_stays_on_one_line(bed: Bed) -> None:
    with Terminal("drain", "i-1", "-y") as terminal:
        terminal.until_seen("\r\x1b[Ki-1: 2 left, 1 moving, 0 moved")
        bed.drains = [report(num_requests_left=1, num_moved=1)]
        terminal.until_seen("\r\x1b[Ki-1: 1 left, 0 moving, 1 moved")
        bed.drains = [report(state="drained", num_moved=2)]
        assert terminal.ended()[0] == 0
    assert terminal.seen.count("\n") == 1
    assert terminal.seen.endswith("i-1: safe to delete (2 moved)\r\n")


# -- undrain ------------------------------------------------------------------------------


def test_undrain(bed: Bed, capsys: Captured) -> None:
    bed.drains = [report(state="drained")]
    assert run(["uncordon", "i-1", "--dry-run"]) == 10
    assert run(["uncordon", "i-1", "-m", "done", "--if-revision", "4"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines() == [
        "i-1: drain would be taken back, would get new requests again",
        "i-1: drain taken back, gets new requests again",
    ]
    assert bed.bodies("undrain") == [
        {"reason": "", "if_revision": None, "dry_run": True},
        {"reason": "done", "if_revision": 4, "dry_run": False},
    ]
    assert run(["uncordon", "i-1", "-o", "name"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "nothing to change\n")
    assert run(["uncordon", "i-1", "--dry-run", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["drains"] == []


def test_undrain_of_several_says_what_was_done_before_one_failed(
    bed: Bed, capsys: Captured
) -> None:
    bed.drains = [report()]
    bed.fake.orders["POST /v1/instances/i-2/undrain"] = lambda _: refused(
        "no_such_instance", 404, "there is no instance 'i-2'"
    )
    assert run(["uncordon", "i-1", "i-2"]) == 4
    assert capsys.readouterr().err.startswith(
        "i-1: drain taken back, gets new requests again\nerror: there is no instance 'i-2'\n"
    )


# -- wait ---------------------------------------------------------------------------------


def waited(*options: str) -> int:
    return run(["status", "--wait=drained=i-1", *options])


def test_waiting_for_a_drain(bed: Bed, capsys: Captured) -> None:
    assert waited("--timeout", "0") == 124
    assert "is not true: instance i-1 is active, and nobody drains it" in capsys.readouterr().err
    num_asked = bed.fake.asked.count("/v1/status")
    bed.drains = [report()]
    assert waited("--timeout", "0") == 124
    assert "instance i-1 is draining, 2 left" in capsys.readouterr().err

    def happen() -> None:
        bed.until_watched()
        bed.drains = [report(state="drained")]

    with meanwhile(happen):
        assert waited() == 0
    assert capsys.readouterr().err == "instance i-1 is drained: safe to delete\n"
    assert bed.fake.asked.count("/v1/status") == num_asked, "the drains say it all"


def test_waiting_for_a_drain_that_removes_the_instance(bed: Bed, capsys: Captured) -> None:
    bed.drains = [report(removes_instance=True)]

    def happen() -> None:
        bed.until_watched()
        bed.fake.status = cluster(instance("i-0"))
        bed.drains = []

    with meanwhile(happen):
        assert waited() == 0
    assert capsys.readouterr().err == "instance i-1 is gone\n"
    assert waited() == 4, "from the beginning, it is a mistake"


def test_a_frontend_that_does_not_answer_is_named() -> None:
    from controller.api.operations import on_instances as drain_text

    line = drain_text.drain_progress(report(num_requests_left=2, silent=("f-1",)))
    assert line == "i-1: 2 left, 0 moving, 0 moved, no answer from f-1"
